"""From the bytes of a Chat Completions answer to a ``ModelTurn``: pure, total, and never kinder than the facts.

The calls themselves say that there are calls, never the finish value; whether they may run, and whether a text is an
answer, the finish value must say. ``decide`` is that table; ``docs/model-adapters.md`` publishes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from msgspec import Raw

from ..runtime.canonical import JSON, canonical_bytes
from ..runtime.errors import CallerError
from ..runtime.model import FinishKind, ModelTurn, ProposedCall
from ..runtime.strict_json import JsonRefused
from .openai_chat_errors import NATIVE_CHARS_MAX, refusal
from .openai_chat_read import read_completion
from .openai_chat_usage import read_usage
from .openai_chat_wire import (
    WireCall,
    WireChoice,
    WireCompletion,
    WireFunction,
    WireMessage,
    decode_parts,
    present,
    text_of,
)
from .secret import Secret, safe_text, without

CONTINUATION_TAG: Final = "openai_chat"
LABEL_CHARS_MAX: Final = 256

SHORT_ID_CHARS: Final = 128
"""A longer id of a call also travels with the opaque state: the runtime's own record of it is bounded, and cuts."""

CALL_ID_CHARS_MAX: Final = 16_384
"""Some servers put signatures into ids. Up to this they go back whole; an answer with a longer one is refused."""

CALLS_MAX: Final = 4_096
"""More calls in one answer than this are no answer. The runtime's own bound, far lower, refuses calls one by one."""


