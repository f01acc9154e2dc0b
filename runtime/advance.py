"""What is due: the next event that state and time call for, one decision at a time.

The driver calls ``advance`` after every command and at every wake-up until it answers with nothing. It is also all
there is to recovery: a folded state goes on from here. Order of the rules: an ended run, cancel, a stopped run, deadline,
crash loop, then the phase.
"""

from __future__ import annotations

from . import events as e
from . import questions
from .approvals import expire
from .children import is_agent, start_children
from .decision import NOTHING, Decision, settle
from .effects import LIMIT_TEXT, limit_short, needs_person, retry_barred, start
from .limits import HOST_DEATHS_MAX
from .order import may_start
from .refusal import NOT_AVAILABLE
from .results import bind_error, bind_executed
from .stages import enter_next
from .state import CallState, State
from .stops import closing, ending, lost_if_overdue, stop
from .tool_cost import opens_at
from .top_ups import calls_held
from .turns import judge, next_request, retry_due
from .withheld import unjudged


def advance(state: State, now_ms: int) -> Decision:
    """The next decision that is due, or ``NOTHING``."""
    phase = state.phase
    if phase == "terminated" or phase == "":
        return NOTHING
    if state.cancel_reason:
        return closing(state, now_ms, state.cancel_reason)
    if phase == "suspended":
        return _stopped(state, now_ms)
    if now_ms >= state.deadline_at_ms:
        return closing(state, now_ms, "deadline")
    if state.counters.host_deaths >= HOST_DEATHS_MAX and phase != "model_requested":
        return stop(state, "crash_loop", f"{state.counters.host_deaths} hosts died in this run")
    if state.pins.stages and phase in ("open_calls", "results_ready"):
        entered = enter_next(state)
        if entered.events:
            return entered
    match phase:
        case "created" | "results_ready":
            return next_request(state, now_ms)
        case "deciding":
            return judge(state, now_ms)
        case "model_retry":
            return retry_due(state, now_ms)
        case "open_calls":
            why = ending(state)
            return closing(state, now_ms, why) if why else _open_calls(state, now_ms)
        case _:
            return NOTHING


def _stopped(state: State, now_ms: int) -> Decision:
    """A stopped run moves only by what a person settles, or towards the end that was asked for."""
    if state.close_requested:
        return closing(state, now_ms, "closed")
    if state.reason == "outcome_unknown":
        if state.on_stop == "end" and now_ms >= state.deadline_at_ms:
            return closing(state, now_ms, "closed")
        for call in state.calls.values():
            if call.phase == "executed" and not unjudged(state, call):
                return bind_executed(state, call)
        if not any(call.phase == "reconciling" for call in state.calls.values()):
            return Decision((e.RunResumed(state.epoch, "resolved"),))
    return NOTHING


def _open_calls(state: State, now_ms: int) -> Decision:
    for call in state.calls.values():
        decision = _call_due(state, call, now_ms)
        if decision.events:
            return decision
    return _wait_for_person(state, now_ms)


def _call_due(state: State, call: CallState, now_ms: int) -> Decision:
    match call.phase:
        case "rejected":
            return Decision((bind_error(state, call, call.code, call.safe_message),))
        case "waiting_approval":
            return expire(state, call, now_ms)
        case "waiting_answer":
            return questions.expire(call, now_ms)
        case "checking":
            return _checking_due(state, call, now_ms)
        case "started":
            return lost_if_overdue(state, call, now_ms)
        case "executed":
            return _executed_due(state, call, now_ms)
        case _:
            return NOTHING


def _checking_due(state: State, call: CallState, now_ms: int) -> Decision:
    approval = call.approval
    if approval is not None and approval.decision == "approve":
        expired = expire(state, call, now_ms)
        if expired.events:
            return expired
    if not may_start(state, call) or calls_held(state):
        return NOTHING
    if not call.rechecked and not state.tools[call.tool].offered:
        return Decision((e.CallRejected(call.call, "known", "unknown_tool", NOT_AVAILABLE),))
    # Verdicts of this very moment are the re-check; a plain read needs none. Everything else is checked again first.
    if not call.rechecked or (call.checked_seq == state.seq and call.attempt == 0):
        short = limit_short(state, call)
        if short:
            return Decision((e.CallRejected(call.call, "limits", short, LIMIT_TEXT),))
        opens = opens_at(state, call)
        if opens >= state.deadline_at_ms:
            return Decision((e.CallRejected(call.call, "limits", "rate", LIMIT_TEXT),))
        if opens > now_ms:
            return NOTHING
        if questions.is_question(state, call):
            return questions.ask(state, call, now_ms)
        if is_agent(state, call):
            return start_children(state, call, now_ms)
        return start(state, call, now_ms, call.under, price_micros=call.price_micros)
    return NOTHING


def _executed_due(state: State, call: CallState, now_ms: int) -> Decision:
    if call.outcome == "succeeded" or call.retry_at_ms == 0:
        return NOTHING if unjudged(state, call) else bind_executed(state, call)
    if now_ms < call.retry_at_ms:
        return NOTHING
    if retry_barred(state, call):
        return NOTHING if unjudged(state, call) else bind_executed(state, call)
    if now_ms < opens_at(state, call):
        return NOTHING
    # What is checked before each dispatch is checked before this one too (``pending_orders`` asks for it).
    return (
        NOTHING if call.rechecked else start(state, call, now_ms, call.under, price_micros=call.price_micros)
    )


def _wait_for_person(state: State, now_ms: int) -> Decision:
    """Stop when nothing but effects that only a person can settle is open."""
    unknown = [
        call for call in state.calls.values() if call.phase == "reconciling" and needs_person(state, call)
    ]
    if not unknown:
        return NOTHING
    opened = [call for call in state.calls.values() if call.open]
    # Later calls that were admitted wait for their turn, and it comes only when the unknown effect is settled: also
    # one that wants the same key, and so waits for this very call.
    if any(call not in unknown and call.phase not in ("checking", "waiting_key") for call in opened):
        return NOTHING
    return Decision(
        (
            e.RunSuspended(
                "incomplete",
                "outcome_unknown",
                tuple(f"{call.call} {call.tool}" for call in opened),
                unknown[0].call,
            ),
        ),
        settlements=settle(state, unknown[0], "unknown") if unknown[0].holds_key else (),
    )
