"""Executors: the classes whose instances are the actors of tool pools. Plain classes here, without Ray.

Every method takes and gives bytes (``dispatch_wire``) and raises nothing: an exception of a tool's, carried to another
process, may not unpickle there, holds what the tool was given in its text, and says nothing that a report doesn't.

``run`` is the one method for calls, and for questions to the application's checks and queries. The others answer while a tool is at work, because they are called in other
concurrency groups than it: ``CONTROL``, and ``WATCH`` for ``linger``, whose only end is that of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from ..eventstore.process_identity import this_process
from . import execution
from .call_ledger import CallId, CallLedger, call_id
from .call_work import CURRENT, OVERDUE_S, CallWork, Strangers, track
from .dispatch_wire import (
    ExecutorIdentity,
    ExecutorStatus,
    QueryAsked,
    WireCall,
    decode_calls,
    decode_grants,
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
from .guarding import GuardAsked
from .loop_lag import LoopLag
from .query import QUERY_TIMEOUT_S, FarSideAnswer, unknown
from .quick_batch import Passer, QuickBatch
from .reception import Inquiries, Reception, overdue, refused, run_here
from .rungs import RungsAsked
from .secret_source import Secrets
from .shipping import load_failure, unpack

CONTROL: Final = "control"
WATCH: Final = "watch"
GROUPS: Final = {CONTROL: 2, WATCH: 1}
"""Concurrency groups, and how many calls of each run at once."""

LOOP_STUCK_S: Final = 10.0
"""A loop that a tool has blocked for so long is ended with its process: its other calls are being kept from their ends."""

DEAF_S: Final = 1.0
DEAF_MAX: Final = 8
"""Coroutines that go on past their validity and ``DEAF_S``, although they were cancelled; with so many of them the loop is
ended with its process."""

ENDING_S: Final = 0.2
"""What of a cancelled call was shielded has so long to end before its report says that it goes on."""

CONFIRM_S: Final = 3.0
CONFIRM_LOOK_S: Final = 0.02
ENDED: Final = b"ended"
"""The answer of ``confirm`` if nothing goes on."""


class _Executor:
    """What all kinds share. A shipment that can't be loaded is told by ``identify``; then every call is refused."""

    def __init__(self, shipment: bytes, store: str, revision: str) -> None:
        silence()
        self._guard = Guard()
        self._store = store
        self._revision = revision
        self._failure = ""
        self._reception: Reception | None = None
        self._inquiries: Inquiries | None = None
        self._secrets: Secrets | None = None
        self._groups: frozenset[str] = frozenset()
        self._calls = CallLedger(self._guard.end)
        try:
            application = unpack(shipment)
            self._secrets = secrets = Secrets.of(application.secrets)
            self._reception = Reception(application.toolbox, application.dependencies, secrets)
            self._groups = frozenset(application.groups)
            self._inquiries = Inquiries(
                application.toolbox, application.policy, application.permissions_of, secrets
            )
        except BaseException as error:  # noqa: BLE001  the application's own modules are imported here
            self._failure = load_failure(error)
        self._strangers = Strangers()

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
        self._calls.stop(stop)

    def confirm(self, data: bytes) -> bytes:
        """Give these leases up: nothing under them begins any more, and what is at work is to stop. ``ENDED`` if nothing of
        it goes on that mustn't; else empty."""
        works = self._give_up(data)
        return b"" if works is None or not self._ended(works) else ENDED

    def _give_up(self, data: bytes) -> list[CallWork] | None:
        try:
            return self._calls.give_up(decode_grants(data))
        except msgspec.MsgspecError:
            return None

    def _ended(self, works: Sequence[CallWork]) -> bool:
        harmful = [it for it in works if not it.harmless]
        return all(it.quiet for it in harmful) and (not harmful or self._strangers.none_at_work())

    def clear(self) -> None:
        """End all that the tools have started: this process itself is about to be ended."""
        self._guard.clear()

    def linger(self) -> None:
        """Never returns: who waits for it learns of the end of the process."""
        threading.Event().wait()

    def _status(self) -> ExecutorStatus:
        return ExecutorStatus(running=self._calls.running, done=self._calls.done)

    def _receive(self, call: WireCall, deliver: Callable[[Report], None]) -> Dispatch | Report:
        if self._reception is None:
            return refused(call, "application_failed")
        return self._reception.receive(call, deliver, self._lay_ms())

    def _lay_ms(self) -> int:
        """How long a call that arrives now may have lain here, as far as that shows."""
        return 0

    def _work(self, call: WireCall, dispatch: Dispatch, stop: Callable[[], None]) -> CallWork:
        definition = dispatch.spec.definition
        return CallWork(
            self._strangers,
            call.grant,
            stop,
            until_s=dispatch.started_s + dispatch.valid_ms / 1_000 + OVERDUE_S,
            harmless=definition.risk == "read" and definition.group not in self._groups,
        )


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
        return self._calls.earlier_reply(work[0]) or self._reply(work[0])

    def _reply(self, call: WireCall) -> bytes:
        received = self._receive(call, _drop)
        if isinstance(received, Report):
            return encode_reply([received])
        work = self._work(call, received, received.context.cancel.set)
        refusal = self._calls.begin(call, received, work)
        if refusal is not None:
            return encode_reply([refusal])
        try:
            report = run_here(received)
        finally:
            work.over = True
            self._calls.end(call)
        return self._calls.replied(call, encode_reply([report], stuck=self._calls.goes_on(work, report)))


