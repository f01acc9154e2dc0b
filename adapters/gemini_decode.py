"""From the bytes of a Gemini generateContent answer to a draft: pure, total, and never kinder than the facts.

A whole body, events, or one JSON array of what would be events: each is the same object, and they add up. A later one may
say more after a finish reason, so the end of the bytes belongs to the end of a stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec
from msgspec import Raw

from ..runtime.canonical import JSON, canonical_bytes
from ..runtime.errors import CallerError
from ..runtime.model import ProposedCall, Usage
from ..runtime.strict_json import JsonRefused
from .answer_draft import CALLS_MAX, CallDraft, CallSeen, Draft, Misread, TextSeen
from .finish_table import GEMINI, FinishRow
from .gemini_partial_args import PartialArguments
from .sse import Frame
from .wire_json import MISSING, check_object, count_of, present, text_of, value_of, written_bytes

CONTINUATION_TAG: Final = "gemini"
PARTS_MAX: Final = 65_536

_ONCE: Final = ("candidates", "promptFeedback", "responseId", "modelVersion", "error")
_OPAQUE: Final = ("args",)

NUMBERED: Final = {
    0: "FINISH_REASON_UNSPECIFIED",
    1: "STOP",
    2: "MAX_TOKENS",
    3: "SAFETY",
    4: "RECITATION",
    5: "OTHER",
    6: "BLOCKLIST",
    7: "PROHIBITED_CONTENT",
    8: "SPII",
    9: "MALFORMED_FUNCTION_CALL",
}
"""One door of Vertex writes its enumeration as numbers."""


class _PartialArg(msgspec.Struct, gc=False, rename="camel"):
    json_path: object = None
    string_value: object = None
    number_value: object = None
    bool_value: object = None
    null_value: Raw = MISSING
    will_continue: object = None


class _FunctionCall(msgspec.Struct, gc=False, rename="camel"):
    name: object = None
    args: Raw = MISSING
    id: object = None
    will_continue: object = None
    partial_args: list[_PartialArg] | None = None


class _Part(msgspec.Struct, gc=False, rename="camel"):
    text: object = None
    thought: object = None
    thought_signature: object = None
    function_call: _FunctionCall | None = None
    executable_code: Raw = MISSING
    tool_call: Raw = MISSING


class _Content(msgspec.Struct, gc=False):
    parts: list[Raw] | None = None


class _Candidate(msgspec.Struct, gc=False, rename="camel"):
    content: _Content | None = None
    finish_reason: object = None
    index: object = None
    continuation_token: object = None
    grounding_metadata: Raw = MISSING
    url_context_metadata: Raw = MISSING
    logprobs_result: Raw = MISSING
    avg_logprobs: Raw = MISSING


class _Feedback(msgspec.Struct, gc=False, rename="camel"):
    block_reason: object = None
    block_reason_message: object = None


class _Answer(msgspec.Struct, gc=False, rename="camel"):
    candidates: list[_Candidate] | None = None
    prompt_feedback: _Feedback | None = None
    usage_metadata: Raw = MISSING
    response_id: object = None
    model_version: object = None
    error: Raw = MISSING


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_answers = msgspec.json.Decoder(list[Raw]).decode
_decode_part = msgspec.json.Decoder(_Part).decode


class GeminiAssembly:
    """One answer of generateContent or streamGenerateContent."""

    ends_with_eof = True
    ends_at_once = False

    def __init__(self) -> None:
        self.draft = Draft()
        self._parts: list[dict[str, JSON]] = []
        self._open: tuple[CallDraft, PartialArguments] | None = None
        self._pieces: list[str] | None = None
        self._token = ""

    def rows(self) -> tuple[FinishRow, ...]:
        return GEMINI

    def body(self, body: bytes) -> None:
        if not body.lstrip().startswith(b"["):
            self._add(body)
        else:
            try:
                pieces = _decode_answers(body)
            except msgspec.ValidationError:
                raise
            except msgspec.DecodeError:
                raise JsonRefused("syntax", "the list of answers breaks off") from None
            if not pieces:
                raise Misread("no_candidate", "the answer holds no candidate", model=True)
            for piece in pieces:
                self._add(bytes(piece))
        self.settle()
        if self.draft.native is None and not self.draft.calls and not self.draft.error:
            self.draft.finish_raw = "null"

    def frame(self, frame: Frame) -> None:
        self._add(frame.data)

    def settle(self) -> None:
        if self._open is not None:
            # The frame that closes a call may be missing where the stop itself comes.
            self._close()

    def continuation(self, calls: Sequence[ProposedCall]) -> bytes | None:
        """All parts in order, signatures where they were; of a call all but its arguments, which the run has beside it."""
        self._join()
        number = sum("functionCall" in part for part in self._parts)
        if number != len(calls) or not (self._parts or self._token):
            return None
        whole: dict[str, JSON] = {CONTINUATION_TAG: 1, "parts": cast("list[JSON]", self._parts)}
        if self._token:
            whole["token"] = self._token
        try:
            return canonical_bytes(whole)
        except CallerError:
            return None

    # --- reading ------------------------------------------------------------------------------------------------------

    def _add(self, data: bytes) -> None:
        twice = check_object(data, once=_ONCE, opaque=_OPAQUE)
        answer = _decode_answer(data)
        draft = self.draft
        if present(answer.error):
            draft.error = data
            return
        draft.response_id = text_of(answer.response_id) or draft.response_id
        draft.served_model = text_of(answer.model_version) or draft.served_model
        if "usageMetadata" not in twice:
            draft.usage = _usage(answer.usage_metadata) or draft.usage
        feedback = answer.prompt_feedback
        if feedback is not None and feedback.block_reason is not None:
            reason = text_of(feedback.block_reason) or "(no word)"
            draft.native = "promptFeedback"
            draft.finish_raw = f"promptFeedback:{reason}"
            draft.refusals = [text_of(feedback.block_reason_message) or reason]
            draft.ended = True
        for candidate in answer.candidates or ():
            if candidate.index not in (None, 0):
                # One was asked for, and that is the first. Another that calls something is an answer of its own.
                if _holds_call(candidate):
                    raise Misread(
                        "several_candidates", "the answer holds several candidates with calls", model=True
                    )
                draft.skip("candidate")
                continue
            self._candidate(candidate)

    def _candidate(self, candidate: _Candidate) -> None:
        draft = self.draft
        for raw in (candidate.content.parts or ()) if candidate.content is not None else ():
            self._part(raw)
        for name, metadata in (
            ("google_search", candidate.grounding_metadata),
            ("url_context", candidate.url_context_metadata),
        ):
            if present(metadata) and bytes(metadata).replace(b" ", b"") != b"{}" and name not in draft.hosted:
                draft.hosted.append(name)
        draft.tokens.keep("candidates.logprobsResult", candidate.logprobs_result)
        draft.tokens.keep("candidates.avgLogprobs", candidate.avg_logprobs)
        reason = candidate.finish_reason
        if reason is None or draft.native == "promptFeedback":
            return
        draft.ended = True
        draft.finish_raw = reason if isinstance(reason, str) else str(reason)[:32]
        draft.native = (
            NUMBERED.get(reason, draft.finish_raw)
            if isinstance(reason, int) and not isinstance(reason, bool)
            else reason
        )
        self._token = text_of(candidate.continuation_token)

    def _part(self, raw: Raw) -> None:
        draft = self.draft
        if len(self._parts) >= PARTS_MAX:
            raise Misread("too_many_parts", f"the answer holds over {PARTS_MAX} parts", model=True)
        part = _decode_part(raw)
        if part.function_call is not None:
            self._call(part.function_call, raw)
            return
        text = text_of(part.text)
        if text and part.thought is not True:
            draft.texts.append(text)
            draft.signs.append(TextSeen(text))
        if present(part.executable_code):
            draft.hosted.append("code_execution")
        if present(part.tool_call):
            tool = cast("dict[str, Any]", value_of(part.tool_call))
            named = (text_of(tool.get(key)) for key in ("toolType", "name"))
            draft.hosted.append(next((name for name in named if name), "tool").lower())
        written = cast("dict[str, JSON]", value_of(raw))
        if not isinstance(part.text, str) and not set(written) & _KNOWN:
            draft.skip(f"part:{','.join(sorted(written))}")
        self._keep(written)

    def _keep(self, part: dict[str, JSON]) -> None:
        """Pieces of one unsigned text are one part; a signed one stays by itself."""
        last = self._parts[-1] if self._parts else None
        text = text_of(part.get("text"))
        plain = part.keys() <= {"text", "thought"} and "text" in part
        if (
            plain
            and last is not None
            and self._pieces is not None
            and last.get("thought") == part.get("thought")
        ):
            self._pieces.append(text)
            return
        self._join()
        self._parts.append(part)
        self._pieces = [text] if plain else None

    def _join(self) -> None:
        """The last part's text from its pieces."""
        if self._pieces is not None:
            self._parts[-1]["text"] = "".join(self._pieces)
            self._pieces = None

    def _call(self, call: _FunctionCall, raw: Raw) -> None:
        draft = self.draft
        name = text_of(call.name)
        if name:
            if self._open is not None:
                raise Misread("call_incomplete", "a call begins within another one", model=True)
            if len(draft.calls) >= CALLS_MAX:
                raise Misread("too_many_calls", f"the answer holds over {CALLS_MAX} calls", model=True)
            made = CallDraft(name, written_bytes(call.args), text_of(call.id))
            draft.signs.append(CallSeen(len(draft.calls), name))
            draft.calls.append(made)
            written = cast("dict[str, JSON]", value_of(raw))
            function = cast("dict[str, JSON]", written["functionCall"])
            kept: dict[str, JSON] = {
                key: value
                for key, value in function.items()
                if key not in ("args", "partialArgs", "willContinue")
            }
            self._join()
            self._parts.append({**written, "functionCall": kept})
            if call.will_continue is True or call.partial_args:
                made.whole = False
                self._open = (made, PartialArguments())
        elif self._open is None:
            raise Misread("call_incomplete", "a piece of a call belongs to none", model=True)
        if self._open is None:
            return
        for piece in call.partial_args or ():
            self._open[1].put(text_of(piece.json_path), _value(piece), goes_on=piece.will_continue is True)
        if call.will_continue is not True:
            self._close()

    def _close(self) -> None:
        if self._open is None:
            return
        call, arguments = self._open
        self._open = None
        call.whole = arguments.is_whole
        call.arguments = arguments.written()


