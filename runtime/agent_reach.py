"""Which agent a call asks for, and which tools the agents of a run, and their agents, may be offered: by name, without
anybody's code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import cast

import msgspec

from .agent_definition import AgentDefinition
from .canonical import JSON
from .tool_definition import ToolDefinition


def is_chosen(definition: ToolDefinition) -> bool:
    """Whether a call names its agent by the argument ``agent``: so it is with what ``spawn`` gave, even of one agent."""
    members = cast("dict[str, JSON]", definition.parameters.get("properties", {}))
    member = members.get("agent")
    return isinstance(member, dict) and member.get("enum") == [agent.name for agent in definition.agents]


def agent_called(definition: ToolDefinition, arguments: JSON) -> AgentDefinition | None:
    """The agent that a call with these arguments asks for; None if the tool is no agent, or has none of that name."""
    if not is_chosen(definition):
        return definition.agents[0] if len(definition.agents) == 1 else None
    name = arguments.get("agent") if isinstance(arguments, dict) else None
    return next((agent for agent in definition.agents if agent.name == name), None)


def permitted(definition: ToolDefinition, permissions: frozenset[str]) -> bool:
    """Whether somebody with these permissions may call the tool at all: one of its agents, if it starts agents."""
    return permissions.issuperset(definition.permissions) and (
        not definition.agents or any(permissions.issuperset(agent.permissions) for agent in definition.agents)
    )


def names_of_agents(definition: ToolDefinition) -> Iterator[str]:
    """What the agents that this tool starts are offered; nothing for an ordinary tool."""
    return (name for agent in definition.agents for name in agent.tools)


def reachable(
    own: Iterable[ToolDefinition], known: Mapping[str, ToolDefinition]
) -> tuple[ToolDefinition, ...]:
    """The tools among `known` that only the agents of `own` are offered, and their agents', each once, not `offered`."""
    found: dict[str, ToolDefinition] = {}
    seen = list(own)
    here = {definition.name for definition in seen}
    for definition in seen:  # grows on the way, by each name at most once
        for name in names_of_agents(definition):
            if name in known and name not in here:
                here.add(name)
                seen.append(known[name])
                found[name] = msgspec.structs.replace(known[name], offered=False)
    return tuple(found.values())


def tools_of(agent: AgentDefinition, known: Mapping[str, ToolDefinition]) -> tuple[ToolDefinition, ...]:
    """What a child run of this agent has of its parent's tools: those that it is offered, then those of its agents."""
    own = [
        known[name] if known[name].offered else msgspec.structs.replace(known[name], offered=True)
        for name in agent.tools
        if name in known
    ]
    return (*own, *reachable(own, known))
