"""What a PostgreSQL store insists on before it takes a database for one."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

import pytest
from tests.postgres_server import Server, running

from boundloop.eventstore.postgres import PostgresStore
from boundloop.eventstore.postgres_url import parse_postgres_url
from boundloop.runtime.errors import BoundloopError, DamagedFile, NewerSchema, StoreError, StoreUrlError

from .log_writer import LogWriter


async def sql(url: str, statement: str, *args: object) -> Any:
    """One statement, beside the store."""
    place = parse_postgres_url(url)
    asyncpg: Any = importlib.import_module("asyncpg")
    connection = await asyncpg.connect(place.dsn, server_settings={"search_path": place.schema})
    try:
        return await connection.fetchval(statement, *args)
    finally:
        await connection.close()


async def refusal(url: str, **options: Any) -> BoundloopError:
    """Why the store isn't opened."""
    with pytest.raises(BoundloopError) as caught:
        await PostgresStore.open(url, **options)
    return caught.value


@pytest.mark.asyncio
async def test_a_process_has_two_connections_whatever_it_does(postgres: Server) -> None:
    url = postgres.url()
    before: int = await sql(
        url, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'boundloop%'"
    )
    store = await PostgresStore.open(url, on_ready=lambda run_ids: None)
    logs = [LogWriter(store, f"r{number}") for number in range(20)]
    await asyncio.gather(*(log.write("one") for log in logs))
    await asyncio.gather(
        *(log.write("two") for log in logs),
        *(store.read(log.run_id) for log in logs),
        store.put_blob(b"x" * 10**6),
    )
    after: int = await sql(
        url, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'boundloop%'"
    )
    assert after - before == 2
    await store.close()


@pytest.mark.asyncio
async def test_a_cancelled_read_runs_to_its_end(postgres: Server) -> None:
    """To cancel it the driver would make a third connection."""
    store = await PostgresStore.open(postgres.url())
    slow = asyncio.ensure_future(
        store.read_with(
            lambda connection: connection.fetchval(
                "SELECT set_config('a.b', 'done', false) FROM pg_sleep(0.1)"
            )
        )
    )
    while not slow.done():
        await asyncio.sleep(0)
        slow.cancel()
    assert slow.cancelled()
    found = await store.read_with(
        lambda connection: connection.fetchval("SELECT current_setting('a.b', true)")
    )
    assert found == "done"
    await store.close()


@pytest.mark.asyncio
async def test_commits_are_flushed_whatever_the_role_is_set_to(postgres: Server) -> None:
    url = postgres.url()
    await sql(url, "ALTER DATABASE postgres SET synchronous_commit = off")
    try:
        store = await PostgresStore.open(url)
        shown = await store.write_with(lambda connection: connection.fetchval("SHOW synchronous_commit"))
        assert shown == "on"
        await store.close()
    finally:
        await sql(url, "ALTER DATABASE postgres RESET synchronous_commit")


@pytest.mark.asyncio
async def test_a_server_that_may_lose_all_is_refused() -> None:
    with running("fsync = off\n") as server:
        error = await refusal(server.url())
    assert (error.code, "fsync" in error.message) == ("server_unfit", True)


@pytest.mark.asyncio
async def test_a_database_that_cannot_hold_every_text_is_refused(postgres: Server) -> None:
    url = postgres.url()
    await sql(url, "CREATE DATABASE narrow ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    error = await refusal(url.replace("/postgres?", "/narrow?"))
    assert (error.code, "LATIN1" in error.message) == ("server_unfit", True)


@pytest.mark.asyncio
async def test_a_newer_or_altered_schema_is_refused_untouched(postgres: Server) -> None:
    url = postgres.url()
    await (await PostgresStore.open(url)).close()
    await sql(url, "INSERT INTO migrations VALUES (999, 'x')")
    newer = await refusal(url)
    assert isinstance(newer, NewerSchema)
    assert newer.found == 999
    await sql(url, "DELETE FROM migrations WHERE number = 999")
    await sql(url, "UPDATE migrations SET sha256 = 'x' WHERE number = 1")
    assert isinstance(await refusal(url), DamagedFile)


@pytest.mark.asyncio
async def test_processes_that_open_a_new_store_at_once_agree(postgres: Server) -> None:
    url = postgres.url()
    stores = await asyncio.gather(*(PostgresStore.open(url) for _ in range(6)))
    assert len({await store.identity() for store in stores}) == 1
    for store in stores:
        await store.close()


@pytest.mark.asyncio
async def test_a_database_and_a_store_that_are_not_there_are_named(postgres: Server) -> None:
    assert (await refusal(postgres.url().replace("/postgres?", "/nothing?"))).code == "no_such_database"
    missing = await refusal(postgres.url(), must_exist=True)
    assert isinstance(missing, StoreUrlError)


@pytest.mark.asyncio
async def test_another_store_at_the_same_address_is_written_nothing(postgres: Server) -> None:
    url = postgres.url()
    schema = parse_postgres_url(url).schema
    store = await PostgresStore.open(url)
    log = LogWriter(store, "r1")
    await log.write("one")
    await sql(url, f"DROP SCHEMA {schema} CASCADE")
    await (await PostgresStore.open(url)).close()
    await sql(
        url,
        "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity "
        "WHERE application_name LIKE 'boundloop%' AND pid <> pg_backend_pid()",
    )
    codes: list[str] = []
    for _ in range(2):  # the first may meet the end of its connection
        with pytest.raises(StoreError) as caught:
            await log.append("two")
        codes.append(caught.value.code)
    assert codes[-1] == "store_replaced"
    assert await sql(url, "SELECT count(*) FROM runs") == 0
    await store.close()
