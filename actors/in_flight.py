"""What one run has out: orders that were started and whose observation hasn't landed yet.

It is the only thing of a run that isn't in its log, and all of it may be lost: the log says what was intended, and
whoever takes the run over closes those intents first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import msgspec

from ..adapters.port import AttemptReset, ModelAdapter, Progress
from ..runtime.canonical import decode_canonical
from ..runtime.commands import Command, ModelReplied
from ..runtime.context import model_input
from ..runtime.model import FINISH, ModelTurn
from ..runtime.observed import version_to_read
from ..runtime.orders import Execute, Order, RequestModel
from ..runtime.redacted_turn import redacted_turn
from ..runtime.results import room_for_result
from ..runtime.state import State
from ..runtime.token_data import kept_token_data
from ..runtime.tool_spec import ToolSpec
from .context import ToolContext
from .execution import Report
from .executors import QUICK_LATE_MS, Dispatch, ToolExecutors
from .model_request import ask_model
from .secret_source import Secrets

Land = Callable[[Order, Command], None]
"""An order's observation. Called on the loop, before or after the call that started the order has returned."""

Deliver = Callable[[Execute, Report], None]
Broken = Callable[[BaseException], None]


class InFlight:
    """The orders of one driver that are out, each with what cancels it (None: it can't be, or was). It keeps nothing of its
    driver, so that one that is over is gone at once, with the run's state, and not when garbage is collected."""

    __slots__ = ("_loop", "orders")

    def __init__(self) -> None:
        self.orders: dict[Order, Callable[[], None] | None] = {}
        self._loop = asyncio.get_running_loop()

    def __contains__(self, order: Order) -> bool:
        return order in self.orders

    def __bool__(self) -> bool:
        return bool(self.orders)

    def landed(self, order: Order) -> None:
        """Its observation arrived."""
        self.orders.pop(order, None)

    def keep_only(self, wanted: Iterable[Order]) -> bool:
        """Give up what the state asks for no more; whether that left nothing out. An execution isn't cancelled by that:
        it reports, if late."""
        kept = set(wanted)
        given_up = [order for order in self.orders if order not in kept]
        for order in given_up:
            cancel = self.orders.pop(order)
            if cancel is not None and not isinstance(order, Execute):
                cancel()
        return bool(given_up) and not self.orders

    def cancel_executions(self) -> None:
        """Ask what runs to stop. The orders stay in flight: their outcome is still to be reported."""
        for order, cancel in list(self.orders.items()):
            if isinstance(order, Execute) and cancel is not None:
                self.orders[order] = None
                cancel()

    def cancel_all(self) -> None:
        """Nobody waits for any of it any more."""
        for cancel in self.orders.values():
            if cancel is not None:
                cancel()
        self.orders.clear()

    def work(self, order: Order, work: Coroutine[Any, Any, None], broken: Broken) -> None:
        """Our own work for an order (checks, a query), which lands its observation itself. If it fails the run must stop:
        its order would stay in flight for ever."""
        task = self._loop.create_task(work)

        def cancel() -> None:
            task.cancel()

        def over(done: asyncio.Task[None]) -> None:
            if not done.cancelled() and (error := done.exception()) is not None:
                broken(error)

        self.orders[order] = cancel
        task.add_done_callback(over)

    def request_model(
        self,
        order: RequestModel,
        adapter: ModelAdapter,
        state: State,
        now_ms: int,
        land: Land,
        progress: Callable[[Progress], None],
        keep: Callable[[bytes, bytes], None],
        secrets: Secrets | None = None,
    ) -> None:
        """Send the open model request. ``keep``: a blob, by its hash, that is to be stored with the answer."""
        request = model_input(state)
        timeout_ms = max(1, min(state.limits.model_request_ms, state.deadline_at_ms - now_ms))

        def deliver(reply: ModelTurn) -> None:
            if reply.finish not in ("calls", "final", "paused"):
                progress(AttemptReset(order.turn, order.attempt))
            # What will not be an answer keeps none of it.
            data = reply.token_data if reply.finish in FINISH and not FINISH[reply.finish].retry else None
            tokens, blob = kept_token_data(data, withheld=secrets is not None)
            if tokens is not None and tokens.sha256 is not None and blob is not None:
                keep(tokens.sha256, blob)
            if reply.token_data is not None:
                reply = msgspec.structs.replace(reply, token_data=None)
            if secrets is not None:
                reply = redacted_turn(reply, secrets.redactor, state.tools)
            land(order, ModelReplied(turn=order.turn, attempt=order.attempt, reply=reply, tokens=tokens))

        self.orders[order] = None
        cancel = ask_model(adapter, request, timeout_ms, progress, deliver)
        if order in self.orders:
            self.orders[order] = cancel

    def execute(
        self,
        order: Execute,
        spec: ToolSpec,
        executors: ToolExecutors,
        state: State,
        now_ms: int,
        deliver: Deliver,
    ) -> None:
        """Dispatch an attempt whose intent is durable."""
        call = state.calls[order.call]
        arguments = decode_canonical(call.arguments or b"{}")
        valid_ms = _valid_ms(state, order.call, now_ms)
        dispatch = Dispatch(
            spec=spec,
            context=ToolContext(
                run_id=state.run_id,
                call_id=call.call,
                attempt=order.attempt,
                operation_id=state.operation_id,
                tenant=state.tenant,
                principal=state.principal,
                key="" if call.key is None else call.key.hex(),
                valid_ms=valid_ms,
                dependencies=executors.dependencies,
                as_of=state.as_of,
                same_version=version_to_read(state, call),
                resource_version="" if call.approval is None else call.approval.resource_version,
            ),
            arguments=arguments if isinstance(arguments, dict) else {},
            epoch=state.epoch,
            valid_ms=valid_ms,
            view_bytes_max=min(spec.definition.result_bytes_max, room_for_result(state)),
            deliver=lambda report: deliver(order, report),
        )
        self.orders[order] = None
        cancel = executors.start(dispatch)
        if order in self.orders:
            self.orders[order] = cancel


def _valid_ms(state: State, name: str, now_ms: int) -> int:
    """What an attempt has left: until the end that its intent names, or the whole time of a quick read that isn't too late."""
    call = state.calls[name]
    left_ms = call.valid_until_ms - now_ms
    definition = state.tools[call.tool]
    if definition.quick and left_ms > -QUICK_LATE_MS:
        left_ms = min(definition.timeout_ms, state.deadline_at_ms - now_ms)
    return max(0, left_ms)
