"""The broker of places in the owner's process: ``slots`` decides, this waits, tells, starts and ends executors.

Executors are made through a small factory, so that all of this runs without Ray too. Every start and end is a task of
its own; nobody who leases waits for more than a free place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol

from .places import Grant, LossCause, Refused, Want
from .slot_reports import Doubt, PoolKey, PoolShape, SlotStatistics
from .slots import Slots

START_S: Final = 60.0
"""An executor that isn't up by then is given up and another is started."""

END_S: Final = 10.0
"""How long the end of one executor may take until it is left to its supervisor."""

TIMER_MAX_S: Final = 60.0


class ExecutorFactory(Protocol):
    """Makes and ends executors. Names are never used twice."""

    def name_of(self, key: PoolKey, number: int) -> str: ...

    async def start(self, name: str, key: PoolKey, gone: Callable[[], None]) -> None:
        """Returns when the executor takes calls. Raises if it doesn't come up. ``gone`` is called once on this loop when
        its process has ended afterwards, whatever ended it."""
        ...

    async def confirm(self, name: str, grant_ids: Sequence[str]) -> bool:
        """Give these leases up: nothing under them begins in this executor any more, and what is at work is asked to stop.
        Returns whether nothing of it goes on. May raise, and take for ever."""
        ...

    async def end(self, name: str) -> None:
        """End it with everything that its calls have started, at once, whatever it is doing. Unknown names do nothing."""
        ...


