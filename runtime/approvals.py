"""Approvals: the preview is made from the real arguments, the decision binds it, the commit checks it all again.

An approval is single-use because it lives in the log of the run that owns the call: the first decision by seq wins, a
second finds no open approval. Expiry is judged by the store's time when it is given and again when the call starts.
"""

from __future__ import annotations

from hashlib import sha256

from . import events as e
from .commands import Approve, ChecksDone, Reject
from .decision import NOTHING, Decision, refuse, settle
from .key_rows import abandoned, claim
from .state import ApprovalState, CallState, State

NO_PREVIEW = b"{}"
STALE_TEXT = "the approval no longer fits what would be done; the action was not run"
EXPIRED_TEXT = "nobody approved this action in time; it was not run"
REJECTED_TEXT = "a person rejected this action"


def approval_id(run_id: str, call: str, round_: int) -> str:
    """One decision's id, derived so that asking again after a crash asks for the same one."""
    return "ap_" + sha256(f"{run_id}/{call}/{round_}".encode()).hexdigest()[:16]


def request_approval(
    state: State, call: CallState, command: ChecksDone, now_ms: int, *, round_: int
) -> Decision:
    """Ask a person about exactly this. The key is claimed with it, so nobody else asks for the same effect. The row of an
    abandoned effect is left as it is until the approved attempt takes it: a "no" must not make it look as if nothing
    had happened."""
    preview = command.preview if command.preview is not None else NO_PREVIEW
    expires = min(now_ms + state.limits.approval_ms, state.deadline_at_ms)
    event = e.ApprovalRequested(
        call.call,
        approval_id(state.run_id, call.call, round_),
        round_,
        preview,
        sha256(preview).digest(),
        call.args_sha256,
        command.definition_sha256,
        command.policy_revision,
        command.resource_version,
        expires,
    )
    over = abandoned(state, call, command)
    return Decision((event,), claim=None if over is not None else claim(state, call, "approval", 0, expires))


def find(state: State, approval: str) -> tuple[CallState, ApprovalState] | None:
    """The open call that this approval belongs to."""
    for call in state.calls.values():
        if call.approval is not None and call.approval.approval_id == approval:
            return call, call.approval
    return None


def approve(state: State, command: Approve, now_ms: int) -> Decision:
    """A yes. Refused, with nothing changed: unknown or used approvals, the requester itself where policy says so, a
    decision after expiry."""
    found = _open_approval(state, command)
    if isinstance(found, Decision):
        return found
    call, approval = found
    if now_ms >= approval.expires_at_ms:
        return refuse("approval_expired", "the approval's time is over")
    return Decision(
        (
            e.ApprovalDecided(
                call.call, approval.approval_id, "approve", command.by, command.reason, command.command_id
            ),
        )
    )


def reject(state: State, command: Reject, now_ms: int) -> Decision:
    """A no: the call is refused, the run goes on unless ``on_reject="stop"``."""
    found = _open_approval(state, command)
    if isinstance(found, Decision):
        return found
    call, approval = found
    return Decision(
        (
            e.ApprovalDecided(
                call.call, approval.approval_id, "reject", command.by, command.reason, command.command_id
            ),
            e.CallRejected(
                call.call,
                "approval",
                "approval_rejected",
                REJECTED_TEXT,
                terminal=command.on_reject == "stop",
            ),
        ),
        settlements=settle(state, call, "rejected"),
    )


def _open_approval(state: State, command: Approve | Reject) -> Decision | tuple[CallState, ApprovalState]:
    found = find(state, command.approval_id)
    if found is None or state.phase == "terminated":
        return refuse("approval_not_found", "no such approval is open")
    call, approval = found
    if call.phase != "waiting_approval" or approval.decision:
        return refuse("approval_used", "that approval was decided before")
    if state.pins.separate_approver and command.by == state.principal:
        return refuse("same_person", "who asked for the action may not approve it")
    if state.cancel_reason:
        return refuse("run_cancelled", "the run was cancelled")
    if not state.live:
        return refuse("run_stopped", "the run has stopped and its approval is open: resume it, then decide")
    return call, approval


def expire(state: State, call: CallState, now_ms: int) -> Decision:
    """Lapse an approval whose time is over: while it waits, or between the decision and the start."""
    approval = call.approval
    if approval is None or now_ms < approval.expires_at_ms or approval.decision not in ("", "approve"):
        return NOTHING
    return Decision(
        (
            e.ApprovalLapsed(call.call, approval.approval_id, "expired"),
            e.CallRejected(call.call, "approval", "approval_expired", EXPIRED_TEXT),
        ),
        settlements=settle(state, call, "free") if call.holds_key else (),
    )


def stale(call: CallState, approval: ApprovalState, command: ChecksDone) -> str:
    """What changed since the preview was made; empty if nothing did.

    What an effect of unknown outcome may itself have moved (the resource, and so what a preview shows of it) comes
    last: who makes an exception for it doesn't let anything else pass.
    """
    if approval.args_sha256 != call.args_sha256:
        return "arguments"
    if command.definition_sha256 != approval.definition_sha256:
        return "definition"
    if command.policy_revision != approval.policy_revision:
        return "policy"
    if command.resource_version != approval.resource_version:
        return "resource_version"
    now = command.preview if command.preview is not None else NO_PREVIEW
    if any(sha256(shown).digest() != approval.preview_sha256 for shown in (approval.preview, now)):
        return "preview"
    return ""


def ask_again(
    state: State, call: CallState, approval: ApprovalState, what: str, command: ChecksDone, now_ms: int
) -> Decision:
    """A stale approval lapses; a new preview is shown, at most ``approval_rounds`` times."""
    lapsed = e.ApprovalLapsed(call.call, approval.approval_id, "stale", what)
    if call.approval_rounds >= state.limits.approval_rounds:
        return Decision(
            (lapsed, e.CallRejected(call.call, "approval", "approval_stale", STALE_TEXT)),
            settlements=settle(state, call, "free"),
        )
    again = request_approval(state, call, command, now_ms, round_=call.approval_rounds + 1)
    return Decision((lapsed, *again.events), again.claim)
