"""The store for one command: whoever owns the file now, this process if nobody does.

Owners of one command come and go within a fraction of a second. A peer whose owner went away finds the next one, or
becomes it, and makes the same call again. That is safe for every call of the port: reads change nothing, an append and
a command are told apart by their ids, and all others only say what shall be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

from ..runtime.errors import ConflictError, OwnedError, StoreError
from ..runtime.ledger import LedgerRow
from .archive import Record
from .owned import OwnedSqliteStore, lock_path
from .owner import live_owner
from .port import (
    AcquireAnswer,
    Append,
    AppendAnswer,
    HostRow,
    RunFilter,
    RunRow,
    StoredAppend,
    SubmitHandler,
    Switch,
)
from .socket_client import SocketStore
from .upkeep import EarlierRow

T = TypeVar("T")

CONNECT_WAIT_MS = 10_000
"""How long an owner is looked for that listens; then the last one seen is named."""

CONNECT_PAUSE_MS = 20

CALL_TRIES = 20
"""How often one call is made again because its owner went away."""

_GONE = frozenset(("owner_gone", "store_closed"))
"""What a call answers whose owner ended before, or while, it was at work."""


class PeerStore:
    """Made by ``connect``, for one event loop and one command."""

    def __init__(
        self, path: str, on_submit: SubmitHandler | None, inner: SocketStore | OwnedSqliteStore
    ) -> None:
        self.path = path
        self.on_submit = on_submit
        self.inner = inner
        self._moving = asyncio.Lock()
        self._closed = False

    @classmethod
    async def connect(
        cls, path: str, *, on_submit: SubmitHandler | None = None, take_over: bool = False
    ) -> PeerStore:
        """``path`` is resolved. Raises as ``location.connect_store``."""
        # Nothing may wait between becoming owner and returning: commands of others arrive from then on.
        return cls(path, on_submit, await _owner_or_owning(path, on_submit, take_over))

    @property
    def owns(self) -> bool:
        """Whether this process owns the file now."""
        return isinstance(self.inner, OwnedSqliteStore)

    async def _ask(self, call: Callable[[SocketStore | OwnedSqliteStore], Awaitable[T]]) -> T:
        for _ in range(CALL_TRIES):
            asked = self.inner
            try:
                return await call(asked)
            except StoreError as error:
                if error.code not in _GONE or self._closed or isinstance(asked, OwnedSqliteStore):
                    raise
            await self._move_on(asked)
        return await call(self.inner)

    async def _move_on(self, from_: SocketStore) -> None:
        async with self._moving:
            if self.inner is from_ and not self._closed:
                await from_.close()
                self.inner = await _owner_or_owning(self.path, self.on_submit, False)

    async def identity(self) -> str:
        return await self._ask(lambda store: store.identity())

    def now_ms(self) -> int:
        return self.inner.now_ms()

    async def append(self, request: Append) -> AppendAnswer:
        return await self._ask(lambda store: store.append(request))

    async def read(self, run_id: str, *, after_seq: int = 0, rows_max: int = 1_000) -> list[StoredAppend]:
        return await self._ask(lambda store: store.read(run_id, after_seq=after_seq, rows_max=rows_max))

    async def run(self, run_id: str) -> RunRow | None:
        return await self._ask(lambda store: store.run(run_id))

    async def runs(self, where: RunFilter) -> list[RunRow]:
        return await self._ask(lambda store: store.runs(where))

    async def put_blob(self, data: bytes) -> bytes:
        return await self._ask(lambda store: store.put_blob(data))

    async def get_blob(self, sha256: bytes) -> bytes | None:
        return await self._ask(lambda store: store.get_blob(sha256))

    async def ledger_row(self, tenant: str, key: bytes) -> LedgerRow | None:
        return await self._ask(lambda store: store.ledger_row(tenant, key))

    async def ledger_rows(self, after: tuple[str, bytes] | None = None, limit: int = 100) -> list[LedgerRow]:
        return await self._ask(lambda store: store.ledger_rows(after, limit))

    async def unknown_effects(self, tenant: str | None = None, limit: int = 100) -> list[LedgerRow]:
        return await self._ask(lambda store: store.unknown_effects(tenant, limit))

    async def register_host(self, host: HostRow) -> None:
        await self._ask(lambda store: store.register_host(host))

    async def renew_host(self, host_id: str) -> bool:
        return await self._ask(lambda store: store.renew_host(host_id))

    async def drop_host(self, host_id: str, *, died: bool = False) -> None:
        await self._ask(lambda store: store.drop_host(host_id, died=died))

    async def hosts(self) -> list[HostRow]:
        return await self._ask(lambda store: store.hosts())

    async def acquire(self, run_id: str, host_id: str, *, dead_hosts: Sequence[str] = ()) -> AcquireAnswer:
        return await self._ask(lambda store: store.acquire(run_id, host_id, dead_hosts=dead_hosts))

    async def release(self, run_id: str, host_id: str, epoch: int, *, ready: bool) -> None:
        await self._ask(lambda store: store.release(run_id, host_id, epoch, ready=ready))

    async def ready_runs(self, limit: int = 100) -> list[str]:
        return await self._ask(lambda store: store.ready_runs(limit))

    async def next_wake_ms(self) -> int | None:
        return await self._ask(lambda store: store.next_wake_ms())

    async def mark_damaged(self, run_id: str, reason: str) -> None:
        await self._ask(lambda store: store.mark_damaged(run_id, reason))

    async def reindex(self, row: RunRow) -> bool:
        """See ``Upkeep``."""
        return await self._ask(lambda store: store.reindex(row))

    async def lost_logs(self, after: int = 0, limit: int = 100) -> list[tuple[int, StoredAppend]]:
        """See ``Upkeep``."""
        return await self._ask(lambda store: store.lost_logs(after, limit))

    async def adopt(self, number: int, run_id: str) -> bool:
        """See ``Upkeep``."""
        return await self._ask(lambda store: store.adopt(number, run_id))

    async def astray(self, after: str = "", limit: int = 100) -> list[str]:
        """See ``Upkeep``."""
        return await self._ask(lambda store: store.astray(after, limit))

    async def runs_in_order(self, after: str = "", limit: int = 100) -> list[RunRow]:
        """See ``Upkeep``."""
        return await self._ask(lambda store: store.runs_in_order(after, limit))

    async def blob_names(self, after: bytes = b"", limit: int = 100) -> list[bytes]:
        """See ``Upkeep``."""
        return await self._ask(lambda store: store.blob_names(after, limit))

    async def earlier_rows(
        self, after: tuple[str, bytes, int] | None = None, limit: int = 100
    ) -> list[EarlierRow]:
        """See ``Upkeep``."""
        return await self._ask(lambda store: store.earlier_rows(after, limit))

    async def prune(self, run_id: str, seq: int, head: bytes) -> bool:
        """See ``Upkeep``."""
        return await self._ask(lambda store: store.prune(run_id, seq, head))

    async def drop_blobs(self, names: Sequence[bytes], *, put_before_ms: int) -> int:
        """See ``Upkeep``."""
        return await self._ask(lambda store: store.drop_blobs(names, put_before_ms=put_before_ms))

    async def back_up(self, path: str) -> None:
        """As ``SqliteStore.back_up``, by whoever owns the file."""
        await self._ask(lambda store: store.back_up(path))

    async def take_in(self, records: Callable[[], Iterator[Record]]) -> None:
        """See ``TakesIn``. Only as the file's owner: another has the file open, and what it knows of it would be wrong."""
        if not isinstance(self.inner, OwnedSqliteStore):
            raise ConflictError("store_in_use", "a process owns the file: end it first", path=self.path)
        await self.inner.take_in(records)

    async def faults(self) -> list[str]:
        """What ``SqliteStore.faults`` finds, in the owner."""
        return await self._ask(lambda store: store.faults())

    async def switches(self) -> list[Switch]:
        return await self._ask(lambda store: store.switches())

    def switches_known(self) -> tuple[Switch, ...]:
        return self.inner.switches_known()

    async def set_switch(self, switch: Switch, *, on: bool) -> None:
        await self._ask(lambda store: store.set_switch(switch, on=on))

    async def submit(self, run_id: str, command_id: str, command: bytes) -> bytes:
        return await self._ask(lambda store: store.submit(run_id, command_id, command))

    async def close(self) -> None:
        """Hang up, or stop owning. What others have asked of an owner is answered first."""
        self._closed = True
        async with self._moving:
            await self.inner.close()


async def _owner_or_owning(
    path: str, on_submit: SubmitHandler | None, take_over: bool
) -> SocketStore | OwnedSqliteStore:
    """The socket of who owns the file; if nobody does, the file itself."""
    deadline = time.monotonic() + CONNECT_WAIT_MS / 1000
    while True:
        owner = None if take_over else await asyncio.to_thread(live_owner, lock_path(path))
        if owner is None:
            try:
                return await OwnedSqliteStore.open_owned(
                    path, take_over=take_over, on_submit=on_submit, brief=True
                )
            except OwnedError:
                if take_over or time.monotonic() >= deadline:
                    raise
                continue  # another was quicker: to its socket
        try:
            return await SocketStore.connect(path, owner)
        except OwnedError:
            if not owner.brief or time.monotonic() >= deadline:
                raise
        except (ConnectionError, FileNotFoundError) as error:
            # The owner is opening or closing just now. Ask again; in the end name it.
            if time.monotonic() >= deadline:
                raise OwnedError(owner.process.pid, owner.process.host, path=path) from error
        await asyncio.sleep(CONNECT_PAUSE_MS / 1000)
