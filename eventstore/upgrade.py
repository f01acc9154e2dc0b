"""The schema of the store at a URL: where it stands, what is missing, and to bring it there."""

from __future__ import annotations

import asyncio
import os

import msgspec

from ..runtime.errors import StoreError, StoreUrlError
from .location import parse_url, shown_url


class Schema(msgspec.Struct, frozen=True):
    """``found``: the number of the last migration that the store has had, 0 for no store. ``newest``: the last that this version
    knows. ``missing_sql``: what would be done to it, for the database's own shell; empty if nothing."""

    kind: str
    found: int
    newest: int
    missing_sql: str


async def schema_at(url: str) -> Schema:
    """Look, and change nothing. Raises ``StoreUrlError``, ``OwnedError`` for a file that a process owns (which has migrated it),
    ``NewerSchema`` for one that a newer version has migrated further, ``DamagedFile`` for other texts than the shipped ones, and
    ``StoreError`` as opening does (``file_locked`` for a file that another program has open)."""
    location = parse_url(url)
    if location.kind == "memory":
        raise StoreUrlError(url, "memory:// has no schema")
    if location.kind == "postgres":
        return await _in_postgres(url)
    return await asyncio.to_thread(_in_file, location.path)


async def migrate_at(url: str, *, create: bool = False) -> tuple[Schema, Schema]:
    """Bring the store to the newest schema; where it stood before, and stands now. Opening a store does the same: this is for
    whoever may change schemas where the application may not. All that is missing is one transaction on PostgreSQL, one a
    migration in a file. ``create``: also make a store that isn't there, which is ``StoreError`` (``no_such_store``) else.
    Raises as ``schema_at`` besides."""
    before = await schema_at(url)
    if not before.found and not create:
        raise StoreError("no_such_store", "there is no store; --create makes one", path=shown_url(url))
    from .location import open_store

    store = await open_store(url)
    await store.close()
    return before, await schema_at(url)


def _in_file(path: str) -> Schema:
    from . import migrate
    from .owned import lock_path
    from .owner import take
    from .sqlite_file import real_path, schema_of

    real = real_path(path)
    found = 0
    if os.path.exists(real):  # else a look would leave a lock beside nothing
        lock = take(lock_path(real), brief=True)
        try:
            found = schema_of(real)
        finally:
            lock.release()
    return Schema("sqlite", found, migrate.known_migrations()[-1][0], migrate.missing_sql(found))


async def _in_postgres(url: str) -> Schema:
    from . import postgres_migrate
    from .postgres_link import Cut, connect
    from .postgres_url import parse_postgres_url

    place = parse_postgres_url(url)
    try:
        link = await connect(place, "boundloop looks at the schema")
        try:
            found = await postgres_migrate.schema_of(link.connection, place)
        finally:
            await link.connection.close()
    except Cut as cut:
        raise StoreError("store_unreachable", str(cut), path=place.shown) from cut
    newest = postgres_migrate.known_migrations()[-1][0]
    return Schema("postgres", found, newest, postgres_migrate.missing_sql(place, found))
