"""The store's own thread: it holds the only connection, groups what waits into one commit, and answers after it.

A caller hands in a job and awaits a future. The thread takes all jobs that wait (bounded), runs the writes in one
transaction, commits, runs the reads, and then answers all of one event loop in one call, since waking a loop costs
more than most jobs. A caller that is cancelled stops waiting; its job runs to its end all the same, so a cancelled
write may be committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from ..runtime.errors import DamagedFile, DiskFull, StoreError

T = TypeVar("T")

BATCH_JOBS_MAX = 512
"""Jobs in one commit."""

WAITING_JOBS_MAX = 20_000
"""Jobs that may wait; the next is refused."""

IDLE_MS = 1_000
"""After this long without a job the WAL is copied into the file and cut to nothing."""

_FATAL = ("SQLITE_IOERR_FSYNC", "SQLITE_IOERR_DIR_FSYNC", "SQLITE_IOERR_CLOSE")
"""After these nobody knows what is on disk: the kernel may have dropped the pages and call a later fsync good."""


class Job:
    """One piece of work. ``run`` is called on the store's thread."""

    __slots__ = ("error", "future", "loop", "result", "run", "writes")

    def __init__(self, run: Callable[[], object], writes: bool, loop: asyncio.AbstractEventLoop) -> None:
        self.run = run
        self.writes = writes
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.result: object = None
        self.error: BaseException | None = None


class Gathered(Protocol):
    """What jobs gather on the side while a transaction is open."""

    def mark(self) -> int: ...

    def forget(self, mark: int) -> None: ...

    def take_woken(self) -> Sequence[str]: ...


