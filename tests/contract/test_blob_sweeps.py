"""A sweep and a put of one blob at one moment, on PostgreSQL: whoever comes second waits, and the blob is there whole or not."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from tests.contract.log_writer import LogWriter
from tests.postgres_server import Server

from boundloop.eventstore.port import Appended
from boundloop.eventstore.postgres import TOGETHER_BYTES_MAX, PostgresStore
from boundloop.eventstore.postgres_upkeep import DROP_BLOBS
from boundloop.eventstore.postgres_url import parse_postgres_url

pytestmark = pytest.mark.asyncio

SMALL = b"small" * 10
LARGE = b"large" * (TOGETHER_BYTES_MAX // 4)
FAR_AHEAD_MS = 1 << 50


@asynccontextmanager
async def raw_connection(url: str) -> AsyncGenerator[Any]:
    place = parse_postgres_url(url)
    asyncpg: Any = importlib.import_module("asyncpg")
    connection = await asyncpg.connect(place.dsn, server_settings={"search_path": place.schema})
    try:
        yield connection
    finally:
        await connection.close()


async def until_one_waits(connection: Any) -> None:
    """For a lock, on a server that is this test's alone meanwhile."""
    for _ in range(10_000):
        waiting = await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
            "AND application_name LIKE 'boundloop%'"
        )
        if waiting:
            return
    raise AssertionError("nobody waited")


async def old_blob(store: PostgresStore, data: bytes) -> bytes:
    digest = await store.put_blob(data)
    await store.write_with(lambda connection: connection.execute("UPDATE blobs SET put_at_ms = 1"))
    return digest


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("how", ["put", "append"])
async def test_what_is_put_while_a_sweep_removes_it_is_there_afterwards(
    postgres: Server, how: str, data: bytes
) -> None:
    url = postgres.url()
    store = await PostgresStore.open(url)
    digest = await old_blob(store, data)
    log = LogWriter(store, "r1")
    async with raw_connection(url) as sweep:
        transaction = sweep.transaction()
        await transaction.start()
        assert await sweep.fetchval(DROP_BLOBS, [digest], FAR_AHEAD_MS) == 1
        if how == "put":
            putting: asyncio.Task[Any] = asyncio.create_task(store.put_blob(data))
        else:
            request = msgspec.structs.replace(log.request("one"), blobs=((digest, data),))
            putting = asyncio.create_task(store.append(request))
        async with raw_connection(url) as look:
            await until_one_waits(look)
        assert not putting.done()
        await transaction.commit()
    answer = await putting
    assert answer == digest or isinstance(answer, Appended)
    assert await store.get_blob(digest) == data
    assert await store.faults() == []
    await store.close()


async def test_a_sweep_waits_for_a_put_that_is_under_way_and_leaves_the_blob(postgres: Server) -> None:
    url = postgres.url()
    store = await PostgresStore.open(url)
    digest = await old_blob(store, SMALL)
    async with raw_connection(url) as put:
        transaction = put.transaction()
        await transaction.start()
        # As an append does whose transaction hasn't ended.
        await put.execute("INSERT INTO blobs VALUES ($1, $2, 1) ON CONFLICT DO NOTHING", digest, len(SMALL))
        sweeping = asyncio.create_task(store.drop_blobs([digest], put_before_ms=1_000))
        async with raw_connection(url) as look:
            await until_one_waits(look)
        assert not sweeping.done()
        await transaction.commit()
    assert await sweeping == 0
    assert await store.get_blob(digest) == SMALL
    await store.close()


@pytest.mark.parametrize("how", ["put", "append"])
async def test_a_sweep_between_the_parts_of_a_put_and_its_row_takes_no_part_away(
    postgres: Server, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await PostgresStore.open(postgres.url())
    digest = await old_blob(store, LARGE)
    uploaded = store._upload  # pyright: ignore[reportPrivateUsage]  # the moment that is meant is inside of it
    dropped: list[int] = []

    async def uploading(name: bytes, data: bytes) -> None:
        await uploaded(name, data)
        dropped.append(await store.drop_blobs([digest], put_before_ms=1_000))

    monkeypatch.setattr(store, "_upload", uploading)
    if how == "put":
        await store.put_blob(LARGE)
    else:
        request = LogWriter(store, "r1").request("one")
        await store.append(msgspec.structs.replace(request, blobs=((digest, LARGE),)))
    assert dropped == [0]
    assert await store.get_blob(digest) == LARGE
    assert await store.faults() == []
    await store.close()
