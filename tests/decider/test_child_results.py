"""What a parent's model is told of a child: bounded, with what took effect in it, and no news where it is the same again."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from boundloop.runtime import events as e
from boundloop.runtime.agent_spec import agent
from boundloop.runtime.children import ended_child, unreadable_child
from boundloop.runtime.commands import ChildEnded, ResolveCall
from boundloop.runtime.errors import DeclarationError
from boundloop.runtime.events import UnknownBelow
from boundloop.runtime.model import ResultItem
from boundloop.runtime.state import UNKNOWN_BELOW_MAX

from .family import HELPER, Family, family_pins, helped
from .shop import limits
from .spec import Run, call

REFUND = call("refund", order_id="A", amount=5)
ORDER = call("get_order", order_id="A")
PAY = call("pay", order_id="A", amount=5)


def told(run: Run) -> Any:
    """What the model sees of the last call."""
    item = run.state.items[-1]
    assert isinstance(item, ResultItem)
    return msgspec.json.decode(item.content)


def one_child(**bounds: Any) -> tuple[Family, Run]:
    family = helped(limits(turns=40, children=9, **bounds))
    return family, family.child(family.root, "c1.0")


def does(run: Run, tool: Any, outcome: Literal["succeeded", "unknown"] = "succeeded") -> None:
    run.reply(tool)
    name = f"c{run.state.turn}.0"
    run.check(name)
    run.report(name, outcome)


def settled(run: Run) -> e.ChildSettled:
    (found,) = [event for event, _ in run.log if isinstance(event, e.ChildSettled)]
    return found


# --- effects ---------------------------------------------------------------------------------------------------------


def test_a_failed_child_tells_what_took_effect_and_is_not_to_be_tried_again() -> None:
    family, child = one_child()
    does(child, ORDER)
    does(child, REFUND)
    child.reply(finish="truncated")
    family.settle(family.root, "c1.0")
    seen = told(family.root)
    assert (seen["status"], seen["code"], seen["trust"]) == ("error", "truncated", "untrusted")
    assert seen["data"]["succeeded"] == {"get_order": 1, "refund": 1}
    assert seen["data"]["run"] == child.state.run_id
    assert "retryable" not in seen
    assert settled(family.root).effects == {"refund": 1}


def test_a_failed_child_that_only_read_may_be_tried_again() -> None:
    family, child = one_child()
    does(child, ORDER)
    child.reply(finish="truncated")
    family.settle(family.root, "c1.0")
    seen = told(family.root)
    assert seen["retryable"] is True
    assert "data" not in seen


def test_an_unknown_effect_of_a_child_is_named_and_not_to_be_tried_again() -> None:
    family, child = one_child()
    does(child, PAY, "unknown")
    child.cancel()
    assert child.state.phase == "terminated"
    family.settle(family.root, "c1.0")
    seen = told(family.root)
    assert seen["data"]["unknown_effects"] == [{"run": child.state.run_id, "call": "c1.0", "tool": "pay"}]
    assert "retryable" not in seen
    assert family.root.state.unknown_below == (UnknownBelow(child.state.run_id, "c1.0", "pay"),)


def test_what_grandchildren_did_is_carried_up() -> None:
    family, child = one_child()
    child.reply(call("helper", input="a"), call("helper", input="b"))
    child.check("c1.0")
    child.check("c1.1")
    first, second = (family.start(child, f"c1.{n}") for n in range(2))
    does(first, REFUND)
    first.final()
    does(second, PAY, "unknown")
    second.cancel()
    assert family.settle(child, "c1.0")
    assert family.settle(child, "c1.1")
    child.reply(finish="truncated")
    family.settle(family.root, "c1.0")
    seen = told(family.root)
    unknown = {"run": second.state.run_id, "call": "c1.0", "tool": "pay"}
    assert seen["data"]["succeeded"] == {"helper": 1, "refund": 1}
    assert seen["data"]["unknown_effects"] == [unknown]
    assert "retryable" not in seen
    assert family.root.state.effects_below == {"refund": 1}


def test_an_effect_that_two_runs_wanted_is_counted_once() -> None:
    family = helped(limits(turns=40, children=9), "a", "b")
    first, second = (family.child(family.root, f"c1.{n}") for n in range(2))
    for run in (first, second):
        run.reply(REFUND)
        run.check("c1.0")
    first.report("c1.0")
    second.check("c1.0")
    for number, run in enumerate((first, second)):
        run.final()
        assert family.settle(family.root, f"c1.{number}")
    assert family.root.state.effects_below == {"refund": 1}


def test_an_effect_that_was_settled_late_is_one() -> None:
    """A person said that it happened, after its call had a result and before the run ended."""
    _, child = one_child()
    does(child, PAY, "unknown")
    child.cancel()
    child.outside(ResolveCall, call="c1.0", outcome="applied")
    assert (child.state.effects, child.state.unknown_calls) == ({"pay": 1}, {})
    found = ended_child("c1.0", child.state)
    assert (found.effects, found.unknown) == ({"pay": 1}, ())


def test_of_a_child_that_cannot_be_read_nobody_knows_what_it_did() -> None:
    family, child = one_child()
    lease = family.root.state.calls["c1.0"].child
    assert lease is not None
    family.root.send(unreadable_child("c1.0", lease, "log_damaged"))
    seen = told(family.root)
    assert "retryable" not in seen
    assert seen["data"]["unknown_effects"] == [{"run": child.state.run_id, "call": "", "tool": ""}]


def test_names_of_unknown_effects_are_bounded_and_the_rest_is_counted() -> None:
    family, _ = one_child()
    many = tuple(UnknownBelow("r9", f"c1.{number}", "ship") for number in range(UNKNOWN_BELOW_MAX))
    first = ChildEnded(
        call="c1.0", outcome="failed", reason="model_failed", spent={}, unknown=many, unknown_more=3
    )
    family.root.send(first)
    family.root.reply(call("helper", input="again"))
    family.root.check("c2.0")
    family.start(family.root, "c2.0")
    family.root.send(msgspec.structs.replace(first, call="c2.0", unknown=many[:5], unknown_more=0))
    state = family.root.state
    assert (len(state.unknown_below), state.unknown_more) == (UNKNOWN_BELOW_MAX, 8)


@pytest.mark.parametrize("outcome", ["completed", "failed"])
@pytest.mark.parametrize("most", [256, 300, 1_000, 2_000, 16_384])
def test_a_result_is_within_its_bound_and_says_what_it_leaves_out(outcome: str, most: int) -> None:
    helper = msgspec.structs.replace(HELPER.definition, result_bytes_max=most)
    pinned = family_pins()
    tools = tuple(helper if tool.name == "helper" else tool for tool in pinned.tools)
    family = Family(msgspec.structs.replace(pinned, tools=tools))
    family.root.reply(call("helper", input="go"))
    family.root.check("c1.0")
    family.start(family.root, "c1.0")
    unknown = tuple(UnknownBelow("r_" + "9" * 24, f"c1.{number}", "u" * 64) for number in range(64))
    family.root.send(
        ChildEnded(
            call="c1.0",
            outcome=outcome,
            reason="final" if outcome == "completed" else "definition_changed",
            spent={},
            text='"\\é' * 9_000,
            succeeded={f"tool_{number:059}": number for number in range(64)},
            effects={"refund": 1},
            unknown=unknown,
        )
    )
    (executed,) = [event for event, _ in family.root.log if isinstance(event, e.CallExecuted)]
    assert executed.result is not None
    assert len(executed.result) <= most
    body = told(family.root)["data"]
    assert len(body.get("unknown_effects", ())) + body.get("unknown_effects_more", 0) == 64
    assert len(body.get("succeeded", ())) + body.get("succeeded_more", 0) == 64
    assert body["text_truncated"] is True
    if most == 2_000:
        assert body["unknown_effects"]
        assert not body["succeeded"]  # what nobody knows matters more


def test_a_bound_that_leaves_no_room_for_an_end_is_refused() -> None:
    with pytest.raises(DeclarationError) as refused:
        agent(name="a", description="A.", result_bytes_max=255)
    assert (refused.value.code, refused.value.path) == ("out_of_bounds", "a.result_bytes_max")


# --- progress --------------------------------------------------------------------------------------------------------


def ask_again(family: Family, text: str, *, fail: bool = False) -> None:
    """One more turn with the same call of an agent, which answers this."""
    root = family.root
    root.reply(call("helper", input="the same"))
    name = f"c{root.state.turn}.0"
    root.check(name)
    if root.phase(name) == "bound" or root.state.phase == "suspended":
        return
    child = family.start(root, name)
    if fail:
        child.reply(finish="refused")
    else:
        child.final(text)
    assert family.settle(root, name)


@pytest.mark.parametrize("fail", [False, True])
def test_the_same_question_with_the_same_answer_is_no_progress(fail: bool) -> None:
    family = Family(family_pins(bounds=limits(turns=60, model_attempts=60, children=30, cost_micros=None)))
    for _ in range(10):
        ask_again(family, "nothing new", fail=fail)
        if family.root.state.phase == "suspended":
            break
    assert family.root.stop() == ("suspended", "incomplete", "no_progress")
    assert len(family.runs) == 3  # the root and two children


def test_another_answer_is_progress() -> None:
    family = Family(family_pins(bounds=limits(turns=60, model_attempts=60, children=30, cost_micros=None)))
    for number in range(5):
        ask_again(family, f"news {number}")
    assert family.root.state.phase == "model_requested"
    assert len(family.runs) == 6