class StoreThread:
    """Runs jobs against one connection. ``gathered`` is asked for its mark before a write and told to forget what came
    after it when that was rolled back; what it has after a commit is announced to the listener."""

    def __init__(
        self,
        path: str,
        gathered: Gathered,
    ) -> None:
        self.path = path
        self._gathered = gathered
        self._listener: tuple[asyncio.AbstractEventLoop, Callable[[Sequence[str]], None]] | None = None
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._broken: StoreError | None = None
        self._closed = False
        self._connection: sqlite3.Connection | None = None
        # A daemon, so that a program that forgets to close ends all the same. SQLite needs no farewell: what was
        # acknowledged is in the WAL.
        self._thread = threading.Thread(target=self._serve, name="boundloop-store", daemon=True)

    def listen(
        self, loop: asyncio.AbstractEventLoop, listener: Callable[[Sequence[str]], None] | None
    ) -> None:
        """Whom to tell of runs made ready, on which loop."""
        self._listener = None if listener is None else (loop, listener)

    def start(self, connect: Callable[[], sqlite3.Connection]) -> asyncio.Future[Any]:
        """Open the connection on the thread; the future carries what ``connect`` raised."""
        job = Job(lambda: self._open(connect), False, asyncio.get_running_loop())
        self._jobs.put(job)
        self._thread.start()
        return job.future

    def _open(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connection = connect()

    @property
    def opened(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    @property
    def connection(self) -> sqlite3.Connection:
        """For jobs, on the store's thread."""
        assert self._connection is not None
        return self._connection

    def submit(self, run: Callable[[], T], *, writes: bool) -> asyncio.Future[T]:
        """Hand in a job from a running event loop. Never blocks."""
        if self._closed:
            raise StoreError("store_closed", "the store is closed", path=self.path)
        if self._jobs.qsize() >= WAITING_JOBS_MAX:
            raise StoreError("store_overloaded", f"{WAITING_JOBS_MAX} jobs wait already", path=self.path)
        job = Job(run, writes, asyncio.get_running_loop())
        self._jobs.put(job)
        return job.future

    def stop(self, last: Callable[[], None]) -> asyncio.Future[Any]:
        """Run ``last`` after all jobs handed in so far, then end the thread. Later jobs are refused."""
        self._closed = True
        job = Job(last, False, asyncio.get_running_loop())
        self._jobs.put(job)
        self._jobs.put(None)
        return job.future

    # --- on the thread ---------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        clean = True
        while True:
            try:
                first = self._jobs.get(timeout=None if clean else IDLE_MS / 1000)
            except queue.Empty:
                self.checkpoint()
                clean = True
                continue
            batch, going_on = self._drain(first)
            writes = [job for job in batch if job.writes]
            if writes:
                clean = False
                self._write(writes)
            for job in batch:
                if not job.writes:
                    self._read(job)
            self._answer(batch)
            if not going_on:
                return

    def _drain(self, first: Job | None) -> tuple[list[Job], bool]:
        batch: list[Job] = []
        job = first
        while job is not None:
            batch.append(job)
            if len(batch) >= BATCH_JOBS_MAX:
                return batch, True
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return batch, True
        return batch, False

    def _read(self, job: Job) -> None:
        try:
            job.result = job.run()
        except sqlite3.Error as error:
            job.error = self._typed(error)
        except BaseException as error:  # noqa: BLE001  the caller gets it; the thread goes on
            job.error = error

    def _write(self, jobs: list[Job]) -> None:
        if self._broken is not None:
            for job in jobs:
                job.error = self._broken
            return
        connection = self.connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            if len(jobs) == 1:
                jobs[0].result = jobs[0].run()
            else:
                for job in jobs:
                    self._one_of_many(connection, job)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back(connection)
            self._settle_failure(jobs, error)
        except BaseException as error:  # noqa: BLE001  the caller gets it; the thread goes on
            # A job alone in its transaction raised something of its own, such as a refused argument.
            self._roll_back(connection)
            jobs[0].error = error

    def _one_of_many(self, connection: sqlite3.Connection, job: Job) -> None:
        mark = self._gathered.mark()
        connection.execute("SAVEPOINT one")
        try:
            job.result = job.run()
        except BaseException as error:
            if not connection.in_transaction:
                raise  # SQLite has rolled back all of it, so the mates are to be run again
            connection.execute("ROLLBACK TO one")
            self._gathered.forget(mark)
            job.error = self._typed(error) if isinstance(error, sqlite3.Error) else error
        connection.execute("RELEASE one")

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        self._gathered.forget(0)
        if (
            connection.in_transaction
        ):  # SQLite rolls back on its own when the disk is full, and a second one raises
            try:
                connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                self._broken = self._typed(error)

    def _settle_failure(self, jobs: list[Job], error: sqlite3.Error) -> None:
        """Nothing of this transaction is in the file. Find out whose fault it was by running each alone."""
        typed = self._typed(error)
        if _name(error).startswith(_FATAL):
            self._broken = typed
        locked = _name(error).startswith("SQLITE_BUSY")  # by another program; each try would wait for it anew
        if self._broken is not None or locked or len(jobs) == 1:
            for job in jobs:
                job.error = typed
            return
        for job in jobs:
            job.result = job.error = None
            self._write([job])

    def _typed(self, error: sqlite3.Error) -> StoreError:
        name = _name(error)
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            typed: StoreError = DamagedFile(self.path, str(error))
        elif name.startswith("SQLITE_FULL") or (
            name.startswith("SQLITE_IOERR_WRITE") and _no_space(self.path)
        ):
            typed = DiskFull(self.path)
        else:
            typed = StoreError(name.lower() or "sqlite_error", str(error), path=self.path)
        typed.__cause__ = error
        return typed

    def checkpoint(self) -> None:
        """Copy the WAL into the file and cut it. A failure costs nothing: the WAL stays as it is."""
        try:
            self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error as error:
            if _name(error).startswith(_FATAL):
                self._broken = self._typed(error)

    def _answer(self, batch: list[Job]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[Job]] = {}
        for job in batch:
            by_loop.setdefault(job.loop, []).append(job)
        woken = self._gathered.take_woken()
        if woken and self._listener is not None:
            _call(self._listener[0], self._listener[1], woken)
        for loop, jobs in by_loop.items():
            _call(loop, _resolve, jobs)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], argument: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
        loop.call_soon_threadsafe(function, argument)


def _resolve(jobs: list[Job]) -> None:
    for job in jobs:
        future = job.future
        if future.done():
            continue  # the caller was cancelled
        if job.error is None:
            future.set_result(job.result)
        else:
            future.set_exception(job.error)


def _name(error: sqlite3.Error) -> str:
    return str(getattr(error, "sqlite_errorname", ""))


def _no_space(path: str) -> bool:
    try:
        space = os.statvfs(path)
    except OSError:
        return False
    return space.f_bavail * space.f_frsize < 1024 * 1024
