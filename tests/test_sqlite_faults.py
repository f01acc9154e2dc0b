"""What a failing disk does to a SQLite store: samples of the fault suite, and each thing that it found, by itself."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.log_writer import LogWriter
from tests.contract.one_commit import in_one_commit
from tests.sqlite_faults.file_shim import FileShim, How, find_library
from tests.sqlite_faults.statement_shim import Manner, StatementShim
from tests.sqlite_faults.trials import HOWS, MANNERS, Trials

from boundloop.eventstore import sqlite_file
from boundloop.eventstore.location import connect_store, open_store
from boundloop.eventstore.port import Appended, RunFilter
from boundloop.eventstore.sqlite import SqliteStore
from boundloop.eventstore.verify import verify_store
from boundloop.runtime.errors import DamagedFile, RunNotFound, StoreError

EVERY = 31
"""Of the operations each so many-th is made to fail here; ``sqlite_faults/run.py`` takes them all."""

needs_library = pytest.mark.skipif(
    find_library() is None, reason="SQLite is built into this Python and can't be reached from outside"
)


@pytest.fixture
def statements() -> Iterator[StatementShim]:
    with StatementShim() as shim:
        yield shim


# --- samples ---------------------------------------------------------------------------------------------------------


@needs_library
@pytest.mark.parametrize("how", HOWS)
def test_whatever_operation_on_the_file_fails_nothing_is_lost(how: How) -> None:
    trials = Trials()
    trials.files(how, every=EVERY if how not in ("unsynced", "dropped") else 7, first=5)
    assert trials.broken == []
    assert trials.trials.total() >= 3


@pytest.mark.parametrize("manner", MANNERS)
def test_whatever_statement_fails_nothing_is_lost(manner: Manner) -> None:
    trials = Trials()
    trials.statements(manner, every=EVERY, first=9)
    assert trials.broken == []
    assert trials.trials.total() >= 3


# --- a store that can't know what is on disk -------------------------------------------------------------------------


@needs_library
@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["unsynced", "dropped"])
async def test_after_a_failed_fsync_the_file_is_opened_anew_before_it_serves(
    tmp_path: Path, how: How
) -> None:
    with FileShim(find_library()) as shim:
        store = await SqliteStore.open(str(tmp_path / "runs.db"))
        log = LogWriter(store, "r1")
        await log.write("one")
        opened = shim.count["open"]
        shim.arm(1, how)
        request = log.request("two")
        with pytest.raises(StoreError) as caught:
            await store.append(request)
        assert (caught.value.code, caught.value.actor) == ("sqlite_ioerr_fsync", "store")
        assert "opened anew" in caught.value.message
        assert len(await store.read("r1")) == 1
        assert shim.count["open"] > opened
        assert isinstance(await store.append(request), Appended)
        assert (await verify_store(store)).ok
        await store.close()


@needs_library
@pytest.mark.asyncio
async def test_a_file_that_cannot_be_opened_anew_is_tried_again_and_says_why_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("boundloop.eventstore.sqlite_thread.MEND_PAUSE_MS", 0)
    with FileShim(find_library()) as shim:
        store = await SqliteStore.open(str(tmp_path / "runs.db"))
        log = LogWriter(store, "r1")
        await log.write("one")
        shim.arm(1, "gone")
        for _ in range(3):
            with pytest.raises(StoreError):
                await log.append("two")
            with pytest.raises(StoreError) as caught:
                await store.read("r1")
            assert not isinstance(caught.value, DamagedFile)
        shim.heal()
        assert len(await store.read("r1")) == 1
        await log.write("two")
        assert (await verify_store(store)).ok
        await store.close()


@pytest.mark.asyncio
async def test_what_could_not_be_rolled_back_is_never_read(tmp_path: Path, statements: StatementShim) -> None:
    store = await SqliteStore.open(str(tmp_path / "runs.db"))
    log = LogWriter(store, "r1")
    await log.write("one")
    before = statements.count.total()
    await log.write("two")
    of_an_append = statements.count.total() - before
    statements.arm(of_an_append, "stuck")
    with pytest.raises(StoreError):
        await log.append("three")
    assert statements.fired == "commit"
    assert len(await store.read("r1")) == 2
    await log.write("three")
    await store.close()


@pytest.mark.asyncio
async def test_a_read_behind_a_rollback_that_failed_does_not_see_what_was_to_go(
    tmp_path: Path, statements: StatementShim
) -> None:
    """It waited with the append, so it is due while the transaction is still open."""
    store = await SqliteStore.open(str(tmp_path / "runs.db"))
    log = LogWriter(store, "r1")
    await log.write("one")

    async def append() -> object:
        statements.arm(of_an_append, "stuck")
        try:
            return await log.append("three")
        except StoreError as error:
            return error

    async def read() -> object:
        try:
            return len(await store.read("r1"))
        except StoreError as error:
            return error

    before = statements.count.total()
    await log.write("two")
    of_an_append = statements.count.total() - before
    answers = await in_one_commit(store, append(), read())
    assert statements.fired == "commit"
    assert [type(answer) for answer in answers] == [StoreError, StoreError]
    assert await read() == 2
    await store.close()


@pytest.mark.asyncio
async def test_a_rollback_that_fails_is_no_mates_mistake(tmp_path: Path, statements: StatementShim) -> None:
    """One job of a commit fails by its caller's fault, and then the ROLLBACK fails: the others hear of the store."""
    store = await SqliteStore.open(str(tmp_path / "runs.db"))
    log = LogWriter(store, "r1")
    statements.arm(10_000, "stuck")
    statements._no_way_back = True

    async def append() -> object:
        try:
            return await log.append("one")
        except StoreError as error:
            return error

    async def mistake() -> object:
        try:
            await store.mark_damaged("nobody", "x")
        except (StoreError, RunNotFound) as error:
            return error
        return None

    answers = await in_one_commit(store, append(), mistake())
    assert [type(answer) for answer in answers] == [StoreError, StoreError]
    await log.write("one")
    await store.close()


