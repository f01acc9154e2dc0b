"""The parts of a Chat Completions answer that are read, as loosely as servers write them.

``Raw`` keeps bytes as they came; ``object`` takes any JSON value where servers disagree. Other fields are skipped.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from .wire_json import MISSING


class WireFunction(msgspec.Struct, gc=False):
    """``arguments`` should be a string that holds JSON; some servers send an object, null or nothing."""

    name: object = None
    arguments: Raw = MISSING


class WireCall(msgspec.Struct, gc=False):
    """``id`` may be missing, empty or repeated; ``index`` counts the pieces of a stream together."""

    id: object = None
    type: object = None
    function: WireFunction | None = None
    extra_content: Raw = MISSING
    index: object = None


class WireMessage(msgspec.Struct, gc=False):
    """``function_call`` is the legacy form of one call. The last three fields are what servers want to see again."""

    content: Raw = MISSING
    refusal: object = None
    tool_calls: list[WireCall] | None = None
    function_call: WireFunction | None = None
    reasoning_content: Raw = MISSING
    reasoning_details: Raw = MISSING
    extra_content: Raw = MISSING


class WireChoice(msgspec.Struct, gc=False):
    """One answer, or in a stream a piece of it; Azure leaves the message out when it filtered it."""

    finish_reason: object = None
    message: WireMessage | None = None
    delta: WireMessage | None = None
    index: object = None


class WireCompletion(msgspec.Struct, gc=False):
    """A whole answer, a piece of one, or an error in its place."""

    id: object = None
    model: object = None
    choices: list[WireChoice] | None = None
    usage: Raw = MISSING
    error: Raw = MISSING


class WirePart(msgspec.Struct, gc=False):
    """One part of a content list."""

    type: object = None
    text: object = None
    refusal: object = None


decode_completion = msgspec.json.Decoder(WireCompletion).decode
decode_parts = msgspec.json.Decoder(list[WirePart]).decode
