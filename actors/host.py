"""A host: one process's share of the runs. It holds the owner row, the drivers, the timers and the kill switches.

Ready runs (created, woken, due, left by a dead host) without a host are taken up as fast as they come, if their pinned
tools and model are this application's (``fit``); others are left alone for a host that has them. A host that couldn't renew its
row (``owner_row``) for ``SELF_STOP_S`` stops dispatching at once: by then another may have taken its runs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar
from uuid import uuid4
from weakref import WeakValueDictionary

import msgspec

from ..adapters.port import ModelAdapter, Progress
from ..eventstore.codec import resolve
from ..eventstore.history import load_intact, pins_from, pins_of
from ..eventstore.port import (
    HOST_VALID_MS,
    Acquired,
    EventStore,
    NewRun,
    NotFound,
    Owned,
    RunRow,
    SharedStore,
    Switch,
)
from ..eventstore.submit import decode_answer, encode_answer, submit_unhosted
from ..runtime.commands import (
    CommandAnswer,
    Executed,
    OutsideCommand,
    TakeOver,
    decode_command,
    encode_command,
    strict_command,
)
from ..runtime.errors import (
    BoundloopError,
    CallerError,
    ConflictError,
    HistoryRefused,
    LogDamaged,
    Overloaded,
    OwnedError,
    StoreError,
)
from ..runtime.events import AnyEvent, RunStarted
from ..runtime.fold import begin
from ..runtime.orders import wake_at_ms
from ..runtime.policy import Policy
from ..runtime.state import State
from ..runtime.toolbox import Toolbox
from .checks import Gate
from .driver import RunDriver
from .execution import Report
from .executors import GRACE_MS, Executors, ToolExecutors
from .fit import Fit, definition_changes, other_application
from .owner_row import RENEW_S, SELF_STOP_S, OwnerRow
from .provisional import Mark, Provisional, Shown
from .secret_source import Secrets
from .watching import Watchers

T = TypeVar("T")

EXECUTORS_S: Final = GRACE_MS / 1_000
"""How long executors may take to end what they do when their host closes."""

STORE_PAUSE_S: Final = 1.0
AWAY: Final = frozenset(("store_unreachable", "commit_unknown"))
"""Codes of a store that may answer soon."""

TIMER_MAX_S: Final = 60.0
READY_RUNS_MAX: Final = 1_000
"""How many ready runs are looked at in one go, besides those that were found to be another application's."""

TAKEN_UP_AT_ONCE: Final = 32

RUNS_MAX: Final = 50_000
"""Drivers in one host; beyond it ready runs wait in the store, and a new run is refused."""

LEFT_ALONE_MAX: Final = 50_000
"""Runs of which it is remembered that they are left alone, and errors that are kept for whoever asks; the oldest are
forgotten first. A forgotten one is looked at again, and left alone again."""

OVERLOADED_RETRY_MS: Final = 1_000

FORWARD_TRIES: Final = 8
"""How often a command follows a run that goes from host to host in a shared store."""


class Elsewhere(Protocol):
    """Hosts in other processes, as the owner's host sees them. ``held``: how many runs are with them or wait for a place."""

    @property
    def held(self) -> int: ...

    def dense_stay_here(self, tenant: str) -> bool:
        """Whether dense runs of this tenant are hosted by the owner itself."""
        ...

    def holds(self, run_id: str) -> bool:
        """Whether the run is with one of them, or about to be."""
        ...

    def takes(self, row: RunRow, started: RunStarted) -> bool:
        """Take a ready run over, now or soon; False if it is to be hosted here."""
        ...

    def nudge(self, run_id: str) -> None:
        """What the run waits for may have changed."""
        ...

    async def submit(self, run_id: str, command: OutsideCommand) -> CommandAnswer | None:
        """The answer of the host that has the run; None if none of them has it (any more)."""
        ...

    async def shown(self, run_id: str, mark: Mark, timeout_s: float) -> Shown | None:
        """What the host that has the run shows since ``mark``; None if none of them has it, or it is going away."""
        ...


