"""The re-check: the last pass of authorisation, policy, switches and approval before every dispatch of an effect.

It runs before the first attempt (unless the verdicts of the ladder are of this very moment), before each retry, each
re-sending of an unknown effect and after each wait. What it denies is not sent.
"""

from __future__ import annotations

from . import events as e
from .approvals import STALE_TEXT, ask_again, expire, request_approval, stale
from .binding import revisions_now
from .children import is_agent, reserve
from .commands import ChecksDone
from .decision import NOTHING, Decision, settle
from .effects import (
    LIMIT_TEXT,
    attempts_left,
    give_up_retry,
    limit_short,
    resend_due,
    start,
)
from .fold import ENDS_BY
from .key_rows import abandoned, by_row, left_unknown, may_take_over
from .order import may_start
from .refusal import NOT_AVAILABLE, first_refusal
from .state import CallState, State
from .stops import stop
from .tool_cost import cost_short, opens_at, price_refusal


def recheck_done(state: State, call: CallState, command: ChecksDone, now_ms: int) -> Decision:
    """Start the next attempt, or say why not. A call that isn't about to start any more is left alone."""
    if call.phase not in ("checking", "waiting_key", "executed", "reconciling") or not may_start(state, call):
        return NOTHING
    if opens_at(state, call) > now_ms:
        return NOTHING  # another call of its tool took the place meanwhile
    if call.phase == "executed" and (call.outcome != "failed" or not 0 < call.retry_at_ms <= now_ms):
        return NOTHING
    if call.phase == "reconciling" and not resend_due(state, call, now_ms):
        return NOTHING
    if not state.tools[call.tool].offered:
        return _refuse(state, call, e.CallRejected(call.call, "known", "unknown_tool", NOT_AVAILABLE))
    if not command.contract_kept:
        # It is this call's turn, so no effect is running: the run can stop with its calls open.
        return stop(state, "definition_changed", call.tool)
    refusal = first_refusal(call, command) or price_refusal(state, call, command)
    if refusal is not None:
        return _refuse(state, call, refusal)
    if call.attempt and not attempts_left(state, call):
        return _refuse(state, call, _limit(call, "attempts_exhausted", "no further attempt is allowed"))
    over = None
    if call.phase in ("checking", "waiting_key"):
        over = abandoned(state, call, command)
        if over is not None and not may_take_over(state, call):
            return left_unknown(call)
        taken = None if over is not None else by_row(state, call, command.row, command)
        if taken is not None:
            return taken
        asked = _approval_stands(state, call, command, now_ms)
        if asked is not None:
            return asked
        short = limit_short(state, call, command.price_micros)
        if short:
            return _refuse(state, call, _limit(call, short, LIMIT_TEXT))
    else:
        lapsed = _approval_over(call, command, now_ms)
        if lapsed:
            return _refuse(state, call, e.CallRejected(call.call, "approval", lapsed, STALE_TEXT))
        # The failed attempt may have been one that took an abandoned effect over: that one is back, and is taken over again.
        found = abandoned(state, call, command)
        over = found if found is not None and may_take_over(state, call) else None
    if is_agent(state, call):
        return reserve(state, [call], now_ms, (revisions_now(state, call, command), command.verdicts))
    under = revisions_now(state, call, command)
    if command.price_micros is not None and cost_short(state, command.price_micros):
        return _refuse(state, call, _limit(call, "budget_cost", LIMIT_TEXT))
    return start(state, call, now_ms, under, command.verdicts, over, command.price_micros)


def _limit(call: CallState, code: str, text: str) -> e.CallRejected:
    return e.CallRejected(call.call, "limits", code, text)


def _approval_over(call: CallState, command: ChecksDone, now_ms: int) -> str:
    """Why the approval of the first attempt doesn't cover one more; empty if it does. Nobody is asked again in the
    middle of a call: what may not be sent under the old decision isn't sent."""
    approval = call.approval
    if approval is None:
        return "approval_missing" if command.ask else ""
    if now_ms >= approval.expires_at_ms:
        return "approval_expired"
    what = stale(call, approval, command)
    # An effect that may have happened may itself have moved the resource on, and with it what a preview shows.
    moved = call.phase == "reconciling" and what in ("resource_version", "preview")
    return "approval_stale" if what and not moved else ""


def _approval_stands(state: State, call: CallState, command: ChecksDone, now_ms: int) -> Decision | None:
    """None if the call may start; else the decision that asks (again) or refuses."""
    approval = call.approval
    if approval is not None and approval.decision == "approve":
        expired = expire(state, call, now_ms)
        if expired.events:
            return expired
        what = stale(call, approval, command)
        if what:
            return ask_again(state, call, approval, what, command, now_ms)
        return None
    if not command.ask:
        return None
    if call.approval_rounds >= state.limits.approval_rounds:
        # The last one lapsed when a definition was adopted.
        return _refuse(state, call, e.CallRejected(call.call, "approval", "approval_stale", STALE_TEXT))
    return request_approval(state, call, command, now_ms, round_=call.approval_rounds + 1)


def _refuse(state: State, call: CallState, refusal: e.CallRejected) -> Decision:
    """Not sent. Before the first attempt that is a refusal; after it, what the last attempt came to stands."""
    if call.phase == "executed":
        left = give_up_retry(state, call, refusal.code, refusal.safe_message)
        if not refusal.terminal:
            return left
        # What the last attempt came to stands; the run ends all the same.
        ends = stop(state, ENDS_BY.get(refusal.rung, "policy_denied"), refusal.code)
        return Decision((*left.events, *ends.events), left.claim, left.settlements)
    if call.phase == "reconciling":
        # Nothing is sent, so nothing is learnt: the effect stays unknown, for a person.
        for_good = ENDS_BY.get(refusal.rung, "policy_denied") if refusal.terminal else ""
        return Decision(
            (e.CallReconciled(call.call, "unknown", "recheck", reason=refusal.code, ends=for_good),)
        )
    return Decision((refusal,), settlements=settle(state, call, "free") if call.holds_key else ())
