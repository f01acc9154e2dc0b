"""Questions: a call of the question tool is put to people, and what one of them says is its result.

A question is asked in the place of an execution, so all rungs, limits and the order of calls hold for it. It waits
without a process, lives in the log of the run that owns the call, and is answered once: the first answer by seq wins.
Neither a model nor a run answers; a question that nobody answers in time, or whose run ends, lapses as a refusal.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from . import events as e
from .binding import request_sha256
from .canonical import JSON, canonical_bytes, decode_canonical
from .commands import Answer
from .decision import NOTHING, Decision, refuse
from .results import room_for_result
from .state import CallState, QuestionState, State

ANSWER_BYTES_MAX: Final = 16_384
"""Of an answer as canonical JSON; less where the turn's other results leave less room."""

REFUSAL_CHARS_MAX: Final = 500

EXPIRED_TEXT: Final = "nobody answered in time"
BLANK_TEXT: Final = "a question, and each of its choices, has some text"
_BY_A_RUN: Final = "run:"


def is_question(state: State, call: CallState) -> bool:
    """Whether a call is put to people instead of being executed."""
    definition = state.tools.get(call.tool)
    return definition is not None and definition.kind == "question"


def question_id(run_id: str, call: str) -> str:
    """Derived, so that asking again after a crash asks the same."""
    return "q_" + sha256(f"question/{run_id}/{call}".encode()).hexdigest()[:16]


def ask(state: State, call: CallState, now_ms: int) -> Decision:
    """Put an admitted call to people. The caller has checked order and limits."""
    arguments = decode_canonical(call.arguments or b"{}")
    words = arguments if isinstance(arguments, dict) else {}
    given = words.get("choices")
    choices = tuple(dict.fromkeys(str(one) for one in given)) if isinstance(given, list) else ()
    event = e.QuestionAsked(
        call.call,
        question_id(state.run_id, call.call),
        str(words.get("question", "")),
        choices,
        now_ms + state.limits.answer_ms,
        request_sha256(state, call, 1, call.under),
    )
    return Decision((event,))


def answerable_until_ms(state: State, question: QuestionState) -> int:
    """Its own time, or the run's deadline as it is now: one that is raised later gives the question its time back."""
    return min(question.expires_at_ms, state.deadline_at_ms)


def blank_in(arguments: dict[str, JSON]) -> str:
    """The path of what has no text in it to show to a person; empty if all has."""
    if not str(arguments.get("question", "")).strip():
        return "$.question"
    choices = arguments.get("choices")
    given = choices if isinstance(choices, list) else []
    return next((f"$.choices[{at}]" for at, one in enumerate(given) if not str(one).strip()), "")


def find(state: State, name: str) -> tuple[CallState, QuestionState] | None:
    """The open turn's call that asks this."""
    for call in state.calls.values():
        if call.question is not None and call.question.question_id == name:
            return call, call.question
    return None


def answer(state: State, command: Answer, now_ms: int) -> Decision:
    """Refused, with nothing changed: unknown, used and lapsed questions, one of a run that has stopped, an answer by a run, one
    after the question's time, one that is none of the choices, none at all, or too long."""
    found = find(state, command.question_id)
    if found is None or state.phase == "terminated":
        return refuse("question_not_found", "no such question is open")
    call, question = found
    if call.phase != "waiting_answer":
        return refuse("question_used", "that question was answered before, or has lapsed")
    if command.by.startswith(_BY_A_RUN):
        return refuse("not_a_person", "only a person answers")
    if state.cancel_reason:
        return refuse("run_cancelled", "the run was cancelled")
    if not state.live:
        return refuse("run_stopped", "the run has stopped and its question is open: resume it, then answer")
    if now_ms >= answerable_until_ms(state, question):
        return refuse("question_expired", "the question's time is over")
    result: bytes | None = None
    if not command.cannot:
        refusal = _unfit(question, command)
        if refusal is not None:
            return refusal
        result = canonical_bytes({"answer": command.text})
        most = min(ANSWER_BYTES_MAX, room_for_result(state))
        if len(result) > most:
            return refuse("answer_size", f"{len(result)} bytes, at most {most}")
    elif command.text:
        return refuse("answer_and_cannot", "say the answer, or that there is none")
    event = e.QuestionAnswered(
        call.call,
        question.question_id,
        result,
        command.by,
        command.reason,
        command.stop,
        command.command_id,
    )
    return Decision((event,))


def _unfit(question: QuestionState, command: Answer) -> Decision | None:
    if command.stop:
        return refuse("stop_and_answer", "only a question that can't be answered stops the run")
    if question.choices:
        if command.text not in question.choices:
            offered = ", ".join(question.choices)
            return refuse(
                "not_a_choice",
                f"it is none of the {len(question.choices)} choices: {offered}"[:REFUSAL_CHARS_MAX],
            )
        return None
    if not command.text.strip():
        return refuse("answer_empty", "an answer has some text")
    return None


def expire(call: CallState, now_ms: int) -> Decision:
    """Lapse a question whose time is over."""
    question = call.question
    if question is None or now_ms < question.expires_at_ms:
        return NOTHING
    return Decision((e.CallRejected(call.call, "answer", "question_expired", EXPIRED_TEXT),))
