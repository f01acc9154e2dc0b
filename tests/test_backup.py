"""A SQLite store is copied while it is written to: the copy is a whole store, and appends are not held up."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from pathlib import Path

import pytest
from tests.command_line import CommandLine
from tests.contract.log_writer import LogWriter
from tests.postgres_server import Server
from tests.written_runs import finished

from boundloop.eventstore import sqlite_backup
from boundloop.eventstore.location import connect_store, open_store
from boundloop.eventstore.peer import PeerStore
from boundloop.eventstore.port import RunFilter
from boundloop.eventstore.postgres import PostgresStore
from boundloop.eventstore.sqlite import SqliteStore
from boundloop.eventstore.verify import verify_store
from boundloop.runtime.errors import CallerError, StoreError

RUNS = 30
BYTES = 60_000


async def filled(store: SqliteStore) -> list[LogWriter]:
    logs = [LogWriter(store, f"r{number}") for number in range(RUNS)]
    for log in logs:
        await log.write(log.run_id * BYTES)  # each a blob of its own
    return logs


async def opened(path: Path) -> SqliteStore:
    store = await open_store(f"sqlite:///{path}")
    assert isinstance(store, SqliteStore)
    return store


@pytest.mark.asyncio
async def test_a_copy_of_a_store_in_use_is_whole_and_appends_go_between(tmp_path: Path) -> None:
    store = await opened(tmp_path / "a.db")
    logs = await filled(store)
    copying = asyncio.create_task(store.back_up(str(tmp_path / "copy.db")))
    meanwhile = 0
    while not copying.done():
        log = logs[meanwhile % RUNS]
        await log.write(f"meanwhile {meanwhile}")
        meanwhile += 1
        await asyncio.sleep(0)
    await copying
    assert meanwhile >= 3, "appends waited for the copy"
    await logs[0].write("after")
    identity = await store.identity()
    await store.close()
    copy = await opened(tmp_path / "copy.db")
    assert (await verify_store(copy)).ok
    assert await copy.identity() == identity
    rows = {row.run_id: row.seq for row in await copy.runs(RunFilter())}
    assert rows.keys() == {log.run_id for log in logs}
    # All that was written before it began is there, and nothing that was written after its end.
    assert all(1 <= rows[log.run_id] <= log.seq for log in logs)
    assert rows["r0"] < logs[0].seq
    await copy.close()
    assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.asyncio
async def test_the_owner_copies_for_a_process_that_comes_through_its_socket(tmp_path: Path) -> None:
    store = await opened(tmp_path / "a.db")
    await filled(store)
    peer = await connect_store(f"sqlite:///{tmp_path / 'a.db'}")
    assert isinstance(peer, PeerStore)
    assert not peer.owns
    await peer.back_up(str(tmp_path / "copy.db"))
    with pytest.raises(CallerError, match="file_exists"):
        await peer.back_up(str(tmp_path / "copy.db"))
    with pytest.raises(StoreError, match="unwritable"):
        await peer.back_up(str(tmp_path / "nowhere" / "copy.db"))
    await peer.close()
    await store.close()
    raw = sqlite3.connect(tmp_path / "copy.db")
    assert raw.execute("SELECT count(*) FROM runs").fetchone() == (RUNS,)
    raw.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["closed", "cancelled"])
async def test_a_copy_that_ends_early_leaves_nothing(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(tmp_path / "a.db")
    await filled(store)
    begun, go_on = threading.Event(), threading.Event()

    def held() -> None:
        begun.set()
        go_on.wait(30)

    monkeypatch.setattr("boundloop.eventstore.sqlite_thread.pause", held)
    copying = asyncio.create_task(store.back_up(str(tmp_path / "copy.db")))
    await asyncio.to_thread(begun.wait, 30)
    if how == "closed":
        await store.close()
        go_on.set()
        with pytest.raises(StoreError, match="store_closed"):
            await copying
    else:
        copying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await copying
        go_on.set()
        await store.close()
    monkeypatch.undo()
    assert not os.path.exists(tmp_path / "copy.db")  # noqa: ASYNC240  one look


def test_the_command_copies_and_says_how_much(cli: CommandLine, tmp_path: Path) -> None:
    async def one(store: object) -> None:
        await finished(store, "r1")  # type: ignore[arg-type]  # the store that the command line built

    cli.build(one)
    file = str(tmp_path / "copy.db")
    done = cli("store", "backup", file)
    assert (done.code, done.out) == (0, f"{os.path.getsize(file)} bytes copied to {file}.\n")
    assert cli("store", "check", "--store", f"sqlite:///{file}").code == 0
    again = cli("store", "backup", file)
    assert (again.code, "file_exists" in again.err) == (2, True)


def test_a_server_is_backed_up_by_its_own_means(cli: CommandLine, postgres: Server, tmp_path: Path) -> None:
    url = postgres.url()

    async def make() -> None:
        await (await PostgresStore.open(url)).close()

    asyncio.run(make())
    done = cli("store", "backup", str(tmp_path / "copy.db"), "--store", url)
    assert (done.code, "pg_dump" in done.err) == (2, True)


def test_a_turn_is_short() -> None:
    assert sqlite_backup.PAGES_A_TURN * 4096 <= 1024 * 1024
