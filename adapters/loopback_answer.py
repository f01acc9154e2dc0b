"""From one chat request to what the loopback server answers: a pure function of request and script.

Nothing is remembered between requests, so a request that is sent again, by whichever process, is answered the same. Which
turn of the script is due is read from the request: the turn and attempt that boundloop's adapter sends along, else one
more than the assistant messages in it, at the first attempt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Final

import msgspec

from ..runtime.model import ModelTurn, ProposedCall
from .correlation import REQUEST_ID_HEADER, read_request_id
from .loopback_script import Fault, FaultKind, ServedScript, ServerScript
from .script import ScriptedTurn

_place = re.compile(rb"\{\{user(?:\.([0-9]{1,3}))?\}\}")

JSON_HEADERS: Final = (("content-type", "application/json"),)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What goes out: after ``delay_ms`` and the opening of ``gate``, ``body`` under ``status``, spoiled by ``fault``.
    ``run`` and ``turn`` say under what it is counted."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = JSON_HEADERS
    delay_ms: int = 0
    gate: str = ""
    fault: FaultKind | None = None
    drip_ms: int = 0
    run: str = ""
    turn: int = 0
    model: str = ""


class _CallId(msgspec.Struct):
    id: str


class _Message(msgspec.Struct):
    role: str
    content: msgspec.Raw = msgspec.Raw(b"null")
    tool_calls: list[_CallId] | None = None
    tool_call_id: str = ""


class _Asked(msgspec.Struct):
    model: str
    messages: list[_Message]
    stream: bool = False


class _Part(msgspec.Struct):
    type: str = ""
    text: str = ""


class _Due(msgspec.Struct, frozen=True):
    run: str
    turn: int
    attempt: int
    model: str
    user: str
    last: str


_decode = msgspec.json.Decoder(_Asked).decode
_decode_content = msgspec.json.Decoder(str | list[_Part] | None).decode


def answer_chat(script: ServerScript, headers: Mapping[str, str], body: bytes) -> Answer:
    """The answer to one ``POST …/chat/completions``. Total: what isn't a request gets a 400."""
    if script.api_key and headers.get("authorization", "") != f"Bearer {script.api_key}":
        return error_answer(401, "invalid_api_key", "this key isn't known")
    try:
        asked = _decode(body)
        user = _first_user(asked.messages)
        last = _text_of(asked.messages[-1]) if asked.messages else ""
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return error_answer(400, "invalid_request", "not a chat request")
    due = _due(asked, user, last, headers)
    answer = _scripted(script, asked, due)
    answer = msgspec.structs.replace(
        answer,
        delay_ms=answer.delay_ms + _latency_ms(script, due),
        run=due.run,
        turn=due.turn,
        model=due.model,
    )
    for number, fault in enumerate(script.faults):
        if _strikes(fault, number, script.seed, due):
            return _spoiled(answer, fault)
    return answer


def error_answer(
    status: int, code: str, message: str, headers: Iterable[tuple[str, str]] = (), *, kind: str = ""
) -> Answer:
    """An error in the shape of this API."""
    error = {"message": message, "type": kind or "invalid_request_error", "param": None, "code": code}
    return Answer(
        status=status, body=msgspec.json.encode({"error": error}), headers=(*JSON_HEADERS, *headers)
    )


# --- which turn is due ----------------------------------------------------------------------------------------------


def _first_user(messages: list[_Message]) -> str:
    for message in messages:
        if message.role == "user":
            return _text_of(message)
    return ""


def _text_of(message: _Message) -> str:
    content = _decode_content(message.content)
    return content if isinstance(content, str) else "".join(part.text for part in content or ())


