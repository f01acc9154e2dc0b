"""In-process executors: async tools on the host's loop, sync tools on threads, trusted inline tools in the loop itself;
checks and queries likewise.

A thread can't be killed: after its time-out the report says so honestly (an effect is ``unknown``), the thread goes on
as a daemon, and what it still returns is handed in as a late report. Threads, and calls of a limited group, are bounded;
a dispatch that gets no place within its validity is refused with proof that nothing ran.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Protocol

import msgspec

from ..runtime.canonical import JSON
from ..runtime.events import RungVerdict
from ..runtime.policy import Policy
from ..runtime.redaction import Redactor
from ..runtime.tool_spec import ToolSpec
from . import execution
from .context import ToolContext, set_validity
from .daemon_thread import on_daemon_thread
from .eager import Finished, first_step
from .epochs import Epochs
from .execution import Report
from .guarding import GuardAsked, judged, unjudged
from .query import FarSideAnswer, Sent, ask_far_side
from .rungs import CHECK_TIMEOUT_S, Rungs, RungsAnswered
from .secret_source import SecretRefused, Secrets, references

THREADS_MAX: Final = 32
GRACE_MS: Final = 10_000
"""How long a cancelled sync tool may take to notice before its outcome is reported without it."""

QUICK_LATE_MS: Final = 1_000
"""How late after its validity a quick read may still be dispatched, and how long it may wait for a place of this process then. What
it may take counts from when its own code begins: a host with a thousand runs is later than 50 ms with its own work, and has no better
chance with the next attempt. Both together, and the first with the waits of a pool (``quick_lane``), are less than the margin after
which an attempt is given up."""

Deliver = Callable[[Report], None]


class Dispatch:
    """One attempt on its way: what to run, for whom, and for how long it is valid (remaining, by the monotonic clock).

    ``deliver`` is called on the loop, once with the report that counts and possibly again with a late success.
    ``started_s`` is the loop time from which ``valid_ms`` counts (a quick read's anew once it has a place); ``begun`` says
    that the tool's code may have run.
    ``secrets``: of the process that runs it; ``resolved``: what its references stand for, once that is known.
    """

    __slots__ = (
        "_deliver",
        "arguments",
        "begun",
        "call",
        "context",
        "epoch",
        "keywords",
        "resolved",
        "run_id",
        "secrets",
        "spec",
        "started_s",
        "valid_ms",
        "view_bytes_max",
    )

    def __init__(
        self,
        *,
        spec: ToolSpec,
        context: ToolContext,
        arguments: dict[str, JSON],
        epoch: int,
        valid_ms: int,
        view_bytes_max: int,
        deliver: Deliver,
    ) -> None:
        self.spec = spec
        self.context = context
        self.run_id = context.run_id
        self.call = context.call_id
        self.arguments = arguments
        self.keywords: dict[str, object] = {}
        self.secrets: Secrets | None = None
        self.resolved: Mapping[str, str] = {}
        self.epoch = epoch
        self.valid_ms = valid_ms
        self.view_bytes_max = view_bytes_max
        self._deliver = deliver
        self.started_s = 0.0
        self.begun = False

    @property
    def redactor(self) -> Redactor | None:
        """What a report goes through that is made now: it knows what other calls have resolved while this one was out."""
        return None if self.secrets is None else self.secrets.taking_out(self.resolved)

    @property
    def has_references(self) -> bool:
        """Whether there is something to resolve before its tool's function is called."""
        return self.secrets is not None and bool(references(self.spec, self.arguments))

    def deliver(self, report: Report) -> None:
        """Hand a report in, with what the attempt said that it cost."""
        self._deliver(self.with_cost(report))

    def validity_from(self, now_s: float) -> None:
        """Count its validity from now on: what it waited for is no part of it. Only for reads."""
        self.started_s = now_s
        set_validity(self.context, self.valid_ms)

    def with_cost(self, report: Report) -> Report:
        """The report with what the tool said by ``ctx.spent``, where its code ran in this process."""
        spent = self.context.spent_micros
        if spent is not None and report.executed.spent_micros is None:
            report.executed = msgspec.structs.replace(report.executed, spent_micros=spent)
        return report

    def refuse(self, code: str) -> None:
        """Report that the tool's code never ran."""
        self.deliver(Report(execution.not_dispatched(self.call, self.context.attempt, code)))


class ToolExecutors(Protocol):
    """Where a host's dispatches go: this process's ``Executors``, or pools of other processes."""

    @property
    def dependencies(self) -> Mapping[str, Any]:
        """What the ``ctx`` of a tool that runs in this process holds."""
        ...

    def start(self, dispatch: Dispatch) -> Callable[[], None] | None:
        """Run an attempt. Returns what cancels it, or None if it is over already (``deliver`` was called)."""
        ...

    async def checked(self, rungs: Rungs) -> RungsAnswered:
        """What the application says to a call, by code that may block. Whatever keeps it from an answer in time is an
        unknown. Raises nothing but on cancellation, which doesn't stop the code."""
        ...

    async def guarded(self, asked: GuardAsked, policy: Policy, pool: str, patience_s: float) -> RungVerdict:
        """What a guardrail says, likewise; in executors of that pool where there are pools, one of which is waited for
        for ``patience_s``."""
        ...

    async def queried(
        self, spec: ToolSpec | None, key: bytes | None, sent: Sent | None = None
    ) -> FarSideAnswer:
        """What the far side says of a key, by the tool's ``query``, likewise. ``sent``: what the call was sent with, where
        that holds references."""
        ...

    def lingers(self, run_id: str) -> bool:
        """Whether code of that run's tools is still running in this process, however its calls were reported."""
        ...

    async def close(self) -> None:
        """Cancel what runs and wait for it, at most the grace bound."""
        ...


class Executors:
    """All executors of one host. Created and used on one event loop; ``close`` cancels what is running."""

    def __init__(
        self,
        *,
        groups: Mapping[str, int] | None = None,
        dependencies: Mapping[str, Any] | None = None,
        secrets: Secrets | None = None,
    ) -> None:
        self.dependencies: Mapping[str, Any] = dependencies or {}
        self._secrets = secrets
        self._groups = {name: asyncio.Semaphore(limit) for name, limit in (groups or {}).items()}
        self._threads = asyncio.Semaphore(THREADS_MAX)
        self._epochs = Epochs()
        self._tasks: set[asyncio.Task[None]] = set()
        self._alive: dict[str, int] = {}
        self._loop = asyncio.get_running_loop()

    def lingers(self, run_id: str) -> bool:
        """Whether code of that run's tools is still running here, however its calls were reported."""
        return self._alive.get(run_id, 0) > 0

    def _begun(self, run_id: str) -> None:
        self._alive[run_id] = self._alive.get(run_id, 0) + 1

    def _ended(self, run_id: str) -> None:
        left = self._alive.get(run_id, 0) - 1
        if left > 0:
            self._alive[run_id] = left
        else:
            self._alive.pop(run_id, None)

    def start(self, dispatch: Dispatch) -> Callable[[], None] | None:
        """Run an attempt. Returns what cancels it, or None if it is over already (``deliver`` was called)."""
        dispatch.started_s = _now_s()
        if not self._epochs.admit(dispatch.run_id, dispatch.epoch):
            dispatch.refuse("old_epoch")
            return None
        if dispatch.valid_ms <= 0:
            # Whoever waits for this attempt may have given it up by now, and tried again.
            dispatch.refuse("expired")
            return None
        spec = dispatch.spec
        inline = spec.definition.inline and spec.is_async and spec.definition.group not in self._groups
        dispatch.secrets = self._secrets
        if not inline and dispatch.has_references:
            return self._track(dispatch, self._resolve_and_run(dispatch))
        refusal = bind(dispatch)
        if not refusal and inline and _left(dispatch, dispatch.started_s) <= 0:
            refusal = "expired"  # what gave the values took the time that was left
        if refusal:
            dispatch.refuse(refusal)
            return None
        if inline:
            rest = self._run_inline(dispatch)
            if rest is None:
                return None
            return self._track(dispatch, rest)
        return self._track(dispatch, self._run(dispatch))

    async def checked(self, rungs: Rungs) -> RungsAnswered:
        """See ``ToolExecutors``: on a thread of its own, which goes on after its time-out."""
        try:
            return await asyncio.wait_for(on_daemon_thread(rungs.run), CHECK_TIMEOUT_S)
        except TimeoutError:
            return rungs.unanswered("timeout")

    async def guarded(self, asked: GuardAsked, policy: Policy, pool: str, patience_s: float) -> RungVerdict:
        """See ``ToolExecutors``: on a thread of its own, which goes on after its time-out."""
        secrets = self._secrets
        try:
            return await asyncio.wait_for(
                on_daemon_thread(lambda: judged(policy, asked, secrets=secrets)), CHECK_TIMEOUT_S
            )
        except TimeoutError:
            return unjudged("timeout", policy)

    async def queried(
        self, spec: ToolSpec | None, key: bytes | None, sent: Sent | None = None
    ) -> FarSideAnswer:
        """See ``ToolExecutors``: a coroutine on this loop, a function on a thread of its own."""
        return await ask_far_side(spec, key, self._secrets, sent)

    async def close(self) -> None:
        """Cancel what runs and wait for the async part of it; threads are left to end by themselves."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=GRACE_MS / 1_000)

    def _track(self, dispatch: Dispatch, work: Coroutine[Any, Any, None]) -> Callable[[], None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)

        self._begun(dispatch.run_id)

        def over(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            self._ended(dispatch.run_id)
            if not dispatch.begun and done.cancelled():
                # Cancelled before its first step: nobody but us knows that nothing ran.
                work.close()
                dispatch.refuse("cancelled")

        def cancel() -> None:
            task.cancel()

        task.add_done_callback(over)
        return cancel

    async def _resolve_and_run(self, dispatch: Dispatch) -> None:
        """What gives the values may block: it is asked on a thread, within the call's validity."""
        try:
            async with asyncio.timeout(_left(dispatch, dispatch.started_s)):
                refusal = await on_daemon_thread(bind, dispatch)
        except TimeoutError:
            refusal = "expired"
        if refusal:
            dispatch.begun = True  # it is reported here
            dispatch.refuse(refusal)
        else:
            await self._run(dispatch)

    # --- inline ------------------------------------------------------------------------------------------------

    def _run_inline(self, dispatch: Dispatch) -> Coroutine[Any, Any, None] | None:
        """A trusted non-blocking tool: its first step runs here. None if that was all; else what goes on as a task."""
        started = dispatch.started_s
        dispatch.begun = True
        try:
            step = first_step(_call(dispatch))
        except BaseException as error:
            dispatch.deliver(self._failed(dispatch, error, started))
            return None
        if isinstance(step, Finished):
            dispatch.deliver(self._succeeded(dispatch, step.value, started))
            return None
        return self._watch(dispatch, step, started)

    # --- tasks and threads ---------------------------------------------------------------------------------------

    async def _run(self, dispatch: Dispatch) -> None:
        started = dispatch.started_s
        group = self._groups.get(dispatch.spec.definition.group or "")
        places = [place for place in (group, None if dispatch.spec.is_async else self._threads) if place]
        held: list[asyncio.Semaphore] = []
        quick = dispatch.spec.definition.quick
        until = started + (QUICK_LATE_MS if quick else dispatch.valid_ms) / 1_000
        try:
            for place in places:
                async with asyncio.timeout_at(until):
                    await place.acquire()
                held.append(place)
            if _now_s() >= until:
                raise TimeoutError
            if quick:
                started = _now_s()
                dispatch.validity_from(started)
        except (TimeoutError, asyncio.CancelledError) as error:
            dispatch.begun = True  # it is reported here
            for place in held:
                place.release()
            dispatch.refuse("expired" if isinstance(error, TimeoutError) else "cancelled")
            return
        dispatch.begun = True
        if dispatch.spec.is_async:
            try:
                await self._watch(dispatch, _call(dispatch), started)
            finally:
                for place in held:
                    place.release()
        else:
            await self._watch_thread(dispatch, started, held)

    async def _watch(self, dispatch: Dispatch, work: Coroutine[Any, Any, object], started: float) -> None:
        """Await an async tool within its validity and report whatever comes of it, exactly once."""
        attempt = dispatch.context.attempt
        try:
            async with asyncio.timeout(_left(dispatch, started)):
                value = await work
        except TimeoutError as error:
            ours = _left(dispatch, started) <= 0
            report = (
                Report(execution.timed_out(dispatch.spec, dispatch.call, attempt, _since(started)))
                if ours
                else self._failed(dispatch, error, started)
            )
        except asyncio.CancelledError:
            report = Report(execution.cancelled(dispatch.spec, dispatch.call, attempt, _since(started)))
        except BaseException as error:
            # Whatever a tool raises is its outcome. Let through, an exit or an interrupt would end the loop of all runs.
            if self._loop.is_closed():
                raise
            report = self._failed(dispatch, error, started)
        else:
            report = self._succeeded(dispatch, value, started)
        dispatch.deliver(report)

    async def _watch_thread(self, dispatch: Dispatch, started: float, held: list[asyncio.Semaphore]) -> None:
        done = self._loop.create_future()
        attempt = dispatch.context.attempt
        reported = False

        def finish(value: object, error: BaseException | None) -> None:
            self._ended(dispatch.run_id)
            for place in held:
                place.release()
            if reported:
                # Too late to be the attempt's report, but a success still settles an unknown effect.
                if error is None:
                    dispatch.deliver(self._succeeded(dispatch, value, started))
            elif not done.done():
                done.set_result((value, error))

        def body() -> None:
            value: object = None
            raised: BaseException | None = None
            try:
                value = dispatch.spec.handler(**dispatch.keywords)
            except BaseException as error:
                raised = error
            try:
                self._loop.call_soon_threadsafe(finish, value, raised)
            except RuntimeError:
                # The loop is closed: nobody is left to tell, and the log says unknown.
                return

        self._begun(dispatch.run_id)
        threading.Thread(target=body, name=f"tool-{dispatch.spec.name}", daemon=True).start()
        report = Report(execution.timed_out(dispatch.spec, dispatch.call, attempt, dispatch.valid_ms))
        try:
            async with asyncio.timeout(_left(dispatch, started)):
                await asyncio.shield(done)
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            report = await self._grace(dispatch, done, started)
        if done.done():
            # Also if the time was over in the same pass of the loop: what is known is reported.
            report = self._outcome(dispatch, done, started)
        reported = True
        dispatch.context.cancel.set()
        dispatch.deliver(report)

    async def _grace(
        self, dispatch: Dispatch, done: asyncio.Future[tuple[object, BaseException | None]], started: float
    ) -> Report:
        """A cancelled sync tool is asked and given the grace bound; then it is reported without its answer."""
        dispatch.context.cancel.set()
        grace_s = min(GRACE_MS / 1_000, max(_left(dispatch, started), 0.0))
        try:
            async with asyncio.timeout(grace_s):
                await asyncio.shield(done)
        except (TimeoutError, asyncio.CancelledError):
            pass
        return Report(
            execution.cancelled(dispatch.spec, dispatch.call, dispatch.context.attempt, _since(started))
        )

    def _outcome(
        self, dispatch: Dispatch, done: asyncio.Future[tuple[object, BaseException | None]], started: float
    ) -> Report:
        value, error = done.result()
        if error is not None:
            return self._failed(dispatch, error, started)
        return self._succeeded(dispatch, value, started)

    def _succeeded(self, dispatch: Dispatch, value: object, started: float) -> Report:
        return execution.succeeded(
            dispatch.spec,
            dispatch.call,
            dispatch.context.attempt,
            value,
            view_bytes_max=dispatch.view_bytes_max,
            duration_ms=_since(started),
            redactor=dispatch.redactor,
        )

    def _failed(self, dispatch: Dispatch, error: BaseException, started: float) -> Report:
        return execution.failure(
            dispatch.spec,
            dispatch.call,
            dispatch.context.attempt,
            error,
            duration_ms=_since(started),
            redactor=dispatch.redactor,
        )


def keywords_of(dispatch: Dispatch, arguments: dict[str, JSON] | None = None) -> dict[str, object]:
    """What the tool's function is called with; ``arguments``: its own with their references resolved. Raises if they are no
    values of the declared types."""
    keywords = dispatch.spec.bind(dispatch.arguments if arguments is None else arguments)
    if dispatch.spec.takes_ctx:
        keywords["ctx"] = dispatch.context
    return keywords


def bind(dispatch: Dispatch) -> str:
    """Fill in what the tool's function is called with, references resolved; gives the code of a refusal, empty if there is
    none. Nothing of the tool ran. Raises nothing, and may block where there is something to resolve."""
    try:
        arguments = dispatch.arguments
        secrets, context = dispatch.secrets, dispatch.context
        if secrets is not None and dispatch.has_references:
            spec = dispatch.spec
            values = secrets.resolved(spec, arguments, context.tenant, context.principal)
            dispatch.resolved = values
            names = references(spec, arguments)
            arguments = {**arguments, **{argument: values[name] for argument, name in names.items()}}
        dispatch.keywords = keywords_of(dispatch, arguments)
    except SecretRefused as error:
        return error.code
    except BaseException:
        # Valid by its schema, but no value of the declared type.
        return "arguments_unbound"
    return ""


async def _call(dispatch: Dispatch) -> object:
    return await dispatch.spec.handler(**dispatch.keywords)


def _now_s() -> float:
    """The loop's clock: monotonic, and the one that its time-outs go by."""
    return asyncio.get_running_loop().time()


def _left(dispatch: Dispatch, started: float) -> float:
    return dispatch.valid_ms / 1_000 - (_now_s() - started)


def _since(started: float) -> int:
    return int((_now_s() - started) * 1_000)
