"""Executors: the classes whose instances are the actors of tool pools. Plain classes here, without Ray.

Every method takes and gives bytes (``dispatch_wire``) and raises nothing: an exception of a tool's, carried to another
process, may not unpickle there, holds what the tool was given in its text, and says nothing that a report doesn't.

``run`` is the one method for calls, and for questions to the application's checks and queries. The others answer while a tool is at work, because they are called in other
concurrency groups than it: ``CONTROL``, and ``WATCH`` for ``linger``, whose only end is that of the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import msgspec

from ..eventstore.process_identity import this_process
from . import execution
from .dispatch_wire import (
    ExecutorIdentity,
    ExecutorStatus,
    QueryAsked,
    Stop,
    WireCall,
    decode_calls,
    decode_stop,
    decode_work,
    encode_answer,
    encode_identity,
    encode_reply,
    encode_status,
)
from .execution import Report
from .executor_process import Guard, silence
from .executors import Dispatch, Executors
from .loop_lag import LoopLag
from .query import QUERY_TIMEOUT_S, FarSideAnswer, unknown
from .quick_batch import Passer, QuickBatch
from .reception import Inquiries, Reception, overdue, refused, run_here
from .rungs import RungsAsked
from .shipping import unpack

CONTROL: Final = "control"
WATCH: Final = "watch"
GROUPS: Final = {CONTROL: 2, WATCH: 1}
"""Concurrency groups, and how many calls of each run at once."""

EARLY_STOPS_MAX: Final = 1_000
"""Requests to stop a call that hasn't arrived: they may overtake it."""

LOOP_STUCK_S: Final = 10.0
"""A loop that a tool has blocked for so long is ended with its process: its other calls are being kept from their ends."""

DEAF_S: Final = 1.0
DEAF_MAX: Final = 8
"""Coroutines that go on past their validity and ``DEAF_S``, although they were cancelled; with so many of them the loop is
ended with its process."""

_Id = tuple[str, str, int]


class _Executor:
    """What all kinds share. A shipment that can't be loaded is told by ``identify``; then every call is refused."""

    def __init__(self, shipment: bytes, store: str, revision: str) -> None:
        silence()
        self._guard = Guard()
        self._store = store
        self._revision = revision
        self._failure = ""
        self._done = 0
        self._reception: Reception | None = None
        self._inquiries: Inquiries | None = None
        self._stopped: OrderedDict[_Id, None] = OrderedDict()
        self._running: dict[_Id, Callable[[], None]] = {}
        self._state = threading.Lock()
        try:
            application = unpack(shipment)
            self._reception = Reception(application.toolbox, application.dependencies)
            self._inquiries = Inquiries(application.toolbox, application.policy, application.permissions_of)
        except BaseException as error:  # noqa: BLE001  the application's own modules are imported here
            self._failure = type(error).__name__[:100]

    def identify(self) -> bytes:
        """Which class, store and application this is."""
        return encode_identity(
            ExecutorIdentity(
                class_name=type(self).__name__,
                store=self._store,
                revision=self._revision,
                process=this_process(),
                failure=self._failure,
            )
        )

    def status(self) -> bytes:
        """What is at work now."""
        return encode_status(self._status())

    def stop(self, data: bytes) -> None:
        """Ask a call to stop, one that hasn't arrived yet too."""
        try:
            stop = decode_stop(data)
        except msgspec.MsgspecError:
            return
        with self._state:
            cancel = self._running.get(_id(stop))
            if cancel is None:
                self._note_stopped(stop)
        if cancel is not None:
            cancel()

    def clear(self) -> None:
        """End all that the tools have started: this process itself is about to be ended."""
        self._guard.clear()

    def linger(self) -> None:
        """Never returns: who waits for it learns of the end of the process."""
        threading.Event().wait()

    def _note_stopped(self, stop: Stop) -> None:
        self._stopped[_id(stop)] = None
        if len(self._stopped) > EARLY_STOPS_MAX:
            self._stopped.popitem(last=False)

    def _status(self) -> ExecutorStatus:
        with self._state:
            return ExecutorStatus(running=tuple(self._running), done=self._done)

    def _receive(self, call: WireCall, deliver: Callable[[Report], None]) -> Dispatch | Report:
        if self._reception is None:
            return refused(call, "application_failed")
        return self._reception.receive(call, deliver)

    def _begin(self, call: WireCall, cancel: Callable[[], None]) -> Report | None:
        """Note a call as at work, unless it was stopped before it came."""
        with self._state:
            if _id(call) in self._stopped:
                del self._stopped[_id(call)]
                return refused(call, "cancelled")
            self._running[_id(call)] = cancel
        return None

    def _end(self, call: WireCall) -> None:
        with self._state:
            self._running.pop(_id(call), None)
            self._done += 1


class SyncExecutor(_Executor):
    """One call or question at a time, each alone."""

    def run(self, data: bytes) -> bytes:
        """Run the call and answer with its report, or answer the question. Empty for what is neither."""
        try:
            work = decode_work(data)
        except msgspec.MsgspecError:
            return b""
        if not isinstance(work, tuple):
            return b"" if self._inquiries is None else _answer(self._inquiries, work)
        if len(work) != 1:
            return b""
        return encode_reply([self._report(work[0])])

    def _report(self, call: WireCall) -> Report:
        received = self._receive(call, _drop)
        if isinstance(received, Report):
            return received
        report = self._begin(call, received.context.cancel.set)
        if report is not None:
            return report
        try:
            return run_here(received)
        finally:
            self._end(call)


