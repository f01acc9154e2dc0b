"""Numbered migrations of a PostgreSQL schema, as those of a SQLite file (``migrate``): each once, in order, with its
checksum. All that are missing run in one transaction, one process at a time."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

from ..runtime.errors import DamagedFile, NewerSchema, StoreUrlError
from .postgres_link import Connection, answered
from .postgres_url import PostgresPlace

_MIGRATIONS = "CREATE TABLE IF NOT EXISTS migrations (number bigint PRIMARY KEY, sha256 text NOT NULL)"

_FOLDER = Path(__file__).parent / "schema" / "postgres"


def known_migrations() -> list[tuple[int, str]]:
    """(number, SQL text) of every migration that is shipped, in order."""
    return [
        (int(path.name.partition("_")[0]), path.read_text("utf-8")) for path in sorted(_FOLDER.glob("*.sql"))
    ]


async def migrate(connection: Connection, place: PostgresPlace, *, must_exist: bool = False) -> None:
    """Bring the schema to the newest known state; make it if it isn't there. Raises ``NewerSchema``, ``DamagedFile`` for one
    that other texts made, ``StoreUrlError`` for one that isn't there if it ``must_exist``, ``StoreError``."""
    known = known_migrations()
    found = await _found(connection, place)
    if found is None and must_exist:
        raise StoreUrlError(place.shown, f"there is no store in schema {place.schema}")
    if found is not None and _missing(found, known, place) == []:
        return
    await answered(connection, _apply(connection, place, known), place)


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
    async with connection.transaction():
        # Two processes that open a new store at once: one makes it, the other finds it made.
        await connection.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", f"boundloop {place.schema}"
        )
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
