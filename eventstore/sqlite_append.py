"""Appends in SQL: the log row, the run's row, the ledger and the wakes that one append carries."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from ..runtime.errors import BugError, DamagedFile
from ..runtime.ledger import Claim, LedgerRow, Settlement
from .blob_coding import Part, packed_parts
from .chain import check_follows
from .port import (
    APPEND_SCHEMA_VERSION,
    AlreadyDone,
    Append,
    AppendAnswer,
    Appended,
    ClaimTaken,
    Conflict,
    Fenced,
)
from .rules import (
    ENDED_STATUS,
    KeyRows,
    accepts_claim,
    claim_needs_earlier,
    claimed,
    is_at_rest,
    is_ended,
    is_sound,
    new_waits,
    rows_to_claim,
    settled,
    settling_needs_earlier,
)
from .run_pages import rest_of

PUT_NOTED_MS = 3_600_000
"""How often it is noted that a blob that is there was put again."""

CACHED_RUNS_MAX = 20_000

_GO_ON = (
    "UPDATE runs SET seq = ?, head = ?, updated_at_ms = ?, status = ?, reason = ?, wake_at_ms = ? "
    "WHERE run_key = ? AND epoch = ? AND seq = ? AND head = ?"
)
"""wake_at_ms is another one after each append, and its index has no entry of a run that somebody owns."""
_MOVE = (
    "UPDATE runs SET seq = ?, head = ?, updated_at_ms = ?, status = ?, reason = ?, wake_at_ms = ?, outcome = ?, "
    "waiting_for = ?, rest = ?, rested_at_ms = ?, owner = ?, ready_at_ms = ? "
    "WHERE run_key = ? AND epoch = ? AND seq = ? AND head = ?"
)
_CREATE = (
    "INSERT INTO runs (run_id, seq, epoch, head, updated_at_ms, created_at_ms, tenant, agent, operation_id, "
    "parent_id, root_id, status, outcome, reason, waiting_for, rest, rested_at_ms, wake_at_ms, owner, ready_at_ms) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_APPEND = (
    "INSERT INTO appends (run_key, first_seq, event_count, epoch, schema_version, at_ms, append_id, causation, "
    "body, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
LEDGER_COLUMNS = (
    "tenant, key, tool, status, intent_sha256, args_sha256, run_id, call_id, attempt, epoch, valid_until_ms, "
    "at_ms, result, result_sha256"
)
PUT_EARLIER = f"INSERT INTO ledger_earlier (place, {LEDGER_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
PUT_PART = "INSERT INTO blob_parts (sha256, part, coding, data) VALUES (?, ?, ?, ?)"


class _Known:
    """What the thread remembers of a run's row: enough to tell which columns an append changes."""

    __slots__ = (
        "at_ms",
        "outcome",
        "owner",
        "ready_at_ms",
        "rest",
        "rested_at_ms",
        "run_key",
        "tenant",
        "waiting_for",
        "waiting_keys",
    )

    def __init__(
        self,
        waiting_keys: tuple[bytes, ...],
        run_key: int,
        tenant: str,
        outcome: str,
        waiting_for: str,
        rest: str,
        rested_at_ms: int | None,
        owner: str,
        ready_at_ms: int | None,
        at_ms: int,
    ) -> None:
        self.run_key = run_key
        self.tenant = tenant
        self.outcome = outcome
        self.waiting_for = waiting_for
        self.rest = rest
        self.rested_at_ms = rested_at_ms
        self.owner = owner
        self.ready_at_ms = ready_at_ms
        self.at_ms = at_ms
        self.waiting_keys = waiting_keys

    def parked(self) -> tuple[str, str, str, int | None, str, int | None]:
        """The columns whose indexes have an entry of an owned run, in the order of ``_MOVE``."""
        return (
            self.outcome,
            self.waiting_for,
            self.rest,
            self.rested_at_ms,
            self.owner,
            self.ready_at_ms,
        )


