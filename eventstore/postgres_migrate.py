"""Numbered migrations of a PostgreSQL schema, as those of a SQLite file (``migrate``): each once, in order, with its
checksum. All that are missing run in one transaction, one process at a time."""

from __future__ import annotations

import contextlib
import re
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

_CREATES: Final = re.compile(r"^CREATE (?:TABLE|TYPE|FUNCTION|INDEX) (\w+)", re.MULTILINE)

_LOOK: Final = """
WITH here AS (SELECT oid FROM pg_namespace WHERE nspname = $1)
SELECT name, CASE kind WHEN 'p' THEN 'table' WHEN 'r' THEN 'table' WHEN 'f' THEN 'foreign table' WHEN 'v' THEN 'view'
    WHEN 'm' THEN 'materialized view' WHEN 'S' THEN 'sequence' WHEN 'i' THEN 'index' WHEN 'I' THEN 'index'
    WHEN 'function' THEN 'function' ELSE 'type' END AS kind,
    kind = 'r' AND (SELECT array_agg(attname::text || ' ' || atttypid::regtype::text) FROM pg_attribute
        WHERE attrelid = found.oid AND attnum > 0 AND NOT attisdropped) @> '{number bigint,sha256 text}' AS records
FROM (
    SELECT oid, relname::text AS name, relkind::text AS kind, 1 AS place FROM pg_class WHERE relnamespace = (SELECT oid FROM here)
    UNION ALL SELECT oid, typname::text, 'type', 2 FROM pg_type WHERE typnamespace = (SELECT oid FROM here)
    UNION ALL SELECT oid, proname::text, 'function', 3 FROM pg_proc WHERE pronamespace = (SELECT oid FROM here)
) AS found WHERE name = ANY ($2) ORDER BY place, name
"""
"""Which of these names are taken in the schema, tables first. One statement, so that a store that is made meanwhile is there whole
or not at all: it asks no function that looks for itself (``to_regclass``). ``records``: has what ours has of each migration."""

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
    ``schema_taken`` if names that it needs are another application's, ``schema_migrating`` while another process does it,
    ``schema_in_use`` if others hold locks on its tables. Each lock is waited for as long as any statement waits; then nothing of
    the migration is there. Raises ``MigrationCut``, upon which the caller ends the connection's backend and looks again, and
    ``Cut`` before anything was changed."""
    known = known_migrations()
    found = await _found(connection, place, known)
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
    known = known_migrations()
    found = await _found(connection, place, known)
    if found is None:
        return "absent"
    return "older" if _missing(found, known, place) else "current"


async def schema_of(connection: Connection, place: PostgresPlace) -> int:
    """The number of the schema's last migration; 0 if there is none. Raises as ``migrate``; changes nothing."""
    known = known_migrations()
    found = await _found(connection, place, known)
    if not found:
        return 0
    _missing(found, known, place)
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


def names_made(migrations: list[tuple[int, str]]) -> frozenset[str]:
    """What these create under a name of ours: tables, types, functions, indexes."""
    return frozenset(name for _, text in migrations for name in _CREATES.findall(text))


async def _found(
    connection: Connection, place: PostgresPlace, known: list[tuple[int, str]]
) -> list[tuple[int, str]] | None:
    """The migrations on record; None without a store. Raises ``schema_taken`` if a name that is needed yet is another's."""
    # Refused to a role that may not look into the schema, which else is passed over as if nothing were there.
    await answered(
        connection, connection.fetchval("SELECT to_regclass($1)::text", f'"{place.schema}".migrations'), place
    )
    names = ["migrations", *names_made(known)]
    taken = await answered(connection, connection.fetch(_LOOK, place.schema, names), place)
    rows: list[Any] = []
    is_here = any(it["name"] == "migrations" and it["records"] for it in taken)
    if is_here:
        # After the look: what was made since is on record, and isn't taken for somebody else's.
        rows = await answered(
            connection, connection.fetch("SELECT number, sha256 FROM migrations ORDER BY number"), place
        )
    ours = names_made(known[: len(rows)]) | frozenset(("migrations",) if is_here else ())
    for it in taken:
        if it["name"] not in ours:
            article = "an" if it["kind"] == "index" else "a"
            raise StoreError(
                "schema_taken",
                f"schema {place.schema} is used by something else: {article} {it['kind']} {it['name']} is there, which isn't this "
                "store's. Give the store a schema of its own (?schema=…). Nothing was changed",
                path=place.shown,
            )
    return [(row["number"], row["sha256"]) for row in rows] if is_here else None


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
                "the schema must be migrated, and another session holds locks on its tables: open it again when that has ended. "
                "Nothing was changed",
                path=place.shown,
            ) from error


async def _apply_alone(connection: Connection, place: PostgresPlace, known: list[tuple[int, str]]) -> None:
    await connection.execute(f"SET LOCAL statement_timeout = {int(MIGRATION_S * 1_000)}")
    # Servers on some systems can't look, and refuse to be asked to.
    with contextlib.suppress(driver().PostgresError):
        async with connection.transaction():
            await connection.execute(_LOOK_FOR_CLIENT)
    found = await _found(connection, place, known)
    if found is None:
        if await connection.fetchval("SELECT to_regnamespace($1) IS NULL", f'"{place.schema}"'):
            # Not asked for what is there: it needs rights.
            await connection.execute(f'CREATE SCHEMA "{place.schema}"')
        await connection.execute(_MIGRATIONS)
    for number, text in _missing(found or [], known, place):
        await connection.execute(text)
        await connection.execute("INSERT INTO migrations VALUES ($1, $2)", number, _digest(text))


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()
