"""Leases: what a child is given of its parent's limits when it starts.

Every metered quantity moves the same way: the parent reserves it in its own log before the child has it, and settles it
by the child's log when the child has ended. So no run of a tree passes what any run above it was granted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .agent_definition import AgentDefinition
from .agent_reach import tools_of
from .budget import child_grant, child_shares
from .limits import LimitValues
from .state import EACH, METERED, State

_WITHOUT_TOOLS: Final = frozenset({"tool_calls", "call_attempts", "children"})


def grants(state: State, agents: Sequence[AgentDefinition]) -> list[dict[str, int]]:
    """The leases of children that start in one tick, in order. What an agent asks for comes first, never above what is
    free; those that ask for nothing share half of the remainder equally. A child that can't use a quantity has none."""
    leases: list[dict[str, int]] = [{} for _ in agents]
    for name in METERED:
        if name == "cost_micros" and state.limits.cost_micros is None:
            _grant_cost(agents, leases)
            continue
        free = getattr(state.meters, name).free
        if name in ("children", "call_attempts"):
            free = max(0, free - len(agents))  # each start is one of these itself
        sharing: list[int] = []
        for number, agent in enumerate(agents):
            if not _uses(state, agent, name):
                leases[number][name] = 0
            elif name in agent.limits:
                leases[number][name] = child_grant(free, 0, agent.limits[name])
                free -= leases[number][name]
            else:
                sharing.append(number)
        shares = child_shares(free, len(sharing)) if sharing else ()
        for number, share in zip(sharing, shares, strict=True):
            leases[number][name] = share
    for tool, most in state.limits.tool_calls_each.items():
        _grant_each(state, tool, most, agents, leases)
    return leases


def _grant_cost(agents: Sequence[AgentDefinition], leases: list[dict[str, int]]) -> None:
    """Where the parent's cost is waived a child's is too, unless its agent sets a limit of its own."""
    for agent, lease in zip(agents, leases, strict=True):
        if "cost_micros" in agent.limits:
            lease["cost_micros"] = agent.limits["cost_micros"]


def _grant_each(
    state: State, tool: str, most: int, agents: Sequence[AgentDefinition], leases: list[dict[str, int]]
) -> None:
    """Calls of one named tool: all that is left, in equal parts, the first ones a call more. They can't be topped up."""
    known = {definition.name: definition for definition in state.pins.tools}
    using = [
        number
        for number, agent in enumerate(agents)
        if any(definition.name == tool for definition in tools_of(agent, known))
    ]
    if not using:
        return
    part, over = divmod(max(0, most - state.calls_each.get(tool, 0)), len(using))
    for place, number in enumerate(using):
        leases[number][EACH + tool] = part + (1 if place < over else 0)


def _uses(state: State, agent: AgentDefinition, name: str) -> bool:
    if name not in _WITHOUT_TOOLS:
        return True
    if name != "children":
        return bool(agent.tools)
    kinds = {definition.name: definition.kind for definition in state.pins.tools}
    return state.depth + 1 < state.limits.depth and any(kinds.get(tool) == "agent" for tool in agent.tools)


def limits_of_child(
    state: State, agent: AgentDefinition, lease: dict[str, int], deadline_ms: int
) -> dict[str, int]:
    """The child's limits where they differ from the pinned ones: its parent's as they are now or lower, and what is
    metered by the lease. Of a tool that the agent can't reach no call is lent."""
    pinned = state.pins.limits
    wanted: dict[str, int] = {}
    for name in LimitValues.__struct_fields__:
        present: object = getattr(state.limits, name)
        if name not in METERED and type(present) is int:
            wanted[name] = min(present, agent.limits.get(name, present))
    wanted |= {EACH + tool: 0 for tool in pinned.tool_calls_each}
    wanted |= lease
    wanted["deadline_ms"] = deadline_ms
    wanted["depth"] = min(state.limits.depth, state.depth + 1 + agent.limits.get("depth", state.limits.depth))
    return {
        name: value
        for name, value in wanted.items()
        if name.startswith(EACH) or value != getattr(pinned, name)
    }
