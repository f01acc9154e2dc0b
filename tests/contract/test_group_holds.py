"""What the next owner of a file is told: which store it is, and which limited groups may still have calls at a far side."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from boundloop.eventstore.location import connect_store, open_store
from boundloop.eventstore.sqlite import SqliteStore


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


async def opened(path: Path, clock: Clock) -> SqliteStore:
    store = await open_store(f"sqlite:///{path}", clock=clock)
    assert isinstance(store, SqliteStore)
    return store


@pytest.mark.asyncio
async def test_a_store_is_the_same_one_whoever_asks_and_another_file_is_another(tmp_path: Path) -> None:
    clock = Clock()
    store = await opened(tmp_path / "a.db", clock)
    name = await store.identity()
    peer = await connect_store(f"sqlite:///{tmp_path}/a.db")
    assert await peer.identity() == name
    await peer.close()
    await store.close()
    os.rename(tmp_path / "a.db", tmp_path / "b.db")
    moved, other = await opened(tmp_path / "b.db", clock), await opened(tmp_path / "a.db", clock)
    assert await moved.identity() == name
    assert await other.identity() != name
    await moved.close()
    await other.close()


@pytest.mark.asyncio
async def test_holds_outlive_their_owner_and_end_with_their_time(tmp_path: Path) -> None:
    clock = Clock()
    store = await opened(tmp_path / "runs.db", clock)
    assert await store.group_holds() == {}
    await store.hold_groups({"bank": (3, clock.now + 5_000), "mail": (1, clock.now + 100)})
    await store.close()
    clock.now += 100
    store = await opened(tmp_path / "runs.db", clock)
    assert await store.group_holds() == {"bank": (3, clock.now + 4_900)}
    clock.now += 4_900
    assert await store.group_holds() == {}
    await store.close()


@pytest.mark.asyncio
async def test_what_is_written_of_holds_replaces_what_was(tmp_path: Path) -> None:
    clock = Clock()
    store = await opened(tmp_path / "runs.db", clock)
    await store.hold_groups({"bank": (3, clock.now + 5_000), "mail": (1, clock.now + 5_000)})
    await store.hold_groups({"bank": (1, clock.now + 9_000)})
    assert await store.group_holds() == {"bank": (1, clock.now + 9_000)}
    await store.hold_groups({})
    assert await store.group_holds() == {}
    await store.close()
