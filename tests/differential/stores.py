"""The stores that programs are played on, each empty for each program, and the comparison of what they said."""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec
from tests.differential.play import Player
from tests.differential.programs import Step, program
from tests.postgres_server import Server

from boundloop.eventstore.clock import FixedClock
from boundloop.eventstore.memory import MemoryStore
from boundloop.eventstore.postgres import PostgresStore
from boundloop.eventstore.postgres_url import parse_postgres_url
from boundloop.eventstore.sqlite import SqliteStore

Opening = Callable[[Player], AbstractAsyncContextManager[None]]
_numbers = itertools.count()
_TABLES = (
    *(
        "appends",
        "runs",
        "key_waits",
        "ledger",
        "ledger_earlier",
        "blobs",
        "blob_parts",
        "hosts",
        "switches",
        "group_holds",
    ),
    "commands",
)


@asynccontextmanager
async def in_memory(player: Player) -> AsyncGenerator[None]:
    player.store = MemoryStore(clock=player.clock, on_submit=player.on_submit)
    yield


def in_folder(folder: str) -> Opening:
    """SQLite files, a new one for each program."""

    @asynccontextmanager
    async def opening(player: Player) -> AsyncGenerator[None]:
        path = os.path.join(folder, f"p{next(_numbers)}.db")
        store = await SqliteStore.open(path, clock=player.clock, on_submit=player.on_submit)
        player.store = store
        try:
            yield
        finally:
            await store.close()
            _remove(path)

    return opening


def _remove(path: str) -> None:
    for tail in ("", "-wal", "-shm"):
        if os.path.exists(path + tail):
            os.unlink(path + tail)


def on_server(server: Server) -> Opening:
    """One schema, emptied for each program: that is quicker than to make one. By DELETE: the tables are small, and TRUNCATE
    makes new files."""
    url = server.url()

    @asynccontextmanager
    async def opening(player: Player) -> AsyncGenerator[None]:
        store = await PostgresStore.open(url, clock=player.clock, on_submit=player.on_submit)
        player.store = store
        try:
            yield
        finally:
            await store.close()
            await _emptied(url)

    return opening


async def _emptied(url: str) -> None:
    place = parse_postgres_url(url)
    asyncpg: Any = importlib.import_module("asyncpg")
    connection = await asyncpg.connect(place.dsn, server_settings={"search_path": place.schema})
    try:
        # The log's triggers refuse this to everybody else.
        deletes = "; ".join(f"DELETE FROM {table}" for table in _TABLES)
        await connection.execute(f"SET session_replication_role = replica; {deletes}")
    finally:
        await connection.close()


class Difference(msgspec.Struct, frozen=True):
    """Where stores part: ``said`` by store."""

    seed: int
    at: int
    step: Step | None
    said: dict[str, str]

    def __str__(self) -> str:
        what = "what can be read at the end" if self.step is None else msgspec.json.encode(self.step).decode()
        lines = [f"seed {self.seed}, line {self.at}: {what}"]
        return "\n  ".join([*lines, *(f"{name}: {text[:1_500]}" for name, text in self.said.items())])


async def compared(seed: int, stores: dict[str, Opening]) -> Difference | None:
    """The first line on which the stores don't agree; None if they do."""
    steps = program(seed)
    said: dict[str, list[str]] = {}
    for name, opening in stores.items():
        player = Player(FixedClock())
        async with opening(player):
            said[name] = await player.play(steps)
    for at, lines in enumerate(zip(*said.values(), strict=True)):
        if len(set(lines)) > 1:
            step = steps[at] if at < len(steps) else None
            return Difference(seed, at, step, dict(zip(said, lines, strict=True)))
    return None
