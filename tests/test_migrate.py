"""``store migrate``: where a schema stands, what is missing as SQL, and a schema of another version."""

from __future__ import annotations

import asyncio
import importlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import CommandLine
from tests.postgres_server import Server
from tests.written_runs import finished

from boundloop.eventstore import migrate, postgres_migrate
from boundloop.eventstore.location import open_store
from boundloop.eventstore.migrate import known_migrations
from boundloop.eventstore.postgres_url import parse_postgres_url
from boundloop.eventstore.upgrade import migrate_at, schema_at
from boundloop.runtime.errors import DamagedFile, StoreError

NEWEST = len(known_migrations())


def older(path: Path, number: int) -> None:
    """A file whose schema is the one of that migration."""
    raw = sqlite3.connect(path, isolation_level=None)
    for known, text in known_migrations()[:number]:
        migrate._apply(raw, known, text)  # pyright: ignore[reportPrivateUsage]  # an older version's file
    raw.close()


def schema(path: Path) -> list[Any]:
    raw = sqlite3.connect(path)
    found = raw.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY type, name").fetchall()
    found += [raw.execute(f"PRAGMA {name}").fetchone() for name in ("user_version", "application_id")]
    if found[0][0]:
        found += raw.execute("SELECT * FROM migrations").fetchall()
    raw.close()
    return found


def test_an_older_file_is_brought_to_the_newest_schema(cli: CommandLine) -> None:
    older(cli.path, 2)
    assert cli("store", "migrate").out == f"Schema {NEWEST}, reached from 2.\n"
    assert cli("store", "migrate").out == f"Schema {NEWEST}, was there already.\n"
    assert cli("store", "migrate", "-o", "json").value == {"kind": "sqlite", "before": NEWEST, "now": NEWEST}


@pytest.mark.parametrize("number", range(NEWEST))
def test_the_printed_sql_does_what_opening_does(cli: CommandLine, tmp_path: Path, number: int) -> None:
    older(cli.path, number)
    printed = cli("store", "migrate", "--print-sql").out
    by_hand, opened = tmp_path / "by_hand.db", tmp_path / "opened.db"
    for path in (by_hand, opened):
        older(path, number)
    raw = sqlite3.connect(by_hand, isolation_level=None)
    raw.executescript(printed)
    raw.close()
    asyncio.run(migrate_at(f"sqlite:///{opened}", create=True))
    assert schema(by_hand) == schema(opened)
    if number:
        assert asyncio.run(schema_at(cli.url)).found == number, "printing changed the file"
    assert asyncio.run(schema_at(f"sqlite:///{by_hand}")).missing_sql == ""


def test_a_missing_store_is_made_only_if_asked(cli: CommandLine) -> None:
    done = cli("store", "migrate")
    assert (done.code, cli.path.exists()) == (5, False)
    assert "no_such_store" in done.err
    assert cli("store", "migrate", "--create").out == f"Schema {NEWEST}, reached from 0.\n"


def test_a_newer_schema_is_refused(cli: CommandLine) -> None:
    older(cli.path, NEWEST)
    raw = sqlite3.connect(cli.path)
    raw.execute("PRAGMA user_version = 99")
    raw.close()
    for options in ((), ("--print-sql",)):
        done = cli("store", "migrate", *options)
        assert (done.code, "newer_schema" in done.err) == (5, True)


def test_other_texts_than_the_shipped_ones_are_refused(cli: CommandLine) -> None:
    older(cli.path, 2)
    raw = sqlite3.connect(cli.path)
    raw.execute("UPDATE migrations SET sha256 = 'x' WHERE number = 1")
    raw.commit()
    raw.close()
    assert "other migrations" in cli("store", "migrate", "--print-sql").err


