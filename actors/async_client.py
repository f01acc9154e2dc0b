"""``rt.aio``: the methods of ``Runtime`` as coroutines, for any event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine, Iterable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from ..eventstore.inbox import Inbox, Kind
from ..runtime.commands import CommandAnswer, OutsideCommand
from ..runtime.errors import StoreError
from ..runtime.state import State
from . import wishes
from .embedded import Embedded
from .loop_thread import LoopThread
from .mapping import PARALLEL_DEFAULT, Batch, Mapped, Row
from .result import Result
from .run_handle import AnyRun, RunHandle, id_of
from .run_options import StartOptions
from .stepping import end_of, next_of
from .streaming import Committed, FollowItem
from .waiting import Until

if TYPE_CHECKING:
    from .client import Runtime

T = TypeVar("T")


class AsyncRuntime:
    """The coroutine surface, created by ``Runtime`` (``rt.aio``): each method is the twin of the one of that name there
    and may be awaited on any event loop."""

    def __init__(self, runtime: Runtime, embedded: Embedded, thread: LoopThread) -> None:
        self._runtime = runtime
        self._embedded = embedded
        self._thread = thread

    async def start(self, input: str, **options: Unpack[StartOptions]) -> RunHandle:
        """As ``Runtime.start``."""
        return RunHandle(self._runtime, await self._on_loop(self._embedded.start(input, options)))

    async def run(self, input: str, **options: Unpack[StartOptions]) -> Result:
        """As ``Runtime.run_sync``."""
        return await self._on_loop(self._embedded.run(input, options))

    async def result(self, run_id: AnyRun, timeout_s: float | None = None) -> Result:
        """As ``Runtime.result``."""
        return await self._on_loop(self._embedded.result(id_of(run_id), timeout_s, "rest"))

    async def wait(self, run_id: AnyRun, timeout_s: float | None = None) -> Result:
        """As ``Runtime.wait``."""
        return await self._on_loop(self._embedded.result(id_of(run_id), timeout_s, "stop"))

    async def stream(
        self, run_id: AnyRun, *, after_seq: int = 0, until: Until = "stop"
    ) -> AsyncGenerator[Committed]:
        """As ``Runtime.stream``."""
        reading = self._embedded.stream(id_of(run_id), after_seq, until)
        try:
            while (item := await self._on_loop(next_of(reading))) is not None:
                yield item
        finally:
            with contextlib.suppress(StoreError):  # closed: nothing of it is left
                await self._on_loop(end_of(reading))

    async def follow(
        self, run_id: AnyRun, *, after_seq: int = 0, until: Until = "stop"
    ) -> AsyncGenerator[FollowItem]:
        """As ``Runtime.follow``."""
        reading = self._embedded.follow(id_of(run_id), after_seq, until)
        try:
            while (item := await self._on_loop(next_of(reading))) is not None:
                yield item
        finally:
            with contextlib.suppress(StoreError):  # closed: nothing of it is left
                await self._on_loop(end_of(reading))

    async def map(
        self,
        inputs: Iterable[str | Row],
        *,
        parallel: int = PARALLEL_DEFAULT,
        **options: Unpack[StartOptions],
    ) -> AsyncGenerator[Mapped]:
        """As ``Runtime.map``."""
        batch = Batch(self._embedded, parallel, options)
        try:
            for given in inputs:
                await self._on_loop(batch.add(given))
                while batch.full or batch.ready:
                    yield await self._on_loop(batch.take())
            while batch.left:
                yield await self._on_loop(batch.take())
        finally:
            with contextlib.suppress(StoreError):  # closed: nothing of it is left
                await self._on_loop(batch.close())

    async def state(self, run_id: AnyRun) -> State:
        """As ``Runtime.state``."""
        return await self._on_loop(self._embedded.load(id_of(run_id)))

    async def token_data(self, run_id: AnyRun, turn: int) -> bytes | None:
        """As ``Runtime.token_data``."""
        return await self._on_loop(self._embedded.token_data(id_of(run_id), turn))

    async def submit(self, run_id: AnyRun, command: OutsideCommand) -> CommandAnswer:
        """As ``Runtime.submit``."""
        return await self._on_loop(self._embedded.submit(id_of(run_id), command))

    async def cancel(self, run_id: AnyRun, *, by: str | None = None) -> int:
        """As ``Runtime.cancel``."""
        return await self._command(run_id, wishes.cancel(by or self._embedded.principal))

    async def resume(self, run_id: AnyRun, *, by: str | None = None) -> int:
        """As ``Runtime.resume``."""
        return await self._command(run_id, wishes.resume(by or self._embedded.principal))

    async def record_fact(
        self, run_id: AnyRun, name: str, value: str | float | bool | None, *, by: str | None = None
    ) -> int:
        """As ``Runtime.record_fact``."""
        return await self._command(run_id, wishes.record_fact(name, value, by or self._embedded.principal))

    async def close_run(self, run_id: AnyRun, *, by: str | None = None) -> int:
        """As ``Runtime.close_run``."""
        return await self._command(run_id, wishes.close(by or self._embedded.principal))

    async def send(self, run_id: AnyRun, text: str, *, by: str | None = None) -> int:
        """As ``Runtime.send``."""
        return await self._command(run_id, wishes.send(text, by or self._embedded.principal))

    async def answer(
        self,
        run_id: AnyRun,
        question_id: str,
        text: str = "",
        *,
        by: str,
        cannot: bool = False,
        stop: bool = False,
        reason: str = "",
    ) -> int:
        """As ``Runtime.answer``."""
        return await self._command(
            run_id, wishes.answer(question_id, text, by, reason, cannot=cannot, stop=stop)
        )

    async def raise_limits(
        self,
        run_id: AnyRun,
        *,
        by: str | None = None,
        cost: str | int | Decimal | None = None,
        deadline_s: int | None = None,
        **raised: int,
    ) -> int:
        """As ``Runtime.raise_limits``."""
        command = wishes.raise_limits(by or self._embedded.principal, cost, deadline_s, raised)
        return await self._command(run_id, command)

    async def approve(self, run_id: AnyRun, approval_id: str, *, by: str, reason: str = "") -> int:
        """As ``Runtime.approve``."""
        return await self._command(run_id, wishes.approve(approval_id, by, reason))

    async def reject(
        self, run_id: AnyRun, approval_id: str, *, by: str, reason: str = "", stop: bool = False
    ) -> int:
        """As ``Runtime.reject``."""
        return await self._command(run_id, wishes.reject(approval_id, by, reason, stop=stop))

    async def resolve_call(
        self, run_id: AnyRun, call: str, *, by: str, applied: bool, result: str = "", reason: str = ""
    ) -> int:
        """As ``Runtime.resolve_call``."""
        return await self._command(run_id, wishes.resolve_call(call, by, result, reason, applied=applied))

    async def inbox(
        self,
        *,
        root: AnyRun | None = None,
        kind: Kind | None = None,
        tenant: str | None = None,
        limit: int = 100,
        after: str = "",
    ) -> Inbox:
        """As ``Runtime.inbox``."""
        root_id = None if root is None else id_of(root)
        return await self._on_loop(self._embedded.inbox(root_id, kind, tenant, limit, after))

    async def switch(self, scope: str, target: str = "", *, on: bool, by: str, reason: str = "") -> None:
        """As ``Runtime.switch``."""
        await self._on_loop(self._embedded.switch(scope, target, by, reason, on=on))

    async def close(self) -> None:
        """As ``Runtime.close``."""
        await asyncio.to_thread(self._runtime.close)

    async def _command(self, run_id: AnyRun, command: OutsideCommand) -> int:
        return await self._on_loop(self._embedded.command(id_of(run_id), command))

    async def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return await self._thread.call_from(work)