class SqliteAppends:
    """``connection`` is asked for on the store's thread only. What a transaction makes ready is gathered, and told by
    ``take_woken`` once it is committed; ``forget`` drops what a rollback makes untrue."""

    def __init__(
        self, connection: Callable[[], sqlite3.Connection], now_ms: Callable[[], int], path: str = ""
    ) -> None:
        self._path = path
        self._connection = connection
        self._now_ms = now_ms
        self._known: dict[str, _Known] = {}
        self._woken: list[str] = []
        self._perhaps_woken: list[str] = []

    def mark(self) -> int:
        """A place in what is gathered, for ``forget``."""
        return len(self._woken)

    def forget(self, mark: int, *, perhaps_done: bool = False) -> None:
        """Everything since ``mark`` was rolled back; or ``perhaps_done``, by a COMMIT that failed: what is then found done
        gathers nothing again, and to look at a run once too often costs nothing."""
        self._known.clear()
        if perhaps_done:
            self._perhaps_woken += self._woken[mark:]
        del self._woken[mark:]

    def take_woken(self) -> Sequence[str]:
        """The runs that commits made ready since the last call."""
        if not (self._woken or self._perhaps_woken):
            return ()
        woken = list(dict.fromkeys(self._perhaps_woken + self._woken))
        self._woken.clear()
        self._perhaps_woken.clear()
        return woken

    def _all(self, sql: str, values: Iterable[Any] = ()) -> list[Any]:
        return self._connection().execute(sql, tuple(values)).fetchall()

    def _one(self, sql: str, values: Sequence[Any] = ()) -> Any:
        return self._connection().execute(sql, values).fetchone()

    # --- append ----------------------------------------------------------------------------------------------------

    def append(self, request: Append) -> AppendAnswer:
        now_ms = self._now_ms()
        known = self._known.get(request.run_id) or self._look_up(request.run_id)
        if known is None and request.create is None:
            return Conflict(0)
        if known is not None and (refused := self._out_of_line(request, known)) is not None:
            return refused
        rows = KeyRows(None)
        if request.claim is not None:
            rows = rows_to_claim(self._rows_to_claim(request, request.claim), request, request.claim, now_ms)
            if rows.held is not None and not accepts_claim(rows, request.run_id, request.claim):
                return self._refusal(request) or ClaimTaken(rows.held)
        seq = request.expected_seq + request.event_count
        marked = known is not None and known.ready_at_ms is not None
        waited = () if known is None else known.waiting_keys
        if known is None:
            known = self._create(request, now_ms)
        elif not self._advance(request, known, seq, now_ms):
            return self._refusal(request) or Conflict(seq)
        self._connection().execute(
            _APPEND,
            (
                known.run_key,
                request.expected_seq + 1,
                request.event_count,
                request.epoch,
                APPEND_SCHEMA_VERSION,
                request.at_ms,
                request.append_id,
                request.causation,
                request.body,
                request.hash,
            ),
        )
        for digest, data in request.blobs:
            self.put_blob(digest, len(data), packed_parts(data))
        mark = len(self._woken)
        for settlement in request.settlements[: request.settled_first]:
            self._settle(request, settlement, now_ms)
        if request.claim is not None:
            # As the settlements before it have left the key, which is how it was judged.
            after = claimed(rows, request.run_id, request.epoch, request.claim, now_ms)
            self._put_key(request.claim.tenant, request.claim.key, rows, after)
        for settlement in request.settlements[request.settled_first :]:
            self._settle(request, settlement, now_ms)
        for run_id in request.wake_runs:
            self._wake(run_id, now_ms)
        begun = new_waits(waited, request.index.waiting_keys)
        if any(is_at_rest(self.ledger_row(known.tenant, key)) for key in begun):
            self._wake(request.run_id, now_ms)
        taken = marked and known.ready_at_ms is None and request.run_id not in self._woken[mark:]
        return Appended(seq, now_ms, taken)

    def _out_of_line(self, request: Append, known: _Known) -> AppendAnswer | None:
        """A writer that isn't the run's any more is told so; one that is has a bug, and it is raised."""
        try:
            check_follows(request, known.tenant, known.at_ms)
        except BugError:
            refusal = self._refusal(request)
            if refusal is None:
                raise
            return refusal
        return None

    def _look_up(self, run_id: str) -> _Known | None:
        row = self._one(
            "SELECT run_key, tenant, outcome, waiting_for, rest, rested_at_ms, owner, ready_at_ms, updated_at_ms "
            "FROM runs WHERE run_id = ?",
            (run_id,),
        )
        return None if row is None else self._remember(run_id, _Known(self._waiting_keys(row[0]), *row))

    def _waiting_keys(self, run_key: int) -> tuple[bytes, ...]:
        rows = self._all("SELECT key FROM key_waits WHERE run_key = ? ORDER BY key", (run_key,))
        return tuple(key for (key,) in rows)

    def _wait_for(self, known: _Known, keys: tuple[bytes, ...]) -> None:
        if keys == known.waiting_keys:
            return
        if known.waiting_keys:
            self._connection().execute("DELETE FROM key_waits WHERE run_key = ?", (known.run_key,))
        self._connection().executemany(
            "INSERT INTO key_waits (run_key, key) VALUES (?, ?)", ((known.run_key, key) for key in keys)
        )
        known.waiting_keys = keys

    def _remember(self, run_id: str, known: _Known) -> _Known:
        if len(self._known) >= CACHED_RUNS_MAX:
            self._known.clear()
        self._known[run_id] = known
        return known

    def _refusal(self, request: Append) -> AppendAnswer | None:
        """Why this append can't follow the run's last row; None if it can."""
        row = self._one("SELECT run_key, seq, epoch, head FROM runs WHERE run_id = ?", (request.run_id,))
        if row is None:
            return None if request.create is not None else Conflict(0)
        run_key, seq, epoch, head = row
        if request.epoch < epoch:
            # Before "already done": a ghost whose append was committed must not go on to act on it.
            return Fenced(epoch)
        if (request.epoch, request.expected_seq, request.prev_hash) == (epoch, seq, head):
            return None
        stored = self._one(
            "SELECT event_count, hash FROM appends WHERE run_key = ? AND first_seq = ?",
            (run_key, request.expected_seq + 1),
        )
        if stored is not None and stored[1] == request.hash:
            return AlreadyDone(request.expected_seq + stored[0], self._now_ms())
        return Conflict(seq)

    def _create(self, request: Append, now_ms: int) -> _Known:
        create, index = request.create, request.index
        assert create is not None
        owner = "" if request.release else request.host_id
        rest = rest_of(index)
        known = _Known(
            (),
            0,
            create.tenant,
            index.outcome,
            index.waiting_for,
            rest,
            request.at_ms if rest else None,
            owner,
            None,
            request.at_ms,
        )
        known.ready_at_ms = self._ready_at(request, known, now_ms)
        cursor = self._connection().execute(
            _CREATE,
            (
                request.run_id,
                request.event_count,
                request.epoch,
                request.hash,
                request.at_ms,
                request.at_ms,
                create.tenant,
                create.agent,
                create.operation_id,
                create.parent_id,
                create.root_id,
                index.status,
                index.outcome,
                index.reason,
                index.waiting_for,
                rest,
                known.rested_at_ms,
                index.wake_at_ms,
                owner,
                known.ready_at_ms,
            ),
        )
        assert cursor.lastrowid is not None
        known.run_key = cursor.lastrowid
        self._wait_for(known, index.waiting_keys)
        return self._remember(request.run_id, known)

    def _advance(self, request: Append, known: _Known, seq: int, now_ms: int) -> bool:
        """Move the run's row on; False if it isn't where the append expects it."""
        index = request.index
        owner = "" if request.release else known.owner
        mark = len(self._woken)
        ready_at_ms = self._ready_at(request, known, now_ms)
        rest = rest_of(index)
        rested_at_ms = request.at_ms if rest else None
        values = (seq, request.hash, request.at_ms, index.status, index.reason, index.wake_at_ms)
        place = (known.run_key, request.epoch, request.expected_seq, request.prev_hash)
        parked = (
            index.outcome,
            index.waiting_for,
            rest,
            rested_at_ms,
            owner,
            ready_at_ms,
        )
        # SQLite rewrites an index entry whenever its column is named in SET, changed or not.
        if parked == known.parked():
            done = self._connection().execute(_GO_ON, values + place).rowcount
        else:
            done = self._connection().execute(_MOVE, values + parked + place).rowcount
        if done != 1:
            del self._woken[mark:]
            return False
        known.outcome, known.waiting_for, known.rest, known.rested_at_ms = parked[:4]
        known.owner, known.ready_at_ms = parked[4:]
        known.at_ms = request.at_ms
        self._wait_for(known, index.waiting_keys)
        return True

    def _ready_at(self, request: Append, known: _Known, now_ms: int) -> int | None:
        """Since when the run is ready after this append. An owner that goes on has seen what woke it; one that
        releases may have decided before the wake, so the mark stays."""
        if is_ended(request.index):
            return None
        ready_at_ms = known.ready_at_ms if request.release or request.ready else None
        if request.ready:
            self._woken.append(request.run_id)
            return now_ms if ready_at_ms is None else ready_at_ms
        return ready_at_ms

    def _wake(self, run_id: str, now_ms: int) -> None:
        done = self._connection().execute(
            "UPDATE runs SET ready_at_ms = coalesce(ready_at_ms, ?) WHERE run_id = ? AND status <> ?",
            (now_ms, run_id, ENDED_STATUS),
        )
        if done.rowcount:
            self._known.pop(run_id, None)
            self._woken.append(run_id)

    # --- the ledger ------------------------------------------------------------------------------------------------

    def ledger_row(self, tenant: str, key: bytes) -> LedgerRow | None:
        found = self._one(f"SELECT {LEDGER_COLUMNS} FROM ledger WHERE tenant = ? AND key = ?", (tenant, key))
        if found is None:
            return None
        return self._sound(LedgerRow(**named(LEDGER_COLUMNS, found)))

    def _sound(self, row: LedgerRow) -> LedgerRow:
        if not is_sound(row):
            raise DamagedFile(self._path, f"the ledger's row of key {row.key.hex()} was changed")
        return row

    def _rows_to_claim(self, request: Append, claim: Claim) -> KeyRows:
        held = self.ledger_row(claim.tenant, claim.key)
        if held is None or not claim_needs_earlier(request):
            return KeyRows(held)
        return KeyRows(held, self._earlier(claim.tenant, claim.key))

    def _earlier(self, tenant: str, key: bytes) -> tuple[LedgerRow, ...]:
        rows = self._all(
            f"SELECT {LEDGER_COLUMNS} FROM ledger_earlier WHERE tenant = ? AND key = ? ORDER BY place",
            (tenant, key),
        )
        return tuple(self._sound(LedgerRow(**named(LEDGER_COLUMNS, row))) for row in rows)

    def _put_key(self, tenant: str, key: bytes, before: KeyRows, after: KeyRows) -> None:
        if after.held is None:
            self._connection().execute("DELETE FROM ledger WHERE tenant = ? AND key = ?", (tenant, key))
        elif after.held is not before.held:
            self._put_ledger_row(after.held)
        has_happened = after.held is not None and after.held.status == "succeeded"
        if after.earlier == before.earlier and not has_happened:
            return  # or nobody looked: they are as they were
        self._connection().execute("DELETE FROM ledger_earlier WHERE tenant = ? AND key = ?", (tenant, key))
        for place, row in enumerate(after.earlier):
            self._connection().execute(PUT_EARLIER, (place, *msgspec.structs.astuple(row)))

    def _put_ledger_row(self, row: LedgerRow) -> None:
        self._connection().execute(
            f"INSERT OR REPLACE INTO ledger ({LEDGER_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            msgspec.structs.astuple(row),
        )

    def _settle(self, request: Append, settlement: Settlement, now_ms: int) -> None:
        found = self.ledger_row(settlement.tenant, settlement.key)
        earlier: tuple[LedgerRow, ...] = ()
        if settling_needs_earlier(found, request.run_id, settlement):
            earlier = self._earlier(settlement.tenant, settlement.key)
        before = KeyRows(found, earlier)
        after = settled(before, request.run_id, request.epoch, settlement, now_ms)
        if after is before:
            return
        self._put_key(settlement.tenant, settlement.key, before, after)
        waiters = self._all(
            "SELECT run_id FROM runs JOIN key_waits USING (run_key) WHERE key = ? AND tenant = ?",
            (settlement.key, settlement.tenant),
        )
        for (waiter,) in waiters:
            self._wake(waiter, now_ms)

    # --- blobs -----------------------------------------------------------------------------------------------------

    def put_blob(self, digest: bytes, size_bytes: int, parts: Sequence[Part]) -> None:
        now_ms = self._now_ms()
        done = self._connection().execute(
            "INSERT OR IGNORE INTO blobs (sha256, size_bytes, parts, put_at_ms) VALUES (?, ?, ?, ?)",
            (digest, size_bytes, len(parts), now_ms),
        )
        if not done.rowcount:
            self._connection().execute(
                "UPDATE blobs SET put_at_ms = ? WHERE sha256 = ? AND put_at_ms < ?",
                (now_ms, digest, now_ms - PUT_NOTED_MS),
            )
        else:
            self._connection().executemany(
                PUT_PART, ((digest, part, coding, kept) for part, (coding, kept) in enumerate(parts))
            )


def named(columns: str, row: Sequence[Any]) -> dict[str, Any]:
    """The row's fields by the names of its columns."""
    return dict(zip(columns.split(", "), row, strict=True))
