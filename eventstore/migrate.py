"""Numbered migrations of a SQLite file.

A migration is a file ``NNNN_subject.sql``, run once, in order, each in one transaction with its row in ``migrations``.
A file that a newer boundloop has migrated further is refused untouched; so is one whose migrations had other texts.
"""

from __future__ import annotations

import sqlite3
from hashlib import sha256
from pathlib import Path

from ..runtime.errors import DamagedFile, NewerSchema

APPLICATION_ID = 0x626C6F70
"""What the file's header says in its application id field: a store of boundloop."""

_MIGRATIONS = "CREATE TABLE IF NOT EXISTS migrations (number INTEGER PRIMARY KEY, sha256 TEXT) STRICT"

_FOLDER = Path(__file__).parent / "schema" / "sqlite"


def known_migrations() -> list[tuple[int, str]]:
    """(number, SQL text) of every migration that is shipped, in order."""
    return [
        (int(path.name.partition("_")[0]), path.read_text("utf-8")) for path in sorted(_FOLDER.glob("*.sql"))
    ]


def refuse_unknown(connection: sqlite3.Connection, path: str) -> None:
    """Read the file's header and schema only. Raises ``NewerSchema`` or ``DamagedFile``."""
    found: int = connection.execute("PRAGMA user_version").fetchone()[0]
    application: int = connection.execute("PRAGMA application_id").fetchone()[0]
    tables: int = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if application != APPLICATION_ID and (tables or found or application):
        raise DamagedFile(path, "the file is a SQLite database but no store of boundloop")
    migrations = known_migrations()
    newest = migrations[-1][0]
    if found > newest:
        raise NewerSchema(found, newest, path=path)
    _check_texts(connection, path, found, migrations)


def missing_sql(found: int) -> str:
    """What ``migrate`` would do to a file of this schema, as a script for the ``sqlite3`` shell; empty if nothing."""
    parts = [
        f"-- {number:04d}\nBEGIN IMMEDIATE;\nPRAGMA application_id = {APPLICATION_ID};\n{_MIGRATIONS};\n{text.rstrip()}\n"
        f"INSERT INTO migrations VALUES ({number}, '{_digest(text)}');\nPRAGMA user_version = {number};\nCOMMIT;\n"
        for number, text in known_migrations()
        if number > found
    ]
    return "\n".join(parts)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the file to the newest known schema; ``refuse_unknown`` has let it pass.

    The connection is in autocommit mode (``isolation_level=None``) and no transaction is open.
    """
    found: int = connection.execute("PRAGMA user_version").fetchone()[0]
    for number, text in known_migrations():
        if number > found:
            _apply(connection, number, text)


def _check_texts(
    connection: sqlite3.Connection, path: str, found: int, migrations: list[tuple[int, str]]
) -> None:
    if found == 0:
        return
    rows = connection.execute("SELECT number, sha256 FROM migrations ORDER BY number").fetchall()
    made_by = [(number, text) for number, text in migrations if number <= found]
    if rows != [(number, _digest(text)) for number, text in made_by]:
        raise DamagedFile(path, "its schema was made by other migrations than the ones of this version")
    if _schema(connection) != _schema_after(made_by):
        raise DamagedFile(path, "its tables, indexes and triggers aren't the ones that its migrations make")


def _schema(connection: sqlite3.Connection) -> list[tuple[str, str, str, str | None]]:
    return connection.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name"
    ).fetchall()


def _schema_after(migrations: list[tuple[int, str]]) -> list[tuple[str, str, str, str | None]]:
    empty = sqlite3.connect(":memory:", isolation_level=None)
    try:
        for number, text in migrations:
            _apply(empty, number, text)
        return _schema(empty)
    finally:
        empty.close()


def _apply(connection: sqlite3.Connection, number: int, text: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(_MIGRATIONS)
        for statement in _statements(text):
            connection.execute(statement)
        connection.execute("INSERT INTO migrations VALUES (?, ?)", (number, _digest(text)))
        connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _statements(text: str) -> list[str]:
    """The single statements; ``executescript`` would commit on its own and break the one transaction."""
    statements: list[str] = []
    pending = ""
    for line in text.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            statements.append(pending)
            pending = ""
    if pending.strip():
        raise ValueError("a migration ends in the middle of a statement")
    return statements


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()
