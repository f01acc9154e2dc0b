"""Attempts: start, report, settle and reconcile. What a key's row means is decided in ``key_rows.py``.

A time-out, a cancel or a lost executor after dispatch makes an effect unknown, never failed; what happens then depends on
what its far side offers.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from . import events as e
from .binding import request_sha256
from .commands import ClaimLost, Executed, Queried, ResolveCall
from .decision import NOTHING, Decision, refuse, settle
from .key_rows import by_row, claim, replayed
from .ledger import LedgerRow
from .limits import CALL_BACKOFF_MS, MARGIN_MS, QUERIES_MAX, QUERY_BACKOFF_MS, backoff_ms
from .observed import REFUSED_VERSION, version_refusal
from .results import bind_error
from .state import CallState, State
from .tool_cost import cost_of_attempt, cost_short, opens_at, spent_of
from .withheld import guards_results

VALIDITY_LEAST_MS = 1
LIMIT_TEXT = "a limit of this run was reached; the action was not run"


def start(
    state: State,
    call: CallState,
    now_ms: int,
    under: e.Revisions | None,
    verdicts: tuple[e.RungVerdict, ...] = (),
    over: LedgerRow | None = None,
    price_micros: int | None = None,
) -> Decision:
    """The intent of the next attempt, with its claim. The caller has checked order, limits and freshness. ``under``: of
    the last pass over the call."""
    definition = state.tools[call.tool]
    attempt = call.attempt + 1
    remaining = state.deadline_at_ms - now_ms
    validity = max(VALIDITY_LEAST_MS, min(definition.timeout_ms, remaining))
    valid_until = now_ms + validity
    digest = request_sha256(state, call, attempt, under)
    event = e.CallStarted(call.call, attempt, valid_until, digest, verdicts, under, price_micros)
    return Decision((event,), claim=claim(state, call, "intent", attempt, valid_until, over))


def claim_lost(state: State, command: ClaimLost, now_ms: int) -> Decision:
    """Another holder was quicker. ``by_row`` says what that means; a row that says "go on" is looked up again."""
    call = state.calls.get(command.call)
    if call is None or state.phase != "open_calls":
        return NOTHING
    if call.phase == "executed":
        # A retry after a proven failure had freed the key, and another intent took it.
        row = command.row
        done = row.status == "succeeded" and row.intent_sha256 == call.intent_sha256
        if done and not guards_results(state):
            return Decision((replayed(state, call, row),))
        return give_up_retry(state, call, "key_taken", "the same action is being done elsewhere")
    if call.phase not in ("checking", "waiting_key"):
        return NOTHING
    return by_row(state, call, command.row) or NOTHING


# --- what an attempt came to -------------------------------------------------------------------------------------


def executed(state: State, command: Executed, now_ms: int) -> Decision:
    """An executor's report. Late or doubled reports change nothing, except that a late success settles an unknown."""
    name = command.call
    call = state.calls.get(name) or state.unknown_calls.get(name) or state.absent_calls.get(name)
    if call is None or call.attempt != command.attempt or not call.attempt:
        return NOTHING
    unsettled = call.phase == "reconciling" or name in state.unknown_calls
    again = call.phase in _NOT_STARTED or name in state.absent_calls
    if command.outcome == "succeeded" and again and call.key is not None:
        return _applied_after_all(state, call, command)
    if unsettled and command.outcome == "succeeded":
        return _applied(
            state,
            call,
            command.result,
            command.code,
            "executor",
            "reported late",
            met=command.met,
            source=command.source,
            values=command.values,
        )
    if call.phase != "started":
        return NOTHING
    effect = call.key is not None
    if not effect and command.outcome == "succeeded":
        refused = version_refusal(state, call, command.source)
        if refused:
            command = _other_version(command, refused)
    outcome = command.outcome
    if effect and outcome == "failed" and not command.no_effect:
        outcome = "unknown"
    elif not effect and outcome == "unknown":
        outcome = "failed"
    retry_at = _retry_at(state, call, command.retryable, now_ms) if outcome == "failed" else 0
    event = e.CallExecuted(
        call.call,
        call.attempt,
        outcome,
        command.result if outcome == "succeeded" else None,
        sha256(command.result).digest() if command.result is not None and outcome == "succeeded" else None,
        command.code,
        command.safe_message,
        command.retryable,
        retry_at,
        command.duration_ms,
        command.artifact,
        command.size,
        command.progress_sha256,
        command.met,
        command.source,
        command.facts,
        command.values,
        spent_of(call, command, outcome),
    )
    if not effect:
        return Decision((event,))
    if outcome == "succeeded":
        return Decision((event,), settlements=settle(state, call, "succeeded", command.result))
    return Decision((event,), settlements=settle(state, call, "unknown" if outcome == "unknown" else "free"))


