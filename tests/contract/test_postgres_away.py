"""A server that is away: however many ask, all are told by when one would be; and closing leaves nothing behind."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest
from tests.postgres_server import Server

from boundloop.eventstore import postgres as postgres_module
from boundloop.eventstore import postgres_writer
from boundloop.eventstore.postgres import PostgresStore
from boundloop.eventstore.postgres_link import ANSWER_S, Connection, Cut, Link, connect
from boundloop.runtime.errors import StoreError

MANY: Final = 40


class Away:
    """In place of ``connect``: nobody is there, for so many tries."""

    def __init__(self, tries: int | None = None) -> None:
        self.tried = 0
        self.tries = tries

    async def __call__(self, *args: Any) -> Any:
        if self.tried == self.tries:
            return await connect(*args)
        self.tried += 1
        await asyncio.sleep(0)
        raise Cut("nobody is there")


class Gate:
    """In place of ``connect``: it waits to be let on, once it was reached."""

    def __init__(self, *, away: bool = False) -> None:
        self.reached, self.on = asyncio.Event(), asyncio.Event()
        self.away = away
        self.tried = 0
        self.made: list[Link] = []

    async def __call__(self, *args: Any) -> Link:
        self.tried += 1
        self.reached.set()
        await self.on.wait()
        if self.away:
            raise Cut("nobody is there")
        self.made.append(await connect(*args))
        return self.made[-1]


def cut_off(store: PostgresStore) -> None:
    """Both connections end, and the store can see that."""
    for link in (store._writer._link, store._reader):
        assert link is not None
        link.connection.terminate()


@pytest.mark.asyncio
async def test_however_many_ask_each_is_told_when_it_has_waited_for_its_own_time(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await PostgresStore.open(postgres.url())
    await store.hosts()
    away = Away()
    for module in (postgres_writer, postgres_module):
        monkeypatch.setattr(module, "connect", away)
    monkeypatch.setattr(postgres_writer, "REACH_S", 0.2)
    cut_off(store)
    asked = [store.run("r1") for _ in range(MANY)] + [store.drop_host("h1") for _ in range(MANY)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert {getattr(answer, "code", answer) for answer in answers} == {"store_unreachable"}
    assert away.tried < MANY / 2, "they waited for each other's time"
    await store.close()


@pytest.mark.asyncio
async def test_a_store_that_closes_while_a_read_connects_leaves_no_connection(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await PostgresStore.open(postgres.url())
    gate = Gate()
    monkeypatch.setattr(postgres_module, "connect", gate)
    reading = asyncio.ensure_future(store.run("r1"))
    await gate.reached.wait()
    reading.cancel()  # whoever read went away; what it began goes on
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    gate.on.set()
    await closing
    assert [link.connection.is_closed() for link in gate.made] == [True]
    with pytest.raises(StoreError, match="store_closed"):
        await store.run("r1")


@pytest.mark.asyncio
async def test_where_only_the_reader_found_out_whoever_read_meanwhile_is_told_with_it(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer is idle, and its connection looks alive."""
    store = await PostgresStore.open(postgres.url())
    away = Away()
    monkeypatch.setattr(postgres_module, "connect", away)
    monkeypatch.setattr(postgres_writer, "REACH_S", 0)
    answers = await asyncio.gather(*(store.run("r1") for _ in range(MANY)), return_exceptions=True)
    assert {getattr(answer, "code", answer) for answer in answers} == {"store_unreachable"}
    assert {getattr(answer, "message", answer) for answer in answers} == {"nobody is there"}
    assert away.tried == 1
    with pytest.raises(StoreError, match="nobody is there"):
        await store.run("r1")
    assert away.tried == 2, "who asks later looks for itself"
    await store.close()


