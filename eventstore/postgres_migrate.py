"""Numbered migrations of a PostgreSQL schema, as those of a SQLite file (``migrate``): each once, in order, with its
checksum. All that are missing run in one transaction, one process at a time."""

from __future__ import annotations

import contextlib
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from ..runtime.errors import DamagedFile, NewerSchema, StoreError, StoreUrlError
from .postgres_link import Connection, Cut, answered, driver
from .postgres_url import PostgresPlace

_MIGRATIONS = "CREATE TABLE IF NOT EXISTS migrations (number bigint PRIMARY KEY, sha256 text NOT NULL)"

MIGRATION_S: Final = 3_600.0
"""All that is missing, together: a table of many runs may be rewritten and its indexes built. The server ends a single statement
after as long, if nobody is there to do it."""

_LOOK_FOR_CLIENT: Final = "SET LOCAL client_connection_check_interval = 5000"
"""A statement of an hour whose process was killed ends soon, and not at its end."""

_FOLDER = Path(__file__).parent / "schema" / "postgres"


def known_migrations() -> list[tuple[int, str]]:
    """(number, SQL text) of every migration that is shipped, in order."""
    return [
        (int(path.name.partition("_")[0]), path.read_text("utf-8")) for path in sorted(_FOLDER.glob("*.sql"))
    ]


class MigrationCut(Cut):
    """The connection ended while the schema was changed: the server may be at it still, and whether it is done isn't known."""


async def migrate(connection: Connection, place: PostgresPlace, *, must_exist: bool = False) -> None:
    """Bring the schema to the newest known state, within ``MIGRATION_S``; make it if it isn't there. Raises ``NewerSchema``,
    ``DamagedFile`` for one that other texts made, ``StoreUrlError`` for one that isn't there if it ``must_exist``, ``StoreError``:
    ``schema_migrating`` while another process does it, ``schema_in_use`` if others hold locks on its tables. Each lock is waited
    for as long as any statement waits; then nothing of the migration is there. Raises ``MigrationCut``, upon which
    the caller ends the connection's backend and looks again, and ``Cut`` before anything was changed."""
    known = known_migrations()
    found = await _found(connection, place)
    if found is None and must_exist:
        raise StoreUrlError(
            place.shown,
            f"there is no store in schema {place.schema}; boundloop store migrate --create makes one",
        )
    if found is not None and _missing(found, known, place) == []:
        return
    try:
        await answered(connection, _apply(connection, place, known), place, MIGRATION_S)
    except Cut as cut:
        raise MigrationCut(str(cut)) from cut


async def state_of(connection: Connection, place: PostgresPlace) -> str:
    """``absent``, ``older`` or ``current``. Raises as ``migrate``; changes nothing."""
    found = await _found(connection, place)
    if found is None:
        return "absent"
    return "older" if _missing(found, known_migrations(), place) else "current"


async def schema_of(connection: Connection, place: PostgresPlace) -> int:
    """The number of the schema's last migration; 0 if there is none. Raises as ``migrate``; changes nothing."""
    found = await _found(connection, place)
    if not found:
        return 0
    _missing(found, known_migrations(), place)
    return found[-1][0]


def missing_sql(place: PostgresPlace, found: int) -> str:
    """What ``migrate`` would do to a schema that stands there, as a script for ``psql``; empty if nothing."""
    missing = [(number, text) for number, text in known_migrations() if number > found]
    if not missing:
        return ""
    schema = '"' + place.schema.replace('"', '""') + '"'
    begin = [f"CREATE SCHEMA IF NOT EXISTS {schema};"] if not found else []
    parts = [*begin, f"SET LOCAL search_path TO {schema};", f"{_MIGRATIONS};"]
    for number, text in missing:
        parts += [f"-- {number:04d}", text.rstrip()]
        parts.append(f"INSERT INTO migrations VALUES ({number}, '{_digest(text)}');")
    return "\n".join(["BEGIN;", *parts, "COMMIT;\n"])


async def _found(connection: Connection, place: PostgresPlace) -> list[tuple[int, str]] | None:
    """The migrations on record; None without a store."""
    table: Any = await answered(
        connection,
        connection.fetchval("SELECT to_regclass($1)::text", f'"{place.schema}".migrations'),
        place,
    )
    if table is None:
        return None
    rows = await answered(
        connection, connection.fetch("SELECT number, sha256 FROM migrations ORDER BY number"), place
    )
    return [(row["number"], row["sha256"]) for row in rows]


def _missing(
    found: list[tuple[int, str]], known: list[tuple[int, str]], place: PostgresPlace
) -> list[tuple[int, str]]:
    newest = known[-1][0]
    if found and found[-1][0] > newest:
        raise NewerSchema(found[-1][0], newest, path=place.shown)
    if found != [(number, _digest(text)) for number, text in known[: len(found)]]:
        raise DamagedFile(
            place.shown, "its schema was made by other migrations than the ones of this version"
        )
    return known[len(found) :]


async def _apply(connection: Connection, place: PostgresPlace, known: list[tuple[int, str]]) -> None:
    asyncpg = driver()
    async with connection.transaction():
        # Two processes that open a new store at once: one makes it, the other finds it made.
        try:
            await connection.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", f"boundloop {place.schema}"
            )
        except asyncpg.LockNotAvailableError as error:
            raise StoreError(
                "schema_migrating",
                "another process is migrating this schema: open it when that has ended",
                path=place.shown,
            ) from error
        try:
            await _apply_alone(connection, place, known)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            raise StoreError(
                "schema_in_use",
                "the schema must be migrated, and hosts or other sessions are at work in its tables: stop them first. "
                "Nothing was changed",
                path=place.shown,
            ) from error


async def _apply_alone(connection: Connection, place: PostgresPlace, known: list[tuple[int, str]]) -> None:
    await connection.execute(f"SET LOCAL statement_timeout = {int(MIGRATION_S * 1_000)}")
    # Servers on some systems can't look, and refuse to be asked to.
    with contextlib.suppress(driver().PostgresError):
        async with connection.transaction():
            await connection.execute(_LOOK_FOR_CLIENT)
    if await connection.fetchval("SELECT to_regnamespace($1) IS NULL", f'"{place.schema}"'):
        await connection.execute(
            f'CREATE SCHEMA "{place.schema}"'
        )  # not asked for what is there: it needs rights
    await connection.execute(_MIGRATIONS)
    for number, text in _missing(await _found(connection, place) or [], known, place):
        await connection.execute(text)
        await connection.execute("INSERT INTO migrations VALUES ($1, $2)", number, _digest(text))


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()
