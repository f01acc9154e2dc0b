"""The SQLite store as its owner holds it: the lock, the store, and the socket for everybody else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from ..runtime.errors import DiskFull
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
    """A ``SqliteStore`` whose file this process owns from ``open`` until its thread has closed the file."""

    _server: SocketServer | None = None
    _stopping: asyncio.Task[None] | None = None

    @classmethod
    async def open_owned(
        cls,
        path: str,
        *,
        clock: Callable[[], int] | None = None,
        on_submit: SubmitHandler | None = None,
        on_ready: ReadyListener | None = None,
        take_over: bool = False,
        brief: bool = False,
        serve: bool = True,
    ) -> OwnedSqliteStore:
        """Take the lock, open the file, serve. Raises as ``location.open_store``; nothing is held then. ``brief``: for one
        command, which others wait for."""
        real = real_path(path)
        lock = await _take(lock_path(real), socket_name(real) if serve else "", take_over, brief)
        store = await cls.open(
            real,
            clock=clock,
            on_submit=on_submit,
            on_ready=on_ready,
            on_closed=lock.release,
            brief=brief,
        )
        assert isinstance(store, OwnedSqliteStore)
        if serve:
            server = SocketServer(store, os.path.dirname(real), lock.text.socket, lock.text.token)
            try:
                server.start()
            except DiskFull:
                if not brief:
                    await store.close()
                    raise
            except BaseException:
                await store.close()
                raise
            else:
                store._server = server
        return store

    def expect_hosts(self, count: int) -> None:
        """Make room on the socket for so many hosts in other processes, beside everybody else."""
        if self._server is not None:
            self._server.hosts_expected = count

    async def close(self) -> None:
        """Stop serving, empty and close the file; the lock is given up by whoever closes the file, and only then. Goes on
        to its end if the caller is cancelled."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        try:
            if self._server is not None and not self._thread.of_parent:
                await asyncio.to_thread(self._server.stop)
        finally:
            await super().close()


async def _take(path: str, socket: str, take_over: bool, brief: bool) -> OwnerLock:
    """Take the lock without blocking the loop; if the caller is cancelled meanwhile, the lock is given back."""
    taking = asyncio.ensure_future(
        asyncio.to_thread(take, path, socket=socket, take_over=take_over, brief=brief)
    )
    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:
        taking.add_done_callback(_give_back)
        raise


def _give_back(taking: asyncio.Future[OwnerLock]) -> None:
    if not taking.cancelled() and taking.exception() is None:
        taking.result().release()
