"""Stages and goals in a live Runtime: what the model is really offered, and what a crash or a large result changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.stepped_runtime import Site, Stepped, has

from boundloop.actors.host import Host
from boundloop.actors.result import Result
from boundloop.adapters.port import Progress, TextDelta
from boundloop.adapters.script import attempts, call, calls, say
from boundloop.runtime import events as e
from boundloop.runtime.errors import DeclarationError, UnknownTool
from boundloop.runtime.goal import Citations, Evidence, Goal
from boundloop.runtime.guardrails import Guardrails
from boundloop.runtime.policy import Policy
from boundloop.runtime.stage_spec import Stage
from boundloop.runtime.tool_spec import tool


class Shop:
    def __init__(self) -> None:
        self.did: Counter[str] = Counter()

    def tools(self) -> list[Any]:
        @tool(risk="read")
        async def get_order(order_id: str) -> dict[str, Any]:
            """Look up one order."""
            self.did["get_order"] += 1
            return {"order_id": order_id, "lines": [{"sku": f"S{n}", "text": "x" * 90} for n in range(400)]}

        @tool(risk="write", key=("order_id",), far_side="natural")
        async def draft(order_id: str) -> dict[str, Any]:
            """Prepare a refund."""
            self.did["draft"] += 1
            return {"draft_id": f"D-{order_id}"}

        @tool(risk="write", key=("draft_id",), far_side="natural")
        async def submit(draft_id: str) -> dict[str, Any]:
            """Pay the draft out."""
            self.did["submit"] += 1
            return {"paid": draft_id}

        return [get_order, draft, submit]


STAGES = (
    Stage("enquire", ("get_order",), Evidence("get_order", result={"order_id": "A"})),
    Stage("draft", ("get_order", "draft"), "draft"),
    Stage("submit", ("submit",)),
)
SCRIPT = [
    call("get_order", {"order_id": "A"}),
    call("draft", {"order_id": "A"}),
    call("submit", {"draft_id": "D-A"}),
    say("paid"),
]


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


@pytest.mark.parametrize("provisional", [None, False, True])
@pytest.mark.parametrize(
    ("asked", "checked"),
    [
        ({"goal": "submit"}, True),
        ({"goal": Goal.of(citations="get_order.order_id")}, True),
        ({"stages": STAGES}, True),
        ({}, False),
    ],
)
def test_provisional_text_is_held_back_where_evidence_is_asked_unless_the_host_wants_it(
    site: Site,
    asked: dict[str, Any],
    checked: bool,
    provisional: bool | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[object] = []

    def hear(self: Host, run_id: str, item: Progress, after_seq: int) -> None:
        heard.append(item)

    monkeypatch.setattr(Host, "progress", hear)
    shows = Guardrails(provisional=bool(provisional), revision="shows")
    policy = Policy() if provisional is None else Policy(guardrails=shows)
    host = site.open([say("It is refunded"), say("It is, really")], Shop().tools(), policy=policy)
    assert host.run(**asked).completed is not checked
    assert any(isinstance(item, TextDelta) for item in heard) is (provisional is True or not checked)


def offered(host: Stepped) -> list[tuple[str, ...]]:
    """By request; but for what every run has once a result was cut."""
    named = ([tool.name for tool in request.tools] for request in host.model.recorded)
    return [tuple(name for name in names if name != "read_result") for names in named]


def test_each_request_offers_the_tools_of_its_stage(site: Site) -> None:
    """The evidence of the first stage is in a result too large for the log: it is judged on the whole of it."""
    shop = Shop()
    host = site.open(SCRIPT, shop.tools())
    result = host.run(goal="submit", stages=STAGES)
    assert (result.outcome, result.reason) == ("completed", "final")
    assert offered(host) == [("get_order",), ("get_order", "draft"), ("submit",), ("submit",)]
    executed = site.of(result.run_id, e.CallExecuted)[0]
    assert executed.artifact is not None
    assert executed.met == (1,)
    heads = [event.request_sha256 for event in site.of(result.run_id, e.ModelRequested)]
    assert len(set(heads)) == 4


def test_the_subset_of_a_run_narrows_its_stages(site: Site) -> None:
    host = site.open(SCRIPT, Shop().tools())
    result = host.run(stages=STAGES, tools=("get_order", "draft"), goal=None)
    assert result.completed
    assert offered(host)[2] == ()


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("stage", ["draft", "submit"])
def test_a_crash_at_the_append_that_enters_a_stage_changes_nothing(
    site: Site, stage: str, before: bool
) -> None:
    shop = Shop()
    first = site.open(SCRIPT, shop.tools())
    first.line.cut_at(has(e.StageEntered, stage=stage), before=before)
    run_id = first.start(goal="submit", stages=STAGES)
    first.settle()
    assert first.line.broken.is_set()
    first.crash()
    second = site.after_crash(first, shop.tools())
    second.settle()
    second.advance(60_000)  # what was on its way is sent again by its key
    result = second.rest(run_id)
    assert (result.outcome, result.reason) == ("completed", "final")
    assert [event.stage for event in site.of(run_id, e.StageEntered)] == ["draft", "submit"]
    assert shop.did["submit"] == 1
    for event in site.of(run_id, e.ResultBound):
        assert event.status == "ok"


def test_what_another_stage_offers_is_not_run(site: Site) -> None:
    shop = Shop()
    script = [
        calls(call("get_order", {"order_id": "A"}), call("draft", {"order_id": "A"})),
        call("submit", {"draft_id": "D-A"}),
        say("paid"),
        say("paid"),
    ]
    host = site.open(script, shop.tools())
    result = host.run(goal="submit", stages=STAGES)
    assert (result.outcome, result.reason) == ("incomplete", "evidence_missing")
    assert shop.did == {"get_order": 1}
    assert "submit" in result.unfinished


def test_stages_that_name_what_is_not_there_are_refused_before_anything_is_written(site: Site) -> None:
    host = site.open(SCRIPT, Shop().tools())
    with pytest.raises(UnknownTool):
        host.start(stages=(Stage("one", ("refund",)),))
    wrong: Any = "enquire"
    with pytest.raises(DeclarationError, match="stages_type"):
        host.start(stages=wrong)


def test_a_goal_beside_stages_is_judged_over_the_whole_run(site: Site) -> None:
    host = site.open(SCRIPT, Shop().tools())
    result = host.run(goal=Goal.of("draft", "submit"), stages=STAGES)
    assert result.completed


# --- values that must come from results --------------------------------------------------------------------------------


def sourced_tools(shop: Shop) -> list[Any]:
    @tool(risk="read", result_bytes_max=4_096)
    async def list_orders(customer: str) -> dict[str, Any]:
        """A long list, which the log has a view of."""
        shop.did["list_orders"] += 1
        return {"orders": [{"id": f"O{n}", "note": "n" * 90} for n in range(400)]}

    @tool(
        risk="write",
        key=("order_id",),
        far_side="natural",
        from_results={"order_id": ("list_orders.orders.id", "given")},
    )
    async def cancel_order(order_id: str) -> dict[str, Any]:
        """Cancel an order."""
        shop.did["cancel_order"] += 1
        return {"cancelled": order_id}

    return [list_orders, cancel_order]


def test_an_id_of_a_large_result_is_known_and_an_invented_one_is_not(site: Site) -> None:
    shop = Shop()
    script = [
        call("list_orders", {"customer": "C"}),
        call("cancel_order", {"order_id": "O400"}),
        call("cancel_order", {"order_id": "O399"}),
        say("cancelled"),
    ]
    host = site.open(script, sourced_tools(shop))
    result = host.run(goal="cancel_order")
    assert result.completed
    assert shop.did == {"list_orders": 1, "cancel_order": 1}
    rejected = site.of(result.run_id, e.CallRejected)
    assert [(one.call, one.rung, one.code) for one in rejected] == [
        ("c2.0", "provenance", "not_from_results")
    ]
    executed = site.of(result.run_id, e.CallExecuted)[0]
    assert executed.artifact is not None
    assert len(executed.values or b"") == 400 * 16


def test_after_a_crash_the_next_host_knows_the_same_values(site: Site) -> None:
    shop = Shop()
    script = [
        call("list_orders", {"customer": "C"}),
        attempts(call("cancel_order", {"order_id": "O7"}), call("cancel_order", {"order_id": "O7"})),
        say("cancelled"),
    ]
    first = site.open(script, sourced_tools(shop))
    first.line.cut_at(has(e.ModelRequested, turn=2), before=False)
    run_id = first.start(goal="cancel_order")
    first.settle()
    first.crash()
    second = site.after_crash(first, sourced_tools(shop))
    second.settle()
    second.advance(60_000)
    result = second.rest(run_id)
    assert (result.outcome, result.reason, result.detail) == ("completed", "final", "")
    assert shop.did == {"list_orders": 1, "cancel_order": 1}


def test_given_values_count_as_declared(site: Site) -> None:
    script = [call("cancel_order", {"order_id": "X1"}), say("cancelled")]
    host = site.open(script, sourced_tools(Shop()))
    assert host.run(goal="cancel_order", given={"order_id": "X1"}).completed
    wrong: Any = ["X1"]
    with pytest.raises(DeclarationError):
        host.start(given=wrong)


# --- answers -----------------------------------------------------------------------------------------------------------


def test_a_result_with_a_typed_answer_and_citations_travels_as_it_is(site: Site) -> None:
    """As between a process and the owner that it is attached to."""
    goal = Goal.of(
        output={"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
        from_results={"id": "list_orders.orders.id"},
        citations=Citations(("list_orders.orders.id",), field="id"),
    )
    script = [call("list_orders", {"customer": "C"}), say('{"id":"O999"}'), say('{"id":"O7"}')]
    host = site.open(script, sourced_tools(Shop()))
    result = host.run(goal=goal)
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(result), type=Result)
    assert read == result
    assert (read.completed, read.output) == (True, {"id": "O7"})
    assert [(one.id, one.call, one.tool) for one in read.citations] == [("O7", "c1.0", "list_orders")]
    assert [event.source for event in site.of(result.run_id, e.MessageReceived)] == ["runtime"]


def test_a_result_without_such_a_goal_has_neither(site: Site) -> None:
    result = site.open([say('{"id":1} [source:x]')]).run()
    assert (result.completed, result.output, result.citations) == (True, None, ())
