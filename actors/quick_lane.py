"""Short reads of one pool, in batches: what came in one turn of the loop travels in one call to an executor.

One batch is out at a time; what comes meanwhile is the next. If it doesn't come back soon, the next leaves on a spare
executor. Executors are leased for longer than one batch and beforehand, because a short read has no time for that. Reads
have no effect, so whatever is lost here is *failed*, to be tried again.

A read's validity (50 ms) is what its own code may take, counted where that runs. How late its host is with it (``QUICK_LATE_MS``), how
long it waits here, lies at the executor and runs in its batch have bounds of their own: a host with hundreds of runs has as many
reads at once, and none of them is to be tried again because it wasn't the first. Their sum is less than the margin, after which an
attempt is given up (``tests/test_pooled_dispatch.py`` adds them up).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from . import execution
from .dispatch_wire import (
    BATCH_CALLS_MAX,
    BatchReply,
    Stop,
    WireCall,
    decode_reply,
    encode_calls,
    wire_call,
)
from .execution import Report
from .executors import Dispatch
from .leases import Key, Lease, Leases, NoPlace
from .lines import ExecutorDied, LineDown, NoAnswer
from .places import LossCause
from .quick_batch import BATCH_S

LEASE_MS: Final = 10_000
LEASE_LEFT_LEAST_S: Final = 2.5
"""A lease with less left is given back and taken anew."""

REST_S: Final = 1.0
"""Without a call for so long the executor is given back."""

HELD_UP_S: Final = 0.005
"""A batch that is out for longer doesn't hold up the next."""

SEATS_MAX: Final = 2
SPARE_S: Final = 5.0
"""How long a spare executor is waited for, and until one is asked for again if there was none."""

WAIT_S: Final = 1.5
"""How long a read waits here for its batch to leave. It is refused then, whatever is still waited for."""

BEGIN_S: Final = 0.5
"""How long a batch may lie at its executor, behind those of other hosts."""

PATIENCE_S: Final = 0.05
"""Beyond a read's validity, until what there is of a batch is fetched from an executor that doesn't answer; and from one time to
the next while it hasn't begun."""

HARVEST_S: Final = BATCH_S + 0.5
"""How long an executor may take to say what there is of a batch; so long after the batch must have begun it is asked no more."""

CROSSING_S: Final = 0.1
"""For an answer that crossed with the question what became of it."""


