"""The re-check: the last pass of authorisation, policy, switches and approval before every dispatch of an effect.

It runs before the first attempt (unless the verdicts of the ladder are of this very moment), before each retry, each
re-sending of an unknown effect and after each wait. What it denies is not sent.
"""

from __future__ import annotations

from . import events as e
from .approvals import ask_again, expire, request_approval, stale
from .commands import ChecksDone
from .decision import NOTHING, Decision, settle
from .effects import attempts_left, by_row, give_up_retry, start
from .order import may_start
from .state import CallState, State
from .stops import stop

DENIED_TEXT = "this action is not permitted"
UNKNOWN_TEXT = "a required check gave no answer; the action was not run"


def recheck_done(state: State, call: CallState, command: ChecksDone, now_ms: int) -> Decision:
    """Start the next attempt, or say why not. A call that isn't about to start any more is left alone."""
    if call.phase not in ("checking", "waiting_key", "executed", "reconciling") or state.cancel_reason:
        return NOTHING
    refusal = next((v for v in command.verdicts if v.verdict in ("deny", "unknown")), None)
    if not command.contract_kept:
        return stop(state, "definition_changed", call.tool)
    if refusal is not None:
        unknown = refusal.verdict == "unknown"
        code = refusal.code or ("check_unknown" if unknown else "denied")
        return _refuse(state, call, refusal.rung, code, UNKNOWN_TEXT if unknown else DENIED_TEXT, command)
    if not attempts_left(state, call) and call.attempt:
        return _refuse(state, call, "limits", "attempts_exhausted", "no further attempt is allowed", command)
    if call.phase in ("checking", "waiting_key"):
        taken = by_row(state, call, command.row)
        if taken is not None:
            return taken
        asked = _approval_stands(state, call, command, now_ms)
        if asked is not None:
            return asked
    if not may_start(state, call):
        return NOTHING
    return start(state, call, now_ms, command.verdicts)


def _approval_stands(state: State, call: CallState, command: ChecksDone, now_ms: int) -> Decision | None:
    """None if the call may start; else the decision that asks (again) or refuses."""
    approval = call.approval
    if approval is not None and approval.decision == "approve":
        expired = expire(state, call, now_ms)
        if expired.events:
            return expired
        what = stale(state, call, approval, command)
        if what:
            return ask_again(state, call, approval, what, command, now_ms)
        return None
    if command.ask:
        return request_approval(state, call, command, now_ms, round_=call.approval_rounds + 1)
    return None


def _refuse(
    state: State, call: CallState, rung: e.Rung, code: str, text: str, command: ChecksDone
) -> Decision:
    if call.phase == "executed":
        return give_up_retry(state, call, code, text)
    if call.phase == "reconciling":
        # Nothing is sent, so nothing is learnt: the effect stays unknown, for a query or a person.
        return Decision((e.CallReconciled(call.call, "unknown", "recheck", reason=code),))
    return Decision(
        (
            e.CallRejected(
                call.call,
                rung,
                code,
                text,
                retryable=code == "check_unknown",
                terminal=command.terminal,
                verdicts=command.verdicts,
            ),
        ),
        settlements=settle(state, call, "free") if call.holds_key else (),
    )
