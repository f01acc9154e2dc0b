"""A host's dispatches to executors in other processes: lease a place, send, wait within the validity, give back.

Trusted inline tools run in the host as ever. Short reads go in batches (``quick_lane``), everything else alone; checks and
queries are questions (``pooled_questions``). What was never sent is reported with that proof; what was sent and not
answered is *unknown* if it has an effect, whatever the reason. A call that has to end is asked to; what doesn't, ends with
its process: a sync executor's at the grace bound or 1 s after its validity, whichever is sooner; on a loop with others only a
call that has an effect or is of a limited group, a second after its validity, unless its executor confirms that nothing of it
goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from ..runtime.commands import Executed
from ..runtime.events import RungVerdict
from ..runtime.policy import Policy
from ..runtime.tool_spec import ToolSpec
from . import execution
from .dispatch_wire import Stop, WireCall, decode_reply, encode_calls, wire_call
from .execution import Report
from .executors import GRACE_MS, Dispatch, Executors
from .guarding import GuardAsked
from .leases import Lease, Leases, NoPlace
from .lines import ExecutorDied, LineDown, Lines, NoAnswer
from .places import Kind, LossCause, Places
from .pool_spec import kind_of
from .pooled_questions import Questions
from .query import FarSideAnswer, Sent
from .quick_lane import QuickLane
from .rungs import Rungs, RungsAnswered
from .secret_source import Secrets

LATE_S: Final = 1.0
"""How long a call that ran over its validity may still answer before its executor is ended. Less than the margin."""

CLOSE_S: Final = GRACE_MS / 1_000
MOMENT_S: Final = 0.1
WAITS_MAX: Final = 4
"""An attempt waits for this and that; each cancellation ends the wait that it is in."""


class PooledExecutors:
    """``ToolExecutors`` of one host; made and used on one event loop.

    ``holder`` is the name under which this host holds places. ``groups`` are the limited ones, whose places are the
    broker's. ``dependencies`` are for what runs inline; executors have their own.
    """

    def __init__(
        self,
        places: Places,
        lines: Lines,
        *,
        holder: str,
        groups: Mapping[str, int],
        dependencies: Mapping[str, Any],
        secrets: Secrets | None = None,
    ) -> None:
        self.holder = holder
        self.dependencies: Mapping[str, Any] = dependencies
        self._inline = Executors(dependencies=dependencies, secrets=secrets)
        self._groups = groups
        self._loop = asyncio.get_running_loop()
        self._leases = Leases(places, lines, holder)
        self._questions = Questions(self._leases)
        self._lanes: dict[str, QuickLane] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, dispatch: Dispatch) -> Callable[[], None] | None:
        """See ``ToolExecutors``."""
        kind = kind_of(dispatch.spec, self._groups)
        if kind is None:
            return self._inline.start(dispatch)
        dispatch.started_s = self._loop.time()
        if dispatch.valid_ms <= 0:
            dispatch.refuse("expired")
            return None
        if kind == "quick":
            return self._lane(dispatch.spec.definition.pool).start(dispatch)
        return self._track(dispatch, kind)

    async def checked(self, rungs: Rungs) -> RungsAnswered:
        """See ``ToolExecutors``."""
        return await self._questions.checked(rungs)

    async def guarded(self, asked: GuardAsked, policy: Policy, pool: str, patience_s: float) -> RungVerdict:
        """See ``ToolExecutors``."""
        return await self._questions.guarded(asked, policy, pool, patience_s)

    async def queried(
        self, spec: ToolSpec | None, key: bytes | None, sent: Sent | None = None
    ) -> FarSideAnswer:
        """See ``ToolExecutors``."""
        return await self._questions.queried(spec, key, sent)

    def lingers(self, run_id: str) -> bool:
        """See ``ToolExecutors``: what runs in another process isn't this one's."""
        return self._inline.lingers(run_id)

    async def close(self) -> None:
        """See ``ToolExecutors``."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(
            self._inline.close(),
            self._questions.close(),
            *(lane.close() for lane in self._lanes.values()),
            return_exceptions=True,
        )
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=CLOSE_S)
        for _ in range(WAITS_MAX):
            if not self._tasks:
                break
            for task in list(self._tasks):
                task.cancel()
            await asyncio.wait(list(self._tasks), timeout=MOMENT_S)
        await self._leases.close()

    def _lane(self, pool: str) -> QuickLane:
        lane = self._lanes.get(pool)
        if lane is None:
            lane = self._lanes[pool] = QuickLane(pool, self._leases)
        return lane

    # --- one call alone --------------------------------------------------------------------------------------------

    def _track(self, dispatch: Dispatch, kind: Kind) -> Callable[[], None] | None:
        attempt = _Attempt(dispatch, kind, self._groups, self._leases)
        # With a place at hand the call leaves before anything else has its turn.
        if attempt.left_at_once():
            return None
        work: Coroutine[Any, Any, None] = attempt.run()
        task = self._loop.create_task(work)
        self._tasks.add(task)

        def over(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            if done.cancelled():
                # Cancelled before its first step.
                work.close()
                attempt.abandoned()

        def cancel() -> None:
            task.cancel()

        task.add_done_callback(over)
        return cancel


class _Sent:
    """A call that is out."""

    __slots__ = ("call", "lease", "reply")

    def __init__(self, lease: Lease, call: WireCall, reply: asyncio.Future[object]) -> None:
        self.lease = lease
        self.call = call
        self.reply = reply

    def stop(self) -> None:
        self.lease.line.stop(Stop(self.call.run_id, self.call.call, self.call.attempt))


class _Attempt:
    """One dispatch that travels alone. Exactly one report of it counts; a success that comes later is reported too."""

    __slots__ = ("_dispatch", "_group", "_guarded", "_key", "_leases", "_loop", "_sent", "_shared")

    def __init__(self, dispatch: Dispatch, kind: Kind, groups: Mapping[str, int], leases: Leases) -> None:
        definition = dispatch.spec.definition
        self._dispatch = dispatch
        self._leases = leases
        self._key = (definition.pool, kind)
        self._group = definition.group if definition.group is not None and definition.group in groups else ""
        self._shared = kind == "async"
        # What goes on of it past its time may do harm.
        self._guarded = definition.risk != "read" or bool(self._group)
        self._loop = asyncio.get_running_loop()
        self._sent: _Sent | None = None

    def left_at_once(self) -> bool:
        """Send it if a place is at hand. True if it is over already."""
        lease = None if self._group else self._leases.kept(self._key, self._left_s())
        if lease is None:
            return False
        self._sent = self._send(lease)
        return self._sent is None

    async def run(self) -> None:
        """To its last report."""
        sent = self._sent
        if sent is None:
            try:
                sent = self._sent = await self._leased()
            except asyncio.CancelledError:
                self._dispatch.refuse("cancelled")
                return
        if sent is not None:
            await self._follow(sent)

    def abandoned(self) -> None:
        """Cancelled before ``run`` took its first step."""
        sent = self._sent
        if sent is None:
            self._dispatch.refuse("cancelled")
            return
        sent.stop()
        self._leases.lost(sent.lease, self._overdue())
        self._report(execution.cancelled)

    async def _leased(self) -> _Sent | None:
        try:
            lease = await self._leases.take(
                self._key, tool=self._dispatch.spec.name, group=self._group, left_s=self._left_s()
            )
        except NoPlace as error:
            self._dispatch.refuse(error.code)
            return None
        return self._send(lease)

    def _send(self, lease: Lease) -> _Sent | None:
        """None if it could not be sent, which is reported."""
        left_ms = int(self._left_s() * 1_000)
        if left_ms <= 0:
            self._leases.done(lease)
            self._dispatch.refuse("expired")
            return None
        call = wire_call(self._dispatch, left_ms, lease.grant_id)
        try:
            return _Sent(lease, call, lease.line.send(encode_calls((call,))))
        except LineDown:
            self._leases.lost(lease, "unreached")
            self._dispatch.refuse("no_executor")
            return None

    async def _follow(self, sent: _Sent) -> None:
        """Wait for the answer, and do what its absence asks for."""
        reported = False
        try:
            await asyncio.wait([sent.reply], timeout=max(0.0, self._left_s()))
            if not sent.reply.done():
                sent.stop()
                self._report(execution.timed_out)
                reported = True
                await asyncio.wait([sent.reply], timeout=LATE_S)
        except asyncio.CancelledError:
            sent.stop()
            if not reported:
                reported = await self._grace(sent)
        if not sent.reply.done():
            self._leases.lost(sent.lease, self._overdue())
        elif self._settle(sent, reported=reported):
            await self._until_valid()
            self._leases.lost(sent.lease, "overdue")

    async def _grace(self, sent: _Sent) -> bool:
        """It was asked to stop. One that doesn't is reported after a while, and on a loop with others goes on until its
        time is over; a second cancel ends the wait. Whether it was reported."""
        late_s = max(0.0, self._left_s()) + LATE_S
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([sent.reply], timeout=min(GRACE_MS / 1_000, late_s))
        if sent.reply.done():
            return False
        self._report(execution.cancelled)
        if self._shared:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([sent.reply], timeout=max(0.0, self._left_s()) + LATE_S)
        return True

    async def _until_valid(self) -> None:
        """What a call has left behind on a loop with others may end by itself; a sync executor is of no use any more."""
        if self._shared:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(max(0.0, self._left_s()))

    def _overdue(self) -> LossCause:
        return "overdue" if self._guarded or not self._shared else "deaf"

    def _settle(self, sent: _Sent, *, reported: bool) -> bool:
        """What the answer says of the call and its place. True if something of it goes on that mustn't for long."""
        reply = None
        died = False
        try:
            reply = decode_reply(sent.reply.result(), (sent.call,))
        except ExecutorDied:
            died = True
        except NoAnswer:
            pass
        if reply is None:
            self._leases.lost(sent.lease, "died" if died else "overdue")
            if not reported:
                self._report(execution.lost)
            return False
        (came,) = reply.reports
        if reply.stuck:
            pass  # its place is told of when its time is over
        elif self._group and (self._left_s() <= 0 or execution.may_go_on(came.executed)):
            self._leases.lost(sent.lease, "late")
        else:
            self._leases.done(sent.lease)
        if not reported or came.executed.outcome == "succeeded":
            self._dispatch.deliver(Report(came.executed, came.artifact, came.raised))
        return reply.stuck

    def _report(self, kind: Callable[[ToolSpec, str, int, int], Executed]) -> None:
        dispatch = self._dispatch
        taken_ms = int((self._loop.time() - dispatch.started_s) * 1_000)
        dispatch.deliver(Report(kind(dispatch.spec, dispatch.call, dispatch.context.attempt, taken_ms)))

    def _left_s(self) -> float:
        dispatch = self._dispatch
        return dispatch.started_s + dispatch.valid_ms / 1_000 - self._loop.time()
