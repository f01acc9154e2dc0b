"""An attempt goes out once, in time, and never after the end was asked for."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from boundloop.actors import ToolContext
from boundloop.actors.context import ToolContext as Context
from boundloop.actors.executors import Dispatch, Executors
from boundloop.adapters import call, calls, say
from boundloop.adapters.scripted import Gate
from boundloop.runtime import events as e
from boundloop.runtime import tool
from boundloop.runtime.tool_spec import tool_spec

from .stepped_runtime import Site, has


def test_a_report_that_lands_during_an_append_is_decided_before_anything_is_dispatched(site: Site) -> None:
    paid = Gate("pay")
    checked = threading.Event()
    ran: list[int] = []

    @tool(risk="irreversible", key=("order_id",), approval="never")
    async def refund(order_id: str, ctx: ToolContext) -> dict[str, Any]:
        """Pay."""
        ran.append(ctx.attempt)
        await paid.passed()
        return {"paid": len(ran)}

    def slow(arguments: dict[str, Any]) -> bool:
        return checked.wait(30)

    @tool(risk="read", check=slow, check_inline=False)
    async def look(order_id: str) -> dict[str, Any]:
        """Look."""
        return {}

    order = {"order_id": "A1"}
    host = site.open([calls(call("refund", order), call("look", order)), say("done")], [refund, look])
    append = host.line.stall_at(has(e.CallValidated, call="c1.1"))
    run = host.start()
    host.settle()
    assert paid.wait_reached(30)
    checked.set()
    assert append.wait_reached(30)
    paid.open()
    host.settle()
    append.open()
    host.rest(run)

    assert ran == [1]
    assert [event.call for event in site.of(run, e.CallStarted)] == ["c1.0", "c1.1"]


def test_a_large_result_that_lands_during_an_append_keeps_its_whole_text(site: Site) -> None:
    first, second = Gate("first"), Gate("second")

    @tool(risk="read", result_bytes_max=512)
    async def small(n: int) -> dict[str, Any]:
        """Small."""
        await first.passed()
        return {"n": n}

    @tool(risk="read", result_bytes_max=512)
    async def large(n: int) -> str:
        """Large."""
        await second.passed()
        return "x" * 4_000

    host = site.open([calls(call("small", {"n": 1}), call("large", {"n": 1})), say("done")], [small, large])
    append = host.line.stall_at(has(e.CallExecuted, call="c1.0"))
    run = host.start()
    host.settle()
    first.open()
    assert append.wait_reached(30)
    second.open()
    host.settle()
    append.open()
    host.rest(run)

    (artifact,) = (event.artifact for event in site.of(run, e.CallExecuted) if event.artifact is not None)
    assert asyncio.run(site.store.get_blob(artifact)) == b'"' + b"x" * 4_000 + b'"'


def dispatch_of(function: Any, *, valid_ms: int, reports: list[Any], epoch: int = 1) -> Dispatch:
    spec = tool_spec(function)
    context = Context(
        run_id="r1",
        call_id="c1.0",
        attempt=1,
        operation_id="o1",
        tenant="t",
        principal="p",
        key="",
        valid_ms=valid_ms,
        dependencies={},
    )
    return Dispatch(
        spec=spec,
        context=context,
        arguments={},
        epoch=epoch,
        valid_ms=valid_ms,
        view_bytes_max=1_000,
        deliver=lambda report: reports.append(report.executed),
    )


def tools_of_each_lane(ran: list[str]) -> list[Any]:
    @tool(risk="write", key="call", inline=True)
    async def inline() -> None:
        """Inline."""
        ran.append("inline")

    @tool(risk="write", key="call")
    async def as_task() -> None:
        """A task."""
        ran.append("task")

    @tool(risk="write", key="call")
    def on_thread() -> None:
        """A thread."""
        ran.append("thread")

    return [inline, as_task, on_thread]


def test_an_expired_dispatch_runs_in_no_lane() -> None:
    ran: list[str] = []
    reports: list[Any] = []

    async def go() -> None:
        executors = Executors()
        for function in tools_of_each_lane(ran):
            assert executors.start(dispatch_of(function, valid_ms=0, reports=reports)) is None

    asyncio.run(go())

    assert ran == []
    assert [(report.outcome, report.code, report.no_effect) for report in reports] == [
        ("failed", "expired", True)
    ] * 3


def test_a_dispatch_that_is_cancelled_before_its_first_step_reports_that_nothing_ran() -> None:
    ran: list[str] = []
    reports: list[Any] = []

    async def go() -> None:
        executors = Executors()
        for function in tools_of_each_lane(ran)[1:]:
            cancel = executors.start(dispatch_of(function, valid_ms=1_000, reports=reports))
            assert cancel is not None
            cancel()
        await executors.close()
        await asyncio.sleep(0)

    asyncio.run(go())

    assert ran == []
    assert [(report.outcome, report.code, report.no_effect) for report in reports] == [
        ("failed", "cancelled", True)
    ] * 2


def test_the_highest_epoch_of_a_run_that_is_still_used_is_not_forgotten() -> None:
    reports: list[Any] = []
    ran: list[str] = []
    inline = tools_of_each_lane(ran)[0]

    async def go() -> None:
        executors = Executors()
        executors.start(dispatch_of(inline, valid_ms=1_000, reports=reports, epoch=7))
        executors.start(dispatch_of(inline, valid_ms=1_000, reports=reports, epoch=7))
        executors.start(dispatch_of(inline, valid_ms=1_000, reports=reports, epoch=6))

    asyncio.run(go())

    assert ran == ["inline", "inline"]
    assert reports[-1].code == "old_epoch"
