"""What is declared with something of another kind is refused by the name of its place, never by an error of Python's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
from tests.stepped_runtime import Site

from boundloop.adapters.script import say
from boundloop.runtime.agent_spec import agent, spawn
from boundloop.runtime.errors import DeclarationError
from boundloop.runtime.goal import Evidence, Goal
from boundloop.runtime.goal_spec import checked_goal
from boundloop.runtime.guardrails import Guardrails
from boundloop.runtime.limits import Limits
from boundloop.runtime.policy import Policy
from boundloop.runtime.redaction import Redaction
from boundloop.runtime.stage_spec import Stage
from boundloop.runtime.tool_spec import tool
from boundloop.runtime.toolbox import Toolbox

OTHERS: tuple[Any, ...] = (7, ["a", 7], [7], (None,), "ab", {"a": 7}, {7: 1}, b"ab", object())


def declared(**given: Any) -> Any:
    def fresh(n: int) -> dict[str, int]:
        """Look."""
        return {}

    options: dict[str, Any] = {"risk": "read", **given}
    return tool(**options)(fresh)


def made(maker: Callable[..., object], **usual: Any) -> Callable[..., object]:
    """What makes a declaration of the usual fields and of those that are given."""

    def make(**given: Any) -> object:
        return maker(**{**usual, **given})

    return make


def one_predicate(**given: Any) -> Goal:
    fields: dict[str, Any] = {"tool": "look", **given}
    return Goal.of(Evidence(**fields))


def whole_goal(**given: Any) -> Goal:
    return checked_goal(Goal(**given))


MAKERS: dict[str, tuple[Callable[..., object], tuple[str, ...]]] = {
    "tool": (
        declared,
        (
            "name",
            "description",
            "facts",
            "conditions",
            "permissions",
            "incidental",
            "volatile",
            "rate",
            "params",
        ),
    ),
    "evidence": (
        one_predicate,
        ("tool", "arguments", "result", "count"),
    ),
    "goal": (whole_goal, ("evidence", "citations")),
    "goal of": (made(partial(Goal.of, "look")), ("output", "from_results", "citations")),
    "redaction": (Redaction, ("values", "patterns", "fields", "revision")),
    "guardrails": (made(Guardrails, revision="1"), ("call", "answer", "revision")),
    "policy": (Policy, ("decide", "revision", "guardrails")),
    "limits": (
        made(Limits, cost="1"),
        ("turns", "tool_calls_each", "deadline_s", "cost"),
    ),
    "agent": (
        made(agent, name="a", description="A."),
        ("name", "description", "tools", "limits", "goal", "stages", "permissions", "hosted", "params"),
    ),
    "spawn": (spawn, ("agents",)),
}


@pytest.mark.parametrize(
    ("maker", "field"), [(name, field) for name, (_, fields) in MAKERS.items() for field in fields]
)
def test_a_declaration_of_another_kind_is_taken_or_refused_by_name(maker: str, field: str) -> None:
    make, _ = MAKERS[maker]
    codes: list[str] = []
    for other in OTHERS:
        try:
            make(**{field: other})
        except DeclarationError as error:
            codes.append(error.code)
    assert all(codes)
    assert len(codes) >= 3, "most of them are no such thing"


@pytest.mark.parametrize(
    ("make", "code", "path"),
    [
        (lambda: declared(facts=["state"]), "option_type", "facts"),
        (lambda: declared(permissions="pay"), "option_type", "permissions"),
        (lambda: Redaction(values=cast("Any", ["abcd"])), "redaction_type", "redact.values"),
        (lambda: Guardrails(answer=cast("Any", print)), "guardrail_revision", "revision"),
        (lambda: Limits(turn=3), "unknown_limit", "turn"),
        (lambda: Limits(cost="1", turn=3), "unknown_limit", "turn"),
        (lambda: Goal.of(Evidence("look", result=cast("Any", ["n"]))), "goal_type", "goal.look.result"),
        (lambda: Goal.of(cast("Any", 7)), "goal_type", "goal"),
    ],
)
def test_the_field_is_named(make: Callable[[], object], code: str, path: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        make()
    assert (caught.value.code, caught.value.path) == (code, path)


# --- fields that a declared type rules out ------------------------------------------------------------------------------

ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "state": {"type": "string"},
        "paid": {"anyOf": [{"$ref": "#/$defs/Paid"}, {"type": "null"}]},
        "more": {"type": "object", "additionalProperties": {"type": "string"}},
        "open": {"type": "object"},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/Paid"}},
    },
    "$defs": {"Paid": {"type": "object", "properties": {"cents": {"type": "integer"}}}},
}


def order_tool(**given: Any) -> Any:
    return declared(name="look", returns=ORDER, **given)


@pytest.mark.parametrize("path", ["state", "paid.cents", "more.anything", "open.any.thing", "paid", "open"])
def test_a_path_that_the_result_can_have_is_declared(path: str) -> None:
    order_tool(conditions=(path,))


@pytest.mark.parametrize(
    "path", ["stat", "paid.cent", "paid.cents.amount", "state.value", "more.one.deeper", "lines.cents"]
)
@pytest.mark.parametrize("field", ["conditions", "facts"])
def test_a_path_that_the_result_rules_out_is_refused(field: str, path: str) -> None:
    """Behind a reference and inside a union too: nested types are written so."""
    with pytest.raises(DeclarationError) as caught:
        order_tool(**{field: (path,) if field == "conditions" else {"fact": path}})
    assert (caught.value.code, caught.value.path) == ("result_field", f"look.{field}.{path}")


@pytest.mark.parametrize("path", ["paid", "lines", "more"])
def test_a_fact_that_can_not_be_a_scalar_is_refused(path: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        order_tool(facts={"fact": path})
    assert caught.value.code == "fact_type"


WRONG_EVIDENCE = [
    (Evidence("look", result={"stat": "paid"}), "look.result.stat"),
    (Evidence("look", arguments={"m": 1}), "look.arguments.m"),
]


@pytest.mark.parametrize(("evidence", "place"), WRONG_EVIDENCE)
def test_evidence_that_no_result_can_be_starts_no_run(site: Site, evidence: Evidence, place: str) -> None:
    host = site.open([say("done")], [order_tool()])
    with pytest.raises(DeclarationError) as caught:
        host.start(goal=Goal.of(evidence))
    assert (caught.value.code, caught.value.path) == ("evidence_field", f"goal.{place}")
    stages = (Stage("one", tools=("look",), leave=evidence), Stage("two"))
    with pytest.raises(DeclarationError) as caught:
        host.start(stages=stages)
    assert (caught.value.code, caught.value.path) == ("evidence_field", f"stages.one.{place}")
    helper = agent(name="helper", description="Helps.", tools=("look",), goal=Goal.of(evidence))
    with pytest.raises(DeclarationError) as caught:
        Toolbox([order_tool(), helper])
    assert (caught.value.code, caught.value.path) == ("evidence_field", f"helper.goal.{place}")


def test_evidence_over_what_nothing_is_declared_of_starts_a_run(site: Site) -> None:
    @tool(risk="read")
    def undeclared(n: int) -> Any:
        """Whatever."""
        return n

    host = site.open([say("done")], [undeclared, order_tool()])
    fits = Evidence("look", arguments={"n": 1}, result={"state": "paid", "open": {"a": 1}})
    for evidence in (
        Evidence("undeclared", result={"any": 1}),
        Evidence("elsewhere", result={"any": 1}),
        fits,
    ):
        assert host.start(goal=Goal.of(evidence))