class QuickExecutor(_Executor):
    """Batches of short reads, one batch at a time."""

    def __init__(self, shipment: bytes, store: str, revision: str) -> None:
        super().__init__(shipment, store, revision)
        self._passer = Passer()
        self._batch: tuple[_Id, QuickBatch] | None = None

    def run(self, data: bytes) -> bytes:
        """Run all calls and answer with all reports. Empty for what are no calls, and for a batch that was given up."""
        try:
            calls = decode_calls(data)
        except msgspec.MsgspecError:
            return b""
        if not calls:
            return encode_reply([])
        batch = QuickBatch([self._receive(call, _drop) for call in calls])
        with self._state:
            if _id(calls[0]) in self._stopped:
                return b""
            self._batch = (_id(calls[0]), batch)
        self._passer.begin(batch)
        reports, stuck = batch.run()
        self._passer.end()
        self._batch = None
        self._done += len(calls)
        return encode_reply(reports, stuck=stuck)

    def harvest(self, data: bytes) -> bytes:
        """What there is of the batch that begins with this call, although ``run`` doesn't return. Empty if it hasn't begun;
        then it never will."""
        try:
            stop = decode_stop(data)
        except msgspec.MsgspecError:
            return b""
        with self._state:
            running = self._batch
            if running is None or running[0] != _id(stop):
                self._note_stopped(stop)
                return b""
        reports, stuck = running[1].harvest()
        return encode_reply(reports, stuck=stuck)


class AsyncExecutor(_Executor):
    """Many calls on one loop, which is watched: a tool that blocks it holds up all of them."""

    def __init__(self, shipment: bytes, store: str, revision: str) -> None:
        super().__init__(shipment, store, revision)
        self._executors: Executors | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lag: LoopLag | None = None
        self._deaf: set[asyncio.Future[Any]] = set()

    async def run(self, data: bytes) -> bytes:
        """Run the call on this loop and answer with its report, or ask the far side. Empty for what is neither."""
        try:
            work = decode_work(data)
        except msgspec.MsgspecError:
            return b""
        if isinstance(work, QueryAsked):
            return encode_answer(await self._far_side(work))
        if not isinstance(work, tuple) or len(work) != 1:
            return b""
        return encode_reply([await self._report(work[0])])

    async def identify(self) -> bytes:  # type: ignore[override]  # an actor with a loop calls coroutines only
        return super().identify()

    async def status(self) -> bytes:  # type: ignore[override]  # an actor with a loop calls coroutines only
        lag_ms = 0 if self._lag is None else self._lag.ms
        return encode_status(msgspec.structs.replace(self._status(), lag_ms=lag_ms))

    async def stop(self, data: bytes) -> None:  # type: ignore[override]  # an actor with a loop calls coroutines only
        super().stop(data)

    async def clear(self) -> None:  # type: ignore[override]  # an actor with a loop calls coroutines only
        super().clear()

    async def linger(self) -> None:  # type: ignore[override]  # an actor with a loop calls coroutines only
        await asyncio.get_running_loop().create_future()

    async def _report(self, call: WireCall) -> Report:
        loop, executors = self._on_this_loop()
        done: asyncio.Future[Report] = loop.create_future()

        def deliver(report: Report) -> None:
            if not done.done():
                done.set_result(report)

        received = self._receive(call, deliver)
        if isinstance(received, Report):
            return received
        cancel: list[Callable[[], None] | None] = []

        def stop() -> None:
            loop.call_soon_threadsafe(lambda: cancel[0]() if cancel and cancel[0] else None)

        report = self._begin(call, stop)
        if report is not None:
            return report
        try:
            cancel.append(executors.start(received))
            return await self._within(received, done)
        except asyncio.CancelledError:
            # Nobody waits for the answer any more, but what runs is to stop.
            if cancel and cancel[0] is not None:
                cancel[0]()
            return Report(execution.cancelled(received.spec, received.call, call.attempt, 0))
        finally:
            self._end(call)

    async def _within(self, dispatch: Dispatch, done: asyncio.Future[Report]) -> Report:
        """Its report, or that it doesn't end."""
        return done.result() if await self._ends(done, dispatch.valid_ms / 1_000) else overdue(dispatch)

    async def _far_side(self, asked: QueryAsked) -> FarSideAnswer:
        loop, _ = self._on_this_loop()
        if self._inquiries is None:
            return unknown("application_failed")
        asking = loop.create_task(self._inquiries.query_on_loop(asked))
        if not await self._ends(asking, QUERY_TIMEOUT_S):
            return unknown("timeout")
        failed = asking.cancelled() or asking.exception() is not None
        return unknown("query_failed") if failed else asking.result()

    async def _ends(self, done: asyncio.Future[Any], valid_s: float) -> bool:
        """Whether it does soon after its validity. Too many that don't end this process."""
        await asyncio.wait([done], timeout=valid_s + DEAF_S)
        if done.done():
            return True
        self._deaf.add(done)
        done.add_done_callback(self._deaf.discard)
        if len(self._deaf) >= DEAF_MAX:
            self._guard.end()
        return False

    def _on_this_loop(self) -> tuple[asyncio.AbstractEventLoop, Executors]:
        """Made by the first call: the constructor ran on no loop."""
        if self._executors is None or self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._executors = Executors()
            self._lag = LoopLag(self._loop, stuck_s=LOOP_STUCK_S, stuck=self._guard.end)
        return self._loop, self._executors


def _answer(inquiries: Inquiries, asked: RungsAsked | QueryAsked) -> bytes:
    if isinstance(asked, RungsAsked):
        return encode_answer(inquiries.rungs(asked))
    return encode_answer(inquiries.query(asked))


def _id(of: WireCall | Stop) -> _Id:
    return (of.run_id, of.call, of.attempt)


def _drop(report: Report) -> Any:
    """Reports are returned."""
