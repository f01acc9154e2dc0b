"""The connection that writes: one statement at a time, and as many appends in it as ``postgres_pace`` says.

A caller hands in a job and awaits a future. Appends that go together are one statement, which is one transaction; each
is answered for itself. A caller that is cancelled stops waiting; its job runs to its end all the same.

When the connection ends under a statement, nobody knows whether it took effect. Then the next connection ends the old
one's backend first, so that what can be read after that is all that will ever come of the statement, and only then the
callers are told ``commit_unknown``: they read, or make the same append again, and find out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec

from ..runtime.errors import BoundloopError, HistoryRefused, StoreError
from . import postgres_rows as sql
from .port import AlreadyDone, Append, Appended, Conflict, Switch
from .postgres_append import APPEND, answer_of, append_item, encode_items, lock_order
from .postgres_clock import ServerClock
from .postgres_heads import LOST_HEADS, Heads
from .postgres_link import (
    ANSWER_S,
    Backend,
    Connection,
    Cut,
    Link,
    Refused,
    WrongSettings,
    answered,
    connect,
)
from .postgres_pace import Pace
from .postgres_url import PostgresPlace
from .text_columns import from_column, to_column

T = TypeVar("T")

BATCH_APPENDS_MAX: Final = 256
BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bodies and blobs in one statement; one append may be larger alone."""

WAITING_JOBS_MAX: Final = 20_000
"""Jobs that may wait; the next is refused."""

REACH_S: Final = 5.0
"""How long a server is looked for that can't be reached; then whoever waits is told, and it goes on with the next job."""

PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 1.0

SAME_AGAIN_MAX: Final = 5
"""How often a transaction is tried that others got in the way of."""

END_BACKEND_MS: Final = 3_000

_END: Final = (
    "SELECT pg_terminate_backend(pid, $3) FROM pg_stat_activity WHERE pid = $1 AND backend_start = $2"
)

Woken = list[tuple[str, int]]


class _Run(msgspec.Struct):
    """The server's type ``woken_run``."""

    run_id: str
    ready_at_ms: int


class _Job:
    """``append`` or ``call``. ``future`` belongs to the store's loop, and ``asked_s`` is on its clock."""

    __slots__ = ("append", "asked_s", "call", "future", "size_bytes", "uploaded")

    def __init__(
        self,
        future: asyncio.Future[Any],
        append: Append | None,
        call: Callable[[Connection], Awaitable[Any]] | None,
        uploaded: bool,
    ) -> None:
        self.future = future
        self.asked_s = future.get_loop().time()
        self.append = append
        self.call = call
        self.uploaded = uploaded
        self.size_bytes = 0
        if append is not None:
            self.size_bytes = len(append.body)
            if append.blobs and not uploaded:
                self.size_bytes += sum(len(data) for _, data in append.blobs)

    def succeed(self, value: object) -> None:
        if not self.future.done():
            self.future.set_result(value)

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Search:
    """How long a server is looked for: ``REACH_S`` from when one was asked for, or from when the connection was lost if that was
    later; whoever waited behind for all that time is told with the one that looked in vain. On the loop's clock."""

    __slots__ = ("lost_s", "missed", "missed_s")

    def __init__(self) -> None:
        self.lost_s = 0.0
        self.missed_s = 0.0
        self.missed = ""

    def give_up_at(self, asked_s: float) -> float:
        return max(asked_s, self.lost_s) + REACH_S

    def in_vain(self, asked_s: float) -> bool:
        """Somebody looked for all the time that this one would."""
        return asked_s <= self.missed_s and self.give_up_at(asked_s) <= self.missed_s + PAUSE_S_MAX

    def miss(self, now_s: float, why: str) -> None:
        self.missed_s, self.missed = now_s, why


