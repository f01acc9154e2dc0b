"""Staged runs: what each stage offers, what moves a run on, and what does not."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec
import pytest

from boundloop.runtime import events as e
from boundloop.runtime.agent_spec import agent
from boundloop.runtime.commands import ResolveCall
from boundloop.runtime.errors import BugError, DeclarationError, HistoryRefused
from boundloop.runtime.fold import evolve
from boundloop.runtime.goal import Evidence, Goal
from boundloop.runtime.model import NoteItem, ResultItem
from boundloop.runtime.pins import Pins, encode_pins, predicates, read_pins
from boundloop.runtime.stage_spec import STAGES_MAX, Stage, stages_from
from boundloop.runtime.start import NewRunSpec, start_run
from boundloop.runtime.transitions import IllegalTransition

from .family import Family, family_pins
from .shop import BY_NAME, TOOLS, limits, pins
from .spec import Run, call

STAGES = stages_from(
    (
        Stage("enquire", tools=("get_order", "credit_check"), leave="get_order"),
        Stage(
            "draft", tools=("set_state", "get_order"), leave=Evidence("set_state", result={"state": "draft"})
        ),
        Stage("submit", tools=("refund",)),
    )
)
GOAL = Goal.of("refund")
WRONG: Any = "get_order"
FIVE: Any = 5


def staged(**fields: Any) -> Pins:
    return msgspec.structs.replace(pins(goal=fields.pop("goal", GOAL), **fields), stages=STAGES)


def enquired(**fields: Any) -> Run:
    """A run that has just entered its second stage."""
    run = Run(staged(**fields))
    run.reply(call("get_order", order_id="A"))
    run.check("c1.0")
    run.report("c1.0", result={"order_id": "A"})
    return run


def drafted(**fields: Any) -> Run:
    run = enquired(**fields)
    run.reply(call("set_state", order_id="A", state="draft"))
    run.check("c2.0")
    run.report("c2.0", result={"state": "draft"})
    return run


def entered(run: Run) -> list[e.StageEntered]:
    return [event for event, _ in run.log if isinstance(event, e.StageEntered)]


def test_evidence_moves_a_run_from_stage_to_stage_to_its_end() -> None:
    run = drafted()
    assert entered(run) == [
        e.StageEntered("draft", "enquire", ("c1.0",)),
        e.StageEntered("submit", "draft", ("c2.0",)),
    ]
    run.reply(call("refund", order_id="A", amount=5))
    run.check("c3.0")
    run.report("c3.0", result={"refunded": 5})
    run.final()
    assert run.stop() == ("terminated", "completed", "final")


def test_the_stage_is_entered_with_the_result_that_earned_it_and_before_the_next_request() -> None:
    run = Run(staged())
    run.reply(call("get_order", order_id="A"))
    run.check("c1.0")
    tags = [e.tag_of(event) for event in run.report("c1.0", result={"order_id": "A"})]
    assert tags == ["call_executed", "result_bound", "stage_entered", "model_requested"]


def test_with_a_sibling_still_out_the_stage_is_entered_at_once_and_the_sibling_goes_on() -> None:
    run = Run(staged())
    run.reply(call("get_order", order_id="A"), call("credit_check", order_id="A"))
    run.check("c1.0")
    run.check("c1.1")
    events = run.report("c1.0", result={"order_id": "A"})
    assert [e.tag_of(event) for event in events] == ["call_executed", "result_bound", "stage_entered"]
    assert run.phase("c1.1") == "started"
    run.report("c1.1", result={"order_id": "A"})
    assert run.bound("c1.1") == ("ok", "")
    assert run.state.stage == 1


@pytest.mark.parametrize("tool", ["refund", "set_state", "no_such_tool"])
def test_a_tool_of_another_stage_is_refused_as_an_unknown_one_is(tool: str) -> None:
    run = Run(staged())
    run.reply(call(tool, order_id="A", amount=5))
    run.check("c1.0")
    assert run.bound("c1.0") == ("error", "unknown_tool")
    shown = run.state.items[-1]
    assert isinstance(shown, ResultItem)
    assert b"this tool is not available here" in shown.content
    assert run.started("c1.0") == 0


def test_a_call_of_the_next_stage_proposed_with_the_evidence_is_refused() -> None:
    """The stage that counts is that of the proposal, in whatever order verdicts and results come."""
    run = Run(staged())
    run.reply(call("get_order", order_id="A"), call("set_state", order_id="A", state="draft"))
    run.check("c1.0")
    run.report("c1.0", result={"order_id": "A"})
    assert run.state.stage == 1
    run.check("c1.1")
    assert run.bound("c1.1") == ("error", "unknown_tool")


def test_an_approval_that_is_waited_for_when_the_stage_moves_on_stays_good() -> None:
    stages = stages_from(
        (Stage("first", tools=("get_order", "pay"), leave="get_order"), Stage("second", tools=("refund",)))
    )
    run = Run(msgspec.structs.replace(pins(), stages=stages))
    run.reply(call("get_order", order_id="A"), call("pay", order_id="A", amount=5))
    run.check("c1.0")
    run.ask("c1.1")
    run.report("c1.0", result={"order_id": "A"})
    assert run.state.stage == 1
    run.approve("c1.1")
    run.check("c1.1", resource_version="v1")
    run.report("c1.1", result={"paid": 5})
    assert run.bound("c1.1") == ("ok", "")


def test_prose_moves_nothing() -> None:
    run = Run(staged(bounds=limits(corrective_turns=1)))
    run.final("Stage enquire is done, I enter the stage submit: stage_entered(submit)")
    assert run.state.stage == 0
    note = run.state.items[-1]
    assert isinstance(note, NoteItem)
    assert "stage enquire: get_order" in note.text
    run.final("Done.")
    assert run.stop() == ("suspended", "incomplete", "evidence_missing")
    assert run.state.unfinished == ("refund", "stage enquire: get_order", "stage draft", "stage submit")


@pytest.mark.parametrize("result", [{"state": "sent"}, {}])
def test_a_success_that_is_not_the_evidence_asked_for_moves_nothing(result: Any) -> None:
    run = enquired()
    run.reply(call("set_state", order_id="A", state="draft"))
    run.check("c2.0")
    run.report("c2.0", result=result)
    assert (run.bound("c2.0"), run.state.stage) == (("ok", ""), 1)


def test_failed_and_unknown_results_move_nothing() -> None:
    run = Run(staged(goal=None))
    run.reply(call("get_order", order_id="A"))
    run.check("c1.0")
    run.report("c1.0", "failed", code="not_found")
    assert (run.bound("c1.0"), run.state.stage) == (("error", "not_found"), 0)


def test_a_result_of_a_call_of_an_earlier_stage_does_not_count_for_a_later_one() -> None:
    stages = stages_from(
        (
            Stage("first", tools=("get_order", "credit_check"), leave="get_order"),
            Stage("second", tools=("credit_check",), leave="credit_check"),
            Stage("third", tools=("refund",)),
        )
    )
    run = Run(msgspec.structs.replace(pins(), stages=stages))
    run.reply(call("get_order", order_id="A"), call("credit_check", order_id="A"))
    run.check("c1.0")
    run.check("c1.1")
    run.report("c1.0", result={"order_id": "A"})
    run.report("c1.1", result={"order_id": "A"})
    assert run.state.stage == 1
    run.reply(call("credit_check", order_id="A"))
    run.check("c2.0")
    run.report("c2.0", result={"order_id": "A"})
    assert run.state.stage == 2


def test_a_view_of_a_large_result_is_no_evidence_for_a_stage_and_the_whole_one_is() -> None:
    assert [one.name() for one in predicates(staged())] == ["refund", "get_order", "set_state(state='draft')"]
    for met, stage in (((), 1), ((2,), 2)):
        run = enquired()
        run.reply(call("set_state", order_id="A", state="draft"))
        run.check("c2.0")
        run.report("c2.0", result={"state": "draft", "truncated": True}, artifact=bytes(32), size=99, met=met)
        assert run.state.stage == stage


def test_several_results_are_counted_and_named() -> None:
    stages = stages_from(
        (
            Stage("look", tools=("get_order",), leave=Evidence("get_order", count=2)),
            Stage("act", tools=("refund",)),
        )
    )
    run = Run(msgspec.structs.replace(pins(), stages=stages))
    for turn, order in enumerate("AB", start=1):
        assert run.state.stage == 0
        run.reply(call("get_order", order_id=order))
        run.check(f"c{turn}.0")
        run.report(f"c{turn}.0", result={"order_id": order})
    assert entered(run) == [e.StageEntered("act", "look", ("c1.0", "c2.0"))]


def test_each_stage_has_a_request_head_of_its_own_that_a_replay_finds_again() -> None:
    run = Run(staged())
    heads = {run.state.request_head_sha256}
    sizes = [run.state.request_head_bytes]
    run = drafted()
    heads.add(run.state.request_head_sha256)
    heads.add(enquired().state.request_head_sha256)
    assert len(heads) == 3
    assert run.state.request_head_bytes != sizes[0]
    assert [tool.name for tool in run.pins.tools_offered(2)] == ["refund"]
    run.check_replay()


def test_a_stage_without_news_is_progress_all_the_same() -> None:
    """The result that leaves the second stage is one that the run has seen before."""
    stages = stages_from(
        (
            Stage("first", tools=("get_order",), leave="get_order"),
            Stage("second", tools=("get_order",), leave="get_order"),
            Stage("third", tools=("refund",)),
        )
    )
    bounds = limits(turns_without_progress=1)
    run = Run(msgspec.structs.replace(pins(bounds=bounds), stages=stages))
    for turn in (1, 2):
        run.reply(call("get_order", order_id="A"))
        run.check(f"c{turn}.0")
        run.report(f"c{turn}.0", result={"order_id": "A"})
    assert (run.state.stage, run.state.phase) == (2, "model_requested")
    assert run.state.counters.idle_turns == 0


def test_a_stage_that_is_not_left_ends_in_the_ordinary_stops() -> None:
    run = Run(staged(bounds=limits(turns=2)))
    for turn in (1, 2):
        run.reply(call("credit_check", order_id="A"))
        run.check(f"c{turn}.0")
        run.report(f"c{turn}.0", result={"turn": turn})
    assert run.stop() == ("suspended", "incomplete", "max_turns")
    assert "stage enquire: get_order" in run.state.unfinished


def test_a_stage_whose_evidence_can_not_be_had_is_blocked_at_once() -> None:
    """Its tool isn't offered: left out of the subset, or not permitted."""
    tools = tuple(tool for tool in TOOLS if tool.name != "set_state")
    run = Run(staged(tools=tools))
    assert run.stop() == ("suspended", "incomplete", "blocked")
    assert run.state.detail == "set_state is not offered"


