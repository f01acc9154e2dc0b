"""A model's turn without what is declared, before it is anything to the run.

A call whose arguments hold a secret is proposed with the redacted ones, marked ``withheld``, and refused: what would run
isn't what the model wrote. A reference is no secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from .canonical import JSON, canonical_bytes, child_path
from .errors import CallerError
from .model import ModelTurn, ProposedCall
from .redaction import UNREADABLE, Redactor, marker
from .strict_json import parse_object
from .tool_definition import ToolDefinition

WITHHELD_CHARS_MAX: Final = 200
_escape = re.compile(r"\\u([0-9A-Fa-f]{4})")


def redacted_turn(reply: ModelTurn, redactor: Redactor, tools: Mapping[str, ToolDefinition]) -> ModelTurn:
    """The reply as it may be recorded. A continuation that holds something declared is left out: it is its provider's, and
    nothing can be taken out of it."""
    text = redactor.text
    continuation = reply.continuation
    if continuation is not None:
        opaque = continuation.decode("utf-8", "replace")
        if text(opaque) != opaque:
            continuation = None
    return msgspec.structs.replace(
        reply,
        text=text(reply.text),
        calls=tuple(_call(call, redactor, tools) for call in reply.calls),
        continuation=continuation,
        finish_raw=text(reply.finish_raw),
        response_id=text(reply.response_id),
        served_model=text(reply.served_model),
        error_code=text(reply.error_code),
        safe_message=text(reply.safe_message),
        hosted=tuple(text(name) for name in reply.hosted),
        side_attempts=reply.side_attempts
        and tuple(
            msgspec.structs.replace(made, model=text(made.model), purpose=text(made.purpose))
            for made in reply.side_attempts
        ),
    )


def _call(call: ProposedCall, redactor: Redactor, tools: Mapping[str, ToolDefinition]) -> ProposedCall:
    definition = tools.get(call.name)
    secret = () if definition is None else tuple(definition.secret_arguments)
    raw, place = _arguments(call.arguments, redactor, secret)
    name, label = redactor.text(call.name), redactor.text(call.provider_call_id)
    if not place and name == call.name and label == call.provider_call_id:
        return call
    return ProposedCall(name, raw, label, place[:WITHHELD_CHARS_MAX])


def _arguments(raw: bytes, redactor: Redactor, secret: tuple[str, ...]) -> tuple[bytes, str]:
    """The bytes that may be recorded, and where the first secret was; the same bytes where there is none."""
    if not raw:
        return raw, ""
    try:
        read = parse_object(raw)
        written = raw.decode()
        without = redactor.numbers(written)
        shown = read if without == written else parse_object(without)
        kept, place = redactor.arguments(shown, secret)
    except CallerError:
        return _unreadable(raw, redactor, secret)
    # A place that ``arguments`` doesn't name is of a number alone: then no name on the way was changed.
    place = place or ("" if shown is read else _first_change(read, shown, "$"))
    return (canonical_bytes(kept), place) if place else (raw, "")


def _first_change(before: JSON, after: JSON, path: str) -> str:
    """Where the first of two values of one shape differs from the second; empty if nowhere."""
    if isinstance(before, dict) and isinstance(after, dict):
        below = ((item, after[name], child_path(path, name)) for name, item in before.items())
    elif isinstance(before, list) and isinstance(after, list):
        pairs = enumerate(zip(before, after, strict=True))
        below = ((item, other, f"{path}[{index}]") for index, (item, other) in pairs)
    else:
        return "" if isinstance(after, str) == isinstance(before, str) else path
    return next((place for each in below if (place := _first_change(*each))), "")


def _unreadable(raw: bytes, redactor: Redactor, secret: tuple[str, ...]) -> tuple[bytes, str]:
    """What is no JSON will not run. It can't be told what of it is an argument, or a text, so a part isn't taken out."""
    text = raw.decode("utf-8", "replace")
    read = _escape.sub(lambda found: chr(int(found[1], 16)), text)
    bare = read.replace('"', " ")
    found = redactor.numbers(bare) != bare or any(redactor.text(each) != each for each in (text, read))
    if secret or found or redactor.names_field(read):
        return marker(UNREADABLE).encode(), "$"
    return raw, ""
