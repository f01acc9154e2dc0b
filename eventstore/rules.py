"""What every store decides alike about the ledger and about waking runs: pure functions over rows."""

from __future__ import annotations

from ..runtime.ledger import Claim, LedgerRow, RunIndex, Settlement

ENDED_STATUS = "terminated"
"""A run with this status has nothing to do ever again; no wake makes it ready."""

_KEY = "key:"


def accepts_claim(held: LedgerRow | None, run_id: str, claim: Claim) -> bool:
    """Whether this run's claim may take a key whose row is ``held``."""
    if held is None or held.status == "rejected":
        return True
    holder = held.run_id, held.call_id
    if held.status == "unknown" and claim.over == holder:
        return held.intent_sha256 == claim.intent_sha256
    return holder == (run_id, claim.call_id) and held.status != "succeeded"


def claimed_row(claim: Claim, run_id: str, epoch: int, now_ms: int) -> LedgerRow:
    """The row after the claim."""
    return LedgerRow(
        tenant=claim.tenant,
        key=claim.key,
        tool=claim.tool,
        status="waiting_approval" if claim.kind == "approval" else "in_flight",
        intent_sha256=claim.intent_sha256,
        args_sha256=claim.args_sha256,
        run_id=run_id,
        call_id=claim.call_id,
        attempt=claim.attempt,
        epoch=epoch,
        valid_until_ms=claim.valid_until_ms,
        at_ms=now_ms,
    )


def settled_row(held: LedgerRow, settlement: Settlement, now_ms: int) -> LedgerRow | None:
    """The row after the settlement; None if the key is free now."""
    if settlement.to == "free":
        return None
    return LedgerRow(
        tenant=held.tenant,
        key=held.key,
        tool=held.tool,
        status=settlement.to,
        intent_sha256=held.intent_sha256,
        args_sha256=held.args_sha256,
        run_id=held.run_id,
        call_id=held.call_id,
        attempt=held.attempt,
        epoch=held.epoch,
        valid_until_ms=held.valid_until_ms,
        at_ms=now_ms,
        result=settlement.result,
        result_sha256=settlement.result_sha256,
    )


def is_at_rest(held: LedgerRow | None) -> bool:
    """Whether whoever waits for this key has something to look at: it is free, or its holder may have stopped caring."""
    return held is None or held.status in ("succeeded", "rejected", "unknown")


def is_ended(index: RunIndex) -> bool:
    """Whether the run is over for good."""
    return index.status == ENDED_STATUS


def waits_for_key(key: bytes) -> str:
    """The ``waiting_for`` of a run that waits for this ledger key."""
    return _KEY + key.hex()


def lost_wake(before: str, after: str) -> bytes | None:
    """The key that a run begins to wait for, given its ``waiting_for`` before and after an append; else None.

    The row may have been settled between the refused claim and this append, and a settlement wakes only those who wait
    already. So whoever begins to wait for a key on which nobody works by now (``is_at_rest``) is ready at once.
    """
    if after == before or not after.startswith(_KEY):
        return None
    try:
        return bytes.fromhex(after[len(_KEY) :])
    except ValueError:
        return None
