"""Migrations of a PostgreSQL schema that take long, are in each other's way, or lose their connection."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.contract.log_writer import LogWriter
from tests.postgres_server import OUT_OF_STEP, Server

from boundloop.eventstore import postgres_link, postgres_migrate
from boundloop.eventstore.location import connect_store, open_store
from boundloop.eventstore.port import HostRow
from boundloop.eventstore.postgres import PostgresStore
from boundloop.eventstore.postgres_facts import server_facts
from boundloop.eventstore.postgres_url import parse_postgres_url
from boundloop.eventstore.upgrade import migrate_at, schema_at
from boundloop.runtime.errors import StoreError
from boundloop.runtime.ledger import RunIndex

pytestmark = pytest.mark.asyncio

KNOWN = postgres_migrate.known_migrations()
NEWEST = KNOWN[-1][0]
LOOKS = 10_000


@asynccontextmanager
async def raw_connection(url: str) -> AsyncGenerator[Any]:
    place = parse_postgres_url(url)
    asyncpg: Any = importlib.import_module("asyncpg")
    connection = await asyncpg.connect(place.dsn, server_settings={"search_path": f'"{place.schema}"'})
    try:
        yield connection
    finally:
        await connection.close()


async def of_this_version(url: str) -> None:
    store = await open_store(url)
    await store.close()


async def of_version(url: str, number: int) -> None:
    async with raw_connection(url) as raw:
        await postgres_migrate.migrate(raw, parse_postgres_url(url))
    assert (await schema_at(url)).found == number


def plant(patch: pytest.MonkeyPatch, text: str) -> None:
    """One migration more than are shipped."""
    patch.setattr(postgres_migrate, "known_migrations", lambda: [*KNOWN, (NEWEST + 1, text)])


async def test_a_migration_may_take_longer_than_any_other_statement(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.url()
    await of_this_version(url)
    monkeypatch.setattr(postgres_link, "ANSWER_S", 0.5)
    plant(monkeypatch, "SELECT pg_sleep(1)")
    before, now = await migrate_at(url)
    assert (before.found, now.found) == (NEWEST, NEWEST + 1)


async def test_who_opens_a_schema_that_another_process_migrates_is_told_so(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.url()
    await of_this_version(url)
    monkeypatch.setattr(postgres_link, "LOCK_WAIT_MS", 100)
    plant(monkeypatch, "SELECT 1")
    async with raw_connection(url) as other, other.transaction():
        name = f"boundloop {parse_postgres_url(url).schema}"
        await other.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", name)
        with pytest.raises(StoreError) as caught:
            await open_store(url)
        assert caught.value.code == "schema_migrating"
    await of_this_version(url)
    assert (await schema_at(url)).found == NEWEST + 1


async def test_a_migration_that_a_host_is_in_the_way_of_says_so_and_changes_nothing(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.url()
    await of_this_version(url)
    monkeypatch.setattr(postgres_link, "LOCK_WAIT_MS", 100)
    plant(monkeypatch, "ALTER TABLE identity ADD COLUMN more bigint; ALTER TABLE runs ADD COLUMN more bigint")
    async with raw_connection(url) as host, host.transaction():
        await host.execute("LOCK TABLE runs IN ROW EXCLUSIVE MODE")
        with pytest.raises(StoreError) as caught:
            await open_store(url)
        assert caught.value.code == "schema_in_use"
        assert await host.fetch("SELECT * FROM identity LIMIT 1"), "not locked any more"
    assert (await schema_at(url)).found == NEWEST
    await of_this_version(url)
    assert (await schema_at(url)).found == NEWEST + 1


async def test_a_migration_whose_connection_is_cut_is_ended_on_the_server_before_anybody_is_told(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.url()
    await of_this_version(url)
    monkeypatch.setattr(postgres_migrate, "MIGRATION_S", 0.5)
    plant(
        monkeypatch,
        "SET LOCAL statement_timeout = 0; SET LOCAL client_connection_check_interval = 0; "
        "LOCK TABLE runs; SELECT pg_sleep(600) /* of this migration */",
    )
    async with raw_connection(url) as look:
        with pytest.raises(StoreError) as caught:
            await open_store(url)
        left = await look.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%of this migration%' AND pid <> pg_backend_pid()"
        )
        assert left == 0
        await look.fetch("SELECT FROM runs")
    assert caught.value.code == "migration_cut"
    assert "nothing was changed" in caught.value.message
    assert "(connection was closed in the middle of operation)" in caught.value.message
    assert (await schema_at(url)).found == NEWEST


async def test_a_migration_whose_connection_the_server_ends_while_it_waits_says_why(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.url()
    await of_this_version(url)
    plant(monkeypatch, "ALTER TABLE runs ADD COLUMN more bigint")
    async with raw_connection(url) as host, host.transaction():
        await host.execute("LOCK TABLE runs IN ROW EXCLUSIVE MODE")
        opening = asyncio.create_task(open_store(url))
        for _ in range(LOOKS):
            await asyncio.sleep(0)
            if await host.fetch(
                "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE NOT granted AND relation = 'runs'::regclass"
            ):
                break
        else:
            raise AssertionError("it waits for nothing")
        with pytest.raises(StoreError) as caught:
            await opening
    assert caught.value.code == "migration_cut"
    assert "terminating connection due to administrator command)" in caught.value.message
    assert "__" not in caught.value.message


async def test_the_server_ends_a_migration_by_itself_whose_process_is_gone(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.url()
    await of_this_version(url)
    plant(
        monkeypatch,
        "CREATE TABLE bounds AS SELECT current_setting('client_connection_check_interval') AS looks, "
        "current_setting('statement_timeout') AS takes",
    )
    async with raw_connection(url) as raw:
        await postgres_migrate.migrate(raw, parse_postgres_url(url))
        row = await raw.fetchrow("SELECT looks, takes FROM bounds")
        assert (row["looks"], row["takes"]) == ("5s", "1h")
        assert await raw.fetchval("SELECT current_setting('statement_timeout')") == "0"


async def test_runs_from_before_there_was_a_due_time_have_theirs(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.url()
    with monkeypatch.context() as patch:
        patch.setattr(postgres_migrate, "known_migrations", lambda: KNOWN[:6])
        await of_version(url, 6)
    async with raw_connection(url) as raw:
        await raw.execute(
            "INSERT INTO runs (run_id, seq, epoch, head, updated_at_ms, created_at_ms, tenant, agent, operation_id, parent_id, "
            "root_id, status, outcome, reason, waiting_for, waiting_keys, wake_at_ms, owner) "
            "SELECT run_id, 1, 1, '', 5, 1, 't', 'a', '', '', '', status, '', '', '', '{}', wake_at_ms, owner "
            "FROM (VALUES ('owned', 'executing', 100, 'h'), ('due', 'executing', 100, ''), ('later', 'suspended', 300, ''), "
            "('none', 'terminated', NULL, '')) AS run (run_id, status, wake_at_ms, owner)"
        )
        await raw.execute("INSERT INTO hosts VALUES ('h', 'n', 1, 1, 'b', 1000)")
    store = await PostgresStore.open(url, clock=lambda: 200)
    assert await store.ready_runs() == ["due"]
    assert await store.next_wake_ms() == 100
    rests = await store.read_with(
        lambda connection: connection.fetch(
            "SELECT run_id, rest, rested_at_ms FROM runs WHERE rest <> '' ORDER BY 1"
        )
    )
    assert [tuple(row) for row in rests] == [("later", "suspended", 5), ("none", "terminated", 5)]
    await store.close()


@pytest.mark.parametrize("way", ["creates", "lets_go", "gives_back", "takes", "goes"])
async def test_a_statement_that_waits_while_the_schema_is_migrated_leaves_rows_as_they_should_be(
    postgres: Server, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """It was begun in a function as that was before, and goes on in it afterwards."""
    url = postgres.url()
    with monkeypatch.context() as patch:
        patch.setattr(postgres_migrate, "known_migrations", lambda: KNOWN[:6])
        store = await PostgresStore.open(url, clock=lambda: 5)
    await store.register_host(HostRow(host_id="h", node="n", pid=1, pid_start=1, boot_id="b"))
    waits = RunIndex(status="suspended", waiting_for="timer", wake_at_ms=100)
    log, parked = LogWriter(store, "r1", "h", at_ms=1), LogWriter(store, "r2", "h", at_ms=1)
    await log.write("one", index=RunIndex(status="open_calls", wake_at_ms=100))
    await parked.write("one", index=waits, release=True)
    new = LogWriter(store, "r3", "h", at_ms=1)
    begin: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
        "creates": lambda: new.append("one", index=waits, release=True),
        "lets_go": lambda: log.append("two", index=waits, release=True),
        "gives_back": lambda: store.release("r1", "h", 1, ready=False),
        "takes": lambda: store.acquire("r2", "h"),
        "goes": lambda: store.drop_host("h"),
    }
    async with raw_connection(url) as raw, raw.transaction():
        await postgres_migrate.migrate(raw, parse_postgres_url(url))
        waiting = asyncio.create_task(begin[way]())
        for _ in range(LOOKS):
            await asyncio.sleep(0)
            if await raw.fetchval(
                "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'runs'::regclass)"
            ):
                break
        else:
            raise AssertionError("it waits for nothing")
    await waiting
    async with raw_connection(url) as raw:
        assert await raw.fetch(OUT_OF_STEP.format(schema=parse_postgres_url(url).schema)) == []
    await store.close()


async def test_two_that_open_a_new_store_at_once_find_one(postgres: Server) -> None:
    url = postgres.url()
    stores = await asyncio.gather(*(open_store(url) for _ in range(3)))
    assert len({await store.identity() for store in stores}) == 1
    for store in stores:
        await store.close()


MADE = """
SELECT relname FROM pg_class JOIN pg_namespace AS n ON n.oid = relnamespace WHERE nspname = $1
    AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = pg_class.oid)
    AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = pg_class.oid AND deptype = 'i' AND relkind = 'S')