def test_a_goal_over_a_tool_of_a_stage_that_is_over_is_blocked() -> None:
    run = enquired(goal=Goal.of("credit_check"))
    assert run.stop() == ("suspended", "incomplete", "blocked")
    assert run.state.detail == "credit_check is not offered"


def test_an_expired_approval_that_the_stage_needs_stops_the_run() -> None:
    run = enquired(goal=None)
    run.reply(call("set_state", order_id="A", state="draft"))
    run.ask("c2.0")
    run.tick(10 * 60_000)
    assert run.stop() == ("suspended", "incomplete", "approval_expired")


def test_a_run_that_is_taken_over_goes_on_in_its_stage() -> None:
    run = enquired()
    before = run.state.request_head_sha256
    run.crash()
    assert run.state.stage == 1
    assert run.state.request_head_sha256 == before
    run.reply(call("get_order", order_id="B"))
    run.check("c2.0")
    run.crash()
    run.report("c2.0", result={"order_id": "B"}, attempt=2)
    assert run.bound("c2.0") == ("ok", "")


def test_an_effect_that_a_person_settles_moves_a_stopped_run_on() -> None:
    stages = stages_from((Stage("pay", tools=("pay",), leave="pay"), Stage("tell", tools=("get_order",))))
    run = Run(msgspec.structs.replace(pins(), stages=stages))
    run.reply(call("pay", order_id="A", amount=5))
    run.check("c1.0")
    run.report("c1.0", "unknown")
    assert run.stop() == ("suspended", "incomplete", "outcome_unknown")
    run.outside(ResolveCall, call="c1.0", outcome="applied", by="boss", result='{"paid":5}')
    assert (run.state.stage, run.state.phase) == (1, "model_requested")


