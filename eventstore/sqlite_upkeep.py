"""The SQL of a store's own upkeep. Each method is one job, as in ``sqlite_rows``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from ..runtime.errors import ConflictError, RunNotFound
from ..runtime.ledger import LedgerRow
from .archive import (
    PART_BYTES,
    AppendRecord,
    BlobRecord,
    EarlierRecord,
    HoldRecord,
    LedgerRecord,
    PartRecord,
    Record,
    RunRecord,
    SwitchRecord,
)
from .blob_coding import packed
from .port import RunRow, StoredAppend
from .run_pages import rest_of
from .sqlite_append import LEDGER_COLUMNS, PUT_EARLIER, PUT_PART, named
from .sqlite_rows import FAULTS_MAX, RUN_COLUMNS, SqliteRows
from .upkeep import ASTRAY, EarlierRow


class SqliteUpkeep(SqliteRows):
    """Everything that a ``SqliteStore`` does with its connection."""

    def reindex(self, row: RunRow) -> bool:
        """See ``Upkeep.reindex``."""
        index = row.index
        rest = rest_of(index)
        changed = self._connection().execute(
            "UPDATE runs SET tenant = ?, agent = ?, operation_id = ?, parent_id = ?, root_id = ?, created_at_ms = ?, "
            "updated_at_ms = ?, epoch = max(epoch, ?), status = ?, outcome = ?, reason = ?, waiting_for = ?, rest = ?, "
            "rested_at_ms = ?, wake_at_ms = ? WHERE run_id = ? AND seq = ? AND head = ?",
            (
                row.tenant,
                row.agent,
                row.operation_id,
                row.parent_id,
                row.root_id,
                row.created_at_ms,
                row.updated_at_ms,
                row.epoch,
                index.status,
                index.outcome,
                index.reason,
                index.waiting_for,
                rest,
                row.updated_at_ms if rest else None,
                index.wake_at_ms,
                row.run_id,
                row.seq,
                row.head,
            ),
        )
        if not changed.rowcount:
            return False
        self._known.pop(row.run_id, None)
        known = self._look_up(row.run_id)
        assert known is not None
        self._wait_for(known, index.waiting_keys)
        self._wake(row.run_id, self._now_ms())
        self._known.pop(row.run_id, None)
        return True

    def lost_logs(self, after: int, limit: int) -> list[tuple[int, StoredAppend]]:
        """See ``Upkeep``."""
        lost = self._all(
            "SELECT DISTINCT run_key FROM appends WHERE run_key > ? "
            "AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.run_key = appends.run_key) ORDER BY run_key LIMIT ?",
            (after, limit),
        )
        return [(key, self.rows_of(key, "", 0, 1)[0]) for (key,) in lost]

    def adopt(self, number: int, run_id: str) -> bool:
        """See ``Upkeep``."""
        made = self._connection().execute(
            "INSERT OR IGNORE INTO runs (run_key, run_id, seq, epoch, head, updated_at_ms, created_at_ms, tenant, agent, "
            "operation_id, parent_id, root_id, status, outcome, reason, waiting_for, owner) "
            "SELECT run_key, ?, first_seq + event_count - 1, epoch, hash, at_ms, at_ms, '', '', '', '', '', '', '', '', '', '' "
            "FROM appends WHERE run_key = ? ORDER BY first_seq DESC LIMIT 1",
            (run_id, number),
        )
        self._known.pop(run_id, None)
        return made.rowcount == 1

    def runs_in_order(self, after: str, limit: int) -> list[RunRow]:
        """See ``Upkeep``."""
        key = 0
        if after:
            last = self._one("SELECT run_key FROM runs WHERE run_id = ?", (after,))
            if last is None:
                raise RunNotFound(after)
            key = last[0]
        rows = self._all(
            f"SELECT {RUN_COLUMNS} FROM runs WHERE run_key > ? ORDER BY run_key LIMIT ?", (key, limit)
        )
        return [self._run_row(row) for row in rows]

    def blob_names(self, after: bytes, limit: int) -> list[bytes]:
        """See ``Upkeep``."""
        rows = self._all("SELECT sha256 FROM blobs WHERE sha256 > ? ORDER BY sha256 LIMIT ?", (after, limit))
        return [name for (name,) in rows]

    def earlier_rows(self, after: tuple[str, bytes, int] | None, limit: int) -> list[EarlierRow]:
        """See ``Upkeep``."""
        rows = self._all(
            f"SELECT place, {LEDGER_COLUMNS} FROM ledger_earlier WHERE ? OR (tenant, key, place) > (?, ?, ?) "
            "ORDER BY tenant, key, place LIMIT ?",
            (after is None, *(after or ("", b"", 0)), limit),
        )
        return [EarlierRow(row[0], LedgerRow(**named(LEDGER_COLUMNS, row[1:]))) for row in rows]

    # --- pruning ---------------------------------------------------------------------------------------------------

    def prune(self, run_id: str, seq: int, head: bytes) -> bool:
        """See ``Upkeep``."""
        pruned = self._connection().execute(
            "UPDATE runs SET pruned_at_ms = ?, epoch = epoch + 1, owner = '' "
            "WHERE run_id = ? AND seq = ? AND head = ? AND status = 'terminated' AND damaged = '' AND pruned_at_ms = 0 "
            "AND NOT EXISTS (SELECT 1 FROM runs AS one WHERE one.root_id = CASE WHEN runs.root_id = '' THEN runs.run_id "
            "ELSE runs.root_id END AND one.root_id <> '' AND one.status <> 'terminated') "
            "AND (runs.root_id IN ('', runs.run_id) OR EXISTS (SELECT 1 FROM runs AS top "
            "WHERE top.run_id = runs.root_id AND top.status = 'terminated')) "
            "AND NOT EXISTS (SELECT 1 FROM ledger WHERE status = 'unknown' AND ledger.run_id = runs.run_id) "
            "AND NOT EXISTS (SELECT 1 FROM ledger_earlier WHERE ledger_earlier.run_id = runs.run_id)",
            (max(1, self._now_ms()), run_id, seq, head),
        )
        if not pruned.rowcount:
            return False
        self._known.pop(run_id, None)
        self._connection().execute(
            "DELETE FROM appends WHERE run_key = (SELECT run_key FROM runs WHERE run_id = ?)", (run_id,)
        )
        return True

    def drop_blobs(self, names: Sequence[bytes], put_before_ms: int) -> int:
        """See ``Upkeep``."""
        count = 0
        for name in names:
            gone = self._connection().execute(
                "DELETE FROM blobs WHERE sha256 = ? AND put_at_ms < ?", (name, put_before_ms)
            )
            if gone.rowcount:
                self._connection().execute("DELETE FROM blob_parts WHERE sha256 = ?", (name,))
                count += 1
        return count

    # --- another store's content -----------------------------------------------------------------------------------

    def take_in(self, records: Callable[[], Iterator[Record]]) -> None:
        """See ``TakesIn``."""
        full = self._one(
            "SELECT EXISTS (SELECT 1 FROM runs) OR EXISTS (SELECT 1 FROM ledger) "
            "OR EXISTS (SELECT 1 FROM ledger_earlier) OR EXISTS (SELECT 1 FROM switches)"
        )
        if full[0]:
            raise ConflictError("store_not_empty", "the store holds something else", path=self._path)
        now_ms = self._now_ms()
        live = self._one("SELECT host_id FROM hosts WHERE expires_at_ms > ? LIMIT 1", (now_ms,))
        if live is not None:
            raise ConflictError("store_in_use", "a live host is registered", path=live[0])
        self._known.clear()
        self._switches_changed = True
        run_key, blob, part, is_known = 0, b"", 0, False
        execute = self._connection().execute
        for record in records():
            match record:
                case AppendRecord(row):
                    execute(
                        "INSERT INTO appends (run_key, first_seq, event_count, epoch, schema_version, at_ms, append_id, "
                        "causation, body, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                        (
                            *(
                                run_key,
                                row.first_seq,
                                row.event_count,
                                row.epoch,
                                row.schema_version,
                                row.at_ms,
                            ),
                            *(row.append_id, row.causation, row.body, row.hash),
                        ),
                    )
                case RunRecord(row):
                    run_key = self._take_run(row, now_ms)
                    self.floor_ms = max(self.floor_ms, row.updated_at_ms)
                case PartRecord(data):
                    if not is_known:
                        execute(f"REPLACE {PUT_PART.removeprefix('INSERT ')}", (blob, part, *packed(data)))
                    part += 1
                case BlobRecord(name, size):
                    made = execute(
                        "INSERT OR IGNORE INTO blobs (sha256, size_bytes, parts, put_at_ms) VALUES (?, ?, ?, ?)",
                        (name, size, max(1, -(-size // PART_BYTES)), now_ms),
                    )
                    blob, part, is_known = name, 0, made.rowcount == 0
                    if is_known:  # a sweep may have looked before this import's logs named it
                        execute(
                            "UPDATE blobs SET put_at_ms = max(put_at_ms, ?) WHERE sha256 = ?", (now_ms, name)
                        )
                case LedgerRecord(row):
                    self._put_ledger_row(row)
                case EarlierRecord(place, row):
                    execute(PUT_EARLIER, (place, *msgspec.structs.astuple(row)))
                case SwitchRecord(switch):
                    self.set_switch(switch, True)
                case HoldRecord(name, places, until_ms):
                    execute("INSERT INTO group_holds VALUES (?, ?, ?)", (name, places, until_ms))
                case _:
                    pass

    def _take_run(self, row: RunRow, now_ms: int) -> int:
        index = row.index
        rest = rest_of(index)
        values = {
            "run_id": row.run_id,
            "seq": row.seq,
            "epoch": row.epoch,
            "head": row.head,
            "updated_at_ms": row.updated_at_ms,
            "created_at_ms": row.created_at_ms,
            "tenant": row.tenant,
            "agent": row.agent,
            "operation_id": row.operation_id,
            "parent_id": row.parent_id,
            "root_id": row.root_id,
            "status": index.status,
            "outcome": index.outcome,
            "reason": index.reason,
            "waiting_for": index.waiting_for,
            "rest": rest,
            "rested_at_ms": row.updated_at_ms if rest else None,
            "wake_at_ms": index.wake_at_ms,
            "owner": row.owner,
            "ready_at_ms": now_ms if row.ready else None,
            "damaged": row.damaged,
            "pruned_at_ms": row.pruned_at_ms,
        }
        made = self._connection().execute(
            f"INSERT INTO runs ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})",
            tuple(values.values()),
        )
        assert made.lastrowid is not None
        self._connection().executemany(
            "INSERT INTO key_waits (run_key, key) VALUES (?, ?)",
            ((made.lastrowid, key) for key in sorted(set(index.waiting_keys))),
        )
        return made.lastrowid

    def astray(self, after: str, limit: int) -> list[str]:
        """See ``Upkeep.astray``."""
        found = self._all(
            "SELECT run_id FROM runs WHERE run_id > ? AND (rest <> CASE WHEN waiting_for <> '' "
            "OR status IN ('suspended', 'terminated') THEN status ELSE '' END "
            "OR rested_at_ms IS NOT CASE WHEN rest <> '' THEN updated_at_ms END) ORDER BY run_id LIMIT ?",
            (after, limit),
        )
        return [run_id for (run_id,) in found]

    def faults(self) -> list[str]:
        """See ``SqliteStore.faults``."""
        found = super().faults()
        found += [f"run {run_id}: {ASTRAY}" for run_id in self.astray("", FAULTS_MAX)]
        return found[:FAULTS_MAX]
