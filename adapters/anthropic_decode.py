"""From the bytes of an Anthropic Messages answer, body or stream, to a draft: pure, total, and never kinder than the facts.

Blocks are told apart by ``index``. In a stream a call's arguments are whole at its ``content_block_stop``, and the answer is
at ``message_stop`` after a stop reason. A second ``message_start`` of the same id is a proxy's echo; one of another id is
another answer spliced into this one, and then it is none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec
from msgspec import Raw

from ..runtime.canonical import JSON, canonical_bytes
from ..runtime.errors import CallerError
from ..runtime.model import ProposedCall, Usage
from .answer_draft import CALLS_MAX, CallDraft, CallSeen, Draft, Misread, TextSeen
from .finish_table import ANTHROPIC, FinishRow
from .history import CALL_MARK
from .sse import Frame
from .wire_json import MISSING, check_object, count_of, present, text_of, value_of, written_bytes

CONTINUATION_TAG: Final = "anthropic"
CALL: Final = "tool_use"

_ONCE: Final = (
    "id",
    "model",
    "content",
    "stop_reason",
    "error",
    "type",
    "message",
    "content_block",
    "delta",
    "index",
)
_OPAQUE: Final = ("input",)
_PLAIN: Final = frozenset({"text", "thinking", "redacted_thinking"})


class _Block(msgspec.Struct, gc=False):
    type: object = None
    id: object = None
    name: object = None
    input: Raw = MISSING
    text: object = None


class _Details(msgspec.Struct, gc=False):
    explanation: object = None
    category: object = None


class _Message(msgspec.Struct, gc=False):
    id: object = None
    model: object = None
    content: list[Raw] | None = None
    stop_reason: object = None
    stop_details: _Details | None = None
    usage: Raw = MISSING
    error: Raw = MISSING
    type: object = None


class _Delta(msgspec.Struct, gc=False):
    type: object = None
    text: object = None
    partial_json: object = None
    thinking: object = None
    signature: object = None
    stop_reason: object = None
    stop_details: _Details | None = None


class _Event(msgspec.Struct, gc=False):
    type: object = None
    index: object = None
    message: _Message | None = None
    content_block: Raw = MISSING
    delta: Raw = MISSING
    usage: Raw = MISSING
    error: Raw = MISSING


_decode_message = msgspec.json.Decoder(_Message).decode
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_block = msgspec.json.Decoder(_Block).decode
_decode_delta = msgspec.json.Decoder(_Delta).decode


class _Open:
    """A block of a stream as far as it came: how it began, and what was added since."""

    __slots__ = ("added", "begun", "cited", "kind", "members", "number", "stopped")

    def __init__(self, begun: Raw, kind: str, number: int) -> None:
        self.begun = begun
        self.kind = kind
        self.number = number
        self.added: dict[str, list[str]] = {}
        self.members: dict[str, Any] = {}
        self.cited: list[Any] = []
        self.stopped = False

    def add(self, name: str, piece: object) -> None:
        if isinstance(piece, str):
            self.added.setdefault(name, []).append(piece)

    def whole(self) -> Raw:
        """The block as a body would hold it."""
        block = cast("dict[str, Any]", msgspec.json.decode(self.begun))
        block.update(self.members)
        if self.cited:
            block["citations"] = self.cited
        for name, pieces in self.added.items():
            if name == "partial_json":
                continue
            first = block.get(name)
            block[name] = (first if isinstance(first, str) else "") + "".join(pieces)
        if self.kind != CALL and (written := "".join(self.added.get("partial_json", ()))):
            # The provider's own tool: what can't be read goes back as it began.
            with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
                block["input"] = msgspec.json.decode(written)
        return Raw(msgspec.json.encode(block))


class AnthropicAssembly:
    """One answer of the Messages API."""

    ends_with_eof = False
    ends_at_once = True

    def __init__(self) -> None:
        self.draft = Draft()
        self._blocks: list[Raw] = []
        self._open: dict[int, _Open] = {}
        self._calls_opened = 0
        self._started = False
        self._usage: dict[str, JSON] = {}

    def rows(self) -> tuple[FinishRow, ...]:
        return ANTHROPIC

    def body(self, body: bytes) -> None:
        twice = check_object(body, once=_ONCE, opaque=_OPAQUE)
        message = _decode_message(body)
        if present(message.error) or message.type == "error":
            self.draft.error = body
            return
        self._started = True
        self._named(message)
        if "usage" not in twice:
            self._count(message.usage)
        self._stop(message.stop_reason, message.stop_details)
        self._blocks = message.content or []
        for raw in self._blocks:
            self._read(raw)

    def frame(self, frame: Frame) -> None:
        check_object(frame.data, once=_ONCE, opaque=_OPAQUE)
        event = _decode_event(frame.data)
        kind = text_of(event.type) or frame.event
        draft = self.draft
        if kind == "error" or present(event.error):
            draft.error = frame.data
            return
        match kind:
            case "message_start":
                self._start(event.message or _Message())
            case "content_block_start":
                self._begin(event)
            case "content_block_delta":
                self._delta(event)
            case "content_block_stop":
                self._block_at(event.index).stopped = True
            case "message_delta":
                delta = _decode_delta(event.delta) if present(event.delta) else _Delta()
                self._count(event.usage)
                if delta.stop_reason is not None:
                    self._stop(delta.stop_reason, delta.stop_details)
            case "message_stop":
                # Without a stop reason nobody said how it ended.
                draft.ended = draft.native is not None
            case "ping":
                pass
            case _:
                draft.skip(f"event:{kind}")

    def settle(self) -> None:
        self.draft.texts = []
        for index in sorted(self._open):
            block = self._open[index]
            raw = block.whole()
            self._blocks.append(raw)
            self._read(raw)
            if block.kind == CALL:
                call = self.draft.calls[-1]
                call.whole = block.stopped
                if "partial_json" in block.added and (written := "".join(block.added["partial_json"])):
                    call.arguments = written.encode()

    def continuation(self, calls: Sequence[ProposedCall]) -> bytes | None:
        """All blocks, verbatim and in order; of a call all but its arguments, which the run has beside it."""
        kept: list[JSON] = []
        number = 0
        for raw in self._blocks:
            block = value_of(raw)
            if not isinstance(block, dict):
                continue
            if block.get("type") == CALL:
                block = {name: value for name, value in block.items() if name != "input"}
                block[CALL_MARK] = number
                number += 1
            kept.append(block)
        if not kept or number != len(calls):
            return None
        try:
            return canonical_bytes({CONTINUATION_TAG: 1, "blocks": kept})
        except CallerError:
            return None

    # --- reading ------------------------------------------------------------------------------------------------------

    def _start(self, message: _Message) -> None:
        if self._started:
            if text_of(message.id) != self.draft.response_id:
                raise Misread("answer_spliced", "two answers are mixed in one stream")
            return
        self._started = True
        self._named(message)
        self._count(message.usage)

    def _named(self, message: _Message) -> None:
        self.draft.response_id = text_of(message.id)
        self.draft.served_model = text_of(message.model)

    def _stop(self, reason: object, details: _Details | None) -> None:
        draft = self.draft
        draft.native = reason
        draft.finish_raw = (
            "null"
            if reason is None
            else (reason if isinstance(reason, str) else f"({type(reason).__name__})")
        )
        if reason == "refusal":
            said = "" if details is None else text_of(details.explanation) or text_of(details.category)
            draft.refusals = [said or "refused"]

    def _begin(self, event: _Event) -> None:
        index = event.index
        if not isinstance(index, int) or isinstance(index, bool) or not present(event.content_block):
            raise Misread("response_shape", "a block of the stream has no place")
        if index in self._open:
            raise Misread("block_twice", "a block of the stream begins twice")
        if len(self._open) >= CALLS_MAX:
            raise Misread("too_many_calls", f"the answer holds over {CALLS_MAX} blocks", model=True)
        block = _decode_block(event.content_block)
        kind = text_of(block.type)
        if kind == CALL:
            self.draft.signs.append(CallSeen(self._calls_opened, text_of(block.name)))
            self._calls_opened += 1
        elif kind == "text" and (text := text_of(block.text)):
            self._show(text)
        self._open[index] = _Open(event.content_block.copy(), kind, self._calls_opened)

    def _delta(self, event: _Event) -> None:
        block = self._block_at(event.index)
        if block.stopped:
            raise Misread("block_stopped", "a block of the stream goes on after its end")
        delta = _decode_delta(event.delta)
        match delta.type:
            case "text_delta":
                block.add("text", delta.text)
                if isinstance(delta.text, str):
                    self._show(delta.text)
            case "input_json_delta":
                block.add("partial_json", delta.partial_json)
            case "thinking_delta":
                block.add("thinking", delta.thinking)
            case "signature_delta":
                block.members["signature"] = delta.signature
            case "citations_delta":
                block.cited.append(_member(event.delta, "citation"))
            case other:
                self.draft.skip(f"delta:{text_of(other)}")
                # Whatever it is, its members belong to the block, which goes back.
                found = cast("dict[str, Any]", msgspec.json.decode(event.delta))
                block.members.update((name, value) for name, value in found.items() if name != "type")

    def _block_at(self, index: object) -> _Open:
        block = self._open.get(index) if isinstance(index, int) else None
        if block is None:
            raise Misread("response_shape", "a block of the stream was never begun")
        return block

    def _show(self, text: str) -> None:
        if text:
            self.draft.texts.append(text)
            self.draft.signs.append(TextSeen(text))

    def _read(self, raw: Raw) -> None:
        draft = self.draft
        block = _decode_block(raw)
        kind = text_of(block.type)
        if kind == CALL:
            draft.calls.append(
                CallDraft(text_of(block.name), written_bytes(block.input), text_of(block.id), whole=True)
            )
        elif kind == "text":
            draft.texts.append(text_of(block.text))
        elif kind == "server_tool_use":
            draft.hosted.append(text_of(block.name) or kind)
        elif kind == "mcp_tool_use":
            draft.hosted.append("mcp")
        elif kind not in _PLAIN and not kind.endswith("_tool_result"):
            draft.skip(f"block:{kind}")

    def _count(self, raw: Raw) -> None:
        """What is there is a total so far and replaces; what is missing stays as it was."""
        usage: Any = value_of(raw) if present(raw) else None
        if isinstance(usage, dict):
            found = cast("dict[str, JSON]", usage)
            self._usage.update({name: value for name, value in found.items() if value is not None})
            self.draft.usage = _usage(self._usage)


def _member(delta: Raw, name: str) -> Any:
    return cast("dict[str, Any]", msgspec.json.decode(delta)).get(name)


def _usage(usage: dict[str, JSON]) -> Usage | None:
    """Input is reported without what was read from or written to a cache, and all of it was input."""
    plain, made = count_of(usage.get("input_tokens")), count_of(usage.get("output_tokens"))
    if plain is None and made is None:
        return None
    cached = count_of(usage.get("cache_read_input_tokens")) or 0
    written = count_of(usage.get("cache_creation_input_tokens")) or 0
    details = usage.get("output_tokens_details")
    thought = count_of(details.get("thinking_tokens")) if isinstance(details, dict) else None
    return Usage(None if plain is None else plain + cached + written, made, cached, thought or 0)