def test_a_cancelled_run_enters_no_stage() -> None:
    run = Run(staged())
    run.reply(call("get_order", order_id="A"))
    run.check("c1.0")
    run.cancel()
    run.report("c1.0", result={"order_id": "A"})
    assert run.stop() == ("terminated", "cancelled", "by_user")
    assert not entered(run)


def test_only_the_next_stage_can_be_entered() -> None:
    run = Run(staged())
    run.reply(call("get_order", order_id="A"))
    for name in ("enquire", "submit", "other"):
        with pytest.raises(BugError, match="stage_unknown"):
            evolve(run.state, e.StageEntered(name, "enquire", ()), run.now)
    plain = Run()
    with pytest.raises(IllegalTransition):
        evolve(plain.state, e.StageEntered("draft", "enquire", ()), plain.now)


def test_a_child_goes_through_the_stages_of_its_agent() -> None:
    clerk = agent(
        name="clerk_in_stages",
        description="Looks first.",
        tools=("get_order", "refund"),
        stages=(Stage("look", ("get_order",), "get_order"), Stage("act", ("refund",))),
    ).definition
    plain = family_pins()
    family = Family(msgspec.structs.replace(plain, tools=(*plain.tools, clerk)))
    BY_NAME[clerk.name] = clerk
    family.root.reply(call("clerk_in_stages", input="go"))
    family.root.check("c1.0")
    child = family.start(family.root, "c1.0")
    assert [stage.name for stage in child.pins.stages] == ["look", "act"]
    assert [tool.name for tool in child.pins.tools_offered(0)] == ["get_order"]
    child.reply(call("refund", order_id="A", amount=5))
    child.check("c1.0")
    assert child.bound("c1.0") == ("error", "unknown_tool")
    assert family.root.state.pins.stages == ()


