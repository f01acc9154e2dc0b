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
from .seats import Seating, Waiting

START_BACKOFF_S: Final = (0.0, 0.5, 1.0, 2.0, 5.0, 15.0)
"""Pauses after so many seats in a row that could not be made."""

DRAIN_S: Final = 8.0
"""How long a run actor may take to put its runs down before it is killed."""

REAP_EVERY_S: Final = 2.0

ANSWER_S: Final = 20.0
"""How long a run actor may take over one question; one that is stopped is found out by its owner row."""

REFUSALS_MAX: Final = 3
"""A run that so many run actors in a row would not take is left alone until somebody touches it."""


class RunActorHandle(Protocol):
    """One run actor, as its supervisor holds it. Every method but ``kill`` may raise anything if the process is gone."""

    @property
    def host_id(self) -> str: ...

    async def adopt(self, run_ids: Sequence[str]) -> list[str]:
        """Take these runs up; those that it took."""
        ...

    async def nudge(self, run_ids: Sequence[str]) -> None: ...

    async def submit(self, run_id: str, command: OutsideCommand) -> CommandAnswer | None:
        """None: it doesn't have the run."""
        ...

    async def drain(self) -> None:
        """Put all runs down and give up the owner row."""
        ...

    async def gone(self) -> None:
        """Returns once the process is no more, however it ended."""
        ...

    def kill(self) -> None:
        """End the process now. Harmless when it has ended."""
        ...


class LetGo:
    """A run actor's word that a run isn't with it any more."""

    __slots__ = ("failed", "lingering", "run_id", "seat")

    def __init__(self, seat: str, run_id: str, failed: str, lingering: bool) -> None:
        self.seat = seat
        self.run_id = run_id
        self.failed = failed
        self.lingering = lingering


MakeRunActor = Callable[[str, bool], Awaitable[RunActorHandle]]
"""(name, dense) -> a run actor that is registered with the store and waits for runs."""


