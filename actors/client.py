"""What an application holds: ``Runtime``. Sync methods for scripts, tasks and notebooks; ``rt.aio`` for coroutines.

A Runtime in process (``ray=None`` outside a Ray cluster) has one event loop on a thread of its own, where the store, the
host and all async tools live. So it works the same in a script and inside a running loop. It owns the SQLite file for
as long as it lives, takes up whatever is ready in it, and serves other shells on the socket beside the file.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from uuid import uuid4

from ..adapters.port import ModelAdapter, Progress
from ..eventstore.history import load_run
from ..eventstore.location import open_store
from ..eventstore.port import EventStore, Switch
from ..runtime.binding import PRODUCER
from ..runtime.commands import (
    Approve,
    Cancel,
    Close,
    CommandAnswer,
    OutsideCommand,
    RaiseLimits,
    Reject,
    ResolveCall,
    Resume,
)
from ..runtime.errors import (
    CallerError,
    ConflictError,
    DeclarationError,
    HistoryRefused,
    MissingLimits,
    RunNotFound,
    StoreError,
)
from ..runtime.events import AnyEvent
from ..runtime.goal import Goal
from ..runtime.limits import Limits
from ..runtime.pins import Pins
from ..runtime.policy import Policy
from ..runtime.prices import PriceTable
from ..runtime.start import NewRunSpec, start_run
from ..runtime.state import State
from ..runtime.tool_spec import ToolSpec
from ..runtime.toolbox import Toolbox
from .host import Host
from .model_spec import adapter_from
from .result import Result, result_of

T = TypeVar("T")
CLOSE_TIMEOUT_S: Final = 30.0
Tools = Toolbox | Iterable[Callable[..., Any] | ToolSpec]


class CommandRefused(CallerError):
    """An outside command that was not accepted; nothing changed. ``code`` says why."""


class RunHandle:
    """A started run. ``run_id`` is all that another process needs to go on with it."""

    __slots__ = ("_runtime", "run_id")

    def __init__(self, runtime: Runtime, run_id: str) -> None:
        self._runtime = runtime
        self.run_id = run_id

    def __repr__(self) -> str:
        return f"RunHandle({self.run_id!r})"

    def result(self, timeout_s: float | None = None) -> Result:
        """See ``Runtime.result``."""
        return self._runtime.result(self.run_id, timeout_s)

    def wait(self, timeout_s: float | None = None) -> Result:
        """See ``Runtime.wait``."""
        return self._runtime.wait(self.run_id, timeout_s)

    def cancel(self) -> None:
        """See ``Runtime.cancel``."""
        self._runtime.cancel(self.run_id)


class AsyncRuntime:
    """The coroutine surface; every method may be awaited on any event loop. Created by ``Runtime`` (``rt.aio``)."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def start(self, input: str, **options: Any) -> RunHandle:
        """As ``Runtime.start``."""
        return await self._on_loop(self._runtime._start(input, **options))

    async def run(self, input: str, **options: Any) -> Result:
        """As ``Runtime.run_sync``."""
        return await self._on_loop(self._runtime._run(input, **options))

    async def result(self, run_id: str, timeout_s: float | None = None) -> Result:
        """As ``Runtime.result``."""
        return await self._on_loop(self._runtime._result(run_id, timeout_s, until="rest"))

    async def wait(self, run_id: str, timeout_s: float | None = None) -> Result:
        """As ``Runtime.wait``."""
        return await self._on_loop(self._runtime._result(run_id, timeout_s, until="stop"))

    async def state(self, run_id: str) -> State:
        """As ``Runtime.state``."""
        return await self._on_loop(self._runtime._load(run_id))

    async def submit(self, run_id: str, command: OutsideCommand) -> CommandAnswer:
        """Hand in any outside command; a refusal is an answer here, not an exception."""
        return await self._on_loop(self._runtime._host_of().submit(run_id, command))

    async def close(self) -> None:
        """As ``Runtime.close``."""
        await asyncio.to_thread(self._runtime.close)

    async def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._runtime._loop)
        except RuntimeError:
            work.close()
            raise _closed() from None
        return await asyncio.wrap_future(future)


