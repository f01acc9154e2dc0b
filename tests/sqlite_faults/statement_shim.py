"""Faults between the store and SQLite: the N-th statement of a connection raises what SQLite raises."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Literal, Self

Manner = Literal["refused", "undone", "done", "stuck", "no_memory"]
"""``refused``: it did nothing, the transaction is as it was. ``undone``: for want of space, and SQLite has rolled back by
itself. ``done``: it had happened. ``stuck``: it did nothing, and the next ROLLBACK fails too. ``no_memory``: as refused."""

KINDS: Final = ("begin", "change", "read", "savepoint", "release", "rollback to", "commit", "rollback")

_NAMES: Final[dict[Manner, str]] = {
    "refused": "SQLITE_IOERR_WRITE",
    "undone": "SQLITE_FULL",
    "done": "SQLITE_IOERR_WRITE",
    "stuck": "SQLITE_IOERR_WRITE",
    "no_memory": "SQLITE_NOMEM",
}


class StatementShim:
    """What ``sqlite3.connect`` is for the time of a ``with``. ``number`` counts from ``arm``, from 1."""

    def __init__(self) -> None:
        self.fired = ""
        """The kind of the statement that failed, empty if none did yet."""
        self.texts: list[str] = []
        self.left_open = 0
        self.count: Counter[str] = Counter()
        self._left = 0
        self._manner: Manner = "refused"
        self._no_way_back = False
        self._connect = sqlite3.connect

    def __enter__(self) -> Self:
        def connect(path: str, **options: Any) -> sqlite3.Connection:
            connection = self._connect(path, factory=_Connection, **options)
            if path != ":memory:":
                connection.shim = self
            return connection

        sqlite3.connect = connect  # type: ignore[assignment]  # given back on leaving
        return self

    def __exit__(self, *exc: object) -> None:
        sqlite3.connect = self._connect

    def arm(self, number: int, manner: Manner) -> None:
        self.fired, self._left, self._manner, self._no_way_back = "", number, manner, False

    def heal(self) -> None:
        """Nothing fails from now on."""
        self._left, self._no_way_back = 0, False

    def run(
        self, connection: sqlite3.Connection, sql: str, usual: Callable[[], sqlite3.Cursor]
    ) -> sqlite3.Cursor:
        kind = kind_of(sql)
        self.count[kind] += 1
        self.texts.append(sql)
        if kind == "rollback" and self._no_way_back:
            self._no_way_back = False
            raise _error("SQLITE_IOERR_WRITE")
        if self._left:
            self._left -= 1
            if self._left == 0:
                self.fired = kind
                self._fail(connection, usual)
        return usual()

    def _fail(self, connection: sqlite3.Connection, usual: Callable[[], sqlite3.Cursor]) -> None:
        match self._manner:
            case "undone":
                if connection.in_transaction:
                    sqlite3.Connection.execute(connection, "ROLLBACK")
            case "done":
                usual()
            case "stuck":
                self._no_way_back = True
            case _:
                pass
        raise _error(_NAMES[self._manner])


class _Connection(sqlite3.Connection):
    shim: StatementShim | None = None

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if self.shim is None:
            return super().execute(sql, *args)
        usual = super().execute
        return self.shim.run(self, sql, lambda: usual(sql, *args))

    def executemany(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if self.shim is None:
            return super().executemany(sql, *args)
        usual = super().executemany
        return self.shim.run(self, sql, lambda: usual(sql, *args))


def kind_of(sql: str) -> str:
    """Which of ``KINDS`` a statement is."""
    word = sql.split(maxsplit=1)[0].upper()
    if word in ("SELECT", "PRAGMA"):
        return "read"
    if word == "ROLLBACK":
        return "rollback to" if " TO " in sql.upper() else "rollback"
    return word.lower() if word in ("BEGIN", "SAVEPOINT", "RELEASE", "COMMIT") else "change"


def _error(name: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("made to fail")
    error.sqlite_errorname = name
    return error
