"""A run that is created without a host: on every store alike, once, and taken up by whoever comes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from tests.decider.shop import limits, pins
from tests.stepped_runtime import Site

from boundloop.adapters import say
from boundloop.eventstore.admission import create_unhosted
from boundloop.eventstore.history import load_intact
from boundloop.eventstore.location import connect_store, open_store
from boundloop.eventstore.memory import MemoryStore
from boundloop.eventstore.port import Acquired, EventStore, HostRow
from boundloop.runtime.errors import ConflictError
from boundloop.runtime.events import RunStarted
from boundloop.runtime.start import NewRunSpec, start_run

SPEC = NewRunSpec(run_id="r1", input="hello", operation_id="op", dense=True)
Opening = Callable[[Path], AbstractAsyncContextManager[EventStore]]


@asynccontextmanager
async def memory(folder: Path) -> AsyncGenerator[EventStore, None]:
    yield MemoryStore()


@asynccontextmanager
async def sqlite(folder: Path) -> AsyncGenerator[EventStore, None]:
    store = await open_store(f"sqlite:///{folder / 'runs.db'}")
    yield store
    await store.close()


@asynccontextmanager
async def socket(folder: Path) -> AsyncGenerator[EventStore, None]:
    async with sqlite(folder):
        store = await connect_store(f"sqlite:///{folder / 'runs.db'}")
        yield store
        await store.close()


def started(**changed: object) -> tuple[RunStarted, bytes]:
    event, _, encoded = start_run(msgspec.structs.replace(SPEC, **changed), pins())
    return event, encoded


stores = pytest.mark.parametrize("opening", [memory, sqlite, socket])


@stores
@pytest.mark.asyncio
async def test_a_created_run_is_ready_without_an_owner(opening: Opening, tmp_path: Path) -> None:
    async with opening(tmp_path) as store:
        event, encoded = started()
        assert await create_unhosted(store, event, encoded, root_id="r0")
        row = await store.run("r1")
        assert row is not None
        assert (row.owner, row.ready, row.index.status, row.root_id) == ("", True, "created", "r0")
        assert await store.ready_runs() == ["r1"]
        await store.register_host(HostRow(host_id="h", node="n", pid=1, pid_start=1, boot_id="b"))
        acquired = await store.acquire("r1", "h")
        assert isinstance(acquired, Acquired)
        state, head = await load_intact(store, "r1")
        assert head == acquired.head
        assert (state.phase, state.run_id, acquired.died) == ("created", "r1", False)


@stores
@pytest.mark.asyncio
async def test_the_same_creation_again_changes_nothing(opening: Opening, tmp_path: Path) -> None:
    async with opening(tmp_path) as store:
        event, encoded = started()
        assert await create_unhosted(store, event, encoded, root_id="r1")
        await store.register_host(HostRow(host_id="h", node="n", pid=1, pid_start=1, boot_id="b"))
        assert not await create_unhosted(store, event, encoded, root_id="r1")
        await store.acquire("r1", "h")
        assert not await create_unhosted(store, event, encoded, root_id="r1")
        assert len(await store.read("r1")) == 1


@stores
@pytest.mark.asyncio
async def test_an_id_of_another_run_is_refused(opening: Opening, tmp_path: Path) -> None:
    async with opening(tmp_path) as store:
        event, encoded = started()
        await create_unhosted(store, event, encoded, root_id="r1")
        for changed in ({"input": "other"}, {"tenant": "other"}, {"operation_id": "op2"}):
            with pytest.raises(ConflictError) as caught:
                await create_unhosted(store, *started(**changed), root_id="r1")
            assert caught.value.code == "run_exists"
        assert len(await store.read("r1")) == 1


@stores
@pytest.mark.asyncio
async def test_of_many_creations_at_once_one_is_the_run(opening: Opening, tmp_path: Path) -> None:
    async with opening(tmp_path) as store:
        event, encoded = started()
        await asyncio.gather(*(create_unhosted(store, event, encoded, root_id="r1") for _ in range(8)))
        assert len(await store.read("r1")) == 1


@pytest.mark.asyncio
async def test_a_long_input_is_spilled(tmp_path: Path) -> None:
    async with sqlite(tmp_path) as store:
        text = random.Random(0).randbytes(60_000).hex()
        event, encoded = started(input=text)
        await create_unhosted(store, event, encoded, root_id="r1")
        assert not await create_unhosted(store, event, encoded, root_id="r1")
        state, _ = await load_intact(store, "r1")
        assert state.counters.history_bytes > len(text)


def test_a_host_takes_it_up(site: Site) -> None:
    host = site.open([say("done")])
    pinned = msgspec.structs.replace(pins(bounds=limits(), tools=()), model="scripted-1")
    event, _, encoded = start_run(SPEC, pinned)
    host.on_loop(create_unhosted(site.store, event, encoded, root_id="r1"))
    assert host.rest("r1").outcome == "completed"
