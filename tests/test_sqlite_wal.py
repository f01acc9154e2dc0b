"""The WAL of a SQLite store stays small, whatever is read meanwhile, and is emptied when all is quiet."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path

import pytest
from tests.contract.log_writer import LogWriter

from boundloop.eventstore.location import connect_store, open_store
from boundloop.eventstore.port import EventStore, RunFilter
from boundloop.eventstore.sqlite import SqliteStore
from boundloop.eventstore.sqlite_file import WAL_AUTOCHECKPOINT_PAGES, WAL_KEPT_BYTES_MAX
from boundloop.eventstore.verify import verify_store

FRAME_BYTES = 4096 + 24
WRITERS = 4
BODY = "x" * 15_000
BATCH_PAGES = WRITERS * 40
"""A commit of all writers at once: bodies, rows and indexes, with room to spare."""

WAL_BYTES_MAX = (WAL_AUTOCHECKPOINT_PAGES + BATCH_PAGES) * FRAME_BYTES
ROUNDS = 150
"""Of about 16 pages a writer: nine times what starts a checkpoint."""


def size(path: Path) -> int:
    wal = path.with_name(f"{path.name}-wal")
    return wal.stat().st_size if wal.exists() else 0


async def read_on(store: EventStore, stop: asyncio.Event) -> int:
    """Reads whole logs, page after page, for as long as there is writing."""
    rows = 0
    while not stop.is_set():
        for number in range(WRITERS):
            seq = 0
            while page := await store.read(f"r{number}", after_seq=seq, rows_max=20):
                rows += len(page)
                seq = page[-1].first_seq
        await store.runs(RunFilter())
    return rows


@pytest.mark.asyncio
async def test_readers_do_not_keep_the_wal_from_being_folded_in(tmp_path: Path) -> None:
    """Beside the owner's own reads there is a reader through its socket, as a command is one."""
    path = tmp_path / "runs.db"
    store = await open_store(f"sqlite:///{path}")
    other = await connect_store(f"sqlite:///{path}")
    stop = asyncio.Event()
    readers = [asyncio.ensure_future(read_on(one, stop)) for one in (store, other)]
    logs = [LogWriter(store, f"r{number}") for number in range(WRITERS)]
    largest = 0
    for _ in range(ROUNDS):
        await asyncio.gather(*(log.write(BODY) for log in logs))
        largest = max(largest, size(path))
    stop.set()
    assert min(await asyncio.gather(*readers)) > 0
    assert WAL_AUTOCHECKPOINT_PAGES * FRAME_BYTES < largest <= WAL_BYTES_MAX
    assert (await verify_store(store)).ok
    await other.close()
    await store.close()
    assert size(path) == 0


@pytest.mark.asyncio
async def test_a_wal_that_one_commit_made_large_is_cut_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = await SqliteStore.open(str(path))
    for _ in range(4):
        await store.put_blob(os.urandom(12 * 1024 * 1024))
    grown = size(path)
    assert grown > 12 * 1024 * 1024
    log = LogWriter(store, "r1")
    for _ in range(3):  # the first commit after a checkpoint begins the WAL anew, and cuts it
        await log.write("on")
    assert size(path) <= WAL_KEPT_BYTES_MAX
    thread = store._thread
    await thread.submit(thread.checkpoint, writes=False, light=False)
    assert size(path) == 0
    await store.close()


@pytest.mark.asyncio
async def test_nobody_beside_the_owner_can_read_the_file_and_hold_up_a_checkpoint(tmp_path: Path) -> None:
    """With any library, in the range of the WAL-reset race or not."""
    path = tmp_path / "runs.db"
    store = await open_store(f"sqlite:///{path}")
    await LogWriter(store, "r1").write("one")
    raw = sqlite3.connect(path, timeout=0)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        raw.execute("SELECT count(*) FROM runs").fetchone()
    raw.close()
    await store.close()