def _other_version(command: Executed, code: str) -> Executed:
    """A read whose result can't stand beside what was read before: it failed, and reading again may help if the source
    has the version still (``ctx.same_version``)."""
    return msgspec.structs.replace(
        command,
        outcome="failed",
        code=code,
        safe_message=REFUSED_VERSION[code],
        retryable=code == "version_conflict",
        result=None,
        artifact=None,
        size=0,
        progress_sha256=None,
        met=None,
        facts={},
        values=None,
    )


_NOT_STARTED = frozenset({"checking", "waiting_key", "waiting_approval"})


def _applied_after_all(state: State, call: CallState, command: Executed) -> Decision:
    """The lost attempt reports success after its far side, or a person, had said that there was nothing: it took effect, and
    that is on record whoever has the key by now. Nothing is sent again for it."""
    applied = _applied(
        state,
        call,
        command.result,
        command.code,
        "executor",
        "reported after all",
        met=command.met,
        source=command.source,
        values=command.values,
    )
    if call.phase == "waiting_approval" and call.approval is not None:
        lapsed = e.ApprovalLapsed(call.call, call.approval.approval_id, "settled_elsewhere")
        return Decision((lapsed, *applied.events), settlements=applied.settlements)
    return applied


def lost(state: State, call: CallState, now_ms: int) -> Decision:
    """An attempt that will never report. A read failed and may be tried again within its attempts; an effect is
    unknown, whatever its tool says of itself."""
    effect = call.key is not None
    event = e.CallExecuted(
        call.call,
        call.attempt,
        "unknown" if effect else "failed",
        code="lost",
        safe_message="the attempt was lost",
        retryable=not effect,
        retry_at_ms=now_ms if not effect and attempts_left(state, call) else 0,
    )
    return Decision((event,), settlements=settle(state, call, "unknown"))


def _retry_at(state: State, call: CallState, retryable: bool, now_ms: int) -> int:
    """When a further attempt is due; 0 for never. Bounded by the tool's attempts, the run's and the deadline."""
    if not retryable or not attempts_left(state, call):
        return 0
    at = now_ms + backoff_ms(CALL_BACKOFF_MS, call.attempt)
    return at if at < state.deadline_at_ms else 0


def limit_short(state: State, call: CallState, price_micros: int | None = None) -> str:
    """Which limit of the run stands in the way of one more attempt; empty if none does. The cost of a call isn't set
    aside when it is admitted, so this is asked again before each start. ``price_micros``: as its tool says right now."""
    if state.meters.call_attempts.free < 1:
        return "max_tool_calls"
    definition = state.tools[call.tool]
    if cost_short(state, cost_of_attempt(state, call) if price_micros is None else price_micros):
        return "budget_cost"
    return child_short(state) if definition.kind == "agent" else ""


def child_short(state: State) -> str:
    """Which limit stands in the way of one more child run; empty if none does."""
    if state.depth >= state.limits.depth:
        return "max_depth"
    return "max_children" if state.meters.children.free < 1 else ""


def attempts_left(state: State, call: CallState) -> bool:
    """Whether the tool's own bound, the run's attempts and the cost admit one more attempt."""
    return call.attempt < state.tools[call.tool].max_attempts and not limit_short(state, call)


def retry_barred(state: State, call: CallState) -> bool:
    """Whether a failed attempt stays the last one although its retry is due: a limit is in the way, or its tool is gone."""
    return bool(limit_short(state, call)) or not state.tools[call.tool].offered


# --- reconciliation ----------------------------------------------------------------------------------------------


def queries_left(state: State, call: CallState) -> bool:
    """Whether the far side can still be asked about this effect."""
    return state.tools[call.tool].far_side == "queryable" and call.queries < QUERIES_MAX


def may_resend(state: State, call: CallState) -> bool:
    """Whether an unknown effect may be sent again: the far side takes the key, or its repetition is natural."""
    return (
        state.tools[call.tool].far_side in ("keyed", "natural")
        and not call.resend_denied
        and attempts_left(state, call)
    )


