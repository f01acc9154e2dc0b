"""What a lease leaves to whoever starts beside it, and what an agent's own limits ask for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from boundloop.runtime.agent_spec import agent
from boundloop.runtime.errors import DeclarationError
from boundloop.runtime.limits import WAIVED, Limits, LimitValues
from boundloop.runtime.pins import Pins

from .family import HELPER, Family, family_pins, reserved
from .shop import limits
from .spec import Run, call


def asking(asked: dict[str, int], bounds: LimitValues, **fields: Any) -> Pins:
    """The family's pins with a helper that asks for this."""
    made = msgspec.structs.replace(HELPER.definition.agents[0], limits=asked)
    helper = msgspec.structs.replace(HELPER.definition, agents=(made,))
    pinned = family_pins(bounds=bounds, **fields)
    tools = tuple(helper if tool.name == "helper" else tool for tool in pinned.tools)
    return msgspec.structs.replace(pinned, tools=tools)


def all_checked(run: Run, *calls: Any) -> None:
    run.reply(*calls)
    for number in range(len(calls)):
        run.check(f"c1.{number}")


ORDER = call("get_order", order_id="A")
CREDIT = call("credit_check", order_id="A")
GO = call("helper", input="go")


@pytest.mark.parametrize(
    ("asked", "bounds", "beside", "left"),
    [
        ({"call_attempts": 200}, {"call_attempts": 9}, ORDER, 7),
        ({"tool_calls": 100}, {"tool_calls": 9}, ORDER, 7),
        ({"cost_micros": 1_000}, {"cost_micros": 100}, CREDIT, 60),
        ({"children": 9}, {"children": 3}, GO, 1),
    ],
    ids=["attempts", "calls", "cost", "children"],
)
def test_an_ask_leaves_what_its_siblings_need_to_start(
    asked: dict[str, int], bounds: dict[str, int], beside: Any, left: int
) -> None:
    """Whether they have been checked by then or not, and before it or after it in the turn."""
    for turn in ((GO, beside), (beside, GO)):
        family = Family(asking(asked, limits(**bounds)))
        all_checked(family.root, *turn)
        (name,) = asked
        assert {family.root.phase(f"c1.{n}") for n in range(2)} <= {"started", "waiting_child"}
        assert [lease.granted[name] for lease in reserved(family.root)][:1] == [left]


def test_a_sibling_that_waits_for_a_person_keeps_what_it_needs() -> None:
    family = Family(asking({"call_attempts": 200}, limits(call_attempts=9)))
    root = family.root
    root.reply(GO, call("refund", order_id="A", amount=5))
    root.ask("c1.1")
    root.check("c1.0")
    assert reserved(root)[0].granted["call_attempts"] == 7


def test_a_top_up_leaves_what_an_unchecked_sibling_needs() -> None:
    family = Family(family_pins(bounds=limits(tool_calls=6)))
    root = family.root
    root.reply(GO, ORDER)
    root.check("c1.0")
    child = family.start(root, "c1.0")
    child.reply(*[call("get_order", order_id=str(n)) for n in range(9)])
    while family.ask(child):
        pass
    root.check("c1.1")
    assert root.phase("c1.1") == "started"


def test_limits_of_an_agent_ask_for_what_was_given_and_nothing_else() -> None:
    for given in (
        Limits(cost="0.05", turns=50),
        {"cost": "0.05", "turns": 50},
    ):
        (made,) = agent(name="a", description="A.", limits=given).definition.agents
        assert made.limits == {"cost_micros": 50_000, "turns": 50}
    (made,) = agent(name="a", description="A.", limits=Limits(cost=WAIVED, deadline_s=9)).definition.agents
    assert made.limits == {"deadline_ms": 9_000}


@pytest.mark.parametrize("name", ["tool_calls_each", "token_bound"])
def test_what_no_agent_can_ask_for_is_refused_however_it_is_given(name: str) -> None:
    value: Any = {"search": 3} if name == "tool_calls_each" else "bytes"
    for given in ({name: value}, Limits(cost=WAIVED, **{name: value})):
        with pytest.raises(DeclarationError) as refused:
            agent(name="a", description="A.", limits=given)
        assert (refused.value.code, refused.value.path) == ("unknown_limit", f"a.{name}")


def test_two_that_ask_for_money_alone_share_the_rest() -> None:
    made = agent(name="a", description="A.", limits=Limits(cost=50)).definition.agents[0]
    family = Family(asking(made.limits, limits(turns=50, cost_micros=1_000)))
    all_checked(family.root, GO, GO)
    assert [lease.granted["turns"] for lease in reserved(family.root)] == [12, 12]
    assert [lease.granted["cost_micros"] for lease in reserved(family.root)] == [50, 50]


# --- depth and context -----------------------------------------------------------------------------------------------


def test_an_agent_may_ask_to_start_none_itself() -> None:
    (made,) = agent(name="a", description="A.", limits={"depth": 0}).definition.agents
    family = Family(asking(made.limits, limits(children=9)))
    all_checked(family.root, GO)
    child = family.start(family.root, "c1.0")
    assert child.state.limits.depth == 1
    assert reserved(family.root)[0].granted["children"] == 0  # it can't use any
    child.reply(GO)
    child.check("c1.0")
    assert child.bound("c1.0") == ("error", "max_depth")


@pytest.mark.parametrize("depth", [-1, 2**60, True])
def test_no_other_depth_is_one(depth: int) -> None:
    with pytest.raises(DeclarationError):
        agent(name="a", description="A.", limits={"depth": depth})


def test_a_smaller_context_asks_for_less_output_a_request() -> None:
    (made,) = agent(name="a", description="A.", limits={"context_tokens": 6_000}).definition.agents
    family = Family(asking(made.limits, limits(output_tokens_per_request=4_096)))
    all_checked(family.root, GO)
    child = family.start(family.root, "c1.0")
    assert child.state.limits.context_tokens == 6_000
    assert child.state.limits.output_tokens_per_request == 3_000
    assert child.state.phase == "model_requested"


def test_output_that_is_named_beside_the_context_stays() -> None:
    asked = {"context_tokens": 2_000, "output_tokens_per_request": 1_500}
    (made,) = agent(name="a", description="A.", limits=asked).definition.agents
    family = Family(asking(made.limits, limits(output_tokens_per_request=4_096)))
    all_checked(family.root, GO)
    assert family.start(family.root, "c1.0").state.limits.output_tokens_per_request == 1_500
    with pytest.raises(DeclarationError, match="context_tokens"):
        agent(name="a", description="A.", limits=asked | {"output_tokens_per_request": 2_001})