@pytest.mark.asyncio
async def test_whoever_has_waited_for_its_time_does_not_wait_for_who_looks_after_it(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads come one after another, and before each the writer would begin to look for its next job."""
    store = await PostgresStore.open(postgres.url())
    await store.hosts()
    away = Away()
    monkeypatch.setattr(postgres_writer, "connect", away)
    monkeypatch.setattr(postgres_writer, "REACH_S", 0)
    monkeypatch.setattr(postgres_writer, "PAUSE_S_MAX", 0)
    cut_off(store)
    writer, asked_s = store._writer, asyncio.get_running_loop().time()
    missed = await asyncio.gather(*(writer.linked(asked_s) for _ in range(MANY)), return_exceptions=True)
    assert {getattr(answer, "code", answer) for answer in missed} == {"store_unreachable"}
    assert away.tried == 1
    gate = Gate()
    monkeypatch.setattr(postgres_writer, "connect", gate)
    later = asyncio.ensure_future(writer.linked())
    await gate.reached.wait()
    told = asyncio.ensure_future(writer.linked(asked_s))
    await asyncio.sleep(0)
    assert told.done()
    with pytest.raises(StoreError, match="store_unreachable"):
        await told
    gate.on.set()
    found = await later
    found.connection.terminate()
    assert (await writer.linked(asked_s)) is not found, (
        "what was in vain is no news once a connection was there"
    )
    await store.close()


@pytest.mark.asyncio
async def test_a_read_has_its_own_time_however_soon_another_gave_up(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await PostgresStore.open(postgres.url())
    away = Away(postgres_module.READ_TRIES)  # as many as one read makes
    monkeypatch.setattr(postgres_module, "connect", away)
    monkeypatch.setattr(postgres_writer, "REACH_S", 600.0)
    first, second = await asyncio.gather(store.run("r1"), store.run("r1"), return_exceptions=True)
    assert (getattr(first, "code", first), second) == ("store_unreachable", None)
    await store.close()


@pytest.mark.asyncio
async def test_a_read_whose_connection_was_dead_is_made_again_however_long_it_took_to_find_out(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await PostgresStore.open(postgres.url())
    await store.hosts()
    monkeypatch.setattr(postgres_writer, "REACH_S", 0)
    begun: list[Connection] = []

    async def found_dead(connection: Connection, deaths: int) -> Any:
        begun.append(connection)
        if len(begun) <= deaths:
            connection.terminate()
        return await connection.fetchval("SELECT 1")

    assert await store.read_with(lambda connection: found_dead(connection, 1)) == 1
    begun.clear()
    with pytest.raises(StoreError, match="store_unreachable"):
        await store.read_with(lambda connection: found_dead(connection, MANY))
    assert len(begun) == 2, "another one that it made itself is no news of an old one"
    await store.close()


@pytest.mark.asyncio
async def test_whoever_asked_long_before_the_connection_was_lost_waits_for_another_all_the_same(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited behind others, on a server that was there."""
    store = await PostgresStore.open(postgres.url())
    await store.hosts()
    for module in (postgres_writer, postgres_module):
        monkeypatch.setattr(module, "connect", Away(1))
    monkeypatch.setattr(postgres_writer, "REACH_S", 600.0)
    monkeypatch.setattr(postgres_writer, "PAUSE_S", 0)
    long_ago_s = asyncio.get_running_loop().time() - 1_000.0
    cut_off(store)
    assert not (await store._writer.linked(long_ago_s)).connection.is_closed()
    found = await store._read(lambda connection: connection.fetchval("SELECT 1"), ANSWER_S, long_ago_s)
    assert found == 1
    await store.close()


@pytest.mark.asyncio
async def test_a_store_that_closes_while_a_read_connects_begins_no_statement(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing would wait for as long as it takes."""
    store = await PostgresStore.open(postgres.url())
    gate = Gate()
    monkeypatch.setattr(postgres_module, "connect", gate)
    begun: list[Connection] = []

    async def read(connection: Connection) -> None:
        begun.append(connection)

    reading = asyncio.gather(store.read_with(read), store.read_with(read), return_exceptions=True)
    await gate.reached.wait()
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    gate.on.set()
    await closing
    assert [getattr(answer, "code", answer) for answer in await reading] == ["store_closed"] * 2
    assert begun == []


@pytest.mark.asyncio
async def test_a_read_that_fails_to_connect_while_its_store_closes_tries_no_more(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await PostgresStore.open(postgres.url())
    gate, written = Gate(away=True), asyncio.Event()
    monkeypatch.setattr(postgres_module, "connect", gate)

    async def write(_: Connection) -> None:
        await written.wait()

    writing = asyncio.ensure_future(
        store.write_with(write)
    )  # closing waits for it: the writer is there still
    reading = asyncio.gather(store.run("r1"), store.run("r1"), return_exceptions=True)
    await gate.reached.wait()
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    gate.on.set()
    assert [getattr(answer, "code", answer) for answer in await reading] == ["store_closed"] * 2
    assert gate.tried == 1
    written.set()
    await asyncio.gather(writing, closing)


@pytest.mark.asyncio
@pytest.mark.parametrize("away", [False, True])
async def test_a_store_that_closes_while_a_read_looks_for_the_server_leaves_no_writer_and_looks_no_further(
    away: bool, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await PostgresStore.open(postgres.url())
    await store.hosts()
    gate = Gate(away=away)
    monkeypatch.setattr(postgres_writer, "connect", gate)
    monkeypatch.setattr(postgres_writer, "REACH_S", 0.2)
    monkeypatch.setattr(postgres_writer, "PAUSE_S", 0)
    cut_off(store)
    reading = asyncio.ensure_future(store.run("r1"))
    await gate.reached.wait()
    closing = asyncio.ensure_future(store.close())
    while not store._writer._closed:  # noqa: ASYNC110  it has no event of its own
        await asyncio.sleep(0)
    gate.on.set()
    await closing
    with pytest.raises(StoreError, match="store_closed"):
        await reading
    assert gate.tried == 1
    assert all(link.connection.is_closed() for link in gate.made)
    assert store._writer._link is None
