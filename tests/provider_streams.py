"""Answers as each API family writes them, made up here from one plain description: bodies, and streams in pieces.

The shapes are those of the families' own documentation; nothing is recorded. Calls of a stream may be written one after the
other or mixed, where the family's pieces can be.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, cast

FAMILIES: Final = ("openai_responses", "openai_chat", "anthropic", "gemini", "gemini_interactions")

ENDS: Final[dict[str, dict[str, str]]] = {
    "openai_responses": {"calls": "completed", "final": "completed", "truncated": "incomplete"},
    "openai_chat": {"calls": "tool_calls", "final": "stop", "truncated": "length"},
    "anthropic": {"calls": "tool_use", "final": "end_turn", "truncated": "max_tokens"},
    "gemini": {"calls": "STOP", "final": "STOP", "truncated": "MAX_TOKENS"},
    "gemini_interactions": {
        "calls": "requires_action",
        "final": "completed",
        "truncated": "incomplete",
    },
}
"""Each family's own word for a kind of end."""

USAGE: Final[dict[str, dict[str, Any]]] = {
    "openai_responses": {"input_tokens": 10, "output_tokens": 5},
    "openai_chat": {"prompt_tokens": 10, "completion_tokens": 5},
    "anthropic": {"input_tokens": 10, "output_tokens": 5},
    "gemini": {"promptTokenCount": 10, "candidatesTokenCount": 5},
    "gemini_interactions": {"total_input_tokens": 10, "total_output_tokens": 5},
}


class Call(NamedTuple):
    """A call as a model would make it."""

    id: str
    name: str
    arguments: str


class Answer(NamedTuple):
    """What a model says: text, calls, and the family's own word for how it ended."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    end: str = ""


def ended(family: str, kind: str, *, text: str = "", calls: Sequence[Call] = ()) -> Answer:
    """An answer that ends in this way."""
    return Answer(text, tuple(calls), ENDS[family][kind])


# --- bodies -----------------------------------------------------------------------------------------------------------


def body(family: str, answer: Answer) -> bytes:
    """A whole body."""
    return json.dumps(_BODIES[family](answer)).encode()


def _responses_items(answer: Answer) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if answer.text:
        part = {"type": "output_text", "text": answer.text}
        items.append({"type": "message", "id": "msg_1", "role": "assistant", "content": [part]})
    status = "incomplete" if answer.end == "incomplete" else "completed"
    items += [
        {
            "type": "function_call",
            "id": f"fc_{number}",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
            "status": status,
        }
        for number, call in enumerate(answer.calls)
    ]
    return items


def _responses(answer: Answer) -> dict[str, Any]:
    details = {"reason": "max_output_tokens"} if answer.end == "incomplete" else None
    return {
        "id": "r1",
        "model": "m1",
        "status": answer.end,
        "incomplete_details": details,
        "output": _responses_items(answer),
        "usage": USAGE["openai_responses"],
    }


def _chat(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.calls
        ]
    return {
        "id": "r1",
        "model": "m1",
        "choices": [{"index": 0, "message": message, "finish_reason": answer.end}],
        "usage": USAGE["openai_chat"],
    }


def _value(arguments: str) -> Any:
    return json.loads(arguments or "{}")


def _anthropic(answer: Answer) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": answer.text}] if answer.text else []
    content += [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": _value(call.arguments)}
        for call in answer.calls
    ]
    return {
        "id": "r1",
        "type": "message",
        "model": "m1",
        "content": content,
        "stop_reason": answer.end,
        "usage": USAGE["anthropic"],
    }


def _gemini(answer: Answer) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"text": answer.text}] if answer.text else []
    parts += [
        {"functionCall": {"id": call.id, "name": call.name, "args": _value(call.arguments)}}
        for call in answer.calls
    ]
    return {
        "responseId": "r1",
        "modelVersion": "m1",
        "candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": answer.end}],
        "usageMetadata": USAGE["gemini"],
    }


def _interactions(answer: Answer) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    if answer.text:
        steps.append({"type": "model_output", "content": [{"type": "text", "text": answer.text}]})
    steps += [
        {"type": "function_call", "id": call.id, "name": call.name, "arguments": _value(call.arguments)}
        for call in answer.calls
    ]
    return {
        "id": "r1",
        "model": "m1",
        "status": answer.end,
        "steps": steps,
        "usage": USAGE["gemini_interactions"],
    }


_BODIES: Final = {
    "openai_responses": _responses,
    "openai_chat": _chat,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "gemini_interactions": _interactions,
}


# --- streams ----------------------------------------------------------------------------------------------------------


def frame(data: Any, event: str = "") -> bytes:
    """One event of a stream."""
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def stream(family: str, answer: Answer, *, rng: random.Random | None = None) -> bytes:
    """A whole stream; with ``rng`` calls come in pieces, mixed with each other where the family's can."""
    return b"".join(frames(family, answer, rng=rng))