class PostgresWriter:
    """Made by the store; ``start`` begins. ``announce`` hears of runs made ready, before the callers are answered."""

    def __init__(self, place: PostgresPlace, clock: ServerClock, announce: Callable[[Woken], None]) -> None:
        self.place = place
        self.heads = Heads()
        self.switches_known: tuple[Switch, ...] = ()
        self.store_id = b""
        self.reconnects = 0
        self._clock = clock
        self._announce = announce
        self._switches_version = -1
        self._jobs: deque[_Job] = deque()
        self._more = asyncio.Event()
        self._closing = False
        self._closed = False
        self._link: Link | None = None
        self._unsettled: list[Backend] = []
        self._connecting = asyncio.Lock()
        self._search = Search()
        self._task: asyncio.Task[None] | None = None
        self._pace = Pace()

    # --- callers ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to work on jobs."""
        self._task = asyncio.get_running_loop().create_task(self._work())

    def append(self, request: Append, *, uploaded: bool = False) -> asyncio.Future[Any]:
        """Hand in an append; the future carries its ``AppendAnswer``."""
        return self._add(_Job(self._future(), request, None, uploaded))

    def run(self, call: Callable[[Connection], Awaitable[T]]) -> asyncio.Future[T]:
        """Hand in another write, which is one transaction."""
        return self._add(_Job(self._future(), None, call, False))

    def _future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    def _add(self, job: _Job) -> asyncio.Future[Any]:
        if self._closing:
            raise StoreError("store_closed", "the store is closed", path=self.place.shown)
        if len(self._jobs) >= WAITING_JOBS_MAX:
            raise StoreError(
                "store_overloaded", f"{WAITING_JOBS_MAX} jobs wait already", path=self.place.shown
            )
        self._jobs.append(job)
        self._more.set()
        return job.future

    async def settled(self, asked_s: float) -> None:
        """Return when nothing is under way of which nobody knows whether it will yet take effect: what is read then is
        so. Raises as ``linked``."""
        if self._unsettled:
            await self.linked(asked_s)

    async def close(self) -> None:
        """Finish what was handed in, and hang up."""
        self._closing = True
        self._more.set()
        if self._task is not None:
            await asyncio.wait((self._task,))
        self._closed = True
        async with self._connecting:
            link, self._link = self._link, None
        if link is not None:
            await hang_up(link.connection)

    # --- the work --------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            if not self._jobs:
                if self._closing:
                    return
                self._more.clear()
                await self._more.wait()
                await asyncio.sleep(0)  # whoever else has something to write in this turn of the loop
                continue
            jobs = self._take()
            try:
                if jobs[0].append is None:
                    await self._run_call(jobs[0])
                else:
                    await self._run_appends(jobs)
                    if self._pace.waits_for_answered:
                        await asyncio.sleep(0)
            except BaseException as error:
                for job in jobs:
                    job.fail(error)
                if not isinstance(error, Exception):
                    raise

    def _take(self) -> list[_Job]:
        """The next call, or the appends that come next."""
        jobs = [self._jobs.popleft()]
        if jobs[0].append is None:
            return jobs
        size_bytes = jobs[0].size_bytes
        together_max = min(self._pace.of(len(self._jobs) + 1), BATCH_APPENDS_MAX)
        while self._jobs and len(jobs) < together_max:
            following = self._jobs[0]
            size_bytes += following.size_bytes
            if following.append is None or size_bytes > BATCH_BYTES_MAX:
                break
            jobs.append(self._jobs.popleft())
        return jobs

    async def _run_call(self, job: _Job) -> None:
        call = job.call
        assert call is not None
        job.succeed(await self._tried(call, job.asked_s))

    async def _run_appends(self, jobs: list[_Job]) -> None:
        try:
            await self._append_together(jobs)
        except StoreError as error:
            if len(jobs) == 1 or error.code in ("commit_unknown", "store_unreachable"):
                raise
        else:
            return
        # The server undid all of it because of one: each alone, and the one is told.
        for job in jobs:
            try:
                await self._append_together([job])
            except BoundloopError as error:
                job.fail(error)

    async def _append_together(self, jobs: list[_Job]) -> None:
        requests = [job.append for job in jobs if job.append is not None]
        items = encode_items(
            [append_item(request, uploaded=job.uploaded) for job, request in zip(jobs, requests, strict=True)]
        ).decode()
        rows = await self._tried(
            lambda connection: connection.fetch(APPEND, self._clock.given_ms(), lock_order(requests), items),
            jobs[-1].asked_s,
        )
        self._pace.answered(len(jobs))
        about_all = rows[-1]
        now_ms: int = about_all["seq"]
        self._clock.observe(now_ms)
        if about_all["number"] != self._switches_version:
            # Before anybody is answered: what is sent because of this answer has seen the switch.
            await self._tried(self.read_switches)
        if about_all["woken"]:
            self._announce(woken_of(about_all["woken"]))
        for job, request, row in zip(jobs, requests, rows, strict=False):
            answer: object = answer_of(row, request, now_ms)
            match answer:
                case Appended() | AlreadyDone():
                    self.heads.acknowledged(request.run_id, request.expected_seq, answer.seq, request.hash)
                case Conflict():
                    answer = self.heads.falls_short(request.run_id, answer.seq) or answer
                case _:
                    pass
            if isinstance(answer, HistoryRefused):
                await self._tried(self._mark_regressed)
            if isinstance(answer, BaseException):
                job.fail(answer)
            else:
                job.succeed(answer)

    async def _tried(self, call: Callable[[Connection], Awaitable[T]], asked_s: float | None = None) -> T:
        """The call's answer on a connection that works; again if others got in its way. Raises ``StoreError``."""
        for attempt in range(SAME_AGAIN_MAX):
            link = await self.linked(asked_s)
            try:
                return await answered(link.connection, call(link.connection), self.place)
            except Refused as error:
                if not error.again or attempt == SAME_AGAIN_MAX - 1:
                    raise
            except Cut as cut:
                self._unsettled.append(link.backend)
                unknown = StoreError(
                    "commit_unknown",
                    f"the connection ended before the answer came ({cut}): read, or do the same again",
                    path=self.place.shown,
                )
                unknown.__cause__ = cut
                try:
                    await self.linked()
                except StoreError:
                    raise unknown from cut  # whoever reads waits for it to be settled
                raise unknown from cut
        raise AssertionError

    async def read_switches(self, connection: Connection) -> None:
        """Learn which kill switches are on."""
        version: int = await connection.fetchval("SELECT switches_version FROM identity")
        rows = await connection.fetch(sql.SWITCHES)
        self.switches_known = tuple(map(sql.switch_row, rows))
        self._switches_version = version  # an older one than the rows are: then they are read once more

    @property
    def switches_version(self) -> int:
        """How often switches were turned, as far as is known here."""
        return self._switches_version

    # --- the connection --------------------------------------------------------------------------------------------

    async def linked_after(self, lost: Link) -> Link:
        """Another connection than this one, which was cut under a statement: its backend has ended, and what can be read now is all
        that will ever come of that. Raises as ``linked``."""
        self._unsettled.append(lost.backend)
        return await self.linked()

    async def linked(self, asked_s: float | None = None) -> Link:
        """A connection that works, after everything on earlier ones is settled. ``asked_s``: since when it is waited for, on the
        loop's clock; since now unless given. Raises ``StoreError``: ``store_unreachable`` if there is none within ``REACH_S``, however
        many wait for one, or ``store_closed``; and ``WrongSettings`` before the store is open."""
        link = self._link
        if link is not None and not link.connection.is_closed() and not self._unsettled:
            return link
        time = asyncio.get_running_loop().time
        if asked_s is None:
            asked_s = time()
        if link is None and self._search.in_vain(asked_s):
            raise self._unreachable()  # now: whoever looks meanwhile has asked later, and does so for longer
        async with self._connecting:
            link = self._link
            if link is not None and not link.connection.is_closed() and not self._unsettled:
                return link
            if link is not None:
                self._link = None
                self._search.lost_s = time()
                link.connection.terminate()
                self.reconnects += 1
            if self._search.in_vain(asked_s):
                raise self._unreachable()
            self._link = await self._reached(self._search.give_up_at(asked_s))
            return self._link

    async def _reached(self, give_up_at: float) -> Link:
        loop = asyncio.get_running_loop()
        pause_s = PAUSE_S
        while True:
            if self._closed:  # only a read looks for one now
                raise StoreError("store_closed", "the store is closed", path=self.place.shown)
            link: Link | None = None
            try:
                link = await connect(self.place, "boundloop writes")
                await self._take_up(link)
                return link
            except (Cut, WrongSettings) as cut:
                if link is not None:
                    link.connection.terminate()
                if isinstance(cut, WrongSettings) and not self.store_id:
                    raise
                # A store that is open had settings that worked: a file of them is on its way back.
                if loop.time() + pause_s >= give_up_at:
                    self._search.miss(loop.time(), str(cut))
                    raise self._unreachable() from cut
            except BaseException:
                if link is not None:
                    link.connection.terminate()
                raise
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    def _unreachable(self) -> StoreError:
        return StoreError(
            "store_unreachable", f"{self._search.missed}; nothing was sent"[:500], path=self.place.shown
        )

    async def _take_up(self, link: Link) -> None:
        """End what is left of earlier connections, and see whether this is the store that it was, with all that it had."""
        connection, place = link.connection, self.place
        for backend in tuple(self._unsettled):
            ended = await answered(
                connection,
                connection.fetchval(_END, backend.pid, backend.started_at, END_BACKEND_MS),
                place,
            )
            if ended is False:
                raise Cut("the backend of a connection that was cut doesn't end")
            self._unsettled.remove(backend)
        if not self.store_id:
            self._clock.observe(link.server_ms)
            return  # the first connection: the schema may not be there yet
        found = await answered(connection, connection.fetchval(sql.IDENTITY), place)
        if found != self.store_id:
            raise StoreError("store_replaced", "another store answers at this address now", path=place.shown)
        for ids, columns, first_seqs, hashes in self.heads.pages():
            lost = await answered(
                connection, connection.fetch(LOST_HEADS, columns, first_seqs, hashes), place
            )
            known = dict(zip(columns, ids, strict=True))
            for row in lost:
                self.heads.lose(known[row["run_id"]], row["seq"])
        self._clock.observe(link.server_ms)
        await answered(connection, self._mark_regressed(connection), place)
        await answered(connection, self.read_switches(connection), place)

    async def _mark_regressed(self, connection: Connection) -> None:
        """No other host may take up a run whose log lost what was acknowledged."""
        for run_id, error in self.heads.regressed.items():
            if run_id in self.heads.marked:
                continue
            reason = f"{error.code}: {error.message}"[:500]
            woken = await connection.fetchval(
                sql.MARK_DAMAGED, self._clock.given_ms(), to_column(run_id), to_column(reason)
            )
            self.heads.marked.add(run_id)
            if woken:
                self._announce(woken_of(woken))


def woken_of(text: str | None) -> Woken:
    """Runs made ready, and since when they are, each once."""
    if not text:
        return []
    return list(
        dict.fromkeys(
            (from_column(run.run_id), run.ready_at_ms) for run in msgspec.json.decode(text, type=list[_Run])
        )
    )


async def hang_up(connection: Connection) -> None:
    """Say goodbye; cut the connection if that isn't answered."""
    try:
        async with asyncio.timeout(ANSWER_S):
            await connection.close()
    except Exception:  # noqa: BLE001  it is closed either way, and nothing is under way on it
        connection.terminate()
