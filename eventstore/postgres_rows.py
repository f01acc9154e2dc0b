"""What a PostgreSQL store reads, as SQL and as the port's rows."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ..runtime.ledger import RunIndex
from .port import HostRow, RunFilter, RunRow, StoredAppend, Switch
from .run_pages import beginning, branches
from .text_columns import from_column, to_column

_RUN_COLUMNS: Final = (
    "run_id, tenant, agent, operation_id, parent_id, root_id, created_at_ms, updated_at_ms, seq, epoch, head, status, "
    "outcome, reason, waiting_for, to_json(waiting_keys)::text AS waiting_keys, wake_at_ms, owner, ready_at_ms, damaged, "
    "pruned_at_ms"
)
"""The keys as JSON: for an array of bytea the driver would first ask the server what that is."""

_IN_ITS_INDEX: Final = {
    "operation_id": ("operation_id <> ''",),
    "root_id": ("root_id <> ''",),
    "waiting_for": ("waiting_for <> ''",),
    "outcome": ("outcome <> ''",),
    "rested_at_ms": ("rested_at_ms IS NOT NULL",),
}
"""What a partial index holds, said so that the server uses it."""

_keys = msgspec.json.Decoder(list[str]).decode

READ: Final = (
    "SELECT first_seq, event_count, epoch, append_id, at_ms, causation, schema_version, body, hash FROM appends "
    "WHERE run_key = (SELECT run_key FROM runs WHERE run_id = $1) AND first_seq > $2 ORDER BY first_seq LIMIT $3"
)
RUN: Final = f"SELECT {_RUN_COLUMNS} FROM runs WHERE run_id = $1"
RUNS_IN_ORDER: Final = f"SELECT {_RUN_COLUMNS} FROM runs WHERE run_key > $1 ORDER BY run_key LIMIT $2"
RUN_KEY: Final = "SELECT run_key FROM runs WHERE run_id = $1"
GET_BLOB: Final = (
    "SELECT data FROM blob_parts WHERE sha256 = $1 AND EXISTS (SELECT FROM blobs WHERE blobs.sha256 = $1) "
    "ORDER BY part"
)
LEDGER_ROW: Final = "SELECT * FROM ledger WHERE tenant = $1 AND key = $2"
LEDGER_ROWS: Final = (
    "SELECT * FROM ledger WHERE $1::text IS NULL OR (tenant, key) > ($1, $2) ORDER BY tenant, key LIMIT $3"
)
UNKNOWN_EFFECTS: Final = (
    "SELECT * FROM ledger WHERE status = 'unknown' AND ($1::text IS NULL OR tenant = $1) "
    "ORDER BY at_ms, tenant, key LIMIT $2"
)
HOSTS: Final = "SELECT * FROM hosts ORDER BY host_id"
SWITCHES: Final = "SELECT * FROM switches ORDER BY scope, target"
IDENTITY: Final = "SELECT store_id FROM identity"
NEXT_WAKE: Final = "SELECT min(due_at_ms) FROM runs WHERE due_at_ms IS NOT NULL AND damaged = ''"
GROUP_HOLDS: Final = (
    "SELECT name, places, until_ms FROM group_holds WHERE until_ms > coalesce($1, server_ms())"
)

# Each owner once, by one step in the index an owner instead of one a run.
_GONE: Final = (
    "RECURSIVE owners AS ("
    "SELECT min(owner) AS owner FROM runs WHERE owner <> '' "
    "UNION ALL SELECT (SELECT min(owner) FROM runs WHERE owner <> '' AND owner > owners.owner) "
    "FROM owners WHERE owner IS NOT NULL), "
    "gone AS (SELECT owner FROM owners WHERE owner IS NOT NULL AND NOT EXISTS ("
    "SELECT FROM hosts WHERE host_id = owner AND expires_at_ms > {now}))"
)

_NOW: Final = "(SELECT now_ms FROM clock)"
"""One time for the whole statement, and one that an index can be searched for."""

READY: Final = (
    f"WITH {_GONE.format(now=_NOW)}, clock AS (SELECT coalesce($1, server_ms()) AS now_ms) "
    "SELECT run_id, place FROM ("
    "(SELECT ready_at_ms AS place, run_key, run_id FROM runs WHERE ready_at_ms IS NOT NULL AND damaged = '' "
    "AND (owner = '' OR owner IN (SELECT owner FROM gone)) ORDER BY ready_at_ms, run_key LIMIT $2) "
    f"UNION ALL (SELECT due_at_ms, run_key, run_id FROM runs WHERE due_at_ms <= {_NOW} "
    "AND ready_at_ms IS NULL AND damaged = '' ORDER BY due_at_ms, run_key LIMIT $2) "
    f"UNION ALL (SELECT CASE WHEN wake_at_ms <= {_NOW} THEN wake_at_ms ELSE updated_at_ms END, run_key, run_id FROM runs "
    "WHERE owner <> '' AND owner IN (SELECT owner FROM gone) AND ready_at_ms IS NULL AND damaged = '' "
    "ORDER BY 1, run_key LIMIT $2)"
    ") AS ready ORDER BY place, run_key LIMIT $2"
)
"""Ready runs at a time ($1, or the server's), at most $2, and since when they are."""

ORPHANS: Final = (
    "SELECT run_key, min(first_seq) AS seq, count(*) AS count FROM appends "
    "WHERE NOT EXISTS (SELECT FROM runs WHERE runs.run_key = appends.run_key) GROUP BY run_key LIMIT $1"
)
BAD_BLOBS: Final = (
    "SELECT sha256 FROM blobs WHERE sha256 IS DISTINCT FROM ("
    "SELECT sha256(string_agg(data, ''::bytea ORDER BY part)) FROM blob_parts WHERE blob_parts.sha256 = blobs.sha256"
    ") LIMIT $1"
)

PUT_PART: Final = "INSERT INTO blob_parts VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
NOTE_PUT: Final = "UPDATE blobs SET put_at_ms = greatest(put_at_ms, coalesce($2, server_ms())) WHERE sha256 = $1 RETURNING true"
PUT_BLOB: Final = "INSERT INTO blobs VALUES ($1, $2, $3, coalesce($4, server_ms())) ON CONFLICT DO NOTHING"
REGISTER_HOST: Final = (
    "INSERT INTO hosts VALUES ($2, $3, $4, $5, $6, coalesce($1, server_ms()) + $7) ON CONFLICT (host_id) DO UPDATE SET "
    "node = excluded.node, pid = excluded.pid, pid_start = excluded.pid_start, boot_id = excluded.boot_id, "
    "expires_at_ms = excluded.expires_at_ms"
)
RENEW_HOST: Final = (
    "UPDATE hosts SET expires_at_ms = coalesce($1, server_ms()) + $3 WHERE host_id = $2 RETURNING true"
)
DROP_HOST: Final = "SELECT to_json(drop_host($1, $2, $3))::text"
ACQUIRE: Final = "SELECT * FROM acquire_run($1, $2, $3, $4, $5)"
RELEASE: Final = "SELECT to_json(release_run($1, $2, $3, $4, $5))::text"
MARK_DAMAGED: Final = "SELECT to_json(mark_damaged($1, $2, $3))::text"
TURN_SWITCH: Final = "SELECT turn_switch($1, $2, $3, $4, $5, $6)"
HOLD_GROUPS: Final = (
    "WITH gone AS (DELETE FROM group_holds WHERE name <> ALL ($1::text[])) "
    "INSERT INTO group_holds SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[]) "
    "ON CONFLICT (name) DO UPDATE SET places = excluded.places, until_ms = excluded.until_ms"
)


def runs_query(where: RunFilter, after_key: int | None) -> tuple[str, list[object]]:
    """A page of runs, newest first, and its values."""
    values: list[object] = []

    def value(of: object) -> str:
        values.append(of)
        return f"${len(values)}"

    limit = value(where.limit)
    before = "true" if after_key is None else f"run_key < {value(after_key)}"
    pages: list[str] = []
    for branch in branches(where):
        tests = [
            f"{test.column} {test.operator} {value(test.value)}"
            for condition in branch.tests
            for test in beginning(condition, to_column)
        ]
        tests += [*_IN_ITS_INDEX.get(branch.lead, ()), before]
        # Where the index isn't in the order of the keys, the server must not go by theirs: it would look for a page of rare
        # runs through all.
        key = "run_key" if branch.in_order else "run_key + 0"
        pages.append(
            f"(SELECT run_key FROM runs WHERE {' AND '.join(tests)} ORDER BY {key} DESC LIMIT {limit})"
        )
    query = (
        f"SELECT {_RUN_COLUMNS} FROM runs WHERE run_key = ANY (ARRAY({' UNION ALL '.join(pages)})) "
        f"ORDER BY run_key DESC LIMIT {limit}"
    )
    return query, values


def run_row(row: Any) -> RunRow:
    """A run's index row."""
    return RunRow(
        run_id=from_column(row["run_id"]),
        tenant=from_column(row["tenant"]),
        agent=from_column(row["agent"]),
        operation_id=from_column(row["operation_id"]),
        parent_id=from_column(row["parent_id"]),
        root_id=from_column(row["root_id"]),
        created_at_ms=row["created_at_ms"],
        updated_at_ms=row["updated_at_ms"],
        seq=row["seq"],
        epoch=row["epoch"],
        head=row["head"],
        index=RunIndex(
            status=from_column(row["status"]),
            outcome=from_column(row["outcome"]),
            reason=from_column(row["reason"]),
            waiting_for=from_column(row["waiting_for"]),
            wake_at_ms=row["wake_at_ms"],
            waiting_keys=tuple(bytes.fromhex(key[2:]) for key in _keys(row["waiting_keys"])),
        ),
        owner=from_column(row["owner"]),
        ready=row["ready_at_ms"] is not None,
        damaged=from_column(row["damaged"]),
        pruned_at_ms=row["pruned_at_ms"],
    )


def stored_append(run_id: str, row: Any) -> StoredAppend:
    """A row of a run's log."""
    return StoredAppend(
        run_id=run_id,
        first_seq=row["first_seq"],
        event_count=row["event_count"],
        epoch=row["epoch"],
        append_id=row["append_id"],
        at_ms=row["at_ms"],
        causation=from_column(row["causation"]),
        schema_version=row["schema_version"],
        body=row["body"],
        hash=row["hash"],
    )


def host_row(row: Any) -> HostRow:
    """An owner row, from a record or from JSON."""
    return HostRow(
        host_id=from_column(row["host_id"]),
        node=from_column(row["node"]),
        pid=row["pid"],
        pid_start=row["pid_start"],
        boot_id=from_column(row["boot_id"]),
        expires_at_ms=row["expires_at_ms"],
    )


def switch_row(row: Any) -> Switch:
    """A switch that is on."""
    return Switch(
        scope=row["scope"],
        target=from_column(row["target"]),
        by=from_column(row["by"]),
        reason=from_column(row["reason"]),
        at_ms=row["at_ms"],
    )
