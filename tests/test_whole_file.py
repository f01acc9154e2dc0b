"""Exports and backups get their names when they are whole: two at once don't meet, nothing that lies in the folder is written to
or believed, and whoever is killed leaves a whole copy under one name, or none."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.contract.log_writer import LogWriter

from boundloop.eventstore import sqlite_backup, whole_file
from boundloop.eventstore.archive import check_archive
from boundloop.eventstore.export import export_store
from boundloop.eventstore.location import open_store
from boundloop.eventstore.memory import MemoryStore
from boundloop.eventstore.verify import verify_store
from boundloop.eventstore.whole_file import begin_file, name_new
from boundloop.runtime.errors import CallerError, StoreError

pytestmark = pytest.mark.asyncio


async def filled(path: Path) -> Any:
    store: Any = await open_store(f"sqlite:///{path}")
    run = LogWriter(store, "r1")
    for number in range(20):
        await run.write(f"{number}" + "x" * 3_000)
    return store


async def is_whole(path: Path) -> None:
    copy = await open_store(f"sqlite:///{path}")
    try:
        assert (await verify_store(copy)).ok
        assert len(await copy.read("r1")) == 20
    finally:
        await copy.close()


def beside(folder: Path, name: str) -> list[str]:
    """What there is of a copy."""
    return sorted(one.name for one in folder.iterdir() if one.name.startswith(name))


async def test_of_two_backups_to_one_name_one_is_whole_and_the_other_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await filled(tmp_path / "a.db")
    target = tmp_path / "copy.db"
    checked, go_on = threading.Event(), threading.Event()
    check = sqlite_backup._check  # pyright: ignore[reportPrivateUsage]  # the first is held there

    def held(part: str) -> None:
        check(part)
        if not checked.is_set():
            checked.set()
            assert go_on.wait(30)

    monkeypatch.setattr(sqlite_backup, "_check", held)
    first = asyncio.create_task(store.back_up(str(target)))
    try:
        assert await asyncio.to_thread(checked.wait, 30)
        await store.back_up(str(target))
    finally:
        go_on.set()
    with pytest.raises(CallerError, match="file_exists"):
        await first
    await store.close()
    assert beside(tmp_path, "copy.db") == ["copy.db"]
    await is_whole(target)


async def test_two_exports_to_one_name_are_two_files_until_they_end(tmp_path: Path) -> None:
    store = MemoryStore()
    await LogWriter(store, "r1").write("one")
    path = str(tmp_path / "a.export")
    read = store.read
    inner: list[Any] = []

    async def export_within(run_id: str, **more: Any) -> Any:
        store.read = read  # type: ignore[method-assign]  # only the first read of all
        inner.append(await export_store(store, path))
        return await read(run_id, **more)

    store.read = export_within  # type: ignore[method-assign]  # another export begins and ends in this one
    contents = await export_store(store, path)
    assert inner == [contents]
    assert check_archive(path) == contents
    assert beside(tmp_path, "") == ["a.export"]


KILLED = """
import asyncio, os, signal, sys
from boundloop.eventstore import sqlite_backup, whole_file
from boundloop.eventstore.location import open_store

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

module, name = {"named": (whole_file, "sync_folder"), "checked": (sqlite_backup, "_keep")}[sys.argv[3]]
setattr(module, name, die)

async def main(url, path):
    await (await open_store(url)).back_up(path)

