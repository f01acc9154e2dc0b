"""The owner's run actors: made, warmed, given runs, watched, replaced.

It has no history of its own: whatever it knows can be lost with its process, and the store says what is to be done. A
run actor's death gives its runs back at once (its owner row is dropped as died); one that is stopped or cut off loses its
row after ``HOST_VALID_MS``, is killed, and fenced by the epoch whatever it still does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from ..eventstore.port import EventStore, RunRow
from ..runtime.commands import CommandAnswer, OutsideCommand
from ..runtime.errors import BoundloopError, StoreError
from ..runtime.events import RunStarted
from .provisional import Mark, Shown
from .seats import Seating, Waiting

START_BACKOFF_S: Final = (0.0, 0.5, 1.0, 2.0, 5.0, 15.0)
"""Pauses after so many seats in a row that could not be made."""

START_FAILURES_TOLD: Final = 3
"""After so many, with no seat open, whoever waits for a run is told; it is still tried again."""

SHORT_LIFE_S: Final = 5.0
"""A run actor that dies so soon without a run counts as one that could not be made."""

DRAIN_S: Final = 8.0
"""How long a run actor may take to put its runs down before it is killed."""

END_S: Final = 1.0
"""How long a killed one may take to be gone before it is killed by the hardest means there are."""

REAP_EVERY_S: Final = 2.0

ANSWER_S: Final = 20.0
"""How long a run actor may take over one question; one that is stopped is found out by its owner row before."""

ADOPT_S: Final = 60.0
ADOPT_RUNS_MAX: Final = 100
"""Runs in one question to a run actor."""

ALONE_MAX: Final = 8
"""A run actor that dies with more runs than this makes none of them a suspect: they are spread, and only one that another
dies with too goes on alone. Else one death of a dense actor would send thousands through the few seats for one each."""

DEATHS_KEPT_MAX: Final = 50_000
"""Runs of which it is remembered that an actor died with them; the oldest are forgotten first."""

REFUSALS_MAX: Final = 3
"""A free run that so many run actors in a row would not take is left alone until somebody touches it."""


class RunActorHandle(Protocol):
    """One run actor, as its supervisor holds it. Every method but ``kill`` may raise anything if the process is gone."""

    @property
    def host_id(self) -> str: ...

    async def adopt(self, run_ids: Sequence[str], number: int) -> dict[str, str]:
        """Take these runs up. Gives those that it didn't take, with the reason; empty if somebody else has it. ``number`` is
        this adoption's, and comes back with the word that such a run left."""
        ...

    async def nudge(self, run_ids: Sequence[str]) -> None: ...

    async def submit(self, run_id: str, command: OutsideCommand) -> CommandAnswer | None:
        """None: it doesn't have the run. Raises ``BoundloopError`` for what its host raised."""
        ...

    async def shown(self, run_id: str, mark: Mark, timeout_s: float) -> Shown:
        """What the run shows since ``mark``, as ``Provisional.after``."""
        ...

    async def drain(self) -> None:
        """Put all runs down and give up the owner row."""
        ...

    async def gone(self) -> None:
        """Returns once the process is no more, however it ended."""
        ...

    def kill(self) -> None:
        """End the process now; asked again, by the hardest means there are. Harmless when it has ended."""
        ...


class LetGo:
    """A run actor's word that a run isn't with it any more. It may come late, or twice: ``number`` says which adoption it
    is about."""

    __slots__ = ("failed", "lingering", "number", "run_id", "seat")

    def __init__(self, seat: str, run_id: str, number: int, failed: str, lingering: bool) -> None:
        self.seat = seat
        self.run_id = run_id
        self.number = number
        self.failed = failed
        self.lingering = lingering


MakeRunActor = Callable[[str, bool], Awaitable[RunActorHandle]]
"""(name, dense) -> a run actor that is registered with the store and waits for runs."""


