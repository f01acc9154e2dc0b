"""The two transition tables: everything that moves a run's or a call's phase is listed here, and nothing else.

A row is (phase, event tag) -> the phases it may lead to. Where more than one is possible the fold computes which from
the event and the state, and the table only admits it. A pair that isn't listed raises ``IllegalTransition`` and changes
nothing. Diagrams (``docs/state-machine.md``) and the completeness tests are generated from these tables.

This file knows no command, no clock and no limits. ``""`` is the phase before the first event.
"""

from __future__ import annotations

from typing import Final, Literal

from .errors import BugError

RunPhase = Literal[
    "",
    "created",
    "model_requested",
    "model_retry",
    "deciding",
    "open_calls",
    "results_ready",
    "suspended",
    "terminated",
]

CallPhase = Literal[
    "",
    "proposed",
    "checking",
    "waiting_approval",
    "waiting_answer",
    "waiting_key",
    "started",
    "waiting_child",
    "executed",
    "reconciling",
    "rejected",
    "bound",
]

RunTable = dict[tuple[RunPhase, str], tuple[RunPhase, ...]]
CallTable = dict[tuple[CallPhase, str], tuple[CallPhase, ...]]


class IllegalTransition(BugError):
    """An event that its phase doesn't admit: a bug, or a log that wasn't written by this interpreter."""


_CALL_EVENTS: Final = (
    "call_validated",
    "call_rejected",
    "calls_rejected",
    "approval_requested",
    "approval_decided",
    "approval_lapsed",
    "question_asked",
    "question_answered",
    "call_waiting",
    "call_started",
    "call_executed",
    "call_reconciled",
    "result_guarded",
    "child_reserved",
    "child_started",
    "child_topped_up",
    "child_settled",
)

_LIVE: Final[tuple[RunPhase, ...]] = (
    "created",
    "model_requested",
    "model_retry",
    "deciding",
    "open_calls",
    "results_ready",
)

_BETWEEN: Final[tuple[RunPhase, ...]] = ("created", "model_retry", "open_calls", "results_ready", "deciding")
"""Where a run can stop: never while a model request is out (it is settled first)."""


def _run_table() -> RunTable:
    table: RunTable = {
        ("", "run_started"): ("created",),
        ("created", "model_requested"): ("model_requested",),
        ("model_retry", "model_requested"): ("model_requested",),
        ("results_ready", "model_requested"): ("model_requested",),
        ("model_requested", "model_responded"): ("deciding",),
        ("model_requested", "model_failed"): ("model_retry",),
        # A paused turn is continued by the next request; its text and continuation are in the history.
        ("deciding", "model_requested"): ("model_requested",),
        ("deciding", "call_proposed"): ("open_calls",),
        ("deciding", "answer_guarded"): ("deciding",),
        ("open_calls", "call_proposed"): ("open_calls",),
        ("open_calls", "result_bound"): ("open_calls", "results_ready"),
        ("open_calls", "stage_entered"): ("open_calls",),
        ("results_ready", "stage_entered"): ("results_ready",),
        # A final text without its evidence: the runtime's note asks once more.
        # A person's message while a parent is asked for one more turn waits beside the answer.
        ("deciding", "message_received"): ("results_ready", "deciding"),
        ("suspended", "message_received"): ("suspended",),
        ("suspended", "run_resumed"): ("suspended", "created", "model_retry", "open_calls", "results_ready"),
        ("suspended", "definition_adopted"): ("suspended",),
        ("suspended", "limits_raised"): ("suspended",),
        ("suspended", "cancel_requested"): ("suspended",),
        ("suspended", "fact_recorded"): ("suspended",),
        ("suspended", "close_requested"): ("suspended",),
        # What is closed while stopped: an unknown effect by a person, open calls by a close or a cancel, a read that
        # was out when a sibling's changed definition stopped the run by its report.
        ("suspended", "call_reconciled"): ("suspended",),
        ("suspended", "call_rejected"): ("suspended",),
        ("suspended", "call_executed"): ("suspended",),
        ("suspended", "approval_lapsed"): ("suspended",),
        ("suspended", "result_bound"): ("suspended",),
        # A child goes on while its parent is stopped, and is settled when it ends.
        ("suspended", "child_started"): ("suspended",),
        ("suspended", "child_settled"): ("suspended",),
        ("suspended", "run_terminated"): ("terminated",),
        # The one fact that may still arrive after the end: what an unknown effect turned out to be.
        ("terminated", "call_reconciled"): ("terminated",),
    }
    for phase in ("created", "model_retry", "results_ready", "deciding"):
        # `created`: what the host recorded before the first request can be too much for it.
        table[(phase, "context_compacted")] = (phase,)
    # The provider said that the request was too long: the next one is due from a smaller context.
    table[("deciding", "context_compacted")] = ("deciding", "results_ready")
    for tag in _CALL_EVENTS:
        table[("open_calls", tag)] = ("open_calls",)
    for phase in _LIVE:
        # `call_reconciled`: an unknown effect of an earlier turn, bound as unknown before a stop that was lifted.
        for tag in ("run_resumed", "limits_raised", "cancel_requested", "call_reconciled", "fact_recorded"):
            table[(phase, tag)] = (phase,)
        table.setdefault((phase, "message_received"), (phase,))
    del table[("created", "call_reconciled")]
    for phase in _BETWEEN:
        table[(phase, "lease_denied")] = (phase,)
        # By a take-over, after the facts about what the last host had sent.
        table[(phase, "definition_adopted")] = (phase,)
        table[(phase, "run_suspended")] = ("suspended",)
        table[(phase, "run_terminated")] = ("terminated",)
    # Calls are bound, or the run is stopped, before it ends.
    del table[("open_calls", "run_terminated")]
    return table


