"""Batches of short reads in one process: order, one that raises, one that hangs, and what is left when time is over."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from boundloop.actors.context import ToolContext, set_validity
from boundloop.actors.execution import Report, not_dispatched
from boundloop.actors.executors import Dispatch, keywords_of
from boundloop.actors.loop_lag import LoopLag
from boundloop.actors.quick_batch import Passer, QuickBatch
from boundloop.runtime.tool_spec import ToolSpec, tool, tool_spec

RELEASE = threading.Event()


@tool(risk="read", quick=True)
def rate(value: int) -> int:
    """Takes 10 ms for -3, hangs for -2 until it is released, raises for -1."""
    if value == -3:
        threading.Event().wait(0.01)
    if value == -2:
        RELEASE.wait(20)
    if value == -1:
        raise SystemExit(1)
    return value


SPEC: ToolSpec = tool_spec(rate)


def dispatch(value: int, *, valid_ms: int = 20_000, spec: ToolSpec = SPEC) -> Dispatch:
    made = Dispatch(
        spec=spec,
        context=ToolContext(
            run_id="r",
            call_id=f"c{value}",
            attempt=1,
            operation_id="o",
            tenant="t",
            principal="p",
            key="",
            valid_ms=valid_ms,
            dependencies={},
        ),
        arguments={"value": value} if spec is SPEC else {},
        epoch=1,
        valid_ms=valid_ms,
        view_bytes_max=1_000,
        deliver=lambda report: None,
    )
    made.started_s = time.monotonic()
    made.keywords = keywords_of(made)
    return made


@tool(risk="read", quick=True)
def time_left(ctx: ToolContext) -> bool:
    """Whether it has any."""
    return ctx.remaining_s > 0


def said(reports: list[Report]) -> list[str]:
    return [it.executed.code or (it.executed.result or b"").decode() for it in reports]


def on_a_thread(batch: QuickBatch) -> tuple[threading.Thread, list[tuple[list[Report], bool]]]:
    """``run`` where it may never come back, and what it came back with."""
    came: list[tuple[list[Report], bool]] = []
    thread = threading.Thread(target=lambda: came.append(batch.run()), daemon=True)
    thread.start()
    return thread, came


def test_reports_are_in_the_order_of_the_calls_with_the_refused_ones_in_their_places() -> None:
    refused = Report(not_dispatched("c0", 1, "expired"))
    reports, stuck = QuickBatch([dispatch(1), refused, dispatch(-1), dispatch(2)]).run()
    assert said(reports) == ["1", "expired", "tool_error", "2"]
    assert not stuck


def test_the_time_of_a_read_counts_from_its_own_beginning() -> None:
    """What it waits for behind the others of its batch is no fault of it."""
    reports, stuck = QuickBatch([dispatch(-3, valid_ms=50) for _ in range(30)]).run()
    assert said(reports) == ["-3"] * 30
    assert not stuck


def test_a_read_is_told_of_its_own_time_and_not_of_what_is_left_after_its_wait() -> None:
    waited = dispatch(1, spec=tool_spec(time_left))
    set_validity(waited.context, 0)
    reports, _ = QuickBatch([waited]).run()
    assert said(reports) == ["true"]


def test_a_call_that_hangs_is_passed_by_the_others() -> None:
    RELEASE.clear()
    batch = QuickBatch([dispatch(1), dispatch(-2, valid_ms=400), dispatch(2), dispatch(3)])
    passer = Passer()
    passer.begin(batch)
    thread, came = on_a_thread(batch)
    reports, stuck = batch.harvest()
    assert said(reports) == ["1", "timeout", "2", "3"]
    assert stuck
    assert not came
    RELEASE.set()
    thread.join(20)
    passer.end()
    assert said(came[0][0])[0] == "1"


def test_what_has_not_begun_when_all_time_is_over_never_begins() -> None:
    RELEASE.clear()
    batch = QuickBatch([dispatch(-2, valid_ms=50), dispatch(1, valid_ms=50)])
    thread, came = on_a_thread(batch)
    reports, stuck = batch.harvest()
    assert said(reports) == ["timeout", "expired"]
    assert reports[1].executed.no_effect
    assert stuck
    RELEASE.set()
    thread.join(20)
    assert came


def test_harvest_of_a_batch_that_ends_in_time_is_its_answer() -> None:
    RELEASE.clear()
    batch = QuickBatch([dispatch(-2), dispatch(1)])
    thread, came = on_a_thread(batch)
    harvested: list[tuple[list[Report], bool]] = []
    asking = threading.Thread(target=lambda: harvested.append(batch.harvest()), daemon=True)
    asking.start()
    RELEASE.set()
    asking.join(20)
    thread.join(20)
    assert said(harvested[0][0]) == said(came[0][0]) == ["-2", "1"]
    assert not harvested[0][1]


# --- a loop seen from a thread -------------------------------------------------------------------------------------------


def on_a_loop(play: Callable[[asyncio.AbstractEventLoop], None]) -> None:
    async def run() -> None:
        play(asyncio.get_running_loop())

    asyncio.run(run())


def test_a_loop_that_is_held_up_is_seen_and_one_that_stands_still_is_told() -> None:
    """R13: nothing on the loop itself could tell."""
    told = threading.Event()

    def play(loop: asyncio.AbstractEventLoop) -> None:
        lag = LoopLag(loop, stuck_s=0.5, stuck=told.set)
        assert told.wait(20), "the loop stood still and nobody was told"
        assert lag.ms >= 500

    on_a_loop(play)


def test_a_loop_that_turns_is_not_taken_for_stuck() -> None:
    told = threading.Event()

    async def run() -> None:
        lag = LoopLag(asyncio.get_running_loop(), stuck_s=20, stuck=told.set)
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await asyncio.wait([never], timeout=0.3)
        assert lag.ms < 10_000

    asyncio.run(run())
    assert not told.is_set()
