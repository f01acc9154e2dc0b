"""The SQL of the store but for appends: each method is one job, inside or outside a transaction as ``sqlite`` says."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from ..runtime.errors import RunNotFound
from ..runtime.ledger import LedgerRow, RunIndex
from .blob_coding import unpacked
from .port import (
    HOST_VALID_MS,
    AcquireAnswer,
    Acquired,
    HostRow,
    NotFound,
    Owned,
    RunFilter,
    RunRow,
    StoredAppend,
    Switch,
)
from .run_pages import beginning, branches
from .sqlite_append import LEDGER_COLUMNS, SqliteAppends, named
from .sqlite_ends import damaged_ends

FAULTS_MAX = 20
"""Faults that one look at the file reports."""

RUN_COLUMNS = (
    "run_key, run_id, tenant, agent, operation_id, parent_id, root_id, created_at_ms, updated_at_ms, seq, epoch, head, "
    "status, outcome, reason, waiting_for, wake_at_ms, owner, ready_at_ms, damaged, pruned_at_ms"
)
_IN_ITS_INDEX: Final = {
    "operation_id": ("operation_id <> ''",),
    "root_id": ("root_id <> ''",),
    "waiting_for": ("waiting_for <> ''",),
    "outcome": ("outcome <> ''",),
    "rested_at_ms": ("rested_at_ms IS NOT NULL",),
}
"""What a partial index holds, said so that SQLite uses it."""

_HOST_COLUMNS = "host_id, node, pid, pid_start, boot_id, expires_at_ms"


def runs_query(where: RunFilter, before: int | None) -> tuple[str, list[str | int]]:
    """A page of runs whose key is below ``before``, newest first, and its values. The indexes are named by what is left to
    them: a ``+`` before a column keeps SQLite from any other one."""
    pages: list[str] = []
    values: list[str | int] = []
    for branch in branches(where):
        conditions = [one for test in branch.tests for one in beginning(test)]
        tests = [
            f"{'' if test.column == branch.lead else '+'}{test.column} {test.operator} ?"
            for test in conditions
        ]
        values += [test.value for test in conditions]
        tests += _IN_ITS_INDEX.get(branch.lead, ())
        key = "run_key" if branch.in_order else "+run_key"
        if before is not None:
            tests.append(f"{key} < ?")
            values.append(before)
        pages.append(
            f"SELECT run_key FROM (SELECT run_key FROM runs WHERE {' AND '.join(tests) or '1'} "
            f"ORDER BY {key} DESC LIMIT ?)"
        )
        values.append(where.limit)
    # The rows themselves are read last: what is left of the page, and not what was sorted.
    keys = " UNION ALL ".join(pages)
    query = f"SELECT {RUN_COLUMNS} FROM runs WHERE run_key IN ({keys}) ORDER BY run_key DESC LIMIT ?"
    return query, [*values, where.limit]


class SqliteRows(SqliteAppends):
    """What a ``SqliteStore`` reads, and how hosts own runs. ``marks``: damage that is found when it begins is written
    down."""

    def __init__(
        self,
        connection: Callable[[], sqlite3.Connection],
        now_ms: Callable[[], int],
        path: str = "",
        *,
        marks: bool = True,
    ) -> None:
        super().__init__(connection, now_ms, path)
        self._marks = marks
        self.floor_ms = 0
        """The highest time on record when it began, which the store's clock must not fall below."""

    # --- reading ---------------------------------------------------------------------------------------------------

    switches_known: tuple[Switch, ...] = ()
    """As committed: replaced as a whole, so any thread may read it."""

    switches_count: int = 0
    """Raised whenever ``switches_known`` is replaced."""

    _switches_changed = False

    def take_woken(self) -> Sequence[str]:
        if self._switches_changed:
            # Read again and not carried over: whatever became of the transaction, this is what holds now.
            with contextlib.suppress(sqlite3.Error):  # a file that can't be read says so to whoever asks it
                self.switches_known = tuple(self.switches())
                self.switches_count += 1
                self._switches_changed = False
        return super().take_woken()

    def begin(self) -> None:
        """First of all on a connection that was just opened: nothing that an earlier one said is believed any more. What was
        written last is checked, and a run whose end isn't as written is marked as damaged; if there is no space for
        the mark, whoever reads the run finds out."""
        self._known.clear()
        self.switches_known = tuple(self.switches())
        rested = self._one("SELECT max(rested_at_ms) FROM runs WHERE rested_at_ms IS NOT NULL")[0]
        working = self._one("SELECT max(updated_at_ms) FROM runs WHERE rest = ''")[0]
        self.floor_ms = max(int(rested or 0), int(working or 0))
        if self._marks and (damaged := damaged_ends(self._connection())):
            self._mark(damaged)

    def _mark(self, damaged: Mapping[str, str]) -> None:
        connection = self._connection()
        mark = self.mark()
        connection.execute("BEGIN IMMEDIATE")
        try:
            for run_id, reason in damaged.items():
                self.mark_damaged(run_id, reason)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self.forget(mark)
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if not error.sqlite_errorname.startswith(("SQLITE_FULL", "SQLITE_IOERR_WRITE")):
                raise

    def identity(self) -> str:
        found: bytes = self._one("SELECT store_id FROM identity")[0]
        return found.hex()

    def group_holds(self) -> dict[str, tuple[int, int]]:
        rows = self._all(
            "SELECT name, places, until_ms FROM group_holds WHERE until_ms > ?", (self._now_ms(),)
        )
        return {name: (places, until_ms) for name, places, until_ms in rows}

    def hold_groups(self, holds: Mapping[str, tuple[int, int]]) -> None:
        self._connection().execute("DELETE FROM group_holds")
        for name, (places, until_ms) in holds.items():
            self._connection().execute("INSERT INTO group_holds VALUES (?, ?, ?)", (name, places, until_ms))

    def read(self, run_id: str, after_seq: int, rows_max: int) -> list[StoredAppend]:
        found = self._one("SELECT run_key FROM runs WHERE run_id = ?", (run_id,))
        return [] if found is None else self.rows_of(found[0], run_id, after_seq, rows_max)

    def rows_of(self, run_key: int, run_id: str, after_seq: int, rows_max: int) -> list[StoredAppend]:
        """Rows of a log by its key; ``run_id`` is what they are said to be of."""
        rows = self._all(
            "SELECT first_seq, event_count, epoch, append_id, at_ms, causation, schema_version, body, hash "
            "FROM appends WHERE run_key = ? AND first_seq > ? ORDER BY first_seq LIMIT ?",
            (run_key, after_seq, rows_max),
        )
        return [
            StoredAppend(
                run_id=run_id,
                first_seq=first_seq,
                event_count=event_count,
                epoch=epoch,
                append_id=append_id,
                at_ms=at_ms,
                causation=causation,
                schema_version=schema_version,
                body=body,
                hash=hash_,
            )
            for first_seq, event_count, epoch, append_id, at_ms, causation, schema_version, body, hash_ in rows
        ]

    def run(self, run_id: str) -> RunRow | None:
        row = self._one(f"SELECT {RUN_COLUMNS} FROM runs WHERE run_id = ?", (run_id,))
        return None if row is None else self._run_row(row)

    def _run_row(self, row: Sequence[Any]) -> RunRow:
        fields = named(RUN_COLUMNS, row)
        keys = self._waiting_keys(fields.pop("run_key"))
        names = ("status", "outcome", "reason", "waiting_for", "wake_at_ms")
        index = RunIndex(**{name: fields.pop(name) for name in names}, waiting_keys=keys)
        return RunRow(index=index, ready=fields.pop("ready_at_ms") is not None, **fields)

    def runs(self, where: RunFilter) -> list[RunRow]:
        before: int | None = None
        if where.after:
            last = self._one("SELECT run_key FROM runs WHERE run_id = ?", (where.after,))
            if last is None:
                raise RunNotFound(where.after)
            before = last[0]
        return [self._run_row(row) for row in self._all(*runs_query(where, before))]

    def mark_damaged(self, run_id: str, reason: str) -> None:
        row = self._one("SELECT parent_id FROM runs WHERE run_id = ?", (run_id,))
        if row is None:
            raise RunNotFound(run_id)
        self._connection().execute("UPDATE runs SET damaged = ? WHERE run_id = ?", (reason, run_id))
        if row[0]:
            self._wake(row[0], self._now_ms())

    def ledger_rows(self, after: tuple[str, bytes] | None, limit: int) -> list[LedgerRow]:
        rows = self._all(
            f"SELECT {LEDGER_COLUMNS} FROM ledger WHERE ? OR (tenant, key) > (?, ?) ORDER BY tenant, key LIMIT ?",
            (after is None, *(after or ("", b"")), limit),
        )
        return [LedgerRow(**named(LEDGER_COLUMNS, row)) for row in rows]

    def unknown_effects(self, tenant: str | None, limit: int) -> list[LedgerRow]:
        rows = self._all(
            f"SELECT {LEDGER_COLUMNS} FROM ledger WHERE status = 'unknown' AND (? IS NULL OR tenant = ?) "
            "ORDER BY at_ms, tenant, key LIMIT ?",
            (tenant, tenant, limit),
        )
        return [LedgerRow(**named(LEDGER_COLUMNS, row)) for row in rows]

    def get_blob(self, digest: bytes) -> bytes | None:
        if self._one("SELECT 1 FROM blobs WHERE sha256 = ?", (digest,)) is None:
            return None
        parts = self._all("SELECT coding, data FROM blob_parts WHERE sha256 = ? ORDER BY part", (digest,))
        return b"".join(unpacked(coding, kept) for coding, kept in parts)

    def faults(self) -> list[str]:
        """See ``SqliteStore.faults``."""
        found = [str(row[0]) for row in self._all(f"PRAGMA integrity_check({FAULTS_MAX})") if row[0] != "ok"]
        orphans = self._all(
            "SELECT run_key, min(first_seq), count(*) FROM appends WHERE run_key NOT IN (SELECT run_key FROM runs) "
            "GROUP BY run_key LIMIT ?",
            (FAULTS_MAX,),
        )
        found += [
            f"{count} rows of the log from seq {seq} have no run (key {key})" for key, seq, count in orphans
        ]
        for (digest,) in self._all("SELECT sha256 FROM blobs UNION SELECT sha256 FROM blob_parts"):
            data = self.get_blob(digest)
            if data is None or sha256(data).digest() != digest:
                found.append(f"blob {digest.hex()} isn't what its name says")
        return found[:FAULTS_MAX]

    # --- hosts and ownership ---------------------------------------------------------------------------------------

    def register_host(self, host: HostRow) -> None:
        self._connection().execute(
            "INSERT OR REPLACE INTO hosts (host_id, node, pid, pid_start, boot_id, expires_at_ms) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (host.host_id, host.node, host.pid, host.pid_start, host.boot_id, self._now_ms() + HOST_VALID_MS),
        )

    def renew_host(self, host_id: str) -> bool:
        done = self._connection().execute(
            "UPDATE hosts SET expires_at_ms = ? WHERE host_id = ?", (self._now_ms() + HOST_VALID_MS, host_id)
        )
        return done.rowcount == 1

    def drop_host(self, host_id: str, died: bool) -> None:
        now_ms = self._now_ms()
        self._connection().execute("DELETE FROM hosts WHERE host_id = ?", (host_id,))
        held = self._all("SELECT run_id FROM runs WHERE owner = ? AND owner <> ''", (host_id,))
        for (run_id,) in held:
            if not died:  # an owner without a row is how acquire knows of a death
                self._connection().execute("UPDATE runs SET owner = '' WHERE run_id = ?", (run_id,))
            self._known.pop(run_id, None)
            self._wake(run_id, now_ms)

    def hosts(self) -> list[HostRow]:
        rows = self._all(f"SELECT {_HOST_COLUMNS} FROM hosts ORDER BY host_id")
        return [HostRow(**named(_HOST_COLUMNS, row)) for row in rows]

    def _live_host(self, host_id: str) -> HostRow | None:
        row = self._one(
            f"SELECT {_HOST_COLUMNS} FROM hosts WHERE host_id = ? AND expires_at_ms > ?",
            (host_id, self._now_ms()),
        )
        return None if row is None else HostRow(**named(_HOST_COLUMNS, row))

    def acquire(self, run_id: str, host_id: str, dead_hosts: Sequence[str]) -> AcquireAnswer:
        row = self._one("SELECT owner, epoch, seq, head, ready_at_ms FROM runs WHERE run_id = ?", (run_id,))
        if row is None:
            return NotFound()
        owner, epoch, seq, head, ready_at_ms = row
        holder = self._live_host(owner) if owner else None
        if holder is not None and owner != host_id and owner not in dead_hosts:
            return Owned(holder)
        now_ms = self._now_ms()
        self._connection().execute(
            "UPDATE hosts SET expires_at_ms = ? WHERE host_id = ? AND expires_at_ms <= ?",
            (now_ms + HOST_VALID_MS, host_id, now_ms),
        )
        self._connection().execute(
            "UPDATE runs SET epoch = epoch + 1, owner = ?, ready_at_ms = NULL WHERE run_id = ?",
            (host_id, run_id),
        )
        self._known.pop(run_id, None)
        return Acquired(epoch + 1, seq, head, owner not in ("", host_id), ready_at_ms is not None)

    def release(self, run_id: str, host_id: str, epoch: int, ready: bool) -> None:
        done = self._connection().execute(
            "UPDATE runs SET owner = '' WHERE run_id = ? AND owner = ? AND owner <> '' AND epoch = ?",
            (run_id, host_id, epoch),
        )
        if done.rowcount:
            self._known.pop(run_id, None)
            if ready:
                self._wake(run_id, self._now_ms())

    def ready_runs(self, limit: int) -> list[str]:
        now_ms = self._now_ms()
        gone = [owner for owner in self._owners() if self._live_host(owner) is None]
        unowned = ", ".join("?" * (len(gone) + 1))
        rows: list[tuple[int, int, str]] = self._all(
            "SELECT ready_at_ms, run_key, run_id FROM runs "
            f"WHERE ready_at_ms IS NOT NULL AND owner IN ({unowned}) AND damaged = '' "
            "ORDER BY ready_at_ms, run_key LIMIT ?",
            ["", *gone, limit],
        )
        rows += self._all(
            "SELECT wake_at_ms, run_key, run_id FROM runs "
            "WHERE wake_at_ms IS NOT NULL AND owner = '' AND wake_at_ms <= ? AND ready_at_ms IS NULL AND damaged = '' "
            "ORDER BY wake_at_ms, run_key LIMIT ?",
            (now_ms, limit),
        )
        for owner in gone:
            rows += self._all(
                "SELECT CASE WHEN wake_at_ms <= ? THEN wake_at_ms ELSE updated_at_ms END, run_key, run_id FROM runs "
                "WHERE owner = ? AND owner <> '' AND ready_at_ms IS NULL AND damaged = '' ORDER BY 1, 2 LIMIT ?",
                (now_ms, owner, limit),
            )
        return [run_id for _, _, run_id in sorted(rows)[:limit]]

    def _owners(self) -> list[str]:
        """Each owner once, by one step in the index an owner instead of one a run."""
        owners: list[str] = []
        row = self._one("SELECT min(owner) FROM runs WHERE owner <> ''")
        while row is not None and row[0] is not None:
            owners.append(row[0])
            row = self._one("SELECT min(owner) FROM runs WHERE owner <> '' AND owner > ?", (row[0],))
        return owners

    def next_wake_ms(self) -> int | None:
        row = self._one(
            "SELECT min(wake_at_ms) FROM runs WHERE wake_at_ms IS NOT NULL AND owner = '' AND damaged = ''"
        )
        return None if row is None else row[0]

    # --- switches --------------------------------------------------------------------------------------------------

    def switches(self) -> list[Switch]:
        rows = self._all("SELECT scope, target, by, reason, at_ms FROM switches ORDER BY scope, target")
        return [
            Switch(scope=scope, target=target, by=by, reason=reason, at_ms=at_ms)
            for scope, target, by, reason, at_ms in rows
        ]

    def set_switch(self, switch: Switch, on: bool) -> None:
        self._switches_changed = True
        if on:
            self._connection().execute(
                "INSERT OR REPLACE INTO switches (scope, target, by, reason, at_ms) VALUES (?, ?, ?, ?, ?)",
                (switch.scope, switch.target, switch.by, switch.reason, switch.at_ms),
            )
        else:
            self._connection().execute(
                "DELETE FROM switches WHERE scope = ? AND target = ?", (switch.scope, switch.target)
            )
