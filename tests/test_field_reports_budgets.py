"""What people report about limits and about "done": counters that are one counter, loops without end, success without
evidence."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.stepped_runtime import Site, results_in

from boundloop.adapters.script import (
    ScriptedTurn,
    attempts,
    call,
    calls,
    cut,
    empty,
    failed,
    filtered,
    lost,
    refused,
    say,
)
from boundloop.adapters.scripted import ScriptedModel
from boundloop.runtime import events as e
from boundloop.runtime.errors import ToolError
from boundloop.runtime.goal import Goal
from boundloop.runtime.limits import Limits
from boundloop.runtime.model import FINISH, FinishKind, ModelTurn, ProposedCall, Usage
from boundloop.runtime.prices import FREE
from boundloop.runtime.tool_spec import tool


class Counted:
    """Tools that count how often they ran."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()

    def tools(self) -> list[Any]:
        @tool(risk="read")
        async def look(at: int) -> dict[str, Any]:
            """Look at something that never changes."""
            self.ran["look"] += 1
            return {"seen": "the same"}

        @tool(risk="read", volatile=("at",))
        async def poll(job: str) -> dict[str, Any]:
            """Look whether a job is done."""
            self.ran["poll"] += 1
            return {"done": False, "at": self.ran["poll"]}

        @tool(risk="write", key=("order",), far_side="keyed")
        async def refund(order: str) -> dict[str, Any]:
            """Refund an order."""
            self.ran["refund"] += 1
            if order == "refused":
                raise ToolError("refused", safe_message="the bank refused", no_effect=True)
            return {"refunded": order}

        return [look, poll, refund]


def endless(*turns: ScriptedTurn) -> ScriptedModel:
    """These turns, over and over."""
    return ScriptedModel(lambda request: turns[(request.turn - 1) % len(turns)], price=FREE)


# F44
def test_turns_model_attempts_calls_and_call_attempts_are_counted_apart(site: Site) -> None:
    counted = Counted()
    tries: Counter[str] = Counter()

    @tool(risk="read")
    async def flaky() -> dict[str, Any]:
        """Fail once, then answer."""
        tries["flaky"] += 1
        if tries["flaky"] == 1:
            raise ToolError("busy", retryable=True, safe_message="busy")
        return {}

    host = site.open(
        [
            attempts(lost("…"), calls(call("look", {"at": 1}), call("look", {"at": 2}), call("flaky"))),
            call("look", {"at": 3}),
            say("done"),
        ],
        [*counted.tools(), flaky],
    )
    run_id = host.start()
    host.advance(60_000)
    result = host.rest(run_id)
    assert result.completed
    counts = {name: result.spent[name] for name in ("turns", "model_attempts", "tool_calls", "call_attempts")}
    assert counts == {"turns": 3, "model_attempts": 4, "tool_calls": 4, "call_attempts": 5}


# F44
@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"turns": 2}, "max_turns"),
        ({"model_attempts": 2}, "max_turns"),
        ({"tool_calls": 2}, "max_tool_calls"),
        ({"call_attempts": 2}, "max_tool_calls"),
    ],
)
def test_each_of_these_counters_stops_a_run_by_itself(
    site: Site, limits: dict[str, Any], reason: str
) -> None:
    counted = Counted()
    model = ScriptedModel(lambda request: call("look", {"at": request.turn}), price=FREE)
    host = site.open(model, counted.tools())
    result = host.run(limits=Limits(cost="1", **limits))
    assert (result.status, result.outcome, result.reason) == ("stopped", "incomplete", reason)
    assert counted.ran["look"] <= 2


# F44
def test_no_fan_out_passes_the_limit_of_calls(site: Site) -> None:
    counted = Counted()
    host = site.open([calls(*(call("look", {"at": number}) for number in range(16)))], counted.tools())
    result = host.run(limits=Limits(cost="1", tool_calls=9))
    assert (result.reason, counted.ran["look"]) == ("max_tool_calls", 9)
    assert len(site.of(result.run_id, e.ResultBound)) == 16


# F45
def test_the_same_call_with_the_same_result_over_and_over_stops_without_progress(site: Site) -> None:
    counted = Counted()
    host = site.open(endless(call("look", {"at": 1})), counted.tools())
    result = host.run(limits=Limits(cost="1", equal_results=3, turns=50))
    assert (result.outcome, result.reason) == ("incomplete", "no_progress")
    assert counted.ran["look"] == 2
    assert site.of(result.run_id, e.ResultBound)[-1].code == "no_progress"


# F45
def test_results_that_differ_only_in_declared_volatile_fields_are_the_same_result(site: Site) -> None:
    counted = Counted()
    host = site.open(endless(call("poll", {"job": "7"})), counted.tools())
    result = host.run(limits=Limits(cost="1", equal_results=3, turns=50))
    assert (result.reason, counted.ran["poll"]) == ("no_progress", 2)