def _due(asked: _Asked, user: str, last: str, headers: Mapping[str, str]) -> _Due:
    found = read_request_id(headers.get(REQUEST_ID_HEADER, ""))
    if found is not None:
        return _Due(found.run, found.turn, found.attempt, asked.model, user, last)
    turn = 1 + sum(message.role == "assistant" for message in asked.messages)
    conversation = sha256(user.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return _Due(conversation, turn, 1, asked.model, user, last)


def _scripted(script: ServerScript, asked: _Asked, due: _Due) -> Answer:
    if not _paired(asked.messages):
        return error_answer(400, "invalid_request", "each tool call needs its one result right after it")
    one = next((one for one in script.scripts if _fits(one, due)), None)
    if one is None:
        return error_answer(404, "model_not_found", "no script answers this model and conversation")
    if not 1 <= due.turn <= len(one.turns):
        return error_answer(400, "script_exhausted", f"the script has {len(one.turns)} turns")
    entry = one.turns[due.turn - 1]
    turn = entry if isinstance(entry, ScriptedTurn) else entry[min(due.attempt, len(entry)) - 1]
    if one.substitute:
        turn = _substituted(turn, due.user)
    answer = chat_answer(turn.as_turn(due.turn, model=due.model, usage=one.usage))
    return msgspec.structs.replace(
        as_stream(answer) if asked.stream and answer.status == 200 else answer,
        delay_ms=turn.late_ms,
        gate=turn.gate,
    )


def _fits(one: ServedScript, due: _Due) -> bool:
    return one.model in ("", due.model) and one.user in due.user and one.last in due.last


def _paired(messages: list[_Message]) -> bool:
    """Whether each assistant message's calls are answered, once each, by the tool messages right after it."""
    open_ids: list[str] = []
    for message in messages:
        if message.role == "tool":
            if message.tool_call_id not in open_ids:
                return False
            open_ids.remove(message.tool_call_id)
            continue
        if open_ids:
            return False
        if message.role == "assistant":
            open_ids = [call.id for call in message.tool_calls or ()]
            if "" in open_ids or len(set(open_ids)) < len(open_ids):
                return False
    return not open_ids


def _substituted(turn: ScriptedTurn, user: str) -> ScriptedTurn:
    words = user.split()

    def stand_in(found: re.Match[bytes]) -> bytes:
        number = int(found[1] or 0)
        text = user if not number else words[number - 1] if number <= len(words) else ""
        return msgspec.json.encode(text)[1:-1]

    return msgspec.json.decode(_place.sub(stand_in, msgspec.json.encode(turn)), type=ScriptedTurn)


# --- what it looks like on the wire ---------------------------------------------------------------------------------


def chat_answer(turn: ModelTurn) -> Answer:
    """A normalised turn in the words of Chat Completions."""
    message = turn.safe_message or turn.error_code
    match turn.finish:
        case "provider_error" | "model_error":
            status = 400 if turn.finish == "model_error" else _error_status(turn)
            code = "tool_use_failed" if turn.finish == "model_error" else turn.error_code
            headers = [("x-should-retry", "true" if turn.retryable else "false")]
            if turn.retry_after_ms:
                headers.append(("retry-after-ms", str(turn.retry_after_ms)))
            return error_answer(status, code, message, headers, kind="server_error")
        case "context_exceeded":
            return error_answer(400, "context_length_exceeded", message)
        case "transport_broken":
            return Answer(status=200, body=_completion(turn, "stop"), fault="truncate")
        case _:
            return Answer(status=200, body=_completion(turn, _FINISH.get(turn.finish) or turn.finish_raw))


def as_stream(answer: Answer) -> Answer:
    """The same answer as events: text in pieces, then each call, the finish, and the usage."""
    whole = msgspec.json.decode(answer.body)
    choice = whole["choices"][0]
    message, finish = choice["message"], choice["finish_reason"]
    known = {name: whole[name] for name in ("id", "created", "model")}
    known["object"] = "chat.completion.chunk"
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None}]
    for name in ("content", "refusal"):
        text = message.get(name) or ""
        places = range(0, len(text), STREAM_CHARS)
        said: list[dict[str, Any]] = [{name: text[place : place + STREAM_CHARS]} for place in places]
        deltas += said
    for number, call in enumerate(message.get("tool_calls") or ()):
        arguments = call["function"]["arguments"]
        opening: dict[str, Any] = {**call, "index": number, "function": {**call["function"], "arguments": ""}}
        deltas.append({"tool_calls": [opening]})
        for place in range(0, len(arguments), STREAM_CHARS):
            piece: dict[str, Any] = {"arguments": arguments[place : place + STREAM_CHARS]}
            deltas.append({"tool_calls": [{"index": number, "function": piece}]})
    ends = [(delta, None) for delta in deltas]
    chunks: list[dict[str, object]] = [
        {**known, "choices": [{"index": 0, "delta": delta, "finish_reason": end}]}
        for delta, end in [*ends, ({}, finish)]
    ]
    if "usage" in whole:
        chunks.append({**known, "choices": [], "usage": whole["usage"]})
    frames = [b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in chunks]
    body = b"".join([*frames, b"data: [DONE]\n\n"])
    others = [pair for pair in answer.headers if pair[0] != "content-type"]
    headers = (*others, ("content-type", "text/event-stream"))
    return msgspec.structs.replace(answer, body=body, headers=headers)


