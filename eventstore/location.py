"""From a store's URL to a store.

``memory://`` · ``sqlite:///relative/file.db`` · ``sqlite:////absolute/file.db`` · ``postgresql://user@host/database``
(``file_url`` and ``postgres_address`` say what they take).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from ..runtime.errors import StoreError, StoreUrlError
from .file_url import read_file_url
from .port import EventStore, ReadyListener, SubmitHandler
from .postgres_address import SCHEMES
from .postgres_url import parse_postgres_url
from .shown_url import hidden, shown_url, url_to_type
from .store_address import AddressRefused


class Location(msgspec.Struct, frozen=True):
    """``kind`` is ``memory``, ``sqlite`` or ``postgres``. ``path`` is the file of a ``sqlite`` store, else empty."""

    kind: str
    path: str = ""


def parse_url(url: str) -> Location:
    """Raises ``StoreUrlError``."""
    if url.partition("://")[0] in SCHEMES:
        parse_postgres_url(url)
        return Location("postgres")
    try:
        path = read_file_url(url)
    except AddressRefused as refusal:
        raise StoreUrlError(hidden(url), str(refusal)) from None
    return Location("sqlite", path) if path else Location("memory")


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
