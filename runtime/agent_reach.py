"""Which tools the agents of a run, and their agents, may be offered: by name, without anybody's code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from .agent_definition import AgentDefinition
from .tool_definition import ToolDefinition


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