class _Held:
    """An open seat's actor. ``cleared`` is set once its runs are free for others. ``draining``: it was told to put its runs
    down, so however it ends from then on is no death of theirs; ``put_down``: it did."""

    __slots__ = ("cleared", "draining", "handle", "opened_at", "put_down", "used")

    def __init__(self, handle: RunActorHandle, opened_at: float) -> None:
        self.handle = handle
        self.opened_at = opened_at
        self.used = False
        self.draining: asyncio.Task[None] | None = None
        self.put_down = False
        self.cleared = asyncio.Event()


class Supervisor:
    """On the owner's loop. ``look``: the owner's host is to look for ready runs again. ``leave_alone``: a run that can't go
    on here. ``watch``: hears of each run that was let go of, and why if it failed. ``host_gone``: hears of each host that
    died."""

    def __init__(
        self,
        store: EventStore,
        make: MakeRunActor,
        *,
        seating: Seating,
        tenant: str,
        label: str,
        look: Callable[[], None],
        leave_alone: Callable[[str, BaseException], None],
        host_gone: Callable[[str], None] = lambda host_id: None,
        watch: Callable[[str, BaseException | None], None] = lambda run_id, error: None,
    ) -> None:
        self._store = store
        self._make = make
        self.seating = seating
        self._tenant = tenant
        self._label = label
        self._look = look
        self._leave_alone = leave_alone
        self._host_gone = host_gone
        self._watch = watch
        self._actors: dict[str, _Held] = {}
        self._adopting: dict[str, asyncio.Task[None]] = {}
        self._expected: set[str] = set()
        self._suspects: dict[str, bool] = {}
        self._refusals: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._clearing: set[asyncio.Task[None]] = set()
        self._number = 0
        self._adoptions = 0
        self._number_of: dict[str, int] = {}
        self._turned_away = False
        self._failures = 0
        self._not_made_told = ""
        self._closing = False
        self._kick_asked = False
        self._loop = asyncio.get_running_loop()
        self.trouble: BoundloopError | None = None
        self.deaths = 0

    async def open(self) -> None:
        """Begin to warm seats and to reap."""
        self._begin(self._reap())
        self.kick()

    async def close(self) -> None:
        """Drain every run actor, then end it. Takes ``DRAIN_S`` + ``END_S`` and little more at most: one that drains already
        is given no more time than it had."""
        self._closing = True
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(self._ended(held) for held in self._actors.values()))
        self._actors.clear()
        if self._clearing:
            await asyncio.wait(self._clearing, timeout=END_S)

    async def _ended(self, held: _Held) -> None:
        await self._draining(held)
        if not held.put_down:
            await self._dropped(held)
        try:
            async with asyncio.timeout(END_S):
                await self._quietly(held.handle.gone())
        except TimeoutError:
            held.handle.kill()

    # --- Elsewhere, for the owner's host -------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Runs that wait for a seat."""
        return self.seating.queued

    @property
    def held(self) -> int:
        """Runs that have a seat or wait for one."""
        return self.seating.queued + len(self.seating.seat_of)

    def holds(self, run_id: str) -> bool:
        """Whether the run has a seat, waits for one, or is about to."""
        return run_id in self.seating or run_id in self._expected

    def expects(self, run_id: str) -> None:
        """A run is about to be created for a seat here. Until ``begun``, nobody need look for it."""
        self._expected.add(run_id)

    def begun(self, started: RunStarted, *, created: bool) -> None:
        """It is in the store; or that isn't known, and then it is found by whoever looks."""
        self._expected.discard(started.run_id)
        dense = started.dense and self.seating.dense_max > 0
        if not created or not self.seating.enqueue(Waiting(started.run_id, started.tenant, dense)):
            self._look()
        self.kick()

    def takes(self, row: RunRow, started: RunStarted) -> bool:
        """Dense runs of the owner's tenant stay with the owner while there are no dense seats; all others sit here."""
        suspect = self._suspects.get(row.run_id, False)
        if started.dense and self.dense_stay_here(row.tenant) and not suspect:
            return False
        dense = started.dense and self.seating.dense_max > 0
        if not self.seating.enqueue(Waiting(row.run_id, row.tenant, dense, suspect)):
            # The queue is full, or it is in it: whoever is left in the store is looked for when there is room.
            self._turned_away = self._turned_away or row.run_id not in self.seating
        self.kick()
        return True

    def dense_stay_here(self, tenant: str) -> bool:
        """A host serves one tenant: the owner its own, and only while nobody else takes dense runs."""
        return self.seating.dense_max == 0 and tenant == self._tenant

    def nudge(self, run_id: str) -> None:
        """Passed on to the run actor that has the run."""
        held = self._held(run_id)
        if held is not None:
            self._begin(self._quietly(held.handle.nudge([run_id])))

    async def submit(self, run_id: str, command: OutsideCommand) -> CommandAnswer | None:
        """Asked of the run actor that has the run. One that is gone meanwhile may have accepted the command: whoever
        decides next knows it by its id. Raises ``StoreError`` (``host_silent``), and what the run's host raises."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._submitted(run_id, command)
        except TimeoutError as error:
            raise StoreError(
                "host_silent", "the run's host does not answer; submit again under the same id", path=run_id
            ) from error

    async def shown(self, run_id: str, mark: Mark, timeout_s: float) -> Shown | None:
        """Asked of the run actor that has the run; None if none has, or it doesn't answer: what is provisional may be lost."""
        held = self._held(run_id)
        if held is None:
            return None
        try:
            async with asyncio.timeout(timeout_s + ANSWER_S):
                return await held.handle.shown(run_id, mark, timeout_s)
        except Exception:
            return None

    async def _submitted(self, run_id: str, command: OutsideCommand) -> CommandAnswer | None:
        while (held := self._held(run_id)) is not None:
            adopting = self._adopting.get(run_id)
            try:
                answer = await held.handle.submit(run_id, command)
            except BoundloopError:
                raise
            except Exception:
                self._given_up(held)
                await held.cleared.wait()
                return None
            if answer is not None or adopting is None:
                return answer
            # It was about to take the run up, and holds it in the store perhaps: it is asked again when it has.
            await asyncio.wait((adopting,))
        return None

    # --- what run actors say ---------------------------------------------------------------------------------------

    def let_go(self, word: LetGo) -> None:
        """A run left its seat: it ended, waits, or failed there."""
        if self.seating.seat_of.get(word.run_id) != word.seat or self._number_of[word.run_id] != word.number:
            return  # that seat was cleared already, or the run came back to it since
        self._got_up(word.run_id)
        self._suspects.pop(word.run_id, None)
        self._refusals.pop(word.run_id, None)
        error: BaseException | None = None
        if word.failed:
            error = StoreError("host_failed", word.failed[:500], path=word.run_id)
            self._leave_alone(word.run_id, error)
        self._watch(word.run_id, error)
        if word.lingering:
            # Something of that run still lives in the process: it isn't given another one.
            self._retire(word.seat)
        self.kick()
        self._begin(self._look_if_due(word.run_id))

    def _got_up(self, run_id: str) -> None:
        self.seating.got_up(run_id)
        self._number_of.pop(run_id, None)

    async def _look_if_due(self, run_id: str) -> None:
        """While the run had its seat, whatever made it ready was passed over; and a timer of it is news to the host. The
        host's look costs what is ready, so it isn't asked for each run that ends."""
        row = await self._row(run_id)
        if row is None or row.ready or row.index.wake_at_ms is not None:
            self._look()

    async def _row(self, run_id: str) -> RunRow | None:
        try:
            return await self._store.run(run_id)
        except StoreError:
            return None

    # --- seats -----------------------------------------------------------------------------------------------------

    def kick(self) -> None:
        """Assign again, once this turn of the loop."""
        if not self._kick_asked and not self._closing:
            self._kick_asked = True
            self._loop.call_soon(self._assign)

    def _assign(self) -> None:
        self._kick_asked = False
        if self._closing:
            return
        assigned = self.seating.assign()
        if assigned.sit and self._turned_away:
            self._turned_away = False
            self._look()
        by_seat: dict[str, list[str]] = {}
        for run_id, name in assigned.sit:
            by_seat.setdefault(name, []).append(run_id)
        for name, run_ids in by_seat.items():
            for at in range(0, len(run_ids), ADOPT_RUNS_MAX):
                self._begin_adoption(name, run_ids[at : at + ADOPT_RUNS_MAX])
        for dense, count in ((False, assigned.start_solo), (True, assigned.start_dense)):
            for _ in range(count):
                self._number += 1
                name = f"{self._label}-run-{self._number}"
                self.seating.starting(name, dense=dense)
                self._begin(self._start(name, dense))
        for name in assigned.leave:
            self._retire(name)

    async def _start(self, name: str, dense: bool) -> None:
        try:
            await asyncio.sleep(START_BACKOFF_S[min(self._failures, len(START_BACKOFF_S) - 1)])
            handle = await self._make(name, dense)
        except asyncio.CancelledError:
            self.seating.gone(name)
            raise
        except Exception as error:
            self.seating.gone(name)
            self._not_made(name, error)
            self.kick()
            return
        held = self._actors[name] = _Held(handle, self._loop.time())
        self.trouble = None
        self.seating.opened(name)
        self._begin(self._watch_over(name, held))
        self.kick()

    def _not_made(self, name: str, error: Exception) -> None:
        self._failures += 1
        text = str(error)[:500]
        level = logging.DEBUG if text == self._not_made_told else logging.WARNING
        self._not_made_told = text
        logging.getLogger(__name__).log(level, "run actor %s could not be made: %s", name, text)
        if self._failures < START_FAILURES_TOLD or self.seating.open_seats:
            return
        if not isinstance(error, BoundloopError):
            error = StoreError("no_run_actors", f"run actors can't be made: {error}"[:500], path=name)
        self.trouble = error
        for run_id in self.seating.queued_runs():
            self._watch(run_id, error)

    def _begin_adoption(self, name: str, run_ids: list[str]) -> None:
        held = self._actors.get(name)
        if held is None:
            return  # cleared in this very turn: its runs are on their way back
        held.used = True
        self._failures = 0
        self._adoptions += 1
        self._number_of.update(dict.fromkeys(run_ids, self._adoptions))
        task = self._begin(self._adopt(name, held, run_ids, self._adoptions))
        self._adopting.update(dict.fromkeys(run_ids, task))
        task.add_done_callback(lambda _: self._adopted(run_ids, task))

    def _adopted(self, run_ids: list[str], task: asyncio.Task[None]) -> None:
        for run_id in run_ids:
            if self._adopting.get(run_id) is task:
                del self._adopting[run_id]

    async def _adopt(self, name: str, held: _Held, run_ids: list[str], number: int) -> None:
        try:
            async with asyncio.timeout(ADOPT_S):
                refused = await held.handle.adopt(run_ids, number)
        except Exception:  # its watcher gives its runs back
            self._given_up(held)
            return
        for run_id, why in refused.items():
            if self._number_of.get(run_id) == number:
                self._got_up(run_id)
                await self._not_taken(run_id, why, counts=held.draining is None)
        if refused:
            self.kick()

    def _given_up(self, held: _Held) -> None:
        """It is dead, or as good as; unless it is about to end anyway, which isn't to be disturbed."""
        if held.draining is None:
            held.handle.kill()

    async def _not_taken(self, run_id: str, why: str, *, counts: bool) -> None:
        """It isn't this application's or can't be read; or somebody else had it, and then it is found again when it is
        free. A free run that nobody takes is left alone in the end. ``counts``: one that drains takes nothing."""
        row = await self._row(run_id)
        refusals = self._refusals.pop(run_id, 0) + counts
        if why or (row is not None and not row.owner and row.ready and refusals >= REFUSALS_MAX):
            why = why or "no run actor takes this run"
            self._leave_alone(run_id, StoreError("not_taken", why, path=run_id))
        elif row is None or (row.ready and not row.owner):
            self._refusals[run_id] = refusals
            self._look()
        else:
            self._suspects.pop(run_id, None)
            self._look()

    async def _watch_over(self, name: str, held: _Held) -> None:
        await self._quietly(held.handle.gone(), timeout_s=None)
        self._clear(name, held)

    def _clear(self, name: str, held: _Held) -> None:
        """The process is gone, or cut off: its runs go to others. Done once."""
        if self._actors.get(name) is not held:
            return
        del self._actors[name]
        held.handle.kill()  # what Ray thinks dead may live
        runs = self.seating.gone(name)
        for run_id in runs:
            self._number_of.pop(run_id, None)
        if held.draining is None:
            self.deaths += 1
            self._suspect(runs)
            if not held.used and self._loop.time() - held.opened_at < SHORT_LIFE_S:
                self._not_made(name, StoreError("short_lived", "a run actor died idle", path=name))
        task = self._loop.create_task(self._freed(held))
        self._clearing.add(task)
        task.add_done_callback(self._clearing.discard)

    def _suspect(self, runs: Sequence[str]) -> None:
        """An actor died with these: which of them may have been the cause."""
        for run_id in runs:
            self._suspects[run_id] = run_id in self._suspects or len(runs) <= ALONE_MAX
        while len(self._suspects) > DEATHS_KEPT_MAX:
            del self._suspects[next(iter(self._suspects))]

    async def _freed(self, held: _Held) -> None:
        self._host_gone(held.handle.host_id)
        await self._dropped(held)
        held.cleared.set()
        self.kick()
        self._look()

    async def _dropped(self, held: _Held) -> None:
        """Its runs are free. If the store can't be told now, the row expires by itself."""
        host_id = held.handle.host_id
        try:
            await self._store.drop_host(host_id, died=held.draining is None)
        except StoreError:
            logging.getLogger(__name__).warning("the row of host %s is left to expire", host_id)

    def _retire(self, name: str) -> None:
        self.seating.leaving(name)
        held = self._actors.get(name)
        if held is not None:
            self._draining(held)

    def _draining(self, held: _Held) -> asyncio.Task[None]:
        """Begun once, and never cancelled: it has its own bound, and ends with a kill."""
        if held.draining is None:
            held.draining = self._loop.create_task(self._drained(held))
            self._clearing.add(held.draining)
            held.draining.add_done_callback(self._clearing.discard)
        return held.draining

    async def _drained(self, held: _Held) -> None:
        try:
            async with asyncio.timeout(DRAIN_S):
                await held.handle.drain()
            held.put_down = True
        except Exception:
            logging.getLogger(__name__).debug("a run actor did not drain", exc_info=True)
        finally:
            held.handle.kill()

    async def _reap(self) -> None:
        """Run actors whose owner row is gone or expired are cut off or stopped: they are killed, and their runs are given
        to others without waiting for their end."""
        while True:
            await asyncio.sleep(REAP_EVERY_S)
            known = tuple(self._actors.items())
            try:
                now_ms = self._store.now_ms()
                valid = {row.host_id for row in await self._store.hosts() if row.expires_at_ms > now_ms}
            except StoreError:
                continue
            for name, held in known:
                drains = held.draining is not None and not held.draining.done()
                if held.handle.host_id not in valid and not drains:
                    self._clear(name, held)

    # --- small things ------------------------------------------------------------------------------------------------

    def _held(self, run_id: str) -> _Held | None:
        name = self.seating.seat_of.get(run_id)
        return None if name is None else self._actors.get(name)

    async def _quietly(self, work: Awaitable[object], *, timeout_s: float | None = ANSWER_S) -> None:
        """Whatever this raises, its watcher hears of the death."""
        try:
            async with asyncio.timeout(timeout_s):
                await work
        except Exception:
            return

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