class Pools:
    """Made and used on one event loop. ``clock_ms`` is monotonic. ``closed_ms``: for how long from now each of these
    limited groups grants nothing. ``failures``: what kept an executor of each pool from coming up, last."""

    def __init__(
        self,
        pools: Mapping[PoolKey, PoolShape],
        groups: Mapping[str, int],
        factory: ExecutorFactory,
        *,
        closed_ms: Mapping[str, int] | None = None,
        clock_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        self._clock_ms = clock_ms
        now = clock_ms()
        closed = {group: now + for_ms for group, for_ms in (closed_ms or {}).items()}
        self._slots = Slots(pools, groups, closed_until_ms=closed, name_of=factory.name_of)
        self._shapes = dict(pools)
        self._factory = factory
        self.failures: dict[PoolKey, BaseException] = {}
        self._loop = asyncio.get_running_loop()
        self._answers: dict[str, asyncio.Future[Grant | Refused]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._up = asyncio.Event()
        self._living: set[str] = set()
        self._closed = False

    # --- what the owner calls ------------------------------------------------------------------------------------

    async def open(self, *, warm_s: float = START_S) -> bool:
        """Start each pool's least executors and wait until they are up, at most ``warm_s``; whether they are."""
        self._turn()
        try:
            async with asyncio.timeout(warm_s):
                while not self._warm():
                    self._up.clear()
                    await self._up.wait()
        except TimeoutError:
            return False
        return True

    def _warm(self) -> bool:
        pools = self.statistics().pools
        return all(pools[key].up >= shape.least for key, shape in self._shapes.items())

    async def close(self) -> None:
        """Refuse who waits and end all executors. Places aren't given any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_result(Refused(code="closed"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(self._end(name) for name in list(self._living)), return_exceptions=True)

    def host_gone(self, host_id: str) -> None:
        """A host died or was let go: what it waited for is dropped, what it held is lost."""
        self._slots.host_gone(host_id, self._clock_ms())
        for want_id, answer in list(self._answers.items()):
            if not answer.done() and self._slots.held(want_id) is None and not self._slots.waits(want_id):
                answer.set_result(Refused(code="closed"))
        self._turn()

    def hold(self, group: str, places: int, for_ms: int) -> None:
        """So many places of a limited group are taken for so long, by calls of an owner before this one."""
        now = self._clock_ms()
        self._slots.hold(group, places, now + for_ms, now)

    def holds(self) -> dict[str, tuple[int, int]]:
        """How many places of each limited group may be in use at a far side if everything ends now, and for how long."""
        now = self._clock_ms()
        return {name: (places, until_ms - now) for name, (places, until_ms) in self._slots.holds(now).items()}

    def statistics(self) -> SlotStatistics:
        return self._slots.statistics()

    # --- Places --------------------------------------------------------------------------------------------------

    async def lease(self, want: Want) -> Grant | Refused:
        """See ``Places``. A caller that is cancelled wants nothing any more."""
        if self._closed:
            return Refused(code="closed")
        answer = self._answers.get(want.want_id)
        if answer is None:
            held = self._slots.held(want.want_id)
            if held is not None:  # the same question again, whose first answer was lost
                return Grant(grant_id=want.want_id, actor=held, contended=True)
            code = self._slots.ask(want, self._clock_ms())
            if code is not None:
                return Refused(code=code)
            answer = self._answers[want.want_id] = self._loop.create_future()
            self._turn()
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            await self.give_back(want.want_id)
            raise
        finally:
            self._answers.pop(want.want_id, None)

    async def give_back(self, grant_id: str) -> None:
        """See ``Places``."""
        self._slots.give_back(grant_id, self._clock_ms())
        self._turn()

    async def lost(self, grant_id: str, why: LossCause) -> None:
        """See ``Places``."""
        self._slots.lost(grant_id, why, self._clock_ms())
        self._turn()

    # --- inside --------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Do what is due now, and come back when more may be."""
        if self._closed:
            return
        now = self._clock_ms()
        assigned = self._slots.assign(now)
        for grant in assigned.grants:
            self._answer(grant.grant_id, grant)
        for want_id, code in assigned.refused:
            self._answer(want_id, Refused(code=code))
        for name in assigned.end:
            self._start_task(self._end(name))
        for doubt in assigned.doubts:
            self._start_task(self._confirm(doubt))
        for name, key in assigned.start:
            self._start_task(self._begin(name, key))
        self._set_timer(now)

    def _set_timer(self, now_ms: int) -> None:
        due_ms = self._slots.next_ms(now_ms)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due_ms is not None:
            self._timer = self._loop.call_later(min((due_ms - now_ms) / 1_000, TIMER_MAX_S), self._turn)

    def _answer(self, want_id: str, answer: Grant | Refused) -> None:
        waiting = self._answers.get(want_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)
        elif isinstance(answer, Grant):
            self._slots.give_back(want_id, self._clock_ms())  # nobody is there to take it

    async def _begin(self, name: str, key: PoolKey) -> None:
        self._living.add(name)
        try:
            async with asyncio.timeout(START_S):
                await self._factory.start(name, key, lambda: self._gone(name))
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  whatever keeps it from coming up is the application's or Ray's
            # Another is tried after a pause; those who wait are told by their deadline.
            self.failures[key] = error
            await self._end(name)
            self._slots.executor_gone(name, self._clock_ms())
        else:
            self._slots.executor_up(name, self._clock_ms())
        self._up.set()
        self._turn()

    async def _confirm(self, doubt: Doubt) -> None:
        ended = False
        try:
            async with asyncio.timeout(doubt.within_ms / 1_000):
                ended = await self._factory.confirm(doubt.executor, doubt.grant_ids)
        except Exception:  # noqa: BLE001  whatever keeps it from an answer, it is no yes
            ended = False
        self._slots.settled(doubt, self._clock_ms(), ended=ended)
        self._turn()

    async def _end(self, name: str) -> None:
        try:
            async with asyncio.timeout(END_S):
                await self._factory.end(name)
        except TimeoutError:
            return  # its process outlives its name; what it holds at a far side is over by its validity
        self._living.discard(name)

    def _gone(self, name: str) -> None:
        self._living.discard(name)
        self._slots.executor_gone(name, self._clock_ms())
        # What its calls have started may have outlived it.
        self._start_task(self._end(name))
        self._turn()

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        if self._closed:
            work.close()
            return
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
