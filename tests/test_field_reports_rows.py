"""What people report of many at once: answers that reach the wrong call, one bad row that ends a batch, a stuck tool that
holds up all, models without a price or without usage."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.stepped_runtime import STUCK_S, Site

from boundloop.actors.client import CommandRefused
from boundloop.adapters.script import call, calls, say
from boundloop.adapters.scripted import Gate, ScriptedModel
from boundloop.runtime import events as e
from boundloop.runtime.errors import DeclarationError
from boundloop.runtime.limits import WAIVED, Limits
from boundloop.runtime.model import ModelInput, ModelTurn, ProposedCall, Usage
from boundloop.runtime.prices import Price
from boundloop.runtime.tool_spec import tool


class Till:
    """Pays out, and counts what it paid and what it looked at before."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.looked = 0
        self.version = 1

    def version_of(self, arguments: dict[str, Any]) -> str:
        return str(self.version)

    def tools(self) -> list[Any]:
        @tool(risk="read")
        async def look(order: str) -> dict[str, Any]:
            """Look an order up."""
            self.looked += 1
            return {"order": order}

        @tool(
            risk="irreversible",
            key=("order",),
            far_side="keyed",
            version_of=self.version_of,
        )
        async def pay(order: str) -> dict[str, Any]:
            """Pay an order out."""
            self.paid.append(order)
            return {"paid": order}

        return [look, pay]


# F25
@pytest.mark.parametrize("refused", ["1", "2"])
def test_two_approvals_that_wait_at_once_and_are_answered_in_reverse_order_reach_their_own_calls(
    site: Site, refused: str
) -> None:
    till = Till()
    host = site.open(
        [calls(call("pay", {"order": "1"}), call("pay", {"order": "2"})), say("done")], till.tools()
    )
    run_id = host.start()
    waiting = {approval.call: approval.approval_id for approval in host.rest(run_id).approvals}
    assert set(waiting) == {"c1.0", "c1.1"}
    for name, order in (("c1.1", "2"), ("c1.0", "1")):
        if order == refused:
            host.rt.reject(run_id, waiting[name], by="bob", reason="no")
        else:
            host.rt.approve(run_id, waiting[name], by="bob")
        host.settle()
    assert host.rest(run_id).completed
    assert till.paid == [order for order in ("1", "2") if order != refused]
    bound = {event.call: event.status for event in site.of(run_id, e.ResultBound)}
    assert bound == {
        name: "error" if order == refused else "ok" for name, order in (("c1.0", "1"), ("c1.1", "2"))
    }


# F35
def test_what_ran_before_a_review_runs_once_however_often_it_is_reviewed(site: Site) -> None:
    till = Till()
    host = site.open(
        [calls(call("look", {"order": "1"}), call("pay", {"order": "1"})), say("done")], till.tools()
    )
    run_id = host.start()
    for round_ in range(3):
        (waiting,) = host.rest(run_id).approvals
        till.version += round_ < 2  # what is shown is over by the time that it is approved
        host.rt.approve(run_id, waiting.approval_id, by="bob")
        host.settle()
    assert host.rest(run_id).completed
    assert (till.looked, till.paid) == (1, ["1"])
    assert len(site.of(run_id, e.ApprovalRequested)) == 3


# F41
def test_a_model_without_a_price_is_refused_under_a_cost_limit_and_never_taken_for_free(site: Site) -> None:
    host = site.open(_Adapter(lambda request: ModelTurn(finish="final", text="done")), [])
    with pytest.raises(DeclarationError, match="price_unknown"):
        host.start(limits=Limits(cost="1"))
    assert host.run(limits=Limits(cost=WAIVED)).completed


