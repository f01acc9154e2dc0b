"""How a run stops: the table of outcomes, and what closes whatever is open on the way there.

``REASONS`` is the whole table. Only ``completed/final`` is success, and only ``turns.judge`` writes it. A stop that
someone can lift suspends the run, unless ``on_stop="end"``; the others end it.
"""

from __future__ import annotations

from typing import Final, Literal

from . import events as e
from .answer import answer_missing
from .decision import NOTHING, Decision, settle
from .effects import lost, queries_left
from .ledger import Settlement
from .limits import MARGIN_MS
from .results import bind_error, bind_executed
from .side_attempts import side_lost
from .stages import still_to_leave
from .state import CallState, State

Outcome = Literal["completed", "refused", "incomplete", "failed", "cancelled"]

REASONS: Final[dict[str, tuple[Outcome, bool]]] = {
    # reason: (outcome, liftable)
    "final": ("completed", False),
    "model_refusal": ("refused", False),
    "content_filtered": ("refused", False),
    "max_turns": ("incomplete", True),
    "max_tool_calls": ("incomplete", True),
    "budget_tokens": ("incomplete", True),
    "budget_cost": ("incomplete", True),
    "deadline": ("incomplete", True),
    "no_progress": ("incomplete", True),
    "context_exhausted": ("incomplete", True),
    "evidence_missing": ("incomplete", True),
    "truncated": ("incomplete", True),
    "empty_response": ("incomplete", True),
    "approval_expired": ("incomplete", True),
    "outcome_unknown": ("incomplete", True),
    "blocked": ("incomplete", True),
    "model_failed": ("failed", True),
    "definition_changed": ("failed", True),
    "crash_loop": ("failed", True),
    "tool_failed": ("failed", False),
    "policy_denied": ("failed", False),
    "approval_denied": ("failed", False),
    "by_user": ("cancelled", False),
    "by_parent": ("cancelled", False),
    "kill_switch": ("cancelled", False),
}
"""``log_damaged`` isn't here: it is written to the run's index row, never to a damaged log."""


def unfinished(state: State) -> tuple[str, ...]:
    """Open predicates of the goal, what is missing for the last stage and of the answer, then calls of the open turn that have no success."""
    names: list[str] = []
    goal = state.pins.goal
    if goal is not None:
        names += [
            predicate.name()
            for predicate, met in zip(goal.evidence, state.evidence, strict=True)
            if met < predicate.count
        ]
    names += still_to_leave(state)
    names += answer_missing(state)
    names += [f"{call.call} {call.tool}" for call in state.calls.values() if call.status != "ok"]
    return tuple(names)


def stop(state: State, reason: str, detail: str = "") -> Decision:
    """The event that stops the run for this reason."""
    outcome, liftable = REASONS[reason]
    left = () if outcome == "completed" else unfinished(state)
    if liftable and state.on_stop == "suspend":
        return Decision((e.RunSuspended(outcome, reason, left, detail),))
    if any(call.open for call in state.calls.values()):
        # Nothing ends with a call unbound: stop, close what is open, then end as stopped.
        return Decision((e.RunSuspended(outcome, reason, left, detail), e.CloseRequested("runtime")))
    return _end(state, e.RunTerminated(outcome, reason, left, detail))


def ending(state: State) -> str:
    """The final reason that the open turn has earned (a terminal denial, a reject that stops, a kill switch); empty if
    the run may go on after its turn.

    From then on nothing starts: what was never dispatched is refused, what is out is waited for and bound. A reason that
    someone can lift (``no_progress``, a limit, a changed definition) refuses its own call alone, and the admitted calls
    beside it run: one failing sibling never discards the others.
    """
    reason = state.stop_after_turn
    return reason if reason and not REASONS[reason][1] else ""


