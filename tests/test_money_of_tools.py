"""What tools say of their cost, through every executor of one process; and what their prices say."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.stepped_runtime import Site

from boundloop.actors.application_answers import price_answer
from boundloop.actors.context import ToolContext
from boundloop.adapters.script import call, calls, say
from boundloop.eventstore.forensics import why
from boundloop.eventstore.history import load_run
from boundloop.runtime import ToolError
from boundloop.runtime import events as e
from boundloop.runtime.errors import DeclarationError
from boundloop.runtime.limits import Limits
from boundloop.runtime.tool_spec import tool


@pytest.mark.parametrize("kind", ["thread", "task", "inline"])
@pytest.mark.parametrize("fails", [False, True])
def test_what_a_tool_says_that_it_spent_is_what_the_run_spent(site: Site, kind: str, fails: bool) -> None:
    def look(ctx: ToolContext) -> dict[str, int]:
        """Look, for money."""
        ctx.spent(30)
        ctx.spent(12)
        if fails:
            raise ToolError("gone")
        return {}

    async def look_async(ctx: ToolContext) -> dict[str, int]:
        """Look, for money."""
        return look(ctx)

    declared = tool(risk="read", name="look", cost_micros=100, inline=kind == "inline")(
        look if kind == "thread" else look_async
    )
    host = site.open([calls(call("look", {})), say("done")], [declared])
    result = host.run()
    assert result.spent["cost_micros"] == 42
    assert [it.spent_micros for it in site.of(result.run_id, e.CallExecuted)] == [42]


def test_a_tool_that_is_priced_by_its_arguments_is_held_to_the_cost_limit(site: Site) -> None:
    ran: list[int] = []

    def price(arguments: dict[str, Any]) -> int:
        pages: int = arguments["pages"]
        return pages * 1_000

    @tool(risk="read", price=price)
    async def ocr(pages: int) -> dict[str, int]:
        """Read pages, for money."""
        ran.append(pages)
        return {"pages": pages}

    turns = [calls(call("ocr", {"pages": 3})), calls(call("ocr", {"pages": 8})), say("done")]
    host = site.open(turns, [ocr])
    run_id = host.start(limits=Limits(cost="0.01"))
    result = host.rest(run_id)
    assert (result.reason, result.spent["cost_micros"]) == ("budget_cost", 3_000)
    assert ran == [3]


@pytest.mark.parametrize("answer", [None, -1, 1.5, True, "7", 2**53 + 1, asyncio.sleep, KeyError("no")])
def test_what_is_no_price_is_an_unknown_one(answer: Any) -> None:
    def price(arguments: dict[str, Any]) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer(0) if callable(answer) else answer

    assert price_answer(price, {}) is None


def at_250(arguments: dict[str, Any]) -> int:
    return 250


def test_a_person_is_shown_the_price(site: Site) -> None:
    @tool(risk="write", key=("n",), approval="always", price=at_250, check_inline=True)
    async def pay(n: int) -> dict[str, int]:
        """Pay."""
        return {}

    host = site.open([calls(call("pay", {"n": 1})), say("done")], [pay])
    run_id = host.start()
    [approval] = host.rest(run_id).approvals
    assert '"cost_micros":250' in approval.preview


def test_a_cost_that_is_none_is_the_tools_own_mistake() -> None:
    context = ToolContext(
        run_id="r",
        call_id="c",
        attempt=1,
        operation_id="o",
        tenant="t",
        principal="p",
        key="",
        valid_ms=1,
        dependencies={},
    )
    for wrong in (-1, 1.5, True, "7"):
        with pytest.raises(ValueError, match="micro-units"):
            context.spent(wrong)  # type: ignore[arg-type]  # what a careless tool says
    assert context.spent_micros is None


@pytest.mark.parametrize(
    "options",
    [
        {"price": at_250, "cost_micros": 1},
        {"rate": (0, 1_000)},
        {"rate": (1, 0)},
        {"rate": (1_001, 1_000)},
        {"rate": (1, 86_400_001)},
        {"rate": (True, 1_000)},
        {"rate": 5},
        {"rate": (1, 2, 3)},
    ],
)
def test_a_declaration_of_money_or_rate_that_can_not_hold_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError):

        @tool(risk="read", **options)
        async def look() -> dict[str, int]:
            """Look."""
            return {}


def test_a_rate_waits_without_a_host_and_goes_on_by_its_timer(site: Site) -> None:
    @tool(risk="read", rate=(1, 60_000))
    async def look(n: int) -> dict[str, int]:
        """Look, once a minute."""
        return {"n": n}

    host = site.open([calls(call("look", {"n": 1}), call("look", {"n": 2})), say("done")], [look])
    run_id = host.start()
    host.settle()
    row = host.on_loop(site.store.run(run_id))
    assert row is not None
    assert row.owner == ""
    assert (row.index.status, row.index.waiting_for) == ("validating", "timer")
    waits = host.rest(run_id)  # as for any other wait, its caller is told
    assert (waits.status, waits.waiting_for) == ("waiting", "timer")
    state, records = host.on_loop(load_run(site.store, run_id))
    (second,) = why(state, records).waits
    assert (second.on, second.call, second.what) == ("timer", "c1.1", "the rate of look")
    assert second.until_ms == row.index.wake_at_ms
    host.advance(59_000)
    assert len(site.of(run_id, e.CallStarted)) == 1
    host.advance(2_000)
    assert host.rest(run_id).completed
