"""What is refused when a file is opened, and what a full disk and a failing commit do."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from boundloop.eventstore import migrate, sqlite_thread
from boundloop.eventstore.clock import StoreClock
from boundloop.eventstore.location import Location, open_store, parse_url
from boundloop.eventstore.port import Acquired, AlreadyDone, Appended, HostRow
from boundloop.eventstore.sqlite import SqliteStore
from boundloop.eventstore.sqlite_file import connect, real_path
from boundloop.eventstore.verify import verify_store
from boundloop.runtime.errors import (
    DamagedFile,
    DiskFull,
    NewerSchema,
    RunNotFound,
    StoreError,
    StoreUrlError,
)

from .log_writer import LogWriter
from .one_commit import in_one_commit

ROOT = Path(__file__).parents[2]

# --- URLs and files that are refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("memory://", Location("memory")),
        ("sqlite:///runs.db", Location("sqlite", "runs.db")),
        ("sqlite:///a/b%20c.db", Location("sqlite", "a/b c.db")),
        ("sqlite:////var/runs.db", Location("sqlite", "/var/runs.db")),
    ],
)
def test_urls_name_stores(url: str, location: Location) -> None:
    assert parse_url(url) == location


@pytest.mark.parametrize(
    "url",
    [
        "",
        "runs.db",
        "/var/runs.db",
        "sqlite://runs.db",
        "sqlite://host/runs.db",
        "sqlite:///",
        "sqlite:///folder/",
        "sqlite:///runs.db?mode",
        "sqlite:///runs.db#1",
        "sqlite:///a%00b",
        "sqlite:///runs\n.db",
        "sqlite:///runs\t.db",
        "sqlite:///runs\x7f.db",
        "sqlite:///runs.db\n",
        "memory://\n",
        "memory://x",
        "mysql://localhost/x",
        "http://[bad/",
    ],
)
def test_other_urls_are_the_callers_mistake(url: str) -> None:
    with pytest.raises(StoreUrlError) as caught:
        parse_url(url)
    assert caught.value.path == url


def test_a_missing_folder_and_a_folder_in_the_files_place_are_the_callers_mistake(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere" / "runs.db", tmp_path):
        with pytest.raises(StoreUrlError):
            real_path(str(path))


def test_a_file_with_two_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(b"")
    (tmp_path / "b.db").hardlink_to(tmp_path / "a.db")
    with pytest.raises(StoreError) as caught:
        real_path(str(tmp_path / "b.db"))
    assert caught.value.code == "hard_links"


def test_the_connection_is_set_up_as_promised(tmp_path: Path) -> None:
    connection = connect(str(tmp_path / "runs.db"))

    def pragma(name: str) -> object:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]

    assert (pragma("journal_mode"), pragma("synchronous"), pragma("mmap_size")) == ("wal", 2, 0)
    assert pragma("locking_mode") == "exclusive"
    assert not (tmp_path / "runs.db-shm").exists()
    assert os.stat(tmp_path / "runs.db").st_mode & 0o777 == 0o600
    connection.close()


def test_rows_of_the_log_are_never_changed_or_removed(tmp_path: Path) -> None:
    connection = connect(str(tmp_path / "runs.db"))
    connection.execute("INSERT INTO appends VALUES (1, 1, 1, 1, 1, 1, x'00', 'c', x'00', x'00')")
    for statement in ("UPDATE appends SET body = x'01'", "DELETE FROM appends"):
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(statement)
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute("INSERT INTO appends VALUES (1, 1, 1, 1, 1, 'late', x'00', 'c', x'00', x'00')")
    connection.close()


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.db")
    connect(path).close()
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA user_version = 99")
    raw.close()
    before = Path(path).read_bytes()
    with pytest.raises(NewerSchema) as caught:
        connect(path)
    assert (caught.value.found, caught.value.known) == (99, len(migrate.known_migrations()))
    assert Path(path).read_bytes() == before


def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "photos.db")
    raw = sqlite3.connect(path)
    raw.execute("CREATE TABLE photos (name TEXT)")
    raw.close()
    before = Path(path).read_bytes()
    with pytest.raises(DamagedFile):
        connect(path)
    assert Path(path).read_bytes() == before


def test_other_migrations_than_the_shipped_ones_are_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.db")
    connection = connect(path)
    connection.execute("UPDATE migrations SET sha256 = 'other'")
    connection.close()
    with pytest.raises(DamagedFile):
        connect(path)


def test_migrations_are_numbered_without_gaps() -> None:
    assert [number for number, _ in migrate.known_migrations()] == list(
        range(1, len(migrate.known_migrations()) + 1)
    )


@pytest.mark.parametrize("place", [0, 20, 100, 4096, 8192])
def test_a_damaged_page_is_a_damaged_file(tmp_path: Path, place: int) -> None:
    path = tmp_path / "runs.db"
    connect(str(path)).close()
    content = bytearray(path.read_bytes())
    content[place : place + 64] = b"\xff" * 64
    path.write_bytes(content)
    with pytest.raises(StoreError):
        connect(str(path))


def test_an_unreadable_file_is_a_store_error(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    path.mkdir()
    with pytest.raises(StoreError):
        connect(str(path))


def test_store_time_goes_on_when_the_wall_clock_is_set_back() -> None:
    wall = iter([1_000, 5_000, 2_000, 2_001])
    clock = StoreClock(3_000, lambda: next(wall))
    assert clock.now_ms() >= 3_000
    assert 5_000 <= clock.now_ms() <= clock.now_ms() <= clock.now_ms() < 6_000


@pytest.mark.asyncio
async def test_store_time_does_not_fall_below_what_the_file_holds(tmp_path: Path) -> None:
    store = await SqliteStore.open(str(tmp_path / "runs.db"))
    log = LogWriter(store, "r1", at_ms=store.now_ms() + 1_000_000)
    await log.write("from a clock that was ahead")
    await store.close()
    store = await SqliteStore.open(str(tmp_path / "runs.db"))
    assert store.now_ms() >= log.at_ms
    await store.close()


# --- a full disk and a failing commit --------------------------------------------------------------------------------


class Tampered(sqlite3.Connection):
    """A connection whose next COMMIT fails in the way that ``fails`` says."""

    fails: tuple[str, bool] | None = None  # SQLite's error name; whether the commit happens all the same

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if sql == "COMMIT" and self.fails is not None:
            (name, happens), self.fails = self.fails, None
            if happens:
                super().execute(sql)
            error = sqlite3.OperationalError("made to fail")
            error.sqlite_errorname = name
            raise error
        return super().execute(sql, *args)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Tampered]:
    """Every connection that is made in this test."""
    connections: list[Tampered] = []
    original = sqlite3.connect

    def factory(path: str, **options: Any) -> sqlite3.Connection:
        connection = original(path, factory=Tampered, **options)
        connections.append(connection)
        return connection

    monkeypatch.setattr(sqlite3, "connect", factory)
    return connections


@pytest.mark.asyncio
async def test_a_full_disk_is_told_and_the_store_goes_on_when_there_is_space(
    tmp_path: Path, made: list[Tampered]
) -> None:
    store = await SqliteStore.open(str(tmp_path / "runs.db"))
    log = LogWriter(store, "r1")
    await log.write("fits")
    pages = made[0].execute("PRAGMA page_count").fetchone()[0]
    made[0].execute(f"PRAGMA max_page_count = {pages}")
    others = [LogWriter(store, f"other{number}") for number in range(8)]
    answers = await asyncio.gather(
        *(other.append("x" * 10_000) for other in others), log.append("y" * 10_000), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [DiskFull] * 9
    with pytest.raises(DiskFull):
        await store.put_blob(os.urandom(100_000))
    assert (await verify_store(store)).ok
    assert len(await store.read("r1")) == 1
    made[0].execute("PRAGMA max_page_count = 1000000")
    for writer in (log, *others):
        await writer.write("x" * 10_000)
    assert (await verify_store(store)).ok
    await store.close()


@pytest.mark.asyncio
async def test_one_append_too_large_for_the_disk_does_not_fail_its_mates(
    tmp_path: Path, made: list[Tampered]
) -> None:
    store = await SqliteStore.open(str(tmp_path / "runs.db"))
    small = [LogWriter(store, f"small{number}") for number in range(4)]
    for writer in small:
        await writer.write("one")
    pages = made[0].execute("PRAGMA page_count").fetchone()[0]
    made[0].execute(f"PRAGMA max_page_count = {pages + 2}")
    answers = await asyncio.gather(
        *(writer.append("two") for writer in small[:2]),
        LogWriter(store, "large").append(os.urandom(30_000).hex()),
        *(writer.append("two") for writer in small[2:]),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers] == [Appended, Appended, DiskFull, Appended, Appended]
    await store.close()


WRITE_UNTIL_FULL = """
import asyncio, resource, sys
from boundloop.eventstore.sqlite import SqliteStore
from boundloop.eventstore.verify import verify_store
from boundloop.runtime.errors import StoreError
from tests.contract.log_writer import LogWriter

