"""Declaring agents: what is refused, what is pinned, and what a child may be offered."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from boundloop.runtime import Goal, Limits, Toolbox, agent, spawn, tool
from boundloop.runtime.agent_reach import tools_of
from boundloop.runtime.errors import DeclarationError, DuplicateTool, UnknownTool
from boundloop.runtime.tool_definition import ToolDefinition


@tool(risk="read")
def search(query: str) -> str:
    "Search."
    return query


@tool(risk="read", permissions=("secrets",))
def read_secret(name: str) -> str:
    "Read a secret."
    return name


def made(**fields: Any) -> ToolDefinition:
    values: dict[str, Any] = {"name": "helper", "description": "Helps.", **fields}
    return agent(**values).definition


def test_an_agent_is_a_tool_of_its_own_kind() -> None:
    definition = made(system="Be brief.", tools=("search",), goal="search")
    assert (definition.kind, definition.risk, definition.max_attempts) == ("agent", "read", 1)
    assert definition.parameters["required"] == ["input"]
    (described,) = definition.agents
    assert (described.system, described.tools, described.on_stop) == ("Be brief.", ("search",), "end")
    assert described.goal == Goal.of("search")


@pytest.mark.parametrize(
    "changed",
    [
        {"system": "other"},
        {"tools": ("search",)},
        {"limits": {"turns": 3}},
        {"goal": "search"},
        {"on_stop": "suspend"},
        {"description": "Other."},
        {"approval": "always"},
    ],
)
def test_the_definition_hash_covers_what_the_child_is(changed: dict[str, Any]) -> None:
    assert made(**changed).definition_sha256 != made().definition_sha256


def test_an_ordinary_tools_hash_is_what_it_was() -> None:
    definition = Toolbox([search])["search"].definition
    assert definition.definition_sha256.hex() == (
        "8575ab1fe82d1b4049963e2a40e7fe1d0deb48c04b3ce4d3ececf2e869064fea"
    )


def test_older_pins_have_ordinary_tools() -> None:
    encoded = msgspec.json.decode(msgspec.json.encode(Toolbox([search])["search"].definition))
    for name in ("kind", "agents", "offered"):
        del encoded[name]
    read = msgspec.json.decode(msgspec.json.encode(encoded), type=ToolDefinition)
    assert (read.kind, read.agents, read.offered) == ("tool", (), True)
    assert read.definition_sha256 == Toolbox([search])["search"].definition.definition_sha256


def test_pins_of_an_agent_read_back() -> None:
    definition = made(limits={"cost": "0.05", "deadline_s": 60, "turns": 3}, goal="search", tools=("search",))
    assert msgspec.json.decode(msgspec.json.encode(definition), type=ToolDefinition) == definition
    assert definition.agents[0].limits == {"cost_micros": 50_000, "deadline_ms": 60_000, "turns": 3}


def test_limits_ask_for_what_was_written_and_no_default() -> None:
    asked = made(limits=Limits(cost="0.05", turns=3)).agents[0].limits
    assert asked == {"cost_micros": 50_000, "turns": 3}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"name": "Helper"}, "tool_name"),
        ({"description": " "}, "description_missing"),
        ({"description": 7}, "description_missing"),
        ({"system": 7}, "agent_system"),
        ({"system": "\ud800"}, "agent_system"),
        ({"system": "x" * 1_048_577}, "agent_system"),
        ({"tools": "search"}, "agent_tools"),
        ({"tools": ("search", "search")}, "agent_tools"),
        ({"tools": ("Search",)}, "agent_tools"),
        ({"tools": (7,)}, "agent_tools"),
        ({"limits": 7}, "option_type"),
        ({"limits": {"nonsense": 7}}, "unknown_limit"),
        ({"limits": {"tool_calls_each": {}}}, "unknown_limit"),
        ({"limits": {"turns": "7"}}, "limit_type"),
        ({"limits": {"turns": True}}, "limit_type"),
        ({"limits": {"turns": 0}}, "limit_range"),
        ({"limits": {"turns": 2**60}}, "limit_range"),
        ({"limits": {"cost": "-1"}}, "money_syntax"),
        ({"limits": {"cost": 0.1}}, "money_type"),
        ({"on_stop": "wait"}, "option_value"),
        ({"approval": "sometimes"}, "unknown_approval"),
        ({"result_bytes_max": 0}, "out_of_bounds"),
        ({"params": {"type": "array"}}, None),
    ],
)
def test_absurd_agents_are_refused(fields: dict[str, Any], code: str | None) -> None:
    with pytest.raises(DeclarationError) as caught:
        made(**fields)
    assert code in (None, caught.value.code)


def test_spawn_is_one_tool_over_several() -> None:
    first = agent(name="first", description="One.")
    second = agent(name="second", description="Two.")
    definition = spawn([first, second]).definition
    assert definition.name == "spawn"
    assert definition.parameters["properties"]["agent"]["enum"] == ["first", "second"]
    assert "- second: Two." in definition.description
    assert [one.name for one in definition.agents] == ["first", "second"]


def test_absurd_spawns_are_refused() -> None:
    helper = agent(name="helper", description="Helps.")
    for agents in ([], [helper, helper], [search]):
        with pytest.raises(DeclarationError):
            spawn(agents)  # type: ignore[arg-type]  # some are none


def test_a_toolbox_knows_the_tools_of_its_agents() -> None:
    helper = agent(name="helper", description="Helps.", tools=("search", "helper"))
    assert list(Toolbox([search, helper])) == ["search", "helper"]
    with pytest.raises(UnknownTool):
        Toolbox([helper])
    with pytest.raises(DuplicateTool):
        Toolbox([search, helper, helper])
    assert list(Toolbox([search, helper]).subset(["helper"])) == ["helper"]


def test_what_only_agents_use_is_pinned_and_not_offered() -> None:
    helper = agent(name="helper", description="Helps.", tools=("search", "other"))
    other = agent(name="other", description="Other.", tools=("read_secret", "helper"))
    box = Toolbox([search, read_secret, helper, other])
    pinned = box.offered(frozenset(), frozenset({"helper"}))
    assert [(one.name, one.offered) for one in pinned] == [
        ("helper", True),
        ("search", False),
        ("other", False),
    ]
    granted = box.offered(frozenset({"secrets"}), frozenset({"helper"}))
    assert [one.name for one in granted if not one.offered] == ["search", "other", "read_secret"]


def test_a_child_has_its_own_tools_and_those_of_its_agents() -> None:
    helper = agent(name="helper", description="Helps.", tools=("search", "other"))
    other = agent(name="other", description="Other.", tools=("helper",))
    known = {one.name: one for one in Toolbox([search, helper, other]).offered(frozenset())}
    of_other = tools_of(known["other"].agents[0], known)
    assert [(one.name, one.offered) for one in of_other] == [
        ("helper", True),
        ("search", False),
        ("other", False),
    ]
