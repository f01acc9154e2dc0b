"""The SQLite store as its owner holds it: the lock, the store, and the socket for everybody else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from .owner import OwnerLock, take
from .port import ReadyListener, SubmitHandler
from .socket_protocol import socket_name
from .socket_server import SocketServer
from .sqlite import SqliteStore
from .sqlite_file import real_path

__all__ = ["OwnedSqliteStore", "lock_path", "real_path"]


def lock_path(path: str) -> str:
    """Where the lock of this file (already resolved by ``real_path``) is."""
    return f"{path}.lock"


class OwnedSqliteStore(SqliteStore):
    """A ``SqliteStore`` whose file this process owns from ``open`` to ``close``."""

    _lock: OwnerLock
    _server: SocketServer | None = None

    @classmethod
    async def open(
        cls,
        path: str,
        *,
        clock: Callable[[], int] | None = None,
        on_submit: SubmitHandler | None = None,
        on_ready: ReadyListener | None = None,
        take_over: bool = False,
        serve: bool = True,
    ) -> OwnedSqliteStore:
        """Take the lock, open the file, serve. Raises as ``location.open_store``; nothing is held then."""
        real = real_path(path)
        lock = await _take(lock_path(real), socket_name(real) if serve else "", take_over)
        try:
            store = await super().open(real, clock=clock, on_submit=on_submit, on_ready=on_ready)
        except BaseException:
            lock.release()
            raise
        assert isinstance(store, OwnedSqliteStore)
        store._lock = lock
        if serve:
            server = SocketServer(store, os.path.dirname(real), lock.text.socket, lock.text.token)
            try:
                server.start()
            except BaseException:
                await store.close()
                raise
            store._server = server
        return store

    async def close(self) -> None:
        """Stop serving, empty and close the file, and only then give up the lock."""
        try:
            if self._server is not None:
                await asyncio.to_thread(self._server.stop)
        finally:
            try:
                await super().close()
            finally:
                self._lock.release()


async def _take(path: str, socket: str, take_over: bool) -> OwnerLock:
    """Take the lock without blocking the loop; if the caller is cancelled meanwhile, the lock is given back."""
    taking = asyncio.ensure_future(asyncio.to_thread(take, path, socket=socket, take_over=take_over))
    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:
        taking.add_done_callback(_give_back)
        raise


def _give_back(taking: asyncio.Future[OwnerLock]) -> None:
    if not taking.cancelled() and taking.exception() is None:
        taking.result().release()
