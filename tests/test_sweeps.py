"""Blobs that a sweep leaves: what a log names that can't be read, what an import counts on, definitions of a newer program."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.command_line import NOON_MS, CommandLine
from tests.contract.log_writer import LogWriter
from tests.postgres_server import Server
from tests.test_prune import LATER_MS, Clock, each
from tests.written_runs import finished, pins_for

from boundloop.eventstore.export import export_store, import_store
from boundloop.eventstore.history import load_run
from boundloop.eventstore.location import open_store
from boundloop.eventstore.memory import MemoryStore
from boundloop.eventstore.port import EventStore
from boundloop.eventstore.postgres import PostgresStore
from boundloop.eventstore.prune import prune_store, sweep_blobs
from boundloop.eventstore.rebuild import rebuild_index
from boundloop.runtime.errors import StoreError
from boundloop.runtime.pins import encode_pins

ARTIFACT = random.Random(1).randbytes(5_000)
NOBODYS = b"nobody names this"


async def live_run(store: EventStore) -> tuple[bytes, bytes]:
    """It names the first blob in a body that is a blob itself; nobody names the second one."""
    named, loose = await store.put_blob(ARTIFACT), await store.put_blob(NOBODYS)
    await LogWriter(store, "live", at_ms=NOON_MS).write(
        named.hex() + random.Random(3).randbytes(40_000).hex()
    )
    return named, loose


async def all_stay(store: EventStore) -> str:
    """Why, after a sweep that removed nothing."""
    found = await prune_store(store, ended_before_ms=NOON_MS)
    assert found.blobs == 0
    assert found.unswept
    assert await store.get_blob(sha256(NOBODYS).digest()) == NOBODYS
    return found.unswept


@pytest.mark.asyncio
async def test_no_blob_goes_when_a_body_cant_be_read_just_then(tmp_path: Path, postgres: Server) -> None:
    async with each(tmp_path, postgres) as stores:
        for store, clock in stores:
            named, loose = await live_run(store)
            clock.at_ms = LATER_MS
            inside: Any = store
            read = store.get_blob

            async def unreachable(digest: bytes) -> bytes | None:
                raise StoreError("store_unreachable", "the connection was cut")

            inside.get_blob = unreachable
            found = await prune_store(store, ended_before_ms=NOON_MS)
            inside.get_blob = read
            assert (found.blobs, "run live" in found.unswept) == (0, True)
            assert "the connection was cut" in found.unswept
            assert await store.get_blob(loose) == NOBODYS
            again = await prune_store(store, ended_before_ms=NOON_MS)
            assert (again.blobs, again.unswept) == (1, "")
            assert await store.get_blob(named) == ARTIFACT


@pytest.mark.asyncio
async def test_no_blob_goes_while_a_bit_of_a_body_is_turned(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "a.db"
    store = await open_store(f"sqlite:///{path}", clock=clock)
    named, _ = await live_run(store)
    await store.close()
    turn_a_bit(path)
    clock.at_ms = LATER_MS
    store = await open_store(f"sqlite:///{path}", clock=clock)
    assert "run live" in await all_stay(store)
    assert await store.get_blob(named) == ARTIFACT
    await store.close()


def turn_a_bit(path: Path) -> None:
    """Of the longest part of a blob, as a disk does it, far from where a name stands."""
    with sqlite3.connect(path) as connection:
        (kept,) = connection.execute(
            "SELECT data FROM blob_parts ORDER BY length(data) DESC LIMIT 1"
        ).fetchone()
    connection.close()
    data = bytearray(path.read_bytes())
    data[data.index(kept[-200:-100]) + 50] ^= 4
    path.write_bytes(data)


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["forged", "cut"])
async def test_no_blob_goes_while_a_log_isnt_as_it_was_written(how: str) -> None:
    """Nobody knows what the row said before, or the one that is missing."""
    clock = Clock()
    store = MemoryStore(clock=clock)
    named, _ = await live_run(store)
    log = LogWriter(store, "other", at_ms=NOON_MS)
    await log.write("one")
    await log.write("two " + named.hex())
    rows = store._runs["other"].log  # pyright: ignore[reportPrivateUsage]  # the log is damaged from behind
    if how == "cut":
        del rows[1]
    else:
        rows[1] = msgspec.structs.replace(rows[1], body=rows[0].body)
    clock.at_ms = LATER_MS
    assert "run other" in await all_stay(store)


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_no_blob_goes_while_a_log_has_lost_its_runs_row(
    kind: str, tmp_path: Path, postgres: Server
) -> None:
    clock, path = Clock(), tmp_path / "a.db"
    url = f"sqlite:///{path}" if kind == "sqlite" else postgres.url()
    store = await open_store(url, clock=clock)
    await store.put_blob(NOBODYS)
    await finished(store, "r1", text="A long question. " + random.Random(1).randbytes(40_000).hex())
    if isinstance(store, PostgresStore):
        for statement in ("UPDATE blobs SET put_at_ms = 1", "DELETE FROM runs WHERE run_id = 'r1'"):
            await store.write_with(lambda connection, text=statement: connection.execute(text))  # type: ignore[misc]  # mypy infers no type for a lambda with defaults
    else:
        await store.close()
        lose_row(path, "r1")
        store = await open_store(url, clock=clock)
    clock.at_ms = LATER_MS
    assert "store rebuild" in await all_stay(store)
    assert (await rebuild_index(store)).restored == ("r1",)
    await load_run(store, "r1")
    assert (await sweep_blobs(store)).blobs == 1
    await load_run(store, "r1")
    await store.close()


def lose_row(path: Path, run_id: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM runs WHERE run_id = ?", (run_id,))
    connection.close()


@pytest.mark.asyncio
async def test_a_sweep_leaves_what_an_import_beside_it_counts_on(tmp_path: Path, postgres: Server) -> None:
    source = MemoryStore()
    name = await source.put_blob(ARTIFACT)
    await LogWriter(source, "r1").write(name.hex())
    path = str(tmp_path / "x.export")
    await export_store(source, path)
    async with each(tmp_path, postgres) as stores:
        for store, clock in stores:
            await store.put_blob(ARTIFACT)  # of old, and nobody named it
            clock.at_ms = LATER_MS
            inside: Any = store
            drop = inside.drop_blobs

            async def after_an_import(
                names: Sequence[bytes], *, put_before_ms: int, store: Any = store, drop: Any = drop
            ) -> Any:
                store.drop_blobs = drop
                await import_store(store, path)
                return await drop(names, put_before_ms=put_before_ms)

            inside.drop_blobs = after_an_import
            assert (await sweep_blobs(store)).blobs == 0
            assert inside.drop_blobs == drop
            assert await store.get_blob(name) == ARTIFACT


@pytest.mark.asyncio
async def test_pinned_definitions_of_a_newer_program_stay() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    newer = msgspec.json.decode(encode_pins(pins_for())) | {"of_later": {"a": 1}}
    pins = await store.put_blob(msgspec.json.encode(newer))
    for text in (b'{"producer": 1}', b'{"a": ' + b"[" * 100_000, b'{"producer": "\xff"}', b"{}", b""):
        await store.put_blob(text)
    clock.at_ms = LATER_MS
    assert (await sweep_blobs(store)).blobs == 5
    assert await store.blob_names() == [pins]


def test_the_command_says_why_it_removes_no_blob(cli: CommandLine) -> None:
    async def fill(store: EventStore) -> None:
        await finished(store, "r1")
        await finished(store, "done")
        await store.put_blob(NOBODYS)

    cli.build(fill, at_ms=NOON_MS)
    lose_row(cli.path, "r1")
    done = cli("store", "prune", "--ended-before", "2023-12-01")
    assert (done.code, "1 runs, " in done.out) == (6, True)
    assert "log 1 has lost its run's row" in done.out + done.err
    again = cli("store", "prune", "--ended-before", "2023-12-01", "-o", "json")
    assert (again.code, again.value["blobs"], "lost" in again.value["unswept"]) == (6, 0, True)
    assert cli("store", "rebuild").code == 0
    last = cli("store", "prune", "--ended-before", "2023-12-01", "-o", "json")
    assert (last.code, last.value["unswept"]) == (0, "")