class QuickLane:
    """Of one host and one pool; made and used on one event loop."""

    def __init__(self, pool: str, leases: Leases) -> None:
        self._key: Key = (pool, "quick")
        self._leases = leases
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Dispatch] = deque()
        self._idle: list[Lease] = []
        self._out: dict[asyncio.Task[None], Lease] = {}
        self._sent_s = 0.0
        self._taking: asyncio.Task[None] | None = None
        self._spare_at_s = 0.0
        self._rung = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self, dispatch: Dispatch) -> Callable[[], None]:
        """Have it in the next batch. Returns what cancels it; once it has left it is too short for that."""
        self._waiting.append(dispatch)
        self._ring()

        def cancel() -> None:
            if dispatch in self._waiting:
                self._waiting.remove(dispatch)
                dispatch.refuse("cancelled")

        return cancel

    async def close(self) -> None:
        """Refuse what waits, let the batches that are out come back, and give the executors back."""
        while self._waiting:
            self._waiting.popleft().refuse("cancelled")
        if self._taking is not None:
            self._taking.cancel()
        if self._out:
            await asyncio.wait(list(self._out), timeout=LEASE_LEFT_LEAST_S + HARVEST_S)
        self._stop_timer()
        self._give_all_back()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _ring(self) -> None:
        if not self._rung:
            self._rung = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Send the next batch, see to executors for it, or to the next time to look."""
        self._rung = False
        self._stop_timer()
        now = self._loop.time()
        self._refuse_late()
        if not self._waiting:
            if not self._out:
                self._timer = self._loop.call_at(now + REST_S, self._give_all_back)
            return
        if self._out and now < self._sent_s + HELD_UP_S:
            self._timer = self._loop.call_at(self._sent_s + HELD_UP_S, self._ring)
            return
        lease = self._free(now)
        if lease is not None:
            self._send(lease, now)
        if self._taking is None and len(self._idle) + len(self._out) < SEATS_MAX:
            if lease is None and not self._out:
                self._take(self._first())
            elif now >= self._spare_at_s:
                self._take(self._spare())
        if self._waiting:
            # What it waits for may come later: a spare executor, a line to one, a batch that hangs.
            self._timer = self._loop.call_later(max(0.0, _left_s(self._waiting[0])), self._ring)

    def _refuse_late(self) -> None:
        """The longest-waiting is the first."""
        while self._waiting and _left_s(self._waiting[0]) <= 0:
            self._waiting.popleft().refuse("expired")

    def _free(self, now: float) -> Lease | None:
        while self._idle:
            lease = self._idle.pop(0)
            if lease.line.gone:
                self._leases.lost(lease, "died")
                continue
            if lease.until_s - now >= LEASE_LEFT_LEAST_S:
                return lease
            self._give_back(lease)
        return None

    def _take(self, work: Coroutine[Any, Any, None]) -> None:
        self._taking = self._loop.create_task(work)
        self._taking.add_done_callback(self._taken)

    def _taken(self, done: asyncio.Task[None]) -> None:
        self._taking = None
        self._ring()

    async def _first(self) -> None:
        """Wait for an executor, no longer than who waits first may."""
        first = self._waiting[0]
        code = "expired"
        try:
            lease = await self._leases.take(
                self._key, tool=first.spec.name, group="", left_s=_left_s(first), extra_ms=LEASE_MS
            )
            self._idle.append(lease)
        except NoPlace as error:
            code = error.code
            if first in self._waiting:
                self._waiting.remove(first)
                first.refuse(code)
        for dispatch in [it for it in self._waiting if _left_s(it) <= 0]:
            self._waiting.remove(dispatch)
            dispatch.refuse(code)

    async def _spare(self) -> None:
        """Have another executor at hand, if there is one."""
        self._spare_at_s = self._loop.time() + SPARE_S
        try:
            lease = await self._leases.take(self._key, tool="", group="", left_s=SPARE_S, extra_ms=LEASE_MS)
        except NoPlace:
            return
        if lease.line.name in {it.line.name for it in (*self._idle, *self._out.values())}:
            self._give_back(lease)
        else:
            self._idle.append(lease)

    def _batch(self, grant: str) -> list[tuple[Dispatch, WireCall]]:
        batch: list[tuple[Dispatch, WireCall]] = []
        while self._waiting and len(batch) < BATCH_CALLS_MAX:
            dispatch = self._waiting.popleft()
            if _left_s(dispatch) > 0:
                # Not what is left of it since it came.
                call = wire_call(dispatch, dispatch.valid_ms, grant, begin_ms=int(BEGIN_S * 1_000))
                batch.append((dispatch, call))
            else:
                dispatch.refuse("expired")
        return batch

    def _send(self, lease: Lease, now: float) -> None:
        """Hand the next batch over, and wait for its answer in a task."""
        batch = self._batch(lease.grant_id)
        if not batch:
            self._idle.append(lease)
            return
        try:
            reply = lease.line.send(encode_calls([call for _, call in batch]))
        except LineDown:
            self._leases.lost(lease, "unreached")
            self._waiting.extendleft(dispatch for dispatch, _ in reversed(batch))
            self._ring()
            return
        task = self._loop.create_task(self._follow(lease, batch, reply))
        self._sent_s = now
        self._out[task] = lease
        task.add_done_callback(self._back)

    def _back(self, done: asyncio.Task[None]) -> None:
        del self._out[done]
        self._sent_s = 0.0
        self._ring()

    async def _follow(
        self, lease: Lease, batch: Sequence[tuple[Dispatch, WireCall]], answer: asyncio.Future[object]
    ) -> None:
        calls = [call for _, call in batch]
        patience_s = max(call.valid_ms for call in calls) / 1_000 + PATIENCE_S
        await asyncio.wait([answer], timeout=patience_s)
        why: LossCause = "overdue"
        reply: BatchReply | None = None
        try:
            data = await self._harvested(lease, calls[0], answer)
            if data == b"":
                # Another host's batch keeps the executor; ours was given up before it began.
                self._give_back(lease)
                for dispatch, _ in batch:
                    dispatch.refuse("expired")
                return
            reply = decode_reply(data, calls)
        except ExecutorDied:
            why = "died"
        except NoAnswer:
            pass
        if reply is None or reply.stuck:
            self._leases.lost(lease, why)
        else:
            self._idle.append(lease)
        for place, (dispatch, _) in enumerate(batch):
            if reply is None:
                dispatch.deliver(_lost(dispatch))
            else:
                came = reply.reports[place]
                dispatch.deliver(Report(came.executed, came.artifact, came.raised))

    async def _harvested(self, lease: Lease, first: WireCall, answer: asyncio.Future[object]) -> object:
        """What there is of a batch whose time is over, or its answer if that comes after all. Empty if it didn't begin in
        time, and never will."""
        begin_s = self._loop.time() + BEGIN_S
        while not answer.done():
            now = self._loop.time()
            waits = now < begin_s
            try:
                async with asyncio.timeout_at(min(now, begin_s) + HARVEST_S):
                    data = await lease.line.harvest(
                        Stop(first.run_id, first.call, first.attempt, at_work=waits)
                    )
            except TimeoutError:
                raise NoAnswer from None
            if data != b"":
                return answer.result() if answer.done() else data
            await asyncio.wait([answer], timeout=PATIENCE_S if waits else CROSSING_S)
            if not waits:
                return answer.result() if answer.done() else data
        return answer.result()

    def _give_all_back(self) -> None:
        while self._idle:
            self._give_back(self._idle.pop())

    def _give_back(self, lease: Lease) -> None:
        lease.alone = True
        self._leases.done(lease)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _lost(dispatch: Dispatch) -> Report:
    return Report(execution.lost(dispatch.spec, dispatch.call, dispatch.context.attempt, dispatch.valid_ms))


def _left_s(dispatch: Dispatch) -> float:
    """Of the wait for its batch to leave."""
    return dispatch.started_s + WAIT_S - asyncio.get_running_loop().time()
