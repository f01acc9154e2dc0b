"""A lone caller commits at once; as soon as a second one is about, they share commits."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from boundloop.eventstore import sqlite_thread
from boundloop.eventstore.sqlite import SqliteStore

from .log_writer import LogWriter
from .one_commit import in_one_commit


@pytest.fixture(autouse=True)
def no_disk_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow disk the store's thread commits, and that is not what is looked at here."""
    monkeypatch.setattr(sqlite_thread, "TICK_US_MAX", 10**12)


@pytest.mark.asyncio
async def test_a_lone_callers_append_is_answered_without_a_turn_of_the_loop(tmp_path: Path) -> None:
    store = await SqliteStore.open(str(tmp_path / "runs.db"))
    log = LogWriter(store, "r1")
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1

    asyncio.get_running_loop().call_soon(turn)
    await log.write("one")
    await log.write("two")

    assert turns == 0
    assert [row.first_seq for row in await store.read("r1")] == [1, 2]
    await store.close()


@pytest.mark.asyncio
async def test_two_callers_in_one_turn_share_their_commits_from_then_on(tmp_path: Path) -> None:
    store = await SqliteStore.open(str(tmp_path / "runs.db"))
    logs = [LogWriter(store, f"r{number}") for number in range(8)]
    await asyncio.gather(*(log.write("one") for log in logs))
    commits: list[str] = []
    store._thread.connection.set_trace_callback(
        lambda statement: commits.append(statement) if statement == "COMMIT" else None
    )
    assert store._thread.run_alone(lambda: None, writes=False, who="r1") is None
    for _ in range(3):
        await in_one_commit(store, *(log.write("more") for log in logs))

    assert len(commits) == 3
    await store.close()


@pytest.mark.asyncio
async def test_whoever_is_left_alone_commits_at_once_again(tmp_path: Path) -> None:
    store = await SqliteStore.open(str(tmp_path / "runs.db"))
    log, other = LogWriter(store, "r1"), LogWriter(store, "r2")
    await asyncio.gather(log.write("one"), other.write("one"))
    for _ in range(100):
        await log.write("more")
    turned = False

    def turn() -> None:
        nonlocal turned
        turned = True

    asyncio.get_running_loop().call_soon(turn)
    await log.write("last")

    assert not turned
    await store.close()
