"""The upkeep of a PostgreSQL store: what is wrong with it, and what is written besides runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from ..runtime.errors import RunNotFound
from . import postgres_rows as sql
from .archive import Record
from .port import RunRow, StoredAppend
from .postgres_append import ledger_row
from .postgres_clock import ServerClock
from .postgres_intake import take_in
from .postgres_link import ANSWER_S, LONG_ANSWER_S, Connection
from .postgres_url import PostgresPlace
from .postgres_writer import PostgresWriter
from .text_columns import from_column, to_column
from .upkeep import ASTRAY, EarlierRow

T = TypeVar("T")

FAULTS_MAX = 20

_REINDEX: Final = """
WITH moved AS (
    UPDATE runs SET tenant = $1, agent = $2, operation_id = $3, parent_id = $4, root_id = $5, created_at_ms = $6,
        updated_at_ms = $7, epoch = greatest(epoch, $8), status = $9, outcome = $10, reason = $11, waiting_for = $12,
        waiting_keys = ARRAY(SELECT decode(key, 'hex') FROM unnest($13::text[]) AS key), wake_at_ms = $14
    WHERE run_id = $15 AND seq = $16 AND head = $17 RETURNING run_key, waiting_keys
), gone AS (
    DELETE FROM key_waits USING moved
    WHERE key_waits.run_key = moved.run_key AND key_waits.key <> ALL (moved.waiting_keys)
), begun AS (
    INSERT INTO key_waits SELECT DISTINCT key, run_key FROM moved, unnest(waiting_keys) AS key ON CONFLICT DO NOTHING
)
SELECT count(*) FROM moved
"""
_LOST_LOGS: Final = """
SELECT DISTINCT ON (run_key) run_key, first_seq, event_count, epoch, append_id, at_ms, causation, schema_version, body, hash
FROM appends WHERE run_key > $1 AND NOT EXISTS (SELECT FROM runs WHERE runs.run_key = appends.run_key)
ORDER BY run_key, first_seq LIMIT $2
"""
_ADOPT: Final = """
INSERT INTO runs (
    run_key, run_id, seq, epoch, head, updated_at_ms, created_at_ms, tenant, agent, operation_id, parent_id, root_id, status,
    outcome, reason, waiting_for, waiting_keys, owner
) OVERRIDING SYSTEM VALUE
SELECT run_key, $2, first_seq + event_count - 1, epoch, hash, at_ms, at_ms, '', '', '', '', '', '', '', '', '', '{}', ''
FROM appends WHERE run_key = $1 ORDER BY first_seq DESC LIMIT 1
ON CONFLICT DO NOTHING RETURNING true
"""
_BLOB_NAMES: Final = "SELECT sha256 FROM blobs WHERE sha256 > $1 ORDER BY sha256 LIMIT $2"
_EARLIER_ROWS: Final = (
    "SELECT * FROM ledger_earlier WHERE $1::text IS NULL OR (tenant, key, place) > ($1, $2, $3) "
    "ORDER BY tenant, key, place LIMIT $4"
)
DROP_BLOBS: Final = (
    "WITH gone AS (DELETE FROM blobs WHERE sha256 = ANY ($1::bytea[]) AND put_at_ms < $2 RETURNING sha256), "
    "parts AS (DELETE FROM blob_parts USING gone WHERE blob_parts.sha256 = gone.sha256) SELECT count(*) FROM gone"
)
_WAKE: Final = "SELECT to_json(wake_runs(coalesce($1, server_ms()), ARRAY[$2::text]))::text"
_ASTRAY: Final = """
SELECT run_id FROM (
    SELECT run_id FROM runs, unnest(waiting_keys) AS waited
    WHERE waiting_keys <> '{}' AND NOT EXISTS (
        SELECT FROM key_waits WHERE key_waits.key = waited AND key_waits.run_key = runs.run_key
    )
    UNION SELECT run_id FROM key_waits JOIN runs USING (run_key) WHERE key <> ALL (waiting_keys)
    UNION SELECT run_id FROM runs
    WHERE rest <> CASE WHEN waiting_for <> '' OR status IN ('suspended', 'terminated') THEN status ELSE '' END
        OR rested_at_ms IS DISTINCT FROM CASE WHEN rest <> '' THEN updated_at_ms END
        OR due_at_ms IS DISTINCT FROM CASE WHEN owner = '' THEN wake_at_ms END
) AS astray WHERE run_id > $1 ORDER BY run_id LIMIT $2
"""


class PostgresUpkeep(ABC):
    """A part of ``PostgresStore``, which says how it reads and writes."""

    _clock: ServerClock
    _place: PostgresPlace
    _writer: PostgresWriter

    @abstractmethod
    async def read_with(self, call: Callable[[Connection], Awaitable[T]], seconds: float = ANSWER_S) -> T: ...

    @abstractmethod
    async def write_with(self, call: Callable[[Connection], Awaitable[T]]) -> T: ...

    @abstractmethod
    async def _waking(self, call: Callable[[Connection], Awaitable[Any]]) -> bool: ...

    async def reindex(self, row: RunRow) -> bool:
        """See ``Upkeep``. Two statements: after a crash between them the run is ready only by what else makes it so."""
        index = row.index
        values = (
            *(
                to_column(text)
                for text in (row.tenant, row.agent, row.operation_id, row.parent_id, row.root_id)
            ),
            *(row.created_at_ms, row.updated_at_ms, row.epoch),
            *(to_column(text) for text in (index.status, index.outcome, index.reason, index.waiting_for)),
            [key.hex() for key in index.waiting_keys],
            index.wake_at_ms,
            *(to_column(row.run_id), row.seq, row.head),
        )
        written = await self.write_with(lambda connection: connection.fetchval(_REINDEX, *values))
        if not written:
            return False
        given_ms, run_id = self._clock.given_ms(), to_column(row.run_id)
        await self._waking(lambda connection: connection.fetchval(_WAKE, given_ms, run_id))
        return True

    async def lost_logs(self, after: int = 0, limit: int = 100) -> list[tuple[int, StoredAppend]]:
        """See ``Upkeep``."""
        rows = await self.read_with(
            lambda connection: connection.fetch(_LOST_LOGS, after, limit), LONG_ANSWER_S
        )
        return [(row["run_key"], sql.stored_append("", row)) for row in rows]

    async def adopt(self, number: int, run_id: str) -> bool:
        """See ``Upkeep``."""
        made = await self.write_with(
            lambda connection: connection.fetchval(_ADOPT, number, to_column(run_id))
        )
        return made is True

    async def astray(self, after: str = "", limit: int = 100) -> list[str]:
        """See ``Upkeep``."""
        rows = await self.read_with(
            lambda connection: connection.fetch(_ASTRAY, to_column(after), limit), LONG_ANSWER_S
        )
        return [from_column(row["run_id"]) for row in rows]

    async def runs_in_order(self, after: str = "", limit: int = 100) -> list[RunRow]:
        """See ``Upkeep``."""
        key = 0
        if after:
            found: int | None = await self.read_with(
                lambda connection: connection.fetchval(sql.RUN_KEY, to_column(after))
            )
            if found is None:
                raise RunNotFound(after)
            key = found
        rows = await self.read_with(lambda connection: connection.fetch(sql.RUNS_IN_ORDER, key, limit))
        return [sql.run_row(row) for row in rows]

    async def blob_names(self, after: bytes = b"", limit: int = 100) -> list[bytes]:
        """See ``Upkeep``."""
        rows = await self.read_with(lambda connection: connection.fetch(_BLOB_NAMES, after, limit))
        return [row["sha256"] for row in rows]

    async def earlier_rows(
        self, after: tuple[str, bytes, int] | None = None, limit: int = 100
    ) -> list[EarlierRow]:
        """See ``Upkeep``. The table counts places from 1."""
        tenant, key, place = (
            (None, None, None) if after is None else (to_column(after[0]), after[1], after[2] + 1)
        )
        rows = await self.read_with(
            lambda connection: connection.fetch(_EARLIER_ROWS, tenant, key, place, limit)
        )
        return [EarlierRow(row["place"] - 1, ledger_row(row)) for row in rows]

    async def prune(self, run_id: str, seq: int, head: bytes) -> bool:
        """See ``Upkeep``."""
        given_ms = self._clock.given_ms()
        pruned = await self.write_with(
            lambda connection: connection.fetchval(
                "SELECT prune_run($1, $2, $3, $4)", given_ms, to_column(run_id), seq, head
            )
        )
        return pruned is True

    async def drop_blobs(self, names: Sequence[bytes], *, put_before_ms: int) -> int:
        """See ``Upkeep``."""
        count: int = await self.write_with(
            lambda connection: connection.fetchval(DROP_BLOBS, list(names), put_before_ms)
        )
        return count

    async def take_in(self, records: Callable[[], Iterator[Record]]) -> None:
        """See ``TakesIn``. By a third connection of this process, for as long as it takes."""
        await take_in(self._place, records(), self._clock.given_ms())
        await self.write_with(self._writer.read_switches)

    async def faults(self) -> list[str]:
        """What is wrong with the database as a whole: rows of the log without a run, blobs that aren't what their name
        says. Empty if nothing. Reads every blob."""
        orphans = await self.read_with(
            lambda connection: connection.fetch(sql.ORPHANS, FAULTS_MAX), LONG_ANSWER_S
        )
        blobs = await self.read_with(
            lambda connection: connection.fetch(sql.BAD_BLOBS, FAULTS_MAX), LONG_ANSWER_S
        )
        found = [
            f"{row['count']} rows of the log from seq {row['seq']} have no run (key {row['run_key']})"
            for row in orphans
        ]
        found += [f"blob {row['sha256'].hex()} isn't what its name says" for row in blobs]
        found += [f"run {run_id}: {ASTRAY}" for run_id in await self.astray("", FAULTS_MAX)]
        return found[:FAULTS_MAX]
