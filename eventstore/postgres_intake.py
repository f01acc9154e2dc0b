"""An export into a PostgreSQL schema: rows by COPY, in one transaction on a connection of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from ..runtime.errors import BoundloopError, ConflictError, StoreError
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
from .port import RunRow
from .postgres_link import Cut, connect, refused
from .postgres_rows import NOTE_PUT
from .postgres_url import PostgresPlace
from .text_columns import to_column

ROWS_AT_ONCE: Final = 1_000
BYTES_AT_ONCE: Final = 8 * 1024 * 1024

_LEDGER: Final = (
    *(
        "tenant",
        "key",
        "tool",
        "status",
        "intent_sha256",
        "args_sha256",
        "run_id",
        "call_id",
        "attempt",
        "epoch",
    ),
    *("valid_until_ms", "at_ms", "result", "result_sha256"),
)
_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "runs": (
        *("run_key", "run_id", "seq", "epoch", "head", "updated_at_ms", "created_at_ms", "tenant", "agent"),
        *(
            "operation_id",
            "parent_id",
            "root_id",
            "status",
            "outcome",
            "reason",
            "waiting_for",
            "waiting_keys",
        ),
        *("wake_at_ms", "owner", "ready_at_ms", "damaged", "pruned_at_ms"),
    ),
    "key_waits": ("key", "run_key"),
    "appends": (
        *(
            "run_key",
            "first_seq",
            "event_count",
            "epoch",
            "schema_version",
            "at_ms",
            "append_id",
            "causation",
        ),
        *("body", "hash"),
    ),
    "blobs": ("sha256", "size_bytes", "parts", "put_at_ms"),
    "blob_parts": ("sha256", "part", "data"),
    "ledger": _LEDGER,
    "ledger_earlier": (*_LEDGER, "place"),
    "switches": ("scope", "target", "by", "reason", "at_ms"),
    "group_holds": ("name", "places", "until_ms"),
}
_NOT_EMPTY: Final = (
    "SELECT EXISTS (SELECT FROM runs) OR EXISTS (SELECT FROM ledger) OR EXISTS (SELECT FROM ledger_earlier) "
    "OR EXISTS (SELECT FROM switches)"
)
_LIVE_HOST: Final = "SELECT host_id FROM hosts WHERE expires_at_ms > coalesce($1, server_ms()) LIMIT 1"


async def take_in(place: PostgresPlace, records: Iterator[Record], given_ms: int | None) -> None:
    """See ``TakesIn.take_in``. Raises ``StoreError`` too, after which there is nothing of it, unless it is ``commit_unknown``."""
    try:
        link = await connect(place, "boundloop imports")
    except Cut as cut:
        raise StoreError("store_unreachable", str(cut), path=place.shown) from cut
    connection: Any = link.connection
    committing = False
    try:
        transaction = connection.transaction()
        await transaction.start()
        await _Intake(connection, place, given_ms).take(records)
        committing = True
        await transaction.commit()
    except BoundloopError:
        raise
    except Exception as error:
        typed = refused(error, place) if not isinstance(error, OSError) else Cut(str(error))
        if isinstance(typed, Cut):
            code = "commit_unknown" if committing else "store_unreachable"
            raise StoreError(code, str(typed)[:300], path=place.shown) from error
        raise typed from error
    finally:
        connection.terminate()  # what isn't committed by now is undone


class _Intake:
    def __init__(self, connection: Any, place: PostgresPlace, given_ms: int | None) -> None:
        self._connection = connection
        self._place = place
        self._given_ms = given_ms
        self._now_ms = 0
        self._rows: dict[str, list[tuple[Any, ...]]] = {table: [] for table in _COLUMNS}
        self._count = self._bytes = 0
        self._run_key = 0
        self._blob: bytes = b""
        self._is_known = False
        self._part = 0

    async def take(self, records: Iterator[Record]) -> None:
        connection = self._connection
        # Nobody makes a run, claims a key or puts a blob before this has ended.
        await connection.execute("LOCK TABLE runs, ledger, switches, blobs, hosts IN EXCLUSIVE MODE")
        self._now_ms = await connection.fetchval("SELECT coalesce($1::bigint, server_ms())", self._given_ms)
        if await connection.fetchval(_NOT_EMPTY):
            raise ConflictError("store_not_empty", "the store holds something else", path=self._place.shown)
        host: str | None = await connection.fetchval(_LIVE_HOST, self._given_ms)
        if host is not None:
            raise ConflictError("store_in_use", "a live host is registered", path=host)
        for record in records:
            await self._one(record)
            if self._count >= ROWS_AT_ONCE or self._bytes >= BYTES_AT_ONCE:
                await self._flush()
        await self._flush()
        if self._run_key:
            await connection.execute(
                "SELECT setval(pg_get_serial_sequence('runs', 'run_key'), $1)", self._run_key
            )
        await connection.execute("UPDATE identity SET switches_version = switches_version + 1")

    async def _one(self, record: Record) -> None:
        match record:
            case SwitchRecord(switch):
                texts = (to_column(text) for text in (switch.target, switch.by, switch.reason))
                self._put("switches", switch.scope, *texts, switch.at_ms)
            case HoldRecord(name, places, until_ms):
                self._put("group_holds", to_column(name), places, until_ms)
            case BlobRecord(name, size):
                # One that is there counts as put now: a sweep may have looked before this import's logs named it.
                found = await self._connection.fetchval(NOTE_PUT, name, self._now_ms)
                self._blob, self._part, self._is_known = name, 0, found is True
                if not self._is_known:
                    # Parts of an upload that didn't end.
                    await self._connection.execute("DELETE FROM blob_parts WHERE sha256 = $1", name)
                    self._put("blobs", name, size, max(1, -(-size // PART_BYTES)), self._now_ms)
            case PartRecord(data):
                if not self._is_known:
                    self._put("blob_parts", self._blob, self._part, data)
                    self._bytes += len(data)
                self._part += 1
            case RunRecord(row):
                self._run(row)
            case AppendRecord(row):
                numbers = (row.first_seq, row.event_count, row.epoch, row.schema_version, row.at_ms)
                self._put(
                    "appends",
                    *(self._run_key, *numbers, row.append_id, to_column(row.causation), row.body, row.hash),
                )
                self._bytes += len(row.body)
            case LedgerRecord(row):
                self._put("ledger", *_ledger_values(row))
                self._bytes += len(row.result or b"")
            case EarlierRecord(place, row):
                self._put("ledger_earlier", *_ledger_values(row), place + 1)
                self._bytes += len(row.result or b"")
            case _:
                pass

    def _run(self, row: RunRow) -> None:
        self._run_key += 1
        index = row.index
        origin = (row.tenant, row.agent, row.operation_id, row.parent_id, row.root_id)
        stands = (index.status, index.outcome, index.reason, index.waiting_for)
        self._put(
            "runs",
            *(self._run_key, to_column(row.run_id), row.seq, row.epoch, row.head),
            *(row.updated_at_ms, row.created_at_ms, *(to_column(text) for text in (*origin, *stands))),
            *(list(index.waiting_keys), index.wake_at_ms, to_column(row.owner)),
            *(self._now_ms if row.ready else None, to_column(row.damaged), row.pruned_at_ms),
        )
        for key in sorted(set(index.waiting_keys)):
            self._put("key_waits", key, self._run_key)

    def _put(self, table: str, *values: Any) -> None:
        self._rows[table].append(values)
        self._count += 1

    async def _flush(self) -> None:
        for table, rows in self._rows.items():
            if rows:
                await self._connection.copy_records_to_table(
                    table, records=rows, columns=_COLUMNS[table], schema_name=self._place.schema
                )
                rows.clear()
        self._count = self._bytes = 0


def _ledger_values(row: LedgerRow) -> tuple[Any, ...]:
    return tuple(to_column(one) if isinstance(one, str) else one for one in msgspec.structs.astuple(row))
