"""Which SQLite library this process has, and what of it matters to a store."""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

WAL_RESET_FROM: Final = (3, 7, 0)
WAL_RESET_FIXED: Final = (3, 51, 3)
WAL_RESET_BACKPORTS: Final = ((3, 44, 6), (3, 50, 7))
"""The first releases of their branches in which a WAL that two connections reset at once can't damage the file."""

SYNCHRONOUS: Final = ("OFF", "NORMAL", "FULL", "EXTRA")


class SqliteLibrary(msgspec.Struct, frozen=True):
    """``wal_reset_race``: two connections could damage a file in WAL mode. ``synchronous`` is what this build would do
    if nobody said otherwise; a store sets FULL and reads it back."""

    version: str
    wal_reset_race: bool
    synchronous: str


def this_library() -> SqliteLibrary:
    return SqliteLibrary(sqlite3.sqlite_version, has_wal_reset_race(sqlite3.sqlite_version_info), _default())


def has_wal_reset_race(version: tuple[int, ...]) -> bool:
    """Whether this release is in the range: 3.7.0 to 3.51.2 without what was repaired on older branches."""
    repaired = any(version[:2] == fixed[:2] and version >= fixed for fixed in WAL_RESET_BACKPORTS)
    return WAL_RESET_FROM <= version < WAL_RESET_FIXED and not repaired


def _default() -> str:
    connection = sqlite3.connect(":memory:")
    try:
        return SYNCHRONOUS[int(connection.execute("PRAGMA synchronous").fetchone()[0])]
    finally:
        connection.close()