UNION SELECT proname FROM pg_proc JOIN pg_namespace AS n ON n.oid = pronamespace WHERE nspname = $1
"""
"""All but what the server names by itself, which takes another name where that one is taken."""


async def test_the_names_that_migrations_make_are_known_without_a_server(postgres: Server) -> None:
    url = postgres.url()
    await of_this_version(url)
    async with raw_connection(url) as raw:
        found = {row[0] for row in await raw.fetch(MADE, parse_postgres_url(url).schema)}
    assert postgres_migrate.names_made(KNOWN) | {"migrations"} == found


async def objects_in(url: str) -> set[str]:
    async with raw_connection(url) as raw:
        return {row[0] for row in await raw.fetch(MADE, parse_postgres_url(url).schema)}


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("CREATE TABLE runs (id int)", "a table runs"),
        ("CREATE TABLE migrations (id int PRIMARY KEY, name text)", "a table migrations"),
        ("CREATE TABLE migrations (number text, sha256 text)", "a table migrations"),
        ("CREATE VIEW migrations AS SELECT 1::bigint AS number, ''::text AS sha256", "a view migrations"),
        ("CREATE SEQUENCE hosts", "a sequence hosts"),
        (
            "CREATE TABLE other (id int); CREATE INDEX runs_due ON other (id); CREATE INDEX runs_wake ON other (id)",
            "an index runs_wake",
        ),
        ("CREATE TYPE claim_item AS ENUM ('a')", "a type claim_item"),
        ("CREATE TYPE woken_run AS (a int)", "a type woken_run"),
        ("CREATE FUNCTION note_put(a int) RETURNS int LANGUAGE sql AS 'SELECT 1'", "a function note_put"),
    ],
)
async def test_a_schema_that_another_application_uses_is_refused_by_name_and_left_as_it_was(
    postgres: Server, statement: str, what: str
) -> None:
    url = postgres.url()
    schema = parse_postgres_url(url).schema
    async with raw_connection(url) as raw:
        await raw.execute(f"CREATE SCHEMA {schema}; {statement}")
    before = await objects_in(url)
    ways: list[Callable[[], Coroutine[Any, Any, object]]] = [
        lambda: open_store(url),
        lambda: connect_store(url, must_exist=True),
        lambda: migrate_at(url),
        lambda: schema_at(url),
        lambda: server_facts(url),
    ]
    for way in ways:
        with pytest.raises(StoreError) as caught:
            await way()
        assert caught.value.code == "schema_taken"
        assert f"schema {schema} " in caught.value.message
        assert f"{what} " in caught.value.message
        assert "?schema=" in caught.value.message
    assert await objects_in(url) == before


async def test_a_schema_with_other_names_in_it_takes_a_store_beside_them(postgres: Server) -> None:
    url = postgres.url()
    async with raw_connection(url) as raw:
        schema = parse_postgres_url(url).schema
        await raw.execute(
            f"CREATE SCHEMA {schema}; CREATE TABLE invoices (id int); CREATE TABLE run (id int)"
        )
    await of_this_version(url)
    assert (await schema_at(url)).found == NEWEST


async def test_a_name_that_a_later_migration_needs_is_refused_too(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.url()
    await of_this_version(url)
    async with raw_connection(url) as raw:
        await raw.execute("CREATE TABLE invoices (id int)")
    plant(
        monkeypatch,
        "CREATE TABLE invoices (id int);\nDROP INDEX runs_ready;\nCREATE INDEX runs_ready ON runs (run_key);",
    )
    with pytest.raises(StoreError) as caught:
        await open_store(url)
    assert caught.value.code == "schema_taken"
    assert "a table invoices " in caught.value.message
    async with raw_connection(url) as raw:
        await raw.execute("DROP TABLE invoices")
    await of_this_version(url)
    assert (await schema_at(url)).found == NEWEST + 1


@pytest.mark.parametrize("is_made", [True, False])
async def test_a_role_that_may_not_look_is_told_so_and_not_that_there_is_no_store(
    postgres: Server, is_made: bool
) -> None:
    url = postgres.url()
    schema = parse_postgres_url(url).schema
    if is_made:
        await of_this_version(url)
    async with raw_connection(url) as raw:
        await raw.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}; CREATE ROLE of_{schema} LOGIN")
    for must_exist in (True, False):
        with pytest.raises(StoreError) as caught:
            await PostgresStore.open(url.replace("//postgres@", f"//of_{schema}@"), must_exist=must_exist)
        assert caught.value.code == "access_refused"
