"""From the bytes of a Chat Completions answer to a ``ModelTurn``: pure, total, and never kinder than the facts.

A stream is put together into what a whole answer would be, so that both are read by the same rules. What its finish value
means is a table: ``finish_table.OPENAI_CHAT``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

import msgspec
from msgspec import Raw

from ..runtime.canonical import JSON, canonical_bytes
from ..runtime.errors import CallerError
from ..runtime.model import FinishKind, ModelTurn, ProposedCall
from .answer_draft import CALLS_MAX, SHORT_ID_CHARS, CallDraft, Draft, Exchange, Misread
from .decoding import decode_whole
from .finish_table import OPENAI_CHAT, OPENAI_CHAT_STREAM, Facts, FinishRow, row_of
from .openai_chat_stream import ChatStream
from .openai_chat_usage import read_usage
from .openai_chat_wire import (
    WireCall,
    WireChoice,
    WireFunction,
    WireMessage,
    decode_completion,
    decode_parts,
    keep_tokens,
)
from .provider_errors import read_error
from .secret import Secret
from .sse import Frame
from .wire_json import check_object, present, text_of, value_of, written_bytes

__all__ = ["CALLS_MAX", "CONTINUATION_TAG", "ChatAssembly", "decide", "decode_answer"]

CONTINUATION_TAG: Final = "openai_chat"

_ONCE: Final = ("id", "model", "choices", "error")
"""Fields of an answer that may not be there twice. A second ``usage`` makes the usage unreported and no more."""

_OPAQUE: Final = ("arguments",)


def decode_answer(
    status: int, headers: Mapping[str, str], body: bytes, *, now_ms: int, secrets: Sequence[Secret] = ()
) -> ModelTurn:
    """The turn of a whole HTTP answer, body or stream; never raises. The arguments are those of ``Exchange``."""
    return decode_whole(ChatAssembly(), Exchange(status, headers, now_ms, secrets), body)


def decide(
    native: object,
    *,
    calls: tuple[ProposedCall, ...] = (),
    refused: bool = False,
    no_message: bool = False,
    odd: bool = False,
) -> tuple[FinishKind, str]:
    """What a finish value with what came along means, and the code of what is wrong, if anything."""
    missing = any(not call.arguments for call in calls)
    row = row_of(OPENAI_CHAT, native, Facts(bool(calls), refused, not no_message, odd, missing))
    return row.finish, row.code


class ChatAssembly:
    """One answer of a Chat Completions server."""

    ends_with_eof = False
    ends_at_once = False

    def __init__(self) -> None:
        self.draft = Draft()
        self._stream: ChatStream | None = None
        self._message = WireMessage()

    def rows(self) -> tuple[FinishRow, ...]:
        return OPENAI_CHAT if self._stream is None else OPENAI_CHAT_STREAM

    def body(self, body: bytes) -> None:
        twice = check_object(body, once=_ONCE, opaque=_OPAQUE)
        completion = decode_completion(body)
        draft = self.draft
        draft.usage = None if "usage" in twice else read_usage(completion.usage)
        draft.response_id = text_of(completion.id)
        draft.served_model = text_of(completion.model)
        if present(completion.error):
            draft.error = b'{"error":' + bytes(completion.error) + b"}"
            return
        choices = completion.choices
        if choices is None and read_error(body).message:
            draft.error = body
            return
        if not choices:
            raise Misread("no_choice", "the answer holds no choice", model=True)
        if len(choices) > 1:
            # One was asked for. Which of several is meant nobody said.
            raise Misread("several_choices", "the answer holds several choices", model=True)
        keep_tokens(draft.tokens, completion)
        self._take(choices[0])

    def frame(self, frame: Frame) -> None:
        twice = check_object(frame.data, once=_ONCE, opaque=_OPAQUE)
        piece = decode_completion(frame.data)
        draft = self.draft
        if present(piece.error) or frame.event == "error":
            # Some servers put a status beside the error, some leave the object around it out.
            draft.error = frame.data
            return
        if self._stream is None:
            self._stream = ChatStream(draft)
        if not draft.response_id:
            draft.response_id = text_of(piece.id)
        draft.served_model = text_of(piece.model) or draft.served_model
        if "usage" not in twice:
            draft.usage = read_usage(piece.usage) or draft.usage
        keep_tokens(draft.tokens, piece)
        self._stream.add(piece.choices or ())

    def settle(self) -> None:
        if self._stream is not None:
            self._take(self._stream.choice())

    def _take(self, choice: WireChoice) -> None:
        draft = self.draft
        message = self._message = choice.message or WireMessage()
        draft.message = choice.message is not None
        if len(message.tool_calls or ()) > CALLS_MAX:
            raise Misread("too_many_calls", f"the answer holds over {CALLS_MAX} calls", model=True)
        text, refused = _content(message)
        draft.texts = [text]
        draft.refusals = [refused] if refused else []
        draft.calls = _calls(message)
        draft.native = choice.finish_reason
        draft.finish_raw = _native(choice)

    def continuation(self, calls: Sequence[ProposedCall]) -> bytes | None:
        """Opaque state, kept as it came: signed reasoning, plain reasoning beside calls, where one server wants it back and
        elsewhere some refuse it, and long ids of calls."""
        message = self._message
        kept: dict[str, JSON] = {}
        if calls and present(message.reasoning_content):
            kept["reasoning_content"] = value_of(message.reasoning_content)
        for name in ("reasoning_details", "extra_content"):
            raw: Raw = getattr(message, name)
            if present(raw):
                kept[name] = value_of(raw)
        content = value_of(message.content) if bytes(message.content).startswith(b"[") else None
        if isinstance(content, list) and any(
            isinstance(part, dict) and part.get("type") == "thinking" for part in content
        ):
            kept["content"] = content
        extras = [_extra(call) for call in message.tool_calls or ()]
        whole: dict[str, JSON] = {"message": kept} if kept else {}
        if any(extras):
            whole["calls"] = extras
        ids = [call.provider_call_id for call in calls]
        if any(len(label) > SHORT_ID_CHARS for label in ids):
            whole["ids"] = cast("list[JSON]", ids)
        try:
            return canonical_bytes({CONTINUATION_TAG: 1, **whole}) if whole else None
        except CallerError:
            return None


def _native(choice: WireChoice) -> str:
    native = choice.finish_reason
    if native is None:
        return "null"
    return native if isinstance(native, str) else f"({type(native).__name__})"


def _content(message: WireMessage) -> tuple[str, str]:
    """The text and the refusal; content may be a string, null, or a list of parts, of which unknown ones are skipped."""
    refused = text_of(message.refusal)
    raw = bytes(message.content)
    if raw.startswith(b'"'):
        return msgspec.json.decode(raw, type=str), refused
    if not raw.startswith(b"["):
        return "", refused
    parts = decode_parts(raw)
    text = "".join(text_of(part.text) for part in parts if part.type == "text")
    return text, refused or "".join(text_of(part.refusal) for part in parts if part.type == "refusal")


def _calls(message: WireMessage) -> list[CallDraft]:
    """The calls with their raw argument bytes; the legacy form counts where there is no other."""
    if message.tool_calls:
        return [
            _call(call.function, text_of(call.id), odd=call.type not in (None, "", "function"))
            for call in message.tool_calls
        ]
    legacy = message.function_call
    if legacy is not None and (text_of(legacy.name) or written_bytes(legacy.arguments)):
        return [_call(legacy, "", odd=False)]
    return []


def _call(function: WireFunction | None, label: str, *, odd: bool) -> CallDraft:
    if function is None:
        return CallDraft(label=label, odd=odd)
    return CallDraft(text_of(function.name), written_bytes(function.arguments), label, odd=odd)


def _extra(call: WireCall) -> JSON:
    return value_of(call.extra_content) if present(call.extra_content) else None
