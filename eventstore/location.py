"""From a store's URL to a store.

``memory://`` · ``sqlite:///relative/file.db`` · ``sqlite:////absolute/file.db`` · ``postgresql://user@host/database``
(``postgres_url`` says what it takes). A file's URL has no query, no user, no fragment: a store has no options that change
what it promises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import unquote, urlsplit

import msgspec

from ..runtime.errors import StoreError, StoreUrlError
from .port import EventStore, ReadyListener, SubmitHandler
from .postgres_url import SCHEMES, hidden, parse_postgres_url
from .shown_url import shown_url, url_to_type


class Location(msgspec.Struct, frozen=True):
    """``kind`` is ``memory``, ``sqlite`` or ``postgres``. ``path`` is the file of a ``sqlite`` store, else empty."""

    kind: str
    path: str = ""


def parse_url(url: str) -> Location:
    """Raises ``StoreUrlError``."""
    if url.partition("://")[0] in SCHEMES:
        parse_postgres_url(url)
        return Location("postgres")
    shown = hidden(url)
    try:
        parts = urlsplit(url)
    except ValueError:
        raise StoreUrlError(shown, "it can't be read as a URL") from None
    if not url[len(parts.scheme) :].startswith("://"):
        raise StoreUrlError(shown, "write memory://, sqlite:///file or postgresql://host/database")
    if parts.query or parts.fragment:
        raise StoreUrlError(
            shown, "a store URL takes neither a query nor a fragment (write %3F for ? and %23 for #)"
        )
    if parts.scheme == "memory":
        if parts.netloc or parts.path not in ("", "/"):
            raise StoreUrlError(shown, "memory:// takes nothing after it")
        return Location("memory")
    if parts.scheme != "sqlite":
        raise StoreUrlError(
            shown, "known stores are memory://, sqlite:///file and postgresql://host/database"
        )
    if parts.netloc:
        raise StoreUrlError(shown, "a file needs three slashes: sqlite:///relative or sqlite:////absolute")
    path = unquote(parts.path[1:])
    if not path or path.endswith("/") or "\0" in path:
        raise StoreUrlError(shown, "there is no file name")
    return Location("sqlite", path)


async def open_store(
    url: str,
    *,
    take_over: bool = False,
    on_submit: SubmitHandler | None = None,
    on_ready: ReadyListener | None = None,
    clock: Callable[[], int] | None = None,
) -> EventStore:
    """Open to host runs in it. A file is opened as its owner, and other processes are served on the socket beside it until
    ``close``; PostgreSQL has no owner, and ``take_over`` says nothing there.

    An owner that is there for one command only is waited for, up to 5 s. ``take_over``: kill an owner that can be proved
    to be the one in the lock file. ``on_submit`` handles outside
    commands, ``on_ready`` hears of runs made ready; both are called on this event loop. Raises ``StoreUrlError``,
    ``OwnedError``, ``NewerSchema``, ``DamagedFile`` or another ``StoreError``.
    """
    location = parse_url(url)
    if location.kind == "memory":
        from .memory import MemoryStore

        return MemoryStore(clock=clock, on_submit=on_submit, on_ready=on_ready)
    if location.kind == "postgres":
        from .postgres import PostgresStore

        return await PostgresStore.open(url, clock=clock, on_submit=on_submit, on_ready=on_ready)
    from .owned import OwnedSqliteStore

    return await OwnedSqliteStore.open_owned(
        location.path, take_over=take_over, on_submit=on_submit, on_ready=on_ready, clock=clock
    )


async def connect_store(
    url: str, *, on_submit: SubmitHandler | None = None, take_over: bool = False, must_exist: bool = False
) -> EventStore:
    """For one command: through the owner's socket if a process owns the file, else as its owner meanwhile; to PostgreSQL
    like everybody.

    ``on_submit`` is used only as owner, or for a run that no live host has. ``must_exist`` refuses to make a new store. Commands that race for a file without
    an owner agree: the losers of the lock go through the winner's socket, and when it closes, on to the next owner.
    Raises ``OwnedError`` for an owner that doesn't answer, ``StoreError``.
    """
    location = parse_url(url)
    if location.kind == "memory":
        return await open_store(url, on_submit=on_submit)
    if location.kind == "postgres":
        from .postgres import PostgresStore

        return await PostgresStore.open(url, on_submit=on_submit, must_exist=must_exist)
    from .peer import PeerStore
    from .sqlite_file import real_path

    path = real_path(location.path)
    if must_exist:
        await asyncio.to_thread(_insist_on_file, path, url)
    return await PeerStore.connect(path, on_submit=on_submit, take_over=take_over)


def _insist_on_file(path: str, url: str) -> None:
    import os

    if not os.path.exists(path):
        raise StoreUrlError(url, "there is no such file")


__all__ = ["Location", "StoreError", "connect_store", "open_store", "parse_url", "shown_url", "url_to_type"]