class QuickExecutor(_Executor):
    """Batches of short reads, one batch at a time."""

    def __init__(self, shipment: bytes, store: str, revision: str) -> None:
        super().__init__(shipment, store, revision)
        self._passer = Passer()
        self._state = threading.Lock()
        self._batch: tuple[CallId, QuickBatch] | None = None

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
            if self._calls.was_stopped(calls[0]):
                return b""
            self._batch = (call_id(calls[0]), batch)
        self._passer.begin(batch)
        reports, stuck = batch.run()
        self._passer.end()
        self._batch = None
        self._calls.done += len(calls)
        return encode_reply(reports, stuck=stuck)

    def harvest(self, data: bytes) -> bytes:
        """What there is of the batch that begins with this call, although ``run`` doesn't return. Empty if it hasn't begun;
        then it never will, unless only what is ``at_work`` was asked for."""
        try:
            stop = decode_stop(data)
        except msgspec.MsgspecError:
            return b""
        with self._state:
            running = self._batch
            if running is None or running[0] != call_id(stop):
                if not stop.at_work:
                    self._calls.stop(stop)
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
        return self._calls.earlier_reply(work[0]) or await self._reply(work[0])

    def _lay_ms(self) -> int:
        return 0 if self._lag is None else self._lag.recent_ms

    async def identify(self) -> bytes:  # type: ignore[override]  # an actor with a loop calls coroutines only
        return super().identify()

    async def status(self) -> bytes:  # type: ignore[override]  # an actor with a loop calls coroutines only
        lag_ms = 0 if self._lag is None else self._lag.ms
        return encode_status(msgspec.structs.replace(self._status(), lag_ms=lag_ms))

    async def stop(self, data: bytes) -> None:  # type: ignore[override]  # an actor with a loop calls coroutines only
        super().stop(data)

    async def confirm(self, data: bytes) -> bytes:  # type: ignore[override]  # an actor with a loop calls coroutines only
        """The same, and wait a while for what was stopped."""
        works = self._give_up(data)
        if works is None:
            return b""
        for _ in range(int(CONFIRM_S / CONFIRM_LOOK_S)):
            if self._ended(works):
                return ENDED
            await asyncio.sleep(CONFIRM_LOOK_S)
        return b""

    async def clear(self) -> None:  # type: ignore[override]  # an actor with a loop calls coroutines only
        super().clear()

    async def linger(self) -> None:  # type: ignore[override]  # an actor with a loop calls coroutines only
        await asyncio.get_running_loop().create_future()

    async def _reply(self, call: WireCall) -> bytes:
        loop, executors = self._on_this_loop()
        done: asyncio.Future[Report] = loop.create_future()
        begun: list[CallWork] = []

        def deliver(report: Report) -> None:
            for work in begun:
                work.over = True
            if not done.done():
                done.set_result(report)

        received = self._receive(call, deliver)
        if isinstance(received, Report):
            return encode_reply([received])
        cancel: list[Callable[[], None] | None] = []

        def cancel_it() -> None:
            for it in cancel:
                if it is not None:
                    it()

        work = self._work(call, received, lambda: _on(loop, cancel_it))
        refusal = self._calls.begin(call, received, work)
        if refusal is not None:
            return encode_reply([refusal])
        begun.append(work)
        mine = CURRENT.set(work)
        try:
            cancel.append(executors.start(received))
            report = await self._within(received, done)
        except asyncio.CancelledError:
            # Nobody waits for the answer any more, but what runs is to stop.
            cancel_it()
            report = Report(execution.cancelled(received.spec, received.call, call.attempt, 0))
        finally:
            CURRENT.reset(mine)
            self._calls.end(call)
        if not work.harmless and execution.may_go_on(report.executed):
            await self._left_behind(work)
        return self._calls.replied(call, encode_reply([report], stuck=self._calls.goes_on(work, report)))

    async def _left_behind(self, work: CallWork) -> None:
        """What a call without an outcome had shielded or begun beside itself is to end too."""
        work.cancel()
        left = work.tasks_left()
        if left:
            await asyncio.wait(left, timeout=ENDING_S)

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
            self._executors = Executors(secrets=self._secrets)
            self._lag = LoopLag(self._loop, stuck_s=LOOP_STUCK_S, stuck=self._guard.end)
            self._strangers = Strangers()
            track(self._loop, self._strangers)
        return self._loop, self._executors


def _answer(inquiries: Inquiries, asked: RungsAsked | QueryAsked | GuardAsked) -> bytes:
    if isinstance(asked, GuardAsked):
        return encode_answer(inquiries.guard(asked))
    if isinstance(asked, RungsAsked):
        return encode_answer(inquiries.rungs(asked))
    return encode_answer(inquiries.query(asked))


def _on(loop: asyncio.AbstractEventLoop, do: Callable[[], None]) -> None:
    """On that loop, from any thread."""
    with contextlib.suppress(RuntimeError):  # it is closed
        loop.call_soon_threadsafe(do)


def _drop(report: Report) -> Any:
    """Reports are returned."""