class Host:
    """Everything of one process. Made and used on one event loop: ``open``, then ``start_run``/``submit``, ``close``.

    ``looks``: it takes up whatever is ready in the store; without, only what it is told to adopt. ``elsewhere``: other
    hosts that this one hands ready runs to. ``executors``: where tools run; this process's own unless given, and closed with it unless
    they stay. ``host_id``: a name of its own unless given, for a simulation. ``failed``: why it stopped; ``broken``: of a bug, which a
    next host would meet again."""

    def __init__(
        self,
        store: EventStore,
        *,
        toolbox: Toolbox,
        policy: Policy,
        adapter: ModelAdapter | None,
        permissions_of: Callable[[str, str], frozenset[str]],
        application: str = "",
        groups: Mapping[str, int] | None = None,
        dependencies: Mapping[str, Any] | None = None,
        secrets: Secrets | None = None,
        executors: ToolExecutors | None = None,
        executors_stay: bool = False,
        looks: bool = True,
        host_id: str = "",
    ) -> None:
        self.store = store
        self.host_id = host_id or f"h_{uuid4().hex[:16]}"
        self._pins_stored: set[bytes] = set()
        self.gate = Gate(toolbox, policy, permissions_of, self.switched_off, secrets)
        self.executors: ToolExecutors = executors or Executors(
            groups=groups, dependencies=dependencies, secrets=secrets
        )
        self._executors_stay = executors_stay
        self.elsewhere: Elsewhere | None = None
        self._looks = looks
        self.adapter = adapter
        self.fit = Fit(application, toolbox, adapter, secrets)
        self.watchers = Watchers()
        self.provisional = Provisional()
        self.parked_watchers: list[Callable[[str, State], None]] = []
        self.refused_watchers: list[Callable[[str, BaseException], None]] = []
        self.failed_watchers: list[Callable[[BaseException], None]] = []
        self.failed: StoreError | None = None
        self.broken = False
        self._losing: asyncio.Task[None] | None = None
        self._unheard: list[tuple[str, Report]] = []
        self._next: Host | None = None
        self._spares_until_s = 0.0
        self._spared: set[str] = set()
        self.failures: dict[str, BaseException] = {}
        self._failed_at: dict[str, int] = {}
        self._drivers: dict[str, RunDriver] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # One is there as long as somebody holds it or waits for it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._not_ours: dict[str, None] = {}
        self._doubtful: set[str] = set()
        self._beside: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._sleeps_until_ms = 0
        self._closing = False
        self._may_have_row = False
        self._row = OwnerRow(store, self.host_id)
        self._background: list[asyncio.Task[None]] = []

    async def open(self, *, dead_hosts: Sequence[str] = (), after: Host | None = None) -> None:
        """Register and begin to take up ready runs. ``dead_hosts`` are proven dead by the caller. ``after``: the host of this process
        that had to stop while the store was away, and has put down all it had. Others that waited for the store too are given a term
        to come back before their runs are taken for left by the dead."""
        for host_id in dead_hosts:
            await self.store.drop_host(host_id, died=True)
        if after is not None:
            await self.store.drop_host(after.host_id)
            self._spares_until_s = self._loop.time() + HOST_VALID_MS / 1_000
            self._loop.call_at(self._spares_until_s, self._spare_no_more)
        self._may_have_row = True
        await self._row.register()
        self._background = [
            self._loop.create_task(self._while_it_holds(work))
            for work in ((self._renew(), self._take_up_ready()) if self._looks else (self._renew(),))
        ]
        self._ready.set()
        if after is not None:
            after.hand_to(self)

    def _spares(self) -> bool:
        """Whether hosts whose rows have expired may be coming back, as this one has."""
        return self._loop.time() < self._spares_until_s

    def _spare_no_more(self) -> None:
        self._spared.clear()
        self._ready.set()

    def hand_to(self, next_: Host) -> None:
        """What executors still report to this host is for the next one from now on."""
        self._next = next_
        for run_id, report in self._unheard:
            next_.late(run_id, report)
        self._unheard.clear()

    async def close(self) -> None:
        """Stop all drivers where they stand (their runs become ready for the next host) and give up the row. Takes
        ``SELF_STOP_S`` + ``EXECUTORS_S`` and the store's answer at most."""
        self._closing = True
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._losing is not None:
            await self._losing  # whoever waits is told why before anybody closes anything
        await self._stop_drivers()
        self.provisional.end()
        for task in self._beside:
            task.cancel()
        await asyncio.gather(*self._beside, return_exceptions=True)
        if not self._executors_stay:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EXECUTORS_S):
                    await self.executors.close()
        if self.failed is None and self._may_have_row:
            await self.store.drop_host(self.host_id)

    async def _stop_drivers(self) -> None:
        for driver in self._drivers.values():
            driver.stop()
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=SELF_STOP_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- what a driver asks of its host ------------------------------------------------------------------------

    def adapter_for(self, state: State) -> ModelAdapter:
        """The adapter of a run; runs whose model isn't here are never taken up."""
        if self.adapter is None:
            raise StoreError("no_model", "this host has no model", path=state.run_id)
        return self.adapter

    def publish(self, run_id: str, state: State, events: tuple[AnyEvent, ...], first_seq: int) -> None:
        """Committed events to whoever watches."""
        self.provisional.committed(run_id, events)
        self.watchers.committed(run_id, state, events, first_seq)

    def progress(self, run_id: str, item: Progress, after_seq: int) -> None:
        """Provisional notices to whoever watches or follows."""
        self.provisional.add(run_id, item, after_seq)
        self.watchers.progressed(run_id, item)

    def landed(self, run_id: str) -> None:
        """What was shown of the running attempt is about to be settled."""
        self.provisional.landed(run_id)

    async def shown(self, run_id: str, mark: Mark, timeout_s: float) -> Shown:
        """What the run showed since ``mark``, wherever it is; as ``Provisional.after``."""
        if run_id not in self._drivers and self.elsewhere is not None:
            shown = await self.elsewhere.shown(run_id, mark, timeout_s)
            if shown is not None:
                return shown
        return await self.provisional.after(run_id, mark, timeout_s)

    def switched_off(self, tenant: str, tool: str) -> str:
        """The scope of a kill switch that is on for this tenant and tool; empty if none is. Whichever process turned
        it, the store knows."""
        for switch in self.store.switches_known():
            if switch.scope == "global" or switch.target == (tenant if switch.scope == "tenant" else tool):
                return switch.scope
        return ""

    async def set_switch(self, switch: Switch, *, on: bool) -> None:
        """Turn a kill switch; what is dispatched after this returns has seen it."""
        await self.store.set_switch(switch, on=on)

    # --- runs --------------------------------------------------------------------------------------------------

    async def start_run(self, event: RunStarted, encoded_pins: bytes, root_id: str) -> None:
        """Host a new run; returns when ``run_started`` is durable. Raises ``StoreError``, ``Overloaded`` beyond
        ``RUNS_MAX``, or ``ConflictError`` for a run id that is taken."""
        self._refuse_if_failed()
        if len(self._drivers) >= RUNS_MAX:
            raise Overloaded(OVERLOADED_RETRY_MS)
        run_id = event.run_id
        digest = event.pins_sha256
        async with self._lock(run_id):
            if run_id in self._drivers:
                raise _run_exists(run_id)
            known = digest in self._pins_stored
            now = self.store.now_ms()
            state = begin(event, pins_from(digest, encoded_pins), now)
            driver = RunDriver(
                self,
                state,
                head=bytes(32),
                epoch=1,
                create=NewRun(
                    tenant=event.tenant,
                    agent=event.agent,
                    operation_id=event.operation_id,
                    parent_id=event.parent_run,
                    root_id=root_id,
                ),
                unsaved=(event,),
                blobs=() if known else ((digest, encoded_pins),),
            )
            self._host(run_id, driver)
            await self._until_durable(run_id, driver)
            self._pins_stored.add(digest)

    async def _until_durable(self, run_id: str, driver: RunDriver) -> None:
        if not await driver.durable:
            error = self.failures.pop(run_id, None)
            if error is not None:
                raise error
            self._refuse_if_failed()
            raise _run_exists(run_id)

    def _host(self, run_id: str, driver: RunDriver) -> None:
        self.failures.pop(run_id, None)
        self._not_ours.pop(run_id, None)
        self._drivers[run_id] = driver
        task = self._tasks[run_id] = self._loop.create_task(self._drive(run_id, driver))
        task.add_done_callback(driver.over)

    async def _drive(self, run_id: str, driver: RunDriver) -> None:
        error: BaseException | None = None
        try:
            await driver.drive()
        except asyncio.CancelledError:
            self._hand_on(run_id, driver)
            raise
        except BaseException as raised:
            error = raised
        finally:
            if self._drivers.get(run_id) is driver:
                del self._drivers[run_id]
                self._tasks.pop(run_id, None)
        try:
            if error is not None:
                self._remember(run_id, error)
                _keep(self._failed_at, run_id, driver.epoch)
                await self._leave(run_id, driver, error)
        finally:
            # Whatever the store says to that, nobody is left without an answer.
            self._hand_on(run_id, driver)
            if driver.nudged:
                self._ready.set()  # the signal came while the run had a host, and comes no more
            self._let_go(run_id, driver.state)

    def _hand_on(self, run_id: str, driver: RunDriver) -> None:
        """What came while the driver let go of its run is decided by whoever decides for the run from now on. A host
        that stops says so instead."""
        over = self._over()
        for command, answer in driver.left_over():
            if isinstance(command, Executed):
                if over is None or over is self.failed:
                    self.late(run_id, Report(command))
            elif answer is None or answer.done():
                continue
            elif over is not None:
                _fail(answer, over)
            else:
                self.beside(self._submit_again(run_id, command, answer))  # type: ignore[arg-type]  # only outside commands carry an answer

    def _let_go(self, run_id: str, state: State) -> None:
        self.provisional.over(run_id)
        due_ms = wake_at_ms(state)
        if due_ms is not None and due_ms < self._sleeps_until_ms:
            # Parked with a timer that comes before what the host sleeps for: it has to look at the index again.
            self._ready.set()
        for watch in self.parked_watchers:
            watch(run_id, state)

    def beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something of this host's beside its runs; ended when the host closes."""
        task = self._loop.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    def late(self, run_id: str, report: Report) -> None:
        """A timed-out attempt answered after all, when its run had stopped or ended: the run is taken up for it, because
        a success settles an unknown effect. If that fails the effect stays unknown, which is still true. A host that had to stop
        keeps it for the next one."""
        if self._next is not None:
            self._next.late(run_id, report)
        elif self.failed is not None:
            self._unheard.append((run_id, report))
        else:
            self.beside(self._take_late(run_id, report))

    async def _take_late(self, run_id: str, report: Report) -> None:
        try:
            while self._over() is None and not await self._drives_for(run_id, report):  # noqa: ASYNC110  see below
                await asyncio.sleep(STORE_PAUSE_S)  # a store doesn't say that it is back
        finally:
            if self.failed is not None and run_id not in self._drivers:
                self.late(run_id, report)  # for the next host
        driver = self._drivers.get(run_id)
        if driver is not None:
            driver.post(report.executed)

    async def _drives_for(self, run_id: str, report: Report) -> bool:
        """Have the run driven here, if it is free; False if the store can't be reached now. One that failed here is left alone until
        somebody touches it, and would fail of this again; unless another host has had it since."""
        try:
            if await self._failed_last(run_id):
                return True
            if report.artifact is not None:
                await self.store.put_blob(report.artifact)
            if run_id not in self._drivers:
                await self.take_up(run_id)
        except StoreError as error:
            return error.code not in AWAY
        return True

    async def _failed_last(self, run_id: str) -> bool:
        """Whether nobody has had the run since it failed here."""
        failed_at = self._failed_at.get(run_id)
        if failed_at is None:
            return False
        row = await self.store.run(run_id)
        return row is None or row.epoch <= failed_at

    async def _leave(self, run_id: str, driver: RunDriver, error: BaseException) -> None:
        """A driver that failed gives its run up for another host, now or later. A second try here would fail alike, so
        this host leaves it alone until somebody touches it."""
        try:
            if isinstance(error, HistoryRefused) or (isinstance(error, LogDamaged) and error.path == run_id):
                await self._quarantine(run_id, error)
            else:
                await self.store.release(run_id, self.host_id, driver.epoch, ready=True)
        except StoreError:
            self._doubt(run_id)
        self._ignore(run_id)  # after the release, which this host hears of as it hears of any touch

    def _ignore(self, run_id: str) -> None:
        """Until somebody touches the run. A host that doesn't look for runs has nothing to remember."""
        if self._looks:
            _keep(self._not_ours, run_id, None)

    def _remember(self, run_id: str, error: BaseException) -> None:
        _keep(self.failures, run_id, error)

    def _doubt(self, run_id: str) -> None:
        """The store may have given this host the run, or kept it for it, without an answer: to be looked at again."""
        self._doubtful.add(run_id)
        self._ready.set()

    async def _settle_doubts(self) -> None:
        """Runs whose row names this host but that nobody drives are given back."""
        for run_id in list(self._doubtful):
            async with self._lock(run_id):
                row = await self.store.run(run_id)
                if row is not None and row.owner == self.host_id and run_id not in self._drivers:
                    await self.store.release(run_id, self.host_id, row.epoch, ready=True)
                self._doubtful.discard(run_id)

    async def _quarantine(self, run_id: str, error: BoundloopError) -> None:
        await self.store.mark_damaged(run_id, str(error)[:500])

    async def _submit_again(
        self, run_id: str, command: OutsideCommand, answer: asyncio.Future[CommandAnswer]
    ) -> None:
        try:
            result = await self.submit(run_id, command)
        except BaseException as error:
            cancelled = isinstance(error, asyncio.CancelledError)
            if not answer.done():
                _fail(answer, _closed() if cancelled else error)
            if cancelled:
                raise
            return
        if not answer.done():
            answer.set_result(result)

    def _lock(self, run_id: str) -> asyncio.Lock:
        lock = self._locks.get(run_id)
        if lock is None:
            lock = self._locks[run_id] = asyncio.Lock()
        return lock

    def hosted(self, run_id: str) -> State | None:
        """The live state of a run that is hosted here; it may run ahead of the log inside a step."""
        driver = self._drivers.get(run_id)
        return None if driver is None else driver.state

    # --- outside commands --------------------------------------------------------------------------------------

    async def submit(self, run_id: str, command: OutsideCommand) -> CommandAnswer:
        """Decide an outside command where the run is: by its driver here, or for a run without a host by this process
        as the store's owner. One that isn't what its type says is refused. Raises ``RunNotFound``, ``OwnedError`` or
        ``StoreError``."""
        self._refuse_if_failed()
        try:
            command = strict_command(command)
            if self.gate.secrets is not None:
                # A marker may be longer than what it stands for.
                command = strict_command(self.gate.secrets.command(command))
        except CallerError as error:
            return _refusal(error)
        driver = self._drivers.get(run_id)
        if driver is None and self.elsewhere is not None:
            answered = await self.elsewhere.submit(run_id, command)
            if answered is not None:
                return answered
        if driver is None:
            decided = await self._decide_unhosted(run_id, command)
            if isinstance(decided, CommandAnswer):
                return decided
            driver = decided
        answer: asyncio.Future[CommandAnswer] = self._loop.create_future()
        driver.post(command, answer)
        task = self._tasks.get(run_id)
        if task is not None:
            waiting: list[asyncio.Future[Any]] = [answer, task]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        return await answer

    async def _decide_unhosted(self, run_id: str, command: OutsideCommand) -> CommandAnswer | RunDriver:
        """The answer, of this host for a moment or of the host elsewhere in a shared store that has the run; or the driver, if
        the run has one here by now."""
        for _ in range(FORWARD_TRIES):
            async with self._lock(run_id):
                driver = self._drivers.get(run_id)
                if driver is not None:
                    return driver
                try:
                    return await self._decide_here(run_id, command)
                except OwnedError:
                    if not isinstance(self.store, SharedStore):
                        raise
            # Not under the lock: the other host may give the run up meanwhile, and this one is to take it then.
            answer = await self.store.submit_elsewhere(run_id, command.command_id, encode_command(command))
            if answer is not None:
                return decode_answer(answer)
        raise ConflictError("run_contended", "hosts keep taking the run; submit again", path=run_id)

    async def _decide_here(self, run_id: str, command: OutsideCommand) -> CommandAnswer:
        try:
            answer = await submit_unhosted(
                self.store,
                run_id,
                command,
                host_id=self.host_id,
                publish=self.publish,
                spares=self._spares(),
            )
        except OwnedError:
            raise
        except StoreError:
            self._doubt(run_id)
            raise
        if answer.accepted:
            self.failures.pop(run_id, None)  # what it failed of before isn't its last word any more
        return answer

    async def on_submit(self, run_id: str, command_id: str, data: bytes) -> bytes:
        """The store's ``SubmitHandler``: encoded command in, encoded answer out. Raises ``StoreError`` where this host decides
        nothing any more: that is no refusal."""
        try:
            answer = await self.submit(run_id, decode_command(data))
        except msgspec.DecodeError as error:
            answer = _refusal(CallerError("command_invalid", str(error)[:300]))
        except BoundloopError as error:
            if self._over() is not None:
                raise
            answer = _refusal(error)
        return encode_answer(answer)

    def on_ready(self, run_ids: Iterable[str]) -> None:
        """The store's ``ReadyListener``: hosted runs look again, the others are taken up."""
        for run_id in run_ids:
            self.nudge(run_id)
            self._not_ours.pop(run_id, None)
            self._spared.discard(run_id)
            if not self._is_elsewhere(run_id):
                self._ready.set()

    def nudge(self, run_id: str) -> None:
        """What a run waits for may have changed: whoever drives it looks again."""
        driver = self._drivers.get(run_id)
        if driver is not None:
            driver.nudge()
        elif self.elsewhere is not None:
            self.elsewhere.nudge(run_id)

    def look(self) -> None:
        """Look for ready runs again: there is room, or a run is to be found a place."""
        self._ready.set()

    # --- ready runs and timers ---------------------------------------------------------------------------------

    async def _take_up_ready(self) -> None:
        while True:
            try:
                await self._look_for_ready()
            except StoreError:
                # What is ready stays ready; the store is asked again in a while.
                await asyncio.sleep(STORE_PAUSE_S)
                self._ready.set()

    async def _look_for_ready(self) -> None:
        """Wait for a signal or the next timer, then take up what is ready."""
        wake = await self.store.next_wake_ms()
        delay = TIMER_MAX_S
        if wake is not None:
            delay = min(TIMER_MAX_S, max(0.0, (wake - self.store.now_ms()) / 1_000))
        if delay > 0:
            self._sleeps_until_ms = self.store.now_ms() + int(delay * 1_000)
            try:
                async with asyncio.timeout(delay):
                    await self._ready.wait()
            except TimeoutError:
                pass
        self._ready.clear()
        await self._settle_doubts()
        run_ids = [
            run_id
            for run_id in await self.store.ready_runs(
                READY_RUNS_MAX + len(self._not_ours) + len(self._spared) + self._held()
            )
            if run_id not in self._not_ours and run_id not in self._spared and not self._is_elsewhere(run_id)
        ]
        room = max(0, RUNS_MAX - len(self._drivers))
        taken = 0
        # Those that go elsewhere cost three reads each, which needn't wait for one another.
        at_once = 1 if self.elsewhere is None else TAKEN_UP_AT_ONCE
        for at in range(0, min(room, len(run_ids)), at_once):
            some = run_ids[at : min(at + at_once, room)]
            # A short run may have ended by the time that this looks, so it is what was taken up that counts.
            took = await asyncio.gather(*(self.take_up(run_id) for run_id in some))
            taken += sum(
                was or run_id in self._spared or self._is_elsewhere(run_id)
                for was, run_id in zip(took, some, strict=True)
            )
        if taken and len(run_ids) >= READY_RUNS_MAX:
            self._ready.set()  # there may be more, and nobody will tell of those again
        if not run_ids:
            # Due runs that aren't ours would come up again at once: wait for a signal or the longest timer.
            await self._rest_if_only_foreign(wake)

    def _held(self) -> int:
        return 0 if self.elsewhere is None else self.elsewhere.held

    def _is_elsewhere(self, run_id: str) -> bool:
        return self.elsewhere is not None and self.elsewhere.holds(run_id)

    async def _rest_if_only_foreign(self, wake: int | None) -> None:
        if wake is None or wake > self.store.now_ms() or self._ready.is_set():
            return
        try:
            async with asyncio.timeout(RENEW_S):
                await self._ready.wait()
        except TimeoutError:
            return

    async def take_up(self, run_id: str) -> bool:
        """Acquire a ready run and drive it; False if it isn't ours, isn't free, or can't be read."""
        async with self._lock(run_id):
            if run_id in self._drivers or self._closing or self.failed is not None:
                return False
            row = await self.store.run(run_id)
            if row is None or row.damaged:
                self._ignore(run_id)
                return False
            if row.owner and self._spares():
                self._spared.add(run_id)
                return False
            try:
                started = await self._started(row)
                why_not = await self._misfit(started)
                if why_not:
                    self._refuse(run_id, other_application(run_id, why_not))
                    return False
                if self.elsewhere is not None and self.elsewhere.takes(row, started):
                    self.failures.pop(run_id, None)  # of an earlier try; this one is under way
                    return False
                driver = await self._acquired(run_id)
            except (HistoryRefused, LogDamaged) as error:
                self._refuse(run_id, error)
                await self._quarantine(run_id, error)
                return False
            except StoreError:
                self._doubt(run_id)
                raise
            except Exception as error:
                # A bug over this one run is no reason to stop the others.
                self._remember(run_id, error)
                self._refuse(run_id, error)
                return False
            if driver is None or self._over() is not None:
                return False  # in the second case it is free again when this host's row is dropped
            self._host(run_id, driver)
            return True

    async def _acquired(self, run_id: str) -> RunDriver | None:
        answer = await self.store.acquire(run_id, self.host_id)
        if isinstance(answer, (Owned, NotFound)):
            return None
        state, head = await load_intact(self.store, run_id)
        if head != answer.head:
            row = await self.store.run(run_id)
            if row is None or row.epoch != answer.epoch:
                return None  # this host was taken for dead, and another one went on between the two reads
            raise LogDamaged(run_id, state.seq, state.seq, "the last hash isn't the run's head")
        return self._resumed(state, answer)

    def leave_alone(self, run_id: str, error: BaseException) -> None:
        """A host elsewhere gave this run up: it is left alone until somebody touches it."""
        self._remember(run_id, error)
        self._refuse(run_id, error)

    def _refuse(self, run_id: str, error: BaseException) -> None:
        """This host leaves the run alone until somebody touches it; whoever waits for it here is told why."""
        self._ignore(run_id)
        for watch in self.refused_watchers:
            watch(run_id, error)

    def _resumed(self, state: State, answer: Acquired) -> RunDriver:
        driver = RunDriver(self, state, head=answer.head, epoch=answer.epoch)
        driver.post(
            TakeOver(
                epoch=answer.epoch,
                host=self.host_id,
                cause="host_died" if answer.died else "woken",
                definitions=definition_changes(state, self.gate.toolbox),
            )
        )
        return driver

    async def _misfit(self, started: RunStarted) -> str:
        """Why this application leaves the run alone. Checked from the log, so nothing is guessed."""
        return self.fit.misfit(started.application, await pins_of(self.store, started.pins_sha256))

    async def _started(self, row: RunRow) -> RunStarted:
        rows = await self.store.read(row.run_id, rows_max=1)
        records = await resolve(rows, self.store.get_blob)
        started = records[0].event if records else None
        if not isinstance(started, RunStarted):
            raise HistoryRefused("log_start", "the log does not begin with run_started", path=row.run_id)
        return started

    # --- the owner row -----------------------------------------------------------------------------------------

    async def _while_it_holds(self, work: Coroutine[Any, Any, None]) -> None:
        """Background work of this host. If it breaks, the host can't keep its promises any more and stops."""
        try:
            await work
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.broken = True
            await self._lose(f"unexpected {type(error).__name__}", error)

    async def _renew(self) -> None:
        """Keep the row; stop everything when that can't be done any more."""
        await self._lose(*await self._row.keep(self._settle_quietly))

    async def _settle_quietly(self) -> None:
        """A host that isn't told to look for ready runs must not keep one that it doesn't drive."""
        if not self._doubtful:
            return
        try:
            async with asyncio.timeout(RENEW_S):
                await self._settle_doubts()
        except (StoreError, TimeoutError):
            return  # it is tried again with the next renewal

    async def _lose(self, why: str, cause: BaseException | None) -> None:
        """The row is gone, or may be: nothing more is dispatched here, and everybody who waits is told."""
        if self.failed is not None:
            return
        self.failed = StoreError(
            "host_lost",
            f"this host has stopped, the next one goes on with its runs: {why}"[:500],
            path=self.host_id,
        )
        self.failed.__cause__ = cause
        # A task of its own: whoever closes this host meanwhile ends its background, and must not end this.
        self._losing = self._loop.create_task(self._put_all_down(self.failed))
        await asyncio.shield(self._losing)

    async def _put_all_down(self, failed: StoreError) -> None:
        for task in self._background:
            task.cancel()
        await self._stop_drivers()
        for watch in self.failed_watchers:
            watch(failed)

    def _over(self) -> StoreError | None:
        """Why nothing more is decided here; None while this host is at work."""
        if self.failed is not None:
            return self.failed
        return _closed() if self._closing else None

    def _refuse_if_failed(self) -> None:
        over = self._over()
        if over is not None:
            raise over


def _keep(kept: dict[str, T], run_id: str, what: T) -> None:
    kept.pop(run_id, None)
    kept[run_id] = what
    while len(kept) > LEFT_ALONE_MAX:
        del kept[next(iter(kept))]


def _fail(answer: asyncio.Future[CommandAnswer], error: BaseException) -> None:
    """Whoever asked may have gone away meanwhile: that is no complaint of the loop's."""
    answer.set_exception(error)
    answer.exception()


def _refusal(error: BoundloopError) -> CommandAnswer:
    return CommandAnswer(accepted=False, code=error.code, message=error.message, actor=error.actor)


def _closed() -> StoreError:
    return StoreError("closed", "this host is closed")


def _run_exists(run_id: str) -> ConflictError:
    return ConflictError("run_exists", "a run with this id exists", path=run_id)
