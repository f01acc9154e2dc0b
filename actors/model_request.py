"""Sending one model request and turning whatever comes of it into a ``ModelTurn``: an adapter never stops a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from ..adapters.port import ModelAdapter, ProgressSink
from ..runtime.model import ModelInput, ModelTurn
from .eager import Finished, first_step

_GRACE_S: Final = 1.0
_running: set[asyncio.Task[None]] = set()

Deliver = Callable[[ModelTurn], None]


def ask_model(
    adapter: ModelAdapter, request: ModelInput, timeout_ms: int, progress: ProgressSink, deliver: Deliver
) -> Callable[[], None] | None:
    """Send; ``deliver`` is called once on the loop, unless the returned cancel is called first. None: it was called
    already."""
    try:
        work = adapter.request(request, timeout_ms=timeout_ms, progress=progress)
    except BaseException as error:
        deliver(broken(error))
        return None
    if getattr(adapter, "inline", False):
        try:
            step = first_step(work)
        except BaseException as error:
            deliver(broken(error))
            return None
        if isinstance(step, Finished):
            # What answers inline is trusted as inline tools are; only the gravest mistake is looked for.
            deliver(step.value if type(step.value) is ModelTurn else broken(TypeError()))
            return None
        work = step
    task = asyncio.get_running_loop().create_task(_wait(work, timeout_ms, deliver))
    _running.add(task)
    task.add_done_callback(_running.discard)
    # Cancelled before its first step it never gets to the adapter's coroutine, which would be left open.
    task.add_done_callback(lambda _: work.close())

    def cancel() -> None:
        task.cancel()

    return cancel


async def _wait(work: Coroutine[Any, Any, ModelTurn], timeout_ms: int, deliver: Deliver) -> None:
    try:
        async with asyncio.timeout(timeout_ms / 1_000 + _GRACE_S):
            reply = await work
    except TimeoutError:
        reply = ModelTurn(
            finish="transport_broken",
            error_code="timeout",
            safe_message="the model did not answer in time",
            side_attempts=None,
        )
    except BaseException as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # nobody waits any more
        # An exit or an interrupt too: let through, it would end the loop of all runs.
        reply = broken(error)
    deliver(_sound(reply))


def _sound(reply: ModelTurn) -> ModelTurn:
    """The reply if it is what it says it is: adapters are other people's code, and the log holds no wrong types."""
    try:
        return msgspec.convert(msgspec.to_builtins(reply, builtin_types=(bytes,)), ModelTurn)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        return broken(error)


def broken(error: BaseException) -> ModelTurn:
    """An adapter that raises has a bug; the run sees a broken transport and its bounded retries."""
    return ModelTurn(
        finish="transport_broken",
        error_code="adapter_error",
        safe_message=f"the model adapter failed ({type(error).__name__})",
        side_attempts=None,
    )
