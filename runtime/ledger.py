"""The effect ledger as plain data: rows, claims and settlements.

One row per (tenant, idempotency key). A row says what became of one business intent; whoever proposes the same
intent again, under whatever call id, meets the row. The rows live in the store and change only inside the append
that carries the matching event, so log and ledger can't drift apart. What to do about a row is decided in
``key_rows.py``; nothing here decides.
"""

from __future__ import annotations

from typing import Literal

import msgspec

LedgerStatus = Literal["waiting_approval", "rejected", "in_flight", "succeeded", "unknown"]
"""``waiting_approval``: an approval was requested, nothing sent. ``rejected``: a person said no; runs that waited for
this decision read it here, anyone else finds the key free. ``in_flight``: an intent is on record. ``succeeded``: the
effect happened, its result is in the row. ``unknown``: it may have happened; see reconciliation. A key whose attempt
failed with proof that nothing took effect has no row: it is free.

Behind a row stand the *earlier* ones: whoever takes an unknown effect over doesn't learn what became of the attempt before
its own. If its own comes to nothing, the earlier row is back, unknown or by then succeeded, and the key isn't free."""


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the store knows about one idempotency key. ``at_ms`` is the store time of the last change."""

    tenant: str
    key: bytes
    tool: str
    status: LedgerStatus
    intent_sha256: bytes
    args_sha256: bytes
    run_id: str
    call_id: str
    attempt: int
    epoch: int
    valid_until_ms: int
    at_ms: int
    result: bytes | None = None
    result_sha256: bytes | None = None


class Claim(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Take a key in the append of the approval request (``approval``) or of the intent (``intent``).

    Succeeds if the key has no row, or its row is ``rejected``, or it is held by the same (run, call) and isn't
    ``succeeded``, or it is ``unknown`` with this intent and held by ``over``; the row is then this claim's (status
    ``waiting_approval`` or ``in_flight``). Otherwise the append answers ``ClaimTaken`` with the row and appends nothing.
    At most one claim an append.

    ``over``: the (run, call) that left the effect unknown and will never send it again, where the far side takes the
    same key or repetition twice; its row stays behind this one. None: an unknown row is taken by nobody else.
    """

    tenant: str
    key: bytes
    tool: str
    call_id: str
    kind: Literal["approval", "intent"]
    intent_sha256: bytes
    args_sha256: bytes
    attempt: int
    valid_until_ms: int
    over: tuple[str, str] | None = None


class Settlement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Change a row that this (run, call) holds, in the append that carries the fact.

    ``free`` removes the row (proof that nothing took effect, a reject, a lapse, a cancel before any attempt), and the latest
    earlier one is back if there is any. Runs that wait for the key become ready in the same transaction. A row held by
    another (run, call) isn't touched, but an earlier one of this (run, call) is.

    ``sent``: the claim under which the effect was sent, where it turned out to have happened after its key had been given
    back or taken over. What is known to have happened is in the ledger then: at once if nothing under this key may be on
    its way, or what may be is this very intent; else behind the row of whoever has the key.
    """

    tenant: str
    key: bytes
    call_id: str
    to: Literal["succeeded", "unknown", "in_flight", "rejected", "free"]
    result: bytes | None = None
    result_sha256: bytes | None = None
    sent: Claim | None = None


class RunIndex(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The derived row that lists and timers read; rebuilt from the log at any time, never trusted over it.

    ``wake_at_ms`` is store time in milliseconds; None means no timer. ``waiting_for`` is empty or one of
    ``approval:<id>``, ``answer:<question id>``, ``key:<hex>``, ``child:<run id>``, ``timer``, ``person:<call id>`` (an unknown effect), the first that applies.
    ``waiting_keys``: every ledger key that a call of the run waits for, in order, also where ``waiting_for`` names
    something else; a settlement of any of them wakes the run.
    """

    status: str
    outcome: str = ""
    reason: str = ""
    waiting_for: str = ""
    wake_at_ms: int | None = None
    waiting_keys: tuple[bytes, ...] = ()
