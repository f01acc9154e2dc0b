"""Opening a SQLite file as a store: what is refused, and how the connection is set up."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat

from ..runtime.errors import DamagedFile, DiskFull, StoreError, StoreUrlError
from .file_system import Mount, judge, mount_of
from .migrate import migrate, refuse_unknown

CHECKED_BYTES_MAX = 16 * 1024 * 1024
"""A file up to this size gets ``quick_check`` when it is opened (30 ms); a larger one would hold up every command. The hash
chain (``verify``) covers the log of any size."""

CHECKED_LEFT_BYTES_MAX = 256 * 1024 * 1024
"""The same after an owner that didn't close the file, once (a second)."""

WAL_KEPT_BYTES_MAX = 16 * 1024 * 1024
"""What a reset WAL file keeps on disk while the store is busy (overwriting is cheaper than growing)."""

WAL_AUTOCHECKPOINT_PAGES = 1_000

CACHE_KIB_MAX = 16 * 1024

_MAGIC = b"SQLite format 3\x00"


_UNREADABLE = (sqlite3.Error, ValueError, TypeError, IndexError)
"""A damaged schema makes more than SQLite's errors: names that are no UTF-8, rows of other shapes."""


def real_path(path: str) -> str:
    """The file behind links. One file must have one lock, so hard links are refused."""
    real = os.path.realpath(path)
    folder = os.path.dirname(real)
    if not os.path.isdir(folder):
        raise StoreUrlError(path, f"there is no folder {folder}")
    try:
        found = os.stat(real)
    except FileNotFoundError:
        found = None
    except OSError as error:
        raise StoreError("unreadable", str(error), path=real) from error
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise StoreUrlError(path, "this is no file")
    if found is not None and found.st_nlink > 1:
        raise StoreError(
            "hard_links", "the file has more than one name, so locks don't protect it", path=real
        )
    _refuse_mount(mount_of(real), real, exists=found is not None)
    return real


def _refuse_mount(mount: Mount, path: str, *, exists: bool) -> None:
    if exists and mount.point == path:
        raise StoreError(
            "mounted_file",
            "the file itself is a mount, so its WAL and its lock would lie elsewhere: mount its folder",
            path=path,
        )
    match judge(mount.kind):
        case "safe":
            pass
        case "network":
            raise StoreError(
                "network_file_system", f"SQLite isn't safe on {mount.kind}: use a local disk", path=path
            )
        case "unknown":
            raise StoreError(
                "fuse_file_system",
                f"whether locks and fsync hold on {mount.kind} isn't known: use a local disk",
                path=path,
            )


def connect(path: str) -> sqlite3.Connection:
    """The one connection to this file, migrated and checked. The caller holds the file's lock.

    Raises ``DamagedFile``, ``NewerSchema`` or ``StoreError``; the connection is closed then.
    """
    _check_header(path)
    left_over = _size(f"{path}-wal") > 0
    try:
        # Two threads take turns with it under a lock of their own.
        connection = sqlite3.connect(
            path, isolation_level=None, timeout=5.0, cached_statements=256, check_same_thread=False
        )
    except sqlite3.Error as error:
        raise open_error(error, path) from error
    try:
        # Before the first read, or it comes too late. Nobody else may open the file, not even an owner that got a lock
        # file of its own because someone removed the first.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        refuse_unknown(connection, path)
        _set_up(connection, path)
        migrate(connection)
        if left_over:
            _fold_in(connection, path)
        if os.path.getsize(path) <= (CHECKED_LEFT_BYTES_MAX if left_over else CHECKED_BYTES_MAX):
            verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if verdict != "ok":
                raise DamagedFile(path, str(verdict)[:500])
    except _UNREADABLE as error:
        connection.close()
        raise open_error(error, path) from error
    except BaseException:
        connection.close()
        raise
    return connection


def schema_of(path: str) -> int:
    """The number of the file's last migration; 0 for a file that is empty. The caller holds its lock. Changes nothing but that a WAL
    is folded in. Raises as ``connect``."""
    try:
        connection = sqlite3.connect(path, isolation_level=None)
    except sqlite3.Error as error:
        raise open_error(error, path) from error
    try:
        refuse_unknown(connection, path)
        found: int = connection.execute("PRAGMA user_version").fetchone()[0]
    except _UNREADABLE as error:
        raise open_error(error, path) from error
    finally:
        connection.close()
    return found


def _fold_in(connection: sqlite3.Connection, path: str) -> None:
    """What an owner left in the WAL when it was killed, or when its disk failed, may be no more than in the kernel's
    memory: a commit that nobody was told of, or whose fsync failed. Before anybody acts on what is read here it is
    written to the file and synced, which says so if the disk doesn't take it. Without space nothing can be folded in; the
    WAL has been synced by then."""
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error as error:
        if not isinstance(open_error(error, path), DiskFull):
            raise


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def open_error(error: Exception, path: str) -> StoreError:
    """Why opening failed, as a type."""
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith("SQLITE_FULL") or (name.startswith(_WRITING) and has_no_space(path)):
        return DiskFull(path)
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreError("file_locked", "another program has the file open", path=path)
    if name.startswith(_NO_DAMAGE):
        return StoreError(name.lower(), str(error), path=path)
    return DamagedFile(path, str(error))


_NO_DAMAGE = ("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_NOMEM")
"""What keeps a file from being opened and says nothing of what it holds."""

_WRITING = ("SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE", "SQLITE_CANTOPEN")


def has_no_space(path: str) -> bool:
    """Whether what failed in writing this file may have failed for want of space."""
    try:
        space = os.statvfs(os.path.dirname(path) or ".")
    except OSError:
        return False
    return space.f_bavail * space.f_frsize < 1024 * 1024 or (space.f_files > 0 and space.f_favail == 0)


def _check_header(path: str) -> None:
    try:
        # A store holds what runs were told; only its owner reads it, and SQLite gives the WAL the same mode.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        with open(path, "rb") as file:
            head = file.read(len(_MAGIC))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(path) from error
        raise StoreError("unreadable", str(error), path=path) from error
    if head and head != _MAGIC:
        raise DamagedFile(path, "the file is no SQLite database")


def _set_up(connection: sqlite3.Connection, path: str) -> None:
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    connection.execute("PRAGMA mmap_size = 0")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB_MAX}")
    _insist(connection, path, "journal_mode", "WAL", "wal")
    # NORMAL would lose the last commits with the power, an intent among them: an effect without a record.
    _insist(connection, path, "synchronous", "FULL", 2)
    connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_AUTOCHECKPOINT_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES_MAX}")


def _insist(connection: sqlite3.Connection, path: str, name: str, value: str, wanted: str | int) -> None:
    connection.execute(f"PRAGMA {name} = {value}").fetchone()
    found = connection.execute(f"PRAGMA {name}").fetchone()[0]
    if found != wanted:
        raise StoreError("pragma_refused", f"{name} is {found!r}, not {wanted!r}", path=path)
