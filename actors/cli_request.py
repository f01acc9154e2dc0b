"""``boundloop request``: a past model request, rebuilt from the log alone."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import click

from ..runtime.errors import CallerError
from ..runtime.model import AssistantItem, DigestItem, Item, NoteItem, ResultItem, UserItem
from .cli_output import DAMAGED
from .cli_session import Session, on_store

if TYPE_CHECKING:
    from ..eventstore.requests import PastRequest


@click.command()
@click.argument("run_id", metavar="RUN")
@click.argument("turn", type=click.IntRange(1), metavar="TURN")
@click.option("--attempt", type=click.IntRange(1), help="The last one unless given.")
@click.option(
    "--wire", is_flag=True, help="The body that went to the model's API, where the log says enough of it."
)
@on_store
async def request(session: Session, run_id: str, turn: int, attempt: int | None, wire: bool) -> int:
    """What a model was asked: all that it was sent, and whether that is what the log's hash says.

    Nothing is asked of the application. The exit code is 6 if the hash differs.
    """
    from ..eventstore.history import PinsCache, pins_of
    from ..eventstore.reading import read_run
    from ..eventstore.requests import past_request
    from .cli_reading import code_of, damage_view, say_damage

    found = await read_run(session.store, run_id)
    say_damage(session.out, found)
    state = found.whole()
    pins = {state.pins_sha256: await pins_of(session.store, state.pins_sha256, PinsCache())}
    past = past_request(found.records, pins, turn, attempt or 0)
    view = {**request_view(past), **damage_view(found)}
    if wire:
        view["wire"] = wire_of(past).decode()
    session.out.thing(view)
    return code_of(found) if past.intact else DAMAGED


def request_view(past: PastRequest) -> dict[str, Any]:
    """The neutral request, item by item. What a provider carries along (its reasoning) is only counted."""
    request = past.request
    return {
        "run": request.run_id,
        "turn": request.turn,
        "attempt": request.attempt,
        "seq": past.seq,
        "intact": past.intact,
        "request_sha256": request.request_sha256.hex(),
        "family": past.family,
        "adapter_revision": past.adapter_revision,
        "model": request.model,
        "compactions": past.compactions,
        "output_tokens_max": request.output_tokens_max,
        "system": request.system,
        "tools": [{"name": tool.name, "sha256": tool.definition_sha256.hex()} for tool in request.tools],
        "items": [_item_view(item) for item in request.items],
    }


def _item_view(item: Item) -> dict[str, Any]:
    match item:
        case UserItem():
            return {"kind": "user", "text": item.text}
        case NoteItem():
            return {"kind": "note", "text": item.text}
        case DigestItem():
            return {"kind": "digest", "text": item.text}
        case AssistantItem():
            calls = [
                {"call_id": one.call_id, "name": one.name, "arguments": _text(one.arguments)}
                for one in item.calls
            ]
            carried = len(item.continuation or b"")
            return {"kind": "assistant", "text": item.text, "calls": calls, "continuation_bytes": carried}
        case ResultItem():
            content = _text(item.content)
            named = {"call_id": item.call_id, "name": item.name, "is_error": item.is_error}
            return {"kind": "result", **named, "content": content}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def wire_of(past: PastRequest) -> bytes:
    """The bytes of the request's body. Raises ``CallerError`` (``no_wire``) where the log doesn't say how its adapter was
    set: another family, or further fields of the application's own."""
    from ..adapters.openai_chat_encode import ChatOptions, encode_request

    if past.family == "openai_chat":
        fields = ("max_completion_tokens", "max_tokens")
        roles = ("system", "developer", "user")
        for field, strict, parallel, role in product(fields, (True, False), (None, True, False), roles):
            options = ChatOptions(
                output_limit_field=field,  # type: ignore[arg-type]  # one of the two
                strict=strict,
                parallel_tool_calls=parallel,
                system_role=role,  # type: ignore[arg-type]  # one of the three
            )
            if options.revision() == past.adapter_revision:
                return encode_request(options, past.request)
    raise CallerError(
        "no_wire",
        f"the log doesn't say enough of how the adapter ({past.family}) was set to write its bytes again; without --wire the "
        "request is shown as it was built",
        path=past.adapter_revision,
    )
