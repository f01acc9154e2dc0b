"""How tools are run: on threads and on the loop, within their time, their group and their validity."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest
from tests.stepped_runtime import Site, results_in

from boundloop.actors.context import ToolContext
from boundloop.adapters.script import call, calls, say
from boundloop.adapters.scripted import Gate
from boundloop.runtime import events as e
from boundloop.runtime.errors import ToolError
from boundloop.runtime.limits import Limits
from boundloop.runtime.tool_spec import tool

STUCK_S = 30.0


def test_sync_reads_of_one_turn_run_side_by_side_on_threads(site: Site) -> None:
    together = threading.Barrier(4, timeout=STUCK_S)

    @tool(risk="read")
    def look(at: int) -> dict[str, Any]:
        """Look, and wait for the others."""
        together.wait()
        return {"at": at, "thread": threading.current_thread().name}

    host = site.open([calls(*(call("look", {"at": at}) for at in range(4))), say("done")], [look])
    assert host.run(limits=Limits(cost="1", parallel=4)).completed


def test_no_more_reads_run_at_once_than_the_run_may(site: Site) -> None:
    gate = Gate("far side")
    running: Counter[str] = Counter()
    most = 0

    @tool(risk="read")
    async def look(at: int) -> dict[str, Any]:
        """Look, and count who looks."""
        nonlocal most
        running["now"] += 1
        most = max(most, running["now"])
        await gate.passed()
        running["now"] -= 1
        return {"at": at}

    host = site.open([calls(*(call("look", {"at": at}) for at in range(10))), say("done")], [look])
    run_id = host.start(limits=Limits(cost="1", parallel=3))
    assert gate.wait_reached(STUCK_S)
    host.settle()
    assert running["now"] == 3
    gate.open()
    assert host.rest(run_id).completed
    assert most == 3


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_group_is_a_semaphore_over_all_runs_and_a_dispatch_without_room_is_refused_with_proof(
    site: Site, kind: str
) -> None:
    let_go = threading.Event()
    gate = Gate("far side")
    entered = threading.Semaphore(0)
    ran: Counter[str] = Counter()

    async def send(order: str) -> dict[str, Any]:
        """Send, one at a time."""
        ran[order] += 1
        entered.release()
        await gate.passed()
        return {"sent": order}

    def send_sync(order: str) -> dict[str, Any]:
        """Send, one at a time."""
        ran[order] += 1
        entered.release()
        let_go.wait(STUCK_S)
        return {"sent": order}

    declare = tool(risk="write", name="send", key=("order",), group="post", timeout_ms=1_000, max_attempts=1)
    host = site.open(
        [call("send", {"order": "1"}), say("done")],
        [declare(send if kind == "async" else send_sync)],
        groups={"post": 1},
    )
    first = host.start(operation_id="a")
    assert entered.acquire(timeout=STUCK_S)
    host.advance(500)
    second = host.start(operation_id="b")
    host.settle()
    assert ran == {"1": 1}
    host.advance(500)
    assert host.rest(first).reason == "outcome_unknown"
    host.advance(500)
    if kind == "thread":
        # The first one still holds the place: it can't be killed. The second never ran, and that is proof.
        assert host.rest(second).completed
        (executed,) = site.of(second, e.CallExecuted)
        assert (executed.outcome, executed.code) == ("failed", "expired")
        assert ran == {"1": 1}
    else:
        assert entered.acquire(timeout=STUCK_S)
    let_go.set()
    gate.open()


@pytest.mark.parametrize(("risk", "outcome"), [("read", "failed"), ("write", "unknown")])
def test_an_async_tool_that_exceeds_its_time_is_cancelled(site: Site, risk: str, outcome: str) -> None:
    cancelled: list[str] = []

    async def hang() -> dict[str, Any]:
        """Never answer."""
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.append("yes")
            raise
        return {}

    options: dict[str, Any] = {"risk": "read"} if risk == "read" else {"risk": "write", "key": "call"}
    host = site.open([call("hang"), say("done")], [tool(**options, timeout_ms=1_000, max_attempts=1)(hang)])
    run_id = host.start()
    host.advance(1_000)
    host.rest(run_id)
    assert cancelled == ["yes"]
    (executed,) = site.of(run_id, e.CallExecuted)
    assert (executed.outcome, executed.code) == (outcome, "timeout")


def test_an_async_tool_that_will_not_be_cancelled_is_lost_after_its_validity_and_margin(site: Site) -> None:
    gate = Gate("far side")
    over = threading.Event()

    @tool(risk="read", timeout_ms=1_000, max_attempts=1)
    async def stubborn() -> dict[str, Any]:
        """Go on whatever is asked."""
        while not over.is_set():
            try:
                await gate.passed()
            except asyncio.CancelledError:
                continue
        return {}

    host = site.open([call("stubborn"), say("done")], [stubborn])
    run_id = host.start()
    host.advance(7_000)
    assert host.rest(run_id).completed
    assert [executed.code for executed in site.of(run_id, e.CallExecuted)] == ["lost"]
    over.set()
    gate.open()
    host.settle()


@pytest.mark.parametrize("kind", ["async", "thread", "deaf thread"])
def test_cancelling_a_run_asks_its_tools_to_stop_and_ends_within_the_grace(site: Site, kind: str) -> None:
    entered, let_go, asked = threading.Event(), threading.Event(), threading.Event()

    async def work(ctx: ToolContext) -> dict[str, Any]:
        """Work until told to stop."""
        entered.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            asked.set()
        return {}

    def work_sync(ctx: ToolContext) -> dict[str, Any]:
        """Work until told to stop, if one listens."""
        entered.set()
        if kind == "thread":
            assert ctx.cancel.wait(STUCK_S)
        else:
            let_go.wait(STUCK_S)
        asked.set()
        return {}

    declare = tool(risk="write", name="work", key="call", timeout_ms=600_000)
    host = site.open([call("work")], [declare(work if kind == "async" else work_sync)])
    run_id = host.start()
    assert entered.wait(STUCK_S)
    host.rt.cancel(run_id)
    if kind == "deaf thread":
        host.advance(30_000)
    else:
        assert asked.wait(STUCK_S)
    ended = threading.Event()
    host.rt.watch(lambda run, state, events, seq: ended.set() if state.phase == "terminated" else None)
    if host.state(run_id).phase != "terminated":
        assert ended.wait(STUCK_S)
    result = host.rest(run_id)
    assert (result.outcome, result.reason) == ("cancelled", "by_user")
    assert bool(result.unknown_effects) == (kind != "thread")
    let_go.set()


def test_an_inline_tool_that_waits_goes_on_as_a_task(site: Site) -> None:
    gate = Gate("far side")

    @tool(risk="read", inline=True)
    async def look() -> dict[str, Any]:
        """Look, and wait a little."""
        await gate.passed()
        return {"seen": True}

    host = site.open([call("look"), say("done")], [look])
    run_id = host.start()
    assert gate.wait_reached(STUCK_S)
    assert host.state(run_id).phase == "open_calls"
    gate.open()
    assert host.rest(run_id).completed


def test_the_context_says_who_acts_under_which_key_until_when_and_nothing_of_the_conversation(
    site: Site,
) -> None:
    seen: list[ToolContext] = []

    @tool(risk="write", key=("order",), far_side="keyed", timeout_ms=5_000)
    async def pay(order: str, ctx: ToolContext) -> dict[str, Any]:
        """Pay an order out."""
        seen.append(ctx)
        return {}

    host = site.open(
        [call("pay", {"order": "1"}), say("done")],
        [pay],
        dependencies={"bank": "the bank"},
        tenant="acme",
        principal="ann",
    )
    result = host.run("a secret conversation", operation_id="o1")
    (ctx,) = seen
    assert (ctx.tenant, ctx.principal, ctx.operation_id) == ("acme", "ann", "o1")
    assert (ctx.run_id, ctx.call_id, ctx.attempt) == (result.run_id, "c1.0", 1)
    assert ctx.dependencies["bank"] == "the bank"
    assert len(bytes.fromhex(ctx.key)) == 32
    assert ctx.remaining_s <= 5.0
    public = {name: getattr(ctx, name) for name in dir(ctx) if not name.startswith("_")}
    assert "secret conversation" not in repr(public)
    assert set(public) == {
        "as_of",
        "attempt",
        "call_id",
        "cancel",
        "dependencies",
        "key",
        "operation_id",
        "principal",
        "remaining_s",
        "resource_version",
        "run_id",
        "same_version",
        "spent",
        "spent_micros",
        "tenant",
    }


@pytest.mark.parametrize(
    ("error", "outcomes"),
    [
        (ToolError("gone", safe_message="gone", no_effect=True), ["failed"]),
        (ToolError("busy", safe_message="busy", no_effect=True, retryable=True), ["failed", "failed"]),
        (ToolError("odd", safe_message="odd"), ["unknown"]),
        (ToolError("odd", safe_message="odd", retryable=True), ["unknown"]),
    ],
)
def test_what_a_tool_error_says_decides_what_becomes_of_an_effect(
    site: Site, error: ToolError, outcomes: list[str]
) -> None:
    @tool(risk="write", key=("order",), max_attempts=2)
    async def pay(order: str) -> dict[str, Any]:
        """Pay an order out."""
        raise error

    host = site.open([call("pay", {"order": "1"}), say("done")], [pay])
    run_id = host.start()
    host.advance(60_000)
    result = host.rest(run_id)
    assert [event.outcome for event in site.of(run_id, e.CallExecuted)] == outcomes
    assert result.completed == (outcomes[0] == "failed")


class Hostile(Exception):
    """Runs code when it is shown, compared or carried to another process."""

    def __str__(self) -> str:
        raise AssertionError("shown")

    __repr__ = __str__

    def __reduce__(self) -> Any:
        raise AssertionError("pickled")


@pytest.mark.parametrize("kind", ["async", "inline", "thread"])
def test_an_exception_that_runs_code_when_it_is_looked_at_is_never_looked_at(site: Site, kind: str) -> None:
    async def look() -> dict[str, Any]:
        """Fail in a nasty way."""
        raise Hostile

    def look_sync() -> dict[str, Any]:
        """Fail in a nasty way."""
        raise Hostile

    declare = tool(risk="read", name="look", inline=kind == "inline")
    host = site.open([call("look"), say("done")], [declare(look_sync if kind == "thread" else look)])
    result = host.run()
    assert result.completed
    assert [event.code for event in site.of(result.run_id, e.CallExecuted)] == ["tool_error"]


def test_an_exceptions_text_reaches_neither_model_nor_log(site: Site) -> None:
    @tool(risk="read")
    async def look() -> dict[str, Any]:
        """Fail with a secret."""
        raise RuntimeError("password: hunter2")

    host = site.open([call("look"), say("done")], [look])
    result = host.run()
    (bound,) = results_in(host.model.recorded[-1])
    assert b"hunter2" not in bound.content
    assert "hunter2" not in repr(site.events(result.run_id))


def test_a_far_side_query_that_fails_in_any_way_says_nothing_about_the_effect(site: Site) -> None:
    answers: list[Any] = [SystemExit(1), KeyboardInterrupt(), Hostile(), asyncio.CancelledError(), None]

    async def query(key: str) -> Any:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    @tool(risk="write", key=("order",), far_side="queryable", query=query, timeout_ms=1_000)
    async def pay(order: str) -> dict[str, Any]:
        """Pay, and lose the answer."""
        raise ConnectionResetError

    host = site.open([call("pay", {"order": "1"}), say("done")], [pay])
    run_id = host.start()
    host.advance(120_000)
    result = host.rest(run_id)
    assert (result.reason, answers) == ("outcome_unknown", [])
    assert {event.outcome for event in site.of(run_id, e.CallReconciled)} == {"unknown"}