class Supervisor:
    """On the owner's loop. ``look``: the owner's host is to look for ready runs again."""

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
        self._actors: dict[str, RunActorHandle] = {}
        self._suspects: set[str] = set()
        self._refusals: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._number = 0
        self._failures = 0
        self._closing = False
        self._kick_asked = False
        self._loop = asyncio.get_running_loop()
        self.deaths = 0

    async def open(self) -> None:
        """Begin to warm seats and to reap."""
        self._begin(self._reap())
        self.kick()

    async def close(self) -> None:
        """Drain every run actor, then end it."""
        self._closing = True
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(self._drained(actor) for actor in self._actors.values()))
        self._actors.clear()

    # --- Elsewhere, for the owner's host -------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Runs that wait for a seat."""
        return self.seating.queued

    def holds(self, run_id: str) -> bool:
        """Whether the run has a seat or waits for one."""
        return run_id in self.seating

    def takes(self, row: RunRow, started: RunStarted) -> bool:
        """Dense runs of the owner's tenant stay with the owner while there are no dense seats; all others sit here."""
        suspect = row.run_id in self._suspects
        if started.dense and self.dense_stay_here(row.tenant) and not suspect:
            return False
        dense = started.dense and self.seating.dense_max > 0
        self.seating.enqueue(Waiting(row.run_id, row.tenant, dense, suspect))
        self.kick()
        return True

    def dense_stay_here(self, tenant: str) -> bool:
        """A host serves one tenant: the owner its own, and only while nobody else takes dense runs."""
        return self.seating.dense_max == 0 and tenant == self._tenant

    def nudge(self, run_id: str) -> None:
        """Passed on to the run actor that has the run."""
        actor = self._actor_of(run_id)
        if actor is not None:
            self._begin(self._quietly(actor.nudge([run_id])))

    async def submit(self, run_id: str, command: OutsideCommand) -> CommandAnswer | None:
        """Asked of the run actor that has the run. One that is gone meanwhile may have accepted the command: whoever
        decides next knows it by its id."""
        actor = self._actor_of(run_id)
        if actor is None:
            return None
        try:
            async with asyncio.timeout(ANSWER_S):
                return await actor.submit(run_id, command)
        except BoundloopError:
            raise
        except TimeoutError as error:
            raise StoreError(
                "host_silent", "the run's host does not answer; submit again under the same id", path=run_id
            ) from error
        except Exception:
            await self._until_gone(run_id)
            return None

    async def _until_gone(self, run_id: str) -> None:
        """A seat whose process ended is cleared by its watcher, at once or nearly so."""
        name = self.seating.seat_of.get(run_id)
        for _ in range(100):
            if name is None or name not in self.seating.seats:
                return
            await asyncio.sleep(0.05)

    # --- what run actors say ---------------------------------------------------------------------------------------

    def let_go(self, word: LetGo) -> None:
        """A run left its seat: it ended, waits, or failed there."""
        if self.seating.seat_of.get(word.run_id) != word.seat:
            return  # that seat was cleared already
        self.seating.got_up(word.run_id)
        self._suspects.discard(word.run_id)
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
        self._look()

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
        by_seat: dict[str, list[str]] = {}
        for run_id, name in assigned.sit:
            by_seat.setdefault(name, []).append(run_id)
        for name, run_ids in by_seat.items():
            self._begin(self._adopt(name, run_ids))
        for dense, count in ((False, assigned.start_solo), (True, assigned.start_dense)):
            for _ in range(count):
                self._number += 1
                name = f"{self._label}-run-{self._number}"
                self.seating.starting(name, dense=dense)
                self._begin(self._start(name, dense))
        for name in assigned.leave:
            self._retire(name)

    async def _start(self, name: str, dense: bool) -> None:
        await asyncio.sleep(START_BACKOFF_S[min(self._failures, len(START_BACKOFF_S) - 1)])
        try:
            actor = await self._make(name, dense)
        except asyncio.CancelledError:
            self.seating.gone(name)
            raise
        except Exception:
            self._failures += 1
            self.seating.gone(name)
            logging.getLogger(__name__).exception("run actor %s could not be made", name)
            self.kick()
            return
        self._failures = 0
        self._actors[name] = actor
        self.seating.opened(name)
        self._begin(self._watch_over(name, actor))
        self.kick()

    async def _adopt(self, name: str, run_ids: list[str]) -> None:
        actor = self._actors.get(name)
        if actor is None:
            return
        try:
            taken = frozenset(await actor.adopt(run_ids))
        except Exception:
            return  # its watcher gives its runs back
        for run_id in run_ids:
            if run_id not in taken and self.seating.seat_of.get(run_id) == name:
                self._not_taken(run_id)
        self.kick()

    def _not_taken(self, run_id: str) -> None:
        """Somebody else has it, it can't be read, or it isn't this application's."""
        self.seating.got_up(run_id)
        refusals = self._refusals[run_id] = self._refusals.get(run_id, 0) + 1
        if refusals >= REFUSALS_MAX:
            del self._refusals[run_id]
            self._leave_alone(run_id, StoreError("not_taken", "no run actor takes this run", path=run_id))
        self._look()

    async def _watch_over(self, name: str, actor: RunActorHandle) -> None:
        await self._quietly(actor.gone())
        self._actors.pop(name, None)
        actor.kill()  # what Ray thinks dead may live
        self.deaths += 1
        runs = self.seating.gone(name)
        self._suspects.update(runs)
        self._host_gone(actor.host_id)
        await self._dropped(actor.host_id)
        self.kick()
        self._look()

    async def _dropped(self, host_id: str) -> None:
        """Its runs are free. If the store can't be told now, the row expires by itself."""
        try:
            await self._store.drop_host(host_id, died=True)
        except StoreError:
            logging.getLogger(__name__).warning("the row of host %s is left to expire", host_id)

    def _retire(self, name: str) -> None:
        self.seating.leaving(name)
        actor = self._actors.get(name)
        if actor is not None:
            self._begin(self._drained(actor))

    async def _drained(self, actor: RunActorHandle) -> None:
        try:
            async with asyncio.timeout(DRAIN_S):
                await actor.drain()
        except Exception:
            logging.getLogger(__name__).debug("a run actor did not drain", exc_info=True)
        finally:
            actor.kill()

    async def _reap(self) -> None:
        """Run actors whose owner row is gone or expired are cut off or stopped: they are killed."""
        while True:
            await asyncio.sleep(REAP_EVERY_S)
            try:
                now_ms = self._store.now_ms()
                valid = {row.host_id for row in await self._store.hosts() if row.expires_at_ms > now_ms}
            except StoreError:
                continue
            for actor in tuple(self._actors.values()):
                if actor.host_id not in valid:
                    actor.kill()

    # --- small things ------------------------------------------------------------------------------------------------

    def _actor_of(self, run_id: str) -> RunActorHandle | None:
        name = self.seating.seat_of.get(run_id)
        return None if name is None else self._actors.get(name)

    async def _quietly(self, work: Awaitable[object]) -> None:
        """Whatever this raises, its watcher hears of the death."""
        try:
            await work
        except Exception:
            return

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
