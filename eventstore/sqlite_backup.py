"""A copy of a file that is in use: page by page, between the commits of its owner.

SQLite's own online backup. It runs on a thread of its own over the owner's one connection and takes turns with the store: it
has the connection for a few pages, gives it away, and waits. What is written meanwhile through that connection
SQLite brings into the copy too, so the copy is the store as of the last page.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from ..runtime.errors import CallerError, DamagedFile, DiskFull, StoreError
from .sqlite_file import has_no_space
from .whole_file import begin_file, name_new

PAGES_A_TURN: Final = 64
"""256 KiB: about a millisecond."""

PAUSE_S: Final = 0.001

_BESIDE: Final = ("-wal", "-shm", "-journal")
"""What SQLite takes for a part of a file of this name: what another file left there would be read into the copy."""

Lend = Callable[[Callable[[sqlite3.Connection, Callable[[], None]], None]], None]
"""Runs what it is given with the store's connection in its turn; the function that goes with it gives the turn to others, and
raises if the connection is no more."""


def back_up(lend: Lend, path: str, stop: threading.Event) -> None:
    """Copy the store to a new file that has its name once it is whole, checked and on disk. ``stop`` ends it early. Raises
    ``CallerError`` (``file_exists``), also for what SQLite would read as a part of it, and ``StoreError``; no file is left then. After
    a crash there may be a part (``whole_file``), which nothing needs."""
    for tail in ("", *_BESIDE):
        if os.path.lexists(path + tail):
            raise CallerError("file_exists", "there is a file of this name", path=path + tail)
    try:
        part, descriptor = begin_file(path)
        os.close(descriptor)
    except OSError as error:
        raise StoreError("unwritable", str(error), path=path) from error
    try:
        _copy(lend, part, stop)
        _check(part)
        _go_on_unless(stop, part)  # a small copy is whole before it is asked
        _keep(part, path)
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorname", "").startswith("SQLITE_FULL") or has_no_space(part):
            raise DiskFull(part) from error
        raise StoreError("unwritable", str(error), path=part) from error
    except FileExistsError as error:
        raise CallerError("file_exists", "there is a file of this name by now", path=path) from error
    except OSError as error:
        raise StoreError("unwritable", str(error), path=part) from error
    finally:
        for tail in ("", *_BESIDE):
            with contextlib.suppress(OSError):
                os.unlink(part + tail)


def _copy(lend: Lend, part: str, stop: threading.Event) -> None:
    target = sqlite3.connect(part, isolation_level=None)
    try:
        # It is synced once, when it is whole.
        target.execute("PRAGMA synchronous = OFF")

        def copy(source: sqlite3.Connection, give_turn: Callable[[], None]) -> None:
            def between(*_: Any) -> None:
                _go_on_unless(stop, part)
                give_turn()

            source.backup(target, pages=PAGES_A_TURN, progress=between, sleep=PAUSE_S)

        lend(copy)
    finally:
        target.close()


def _go_on_unless(stop: threading.Event, part: str) -> None:
    if stop.is_set():
        raise StoreError("given_up", "nobody waits for this copy any more", path=part)


def _check(part: str) -> None:
    copy = sqlite3.connect(part, isolation_level=None)
    try:
        verdict = copy.execute("PRAGMA integrity_check(1)").fetchone()[0]
    finally:
        copy.close()
    if verdict != "ok":
        raise DamagedFile(part, str(verdict)[:500])


def _keep(part: str, path: str) -> None:
    descriptor = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    name_new(part, path)


def pause() -> None:
    """Between two turns."""
    time.sleep(PAUSE_S)