STREAM_CHARS: Final = 16
"""How many characters an event of a stream holds."""

_FINISH: Final = {
    "final": "stop",
    "calls": "tool_calls",
    "truncated": "length",
    "refused": "stop",
    "filtered": "content_filter",
}


def _error_status(turn: ModelTurn) -> int:
    if not turn.retryable:
        return 400
    return 429 if turn.retry_after_ms else 503


def _completion(turn: ModelTurn, finish: str) -> bytes:
    refusal = (turn.text or "no") if turn.finish == "refused" else None
    message: dict[str, object] = {
        "role": "assistant",
        "content": None if refusal is not None else (turn.text or (None if turn.calls else "")),
        "refusal": refusal,
    }
    if turn.calls:
        message["tool_calls"] = [_call(made) for made in turn.calls]
    completion: dict[str, object] = {
        "id": turn.response_id,
        "object": "chat.completion",
        "created": 0,
        "model": turn.served_model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
    }
    usage = turn.usage
    if usage is not None and usage.input_tokens is not None and usage.output_tokens is not None:
        completion["usage"] = {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": usage.input_tokens + usage.output_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens},
            "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        }
    return msgspec.json.encode(completion)


def _call(made: ProposedCall) -> dict[str, object]:
    # A JSON string can't carry what isn't UTF-8: it is written out, and refused by whoever parses it.
    arguments = made.arguments.decode("utf-8", "backslashreplace")
    return {
        "id": made.provider_call_id,
        "type": "function",
        "function": {"name": made.name, "arguments": arguments},
    }


# --- pace and faults ------------------------------------------------------------------------------------------------


def _draw(seed: int, what: str, due: _Due) -> float:
    """A number from 0 up to 1, the same for the same request."""
    text = f"{seed}/{what}/{due.run}/{due.turn}/{due.attempt}/{due.model}"
    return int.from_bytes(sha256(text.encode("utf-8", "surrogatepass")).digest()[:7]) / 2**56


def _latency_ms(script: ServerScript, due: _Due) -> int:
    if not script.latency_ms or not script.jitter:
        return script.latency_ms
    return round(script.latency_ms * (1 + script.jitter * (2 * _draw(script.seed, "latency", due) - 1)))


def _strikes(fault: Fault, number: int, seed: int, due: _Due) -> bool:
    if fault.model not in ("", due.model):
        return False
    if (fault.turns and due.turn not in fault.turns) or (
        fault.attempts and due.attempt not in fault.attempts
    ):
        return False
    return fault.share >= 1 or _draw(seed, f"fault {number}", due) < fault.share


def _spoiled(answer: Answer, fault: Fault) -> Answer:
    replace = msgspec.structs.replace
    match fault.kind:
        case "status":
            headers = () if fault.retry_after_s is None else (("retry-after", str(fault.retry_after_s)),)
            spoiled = error_answer(
                fault.status, "injected", "an injected fault", headers, kind="server_error"
            )
            return replace(
                answer, status=fault.status, body=spoiled.body, headers=spoiled.headers, fault="status"
            )
        case "html":
            page = b"<!doctype html><title>Bad gateway</title><h1>502</h1>"
            return replace(
                answer, status=502, body=page, headers=(("content-type", "text/html"),), fault="html"
            )
        case kind:
            return replace(answer, fault=kind, drip_ms=fault.drip_ms)
