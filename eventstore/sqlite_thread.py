"""Who runs the store's jobs: its own thread, or the event loop between two ticks, whichever is cheaper.

A caller hands in a job and awaits a future. All jobs that wait (bounded) become one transaction, are committed, and
only then answered. Light jobs of the loop that opened the store are run by that loop, once per tick: a tick's appends
are one commit, and no thread has to be woken, which costs as much as the commit itself. When a commit was slow (a disk
that takes milliseconds), and for everything heavy or from elsewhere, the store's thread does the work instead.

A caller that is cancelled stops waiting; its job runs to its end all the same, so a cancelled write may be committed.

After an error that leaves it open what the file holds (an fsync, or a rollback, that failed) the connection is closed
and the file opened anew, with all that opening checks, before anything is read or written. Until that is done every
job is told why; what can be read afterwards is what is on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import queue
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from ..runtime.errors import DamagedFile, DiskFull, StoreError
from .sqlite_backup import pause
from .sqlite_file import has_no_space

T = TypeVar("T")

BATCH_JOBS_MAX = 512
"""Jobs in one commit."""

TICK_JOBS_MAX = 256
"""Jobs that the event loop runs before it gives other callbacks their turn."""

TICK_US_MAX = 3_000
"""A commit on the event loop that took longer was slow. When many of the last ones were (a slow one counts 4, a quick
one takes 1 off, ``SLOWNESS_MAX`` is many), the thread commits for ``PAUSE_MS``, doubled each time it happens again, up
to ``PAUSE_MS_MAX``, and halved again after ``QUICK_COMMITS`` quick ones in a row: a disk that was slow for a while is
not slow for ever. A WAL checkpoint now and then doesn't count as a slow disk."""

SLOWNESS_MAX = 16

JOB_US = 100
"""What a job more in the commit may take in addition."""

PAUSE_MS = 500

PAUSE_MS_MAX = 60_000

QUICK_COMMITS = 500

CROWD_TICKS = 64
"""After two callers were seen within one turn of the loop, so many ticks with one job each make it alone again."""

WAITING_JOBS_MAX = 20_000
"""Jobs that may wait; the next is refused."""

IDLE_MS = 1_000
"""After this long without a job the WAL is copied into the file and cut to nothing."""

MEND_PAUSE_MS = 500
"""A file that couldn't be opened anew is tried again by the first job after so long."""

_FATAL = ("SQLITE_IOERR_FSYNC", "SQLITE_IOERR_DIR_FSYNC", "SQLITE_IOERR_CLOSE")
"""After these nobody knows what is on disk: the kernel may have dropped the pages and call a later fsync good."""

_LOST_WRITE = (
    "the disk may not have kept what was written last. The file is opened anew and checked before it serves; "
    "read before you act again, and look at the disk"
)


class Job:
    """One piece of work. ``light``: short enough to be run between two ticks of an event loop. ``future`` is for a caller
    that waits; a lone caller's job has none and is asked for its ``outcome``. ``last``: it closes the file, whatever
    state that is in."""

    __slots__ = ("error", "future", "last", "light", "loop", "result", "run", "writes")

    def __init__(
        self,
        run: Callable[[], object],
        writes: bool,
        light: bool,
        loop: asyncio.AbstractEventLoop,
        future: asyncio.Future[Any] | None,
    ) -> None:
        self.run = run
        self.writes = writes
        self.light = light
        self.loop = loop
        self.future = future
        self.last = False
        self.result: Any = None
        self.error: BaseException | None = None

    def outcome(self) -> Any:
        """What the job returned; raises what it raised."""
        if self.error is not None:
            raise self.error
        return self.result


class Gathered(Protocol):
    """What jobs gather on the side while a transaction is open."""

    def mark(self) -> int: ...

    def forget(self, mark: int, *, perhaps_done: bool = False) -> None: ...

    def take_woken(self) -> Sequence[str]: ...

    def begin(self) -> None: ...