def test_a_file_with_an_owner_is_the_owners(cli: CommandLine) -> None:
    async def work() -> None:
        store = await open_store(cli.url)
        try:
            done = await asyncio.to_thread(cli, "store", "migrate", "--print-sql")
            assert (done.code, "owned" in done.err) == (4, True)
        finally:
            await store.close()

    asyncio.run(work())


def test_a_look_at_a_store_that_isnt_there_makes_no_file(tmp_path: Path) -> None:
    assert asyncio.run(schema_at(f"sqlite:///{tmp_path}/none.db")).found == 0
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_another_program_has_open_is_locked_and_not_damaged(cli: CommandLine) -> None:
    """By the name that opening has for it."""
    older(cli.path, NEWEST)
    other = sqlite3.connect(cli.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(StoreError) as caught:
            asyncio.run(schema_at(cli.url))
        assert (type(caught.value), caught.value.code) == (StoreError, "file_locked")
    finally:
        other.close()
    assert asyncio.run(schema_at(cli.url)).found == NEWEST


def test_a_file_that_is_none_or_holds_no_utf8_is_damaged(cli: CommandLine) -> None:
    older(cli.path, NEWEST)
    whole = cli.path.read_bytes()
    name = whole.index(b"CREATE TABLE migrations")
    for bad in (b"no database" * 100, whole[:name] + b"CREATE TABLE migr\xff\xfeions" + whole[name + 23 :]):
        cli.path.write_bytes(bad)
        with pytest.raises(DamagedFile):
            asyncio.run(schema_at(cli.url))


@pytest.mark.asyncio
async def test_printed_sql_makes_a_schema_of_postgresql(postgres: Server) -> None:
    """By hand and by a store that opens: the same tables, functions and checksums. An older one is brought up too."""
    by_hand, opened, aged = (postgres.url() for _ in range(3))
    known = postgres_migrate.known_migrations()
    absent = await schema_at(by_hand)
    assert absent.found == 0
    await _psql(postgres, absent.missing_sql)
    first = postgres_migrate.missing_sql(parse_postgres_url(aged), 0)
    await _psql(postgres, first[: first.index("-- 0003")] + "COMMIT;")
    assert (await schema_at(aged)).found == 2
    later = (await schema_at(aged)).missing_sql
    assert known[2][1].rstrip() in later
    await _psql(postgres, later)
    before, now = await migrate_at(opened, create=True)
    assert (before.found, now.found) == (0, len(known))
    facts = [await _facts(url) for url in (by_hand, opened, aged)]
    assert facts[0] == facts[1] == facts[2]
    for url in (by_hand, aged):
        assert (await schema_at(url)).missing_sql == ""
        store = await open_store(url)
        await finished(store, "r1")
        await store.close()


async def _psql(server: Server, script: str) -> None:
    asyncpg: Any = importlib.import_module("asyncpg")
    connection = await asyncpg.connect(parse_postgres_url(server.url()).dsn)
    try:
        await connection.execute(script)
    finally:
        await connection.close()


async def _facts(url: str) -> list[Any]:
    place = parse_postgres_url(url)
    asyncpg: Any = importlib.import_module("asyncpg")
    connection = await asyncpg.connect(place.dsn, server_settings={"search_path": place.schema})
    try:
        queries = (
            (
                "SELECT table_name, column_name, data_type, is_generated FROM information_schema.columns "
                "WHERE table_schema = current_schema ORDER BY 1, 2"
            ),
            (
                "SELECT indexname, replace(indexdef, current_schema || '.', '') FROM pg_indexes "
                "WHERE schemaname = current_schema ORDER BY 1"
            ),
            "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = current_schema::regnamespace ORDER BY 1",
            (
                "SELECT tgname FROM pg_trigger JOIN pg_class ON tgrelid = pg_class.oid "
                "WHERE relnamespace = current_schema::regnamespace ORDER BY 1"
            ),
            "SELECT * FROM migrations ORDER BY 1",
        )
        return [[tuple(row) for row in await connection.fetch(query)] for query in queries]
    finally:
        await connection.close()
