"""The embedded store: one SQLite file, one owner process, one thread, one connection."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from hashlib import sha256

from ..runtime.errors import StoreError
from ..runtime.ledger import LedgerRow
from . import sqlite_file
from .archive import Record
from .blob_coding import packed_parts
from .chain import check_append, check_blob
from .clock import NeverFalling, StoreClock
from .port import (
    AcquireAnswer,
    Append,
    AppendAnswer,
    AskHandler,
    CommitListener,
    HostRow,
    ReadyListener,
    RunFilter,
    RunRow,
    StoredAppend,
    SubmitHandler,
    Switch,
    SwitchHandler,
)
from .sqlite_backup import back_up
from .sqlite_thread import StoreThread
from .sqlite_upkeep import SqliteUpkeep
from .upkeep import EarlierRow

LIGHT_BYTES_MAX = 64 * 1024
"""Blobs up to this sum are written between two ticks of the event loop, larger ones by the thread."""


class SqliteStore:
    """``sqlite:///file`` in its owner process. Made by ``SqliteStore.open``; ``location.open_store`` adds the lock.

    Every method hands a job to the store's thread and may be used from any event loop of this process. Cancelling a
    caller doesn't cancel its write: read before you act again. ``on_ready`` is called on the loop that opened the
    store. ``clock`` (Unix milliseconds) is for tests; the default one never falls, nor below what the file holds.
    """

    def __init__(
        self,
        path: str,
        *,
        clock: Callable[[], int] | None = None,
        on_submit: SubmitHandler | None = None,
        on_ready: ReadyListener | None = None,
        on_closed: Callable[[], None] = lambda: None,
        brief: bool = False,
    ) -> None:
        self.path = path
        self.on_submit = on_submit
        self.on_ask: AskHandler | None = None
        self.on_remote_append: CommitListener | None = None
        self.on_switch: SwitchHandler | None = None
        self._on_ready = on_ready
        self._clock = StoreClock()
        self._now_ms = self._clock.now_ms if clock is None else NeverFalling(clock)
        self._rows = SqliteUpkeep(self._the_connection, self._now_ms, path, marks=not brief)
        self._thread = StoreThread(path, self._rows)
        self._on_closed = on_closed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Future[None] | None = None

    def _the_connection(self) -> sqlite3.Connection:
        return self._thread.connection

    @classmethod
    async def open(
        cls,
        path: str,
        *,
        clock: Callable[[], int] | None = None,
        on_submit: SubmitHandler | None = None,
        on_ready: ReadyListener | None = None,
        on_closed: Callable[[], None] = lambda: None,
        brief: bool = False,
    ) -> SqliteStore:
        """Open or create the file. The caller holds its lock; ``on_closed`` is called on the store's thread when nothing
        here uses the file any more, also after a failed opening. ``brief``: for one command, which writes nothing of its
        own accord. Raises ``DamagedFile``, ``NewerSchema``, ``StoreError``."""
        store = cls(
            path, clock=clock, on_submit=on_submit, on_ready=on_ready, on_closed=on_closed, brief=brief
        )
        store._loop = asyncio.get_running_loop()
        store._thread.listen(store._loop, store._announce)
        try:
            await store._thread.start(lambda: sqlite_file.connect(path))
            store._clock.raise_to(store._rows.floor_ms)
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def on_ready(self) -> ReadyListener | None:
        """Who is told of runs made ready; may be set at any time."""
        return self._on_ready

    @on_ready.setter
    def on_ready(self, listener: ReadyListener | None) -> None:
        self._on_ready = listener

    def _announce(self, run_ids: Sequence[str]) -> None:
        if self._on_ready is not None:
            self._on_ready(run_ids)

    def now_ms(self) -> int:
        return self._now_ms()

    async def identity(self) -> str:
        return await self._thread.submit(self._rows.identity, writes=False, light=True)

    async def group_holds(self) -> dict[str, tuple[int, int]]:
        """Limited groups with places that may still be in use at a far side: (places, until when in store time)."""
        return await self._thread.submit(self._rows.group_holds, writes=False, light=True)

    async def hold_groups(self, holds: Mapping[str, tuple[int, int]]) -> None:
        """Write down what the next owner has to know of limited groups; replaces what was written before."""
        await self._thread.submit(lambda: self._rows.hold_groups(holds), writes=True, light=True)

    # --- the log ---------------------------------------------------------------------------------------------------

    async def append(self, request: Append) -> AppendAnswer:
        check_append(request)
        light = not request.blobs or sum(len(data) for _, data in request.blobs) <= LIGHT_BYTES_MAX
        if light:
            job = self._thread.run_alone(lambda: self._rows.append(request), writes=True, who=request.run_id)
            if job is not None:
                answer: AppendAnswer = job.outcome()
                return answer
        return await self._thread.submit(lambda: self._rows.append(request), writes=True, light=light)

    async def read(self, run_id: str, *, after_seq: int = 0, rows_max: int = 1_000) -> list[StoredAppend]:
        return await self._thread.submit(
            lambda: self._rows.read(run_id, after_seq, rows_max), writes=False, light=False
        )

    # --- rows of runs ----------------------------------------------------------------------------------------------

    async def run(self, run_id: str) -> RunRow | None:
        return await self._thread.submit(lambda: self._rows.run(run_id), writes=False, light=True)

    async def runs(self, where: RunFilter) -> list[RunRow]:
        return await self._thread.submit(lambda: self._rows.runs(where), writes=False, light=False)

    async def mark_damaged(self, run_id: str, reason: str) -> None:
        await self._thread.submit(lambda: self._rows.mark_damaged(run_id, reason), writes=True, light=True)

    # --- blobs and the ledger --------------------------------------------------------------------------------------

    async def put_blob(self, data: bytes) -> bytes:
        check_blob(data)
        digest = sha256(data).digest()
        if len(data) > LIGHT_BYTES_MAX:
            parts = await asyncio.to_thread(packed_parts, data)
        else:
            parts = packed_parts(data)
        await self._thread.submit(
            lambda: self._rows.put_blob(digest, len(data), parts), writes=True, light=False
        )
        return digest

    async def get_blob(self, sha256: bytes) -> bytes | None:
        return await self._thread.submit(lambda: self._rows.get_blob(sha256), writes=False, light=False)

    async def ledger_row(self, tenant: str, key: bytes) -> LedgerRow | None:
        return await self._thread.submit(lambda: self._rows.ledger_row(tenant, key), writes=False, light=True)

    async def ledger_rows(self, after: tuple[str, bytes] | None = None, limit: int = 100) -> list[LedgerRow]:
        return await self._thread.submit(
            lambda: self._rows.ledger_rows(after, limit), writes=False, light=False
        )

    async def unknown_effects(self, tenant: str | None = None, limit: int = 100) -> list[LedgerRow]:
        return await self._thread.submit(
            lambda: self._rows.unknown_effects(tenant, limit), writes=False, light=False
        )

    # --- hosts and ownership ---------------------------------------------------------------------------------------

    async def register_host(self, host: HostRow) -> None:
        await self._thread.submit(lambda: self._rows.register_host(host), writes=True, light=True)

    async def renew_host(self, host_id: str) -> bool:
        return await self._thread.submit(lambda: self._rows.renew_host(host_id), writes=True, light=True)

    async def drop_host(self, host_id: str, *, died: bool = False) -> None:
        await self._thread.submit(lambda: self._rows.drop_host(host_id, died), writes=True, light=False)

    async def hosts(self) -> list[HostRow]:
        return await self._thread.submit(self._rows.hosts, writes=False, light=True)

    async def acquire(self, run_id: str, host_id: str, *, dead_hosts: Sequence[str] = ()) -> AcquireAnswer:
        return await self._thread.submit(
            lambda: self._rows.acquire(run_id, host_id, dead_hosts), writes=True, light=True
        )

    async def release(self, run_id: str, host_id: str, epoch: int, *, ready: bool) -> None:
        await self._thread.submit(
            lambda: self._rows.release(run_id, host_id, epoch, ready), writes=True, light=True
        )

    async def ready_runs(self, limit: int = 100) -> list[str]:
        return await self._thread.submit(lambda: self._rows.ready_runs(limit), writes=False, light=True)

    async def next_wake_ms(self) -> int | None:
        return await self._thread.submit(self._rows.next_wake_ms, writes=False, light=True)

    async def faults(self) -> list[str]:
        """What is wrong with the file as a whole: its pages, rows of the log without a run, blobs that aren't what
        their name says. Empty if nothing. Reads the whole file and holds up the store meanwhile."""
        return await self._thread.submit(self._rows.faults, writes=False, light=False)

    async def reindex(self, row: RunRow) -> bool:
        """See ``Upkeep``."""
        return await self._thread.submit(lambda: self._rows.reindex(row), writes=True, light=True)

    async def lost_logs(self, after: int = 0, limit: int = 100) -> list[tuple[int, StoredAppend]]:
        """See ``Upkeep``."""
        return await self._thread.submit(
            lambda: self._rows.lost_logs(after, limit), writes=False, light=False
        )

    async def adopt(self, number: int, run_id: str) -> bool:
        """See ``Upkeep``."""
        return await self._thread.submit(lambda: self._rows.adopt(number, run_id), writes=True, light=True)

    async def astray(self, after: str = "", limit: int = 100) -> list[str]:
        """See ``Upkeep``."""
        return await self._thread.submit(lambda: self._rows.astray(after, limit), writes=False, light=False)

    async def runs_in_order(self, after: str = "", limit: int = 100) -> list[RunRow]:
        """See ``Upkeep``."""
        return await self._thread.submit(
            lambda: self._rows.runs_in_order(after, limit), writes=False, light=False
        )

    async def blob_names(self, after: bytes = b"", limit: int = 100) -> list[bytes]:
        """See ``Upkeep``."""
        return await self._thread.submit(
            lambda: self._rows.blob_names(after, limit), writes=False, light=False
        )

    async def earlier_rows(
        self, after: tuple[str, bytes, int] | None = None, limit: int = 100
    ) -> list[EarlierRow]:
        """See ``Upkeep``."""
        return await self._thread.submit(
            lambda: self._rows.earlier_rows(after, limit), writes=False, light=False
        )

    async def prune(self, run_id: str, seq: int, head: bytes) -> bool:
        """See ``Upkeep``."""
        return await self._thread.submit(
            lambda: self._rows.prune(run_id, seq, head), writes=True, light=False
        )

    async def drop_blobs(self, names: Sequence[bytes], *, put_before_ms: int) -> int:
        """See ``Upkeep``."""
        return await self._thread.submit(
            lambda: self._rows.drop_blobs(names, put_before_ms), writes=True, light=False
        )

    async def back_up(self, path: str) -> None:
        """Copy the file, as it is when the copy ends, to a new one at ``path`` (absolute, on this machine), and check the copy's
        pages. Appends go on meanwhile. A caller that is cancelled stops it. Raises ``CallerError`` (``file_exists``), ``DiskFull``
        and ``StoreError``."""
        stop = threading.Event()
        try:
            await asyncio.to_thread(back_up, self._thread.lend, path, stop)
        finally:
            stop.set()

    async def take_in(self, records: Callable[[], Iterator[Record]]) -> None:
        """See ``TakesIn``. The write-ahead log grows by all that is taken in, until the transaction has ended."""
        await self._thread.submit(lambda: self._rows.take_in(records), writes=True, light=False)
        self._clock.raise_to(self._rows.floor_ms)

    # --- switches and outside commands -----------------------------------------------------------------------------

    async def switches(self) -> list[Switch]:
        return await self._thread.submit(self._rows.switches, writes=False, light=True)

    def switches_known(self) -> tuple[Switch, ...]:
        return self._rows.switches_known

    @property
    def switches_count(self) -> int:
        """How often a kill switch was turned since the store was opened."""
        return self._rows.switches_count

    async def set_switch(self, switch: Switch, *, on: bool) -> None:
        kept = switch if self.on_switch is None else self.on_switch(switch)
        await self._thread.submit(lambda: self._rows.set_switch(kept, on), writes=True, light=True)

    async def submit(self, run_id: str, command_id: str, command: bytes) -> bytes:
        """Runs the handler on the loop that opened the store, from whatever loop it is called."""
        handler = self.on_submit
        if handler is None:
            raise StoreError(
                "no_submit_handler", "the owner of this store takes no outside commands", path=self.path
            )
        return await self._at_home(lambda: handler(run_id, command_id, command))

    async def ask(self, kind: str, question: bytes) -> bytes:
        """Put a question to the owner's application, on the loop that opened the store. For the owner's own hosts in
        other processes; raises ``StoreError`` (``no_ask_handler``) where there are none."""
        handler = self.on_ask
        if handler is None:
            raise StoreError(
                "no_ask_handler", "the owner of this store hosts nothing elsewhere", path=kind[:64]
            )
        return await self._at_home(lambda: handler(kind, question))

    async def tell(self, kind: str, word: bytes) -> bytes:
        """As ``ask``; other processes say so of what is no wait."""
        return await self.ask(kind, word)

    async def _at_home(self, work: Callable[[], Awaitable[bytes]]) -> bytes:
        home = self._loop
        if home is None or home.is_closed():
            raise StoreError("store_closed", "the owner's loop has ended", path=self.path)
        if asyncio.get_running_loop() is home:
            return await work()

        async def handle() -> bytes:
            return await work()

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(handle(), home))

    def told_of_append(self, run_id: str) -> None:
        """Another process's append to this run was committed; may be called on any thread."""
        listener, home = self.on_remote_append, self._loop
        if listener is not None and home is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody follows any more
                home.call_soon_threadsafe(listener, run_id)

    async def close(self) -> None:
        """Finish what was handed in, empty the WAL and close the file. Later calls raise; closing twice is harmless. It goes
        on to its end if the caller is cancelled."""
        if self._closing is None:
            self._closing = self._thread.stop(self._disconnect)
        await asyncio.shield(self._closing)

    def _disconnect(self) -> None:
        try:
            if self._thread.opened:
                self._thread.checkpoint()
                self._thread.drop_connection()
        finally:
            self._on_closed()