# F45
def test_a_cycle_of_calls_stops_without_progress(site: Site) -> None:
    counted = Counted()
    host = site.open(endless(call("look", {"at": 1}), call("look", {"at": 2})), counted.tools())
    result = host.run(limits=Limits(cost="1", equal_results=3, turns=50))
    assert (result.reason, counted.ran["look"]) == ("no_progress", 4)


# F45
def test_a_streak_of_unusable_calls_stops_without_progress(site: Site) -> None:
    counted = Counted()
    model = ScriptedModel(lambda request: call("look", {"at": f"wrong {request.turn}"}), price=FREE)
    result = site.open(model, counted.tools()).run(limits=Limits(cost="1", invalid_streak=5, turns=50))
    assert (result.reason, result.spent["turns"], counted.ran) == ("no_progress", 5, {})


# F47
@pytest.mark.parametrize(
    "before",
    [
        [],
        [call("refund", {"order": "refused"})],
        [call("refund", {"order": 1})],
        [call("look", {"at": 1})],
    ],
    ids=["nothing", "failed", "invalid", "another tool"],
)
def test_done_without_a_success_of_the_tool_that_the_goal_asks_for_is_incomplete(
    site: Site, before: list[ScriptedTurn]
) -> None:
    counted = Counted()
    host = site.open([*before, say("Done!"), say("Really, all done!")], counted.tools())
    result = host.run(goal=Goal.of("refund"), limits=Limits(cost="1"))
    assert not result.completed
    assert result.reason in ("evidence_missing", "tool_failed")
    assert result.unfinished[0] == "refund"
    assert result.text == ""


# F47
def test_done_with_the_evidence_on_record_is_completed(site: Site) -> None:
    counted = Counted()
    host = site.open([call("refund", {"order": "1"}), say("Done!")], counted.tools())
    result = host.run(goal=Goal.of("refund"))
    assert (result.completed, result.text) == (True, "Done!")


FINISHES: list[tuple[FinishKind, str, str]] = [
    ("final", "completed", "final"),
    ("truncated", "incomplete", "truncated"),
    ("refused", "refused", "model_refusal"),
    ("filtered", "refused", "content_filtered"),
    ("context_exceeded", "incomplete", "context_exhausted"),
    ("paused", "incomplete", "max_turns"),
    ("calls", "failed", "model_failed"),
    ("model_error", "failed", "model_failed"),
    ("provider_error", "failed", "model_failed"),
    ("transport_broken", "failed", "model_failed"),
    ("unknown_finish", "failed", "model_failed"),
]


# F49
@pytest.mark.parametrize(("finish", "outcome", "reason"), FINISHES)
def test_each_finish_of_a_model_ends_in_its_own_outcome(
    site: Site, finish: FinishKind, outcome: str, reason: str
) -> None:
    model = ScriptedModel(lambda request: ModelTurn(finish=finish, text="all done", usage=Usage(1, 1)))
    host = site.open(model)
    run_id = host.start(limits=Limits(cost=10**9, turns=3))
    host.advance(120_000)
    result = host.rest(run_id)
    assert (result.outcome, result.reason) == (outcome, reason)
    assert result.completed == (finish == "final")


# F49
def test_the_table_of_finishes_is_whole() -> None:
    assert {finish for finish, _, _ in FINISHES} == set(FINISH)


# F49
@pytest.mark.parametrize("finish", sorted(set(FINISH) - {"calls"}))
def test_calls_that_come_with_any_other_finish_are_never_run(site: Site, finish: FinishKind) -> None:
    counted = Counted()
    proposed = ProposedCall("refund", b'{"order":"1"}', "x")
    model = ScriptedModel(
        lambda request: ModelTurn(finish=finish, text="done", calls=(proposed,), usage=Usage(1, 1)),
        price=FREE,
    )
    host = site.open(model, counted.tools())
    run_id = host.start(limits=Limits(cost="1", turns=3))
    host.advance(120_000)
    result = host.rest(run_id)
    assert not result.completed
    assert counted.ran == {}


# F49
@pytest.mark.parametrize(
    "turn", [cut("half of it"), filtered("…"), refused("no"), empty(), lost("half"), failed(retryable=False)]
)
def test_a_stopped_turn_leaves_no_text_as_the_answer(site: Site, turn: ScriptedTurn) -> None:
    host = site.open([turn])
    run_id = host.start()
    host.advance(120_000)
    result = host.rest(run_id)
    assert (result.completed, result.text) == (False, "")


# F47
def test_a_failed_tools_output_is_an_error_result_and_never_an_answer(site: Site) -> None:
    counted = Counted()
    host = site.open([call("refund", {"order": "refused"}), say("It failed.")], counted.tools())
    result = host.run()
    (bound,) = results_in(host.model.recorded[-1])
    assert bound.is_error
    assert result.text == "It failed."
