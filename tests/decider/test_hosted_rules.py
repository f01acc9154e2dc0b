"""Tools that a provider runs itself: off unless declared, counted, tainting, and never evidence."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.decider.family import Family, family_pins

from boundloop.runtime import events as e
from boundloop.runtime.agent_spec import agent
from boundloop.runtime.commands import RaiseLimits, Resume
from boundloop.runtime.errors import DeclarationError
from boundloop.runtime.goal import Goal
from boundloop.runtime.hosted import HOSTED_MAX, hosted_names
from boundloop.runtime.taint import TaintSource

from .shop import TOOLS, limits, pins
from .spec import Run, call

SEARCH = TaintSource("hosted:web_search", "t1", True)


def run_with(*hosted: str, **fields: Any) -> Run:
    return Run(msgspec.structs.replace(pins(**fields), hosted=hosted))


@pytest.mark.parametrize("declared", [(), ("code",)])
def test_a_block_that_nobody_declared_is_a_policy_error(declared: tuple[str, ...]) -> None:
    run = run_with(*declared)
    run.reply(text="found it", hosted=("code", "web_search"))
    assert run.stop() == ("terminated", "failed", "policy_denied")
    assert run.state.detail == "hosted_undeclared"
    assert run.state.counters.hosted_calls == 0


@pytest.mark.parametrize("finish", ["something_new", "empty", "model_error"])
def test_a_block_that_nobody_declared_is_a_policy_error_however_the_turn_ended(finish: Any) -> None:
    run = run_with()
    run.reply(text="found it", finish=finish, hosted=("web_search",))
    assert run.stop() == ("terminated", "failed", "policy_denied")
    assert run.state.detail == "hosted_undeclared"


def test_declared_blocks_are_on_record_and_counted_each() -> None:
    run = run_with("code", "web_search")
    run.reply(call("get_order", order_id="A"), hosted=("web_search", "code", "web_search"))
    responded = next(event for event, _ in run.log if isinstance(event, e.ModelResponded))
    assert responded.hosted == (("code", 1), ("web_search", 2))
    assert run.state.counters.hosted_calls == 3
    assert run.state.meters.tool_calls.spent == 0


def test_hosted_content_taints_the_calls_of_its_own_answer() -> None:
    run = run_with("web_search")
    run.reply(call("set_state", order_id="A", state="x"), hosted=("web_search",))
    assert run.phase("c1.0") == "proposed"
    assert run.state.untrusted == (SEARCH,)
    run.crash()
    assert run.state.untrusted == (SEARCH,)


def test_a_hosted_tool_is_never_evidence_whatever_it_is_called() -> None:
    run = run_with("refund", goal=Goal.of("refund"))
    run.reply(text="refunded", hosted=("refund",))
    run.reply(text="really refunded", hosted=("refund",))
    assert run.stop() == ("suspended", "incomplete", "evidence_missing")


def test_beyond_their_limit_nothing_further_is_sent_until_it_is_raised() -> None:
    run = run_with("web_search", bounds=limits(hosted_calls=1))
    run.reply(call("get_order", order_id="A"), hosted=("web_search", "web_search"))
    run.check("c1.0")
    run.report("c1.0")
    assert run.stop() == ("suspended", "incomplete", "max_tool_calls")
    assert run.state.detail == "hosted_calls"
    run.outside(Resume)
    assert run.refusal == "max_tool_calls"
    run.outside(RaiseLimits, raised={"hosted_calls": 5})
    run.outside(Resume)
    assert run.state.phase == "model_requested"


def test_a_child_has_only_what_its_agent_names_of_what_its_parent_accepts() -> None:
    researcher = agent(name="researcher", description="Searches.", hosted=("web_search", "code"))
    clerk = agent(name="clerk", description="Does not.")
    known = msgspec.structs.replace(
        family_pins(), tools=(*TOOLS, researcher.definition, clerk.definition), hosted=("web_search",)
    )
    for spec, wanted in ((researcher, ("web_search",)), (clerk, ())):
        tree = Family(known)
        tree.root.reply(call(spec.name, input="look"))
        tree.root.check("c1.0", definition_sha256=spec.definition_sha256)
        assert tree.start(tree.root, "c1.0").pins.hosted == wanted


@pytest.mark.parametrize(
    "given", ["web_search", 3, [""], ["x" * 65], ["é"], [1], [f"t{n}" for n in range(HOSTED_MAX + 1)]]
)
def test_names_that_are_none_are_refused(given: object) -> None:
    with pytest.raises(DeclarationError):
        hosted_names(given)


def test_names_are_sorted_and_each_is_there_once() -> None:
    assert hosted_names(["b", "a", "b"]) == ("a", "b")
