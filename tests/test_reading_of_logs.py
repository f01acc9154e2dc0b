"""How often the store is asked for a log, and that none of it is left out."""

from __future__ import annotations

from typing import Any

import pytest

from boundloop.eventstore import history
from boundloop.eventstore.history import read_records
from boundloop.eventstore.memory import MemoryStore
from boundloop.eventstore.testkit.log_writer import LogWriter


class Counted:
    """A store that gives at most ``page`` rows whatever is asked for, and counts what it is asked."""

    def __init__(self, store: MemoryStore, page: int = 1_000) -> None:
        self._store = store
        self._page = page
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read(self, run_id: str, **more: Any) -> Any:
        self.asked.append("read")
        return (await self._store.read(run_id, **more))[: self._page]

    async def run(self, run_id: str) -> Any:
        self.asked.append("run")
        return await self._store.run(run_id)


async def log_of(appends: int) -> tuple[MemoryStore, LogWriter]:
    store = MemoryStore()
    log = LogWriter(store, "r1")
    for _ in range(appends):
        await log.write("x")
    return store, log


@pytest.mark.asyncio
async def test_a_short_page_and_the_runs_row_are_the_end() -> None:
    store, _ = await log_of(5)
    counted: Any = Counted(store)
    assert len(await read_records(counted, "r1")) == 5
    assert counted.asked == ["read", "run"]


@pytest.mark.asyncio
async def test_of_a_part_only_the_part_is_asked_for() -> None:
    store, _ = await log_of(5)
    counted: Any = Counted(store)
    assert len(await read_records(counted, "r1", to_seq=1)) >= 1
    assert counted.asked == ["read"]


@pytest.mark.asyncio
async def test_a_store_that_gives_less_than_was_asked_for_is_read_to_the_end() -> None:
    store, _ = await log_of(9)
    counted: Any = Counted(store, page=2)
    assert [record.seq for record in await read_records(counted, "r1")] == list(range(1, 10))
    assert counted.asked.count("run") <= 2


@pytest.mark.asyncio
async def test_what_is_appended_between_the_page_and_the_look_is_read_too() -> None:
    store, log = await log_of(3)

    class Late(Counted):
        async def run(self, run_id: str) -> Any:
            if "run" not in self.asked:
                await log.write("late")
            return await super().run(run_id)

    counted: Any = Late(store)
    assert len(await read_records(counted, "r1")) == 4


@pytest.mark.asyncio
async def test_a_log_of_whole_pages_ends_with_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "PAGE_ROWS", 3)
    store, _ = await log_of(6)
    counted: Any = Counted(store)
    assert len(await read_records(counted, "r1")) == 6
    assert counted.asked == ["read", "read", "read", "run"]