class StoreThread:
    """Runs jobs against one connection. ``gathered`` is asked for its mark before a write and told to forget what came
    after it when that was rolled back; what it has after a commit is announced to the listener. It begins anew with
    each connection that is opened."""

    def __init__(
        self,
        path: str,
        gathered: Gathered,
    ) -> None:
        self.path = path
        self._gathered = gathered
        self._listener: tuple[asyncio.AbstractEventLoop, Callable[[Sequence[str]], None]] | None = None
        self._home: asyncio.AbstractEventLoop | None = None
        self._jobs: deque[Job] = deque()
        self._tick_asked = False
        self._slowness = 0
        self._slow_until_ns = 0
        self._pause_ms = PAUSE_MS
        self._quick = 0
        self._crowd = 0
        self._alone = ""
        # Whoever holds this may use the connection and take jobs. The loop never waits for it.
        self._turn = threading.Lock()
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._dirty = False
        self._batches = 0
        # Set by whoever has the turn, and taken back by the thread.
        self._broken: StoreError | None = None
        self._mend_after_ns = 0
        self._connect: Callable[[], sqlite3.Connection] | None = None
        self._closed = False
        self.of_parent = False
        """Whether this process was forked from the one that opened the store."""
        self._connection: sqlite3.Connection | None = None
        # A daemon, so that a program that forgets to close ends all the same. SQLite needs no farewell: what was
        # acknowledged is in the WAL.
        self._thread = threading.Thread(target=self._serve, name="boundloop-store", daemon=True)
        _open_here.add(self)

    def listen(self, loop: asyncio.AbstractEventLoop, listener: Callable[[Sequence[str]], None]) -> None:
        """Whom to tell of runs made ready, on which loop."""
        self._listener = loop, listener

    def start(self, connect: Callable[[], sqlite3.Connection]) -> asyncio.Future[Any]:
        """Open the connection on the thread; the future carries what ``connect`` raised. The running loop becomes the
        one whose ticks commit."""
        self._home = asyncio.get_running_loop()
        self._connect = connect
        self._thread.start()
        return self.submit(self._open, writes=False, light=False)

    def _open(self) -> None:
        assert self._connect is not None
        self._connection = self._connect()
        self._gathered.begin()

    def _mend(self) -> None:
        """Open the file anew after what broke the connection. If that fails the store stays broken, by the newer reason."""
        if time.monotonic_ns() < self._mend_after_ns:
            return
        self.drop_connection()
        try:
            self._open()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self.drop_connection()
            self._broken = self._typed(error)
        except StoreError as error:
            self.drop_connection()
            self._broken = error
        else:
            self._broken = None
        self._mend_after_ns = time.monotonic_ns() + MEND_PAUSE_MS * 1_000_000 if self._broken else 0

    def leave_to_parent(self) -> None:
        """In a forked child: the connection is the parent's. SQLite takes its locks for held here too, so one statement, or
        closing it, could take the WAL away from under the parent. So it is refused, and never closed: not at the
        child's end either, where nothing else that holds it would be left."""
        if self._connection is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
            self._connection = None
        self._jobs.clear()
        self._closed = self.of_parent = True

    def drop_connection(self) -> None:
        """Close it, whatever state it is in. SQLite folds in what was committed, if it can, and no more than that."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):  # of a file that is to be given up
                connection.close()

    @property
    def opened(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    @property
    def connection(self) -> sqlite3.Connection:
        """For jobs while they run."""
        assert self._connection is not None
        return self._connection

    def submit(self, run: Callable[[], T], *, writes: bool, light: bool) -> asyncio.Future[T]:
        """Hand in a job from a running event loop. Never blocks."""
        if self._closed:
            raise StoreError("store_closed", "the store is closed", path=self.path)
        if len(self._jobs) >= WAITING_JOBS_MAX:
            raise StoreError("store_overloaded", f"{WAITING_JOBS_MAX} jobs wait already", path=self.path)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.append(Job(run, writes, light, loop, future))
        if not light or self._broken or loop is not self._home or time.monotonic_ns() < self._slow_until_ns:
            self._wake.put(True)
        elif not self._tick_asked:
            self._tick_asked = True
            loop.call_soon(self._tick)
        return future

    def run_alone(self, run: Callable[[], T], *, writes: bool, who: str) -> Job | None:
        """Run a light job of the home loop here and now, in a commit of its own, if ``who`` is the only caller about;
        None if it has to queue. The job carries what came of it.

        A lone caller gains nothing from waiting for others to share its commit, and a turn of the loop costs a good part
        of one. Who else has something to commit in this turn shows at once, and then all queue for the ticks. A caller
        that is answered without waiting must let the loop turn by itself now and then.
        """
        if self._crowd or self._jobs or self._tick_asked or self._closed or self._broken:
            return None
        loop = asyncio.get_running_loop()
        if loop is not self._home or time.monotonic_ns() < self._slow_until_ns:
            return None
        if self._alone != who:
            if self._alone:
                self._crowd = CROWD_TICKS
                return None
            self._alone = who
            loop.call_soon(self._turn_over)
        if not self._turn.acquire(blocking=False):
            return None
        job = Job(run, writes, True, loop, None)
        try:
            was_dirty = self._dirty
            start_ns = time.monotonic_ns()
            woken = self._run_batch([job])
            self._note_duration(start_ns, 1)
        finally:
            self._turn.release()
        if self._dirty and not was_dirty:
            self._wake.put(True)  # the thread has a WAL to empty when all is quiet
        if woken and self._listener is not None:
            _call(*self._listener, woken)
        return job

    def lend(self, work: Callable[[sqlite3.Connection, Callable[[], None]], None]) -> None:
        """On another thread than these two: ``work`` with the connection, outside of any transaction. The function that it
        gets gives the turn to others for a moment, and raises ``StoreError`` (``store_closed``) if the connection went away."""
        with self._turn:
            lent = self._connection

            def give_turn() -> None:
                self._turn.release()
                try:
                    pause()
                finally:
                    self._turn.acquire()
                insist()

            def insist() -> None:
                if self._closed or self._connection is not lent:
                    raise StoreError("store_closed", "the store is closed", path=self.path)

            insist()
            work(self.connection, give_turn)

    def _turn_over(self) -> None:
        self._alone = ""

    def stop(self, last: Callable[[], None]) -> asyncio.Future[None]:
        """Run ``last`` on the thread after all jobs handed in so far, however many wait, then end the thread. Later jobs
        are refused. ``last`` runs even if nobody waits for the future any more; a thread that never began runs none, and
        then it is run here."""
        if self._closed:
            raise StoreError("store_closed", "the store is closed", path=self.path)
        self._closed = True
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        job = Job(last, False, False, loop, future)
        job.last = True
        if self._thread.ident is None:
            self._read(job)
            _resolve([job])
        else:
            self._jobs.append(job)
            self._wake.put(True)
            self._wake.put(False)
        return future

    # --- on the event loop -----------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Run what this tick's tasks have handed in."""
        self._tick_asked = False
        if not self._turn.acquire(blocking=False):
            self._wake.put(True)  # the thread is at work and takes these too
            return
        try:
            batch = self._take(TICK_JOBS_MAX)
            if self._broken or not all(job.light for job in batch):
                self._jobs.extendleft(reversed(batch))
                self._wake.put(True)
                return
            was_dirty = self._dirty
            start_ns = time.monotonic_ns()
            woken = self._run_batch(batch)
            self._note_duration(start_ns, len(batch))
            self._crowd = CROWD_TICKS if len(batch) > 1 else max(self._crowd - 1, 0)
        finally:
            self._turn.release()
        if self._dirty and not was_dirty:
            self._wake.put(True)  # the thread has a WAL to empty when all is quiet
        if self._jobs and not self._tick_asked:
            self._tick_asked = True
            asyncio.get_running_loop().call_soon(self._tick)
        self._answer(batch, woken, self._home)

    def _note_duration(self, start_ns: int, jobs: int) -> None:
        end_ns = time.monotonic_ns()
        if (end_ns - start_ns) // 1_000 <= TICK_US_MAX + jobs * JOB_US:
            self._slowness = max(self._slowness - 1, 0)
            self._quick += 1
            if self._quick >= QUICK_COMMITS:
                self._quick = 0
                self._pause_ms = max(self._pause_ms // 2, PAUSE_MS)
            return
        self._quick = 0
        self._slowness += 4
        if self._slowness >= SLOWNESS_MAX:
            self._slowness = 0
            self._slow_until_ns = end_ns + self._pause_ms * 1_000_000
            self._pause_ms = min(self._pause_ms * 2, PAUSE_MS_MAX)

    # --- on the thread ---------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        seen = 0
        going_on = True
        while going_on:
            try:
                going_on = self._wake.get(timeout=IDLE_MS / 1000 if self._dirty else None)
            except queue.Empty:
                with self._turn:
                    if seen == self._batches:
                        if self._broken is None:
                            self.checkpoint()
                        self._dirty = False
                    seen = self._batches
                continue
            while self._jobs:
                with self._turn:
                    batch = self._take(BATCH_JOBS_MAX)
                    if self._broken is not None and not self._closed:
                        self._mend()
                    woken = self._run_batch(batch)
                self._answer(batch, woken)

    # --- whose turn it is ------------------------------------------------------------------------------------------

    def _take(self, jobs_max: int) -> list[Job]:
        jobs = self._jobs
        return [jobs.popleft() for _ in range(min(len(jobs), jobs_max))]

    def _run_batch(self, batch: list[Job]) -> Sequence[str]:
        """Run and commit; the runs that were made ready."""
        writes = [job for job in batch if job.writes]
        if writes:
            self._dirty = True
            self._batches += 1
            self._write(writes)
        for job in batch:
            if not job.writes:
                self._read(job)
        return self._gathered.take_woken() if self._broken is None else ()

    def _read(self, job: Job) -> None:
        if self._broken is not None and not job.last:
            job.error = self._broken  # an open transaction that isn't to be would be read as if it were
            return
        try:
            job.result = job.run()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            job.error = self._typed(error)
        except BaseException as error:  # noqa: BLE001  the caller gets it; the thread goes on
            job.error = error

    def _write(self, jobs: list[Job]) -> None:
        """One transaction for all. If it fails, a second one with a savepoint a job finds whose fault it was, and what
        became of the first: an append that was committed after all is already done. If that fails too (a full disk
        undoes everything), each job gets a transaction of its own."""
        error: BaseException | None = self._broken
        if error is None:
            error = self._transaction(jobs, self._plain)
            if error is not None and not self._is_hopeless(error):
                error = self._transaction(jobs, self._with_savepoint)
                if error is not None and len(jobs) > 1 and not self._is_hopeless(error):
                    for job in jobs:
                        self._write([job])
                    return
        if error is not None:
            for job in jobs:
                job.result, job.error = None, error

    def _transaction(self, jobs: list[Job], one: Callable[[Job], None]) -> BaseException | None:
        """None: committed. Else nothing of it is in the file, and this is why."""
        connection = self.connection
        mark = self._gathered.mark()
        committing = False
        try:
            connection.execute("BEGIN IMMEDIATE")
            for job in jobs:
                one(job)
            committing = True
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back(connection, mark, perhaps_done=committing)
            typed = self._typed(error)
            if _name(error).startswith(_FATAL):
                self._broken = typed
            return self._broken or typed
        except BaseException as error:  # noqa: BLE001  a job's own error, such as a run that isn't there
            self._roll_back(connection, mark)
            return self._broken or error
        return None

    def _is_hopeless(self, error: BaseException) -> bool:
        """Whether trying again job by job can't help. A lock of another program would be waited for each time."""
        return self._broken is not None or (
            isinstance(error, StoreError) and error.code.startswith("sqlite_busy")
        )

    @staticmethod
    def _plain(job: Job) -> None:
        job.error = None
        job.result = job.run()

    def _with_savepoint(self, job: Job) -> None:
        connection = self.connection
        mark = self._gathered.mark()
        connection.execute("SAVEPOINT one")
        try:
            self._plain(job)
        except BaseException as error:
            if not connection.in_transaction:
                raise  # SQLite has rolled back all of it
            connection.execute("ROLLBACK TO one")
            self._gathered.forget(mark)
            job.error = self._typed(error) if isinstance(error, sqlite3.Error) else error
        connection.execute("RELEASE one")

    def _roll_back(self, connection: sqlite3.Connection, mark: int, *, perhaps_done: bool = False) -> None:
        self._gathered.forget(mark, perhaps_done=perhaps_done)
        if (
            connection.in_transaction
        ):  # SQLite rolls back on its own when the disk is full, and a second one raises
            try:
                connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                self._broken = self._typed(error)

    def _typed(self, error: sqlite3.Error | UnicodeDecodeError) -> StoreError:
        name = _name(error)
        if isinstance(error, UnicodeDecodeError) or name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            typed: StoreError = DamagedFile(self.path, str(error))
        elif name.startswith("SQLITE_FULL") or (
            name.startswith("SQLITE_IOERR_WRITE") and has_no_space(self.path)
        ):
            typed = DiskFull(self.path)
        elif name.startswith(_FATAL):
            typed = StoreError(name.lower(), f"{error}: {_LOST_WRITE}", path=self.path)
        else:
            typed = StoreError(name.lower() or "sqlite_error", str(error), path=self.path)
        typed.__cause__ = error
        return typed

    def checkpoint(self) -> None:
        """Copy the WAL into the file and cut it. A failure costs nothing: the WAL stays as it is. Nothing is done with a
        connection that is to be given up."""
        if self._broken is not None:
            return
        try:
            self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error as error:
            if _name(error).startswith(_FATAL):
                self._broken = self._typed(error)

    def _answer(
        self, batch: list[Job], woken: Sequence[str], here: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """Tell each loop once; ``here`` is the loop that this is called on. Announcements come before answers."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Job]] = {}
        for job in batch:
            by_loop.setdefault(job.loop, []).append(job)
        if woken and self._listener is not None:
            _call(*self._listener, woken)
        for loop, jobs in by_loop.items():
            if loop is here:
                _resolve(jobs)
            else:
                _call(loop, _resolve, jobs)


_open_here: weakref.WeakSet[StoreThread] = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for thread in list(_open_here):
        thread.leave_to_parent()


os.register_at_fork(after_in_child=_leave_all_to_parent)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], argument: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
        loop.call_soon_threadsafe(function, argument)


def _resolve(jobs: list[Job]) -> None:
    for job in jobs:
        future = job.future
        if future is None or future.done():
            continue  # the caller was cancelled
        if job.error is None:
            future.set_result(job.result)
        else:
            future.set_exception(job.error)


def _name(error: BaseException) -> str:
    return str(getattr(error, "sqlite_errorname", ""))
