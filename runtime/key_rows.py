"""A key's row in the ledger, and what it means to the call that wants the key.

A row says what became of one business intent, whoever proposed it. The first rule is the conflict: another intent under
the same key runs nothing. ``by_row`` is the whole table; ``abandoned`` is the one row that nobody else works on.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Literal

from . import events as e
from .binding import binding_sha256
from .commands import ChecksDone
from .decision import NOTHING, Decision
from .guardrails import UNJUDGED_TEXT, WITHHELD, WITHHELD_TEXT, result_sha256
from .ledger import Claim, LedgerRow
from .state import CallState, State
from .withheld import guards_results

REPLAYED_WITHOUT_RESULT = "this effect had already happened, without a usable result; nothing ran now"
LEFT_UNKNOWN_TEXT = (
    "the same action was sent before and nobody knows whether it took effect; a person has to settle that; "
    "nothing ran now"
)


def claim(
    state: State,
    call: CallState,
    kind: Literal["approval", "intent"],
    attempt: int,
    valid_until_ms: int,
    over: LedgerRow | None = None,
) -> Claim | None:
    """The claim that goes with an approval request or an intent; None for reads. ``over``: see ``abandoned``."""
    if call.key is None or call.intent_sha256 is None:
        return None
    return Claim(
        tenant=state.tenant,
        key=call.key,
        tool=call.tool,
        call_id=call.call,
        kind=kind,
        intent_sha256=call.intent_sha256,
        args_sha256=call.args_sha256,
        attempt=attempt,
        valid_until_ms=valid_until_ms,
        over=None if over is None else (over.run_id, over.call_id),
    )


def by_row(
    state: State, call: CallState, row: LedgerRow | None, command: ChecksDone | None = None
) -> Decision | None:
    """What the key's row says about this call: a decision, or None for "go on".

    The call has been validated (its key and hashes are set). Rows of the ledger table, in its order. ``command``: the pass
    that looked the row up.
    """
    if row is None or call.key is None:
        return None
    if row.intent_sha256 != call.intent_sha256 and row.status != "rejected":
        return Decision(
            (
                e.CallRejected(
                    call.call,
                    "ledger",
                    "idempotency_conflict",
                    "the same key was used with other arguments; nothing ran",
                ),
            )
        )
    if row.run_id == state.run_id and row.call_id == call.call and row.status != "succeeded":
        return None
    match row.status:
        case "succeeded":
            return _succeeded(state, call, row, command)
        case "waiting_approval":
            return _wait(call, row, "approval")
        case "in_flight":
            return _wait(call, row, "in_flight")
        case "unknown":
            return _wait(call, row, "unknown")
        case "rejected":
            if call.holder_run == row.run_id and call.holder_call == row.call_id:
                return Decision(
                    (
                        e.CallRejected(
                            call.call, "approval", "approval_rejected", "a person rejected this action"
                        ),
                    )
                )
            return None


def _succeeded(state: State, call: CallState, row: LedgerRow, command: ChecksDone | None) -> Decision:
    """Replay the recorded result; where results are judged, once this one was, for this call."""
    if not guards_results(state) or row.result is None:
        return Decision((replayed(state, call, row),))
    about = result_sha256(call.tool, call.args_sha256, "", "", row.result_sha256)
    verdict = None if command is None else command.replay
    if command is None or verdict is None or command.replay_sha256 != about:
        return _wait(call, row, "succeeded")
    value = verdict.verdict if verdict.verdict in ("allow", "deny") else "unknown"
    event = e.ResultGuarded(call.call, value, verdict.code, verdict.revision, about)
    if value == "allow":
        return Decision((event, replayed(state, call, row)))
    text = WITHHELD_TEXT if value == "deny" else UNJUDGED_TEXT
    digest = binding_sha256(call.request_sha256, state.response_id, call.call, "error", WITHHELD, None)
    return Decision((event, e.ResultBound(call.call, "error", WITHHELD, digest, text)))


def _wait(
    call: CallState, row: LedgerRow, why: Literal["in_flight", "approval", "unknown", "succeeded"]
) -> Decision:
    if call.phase == "waiting_key" and (call.holder_run, call.holder_call, call.holder_why) == (
        row.run_id,
        row.call_id,
        why,
    ):
        return NOTHING
    return Decision((e.CallWaiting(call.call, row.key, row.run_id, row.call_id, why),))


def replayed(state: State, call: CallState, row: LedgerRow) -> e.ResultBound:
    """Bind the recorded result of an effect that happened; nothing runs."""
    source = e.ReplayedFrom(row.run_id, row.call_id, row.at_ms, row.args_sha256 != call.args_sha256)
    digest = None if row.result is None else sha256(row.result).digest()
    status: Literal["ok", "error"] = "ok" if row.result is not None else "error"
    code = "replayed" if status == "ok" else "output_invalid"
    binding = binding_sha256(call.request_sha256, state.response_id, call.call, status, code, digest)
    message = "" if status == "ok" else REPLAYED_WITHOUT_RESULT
    return e.ResultBound(call.call, status, code, binding, message, row.result, source)


def abandoned(state: State, call: CallState, command: ChecksDone) -> LedgerRow | None:
    """The key's row, if its effect is unknown and whoever sent it will neither send nor ask again: its run has ended, or
    it is a call of this run that was bound as unknown."""
    row = command.row
    if row is None or row.status != "unknown" or row.intent_sha256 != call.intent_sha256:
        return None
    own = row.run_id == state.run_id
    return row if (row.call_id in state.unknown_calls if own else command.holder_ended) else None


def may_take_over(state: State, call: CallState) -> bool:
    """Whether sending an abandoned effect once more makes no second one: by the key, or by its nature."""
    return state.tools[call.tool].far_side in ("keyed", "natural")


def left_unknown(call: CallState) -> Decision:
    """Nothing here can tell whether an abandoned effect happened, so the call isn't run and nobody waits for it."""
    return Decision((e.CallRejected(call.call, "ledger", "outcome_unknown", LEFT_UNKNOWN_TEXT),))
