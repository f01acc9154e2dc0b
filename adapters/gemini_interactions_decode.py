"""From the bytes of a Gemini Interactions answer, body or stream, to a draft: pure, total, and never kinder than the facts.

Steps are told apart by ``index``. In a stream a call's arguments are whole at its ``step.stop``, and the answer is at
``interaction.completed``, which holds status and usage and no steps.
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
from .finish_table import GEMINI_INTERACTIONS, FinishRow
from .history import CALL_MARK
from .sse import Frame
from .wire_json import MISSING, check_object, count_of, present, text_of, value_of, written_bytes

CONTINUATION_TAG: Final = "gemini_interactions"
CALL: Final = "function_call"

_ONCE: Final = (
    "id",
    "model",
    "status",
    "steps",
    "error",
    "event_type",
    "index",
    "step",
    "delta",
    "interaction",
    "continuation_token",
)
_OPAQUE: Final = ("arguments",)
_PLAIN: Final = frozenset({"thought", "user_input"})


class _Step(msgspec.Struct, gc=False):
    type: object = None
    id: object = None
    name: object = None
    arguments: Raw = MISSING
    content: Raw = MISSING
    error: Raw = MISSING


class _Part(msgspec.Struct, gc=False):
    type: object = None
    text: object = None


class _Interaction(msgspec.Struct, gc=False):
    id: object = None
    model: object = None
    agent: object = None
    status: object = None
    steps: list[Raw] | None = None
    usage: Raw = MISSING
    error: Raw = MISSING
    errors: list[Raw] | None = None
    continuation_token: object = None
    event_type: object = None


class _Event(msgspec.Struct, gc=False):
    event_type: object = None
    index: object = None
    step: Raw = MISSING
    delta: Raw = MISSING
    interaction: _Interaction | None = None
    error: Raw = MISSING
    continuation_token: object = None


_decode_interaction = msgspec.json.Decoder(_Interaction).decode
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_step = msgspec.json.Decoder(_Step).decode
_decode_parts = msgspec.json.Decoder(list[_Part]).decode


class _Open:
    """A step of a stream as far as it came."""

    __slots__ = ("arguments", "begun", "deltas", "kind", "stopped", "texts")

    def __init__(self, begun: Raw, kind: str) -> None:
        self.begun = begun
        self.kind = kind
        self.arguments: list[str] = []
        self.texts: list[str] = []
        self.deltas: list[dict[str, Any]] = []
        self.stopped = False

    def whole(self) -> Raw:
        """The step as a body would hold it."""
        step = cast("dict[str, Any]", msgspec.json.decode(self.begun))
        parts: list[Any] = []
        for delta in self.deltas:
            kind = delta.get("type")
            if kind == "thought_signature":
                step["signature"] = delta.get("signature")
            elif kind == "thought_summary":
                _list_at(step, "summary").append(delta.get("content"))
            elif kind == "text_annotation_delta" or kind == "text_annotation":
                if parts:
                    _list_at(parts[-1], "annotations").extend(_list_at(delta, "annotations"))
            elif kind == "text":
                if parts and parts[-1].get("type") == "text" and "annotations" not in parts[-1]:
                    parts[-1]["text"].append(delta.get("text"))
                else:
                    parts.append({"type": "text", "text": [delta.get("text")]})
            elif self.kind != "model_output":
                # A step of the provider's own tool: its members are what it is.
                step.update((name, value) for name, value in delta.items() if name != "type")
            else:
                parts.append(delta)
        for part in parts:
            if isinstance(pieces := part.get("text"), list):
                part["text"] = "".join(text_of(piece) for piece in cast("list[object]", pieces))
        if parts:
            first: Any = step.get("content")
            step["content"] = [*(first if isinstance(first, list) else []), *parts]
        return Raw(msgspec.json.encode(step))


class InteractionsAssembly:
    """One answer of the Interactions API."""

    ends_with_eof = False
    ends_at_once = True

    def __init__(self) -> None:
        self.draft = Draft()
        self._steps: list[Raw] = []
        self._open: dict[int, _Open] = {}
        self._calls_opened = 0
        self._token = ""

    def rows(self) -> tuple[FinishRow, ...]:
        return GEMINI_INTERACTIONS

    def body(self, body: bytes) -> None:
        twice = check_object(body, once=_ONCE, opaque=_OPAQUE)
        interaction = _decode_interaction(body)
        if "usage" in twice:
            interaction.usage = MISSING
        if interaction.status is None and (present(interaction.error) or interaction.event_type == "error"):
            self.draft.error = body
            return
        self._take(interaction)
        self._steps = interaction.steps or []
        for raw in self._steps:
            self._read(raw)

    def frame(self, frame: Frame) -> None:
        check_object(frame.data, once=_ONCE, opaque=_OPAQUE)
        event = _decode_event(frame.data)
        kind = text_of(event.event_type) or frame.event
        draft = self.draft
        if kind == "error" or present(event.error):
            draft.error = frame.data
            return
        self._token = text_of(event.continuation_token) or self._token
        match kind:
            case "interaction.created":
                created = event.interaction or _Interaction()
                draft.response_id, draft.served_model = text_of(created.id), text_of(created.model)
            case "interaction.completed":
                self._take(event.interaction or _Interaction())
                draft.ended = True
            case "interaction.status_update" | "done":
                pass
            case "step.start":
                self._begin(event)
            case "step.delta":
                self._delta(event)
            case "step.stop":
                self._step_at(event.index).stopped = True
            case _:
                draft.skip(f"event:{kind}")

    def settle(self) -> None:
        self.draft.texts = []
        for index in sorted(self._open):
            opened = self._open[index]
            raw = opened.whole()
            self._steps.append(raw)
            self._read(raw)
            if opened.kind == CALL:
                call = self.draft.calls[-1]
                call.whole = opened.stopped
                if written := "".join(opened.arguments):
                    call.arguments = written.encode()

    def continuation(self, calls: Sequence[ProposedCall]) -> bytes | None:
        """All steps, verbatim and in order; of a call all but its arguments, which the run has beside it."""
        kept: list[JSON] = []
        number = 0
        for raw in self._steps:
            step = value_of(raw)
            if not isinstance(step, dict):
                continue
            if step.get("type") == CALL:
                step = {name: value for name, value in step.items() if name != "arguments"}
                step[CALL_MARK] = number
                number += 1
            kept.append(step)
        if number != len(calls):
            return None
        whole: dict[str, JSON] = {CONTINUATION_TAG: 1, "id": self.draft.response_id, "steps": kept}
        if self._token:
            whole["token"] = self._token
        try:
            return canonical_bytes(whole)
        except CallerError:
            return None

    # --- reading ------------------------------------------------------------------------------------------------------

    def _take(self, interaction: _Interaction) -> None:
        draft = self.draft
        draft.response_id = text_of(interaction.id) or draft.response_id
        draft.served_model = text_of(interaction.model) or text_of(interaction.agent) or draft.served_model
        status = interaction.status
        draft.native = status
        draft.finish_raw = (
            "null"
            if status is None
            else (status if isinstance(status, str) else f"({type(status).__name__})")
        )
        draft.usage = _usage(interaction.usage)
        self._token = text_of(interaction.continuation_token) or self._token
        if status == "failed":
            error = (
                interaction.error
                if present(interaction.error)
                else next(iter(interaction.errors or ()), MISSING)
            )
            if present(error):
                draft.error = b'{"error":' + bytes(error) + b"}"

    def _begin(self, event: _Event) -> None:
        index = event.index
        if not isinstance(index, int) or isinstance(index, bool) or not present(event.step):
            raise Misread("response_shape", "a step of the stream has no place")
        if index in self._open:
            raise Misread("step_twice", "a step of the stream begins twice")
        if len(self._open) >= CALLS_MAX:
            raise Misread("too_many_calls", f"the answer holds over {CALLS_MAX} steps", model=True)
        step = _decode_step(event.step)
        kind = text_of(step.type)
        if kind == CALL:
            self.draft.signs.append(CallSeen(self._calls_opened, text_of(step.name)))
            self._calls_opened += 1
        self._open[index] = _Open(event.step.copy(), kind)

    def _delta(self, event: _Event) -> None:
        opened = self._step_at(event.index)
        if opened.stopped:
            raise Misread("step_stopped", "a step of the stream goes on after its end")
        delta: Any = value_of(event.delta) if present(event.delta) else None
        if not isinstance(delta, dict):
            raise Misread("response_shape", "a piece of the stream is none")
        found = cast("dict[str, Any]", delta)
        kind = text_of(found.get("type"))
        if kind == "arguments_delta":
            opened.arguments.append(text_of(found.get("arguments")))
            return
        if kind == "text" and (text := text_of(found.get("text"))):
            self.draft.texts.append(text)
            self.draft.signs.append(TextSeen(text))
        elif kind not in _DELTAS and opened.kind in ("model_output", "thought", CALL):
            self.draft.skip(f"delta:{kind}")
        opened.deltas.append(found)

    def _step_at(self, index: object) -> _Open:
        opened = self._open.get(index) if isinstance(index, int) else None
        if opened is None:
            raise Misread("response_shape", "a step of the stream was never begun")
        return opened

    def _read(self, raw: Raw) -> None:
        draft = self.draft
        step = _decode_step(raw)
        kind = text_of(step.type)
        if kind == CALL:
            draft.calls.append(CallDraft(text_of(step.name), written_bytes(step.arguments), text_of(step.id)))
        elif kind == "model_output":
            if bytes(step.content).startswith(b"["):
                draft.texts += [
                    text_of(part.text) for part in _decode_parts(step.content) if part.type == "text"
                ]
            if present(step.error):
                draft.error = b'{"error":' + bytes(step.error) + b"}"
        elif kind.endswith("_call"):
            draft.hosted.append(kind.removesuffix("_call"))
        elif kind not in _PLAIN and not kind.endswith("_result"):
            draft.skip(f"step:{kind}")


def _list_at(members: dict[str, Any], name: str) -> list[object]:
    """The list of that name; where none or something else is, a new one."""
    found = members.get(name)
    if not isinstance(found, list):
        found = members[name] = []
    return cast("list[object]", found)


_DELTAS: Final = frozenset(
    {"text", "thought_summary", "thought_signature", "text_annotation_delta", "text_annotation"}
)


def _usage(raw: Raw) -> Usage | None:
    """Thoughts are output beside the output, and results of the provider's own tools are input beside the input."""
    usage: Any = value_of(raw) if present(raw) else None
    if not isinstance(usage, dict):
        return None
    found = cast("dict[str, JSON]", usage)
    given, made = count_of(found.get("total_input_tokens")), count_of(found.get("total_output_tokens"))
    if given is None and made is None:
        return None
    thoughts = count_of(found.get("total_thought_tokens")) or 0
    total = count_of(found.get("total_tokens"))
    given = None if given is None else given + (count_of(found.get("total_tool_use_tokens")) or 0)
    made = None if made is None else made + thoughts
    if given is not None and total is not None:
        made = max(made or 0, total - given)
    return Usage(given, made, count_of(found.get("total_cached_tokens")) or 0, thoughts)