def decode_answer(
    status: int, headers: Mapping[str, str], body: bytes, *, now_ms: int, secrets: Sequence[Secret] = ()
) -> ModelTurn:
    """The turn of a whole HTTP answer; never raises. ``headers`` have lower-case names; ``now_ms`` is Unix time;
    ``secrets`` are taken out of every label and message of the server's, and not out of what the model wrote."""
    if status != 200:
        return refusal(status, headers, body, now_ms=now_ms, secrets=secrets)
    try:
        return _good_status(headers, body, now_ms, secrets)
    except JsonRefused as error:
        return _unreadable(error, body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _wrong_shape("response_shape", "the answer isn't a chat completion")


def _good_status(
    headers: Mapping[str, str], body: bytes, now_ms: int, secrets: Sequence[Secret]
) -> ModelTurn:
    completion = read_completion(body)
    if present(completion.error):
        error = b'{"error":' + bytes(completion.error) + b"}"
        turn = refusal(200, headers, error, now_ms=now_ms, secrets=secrets)
    else:
        turn = _turn_of(completion, secrets)
    return msgspec.structs.replace(
        turn,
        usage=read_usage(completion.usage),
        response_id=safe_text(text_of(completion.id), LABEL_CHARS_MAX, secrets) or turn.response_id,
        served_model=safe_text(text_of(completion.model), LABEL_CHARS_MAX, secrets),
    )


# --- reading --------------------------------------------------------------------------------------------------------


def _unreadable(error: JsonRefused, body: bytes) -> ModelTurn:
    if error.code == "syntax" and body.lstrip()[:1] in (b"", b"{"):
        return ModelTurn(
            finish="transport_broken",
            error_code="broken_json",
            safe_message="the answer breaks off, or isn't whole",
        )
    code = "not_json" if error.code in ("syntax", "encoding", "bom", "not_object") else f"json_{error.code}"
    return _wrong_shape(code, "the answer isn't the JSON object of a chat completion")


def _wrong_shape(code: str, message: str) -> ModelTurn:
    return ModelTurn(finish="provider_error", finish_raw=code, error_code=code, safe_message=message)


# --- what it means --------------------------------------------------------------------------------------------------


def _turn_of(completion: WireCompletion, secrets: Sequence[Secret]) -> ModelTurn:
    choices = completion.choices
    if not choices:
        return _model_error("no_choice", "the answer holds no choice")
    if len(choices) > 1:
        # One was asked for. Which of several is meant nobody said.
        return _model_error("several_choices", "the answer holds several choices")
    choice = choices[0]
    message = choice.message or WireMessage()
    if len(message.tool_calls or ()) > CALLS_MAX:
        return _model_error("too_many_calls", f"the answer holds over {CALLS_MAX} calls")
    text, refused = _content(message)
    calls, odd = _calls(message, secrets)
    if any(len(call.provider_call_id) > CALL_ID_CHARS_MAX for call in calls):
        return _wrong_shape("call_id_too_long", f"the id of a call is over {CALL_ID_CHARS_MAX} characters")
    finish, code = decide(
        choice.finish_reason, calls=calls, refused=bool(refused), no_message=choice.message is None, odd=odd
    )
    failed = finish in ("model_error", "provider_error", "unknown_finish")
    return ModelTurn(
        finish=finish,
        finish_raw=_native(choice, secrets),
        text=text or (refused if finish == "refused" else ""),
        calls=calls,
        continuation=None if failed else _continuation(message, calls),
        error_code=code,
        safe_message=_MESSAGES.get(code, ""),
    )


_MESSAGES: Final = {
    "calls_missing": "the model said that it calls a tool, and calls none",
    "call_type": "the model called something else than a function",
    "no_message": "the answer holds no message",
    "finish_error": "the server says that generating failed",
    "unknown_finish": "the answer ends in a way that isn't known",
    "arguments_missing": "nothing says that the calls are whole",
}

TRUNCATED: Final = frozenset({"length", "max_tokens", "model_length"})
SERVER_FAILED: Final = frozenset({"error", "insufficient_system_resource"})
WITH_CALLS: Final = frozenset({"tool_calls", "function_call", "stop"})
"""With any of these, calls that came may run: servers also say ``stop`` when a tool was forced."""


def decide(
    native: object,
    *,
    calls: tuple[ProposedCall, ...] = (),
    refused: bool = False,
    no_message: bool = False,
    odd: bool = False,
) -> tuple[FinishKind, str]:
    """The truth table: what a finish value with what came along means, and the code of what is wrong, if anything.

    ``odd``: something was called that is no function. First row that fits.
    """
    if native is not None and not isinstance(native, str):
        native = "(no word)"
    if native == "content_filter":
        return "filtered", ""
    if refused:
        return "refused", ""
    if native in TRUNCATED:
        return "truncated", ""
    if native in SERVER_FAILED:
        return "provider_error", "finish_error"
    if odd:
        return "model_error", "call_type"
    if native is None or native == "":
        # Some servers leave it out beside calls. It is never final, and nothing says then that an empty argument
        # text is one and not a cut one.
        if not calls:
            return "unknown_finish", "unknown_finish"
        whole = all(call.arguments for call in calls)
        return ("calls", "") if whole else ("unknown_finish", "arguments_missing")
    if native in WITH_CALLS and calls:
        return "calls", ""
    if native in ("tool_calls", "function_call"):
        return "model_error", "calls_missing"
    if native == "stop":
        return ("model_error", "no_message") if no_message else ("final", "")
    return "unknown_finish", "unknown_finish"


def _model_error(code: str, message: str) -> ModelTurn:
    return ModelTurn(finish="model_error", finish_raw=code, error_code=code, safe_message=message)


def _native(choice: WireChoice, secrets: Sequence[Secret]) -> str:
    native = choice.finish_reason
    if native is None:
        return "null"
    if not isinstance(native, str):
        return f"({type(native).__name__})"
    return safe_text(native, NATIVE_CHARS_MAX, secrets)


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


def _calls(message: WireMessage, secrets: Sequence[Secret]) -> tuple[tuple[ProposedCall, ...], bool]:
    """The calls with their raw argument bytes, and whether something else than a function was called."""
    if message.tool_calls:
        odd = any(call.type not in (None, "", "function") for call in message.tool_calls)
        return tuple(_call(call.function, text_of(call.id), secrets) for call in message.tool_calls), odd
    legacy = message.function_call
    if legacy is not None and (text_of(legacy.name) or arguments_of(legacy.arguments)):
        return (_call(legacy, "", secrets),), False
    return (), False


def _call(function: WireFunction | None, label: str, secrets: Sequence[Secret]) -> ProposedCall:
    """An id that holds a secret is none: altered it would be of no use to the server."""
    if without(label, secrets) != label:
        label = ""
    if function is None:
        return ProposedCall("", b"", label)
    return ProposedCall(without(text_of(function.name), secrets), arguments_of(function.arguments), label)


def arguments_of(raw: Raw) -> bytes:
    """The argument text as the model wrote it: what a JSON string holds, nothing for null, and any other value as its own
    bytes."""
    if not present(raw):
        return b""
    data = bytes(raw)
    return msgspec.json.decode(data, type=str).encode() if data.startswith(b'"') else data


# --- what the server wants to see again -----------------------------------------------------------------------------


def _continuation(message: WireMessage, calls: Sequence[ProposedCall]) -> bytes | None:
    """Opaque state, kept as it came: signed reasoning, plain reasoning beside calls, where one server wants it back and
    elsewhere some refuse it, and long ids of calls."""
    kept: dict[str, JSON] = {}
    if calls and present(message.reasoning_content):
        kept["reasoning_content"] = _value(message.reasoning_content)
    for name in ("reasoning_details", "extra_content"):
        raw: Raw = getattr(message, name)
        if present(raw):
            kept[name] = _value(raw)
    content = _value(message.content) if bytes(message.content).startswith(b"[") else None
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


def _extra(call: WireCall) -> JSON:
    return _value(call.extra_content) if present(call.extra_content) else None


def _value(raw: Raw) -> JSON:
    value: Any = msgspec.json.decode(raw)
    return cast(JSON, value)