def closing(state: State, now_ms: int, why: str) -> Decision:
    """The next step towards a run with nothing open: ``why`` is a cancel reason, an ``ending`` one, ``deadline`` or
    ``closed``.

    One event group a call. What was never dispatched is refused; what is out is waited for until its validity and the
    margin are over; a child run is waited for (``pending_orders`` has it cancelled); an effect that nobody knows of is queried as far as that is allowed, then bound as unknown.
    """
    if state.phase == "model_requested":
        return Decision((_abandon_model(state, why),))
    for call in state.calls.values():
        decision = _close_call(state, call, now_ms, why)
        if decision.events:
            return decision
    if any(call.open for call in state.calls.values()):
        return NOTHING
    if why in ("deadline", ending(state)):
        # What ends the run isn't lost because the deadline passed before the last call was bound.
        return stop(state, ending(state) or why, state.stop_detail if ending(state) else "")
    if why == "closed":
        return _end(state, e.RunTerminated(state.outcome, state.reason, unfinished(state), state.detail))
    return _end(state, e.RunTerminated("cancelled", why, unfinished(state), state.cancel_by))


def _end(state: State, event: e.RunTerminated) -> Decision:
    """The end. What is still unknown is settled as that once more: it wakes who waits for those keys, and they find that
    this run does nothing about them any more."""
    rows: list[Settlement] = []
    for call in state.unknown_calls.values():
        rows += settle(state, call, "unknown")
    return Decision((event,), settlements=tuple(rows))


def _abandon_model(state: State, code: str) -> e.ModelFailed:
    """What was sent may have been served: the reservation is spent."""
    return e.ModelFailed(
        state.turn,
        state.model_attempt,
        code,
        False,
        0,
        state.reserved_input,
        state.reserved_output,
        state.reserved_cost,
        side=side_lost(state),
    )


def ends_children(state: State) -> bool:
    """Whether the run is on its way to an end that its child runs don't outlast: they are cancelled by it."""
    return bool(state.cancel_reason or state.close_requested or ending(state))


def child_overdue_at(state: State) -> int:
    """Until when a child may end by its own timer and name its own reason, at a deadline that it has in common with this
    run: what it has out is lost by then. Past it the child is cancelled."""
    return state.deadline_at_ms + 2 * MARGIN_MS


_CLOSED: Final = {
    "deadline": ("deadline", "the run's deadline passed"),
    "closed": ("cancelled", "the run was closed"),
}
_CANCELLED: Final = ("cancelled", "the run was cancelled")
_RUN_STOPPING: Final = ("run_stopping", "another action of this turn ended the run; this one was not run")


def _close_call(state: State, call: CallState, now_ms: int, why: str) -> Decision:
    code, text = _RUN_STOPPING if why == ending(state) else _CLOSED.get(why, _CANCELLED)
    phase = call.phase
    if phase in ("proposed", "checking", "waiting_approval", "waiting_answer", "waiting_key"):
        return _refuse_open(state, call, code, text)
    if phase == "rejected":
        return Decision((bind_error(state, call, call.code, call.safe_message),))
    if phase == "executed":
        return bind_executed(state, call)
    if phase == "started":
        return lost_if_overdue(state, call, now_ms)
    if phase == "reconciling" and not may_query(state, call, why):
        return Decision((bind_error(state, call, "unknown", "it is not known whether this took effect"),))
    return NOTHING


def may_query(state: State, call: CallState, why: str) -> bool:
    """Whether a run that ends still asks the far side about this effect. Past the deadline nothing is asked."""
    return why not in ("deadline", "closed") and queries_left(state, call)


def _refuse_open(state: State, call: CallState, code: str, text: str) -> Decision:
    group: list[e.AnyEvent] = []
    approval = call.approval
    if call.phase == "waiting_approval" and approval is not None:
        group.append(e.ApprovalLapsed(call.call, approval.approval_id, "cancelled"))
    group.append(e.CallRejected(call.call, "limits", code, text))
    return Decision(tuple(group), settlements=settle(state, call, "free") if call.holds_key else ())


def lost_if_overdue(state: State, call: CallState, now_ms: int) -> Decision:
    """A started call whose executor never reported: lost once its validity and the margin are over."""
    return NOTHING if now_ms <= call.valid_until_ms + MARGIN_MS else lost(state, call, now_ms)