def frames(family: str, answer: Answer, *, rng: random.Random | None = None) -> list[bytes]:
    """The same as a list of events."""
    return list(_STREAMS[family](answer, rng))


def pieces(text: str, rng: random.Random | None) -> list[str]:
    """The text in pieces, some of them empty."""
    if rng is None:
        return [text]
    cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(1, 9)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def mixed(sizes: Sequence[int], rng: random.Random | None) -> Iterator[tuple[int, int]]:
    """(which, its next piece) until all pieces of all are named, in any order among each other."""
    left = [(which, 0) for which in range(len(sizes)) if sizes[which]]
    while left:
        place = rng.randrange(len(left)) if rng is not None else 0
        which, piece = left[place]
        yield which, piece
        if piece + 1 < sizes[which]:
            left[place] = (which, piece + 1)
        else:
            del left[place]


def _responses_stream(answer: Answer, rng: random.Random | None) -> Iterator[bytes]:
    def event(kind: str, **members: Any) -> bytes:
        return frame({"type": kind, **members}, kind)

    whole = _responses(answer)
    begun: dict[str, Any] = {
        **whole,
        "status": "in_progress",
        "output": [],
        "usage": None,
        "incomplete_details": None,
    }
    yield event("response.created", response=begun)
    items = _responses_items(answer)
    written: list[list[str]] = []
    for number, item in enumerate(items):
        if item["type"] == "message":
            yield event("response.output_item.added", output_index=number, item={**item, "content": []})
            written.append([piece for piece in pieces(answer.text, rng) if piece])
        else:
            yield event("response.output_item.added", output_index=number, item={**item, "arguments": ""})
            written.append(pieces(item["arguments"], rng))
    for number, piece in mixed([len(some) for some in written], rng):
        kind = "output_text" if items[number]["type"] == "message" else "function_call_arguments"
        yield event(
            f"response.{kind}.delta",
            output_index=number,
            item_id=f"x{number}",
            delta=written[number][piece],
        )
    for number, item in enumerate(items):
        yield event("response.output_item.done", output_index=number, item=item)
    yield event(f"response.{answer.end}", response=whole)