async def main():
    store = await SqliteStore.open(sys.argv[1])
    log = LogWriter(store, "r1")
    await log.write("one")
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), hard))
    try:
        for _ in range(1_000):
            await log.write("x" * 4_000)
        raise SystemExit("the limit was never met")
    except StoreError as error:
        assert error.code in ("disk_full", "sqlite_ioerr_write"), error
    acknowledged = log.seq
    assert len(await store.read("r1")) == acknowledged
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    await log.write("there is space again")
    assert (await verify_store(store)).ok
    await store.close()
    print(acknowledged)

asyncio.run(main())
"""


@pytest.mark.parametrize("limit_bytes", [400_000, 700_000])
def test_a_write_that_the_kernel_refuses_loses_nothing(tmp_path: Path, limit_bytes: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRITE_UNTIL_FULL, str(tmp_path / "runs.db"), str(limit_bytes)],
        check=False,
        timeout=60,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 5


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["SQLITE_FULL", "SQLITE_IOERR_WRITE"])
async def test_a_commit_that_fails_once_is_tried_again(
    tmp_path: Path, made: list[Tampered], name: str
) -> None:
    store = await SqliteStore.open(str(tmp_path / "runs.db"))
    logs = [LogWriter(store, f"r{number}") for number in range(3)]
    made[0].fails = (name, False)
    await asyncio.gather(*(log.write("one") for log in logs))
    assert (await verify_store(store)).ok
    await store.close()


@pytest.mark.asyncio
async def test_a_commit_that_happened_although_it_failed_is_found_out(
    tmp_path: Path, made: list[Tampered]
) -> None:
    store = await SqliteStore.open(str(tmp_path / "runs.db"))
    logs = [LogWriter(store, f"r{number}") for number in range(3)]
    made[0].fails = ("SQLITE_IOERR_WRITE", True)
    answers = await in_one_commit(store, *(log.append("one") for log in logs))
    assert [type(answer) for answer in answers] == [AlreadyDone] * 3
    await store.close()


@pytest.mark.asyncio
async def test_what_a_failed_commit_did_all_the_same_is_told_and_not_taken_back(
    tmp_path: Path, made: list[Tampered]
) -> None:
    """The wakes of an append and of a release, and the run that an ``acquire`` took."""
    woken: list[str] = []
    store = await SqliteStore.open(str(tmp_path / "runs.db"), on_ready=woken.extend)
    await store.register_host(HostRow(host_id="h1", node="n", pid=1, pid_start=1, boot_id="b"))
    made[0].fails = ("SQLITE_IOERR_WRITE", True)
    assert type(await LogWriter(store, "r1").append("one", release=True, ready=True)) is AlreadyDone
    await store.hosts()
    assert woken == ["r1"]
    made[0].fails = ("SQLITE_IOERR_WRITE", True)
    acquired = await store.acquire("r1", "h1")
    assert isinstance(acquired, Acquired)
    row = await store.run("r1")
    assert row is not None
    assert (row.epoch, row.owner, acquired.died) == (acquired.epoch, "h1", False)
    woken.clear()
    made[0].fails = ("SQLITE_IOERR_WRITE", True)
    await store.release("r1", "h1", acquired.epoch, ready=True)
    await store.hosts()
    assert woken == ["r1"]
    assert await store.ready_runs() == ["r1"]
    await store.close()


@pytest.mark.asyncio
async def test_a_lone_commit_that_happened_although_it_failed_is_found_out(
    tmp_path: Path, made: list[Tampered]
) -> None:
    store = await SqliteStore.open(str(tmp_path / "runs.db"))
    log = LogWriter(store, "r1")
    made[0].fails = ("SQLITE_IOERR_WRITE", True)
    assert type(await log.append("one")) is AlreadyDone
    await store.close()


@pytest.mark.asyncio
async def test_a_jobs_own_error_is_its_callers_and_leaves_its_mates(tmp_path: Path) -> None:
    woken: list[str] = []
    store = await SqliteStore.open(str(tmp_path / "runs.db"), on_ready=woken.extend)
    answers = await asyncio.gather(
        LogWriter(store, "r1").append("one", ready=True),
        store.mark_damaged("nobody", "x"),
        LogWriter(store, "r2").append("one", ready=True),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers] == [Appended, RunNotFound, Appended]
    await store.hosts()
    assert woken == ["r1", "r2"]
    await store.close()


@pytest.mark.asyncio
async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path / 'runs.db'}")
    log = LogWriter(store, "r1")
    pending = asyncio.ensure_future(log.append("one"))
    await asyncio.sleep(0)
    await asyncio.gather(store.close(), store.close())
    assert isinstance(await pending, Appended)
    with pytest.raises(StoreError) as caught:
        await log.append("two")
    assert caught.value.code == "store_closed"
    assert not (tmp_path / "runs.db-wal").exists()


@pytest.mark.asyncio
async def test_a_store_without_writes_empties_its_wal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emptied = threading.Event()
    checkpoint = sqlite_thread.StoreThread.checkpoint

    def told(thread: sqlite_thread.StoreThread) -> None:
        checkpoint(thread)
        emptied.set()

    monkeypatch.setattr(sqlite_thread.StoreThread, "checkpoint", told)
    monkeypatch.setattr(sqlite_thread, "IDLE_MS", 1)
    store = await SqliteStore.open(str(tmp_path / "runs.db"))
    wal = tmp_path / "runs.db-wal"
    # The second time the thread has to be told that there is something to empty again.
    for number in range(2):
        await LogWriter(store, f"r{number}").write("one")
        while wal.stat().st_size > 0:
            assert await asyncio.to_thread(emptied.wait, 60)
            emptied.clear()
    await store.close()


@pytest.mark.asyncio
async def test_a_slow_disk_moves_commits_to_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_thread, "TICK_US_MAX", -1)
    monkeypatch.setattr(sqlite_thread, "JOB_US", 0)
    store = await SqliteStore.open(str(tmp_path / "runs.db"))
    log = LogWriter(store, "r1")
    for number in range(50):
        await log.write(str(number))
    assert (await verify_store(store)).ok
    await store.close()
