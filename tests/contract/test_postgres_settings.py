"""What a PostgreSQL store insists on before it takes a database for one."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from typing import Any

import pytest
from tests.postgres_server import Server, running

from boundloop.eventstore import postgres_writer
from boundloop.eventstore.postgres import PostgresStore
from boundloop.eventstore.postgres_link import WrongSettings
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
@pytest.mark.parametrize(
    ("query", "environment", "says"),
    [
        ("sslmode=verify-full&sslrootcert=/nowhere/ca", {}, "sslrootcert can't be read: No such file"),
        ("sslmode=require&sslrootcert={folder}", {}, "sslrootcert can't be read: "),
        ("sslmode=verify-ca&sslcrl=/nowhere/crl&sslrootcert={empty}", {}, "sslrootcert can't be read: "),
        ("sslcert=/nowhere/cert", {}, "sslcert can't be read: No such file"),
        ("sslmode=verify-full", {"PGSSLROOTCERT": "/nowhere/ca"}, "sslrootcert can't be read: No such file"),
        ("sslmode=verify-full", {"HOME": "/nowhere"}, "root certificate file"),
        ("", {"PGSSLMODE": "bogus"}, "sslmode"),
        ("", {"PGPORT": "1,2"}, "2 port numbers"),
        ("", {"PGPORT": "s3cret"}, "in a PG variable, can't be read"),
        ("", {"PGPORT": "0012345678"}, "in a PG variable, can't be read"),
    ],
)
async def test_settings_with_which_no_server_can_be_asked_are_the_callers_mistake_at_once(
    query: str, environment: dict[str, str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").write_bytes(b"")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    query = query.format(folder=tmp_path, empty=tmp_path / "empty")
    error = await refusal(f"postgresql://app:s3cret@127.0.0.1/runs?{query}")
    assert isinstance(error, WrongSettings)
    assert (error.actor, says in error.message) == ("caller", True), error.message
    cause: BaseException | None = error
    while cause is not None:
        assert "s3cret" not in f"{cause} {cause!r}"
        cause = cause.__context__


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "query", ["", "&sslmode=prefer&sslrootcert=/nowhere/ca", "&sslmode=disable&sslkey=/nowhere/key"]
)
async def test_a_socket_that_is_not_there_may_be_there_soon(
    query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_writer, "REACH_S", 0)
    assert (await refusal(f"postgresql:///runs?host=/nowhere{query}")).code == "store_unreachable"


@pytest.mark.asyncio
async def test_a_file_that_goes_while_the_store_is_open_is_waited_for(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Certificates are replaced under hosts that work: to them it is an outage."""
    url = postgres.url()
    store = await PostgresStore.open(url)
    log = LogWriter(store, "r1")
    await log.write("one")
    monkeypatch.setattr(postgres_writer, "REACH_S", 0)
    await sql(
        url,
        "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity "
        "WHERE application_name LIKE 'boundloop%' AND pid <> pg_backend_pid()",
    )
    with monkeypatch.context() as gone:
        gone.setenv("PGSSLMODE", "verify-full")
        gone.setenv("PGSSLROOTCERT", "/nowhere/ca")
        codes: set[str] = set()
        for _ in range(2):  # the first may meet the end of its connection
            with pytest.raises(StoreError) as caught:
                await log.append("two")
            codes.add(caught.value.code)
            with pytest.raises(StoreError) as caught:
                await store.read("r1")
            codes.add(caught.value.code)
    assert codes <= {"store_unreachable", "commit_unknown"}
    await log.append("two")
    assert len(await store.read("r1")) == 2
    await store.close()


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
