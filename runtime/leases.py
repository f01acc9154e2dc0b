"""Leases: what a child is given of its parent's limits when it starts.

Every metered quantity moves the same way: the parent reserves it in its own log before the child has it, and settles it
by the child's log when the child has ended. So no run of a tree passes what any run above it was granted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from .agent_definition import AgentDefinition
from .agent_reach import tools_of
from .budget import child_grant, child_shares
from .limits import CEILING, LimitValues
from .state import EACH, METERED, State
from .tool_cost import cost_of_attempt
from .transitions import CallPhase

_WITHOUT_TOOLS: Final = frozenset({"tool_calls", "call_attempts", "children"})
_NOT_STARTED: Final[tuple[CallPhase, ...]] = ("proposed", "checking", "waiting_approval", "waiting_key")


def needed_to_start(state: State, phases: Collection[CallPhase]) -> dict[str, int]:
    """What the open calls in these phases need for their first start and haven't set aside."""
    needed = {"tool_calls": 0, "call_attempts": 0, "cost_micros": 0, "children": 0}
    for call in state.calls.values():
        definition = state.tools.get(call.tool)
        if definition is None or call.phase not in phases or call.attempt:
            continue
        needed["tool_calls"] += call.phase == "proposed"
        needed["call_attempts"] += 1
        needed["cost_micros"] += cost_of_attempt(state, call)
        needed["children"] += definition.kind == "agent"
    return needed


def to_give(state: State, name: str) -> int:
    """How much of this may be given to child runs: what is free, less what calls of the run itself need to start."""
    free: int = getattr(state.meters, name).free
    return max(0, free - needed_to_start(state, _NOT_STARTED).get(name, 0))


def grants(state: State, agents: Sequence[AgentDefinition]) -> list[dict[str, int]]:
    """The leases of children that start in one tick, in order; their calls haven't started yet. What an agent asks for
    comes first, never above what is to be given; those that ask for nothing share half of the remainder equally. A child that can't use a quantity has none."""
    leases: list[dict[str, int]] = [{} for _ in agents]
    for name in METERED:
        if name == "cost_micros" and state.limits.cost_micros is None:
            _grant_cost(agents, leases)
            continue
        free = to_give(state, name)
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
    return state.depth + 1 < _depth(state, agent) and any(kinds.get(tool) == "agent" for tool in agent.tools)


def _depth(state: State, agent: AgentDefinition) -> int:
    """The child's limit: counted from the root, as its parent's is; what the agent asks for counts from the child."""
    return min(state.limits.depth, state.depth + 1 + agent.limits.get("depth", CEILING))


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
    wanted["depth"] = _depth(state, agent)
    if "context_tokens" in agent.limits and "output_tokens_per_request" not in agent.limits:
        # As much output as its parent's in so much less context would leave no room for what is asked.
        half = max(1, wanted["context_tokens"] // 2)
        wanted["output_tokens_per_request"] = min(wanted["output_tokens_per_request"], half)
    return {
        name: value
        for name, value in wanted.items()
        if name.startswith(EACH) or value != getattr(pinned, name)
    }
