"""What every store decides alike about the ledger and about waking runs: pure functions over rows."""

from __future__ import annotations

from hashlib import sha256
from typing import Final, get_args

import msgspec

from ..runtime.ledger import Claim, LedgerRow, LedgerStatus, RunIndex, Settlement
from .port import Append

_STATUSES = frozenset(get_args(LedgerStatus))

ENDED_STATUS = "terminated"
"""A run with this status has nothing to do ever again; no wake makes it ready."""


class KeyRows(msgspec.Struct, frozen=True, gc=False):
    """A key's row, and the earlier ones behind it, oldest first. Nothing is behind no row."""

    held: LedgerRow | None
    earlier: tuple[LedgerRow, ...] = ()


EARLIER_MAX: Final = 32
"""Rows behind a row: so often is an effect of unknown outcome taken over, then it waits for a person."""

_EFFECT_MAY_BE: Final = frozenset(("in_flight", "unknown"))
"""Statuses under which something may be on its way to the far side."""


def accepts_claim(rows: KeyRows, run_id: str, claim: Claim) -> bool:
    """Whether this run's claim may take a key with these rows."""
    held = rows.held
    if held is None or held.status == "rejected":
        return True
    holder = held.run_id, held.call_id
    if held.status == "unknown" and claim.over == holder:
        return held.intent_sha256 == claim.intent_sha256 and len(rows.earlier) < EARLIER_MAX
    return holder == (run_id, claim.call_id) and held.status != "succeeded"


def claimed(rows: KeyRows, run_id: str, epoch: int, claim: Claim, now_ms: int) -> KeyRows:
    """The key after a claim that is accepted."""
    held, row = rows.held, claimed_row(claim, run_id, epoch, now_ms)
    if held is not None and held.status == "unknown" and claim.over == (held.run_id, held.call_id):
        return KeyRows(row, (*rows.earlier, held))
    return KeyRows(row, rows.earlier)


def settled(rows: KeyRows, run_id: str, epoch: int, settlement: Settlement, now_ms: int) -> KeyRows:
    """The key after this run's settlement; the same rows if it changes nothing."""
    held, earlier = rows.held, rows.earlier
    if held is not None and is_holder(held, run_id, settlement):
        if settlement.to == "free" or (settlement.to == "rejected" and earlier):
            return _given_back(earlier, now_ms)
        done = _settled_row(_as_sent(held, epoch, settlement, now_ms), settlement, now_ms)
        return KeyRows(done, () if done.status == "succeeded" else earlier)
    own = next((row for row in earlier if is_holder(row, run_id, settlement)), None)
    if settlement.to == "free" and own is not None:
        return KeyRows(held, tuple(row for row in earlier if row is not own))
    if settlement.to != "succeeded" or (own is None and settlement.sent is None):
        return rows
    if own is None:
        assert settlement.sent is not None
        own = claimed_row(settlement.sent, run_id, epoch, now_ms)
    done = _settled_row(own, settlement, now_ms)
    if held is None or held.status in ("rejected", "waiting_approval"):
        return KeyRows(done)
    if held.status == "unknown" and held.intent_sha256 == done.intent_sha256:
        return KeyRows(done)
    if held.status in _EFFECT_MAY_BE:
        return KeyRows(held, (*(row for row in earlier if not is_holder(row, run_id, settlement)), done))
    return rows


def _given_back(earlier: tuple[LedgerRow, ...], now_ms: int) -> KeyRows:
    """The key without the row that was in front: the earlier effect that is known to have happened, or the latest that may
    have. The time is now: whoever waits has something new to look at."""
    if not earlier:
        return KeyRows(None)
    back = next((row for row in earlier if row.status == "succeeded"), earlier[-1])
    behind = () if back.status == "succeeded" else earlier[:-1]
    return KeyRows(msgspec.structs.replace(back, at_ms=now_ms), behind)


def _as_sent(held: LedgerRow, epoch: int, settlement: Settlement, now_ms: int) -> LedgerRow:
    """The holder's row; where it asks a person again about an effect that happened after all, as that was sent."""
    sent = settlement.sent
    if settlement.to == "succeeded" and sent is not None and held.status == "waiting_approval":
        return claimed_row(sent, held.run_id, epoch, now_ms)
    return held


def is_holder(held: LedgerRow, run_id: str, settlement: Settlement) -> bool:
    """Whether this run's settlement is about this row."""
    return (held.run_id, held.call_id) == (run_id, settlement.call_id)


def rows_to_claim(rows: KeyRows, request: Append, claim: Claim, now_ms: int) -> KeyRows:
    """The claimed key as the claim finds it, after the settlements of its append that come before it."""
    for settlement in request.settlements[: request.settled_first]:
        if settlement.key == claim.key:
            rows = settled(rows, request.run_id, request.epoch, settlement, now_ms)
    return rows


def claim_needs_earlier(request: Append) -> bool:
    """Whether what is behind the claimed key's row matters to this claim. It rarely does, and costs a store a look."""
    return request.settled_first > 0 or (request.claim is not None and request.claim.over is not None)


def settling_needs_earlier(held: LedgerRow | None, run_id: str, settlement: Settlement) -> bool:
    """The same of a settlement."""
    return held is not None and (
        settlement.to in ("free", "rejected") or not is_holder(held, run_id, settlement)
    )


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


def _settled_row(held: LedgerRow, settlement: Settlement, now_ms: int) -> LedgerRow:
    assert settlement.to != "free"
    return msgspec.structs.replace(
        held,
        status=settlement.to,
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
