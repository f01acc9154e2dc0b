"""Outside commands on the run itself: cancel, resume, close, raise limits. Each is accepted as an event, or refused
with a code and nothing changed."""

from __future__ import annotations

import msgspec

from . import events as e
from .commands import Cancel, Close, RaiseLimits, Resume
from .decision import Decision, refuse
from .errors import DeclarationError
from .limits import CEILING, RAISABLE, checked
from .state import METERED, State
from .turns import request, request_after_resume, request_short


def cancel(state: State, command: Cancel, now_ms: int) -> Decision:
    """First cancel wins; a second one is accepted as already asked for by ``decide``'s idempotency or refused here."""
    if state.phase == "terminated":
        return refuse("run_ended", "the run has ended")
    if state.cancel_reason:
        return refuse("already_cancelled", "the run is being cancelled")
    return Decision((e.CancelRequested(command.reason, command.by, command.command_id),))


def close(state: State, command: Close, now_ms: int) -> Decision:
    """End a stopped run as it stopped."""
    if state.phase == "terminated":
        return refuse("run_ended", "the run has ended")
    if state.phase != "suspended":
        return refuse("not_stopped", "the run has not stopped; cancel it instead")
    if state.close_requested:
        return refuse("already_closing", "the run is being closed")
    return Decision((e.CloseRequested(command.by, command.command_id),))


_BEFORE_A_REQUEST = frozenset({"max_turns", "budget_tokens", "budget_cost", "context_exhausted"})
"""Stops that the next request would run into again unless a limit was raised."""


_TO_RAISE = {
    "max_turns": "turns or model_attempts",
    "budget_tokens": "input_tokens, output_tokens or total_tokens",
    "budget_cost": "cost_micros",
    "context_exhausted": "context_tokens or history_bytes",
}
"""What there is to raise where the numbers alone don't tell what is missing."""


def resume(state: State, command: Resume, now_ms: int) -> Decision:
    """Lift a stop, if what stopped the run has changed."""
    if state.phase == "terminated":
        return refuse("run_ended", "the run has ended")
    if state.phase != "suspended":
        return refuse(
            "not_stopped", "the run has not stopped, so nothing holds it: whoever hosts it goes on with it"
        )
    if state.cancel_reason or state.close_requested:
        return refuse("run_ending", "the run is being cancelled or closed")
    if state.reason == "outcome_unknown":
        return refuse("outcome_unknown", f"settle the unknown effect first: {state.detail}")
    if now_ms >= state.deadline_at_ms:
        return refuse("deadline", "the run's deadline has passed: raise deadline_ms")
    if state.reason == "deadline" and state.counters.active_ms >= state.limits.active_ms:
        return refuse("deadline", "the run's active time is used up: raise active_ms")
    leased = bool(state.parent_run)  # it asks its parent again, and stops again if that has nothing
    if state.reason == "max_tool_calls" and state.counters.hosted_calls > state.limits.hosted_calls:
        return refuse(state.reason, "the limit is still reached: raise hosted_calls")
    if state.reason == "max_tool_calls" and not leased:
        for name in ("tool_calls", "call_attempts"):
            if getattr(state.meters, name).free < 1:
                return refuse(state.reason, f"the limit is still reached: raise {name}")
    if state.reason in _BEFORE_A_REQUEST and not leased:
        turn, attempt = request_after_resume(state)
        (again,) = request(state, turn=turn, attempt=attempt).events
        if not isinstance(again, e.ModelRequested | e.ContextCompacted):
            names = ", ".join(request_short(state, turn)) or _TO_RAISE[state.reason]
            return refuse(state.reason, f"the next request would stop at once: raise {names}")
    return Decision((e.RunResumed(state.epoch, "resume", "", command.by, command.command_id),))


def raise_limits(state: State, command: RaiseLimits, now_ms: int) -> Decision:
    """New values for named limits; each must be an integer above the present one."""
    if state.phase == "terminated":
        return refuse("run_ended", "the run has ended")
    if not command.raised:
        return refuse("nothing_raised", "name at least one limit")
    for name, value in command.raised.items():
        if name not in RAISABLE:
            return refuse("unknown_limit", f"{name} can't be raised")
        if state.parent_run and (name in METERED or name == "deadline_ms"):
            return refuse("leased", f"{name} comes out of the parent's lease: raise it in the run at the top")
        present = getattr(state.limits, name)
        if present is None:
            return refuse("limit_waived", f"{name} is waived")
        if not present < value <= CEILING:
            return refuse("not_higher", f"{name} must be above {present} and at most {CEILING}")
    try:
        checked(msgspec.structs.replace(state.limits, **command.raised), names=command.raised)
    except DeclarationError as error:
        return refuse(error.code, str(error))
    return Decision((e.LimitsRaised(command.raised, command.by, command.command_id),))
