"""From the bytes of an OpenAI Responses answer, body or stream, to a draft: pure, total, and never kinder than the facts.

A stream's items are taken where they are said to be done; deltas are only shown. Items are told apart by ``output_index``:
some servers give one item a new id in each event. Status and usage come from the terminal event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec
from msgspec import Raw

from ..runtime.canonical import JSON, canonical_bytes
from ..runtime.errors import CallerError
from ..runtime.model import ProposedCall, Usage
from .answer_draft import CALLS_MAX, CallDraft, CallSeen, Draft, Misread, TextSeen
from .finish_table import OPENAI_RESPONSES, FinishRow
from .history import CALL_MARK
from .sse import Frame
from .token_data import TokenPieces
from .wire_json import MISSING, check_object, count_of, present, text_of, value_of, written_bytes

CONTINUATION_TAG: Final = "openai_responses"

_ONCE: Final = ("id", "model", "status", "output", "error", "incomplete_details", "type", "item", "response")
_OPAQUE: Final = ("arguments",)

TOKENS_OF_ITEM: Final = "output.content.logprobs"
TOKENS_OF_DELTA: Final = "response.output_text.delta.logprobs"

FUNCTION: Final = "function_call"
CUSTOM: Final = "custom_tool_call"
_PLAIN: Final = frozenset({"message", "reasoning", "compaction"})
_SILENT: Final = (
    "response.created",
    "response.in_progress",
    "response.queued",
    "response.content_part.",
    "response.output_text.",
    "response.refusal.",
    "response.reasoning_",
    "response.reasoning.",
    "response.function_call_arguments.",
    "response.custom_tool_call_input.",
    "response.web_search_call.",
    "response.file_search_call.",
    "response.code_interpreter_call",
    "response.image_generation_call.",
    "response.mcp_",
    "response.apply_patch_call",
    "response.shell_call",
    "keepalive",
)
"""Events that say nothing which the items don't say in the end."""


class _Item(msgspec.Struct, gc=False):
    """One item of the output, as loosely as servers write it."""

    type: object = None
    id: object = None
    call_id: object = None
    name: object = None
    arguments: Raw = MISSING
    input: object = None
    status: object = None
    content: Raw = MISSING


class _Part(msgspec.Struct, gc=False):
    type: object = None
    text: object = None
    refusal: object = None
    logprobs: Raw = MISSING


class _Reason(msgspec.Struct, gc=False):
    reason: object = None


class _Response(msgspec.Struct, gc=False):
    id: object = None
    model: object = None
    status: object = None
    output: list[Raw] | None = None
    error: Raw = MISSING
    incomplete_details: _Reason | None = None
    usage: Raw = MISSING


class _Event(msgspec.Struct, gc=False):
    type: object = None
    output_index: object = None
    item: Raw = MISSING
    response: _Response | None = None
    delta: object = None
    error: Raw = MISSING
    logprobs: Raw = MISSING


_decode_response = msgspec.json.Decoder(_Response).decode
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_item = msgspec.json.Decoder(_Item).decode
_decode_parts = msgspec.json.Decoder(list[_Part]).decode