asyncio.run(main(*sys.argv[1:3]))
"""


@pytest.mark.parametrize("when", ["named", "checked"])
async def test_a_backup_that_is_killed_leaves_a_whole_copy_of_one_name_or_none(
    when: str, tmp_path: Path
) -> None:
    await (await filled(tmp_path / "a.db")).close()
    target = tmp_path / "copy.db"
    url = f"sqlite:///{tmp_path}/a.db"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, url, str(target), when)
    assert await process.wait() == -signal.SIGKILL
    left = beside(tmp_path, "copy.db")
    if when == "named":
        assert left == ["copy.db"]
    else:
        assert [bool(re.fullmatch(r"copy\.db\.[0-9a-f]{16}\.part", name)) for name in left] == [True]
        store: Any = await open_store(url)
        await store.back_up(str(target))  # what was left is in nobody's way
        await store.close()
    assert target.stat().st_nlink == 1
    await is_whole(target)


async def test_a_file_or_link_that_has_the_parts_name_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No name can be guessed; if one could, nothing would be gained."""

    def guessed(count: int) -> str:
        return "00" * count

    monkeypatch.setattr(whole_file, "token_hex", guessed)
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine")
    store = await filled(tmp_path / "a.db")
    try:
        for name in ("link", "file"):
            part = tmp_path / f"{name}.0000000000000000.part"
            if name == "link":
                part.symlink_to(precious)
            else:
                part.write_bytes(b"mine")
            for copying in (store.back_up(str(tmp_path / name)), export_store(store, str(tmp_path / name))):
                with pytest.raises(StoreError, match="unwritable"):
                    await copying
            assert part.read_bytes() == b"mine"
            assert not (tmp_path / name).exists()
    finally:
        await store.close()


async def test_a_copy_is_its_owners_whatever_lay_there(tmp_path: Path) -> None:
    store = await filled(tmp_path / "a.db")
    try:
        for name in ("b.db", "b.export"):
            old = tmp_path / f"{name}.part"
            old.write_bytes(b"")
            old.chmod(0o666)
        await store.back_up(str(tmp_path / "b.db"))
        await export_store(store, str(tmp_path / "b.export"))
    finally:
        await store.close()
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("b.db", "b.export", "b.db.part")]
    assert modes == [0o600, 0o600, 0o666]


@pytest.mark.parametrize("tail", ["-wal", "-shm", "-journal"])
async def test_what_sqlite_would_read_into_a_copy_is_refused(tail: str, tmp_path: Path) -> None:
    """As a file leaves it whose process was killed, and which alone was removed."""
    store = await filled(tmp_path / "a.db")
    try:
        (tmp_path / f"copy.db{tail}").write_bytes(b"of another file")
        with pytest.raises(CallerError, match="file_exists") as caught:
            await store.back_up(str(tmp_path / "copy.db"))
        assert caught.value.path == str(tmp_path / f"copy.db{tail}")
    finally:
        await store.close()
    assert beside(tmp_path, "copy.db") == [f"copy.db{tail}"]


@pytest.mark.parametrize("renames", [True, False])
async def test_a_name_that_is_taken_stays_with_what_has_it(
    renames: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the file system can't rename without writing over something."""
    if not renames:

        def cant(part: str, path: str) -> bool:
            return False

        monkeypatch.setattr(whole_file, "_renamed", cant)
    path = str(tmp_path / "a")
    for turn in range(2):
        part, descriptor = begin_file(path)
        os.write(descriptor, b"%d" % turn)
        os.close(descriptor)
        if not turn:
            name_new(part, path)
            assert (os.path.lexists(part), os.stat(path).st_nlink) == (False, 1)  # noqa: ASYNC240  one look
            continue
        with pytest.raises(FileExistsError):
            name_new(part, path)
        assert os.path.lexists(part)  # noqa: ASYNC240  its maker's to remove
    assert (tmp_path / "a").read_bytes() == b"0"


async def test_a_folder_that_cant_be_written_to_is_said_by_name(tmp_path: Path) -> None:
    store = await filled(tmp_path / "a.db")
    try:
        for copying in (
            store.back_up(str(tmp_path / "none" / "b.db")),
            export_store(store, str(tmp_path / "none" / "b.export")),
        ):
            with pytest.raises(StoreError, match="unwritable"):
                await copying
    finally:
        await store.close()
    with sqlite3.connect(tmp_path / "a.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
