"""A child that runs out asks before it stops: on record above first, then below; and what was denied is asked once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from boundloop.runtime import events as e
from boundloop.runtime.commands import NothingLeft, RaiseLease, RaiseLimits, Resume
from boundloop.runtime.model import Usage
from boundloop.runtime.orders import AskParent, RequestModel, RunChecks
from boundloop.runtime.prices import Price
from boundloop.runtime.state import run_name
from boundloop.runtime.top_ups import lease_raise

from .family import Family, family_pins, helped, reserved
from .shop import limits
from .spec import Run, call, given, tags

ORDER = call("get_order", order_id="A")


def asks(run: Run) -> dict[str, int]:
    """What the run asks for now."""
    for order in run.orders():
        if isinstance(order, AskParent):
            return dict(order.asked)
    return {}


def turn(run: Run, tool: Any = ORDER) -> None:
    """One more turn with one read."""
    run.reply(tool)
    name = f"c{run.state.turn}.0"
    run.check(name)
    run.report(name, result={"n": run.state.turn})


def out_of_turns(bounds: Any = None) -> tuple[Family, Run]:
    """A child that has used all turns of its lease."""
    family = helped(bounds or limits(turns=9, children=4))
    child = family.child(family.root, "c1.0")
    while not asks(child):
        turn(child)
    return family, child


# --- turns, attempts, tokens, cost -----------------------------------------------------------------------------------


def test_a_child_without_turns_asks_and_goes_on() -> None:
    family, child = out_of_turns()
    assert asks(child) == {"turns": 1}
    assert family.ask(child)
    topped = [event for event, _ in family.root.log if isinstance(event, e.ChildToppedUp)]
    assert [event.granted for event in topped] == [{"turns": 2}]  # half of what is left
    raised = [event for event, _ in child.log if isinstance(event, e.LimitsRaised)]
    assert [(event.raised, event.by) for event in raised] == [({"turns": 6}, "run:r1")]
    assert isinstance(child.orders()[0], RequestModel)


def test_a_child_that_is_denied_stops_with_its_own_reason_and_asks_no_more() -> None:
    family, child = out_of_turns(limits(turns=4))
    while family.ask(child):
        turn(child)
    assert child.stop() == ("terminated", "incomplete", "max_turns")
    assert tags(child.log[n][0] for n in range(-2, 0)) == ["lease_denied", "run_terminated"]
    assert family.root.state.meters.turns.free == 0
    assert family.settle(family.root, "c1.0")
    assert family.root.stop() == ("suspended", "incomplete", "max_turns")


def test_a_first_request_may_need_a_top_up_too() -> None:
    family = helped(limits(turns=3, children=9), "a", "b", "c")
    child = family.child(family.root, "c1.0")
    assert (child.state.phase, asks(child)) == ("created", {"turns": 1})
    assert family.ask(child)
    assert child.state.phase == "model_requested"
    second, third = (family.child(family.root, f"c1.{n}") for n in (1, 2))
    assert family.ask(second)
    assert not family.ask(third)
    assert third.stop() == ("terminated", "incomplete", "max_turns")


def test_a_retry_may_need_a_top_up() -> None:
    family = helped(limits(model_attempts=5))
    child = family.child(family.root, "c1.0")
    child.reply(finish="transport_broken")
    child.tick_to_wake()
    child.reply(finish="transport_broken")
    child.tick_to_wake()
    family.root.now = child.now
    assert asks(child) == {"model_attempts": 1}
    assert family.ask(child)
    assert isinstance(child.orders()[0], RequestModel)


def test_a_retry_that_is_denied_stops() -> None:
    family = helped(limits(model_attempts=2))
    child = family.child(family.root, "c1.0")
    assert family.ask(child)
    child.reply(finish="transport_broken")
    child.tick_to_wake()
    assert not family.ask(child)
    assert child.stop() == ("terminated", "incomplete", "max_turns")


def test_a_paused_turn_may_need_a_top_up() -> None:
    family = helped(limits(turns=4))
    child = family.child(family.root, "c1.0")
    child.reply(finish="paused", text="hm")
    assert (child.state.phase, asks(child)) == ("deciding", {"turns": 1})
    assert family.ask(child)
    child.reply(finish="paused", text="hm")
    family.ask(child)
    child.reply(finish="paused", text="hm")
    assert not family.ask(child)
    assert child.stop() == ("terminated", "incomplete", "max_turns")


def test_tokens_are_asked_for_as_the_next_request_needs_them() -> None:
    family = helped(limits(output_tokens=700, turns=90, model_attempts=90))
    child = family.child(family.root, "c1.0")
    assert reserved(family.root)[0].granted["output_tokens"] < 400
    while not asks(child):
        child.reply(finish="paused", text="hm", usage=Usage(10, 60))
    missing = asks(child)["output_tokens"]
    assert 0 < missing <= 100
    assert family.ask(child)
    assert child.state.phase == "model_requested"


def test_cost_is_asked_for_and_never_passes_the_roots() -> None:
    family = Family(
        family_pins(
            bounds=limits(cost_micros=2_000, turns=90, model_attempts=90),
            price=Price(input=0, output=2_000_000),
        )
    )
    root = family.root
    root.reply(call("helper", input="go"))
    root.check("c1.0")
    child = family.start(root, "c1.0")
    for _ in range(40):
        if asks(child) and not family.ask(child):
            break
        child.reply(finish="paused", text="hm", usage=Usage(10, 100))
    assert child.stop() == ("terminated", "incomplete", "budget_cost")
    assert family.settle(root, "c1.0")
    assert 1_500 < root.state.meters.cost_micros.spent <= 2_000


# --- calls -----------------------------------------------------------------------------------------------------------


def test_calls_wait_for_the_answer_before_they_are_checked() -> None:
    family = helped(limits(tool_calls=5))
    child = family.child(family.root, "c1.0")
    lease = reserved(family.root)[0].granted["tool_calls"]
    assert lease == 2
    child.reply(*[call("get_order", order_id=str(n)) for n in range(4)])
    assert child.orders() == [AskParent((("tool_calls", 2),))]
    assert family.ask(child)
    assert sum(isinstance(order, RunChecks) for order in child.orders()) == 4


def test_part_of_the_calls_is_better_than_none() -> None:
    family = helped(limits(tool_calls=4))
    child = family.child(family.root, "c1.0")
    child.reply(*[call("get_order", order_id=str(n)) for n in range(5)])
    assert family.ask(child)
    assert not family.ask(child)
    for n in range(5):
        child.check(f"c1.{n}")
    assert [child.phase(f"c1.{n}") for n in range(5)] == ["started"] * 3 + ["bound"] * 2
    for n in range(3):
        child.report(f"c1.{n}")
    assert child.stop() == ("terminated", "incomplete", "max_tool_calls")


def test_children_of_a_child_are_asked_for_like_calls() -> None:
    family = helped(limits(children=3, turns=40))
    child = family.child(family.root, "c1.0")
    assert child.state.limits.children == 1
    child.reply(call("helper", input="a"), call("helper", input="b"))
    assert asks(child) == {"children": 1}
    assert family.ask(child)
    child.check("c1.0")
    child.check("c1.1")
    assert len(reserved(child)) == 2
    assert family.root.state.meters.children.free == 0


def test_cost_of_calls_is_asked_for_before_they_start() -> None:
    family = Family(family_pins(bounds=limits(cost_micros=200)))
    root = family.root
    root.reply(call("helper", input="go"))
    root.check("c1.0")
    child = family.start(root, "c1.0")
    assert child.state.limits.cost_micros == 100
    child.reply(*[call("credit_check", order_id=str(n)) for n in range(3)])
    assert asks(child) == {"cost_micros": 20}
    assert family.ask(child)
    for n in range(3):
        child.check(f"c1.{n}")
    assert child.state.meters.cost_micros.reserved == 120


# --- further up ------------------------------------------------------------------------------------------------------


def grandchild_out_of_turns(turns: int) -> tuple[Family, Run, Run]:
    family = helped(limits(turns=turns, children=9))
    child = family.child(family.root, "c1.0")
    child.reply(call("helper", input="deeper"))
    child.check("c1.0")
    grandchild = family.start(child, "c1.0")
    return family, child, grandchild


def test_a_parent_with_nothing_free_asks_its_own() -> None:
    family, child, grandchild = grandchild_out_of_turns(5)
    assert (child.state.meters.turns.free, asks(grandchild)) == (1, {"turns": 1})
    assert family.ask(grandchild)  # the nearest that has one
    grandchild.reply(finish="paused", text="hm")
    assert family.root.state.meters.turns.free == 2
    assert family.ask(grandchild)  # by way of the child, which had none left
    assert child.state.limits.turns == 3
    assert grandchild.state.limits.turns == 2
    assert family.root.state.meters.turns.free == 1
    grandchild.reply(finish="paused", text="hm")
    assert family.ask(grandchild)
    grandchild.reply(finish="paused", text="hm")
    assert not family.ask(grandchild)
    assert grandchild.stop() == ("terminated", "incomplete", "max_turns")


def test_what_an_agent_declares_is_its_own_limit() -> None:
    family = helped(limits(turns=30), tool="clerk")
    child = family.child(family.root, "c1.0")
    for _ in range(3):
        child.reply(finish="paused", text="hm")
    assert asks(child) == {"turns": 1}
    assert not family.ask(child)
    assert family.root.refusal == "own_limit"
    assert child.stop() == ("terminated", "incomplete", "max_turns")


# --- crashes and strangers -------------------------------------------------------------------------------------------


def test_what_was_given_above_and_not_told_below_is_told_after_a_crash() -> None:
    family, child = out_of_turns()
    family.root.send(family.question(child.state, asks(child)))
    child.crash()
    assert asks(child) == {"turns": 1}
    topped = family.root.tags().count("child_topped_up")
    assert family.ask(child)
    assert family.root.tags().count("child_topped_up") == topped == 1


def test_the_same_question_is_answered_once() -> None:
    family, child = out_of_turns()
    question = family.question(child.state, asks(child))
    family.root.send(question)
    given(family.root).when(question, family.root.now).then_nothing()


def test_the_same_raise_changes_nothing() -> None:
    family, child = out_of_turns()
    assert family.ask(child)
    again = RaiseLease(command_id="other", by="run:r1", raised={"turns": 5})
    given(child).when(again, child.now).then_nothing()


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"child_run": "r_other"}, "no_such_child"),
        ({"call": "c9.0"}, "no_such_child"),
        ({"by": "mallory"}, "not_the_child"),
        ({"asked": {}}, "nothing_asked"),
        ({"asked": {"turns": 0}}, "not_leased"),
        ({"asked": {"turns": -4}}, "not_leased"),
        ({"asked": {"deadline_ms": 5}}, "not_leased"),
        ({"asked": {"turns": 2**60}}, "not_leased"),
        ({"asked": {"output_tokens": 2**50}}, "nothing_left"),
    ],
)
def test_questions_that_are_none_are_refused(changed: dict[str, Any], code: str) -> None:
    family, child = out_of_turns()
    question = msgspec.structs.replace(family.question(child.state, asks(child)), **changed)
    given(family.root).when(question, family.root.now).then_refused(code)


def test_a_parent_that_ends_gives_nothing() -> None:
    family, child = out_of_turns()
    question = family.question(child.state, asks(child))
    family.root.cancel()
    given(family.root).when(question, family.root.now).then_refused("run_ending")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (RaiseLease(command_id="x", by="mallory", raised={"turns": 99}), "not_the_parent"),
        (RaiseLease(command_id="x", by=run_name("r1"), raised={"deadline_ms": 99}), "not_leased"),
        (RaiseLease(command_id="x", by=run_name("r1"), raised={"turns": 2**60}), "not_leased"),
        (RaiseLimits(command_id="x", by="u", raised={"turns": 99}), "leased"),
        (RaiseLimits(command_id="x", by="u", raised={"deadline_ms": 2**40}), "leased"),
    ],
)
def test_nobody_else_raises_what_is_leased(command: Any, code: str) -> None:
    family, child = out_of_turns()
    given(child).when(command, child.now).then_refused(code)
    if isinstance(command, RaiseLease):
        given(family.root).when(command, family.root.now).then_refused("not_the_parent")


def test_an_ended_child_takes_no_lease() -> None:
    family, child = out_of_turns(limits(turns=4))
    while family.ask(child):
        turn(child)
    command = RaiseLease(command_id="x", by=run_name("r1"), raised={"turns": 99})
    given(child).when(command, child.now).then_refused("run_ended")


def test_limits_that_are_not_leased_are_raised_in_a_child_as_anywhere() -> None:
    family = helped(limits(turns=3, children=9), "a", "b", "c")
    child = family.child(family.root, "c1.0")
    assert child.state.limits.turns == 0
    child.outside(RaiseLimits, raised={"denials": 99})
    assert child.state.limits.denials == 99


def test_no_more_than_the_lease_is_told() -> None:
    family, child = out_of_turns()
    assert lease_raise(child.state, reserved(family.root)[0].granted) is None


def test_nothing_left_says_nothing_to_a_run_that_asked_for_nothing() -> None:
    family = helped()
    child = family.child(family.root, "c1.0")
    given(child).when(NothingLeft(limits=("turns",)), child.now).then_nothing()
    given(family.root).when(NothingLeft(limits=("turns",)), family.root.now).then_nothing()


def test_a_stopped_child_that_is_lifted_asks_again() -> None:
    family = helped(limits(turns=4), tool="patient")
    root, child = family.root, family.child(family.root, "c1.0")
    turn(child)
    while family.ask(child):
        turn(child)
    assert child.stop() == ("suspended", "incomplete", "max_turns")
    root.outside(RaiseLimits, raised={"turns": 10})
    child.outside(Resume)
    assert asks(child) == {"turns": 1}
    assert family.ask(child)
    assert any(isinstance(order, RequestModel) for order in child.orders())