class ResponsesAssembly:
    """One answer of a Responses server."""

    ends_with_eof = False
    ends_at_once = True

    def __init__(self) -> None:
        self.draft = Draft()
        self._items: list[Raw] = []
        self._done: dict[int, Raw] = {}
        self._opened: dict[int, str] = {}
        self._calls_opened = 0
        self._final: _Response | None = None
        self._shown_tokens = TokenPieces()

    def rows(self) -> tuple[FinishRow, ...]:
        return OPENAI_RESPONSES

    def body(self, body: bytes) -> None:
        twice = check_object(body, once=_ONCE, opaque=_OPAQUE)
        response = _decode_response(body)
        if "usage" in twice:
            response.usage = MISSING
        if response.status is None and response.output is None and present(response.error):
            self.draft.error = b'{"error":' + bytes(response.error) + b"}"
            return
        self._take(response)
        self._read(response.output or [])

    def frame(self, frame: Frame) -> None:
        check_object(frame.data, once=_ONCE, opaque=_OPAQUE)
        event = _decode_event(frame.data)
        kind = text_of(event.type) or frame.event
        draft = self.draft
        match kind:
            case "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled":
                response = event.response or _Response()
                if response.status is None:
                    response.status = kind.removeprefix("response.")
                self._final = response
                self._take(response)
                draft.ended = True
            case "response.output_item.added" | "response.output_item.done":
                self._item(event, done=kind.endswith("done"))
            case "response.output_text.delta" if text := text_of(event.delta):
                draft.texts.append(text)
                draft.signs.append(TextSeen(text))
                self._shown_tokens.keep(TOKENS_OF_DELTA, event.logprobs)
            case "error":
                draft.error = frame.data
            case _ if present(event.error):
                draft.error = frame.data
            case "response.created" | "response.in_progress" if event.response is not None:
                draft.response_id = text_of(event.response.id)
                draft.served_model = text_of(event.response.model)
            case _ if not kind.startswith(_SILENT):
                draft.skip(f"event:{kind}")
            case _:
                pass

    def settle(self) -> None:
        """The items that were said to be done, or those of the terminal event where none was."""
        final = self._final.output or [] if self._final is not None else []
        done = [self._done[index] for index in sorted(self._done)]
        if done and final and _calls_in(done) != _calls_in(final):
            raise Misread("answer_disagrees", "the stream and its last event hold different calls")
        self._read(done or final)
        if TOKENS_OF_ITEM not in self.draft.tokens:  # some servers say it with each delta alone
            self.draft.tokens.take(self._shown_tokens)
        if final:
            return
        for index in sorted(self._opened.keys() - self._done.keys()):
            if self._opened[index] in (FUNCTION, CUSTOM):
                self.draft.calls.append(CallDraft(whole=False))

    def continuation(self, calls: Sequence[ProposedCall]) -> bytes | None:
        """All items, verbatim and in order; of a call all but its arguments, which the run has beside it."""
        kept: list[JSON] = []
        number = 0
        for raw in self._items:
            item = value_of(raw)
            if not isinstance(item, dict):
                continue
            if item.get("type") in (FUNCTION, CUSTOM):
                name = "arguments" if item["type"] == FUNCTION else "input"
                item = {key: value for key, value in item.items() if key != name}
                item[CALL_MARK] = number
                number += 1
            kept.append(item)
        if not kept or number != len(calls):
            return None
        try:
            return canonical_bytes({CONTINUATION_TAG: 1, "id": self.draft.response_id, "items": kept})
        except CallerError:
            return None

    # --- reading ------------------------------------------------------------------------------------------------------

    def _take(self, response: _Response) -> None:
        draft = self.draft
        draft.response_id = text_of(response.id) or draft.response_id
        draft.served_model = text_of(response.model) or draft.served_model
        status = response.status
        draft.native = status
        draft.finish_raw = (
            "null"
            if status is None
            else (status if isinstance(status, str) else f"({type(status).__name__})")
        )
        details = response.incomplete_details
        if status == "incomplete" and details is not None and (reason := text_of(details.reason)):
            draft.native = draft.finish_raw = f"incomplete/{reason}"
        draft.usage = _usage(response.usage)
        # A whole answer may carry an error too; a failed one always means it.
        draft.error = (
            b'{"error":' + bytes(response.error) + b"}"
            if present(response.error) and status != "completed"
            else None
        )

    def _item(self, event: _Event, *, done: bool) -> None:
        index = event.output_index
        if not isinstance(index, int) or isinstance(index, bool) or not present(event.item):
            raise Misread("response_shape", "an item of the stream has no place")
        item = _decode_item(event.item)
        kind = text_of(item.type)
        if index not in self._opened:
            if len(self._opened) >= CALLS_MAX:
                raise Misread("too_many_calls", f"the answer holds over {CALLS_MAX} items", model=True)
            self._opened[index] = kind
            if kind in (FUNCTION, CUSTOM):
                self.draft.signs.append(CallSeen(self._calls_opened, text_of(item.name)))
                self._calls_opened += 1
        if done:
            if index in self._done:
                raise Misread("item_twice", "an item of the stream is done twice")
            self._done[index] = event.item.copy()

    def _read(self, items: Sequence[Raw]) -> None:
        draft = self.draft
        if items:  # without any, the deltas are all there is
            draft.texts, draft.refusals = [], []
        self._items = list(items)
        for raw in items:
            item = _decode_item(raw)
            kind = text_of(item.type)
            if kind == FUNCTION:
                draft.calls.append(
                    CallDraft(
                        text_of(item.name),
                        written_bytes(item.arguments),
                        text_of(item.call_id),
                        # One server leaves "in_progress" on calls of an answer that is completed.
                        whole=item.status != "incomplete",
                    )
                )
            elif kind == CUSTOM:
                # None was offered. Its text is no JSON object, so the ladder refuses it as it is.
                draft.calls.append(
                    CallDraft(text_of(item.name), text_of(item.input).encode(), text_of(item.call_id))
                )
            elif kind == "message":
                self._message(item)
            elif kind.endswith("_call") or kind == "program" or kind.startswith("mcp_"):
                draft.hosted.append("mcp" if kind.startswith("mcp_") else kind.removesuffix("_call"))
            elif kind not in _PLAIN and not kind.endswith("_output"):
                draft.skip(f"item:{kind}")

    def _message(self, item: _Item) -> None:
        draft = self.draft
        raw = bytes(item.content)
        if raw.startswith(b'"'):
            draft.texts.append(msgspec.json.decode(raw, type=str))
            return
        if not raw.startswith(b"["):
            return
        for part in _decode_parts(raw):
            if part.type in ("output_text", "text"):
                draft.texts.append(text_of(part.text))
                draft.tokens.keep(TOKENS_OF_ITEM, part.logprobs)
            elif part.type == "refusal":
                draft.refusals.append(text_of(part.refusal) or "refused")
            else:
                draft.skip(f"part:{text_of(part.type)}")


def _calls_in(items: Sequence[Raw]) -> list[tuple[str, str, bytes]]:
    found = [_decode_item(raw) for raw in items]
    return [
        (text_of(item.call_id), text_of(item.name), written_bytes(item.arguments))
        for item in found
        if item.type == FUNCTION
    ]


def _usage(raw: Raw) -> Usage | None:
    """Input includes what was cached, output what was reasoned."""
    usage: Any = value_of(raw) if present(raw) else None
    if not isinstance(usage, dict):
        return None
    found = cast("dict[str, JSON]", usage)
    given, made = count_of(found.get("input_tokens")), count_of(found.get("output_tokens"))
    if given is None and made is None:
        return None
    return Usage(
        given,
        made,
        _detail(found, "input_tokens_details", "cached_tokens"),
        _detail(found, "output_tokens_details", "reasoning_tokens"),
    )


def _detail(usage: dict[str, JSON], group: str, name: str) -> int:
    members = usage.get(group)
    return (count_of(members.get(name)) or 0) if isinstance(members, dict) else 0