class Runtime:
    """Runs bounded agents on one store.

    ``store``: a URL (``sqlite:///file``, ``memory://``) or an open ``EventStore``. ``model``: a ``ModelAdapter`` or a
    spec string. ``tools``: the application's whole toolbox; a run is offered the subset that it asks for and its
    principal is permitted. ``permissions``: of ``principal``, or a callable ``(tenant, principal) -> permissions`` that
    is asked again before every dispatch of an effect. ``groups``: concurrency limits by group name. ``dependencies``:
    what tools find in ``ctx.dependencies``. ``take_over``: end another owner of the file, after proof that it is the one
    named in the lock. ``clock``: store milliseconds, ``loop``: the event loop that this
    Runtime's thread runs; both for simulation and tests.

    Raises ``StoreUrlError``, ``OwnedError`` (another process owns the file), ``NewerSchema``, ``DamagedFile``,
    ``DeclarationError``. On a crash of the process nothing acknowledged is lost: the next Runtime on the file goes on
    with its runs.
    """

    def __init__(
        self,
        *,
        store: str | EventStore,
        model: ModelAdapter | str | None = None,
        tools: Tools = (),
        policy: Policy | None = None,
        prices: PriceTable | None = None,
        tenant: str = "default",
        principal: str = "local",
        permissions: frozenset[str] | Iterable[str] | Callable[[str, str], frozenset[str]] = frozenset(),
        groups: Mapping[str, int] | None = None,
        dependencies: Mapping[str, Any] | None = None,
        application: str = "",
        take_over: bool = False,
        clock: Callable[[], int] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        ray: None = None,
    ) -> None:
        if ray is not None:
            raise DeclarationError("ray", "this version runs in process only: ray=None", path="ray")
        self.toolbox = tools if isinstance(tools, Toolbox) else Toolbox(tools)
        self.policy = policy or Policy()
        self.prices = prices or PriceTable(revision="none")
        self.tenant, self.principal, self.application = tenant, principal, application
        self.adapter = adapter_from(model) if isinstance(model, str) else model
        self._permissions_of = permissions if callable(permissions) else _constant(frozenset(permissions))
        self._groups, self._dependencies = groups, dependencies
        self._waiters: dict[str, list[tuple[asyncio.Future[Result], str]]] = {}
        self._closed = False
        self._host: Host | None = None
        self._store: EventStore | None = None
        self._owns_store = isinstance(store, str)
        self._loop = asyncio.new_event_loop() if loop is None else loop
        self._thread = threading.Thread(target=self._loop.run_forever, name="boundloop", daemon=True)
        self._thread.start()
        self.aio = AsyncRuntime(self)
        try:
            self._call(self._open(store, take_over, clock))
        except BaseException:
            self._stop_loop()
            raise

    async def _open(self, store: str | EventStore, take_over: bool, clock: Callable[[], int] | None) -> None:
        opened = (
            await open_store(
                store, take_over=take_over, on_submit=self._on_submit, on_ready=self._on_ready, clock=clock
            )
            if isinstance(store, str)
            else store
        )
        self._store = opened
        if not isinstance(store, str):
            _listen(opened, self._on_submit, self._on_ready)
        host = Host(
            opened,
            toolbox=self.toolbox,
            policy=self.policy,
            adapter=self.adapter,
            permissions_of=self._permissions_of,
            groups=self._groups,
            dependencies=self._dependencies,
        )
        host.parked_watchers.append(self._parked)
        host.refused_watchers.append(self._refused)
        host.failed_watchers.append(self._fail_waiters)
        try:
            # One file, one owner: whoever held a host row in it before is gone, proved by the lock that we hold.
            dead = [row.host_id for row in await opened.hosts()] if self._owns_store else []
            await host.open(dead_hosts=dead)
        except BaseException:
            if self._owns_store:
                await opened.close()
            raise
        self._host = host

    # --- runs --------------------------------------------------------------------------------------------------

    def start(self, input: str, **options: Any) -> RunHandle:
        """Begin a run; returns when ``run_started`` is durable.

        Options: ``limits`` (required: a ``Limits``), ``goal``, ``tools`` (names: the subset this run is offered),
        ``operation_id`` (the business task: two runs with one operation id share their effects), ``run_id``, ``agent``,
        ``system`` (the system text), ``on_stop`` ("suspend" or "end"), ``principal``, ``tenant``, ``as_of``, ``trace``.

        Raises ``MissingLimits``, ``DeclarationError`` (unknown price under a cost limit, names or input out of bounds),
        ``UnknownTool``, ``ConflictError`` for a run id in use; nothing was written then. ``DiskFull``
        wrote nothing either; after any other ``StoreError`` the run may exist: look by its ``run_id``, if you gave one.
        """
        return self._call(self._start(input, **options))

    def run_sync(self, input: str, **options: Any) -> Result:
        """``start``, then ``result``: blocks until the run ends, stops or waits for someone."""
        return self._call(self._run(input, **options))

    def result(self, run_id: str, timeout_s: float | None = None) -> Result:
        """Block until the run rests: it ended, stopped, or waits for a person, another run or a far timer. Raises
        ``TimeoutError`` (the run goes on), ``RunNotFound``, or the error that made this host give the run up."""
        return self._call(self._result(run_id, timeout_s, until="rest"))

    def wait(self, run_id: str, timeout_s: float | None = None) -> Result:
        """Block until the run ends or stops; a wait for a person is waited through. Raises as ``result``."""
        return self._call(self._result(run_id, timeout_s, until="stop"))

    def state(self, run_id: str) -> State:
        """The folded state from the log, as committed now. Raises ``RunNotFound``."""
        return self._call(self._load(run_id))

    # --- commands ----------------------------------------------------------------------------------------------

    def submit(self, run_id: str, command: OutsideCommand) -> CommandAnswer:
        """Hand in any outside command, idempotent by its command id; a refusal is an answer, not an exception."""
        return self._call(self._host_of().submit(run_id, command))

    def cancel(self, run_id: str, *, by: str | None = None) -> int:
        """No new intent from the moment this returns; what is open is closed, then the run ends ``cancelled``. Returns
        the seq of the event. Raises ``CommandRefused`` (``run_ended``, ``already_cancelled``), ``RunNotFound``."""
        return self._command(run_id, Cancel(command_id=_command_id(), by=by or self.principal))

    def resume(self, run_id: str, *, by: str | None = None) -> int:
        """Lift a stop. Raises ``CommandRefused`` with what has to change first."""
        return self._command(run_id, Resume(command_id=_command_id(), by=by or self.principal))

    def close_run(self, run_id: str, *, by: str | None = None) -> int:
        """End a stopped run with the outcome that it stopped with."""
        return self._command(run_id, Close(command_id=_command_id(), by=by or self.principal))

    def raise_limits(self, run_id: str, *, by: str | None = None, **raised: int) -> int:
        """New, higher values by limit name (``turns=80``). Raises ``CommandRefused``."""
        return self._command(
            run_id, RaiseLimits(command_id=_command_id(), by=by or self.principal, raised=raised)
        )

    def approve(self, run_id: str, approval_id: str, *, by: str, reason: str = "") -> int:
        """A person's yes to one preview. Raises ``CommandRefused`` (used, expired, not found, same person)."""
        return self._command(
            run_id, Approve(command_id=_command_id(), by=by, approval_id=approval_id, reason=reason)
        )

    def reject(self, run_id: str, approval_id: str, *, by: str, reason: str = "", stop: bool = False) -> int:
        """A person's no; ``stop`` also ends the run. Raises as ``approve``."""
        return self._command(
            run_id,
            Reject(
                command_id=_command_id(),
                by=by,
                approval_id=approval_id,
                reason=reason,
                on_reject="stop" if stop else "continue",
            ),
        )

    def resolve_call(
        self, run_id: str, call: str, *, by: str, applied: bool, result: str = "", reason: str = ""
    ) -> int:
        """A person's word on an unknown effect; ``result`` is JSON when it was applied."""
        return self._command(
            run_id,
            ResolveCall(
                command_id=_command_id(),
                by=by,
                call=call,
                outcome="applied" if applied else "absent",
                result=result,
                reason=reason,
            ),
        )

    def switch(self, scope: str, target: str = "", *, on: bool, by: str, reason: str = "") -> None:
        """Turn a kill switch: ``global``, ``tenant`` or ``tool`` (its name in ``target``). Effects see it at once."""
        if scope not in ("global", "tenant", "tool") or (scope == "global") != (target == ""):
            raise DeclarationError("switch_scope", "global, or tenant/tool with a name", path="scope")
        host = self._host_of()
        made = Switch(scope=scope, target=target, by=by, reason=reason, at_ms=host.store.now_ms())  # type: ignore[arg-type]  # checked above
        self._call(host.set_switch(made, on=on))

    def watch(self, watcher: Callable[[str, State, tuple[AnyEvent, ...], int], None]) -> None:
        """Call ``watcher(run_id, state, events, first_seq)`` after every commit of this host, on its loop; it must be
        quick and must not change anything."""
        self._host_of().watchers.append(watcher)

    def watch_progress(self, watcher: Callable[[str, Progress], None]) -> None:
        """Call ``watcher(run_id, item)`` for provisional text of running attempts, on the host's loop."""
        self._host_of().progress_watchers.append(watcher)

    # --- life --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop hosting: runs stay where they are in the log and are ready for the next Runtime. Idempotent."""
        if threading.current_thread() is self._thread:
            raise _own_loop()
        if self._closed:
            return
        self._closed = True
        try:
            self._call(self._shut_down(), timeout_s=CLOSE_TIMEOUT_S)
        finally:
            self._stop_loop()

    async def _shut_down(self) -> None:
        try:
            if self._host is not None:
                await self._host.close()
            if self.adapter is not None:
                await self.adapter.close()
        finally:
            # Whatever failed above, the file is given back.
            if self._store is not None and self._owns_store:
                await self._store.close()
            self._fail_waiters(StoreError("closed", "the Runtime was closed"))

    def _fail_waiters(self, error: BaseException) -> None:
        for waiting in self._waiters.values():
            for future, _ in waiting:
                if not future.done():
                    future.set_exception(error)
        self._waiters.clear()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_TIMEOUT_S)
        if not self._thread.is_alive():
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    # --- on the loop -------------------------------------------------------------------------------------------

    def _call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        if threading.current_thread() is self._thread:
            work.close()
            raise _own_loop()
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise _closed() from None
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def _command(self, run_id: str, command: OutsideCommand) -> int:
        answer = self._call(self._host_of().submit(run_id, command))
        if not answer.accepted:
            raise CommandRefused(answer.code, answer.message, path=run_id)
        return answer.seq

    def _host_of(self) -> Host:
        if self._host is None or self._closed:
            raise _closed()
        return self._host

    async def _start(
        self,
        input: str,
        *,
        limits: Limits | None = None,
        goal: Goal | str | None = None,
        tools: Iterable[str] | None = None,
        operation_id: str | None = None,
        run_id: str | None = None,
        agent: str = "agent",
        system: str = "",
        on_stop: str = "suspend",
        principal: str | None = None,
        tenant: str | None = None,
        as_of: str = "",
        trace: str = "",
    ) -> RunHandle:
        host = self._host_of()
        if limits is None:
            raise MissingLimits("missing_limits", "give limits=Limits(cost=…)", path="limits")
        if self.adapter is None:
            raise DeclarationError("missing_model", "this Runtime has no model", path="model")
        made_id = run_id or f"r_{uuid4().hex[:20]}"
        who, whose = principal or self.principal, tenant or self.tenant
        pins = self._pins(limits, goal, tools, system, whose, who)
        spec = NewRunSpec(
            run_id=made_id,
            input=input,
            operation_id=operation_id or made_id,
            tenant=whose,
            principal=who,
            agent=agent,
            application=self.application,
            as_of=as_of,
            trace=trace,
            on_stop=on_stop,
        )
        event, _, encoded = start_run(spec, pins)
        if run_id is not None and await host.store.run(run_id) is not None:
            raise ConflictError("run_exists", "a run with this id exists", path=run_id)
        await host.start_run(event, encoded, root_id=made_id)
        return RunHandle(self, made_id)

    def _pins(
        self,
        limits: Limits,
        goal: Goal | str | None,
        tools: Iterable[str] | None,
        system: str,
        tenant: str,
        principal: str,
    ) -> Pins:
        adapter = self.adapter
        assert adapter is not None
        names = None if tools is None else frozenset(self.toolbox.subset(tools))
        permissions = self._permissions_of(tenant, principal)
        price = adapter.price if adapter.price is not None else self.prices.price(adapter.model)
        return Pins(
            producer=PRODUCER,
            model=adapter.model,
            api_family=adapter.family,
            adapter_revision=adapter.revision,
            template_revision="1",
            system=system,
            tools=self.toolbox.offered(permissions, names),
            permissions=tuple(sorted(permissions)),
            policy_revision=self.policy.revision,
            separate_approver=self.policy.separate_approver,
            limits=limits.values,
            goal=Goal.of(goal) if isinstance(goal, str) else goal,
            price=price,
            price_revision="adapter" if adapter.price is not None else self.prices.revision,
        )

    async def _run(self, input: str, **options: Any) -> Result:
        handle = await self._start(input, **options)
        return await self._result(handle.run_id, None, until="rest")

    async def _load(self, run_id: str) -> State:
        state, _ = await load_run(self._host_of().store, run_id)
        return state

    async def _result(self, run_id: str, timeout_s: float | None, *, until: str) -> Result:
        host = self._host_of()
        # Waits first and looks then: a run that is let go of in between is heard of.
        future: asyncio.Future[Result] = self._loop.create_future()
        self._waiters.setdefault(run_id, []).append((future, until))
        try:
            if host.hosted(run_id) is None:
                failure = host.failures.get(run_id)
                if failure is not None:
                    raise failure
                row = await host.store.run(run_id)
                if row is None:
                    raise RunNotFound(run_id)
                if row.damaged:
                    raise HistoryRefused("log_damaged", row.damaged, path=run_id)
                result = result_of(await self._load(run_id))
                if host.hosted(run_id) is None and not row.ready and _rests(result, until):
                    return result
            async with asyncio.timeout(timeout_s):
                return await future
        finally:
            self._stop_waiting(run_id, future)

    def _stop_waiting(self, run_id: str, future: asyncio.Future[Result]) -> None:
        left = [waiting for waiting in self._waiters.pop(run_id, ()) if waiting[0] is not future]
        if left:
            self._waiters[run_id] = left

    def _refused(self, run_id: str, error: BaseException) -> None:
        """A run can't be taken up: nobody waits for it any longer."""
        for future, _ in self._waiters.get(run_id, ()):
            if not future.done():
                future.set_exception(error)

    def _parked(self, run_id: str, state: State) -> None:
        """A driver let go of a run: whoever waits for that is answered."""
        waiting = self._waiters.pop(run_id, None)
        if not waiting:
            return
        host = self._host_of()
        failure = host.failures.get(run_id)
        result = result_of(state)
        left: list[tuple[asyncio.Future[Result], str]] = []
        for future, until in waiting:
            if future.done():
                continue
            if failure is not None:
                future.set_exception(failure)
            elif _rests(result, until):
                future.set_result(result)
            else:
                left.append((future, until))
        if left:
            self._waiters.setdefault(run_id, []).extend(left)

    async def _on_submit(self, run_id: str, command_id: str, data: bytes) -> bytes:
        return await self._host_of().on_submit(run_id, command_id, data)

    def _on_ready(self, run_ids: Iterable[str]) -> None:
        if self._host is not None:
            self._host.on_ready(run_ids)


def _rests(result: Result, until: str) -> bool:
    if result.status in ("ended", "stopped"):
        return True
    return until == "rest" and result.status == "waiting"


def _closed() -> StoreError:
    return StoreError("closed", "the Runtime is closed")


def _own_loop() -> CallerError:
    return CallerError("own_loop", "sync methods can't be called on the Runtime's own loop; use rt.aio")


def _constant(permissions: frozenset[str]) -> Callable[[str, str], frozenset[str]]:
    def permissions_of(tenant: str, principal: str) -> frozenset[str]:
        return permissions

    return permissions_of


def _command_id() -> str:
    return f"cmd_{uuid4().hex[:20]}"


def _listen(store: Any, on_submit: Any, on_ready: Any) -> None:
    """A store that was opened by the application: hear what it makes ready, as an owned one."""
    store.on_submit = on_submit
    store.on_ready = on_ready