RUN: Final[RunTable] = _run_table()

CALL: Final[CallTable] = {
    ("", "call_proposed"): ("proposed",),
    ("proposed", "call_validated"): ("checking",),
    ("proposed", "call_rejected"): ("rejected",),
    # Admitted: only the re-check, its turn and the claim are left.
    ("checking", "approval_requested"): ("waiting_approval",),
    ("checking", "call_waiting"): ("waiting_key",),
    ("checking", "call_started"): ("started",),
    ("checking", "call_rejected"): ("rejected",),
    ("checking", "result_bound"): ("bound",),
    ("waiting_approval", "approval_decided"): ("checking",),
    ("waiting_approval", "approval_lapsed"): ("checking",),
    # A call of the question tool: what a person says is its result, and it lapses as a refusal.
    ("checking", "question_asked"): ("waiting_answer",),
    ("waiting_answer", "question_answered"): ("executed",),
    ("waiting_answer", "call_rejected"): ("rejected",),
    # Found stale at commit, after it was given.
    ("checking", "approval_lapsed"): ("checking",),
    ("waiting_key", "call_waiting"): ("waiting_key",),
    ("waiting_key", "approval_requested"): ("waiting_approval",),
    ("waiting_key", "call_started"): ("started",),
    ("waiting_key", "call_rejected"): ("rejected",),
    ("waiting_key", "result_bound"): ("bound",),
    ("started", "call_executed"): ("executed", "reconciling"),
    # A call of an agent: its run is set up, may be given more, and is settled right before what it came to.
    ("started", "child_reserved"): ("waiting_child",),
    ("waiting_child", "child_started"): ("waiting_child",),
    ("waiting_child", "child_topped_up"): ("waiting_child",),
    ("waiting_child", "child_settled"): ("started",),
    ("executed", "call_started"): ("started",),
    # Judged before the model sees it: what was executed now, or what is recorded of the same effect.
    ("executed", "result_guarded"): ("executed",),
    ("checking", "result_guarded"): ("checking",),
    ("waiting_key", "result_guarded"): ("waiting_key",),
    ("executed", "result_bound"): ("bound",),
    ("reconciling", "call_started"): ("started",),
    ("reconciling", "call_reconciled"): ("executed", "reconciling", "checking"),
    ("reconciling", "result_bound"): ("bound",),
    # The lost attempt's own word, after the far side had said "absent" and before a further attempt started.
    ("checking", "call_reconciled"): ("executed",),
    ("waiting_key", "call_reconciled"): ("executed",),
    ("rejected", "result_bound"): ("bound",),
    # A late answer about an effect that was bound as unknown.
    ("bound", "call_reconciled"): ("bound",),
}


def next_run_phase(phase: RunPhase, tag: str, wanted: RunPhase | None = None) -> RunPhase:
    """The phase after ``tag``; ``wanted`` chooses where the table leaves a choice. A miss raises."""
    allowed = RUN.get((phase, tag))
    if allowed is None:
        raise IllegalTransition("run_transition", f"run in {phase!r} does not admit {tag}")
    if wanted is None:
        return allowed[0]
    if wanted not in allowed:
        raise IllegalTransition("run_transition", f"run in {phase!r} does not go to {wanted!r} by {tag}")
    return wanted


def next_call_phase(phase: CallPhase, tag: str, wanted: CallPhase | None = None) -> CallPhase:
    """As ``next_run_phase`` for a call."""
    allowed = CALL.get((phase, tag))
    if allowed is None:
        raise IllegalTransition("call_transition", f"call in {phase!r} does not admit {tag}")
    if wanted is None:
        return allowed[0]
    if wanted not in allowed:
        raise IllegalTransition("call_transition", f"call in {phase!r} does not go to {wanted!r} by {tag}")
    return wanted
