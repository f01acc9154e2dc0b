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
from boundloop.eventstore.postgres_link import Cut, connect
from boundloop.runtime.errors import StoreError

MANY: Final = 40


class Away:
    """In place of ``connect``: nobody is there."""

    def __init__(self) -> None:
        self.tried = 0

    async def __call__(self, *_: Any) -> Any:
        self.tried += 1
        await asyncio.sleep(0)
        raise Cut("nobody is there")


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
    for link in (store._writer._link, store._reader):
        assert link is not None
        link.connection.terminate()
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
    reached, go_on = asyncio.Event(), asyncio.Event()
    made: list[Any] = []

    async def slowly(*args: Any) -> Any:
        reached.set()
        await go_on.wait()
        made.append(await connect(*args))
        return made[-1]

    monkeypatch.setattr(postgres_module, "connect", slowly)
    reading = asyncio.ensure_future(store.run("r1"))
    await reached.wait()
    reading.cancel()  # whoever read went away; what it began goes on
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    go_on.set()
    await closing
    assert [link.connection.is_closed() for link in made] == [True]
    with pytest.raises(StoreError, match="store_closed"):
        await store.run("r1")
