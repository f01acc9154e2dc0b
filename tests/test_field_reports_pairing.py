"""What people report about calls and results that don't pair up: sessions dead for good, results at the wrong call.

The site's own law check runs after each of these: whatever happened, each proposed call has exactly one bound result.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from tests.stepped_runtime import Site, Stepped, results_in

from boundloop.adapters.script import call, calls, say
from boundloop.adapters.scripted import Gate
from boundloop.runtime import events as e
from boundloop.runtime.limits import Limits
from boundloop.runtime.model import AssistantItem, ModelInput, ResultItem
from boundloop.runtime.tool_spec import tool


@tool(risk="read")
async def look(at: str) -> dict[str, Any]:
    """Look at something."""
    return {"at": at}


@tool(risk="irreversible", key=("order",), far_side="keyed")
async def refund(order: str) -> dict[str, Any]:
    """Refund an order; a person is asked."""
    return {"refunded": order}


def pairs_of(request: ModelInput) -> None:
    """Every call of the history is followed by its own result, in call order, before anything else."""
    waited_for: list[tuple[str, str, str]] = []
    for item in request.items:
        if isinstance(item, ResultItem):
            assert waited_for.pop(0) == (item.call_id, item.provider_call_id, item.name)
            continue
        assert not waited_for
        if isinstance(item, AssistantItem):
            waited_for = [(made.call_id, made.provider_call_id, made.name) for made in item.calls]
    assert not waited_for


def data_of(request: ModelInput) -> list[Any]:
    return [json.loads(item.content).get("data") for item in results_in(request)]


class Interruptions:
    """Ways in which a turn of two calls is interrupted; each ends with the run able to ask its model again."""

    @staticmethod
    def crash(site: Site, host: Stepped, gate: Gate, run_id: str, tools: list[Any]) -> Stepped:
        host.crash()
        gate.open()
        return site.after_crash(host, tools)

    @staticmethod
    def restart(site: Site, host: Stepped, gate: Gate, run_id: str, tools: list[Any]) -> Stepped:
        host.close()
        gate.open()
        return site.open(host.model, tools)

    @staticmethod
    def time_out(site: Site, host: Stepped, gate: Gate, run_id: str, tools: list[Any]) -> Stepped:
        host.advance(60_000)
        gate.open()
        host.advance(60_000)
        return host


# F11
@pytest.mark.parametrize("how", ["crash", "restart", "time_out"])
def test_after_an_interruption_each_call_has_one_result_before_the_next_request(site: Site, how: str) -> None:
    gate = Gate("far side")

    @tool(risk="read", timeout_ms=20_000)
    async def wait(at: str) -> dict[str, Any]:
        """Look at something, slowly."""
        await gate.passed()
        return {"at": at}

    tools = [look, wait]
    host = site.open([calls(call("look", {"at": "a"}), call("wait", {"at": "b"})), say("done")], tools)
    run_id = host.start()
    assert gate.wait_reached(10)
    host = getattr(Interruptions, how)(site, host, gate, run_id, tools)
    assert host.rest(run_id).completed
    pairs_of(host.model.recorded[-1])
    assert data_of(host.model.recorded[-1]) == [{"at": "a"}, {"at": "b"}]


# F13
def test_a_run_stopped_in_the_middle_of_a_tool_can_be_continued(site: Site) -> None:
    gate = Gate("far side")

    @tool(risk="read", timeout_ms=600_000, max_attempts=1)
    async def wait(at: str) -> dict[str, Any]:
        """Look at something, slowly."""
        await gate.passed()
        return {"at": at}

    host = site.open([calls(call("look", {"at": "a"}), call("wait", {"at": "b"})), say("done")], [look, wait])
    run_id = host.start(limits=Limits(cost="1", deadline_s=60))
    assert gate.wait_reached(10)
    host.advance(120_000)
    stopped = host.rest(run_id)
    assert (stopped.status, stopped.reason) == ("stopped", "deadline")
    host.rt.raise_limits(run_id, deadline_ms=900_000)
    host.rt.resume(run_id)
    assert host.rest(run_id).completed
    pairs_of(host.model.recorded[-1])


# F13
def test_cancelling_in_the_middle_of_a_tool_binds_every_call_and_ends(site: Site) -> None:
    gate = Gate("far side")

    @tool(risk="read", timeout_ms=600_000)
    async def wait(at: str) -> dict[str, Any]:
        """Look at something, slowly."""
        await gate.passed()
        return {"at": at}

    host = site.open([calls(call("look", {"at": "a"}), call("wait", {"at": "b"})), say("done")], [look, wait])
    run_id = host.start()
    assert gate.wait_reached(10)
    host.rt.cancel(run_id)
    result = host.rest(run_id)
    assert (result.outcome, result.reason) == ("cancelled", "by_user")
    assert [(bound.call, bound.status) for bound in site.of(run_id, e.ResultBound)] == [
        ("c1.0", "ok"),
        ("c1.1", "error"),
    ]
    assert host.model.requests == 1


# F15
def test_approvals_one_after_the_other_leave_calls_and_results_one_to_one(site: Site) -> None:
    host = site.open(
        [
            calls(call("look", {"at": "x"}), call("refund", {"order": "1"}), call("refund", {"order": "2"})),
            say("done"),
        ],
        [look, refund],
    )
    run_id = host.start()
    for _ in range(2):
        waiting = host.rest(run_id)
        host.rt.approve(run_id, waiting.approvals[0].approval_id, by="bob")
    assert host.rest(run_id).completed
    pairs_of(host.model.recorded[-1])
    assert data_of(host.model.recorded[-1]) == [{"at": "x"}, {"refunded": "1"}, {"refunded": "2"}]


# F19
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_results_go_to_their_calls_in_call_order_whatever_finishes_first(
    site: Site, order: tuple[int, ...]
) -> None:
    gates = [Gate(str(number)) for number in range(3)]

    @tool(risk="read")
    async def wait(number: int) -> dict[str, Any]:
        """Wait for one's turn."""
        await gates[number].passed()
        return {"number": number}

    host = site.open([calls(*(call("wait", {"number": number}) for number in range(3))), say("done")], [wait])
    run_id = host.start()
    for gate in gates:
        assert gate.wait_reached(10)
    for number in order:
        gates[number].open()
        host.settle()
    assert host.rest(run_id).completed
    assert [event.call for event in site.of(run_id, e.CallExecuted)] == [f"c1.{number}" for number in order]
    pairs_of(host.model.recorded[-1])
    assert data_of(host.model.recorded[-1]) == [{"number": 0}, {"number": 1}, {"number": 2}]


