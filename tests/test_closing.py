"""Closing a Runtime leaves nobody waiting: each who waits gets a result or a typed error."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from tests.stepped_runtime import Site

from boundloop.actors.client import Runtime
from boundloop.actors.loop_thread import LoopThread
from boundloop.actors.owning import Owning
from boundloop.adapters.script import held, say
from boundloop.adapters.scripted import Gate, ScriptedModel
from boundloop.runtime.commands import Cancel
from boundloop.runtime.errors import StoreError
from boundloop.runtime.limits import Limits
from boundloop.runtime.prices import FREE

STUCK_S = 30.0


def beside(work: Callable[[], Any]) -> Future[Any]:
    """The call on a thread of its own."""
    pool = ThreadPoolExecutor(max_workers=1)
    try:
        return pool.submit(work)
    finally:
        pool.shutdown(wait=False)


def waits_for_the_model() -> tuple[Runtime, ScriptedModel]:
    model = ScriptedModel([held(say("done"), "slow")], price=FREE)
    return Runtime(store="memory://", model=model), model


@pytest.mark.parametrize("name", ["result", "wait"])
def test_who_waits_for_a_run_is_told_that_the_runtime_was_closed(name: str) -> None:
    rt, model = waits_for_the_model()
    handle = rt.start("go", limits=Limits(cost="1"))
    assert model.gate("slow").wait_reached(STUCK_S)
    waiting = [beside(getattr(handle, name)) for _ in range(3)]
    while waiters_of(rt, handle.run_id) < 3:
        rt.state(handle.run_id)  # goes round the loop once
    rt.close()
    for one in waiting:
        with pytest.raises(StoreError, match="closed"):
            one.result(STUCK_S)


def waiters_of(rt: Runtime, run_id: str) -> int:
    serving = rt._embedded.serving
    assert isinstance(serving, Owning)
    return serving.waiters.count(run_id)


def test_a_coroutine_that_waits_is_told_too() -> None:
    rt, model = waits_for_the_model()
    handle = rt.start("go", limits=Limits(cost="1"))
    assert model.gate("slow").wait_reached(STUCK_S)

    async def main() -> None:
        waiting = asyncio.create_task(rt.aio.result(handle.run_id))
        while waiters_of(rt, handle.run_id) < 1:
            await rt.aio.state(handle.run_id)
        await rt.aio.close()
        with pytest.raises(StoreError, match="closed"):
            await waiting

    asyncio.run(main())


def test_a_command_that_came_while_the_host_closes_is_answered(site: Site) -> None:
    """It is left over in the driver's inbox: its append hangs when the close begins."""
    host = site.open([held(say("done"), "slow")])
    run_id = host.start()
    host.settle()
    gate = host.line.stall_at(lambda events: True)
    first = asyncio.run_coroutine_threadsafe(submit(host.rt, run_id, "k1"), host.loop)
    host.settle()
    second = asyncio.run_coroutine_threadsafe(submit(host.rt, run_id, "k2"), host.loop)
    host.settle()
    closing = beside(host.close)
    gate.open()
    closing.result(STUCK_S)
    for answer in (first, second):
        error = answer.exception(STUCK_S)
        assert error is None or (isinstance(error, StoreError) and error.code == "closed")


async def submit(rt: Runtime, run_id: str, command_id: str) -> Any:
    return await rt._embedded.submit(run_id, Cancel(command_id=command_id, by="ann"))


def test_every_call_after_the_close_is_refused() -> None:
    rt, _ = waits_for_the_model()
    rt.close()
    calls: list[Callable[[], Any]] = [
        lambda: rt.start("go", limits=Limits(cost="1")),
        lambda: rt.result("r1"),
        lambda: rt.state("r1"),
        lambda: rt.cancel("r1"),
        lambda: rt.switch("global", on=True, by="ann"),
    ]
    for call in calls:
        with pytest.raises(StoreError, match="closed"):
            call()


def test_work_that_is_on_a_loop_when_it_stops_is_cancelled_and_its_caller_told() -> None:
    thread = LoopThread(asyncio.new_event_loop())
    begun = threading.Event()

    async def never() -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    waiting = beside(lambda: thread.call(never()))
    assert begun.wait(STUCK_S)
    thread.stop()
    with pytest.raises(StoreError, match="closed"):
        waiting.result(STUCK_S)


def test_work_that_comes_after_the_last_turn_of_a_loop_is_refused() -> None:
    thread = LoopThread(asyncio.new_event_loop())
    thread.stop()

    async def nothing() -> None:
        return None

    with pytest.raises(StoreError, match="closed"):
        thread.call(nothing())


def test_a_cancelled_wait_of_a_coroutine_stays_a_cancellation() -> None:
    rt, model = waits_for_the_model()
    with rt:
        handle = rt.start("go", limits=Limits(cost="1"))
        assert model.gate("slow").wait_reached(STUCK_S)

        async def main() -> None:
            waiting = asyncio.create_task(rt.aio.result(handle.run_id))
            while waiters_of(rt, handle.run_id) < 1:
                await rt.aio.state(handle.run_id)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

        asyncio.run(main())


def test_a_start_whose_host_closes_meanwhile_says_so(site: Site) -> None:
    host = site.open([say("done")])
    gate: Gate = host.line.stall_at(lambda events: True)
    starting = asyncio.run_coroutine_threadsafe(
        host.rt._embedded.start("go", {"limits": Limits(cost="1")}), host.loop
    )
    host.settle()
    closing = beside(host.close)
    gate.open()
    closing.result(STUCK_S)
    error = starting.exception(STUCK_S)
    assert error is None or (isinstance(error, StoreError) and error.code == "closed")