def test_an_agent_without_stages_has_the_hash_that_it_had() -> None:
    """Definitions are compared across deploys: what isn't used must not make one another."""
    first = agent(name="helper", description="d", tools=("get_order",)).definition
    second = agent(
        name="helper", description="d", tools=("get_order",), stages=(Stage("only", ("get_order",)),)
    ).definition
    assert first.definition_sha256.hex() == "34fa448d6aff33ada79c74f31f61976e5cfc0dc95b0956ccd2e44a1a865234a4"
    assert first.definition_sha256 != second.definition_sha256


def test_pins_without_stages_take_no_byte_for_them_and_pins_with_them_read_back() -> None:
    assert b"stages" not in encode_pins(pins())
    encoded = encode_pins(staged())
    assert read_pins(sha256(encoded).digest(), encoded).stages == STAGES
    with pytest.raises(HistoryRefused):
        read_pins(sha256(encoded[:-1]).digest(), encoded[:-1])
    started, digest, _ = start_run(NewRunSpec(run_id="r", input="x", operation_id="o"), pins())
    assert started.pins_sha256 == digest


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("enquire", "stages_type"),
        ((), "stages_count"),
        (7, "stages_type"),
        (("enquire",), "stages_type"),
        ((Stage("a", ("get_order",), "get_order"),), "stage_leave"),
        ((Stage("a", ("get_order",)), Stage("b")), "stage_leave"),
        ((Stage("a", ("get_order",), "refund"), Stage("b")), "stage_leave"),
        ((Stage("a", ("get_order",), "get_order"), Stage("a")), "stage_name"),
        ((Stage("A b"),), "stage_name"),
        ((Stage("a", WRONG),), "stage_tools"),
        ((Stage("a", ("get_order", "get_order")),), "stage_tools"),
        ((Stage("a", ("Get Order",)),), "stage_tools"),
        ((Stage("a", ("get_order",), Evidence("get_order", count=65)), Stage("b")), "stage_leave"),
        ((Stage("a", ("get_order",), FIVE), Stage("b")), "stage_leave"),
        ((Stage("a", ("get_order",), Goal()), Stage("b")), "empty_goal"),
        ((*(Stage(f"s{n}", ("a",), "a") for n in range(STAGES_MAX)), Stage("z")), "stages_count"),
    ],
)
def test_stages_that_no_run_can_go_through_are_refused(given: Any, code: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        stages_from(given)
    assert caught.value.code == code


def test_an_agents_stages_name_only_its_own_tools() -> None:
    with pytest.raises(DeclarationError, match="is no tool of this agent"):
        agent(name="a", description="d", tools=("get_order",), stages=(Stage("only", ("refund",)),))
