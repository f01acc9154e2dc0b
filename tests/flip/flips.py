"""A small store, and what becomes of it when one byte of its file is another one."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
from collections.abc import Sequence
from typing import Literal, cast

from tests.contract.log_writer import ENDED, LogWriter, begin, effect

from boundloop.eventstore.clock import StoreClock
from boundloop.eventstore.codec import resolve
from boundloop.eventstore.port import EventStore, RunFilter, RunRow, StoredAppend
from boundloop.eventstore.sqlite import SqliteStore
from boundloop.eventstore.sqlite_file import connect
from boundloop.eventstore.sqlite_rows import SqliteRows
from boundloop.eventstore.verify import verify_store
from boundloop.runtime.errors import StoreError
from boundloop.runtime.ledger import LedgerRow

Fate = Literal["refused", "damaged", "equal", "missed"]
"""``refused``: the file doesn't open or read. ``damaged``: verify says so. ``equal``: every head and event is as it
was (the byte was in free space, or in a row that is derived). ``missed``: something is different and nobody said so."""

Content = dict[str, tuple[bytes, tuple[object, ...]]]
"""By run: the head and the decoded events."""


class DirectReads:
    """The reading methods of a store over a bare connection, without thread and lock: thousands are opened."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._rows = SqliteRows(lambda: connection, StoreClock().now_ms)

    async def run(self, run_id: str) -> RunRow | None:
        return self._rows.run(run_id)

    async def runs(self, where: RunFilter) -> list[RunRow]:
        return self._rows.runs(where)

    async def read(self, run_id: str, *, after_seq: int = 0, rows_max: int = 1_000) -> list[StoredAppend]:
        return self._rows.read(run_id, after_seq, rows_max)

    async def get_blob(self, sha256: bytes) -> bytes | None:
        return self._rows.get_blob(sha256)

    async def ledger_rows(self, after: tuple[str, bytes] | None = None, limit: int = 100) -> list[LedgerRow]:
        return self._rows.ledger_rows(after, limit)

    async def faults(self) -> list[str]:
        return self._rows.faults()


async def build(path: str, runs: int = 12) -> None:
    """A store with runs of different length, a spilled body, ledger rows of every kind; closed, so without a WAL."""
    store = await SqliteStore.open(path)
    chance = random.Random(7)
    for number in range(runs):
        run_id = f"run-{number:03}"
        log = LogWriter(store, run_id, host_id="h1", root_id=run_id)
        await begin(log)
        for turn in range(chance.randrange(3, 30)):
            log.at_ms += chance.randrange(1_000)
            texts = [chance.randbytes(chance.randrange(60)).hex() for _ in range(chance.randrange(1, 4))]
            await log.write(*texts, release=turn % 7 == 0)
        await effect(log, bytes([number]) * 32, number % 3)
        if number % 5 == 0:
            await log.write("spilled " * 4_000)
        await log.write("end", index=ENDED, release=True)
    await store.put_blob(b"pins " * 200)
    await store.close()


async def content_of(reads: DirectReads) -> Content:
    store = cast(EventStore, reads)
    content: Content = {}
    for row in await reads.runs(RunFilter(limit=1_000)):
        rows = await reads.read(row.run_id, rows_max=10_000)
        events = await resolve(rows, store.get_blob)
        content[row.run_id] = rows[-1].hash if rows else b"", tuple(events)
    return content


def read_content(path: str) -> Content:
    """What the whole, good file holds."""
    connection = connect(path)
    try:
        return asyncio.run(content_of(DirectReads(connection)))
    finally:
        connection.close()


async def fate_of(path: str, wanted: Content) -> Fate:
    """Open the file as an owner would, verify it, and compare."""
    try:
        connection = connect(path)
    except StoreError:
        return "refused"
    try:
        reads = DirectReads(connection)
        verdict = await verify_store(cast(EventStore, reads))
        if not verdict.ok:
            return "damaged"
        return "equal" if await content_of(reads) == wanted else "missed"
    except (sqlite3.Error, StoreError, UnicodeDecodeError):
        return "refused"
    finally:
        connection.close()


def flip_many(folder: str, flips: int, seed: int) -> tuple[dict[Fate, int], Sequence[tuple[int, int]]]:
    """How many flips had which fate, and the (offset, xor) of those that were missed."""
    good = os.path.join(folder, "good.db")
    asyncio.run(build(good))
    wanted = read_content(good)
    with open(good, "rb") as file:
        content = bytearray(file.read())
    copy = os.path.join(folder, "copy.db")
    chance = random.Random(seed)
    fates: dict[Fate, int] = {"refused": 0, "damaged": 0, "equal": 0, "missed": 0}
    missed: list[tuple[int, int]] = []

    async def run() -> None:
        for _ in range(flips):
            offset, xor = chance.randrange(len(content)), chance.randrange(1, 256)
            content[offset] ^= xor
            with open(copy, "wb") as file:  # noqa: ASYNC230  nothing else runs on this loop
                file.write(content)
            content[offset] ^= xor
            fate = await fate_of(copy, wanted)
            for rest in ("-wal", "-shm", "-journal"):
                if os.path.exists(copy + rest):  # noqa: ASYNC240  nothing else runs on this loop
                    os.unlink(copy + rest)
            fates[fate] += 1
            if fate == "missed":
                missed.append((offset, xor))

    asyncio.run(run())
    return fates, missed