def needs_person(state: State, call: CallState) -> bool:
    """An unknown effect that nothing here can settle."""
    return call.phase == "reconciling" and not queries_left(state, call) and not may_resend(state, call)


def resend_due(state: State, call: CallState, now_ms: int) -> bool:
    """Whether an unknown effect is to be sent again now (after the back-off of its attempt)."""
    return may_resend(state, call) and now_ms >= resend_at(state, call)


def resend_at(state: State, call: CallState) -> int:
    """When an unknown effect may be sent again: the back-off counts from when it became unknown, and its tool's rate holds."""
    return max(call.observed_at_ms + backoff_ms(CALL_BACKOFF_MS, call.attempt), opens_at(state, call))


def queried(state: State, command: Queried, now_ms: int) -> Decision:
    """One answer of the far side. ``absent`` counts only from an authoritative query, and only once the lost attempt
    could not arrive any more when the query was sent (its validity plus the margin were over)."""
    call = state.calls.get(command.call)
    if call is None or call.phase != "reconciling" or command.number != call.queries + 1:
        return NOTHING
    if command.outcome == "applied":
        return _applied(
            state,
            call,
            command.result,
            command.code,
            "query",
            command.reason,
            met=command.met,
            source=command.source,
            values=command.values,
        )
    settled_at = call.valid_until_ms + MARGIN_MS
    authoritative = state.tools[call.tool].query_authoritative
    if command.outcome == "absent" and authoritative and command.asked_at_ms > settled_at:
        return Decision(
            (e.CallReconciled(call.call, "absent", "query", reason=command.reason),),
            settlements=settle(state, call, "free"),
        )
    next_at = now_ms + backoff_ms(QUERY_BACKOFF_MS, call.queries + 1)
    if command.outcome == "absent" and authoritative:
        next_at = max(next_at, settled_at + 1)
    return Decision(
        (e.CallReconciled(call.call, "unknown", "query", reason=command.reason, next_query_at_ms=next_at),)
    )


def _applied(
    state: State,
    call: CallState,
    result: bytes | None,
    code: str,
    by: str,
    reason: str,
    command_id: str = "",
    met: tuple[int, ...] | None = None,
    source: e.Source | None = None,
    values: bytes | None = None,
) -> Decision:
    """It took effect. Without a code its result is shown (null if there is none); with one there is none to show.

    Meanwhile its key may have been given back, or be another call's."""
    shown = None if code else b"null" if result is None else result
    digest = None if shown is None else sha256(shown).digest()
    event = e.CallReconciled(
        call.call,
        "applied",
        by,
        shown,
        digest,
        reason,
        0,
        command_id,
        code,
        met=met,
        source=source,
        values=values,
    )
    sent = claim(state, call, "intent", call.attempt, call.valid_until_ms)
    return Decision((event,), settlements=settle(state, call, "succeeded", shown, sent=sent))


def resolve_call(state: State, command: ResolveCall, now_ms: int, result: bytes | None) -> Decision:
    """A person's word on an unknown effect, in a live, stopped or ended run; the same checks as an approval."""
    call = state.calls.get(command.call) or state.unknown_calls.get(command.call)
    if call is None or not (call.phase == "reconciling" or call.call in state.unknown_calls):
        return refuse("not_unknown", "that call has no unknown effect")
    if state.pins.separate_approver and command.by == state.principal:
        return refuse("same_person", "who asked for the action may not settle it")
    if call.phase == "reconciling" and not needs_person(state, call) and state.phase != "suspended":
        return refuse(
            "being_reconciled", "the runtime is still finding out; try again when it waits for a person"
        )
    if command.outcome == "applied":
        return _applied(state, call, result, "", command.by, command.reason, command.command_id)
    event = e.CallReconciled(
        call.call, "absent", command.by, reason=command.reason, command_id=command.command_id
    )
    return Decision((event,), settlements=settle(state, call, "free"))


def give_up_retry(state: State, call: CallState, code: str, message: str) -> Decision:
    """A failed attempt whose further attempt isn't allowed any more: its failure is the result. Its tool's own words are left
    out where nobody judged them."""
    if guards_results(state) and call.guarded != "allow":
        return Decision((bind_error(state, call, code, message),))
    return Decision((bind_error(state, call, call.code or code, call.safe_message or message),))