# F41, F42
def test_usage_that_is_not_reported_keeps_its_reservation_spent_until_nothing_more_is_sent(
    site: Site,
) -> None:
    price = Price(input=1_000_000, output=1_000_000)
    silent = ScriptedModel(
        lambda request: call("look", {"order": str(request.turn)}, usage=None), price=price
    )
    host = site.open(silent, Till().tools())
    limits = Limits(cost="1", output_tokens_per_request=100_000, output_tokens=1_000_000)
    result = host.run(limits=limits)
    assert (result.outcome, result.reason) == ("incomplete", "budget_cost")
    requested = site.of(result.run_id, e.ModelRequested)
    assert 0 < sum(event.cost_bound_micros for event in requested) <= 1_000_000
    assert result.spent["cost_micros"] == sum(event.cost_bound_micros for event in requested)
    assert silent.requests == len(requested) < 10


HOSTILE = [b"{", b'{"order": 1}', b'{"order": "1", "order": "2"}', b"\xff", b"[" * 100_000, b'"look"']


# F52, F69
def test_malformed_calls_and_a_stuck_tool_end_their_own_rows_and_no_other(site: Site) -> None:
    stuck = Gate("never")

    @tool(risk="read", timeout_ms=1_000, max_attempts=1)
    async def hang() -> dict[str, Any]:
        """Never answer."""
        await stuck.passed()
        return {}

    def plays(request: ModelInput) -> ModelTurn:
        task = str(getattr(request.items[0], "text", ""))
        if request.turn > 1:
            return ModelTurn(finish="final", text="done", usage=Usage(1, 1))
        if task == "stuck":
            return ModelTurn(finish="calls", calls=(ProposedCall("hang", b"{}"),), usage=Usage(1, 1))
        arguments = HOSTILE[int(task)] if task.isdigit() else b'{"order": "1"}'
        return ModelTurn(finish="calls", calls=(ProposedCall("look", arguments),), usage=Usage(1, 1))

    till = Till()
    host = site.open(_Adapter(plays), [*till.tools(), hang])
    rows = [str(number) for number in range(len(HOSTILE))] + ["stuck", "good"]
    started = {row: host.start(row, limits=Limits(cost=WAIVED)) for row in rows}
    host.advance(20_000)
    for row, run_id in started.items():
        assert host.rest(run_id).completed, row
        (bound,) = site.of(run_id, e.ResultBound)
        assert bound.status == ("ok" if row == "good" else "error"), row
    assert till.looked == 1


class _Adapter:
    """A model that is a function."""

    family = "function"
    model = "function"
    revision = "1"
    inline = True
    price = None

    def __init__(self, plays: Callable[[ModelInput], ModelTurn]) -> None:
        self._plays = plays

    async def request(self, request: ModelInput, *, timeout_ms: int, progress: Any) -> ModelTurn:
        return self._plays(request)

    async def close(self) -> None:
        pass


# F65
def test_two_hundred_cancels_right_after_the_start_all_come_to_an_end(site: Site) -> None:
    till = Till()
    model = ScriptedModel(
        lambda request: say("done") if request.turn > 1 else call("look", {"order": "1"}), record_max=0
    )
    host = site.open(model, till.tools())

    async def start_and_cancel() -> list[str]:
        async def one(number: int) -> str:
            handle = await host.rt.aio.start(str(number), limits=Limits(cost=WAIVED))
            for _ in range(number % 7):
                await asyncio.sleep(0)
            with contextlib.suppress(CommandRefused):  # it is over by then
                await host.rt.aio.cancel(handle.run_id)
            return str(handle.run_id)

        return await asyncio.gather(*(one(number) for number in range(200)))

    ids = asyncio.run(asyncio.wait_for(start_and_cancel(), STUCK_S))
    outcomes = Counter(host.rest(run_id).outcome for run_id in ids)
    assert sum(outcomes.values()) == 200
    assert set(outcomes) <= {"cancelled", "completed"}
    for run_id in ids:
        proposed = {event.call for event in site.of(run_id, e.CallProposed)}
        assert Counter(event.call for event in site.of(run_id, e.ResultBound)) == Counter(proposed)
