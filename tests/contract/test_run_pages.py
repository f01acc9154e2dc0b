"""What a list of runs costs: each filter is led by an index on SQLite and PostgreSQL, and pages end early."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.contract.log_writer import LogWriter
from tests.postgres_server import Server

from boundloop.eventstore import postgres_rows
from boundloop.eventstore.migrate import known_migrations
from boundloop.eventstore.port import RunFilter
from boundloop.eventstore.postgres import PostgresStore
from boundloop.eventstore.run_pages import branches
from boundloop.eventstore.sqlite import SqliteStore
from boundloop.eventstore.sqlite_file import connect
from boundloop.eventstore.sqlite_rows import runs_query
from boundloop.eventstore.testkit.list_cases import FILTERS, INDEXES
from boundloop.runtime.ledger import RunIndex

LED = [given for given in FILTERS if "" not in given.values() or given == {"status": ""}]
"""All but the tests for an empty text, which most runs or none pass."""

READS_ALL = ("SCAN runs", "Seq Scan on runs")


@pytest.mark.parametrize("given", LED, ids=str)
def test_sqlite_goes_through_the_leading_index(tmp_path: Path, given: dict[str, Any]) -> None:
    connection = connect(str(tmp_path / "runs.db"))
    for before in (None, 50):
        query, values = runs_query(RunFilter(**given), before)
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", values)]
        assert not [step for step in plan if step.startswith("SCAN runs")], plan
        for branch in branches(RunFilter(**given)):
            index = _INDEXES[branch.lead]
            assert any(f"INDEX {index} " in step for step in plan), (branch.lead, plan)
    connection.close()


_INDEXES = {
    "operation_id": "runs_operation",
    "root_id": "runs_root",
    "waiting_for": "runs_waiting",
    "outcome": "runs_outcome",
    "rest": "runs_rest",
    "rested_at_ms": "runs_rested",
    "agent": "runs_agent",
    "tenant": "runs_tenant",
    "created_at_ms": "runs_created",
}


@pytest.mark.asyncio
async def test_postgresql_reads_no_run_that_it_does_not_show(postgres: Server) -> None:
    """By what it did with 3,000 runs, not by what it planned: the rows that each part of the plan threw away are few."""
    store = await PostgresStore.open(postgres.url())
    await store.write_with(
        lambda connection: connection.execute(
            "INSERT INTO runs (run_id, seq, epoch, head, updated_at_ms, created_at_ms, tenant, agent, operation_id, "
            "parent_id, root_id, status, outcome, reason, waiting_for, waiting_keys, owner) "
            "SELECT 'r' || n, 1, 1, 'h', 1700000000000 + n, 1700000000000 + n, 't' || n % 100, 'a' || n % 200, "
            "'o' || n, '', 'r' || n / 10, CASE WHEN n % 100 = 0 THEN 'suspended' WHEN n % 100 = 1 THEN 'executing' "
            "ELSE 'terminated' END, CASE WHEN n % 100 = 0 THEN 'incomplete' WHEN n % 100 = 1 THEN '' "
            "WHEN n % 100 = 2 THEN 'failed' ELSE 'completed' END, '', "
            "CASE WHEN n % 100 = 0 THEN 'person:c' || n ELSE '' END, '{}', '' FROM generate_series(1, 3000) AS n"
        )
    )
    await store.write_with(lambda connection: connection.execute("ANALYZE runs"))
    since = 1_700_000_000_000
    asked: tuple[dict[str, Any], ...] = (
        {"tenant": "t7"},
        {"agent": "a7"},
        {"operation_id": "o9"},
        {"root_id": "r9"},
        {"outcome": "failed"},
        {"status": "suspended"},
        {"status": "executing"},
        {"waiting_for_prefix": "person:"},
        {"created_since_ms": since + 5, "created_until_ms": since + 15},
        {"updated_since_ms": since + 5, "updated_until_ms": since + 15},
        {"status": "terminated", "tenant": "t7"},
    )
    for given in asked:
        for after_key in (None, 2_000):
            query, values = postgres_rows.runs_query(RunFilter(limit=50, **given), after_key)
            plan: str = await store.read_with(
                lambda connection, query=query, values=values: connection.fetchval(  # type: ignore[misc]  # mypy infers no type for a lambda with defaults
                    f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", *values
                )
            )
            thrown = sum(_thrown(step["Plan"]) for step in msgspec.json.decode(plan))
            assert thrown <= 60, (given, after_key, plan)
    await store.close()


def _thrown(step: dict[str, Any]) -> int:
    own = int(step.get("Rows Removed by Filter", 0)) + int(step.get("Rows Removed by Index Recheck", 0))
    return own + sum(_thrown(below) for below in step.get("Plans", ()))


@pytest.mark.asyncio
async def test_an_append_of_a_run_that_goes_on_touches_no_index_of_postgresql(postgres: Server) -> None:
    store = await PostgresStore.open(postgres.url())
    log = LogWriter(store, "r1", "h1")
    await log.write("one")
    for number in range(20):
        log.at_ms += 1
        await log.write("on", index=_goes_on(log.at_ms, number))
    kept: int = 0
    # The server counts behind; the connection that wrote reports once it ends.
    await store.close()
    store = await PostgresStore.open(postgres.url(_schema(store)))
    for _ in range(100):
        kept = await store.read_with(
            lambda connection: connection.fetchval(
                "SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'runs' AND schemaname = current_schema"
            )
        )
        if kept == 20:
            break
    assert kept == 20
    await store.close()


def _goes_on(at_ms: int, number: int) -> RunIndex:
    """As a run leaves it whose steps have deadlines."""
    return RunIndex(status=("executing", "requesting_model")[number % 2], wake_at_ms=at_ms + 30_000)


def _schema(store: PostgresStore) -> str:
    return store.path.rpartition("schema=")[2]


def test_lists_of_a_file_from_before_there_were_lists_are_the_same(tmp_path: Path) -> None:
    """The columns that the migration adds are filled for the runs that are there."""
    path = str(tmp_path / "runs.db")
    connection = connect(path)
    for number, index in enumerate(INDEXES):
        connection.execute(
            "INSERT INTO runs (run_id, seq, epoch, head, updated_at_ms, created_at_ms, tenant, agent, operation_id, "
            "parent_id, root_id, status, outcome, reason, waiting_for, owner) "
            "VALUES (?, 1, 1, x'00', ?, 1, 't', 'a', '', '', '', ?, ?, '', ?, '')",
            (f"r{number}", number, index.status, index.outcome, index.waiting_for),
        )
    [text] = [text for number, text in known_migrations() if number == 4]
    fill = text[text.index("UPDATE runs") : text.index(";", text.index("UPDATE runs"))]
    connection.execute(fill)
    found = connection.execute("SELECT rest, rested_at_ms FROM runs ORDER BY run_key").fetchall()
    connection.close()
    wanted: list[tuple[str, int | None]] = []
    for number, index in enumerate(INDEXES):
        rests = bool(index.waiting_for) or index.status in ("suspended", "terminated")
        wanted.append((index.status, number) if rests else ("", None))
    assert found == wanted


@pytest.mark.asyncio
async def test_an_append_of_a_run_that_goes_on_changes_no_indexed_column_of_sqlite(tmp_path: Path) -> None:
    """SQLite rewrites an index entry whenever its column is named in SET, so what is named matters; but an index that has no entry of
    a run that somebody owns is left alone."""
    path = str(tmp_path / "runs.db")
    store = await SqliteStore.open(path)
    log = LogWriter(store, "r1", "h1")
    await log.write("one")
    said: list[str] = []

    def listen() -> None:
        store._thread.connection.set_trace_callback(said.append)  # pyright: ignore[reportPrivateUsage]  # where the statements pass

    await store._thread.submit(listen, writes=False, light=False)  # pyright: ignore[reportPrivateUsage]  # on the thread that has it
    await log.write("on", index=_goes_on(log.at_ms, 1))
    await store.close()
    [update] = [text for text in said if text.startswith("UPDATE runs")]
    named = {
        part.split("=")[0].strip() for part in update.partition("SET ")[2].partition(" WHERE")[0].split(",")
    }
    raw = sqlite3.connect(path)
    indexed = {
        column
        for (name,) in raw.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'runs' "
            "AND coalesce(sql, '') NOT LIKE '%owner = ''%'"
        )
        for (_, _, column) in raw.execute(f"PRAGMA index_info({name})")
    }
    raw.close()
    assert named & indexed == set()