# F21
def test_two_calls_with_empty_ids_are_two_calls_with_two_results(site: Site) -> None:
    host = site.open(
        [calls(call("look", {"at": "a"}, id=""), call("look", {"at": "b"}, id="")), say("done")], [look]
    )
    result = host.run()
    assert result.completed
    assert [event.call for event in site.of(result.run_id, e.ResultBound)] == ["c1.0", "c1.1"]
    assert data_of(host.model.recorded[-1]) == [{"at": "a"}, {"at": "b"}]


# F23
def test_an_id_that_a_provider_repeats_is_told_apart_and_runs_nothing_twice(site: Site) -> None:
    done: Counter[str] = Counter()

    @tool(risk="write", key=("order",), far_side="keyed")
    async def ship(order: str) -> dict[str, Any]:
        """Ship an order."""
        done[order] += 1
        return {"shipped": order}

    host = site.open(
        [
            calls(
                call("ship", {"order": "1"}, id="same"),
                call("ship", {"order": "1"}, id="same"),
                call("ship", {"order": "2"}, id="same"),
            ),
            call("ship", {"order": "3"}, id="same"),
            say("done"),
        ],
        [ship],
    )
    result = host.run()
    assert result.completed
    assert done == {"1": 1, "2": 1, "3": 1}
    labels = [event.provider_call_id for event in site.of(result.run_id, e.CallProposed)]
    assert len(set(labels[:3])) == 3
    assert labels[0] == labels[3] == "same"
    pairs_of(host.model.recorded[-1])
