"""What every store decides alike about the ledger and about waking runs: pure functions over rows."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import get_args

from ..runtime.ledger import Claim, LedgerRow, LedgerStatus, RunIndex, Settlement

_STATUSES = frozenset(get_args(LedgerStatus))

ENDED_STATUS = "terminated"
"""A run with this status has nothing to do ever again; no wake makes it ready."""


def accepts_claim(held: LedgerRow | None, run_id: str, claim: Claim) -> bool:
    """Whether this run's claim may take a key whose row is ``held``."""
    if held is None or held.status == "rejected":
        return True
    holder = held.run_id, held.call_id
    if held.status == "unknown" and claim.over == holder:
        return held.intent_sha256 == claim.intent_sha256
    return holder == (run_id, claim.call_id) and held.status != "succeeded"


def row_to_claim(
    held: LedgerRow | None, run_id: str, key: bytes, first: Sequence[Settlement]
) -> LedgerRow | None:
    """The claimed key's row as the claim finds it, after the settlements that come before it."""
    for settlement in first:
        if held is not None and settlement.key == key and is_holder(held, run_id, settlement):
            held = settled_row(held, settlement, held.at_ms)
    return held


def is_holder(held: LedgerRow, run_id: str, settlement: Settlement) -> bool:
    """Whether this run's settlement is about this row; else it changes nothing."""
    return (held.run_id, held.call_id) == (run_id, settlement.call_id)


def row_to_settle(
    held: LedgerRow | None, run_id: str, epoch: int, settlement: Settlement, now_ms: int
) -> LedgerRow | None:
    """The row that this run's settlement changes; None if it changes nothing. A free key has none, unless an effect that
    is known to have happened by now takes it again (``Settlement.if_free``)."""
    if held is not None and is_holder(held, run_id, settlement):
        return held
    free = held is None or held.status == "rejected"
    if free and settlement.if_free is not None and settlement.to == "succeeded":
        return claimed_row(settlement.if_free, run_id, epoch, now_ms)
    return None


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


def is_sound(row: LedgerRow) -> bool:
    """Whether a row read back holds what one can hold, with the result that its digest names."""
    texts = (row.tenant, row.tool, row.run_id, row.call_id)
    numbers: tuple[object, ...] = (row.attempt, row.epoch, row.valid_until_ms, row.at_ms)
    digests: tuple[object, ...] = (row.key, row.intent_sha256, row.args_sha256)
    result: object = row.result
    return (
        row.status in _STATUSES
        and all(type(text) is str for text in texts)
        and all(type(number) is int for number in numbers)
        and all(type(digest) is bytes for digest in digests)
        and (type(result) is bytes or result is None)
        and row.result_sha256 == (None if row.result is None else sha256(row.result).digest())
    )


def is_at_rest(held: LedgerRow | None) -> bool:
    """Whether whoever waits for this key has something to look at: it is free, or its holder may have stopped caring."""
    return held is None or held.status in ("succeeded", "rejected", "unknown")


def is_ended(index: RunIndex) -> bool:
    """Whether the run is over for good."""
    return index.status == ENDED_STATUS


def new_waits(before: tuple[bytes, ...], after: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The keys that a run begins to wait for in an append, given its ``waiting_keys`` before and after.

    A row may have been settled between the refused claim and this append, and a settlement wakes only those who wait
    already. So whoever begins to wait for a key on which nobody works by now (``is_at_rest``) is ready at once.
    """
    return after if not before else tuple(key for key in after if key not in before)