_KNOWN: Final = frozenset(
    {
        "text",
        "functionCall",
        "executableCode",
        "codeExecutionResult",
        "toolCall",
        "toolResponse",
        "inlineData",
        "fileData",
        "thoughtSignature",
    }
)


def _value(piece: _PartialArg) -> JSON:
    if isinstance(piece.string_value, str):
        return piece.string_value
    if isinstance(piece.bool_value, bool):
        return piece.bool_value
    if isinstance(piece.number_value, int | float) and not isinstance(piece.number_value, bool):
        return piece.number_value
    if len(memoryview(piece.null_value)) > 0:
        return None
    raise Misread("partial_arguments", "a value of the arguments is none", model=True)


def _holds_call(candidate: _Candidate) -> bool:
    parts = (candidate.content.parts or ()) if candidate.content is not None else ()
    return any(_decode_part(raw).function_call is not None for raw in parts)


def _usage(raw: Raw) -> Usage | None:
    """Thoughts are output beside the candidates', and results of the provider's own tools are input beside the prompt. A
    zero isn't written, so where a total is there, what is missing is what the total leaves."""
    usage: Any = value_of(raw) if present(raw) else None
    if not isinstance(usage, dict):
        return None
    found = cast("dict[str, JSON]", usage)
    prompt, total = count_of(found.get("promptTokenCount")), count_of(found.get("totalTokenCount"))
    candidates = count_of(found.get("candidatesTokenCount"))
    thoughts = count_of(found.get("thoughtsTokenCount")) or 0
    if prompt is None and candidates is None:
        return None
    tools = count_of(found.get("toolUsePromptTokenCount")) or 0
    given = None if prompt is None else prompt + tools
    made = None if candidates is None else candidates + thoughts
    if given is not None and total is not None:
        made = max(made or 0, total - given)
    return Usage(given, made, count_of(found.get("cachedContentTokenCount")) or 0, thoughts)
