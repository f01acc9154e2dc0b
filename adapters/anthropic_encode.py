"""From a ``ModelInput`` to the exact bytes of a Messages request: pure, the same bytes for the same input.

An earlier answer goes back with every block as it came, thinking and signatures included. The results of a turn stand in the one
user message right behind it, in call order and before any text; messages of one role that follow each other are one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

from ..runtime.canonical import JSON, canonical_bytes
from ..runtime.model import (
    AssistantCall,
    AssistantItem,
    DigestItem,
    Item,
    ModelInput,
    NoteItem,
    ResultItem,
    UserItem,
)
from ..runtime.strict_json import parse_object
from ..runtime.tool_definition import ToolDefinition
from .anthropic_decode import CALL, CONTINUATION_TAG
from .history import (
    DIGEST_CALL,
    NOTE_PREFIX,
    Kept,
    carried_ids,
    carried_state,
    fits_strict,
    kept_members,
    made_up_id,
    wire_arguments,
    wire_ids,
    wire_name,
    wire_text,
)
from .request_body import EncodeOptions, begun, hosted_tools

OWNED_FIELDS: Final = frozenset(
    {"model", "messages", "system", "tools", "tool_choice", "max_tokens", "stream", "container"}
)
"""What an application can't set beside the adapter: the runtime's limits and pairing rest on them."""

BEGINNING: Final = "[runtime] What was done before:"
"""Stands first where the history begins with what the model did: a user has to speak first."""


class AnthropicOptions(EncodeOptions, frozen=True, kw_only=True):
    """What of an adapter's settings changes the bytes of a request. ``hosted``: definitions of the provider's own tools by the names
    that runs declare."""

    strict: bool = False
    parallel_tool_calls: bool | None = None
    hosted: bytes = b"{}"
    extra: bytes = b"{}"
    stream: bool = True


def encode_request(options: AnthropicOptions, request: ModelInput) -> bytes:
    """The request's body. Raises ``CanonicalRefused`` only for a tool schema that JSON can't say."""
    body = begun(options.extra)
    body["model"] = request.model
    body["max_tokens"] = request.output_tokens_max
    if request.system:
        body["system"] = wire_text(request.system)
    body["messages"] = _messages(request.items)
    body["stream"] = options.stream
    tools: list[JSON] = [_tool(options, tool) for tool in request.tools]
    tools += hosted_tools(options.hosted, request)
    if tools:
        body["tools"] = tools
        if options.parallel_tool_calls is not None:
            one_at_a_time = not options.parallel_tool_calls
            body["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": one_at_a_time}
    return canonical_bytes(body)


def _messages(items: Sequence[Item]) -> list[JSON]:
    turns: list[tuple[str, list[JSON]]] = []

    def say(role: str, blocks: Sequence[JSON]) -> None:
        if not blocks:
            return
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        else:
            turns.append((role, list(blocks)))

    ids: dict[str, str] = {}
    earlier: set[str] = set()
    for number, item in enumerate(items):
        match item:
            case UserItem():
                say("user", _text(item.text))
            case NoteItem():
                say("user", _text(NOTE_PREFIX + item.text))
            case DigestItem():
                call_id = f"toolu_digest{number}"
                say("assistant", [{"type": CALL, "id": call_id, "name": DIGEST_CALL, "input": {}}])
                say("user", [_result(call_id, wire_text(item.text), is_error=False)])
            case AssistantItem():
                kept = kept_members(
                    carried_state(item.continuation, CONTINUATION_TAG).get("blocks"), item.calls
                )
                ids = wire_ids(item, carried_ids(kept, "id"), earlier)
                earlier.update(ids.values())
                say("assistant", _answer(item, kept, ids))
            case ResultItem():
                call_id = ids.get(item.call_id) or made_up_id(item.call_id)
                content = item.content.decode("utf-8", "backslashreplace")
                say("user", [_result(call_id, content, is_error=item.is_error)])
    if turns and turns[0][0] == "assistant":
        turns.insert(0, ("user", _text(BEGINNING)))
    return [{"role": role, "content": blocks} for role, blocks in turns]


def _text(text: str) -> list[JSON]:
    """A block; none for a text without anything in it, which the API refuses."""
    return [{"type": "text", "text": wire_text(text)}] if text.strip() else []


def _result(call_id: str, content: str, *, is_error: bool) -> JSON:
    block: dict[str, JSON] = {"type": "tool_result", "tool_use_id": call_id, "content": content}
    if is_error:
        block["is_error"] = True
    return block


def _answer(item: AssistantItem, kept: Kept, ids: Mapping[str, str]) -> list[JSON]:
    """The blocks of an earlier answer as they came; without them its text and calls."""
    blocks: list[JSON] = []
    for member, call in kept:
        if call is None:
            # The one block that came and may not go back: a text without anything in it.
            if member.get("type") != "text" or str(member.get("text", "")).strip():
                blocks.append(member)
            continue
        written: dict[str, JSON] = {
            "id": ids[call.call_id],
            "name": wire_name(call.name),
            "input": parse_object(wire_arguments(call.arguments)),
        }
        blocks.append({**member, **written})
    if kept:
        return blocks
    blocks += _text(item.text)
    calls: list[JSON] = [_call(one, ids[one.call_id]) for one in item.calls]
    return blocks + calls


def _call(call: AssistantCall, wire_id: str) -> JSON:
    arguments: JSON = parse_object(wire_arguments(call.arguments))
    return {"type": CALL, "id": wire_id, "name": wire_name(call.name), "input": arguments}


def _tool(options: AnthropicOptions, tool: ToolDefinition) -> JSON:
    found: dict[str, JSON] = {
        "name": tool.name,
        "description": wire_text(tool.description),
        "input_schema": cast(JSON, tool.parameters),
    }
    if options.strict and fits_strict(tool.parameters):
        found["strict"] = True
    return found