def _chat_stream(answer: Answer, rng: random.Random | None) -> Iterator[bytes]:
    def chunk(delta: Any, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return frame({"id": "r1", "model": "m1", "choices": [choice], "usage": None})

    yield chunk({"role": "assistant", "content": None})
    for text in pieces(answer.text, rng):
        yield chunk({"content": text})
    for number, call in enumerate(answer.calls):
        opening = {"index": number, "id": call.id, "type": "function"}
        yield chunk({"tool_calls": [{**opening, "function": {"name": call.name, "arguments": ""}}]})
    written = [pieces(call.arguments, rng) for call in answer.calls]
    for number, piece in mixed([len(some) for some in written], rng):
        function = {"arguments": written[number][piece]}
        yield chunk({"tool_calls": [{"index": number, "function": function}]})
    yield chunk({}, answer.end)
    yield frame({"id": "r1", "model": "m1", "choices": [], "usage": USAGE["openai_chat"]})
    yield b"data: [DONE]\n\n"


def _anthropic_stream(answer: Answer, rng: random.Random | None) -> Iterator[bytes]:
    def event(kind: str, **members: Any) -> bytes:
        return frame({"type": kind, **members}, kind)

    message: dict[str, Any] = {
        "id": "r1",
        "type": "message",
        "model": "m1",
        "content": [],
        "stop_reason": None,
    }
    yield event("message_start", message={**message, "usage": {"input_tokens": 10, "output_tokens": 1}})
    yield event("ping")
    blocks: list[tuple[dict[str, Any], str, list[str]]] = []
    if answer.text:
        blocks.append(({"type": "text", "text": ""}, "text", pieces(answer.text, rng)))
    for call in answer.calls:
        opening: dict[str, Any] = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        blocks.append((opening, "partial_json", pieces(call.arguments, rng)))
    kinds = {"text": "text_delta", "partial_json": "input_json_delta"}
    for number, (opening, _, _) in enumerate(blocks):
        yield event("content_block_start", index=number, content_block=opening)
    for number, piece in mixed([len(block[2]) for block in blocks], rng):
        _, name, written = blocks[number]
        yield event("content_block_delta", index=number, delta={"type": kinds[name], name: written[piece]})
    for number in range(len(blocks)):
        yield event("content_block_stop", index=number)
    yield event("message_delta", delta={"stop_reason": answer.end}, usage={"output_tokens": 5})
    yield event("message_stop")


def _gemini_stream(answer: Answer, rng: random.Random | None) -> Iterator[bytes]:
    def chunk(parts: list[Any], **more: Any) -> bytes:
        candidate = {"content": {"role": "model", "parts": parts}, **more}
        known = {"responseId": "r1", "modelVersion": "m1", "usageMetadata": USAGE["gemini"]}
        return frame({**known, "candidates": [candidate]})

    for piece in pieces(answer.text, rng):
        if piece:
            yield chunk([{"text": piece}])
    for call in answer.calls:
        function = {"id": call.id, "name": call.name}
        if rng is None:
            yield chunk([{"functionCall": {**function, "args": _value(call.arguments)}}])
            continue
        yield chunk([{"functionCall": {**function, "willContinue": True}}])
        for put in _puts("$", _value(call.arguments), rng):
            yield chunk([{"functionCall": {"partialArgs": [put], "willContinue": True}}])
        yield chunk([{"functionCall": {}}])
    yield chunk([], finishReason=answer.end)


def _puts(path: str, value: Any, rng: random.Random) -> Iterator[dict[str, Any]]:
    match value:
        case dict():
            for name, member in cast("dict[str, Any]", value).items():
                escaped = name.replace("\\", "\\\\").replace("'", "\\'")
                yield from _puts(f"{path}['{escaped}']", member, rng)
        case list():
            for number, member in enumerate(cast("list[object]", value)):
                yield from _puts(f"{path}[{number}]", member, rng)
        case str():
            for piece in pieces(value, rng):
                yield {"jsonPath": path, "stringValue": piece, "willContinue": True}
            yield {"jsonPath": path, "stringValue": ""}
        case None:
            yield {"jsonPath": path, "nullValue": None}
        case bool():
            yield {"jsonPath": path, "boolValue": value}
        case _:
            yield {"jsonPath": path, "numberValue": value}


def _interactions_stream(answer: Answer, rng: random.Random | None) -> Iterator[bytes]:
    def event(kind: str, **members: Any) -> bytes:
        return frame({"event_type": kind, **members}, kind)

    known = {"id": "r1", "model": "m1"}
    yield event("interaction.created", interaction={**known, "status": "in_progress"})
    steps: list[tuple[dict[str, Any], str, list[str]]] = []
    if answer.text:
        steps.append(({"type": "model_output"}, "text", pieces(answer.text, rng)))
    for call in answer.calls:
        opening: dict[str, Any] = {"type": "function_call", "id": call.id, "name": call.name, "arguments": {}}
        steps.append((opening, "arguments", pieces(call.arguments, rng)))
    kinds = {"text": "text", "arguments": "arguments_delta"}
    for number, (opening, _, _) in enumerate(steps):
        yield event("step.start", index=number, step=opening)
    for number, piece in mixed([len(step[2]) for step in steps], rng):
        _, name, written = steps[number]
        yield event("step.delta", index=number, delta={"type": kinds[name], name: written[piece]})
    for number in range(len(steps)):
        yield event("step.stop", index=number)
    done = {**known, "status": answer.end, "usage": USAGE["gemini_interactions"]}
    yield event("interaction.completed", interaction=done)
    yield b"event: done\ndata: [DONE]\n\n"


_STREAMS: Final = {
    "openai_responses": _responses_stream,
    "openai_chat": _chat_stream,
    "anthropic": _anthropic_stream,
    "gemini": _gemini_stream,
    "gemini_interactions": _interactions_stream,
}
