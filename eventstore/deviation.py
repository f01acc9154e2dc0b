"""Where a run first left the straight path, by class.

A deviation is an event that a run without trouble doesn't have. The first one is usually the cause of the later ones,
and its class says whose it is: the model's choice, its argument's schema, the application's own check, a permission, an
approval, the execution, the result, the context, the model service, or the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, get_args

import msgspec

from ..runtime import events as e
from .codec import Recorded

DeviationClass = Literal[
    "choice",
    "schema",
    "semantic",
    "authorisation",
    "approval",
    "execution",
    "result",
    "context",
    "model",
    "termination",
]

CLASSES: Final[tuple[DeviationClass, ...]] = get_args(DeviationClass)

BY_RUNG: Final[dict[e.Rung, DeviationClass]] = {
    "known": "choice",
    "json": "schema",
    "schema": "schema",
    "provenance": "semantic",
    "check": "semantic",
    "price": "semantic",
    "authorisation": "authorisation",
    "policy": "authorisation",
    "taint": "authorisation",
    "guardrail": "semantic",
    "switch": "authorisation",
    "limits": "termination",
    "ledger": "semantic",
    "progress": "choice",
    "preview": "approval",
    "approval": "approval",
    "answer": "approval",
    "definition": "execution",
    "execute": "execution",
    "result": "result",
}
"""The class of a refusal by the rung that refused."""

_RESULT_CODES: Final = ("output_invalid", "result_type", "result_size", "result_invalid")
_CONTEXT_CODES: Final = ("context_exhausted", "context_exceeded")
_BY_REASON: Final[dict[str, DeviationClass]] = {
    "context_exhausted": "context",
    "model_failed": "model",
    "model_refusal": "model",
    "content_filtered": "model",
    "truncated": "model",
    "empty_response": "model",
    "no_progress": "choice",
    "approval_expired": "approval",
    "approval_denied": "approval",
    "policy_denied": "authorisation",
    "outcome_unknown": "execution",
    "tool_failed": "execution",
    "crash_loop": "execution",
    "definition_changed": "execution",
}


class Deviation(msgspec.Struct, frozen=True, kw_only=True):
    """``code`` is the event's own; ``text`` is bounded, ours or a tool's safe text."""

    kind: DeviationClass
    seq: int
    tag: str
    call: str
    code: str
    text: str


TEXT_CHARS_MAX = 160


def deviations(records: Iterable[Recorded]) -> tuple[Deviation, ...]:
    """The first deviation of each class, oldest first."""
    first: dict[DeviationClass, Deviation] = {}
    for record in records:
        found = _judge(record.event)
        if found is not None and found[0] not in first:
            kind, call, code, text = found
            first[kind] = Deviation(
                kind=kind, seq=record.seq, tag=record.tag, call=call, code=code, text=text[:TEXT_CHARS_MAX]
            )
    return tuple(first.values())


def _judge(event: e.AnyEvent) -> tuple[DeviationClass, str, str, str] | None:
    match event:
        case e.CallRejected():
            return BY_RUNG[event.rung], event.call, event.code, event.safe_message
        case e.CallsRejected():
            return "choice", "", event.code, f"{len(event.calls)} calls too many in one turn"
        case e.ApprovalLapsed():
            return "approval", event.call, event.why, event.what
        case e.ApprovalDecided(decision="reject"):
            return "approval", event.call, "rejected", event.reason
        case e.QuestionAnswered(result=None):
            return "choice", event.call, "cannot_answer", event.reason
        case e.CallExecuted(outcome="succeeded"):
            return ("result", event.call, event.code, event.safe_message) if event.code else None
        case e.CallExecuted():
            kind: DeviationClass = "result" if event.code in _RESULT_CODES else "execution"
            return kind, event.call, event.code or event.outcome, event.safe_message
        case e.ResultGuarded():
            return None if event.verdict == "allow" else ("result", event.call, event.code, event.verdict)
        case e.AnswerGuarded():
            return None if event.verdict == "allow" else ("termination", "", event.code, event.verdict)
        case e.ResultBound(status="error") if event.code in _RESULT_CODES:
            return "result", event.call, event.code, event.safe_message
        case e.ModelFailed():
            return "context" if event.code in _CONTEXT_CODES else "model", "", event.code, event.safe_message
        case e.ModelResponded():
            return _judge_finish(event)
        case e.MessageReceived(source="runtime"):
            return "termination", "", "evidence_missing", event.text
        case e.CancelRequested():
            return "termination", "", event.reason, ""
        case e.RunSuspended() | e.RunTerminated():
            if event.outcome == "completed":
                return None
            return _BY_REASON.get(event.reason, "termination"), "", event.reason, event.detail
        case _:
            return None


def _judge_finish(event: e.ModelResponded) -> tuple[DeviationClass, str, str, str] | None:
    if event.finish in ("calls", "final", "paused"):
        return None
    kind: DeviationClass = "context" if event.finish in _CONTEXT_CODES else "model"
    return kind, "", event.finish, event.finish_raw