@needs_library
@pytest.mark.asyncio
async def test_without_space_sqlite_rolls_back_by_itself_and_nobody_does_so_again(
    tmp_path: Path, statements: StatementShim
) -> None:
    with FileShim(find_library()) as shim:
        store = await SqliteStore.open(str(tmp_path / "runs.db"))
        log = LogWriter(store, "r1")
        await log.write("one")
        shim.arm(1, "full")
        await log.write("two")
        assert shim.fired == "write"
        assert statements.count["rollback"] == 0
        await store.close()


# --- what is found when a file is opened -----------------------------------------------------------------------------


async def left_behind(tmp_path: Path) -> Path:
    """A store as an owner leaves it that is killed: with a WAL."""
    store = await SqliteStore.open(str(tmp_path / "runs.db"))
    await LogWriter(store, "r1").write("one")
    await LogWriter(store, "r2").write("one")
    folder = tmp_path / "left"
    folder.mkdir()
    for name in ("runs.db", "runs.db-wal"):
        shutil.copy(tmp_path / name, folder / name)
    await store.close()
    assert (folder / "runs.db-wal").stat().st_size > 0
    return folder / "runs.db"


@needs_library
@pytest.mark.asyncio
async def test_what_a_killed_owner_left_is_synced_before_it_is_believed(tmp_path: Path) -> None:
    path = await left_behind(tmp_path)
    with FileShim(find_library()) as shim:
        shim.arm(1, "unsynced")
        with pytest.raises(StoreError) as caught:
            await SqliteStore.open(str(path))
        assert caught.value.code == "sqlite_ioerr_fsync"
        store = await SqliteStore.open(str(path))
        assert len(await store.runs(RunFilter())) == 2
        wal = path.with_name("runs.db-wal")
        assert not wal.exists() or wal.stat().st_size == 0
        await store.close()


@needs_library
@pytest.mark.asyncio
async def test_what_a_killed_owner_left_can_be_read_on_a_full_disk(
    tmp_path: Path,
) -> None:
    path = await left_behind(tmp_path)
    with FileShim(find_library()) as shim:
        shim.arm(1, "full")
        store = await SqliteStore.open(str(path))
        assert shim.fired == "write"
        assert len(await store.runs(RunFilter())) == 2
        await store.close()


@pytest.mark.asyncio
async def test_after_an_owner_that_was_killed_a_larger_file_is_checked(
    tmp_path: Path, statements: StatementShim, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(await left_behind(tmp_path))
    monkeypatch.setattr(sqlite_file, "CHECKED_BYTES_MAX", 0)
    checks: list[bool] = []
    for _ in range(2):
        store = await SqliteStore.open(path)
        checks.append("PRAGMA quick_check(1)" in statements.texts)
        statements.texts.clear()
        await store.close()
    assert checks == [True, False]


@pytest.mark.parametrize("name", ["SQLITE_NOMEM", "SQLITE_CANTOPEN", "SQLITE_IOERR_READ"])
def test_a_file_that_could_not_be_opened_is_not_called_damaged(name: str) -> None:
    error = sqlite3.OperationalError("made to fail")
    error.sqlite_errorname = name
    found = sqlite_file.open_error(error, "/runs.db")
    assert (type(found), found.code) == (StoreError, name.lower())


@pytest.mark.asyncio
async def test_the_ends_of_logs_are_checked_when_an_owner_comes_to_stay(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    url = f"sqlite:///{path}"
    store = await open_store(url)
    for run_id in ("r1", "r2", "r3"):
        log = LogWriter(store, run_id)
        for text in ("one", "two", "three"):
            await log.write(text)
    await store.close()
    raw = sqlite3.connect(path)
    raw.execute("DROP TRIGGER appends_stay")
    raw.execute("UPDATE appends SET body = x'01' WHERE run_key = 2 AND first_seq = 3")
    raw.execute(
        "CREATE TRIGGER appends_stay BEFORE UPDATE ON appends\n"
        "BEGIN SELECT RAISE(ABORT, 'a row of the log is never changed'); END"
    )
    raw.execute("UPDATE runs SET seq = 2 WHERE run_key = 3")
    raw.commit()
    raw.close()

    async def damaged(for_one_command: bool) -> dict[str, str]:
        store = await (connect_store(url) if for_one_command else open_store(url))
        found = {run.run_id: run.damaged for run in await store.runs(RunFilter())}
        await store.close()
        return found

    assert await damaged(for_one_command=True) == {"r1": "", "r2": "", "r3": ""}
    wanted = {
        "r1": "",
        "r2": "the append from seq 3 isn't as it was written",
        "r3": "the log ends at seq 3, the run's row says 2",
    }
    assert await damaged(for_one_command=False) == wanted
    assert await damaged(for_one_command=True) == wanted
