"""No tree passes a limit of any run in it, whatever its shape; and what its runs used is what its root was charged."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.random_examples import examples
from tests.stepped_runtime import Site
from tests.tree_play import Play, Tree, own_use, priced, total_use, tree_of

from boundloop.adapters import ScriptedModel, ScriptedTurn, call, calls, say
from boundloop.runtime import Limits, agent, tool
from boundloop.runtime import events as e
from boundloop.runtime.model import ModelInput
from boundloop.runtime.state import METERED

SEARCHES: list[str] = []
ACTIONS = ("search", "agents", "both", "say", "fail", "cut")


@tool(risk="read")
def search(query: str) -> dict[str, Any]:
    "Search."
    SEARCHES.append(query)
    return {"found": query}


node = agent(name="node", description="Branches.", system="node", tools=("node", "search", "small"))
small = agent(
    name="small",
    description="Small.",
    system="small",
    tools=("search", "node"),
    limits={"turns": 2, "cost": 900},
)
TOOLS = (search, node, small)


def within(tree: Tree) -> None:
    """Counts never passed their limit, at any level; tokens and cost not by what was asked for."""
    for state, _ in tree.values():
        for name in METERED:
            meter = getattr(state.meters, name)
            assert meter.spent <= meter.granted + meter.overrun, name
            assert meter.overrun == 0, name
        assert state.phase == "terminated"
        assert state.depth <= state.limits.depth
        for below, _ in tree.values():
            if below.parent_run == state.run_id:
                assert below.deadline_at_ms <= state.deadline_at_ms


@pytest.mark.parametrize(
    ("calls_max", "tokens"), [(20, None), (20, 40_000), (2_000, None)], ids=["calls", "tokens", "turns"]
)
def test_depth_three_width_eight_under_the_roots_limits(
    calls_max: int, tokens: int | None, site: Site
) -> None:
    """The model proposes eight agents in every turn at every level, and searches besides."""
    SEARCHES.clear()

    def answer(request: ModelInput) -> ScriptedTurn:
        asked = [call("search", {"query": f"{request.run_id}/{request.turn}"})]
        agents = [call("node", {"input": f"{request.turn}/{n}"}) for n in range(8)]
        return calls(*asked, *agents)

    model = ScriptedModel(answer, price=priced(1_000))
    bounds: dict[str, Any] = {} if tokens is None else {"total_tokens": tokens, "output_tokens": tokens // 8}
    limits = Limits(
        cost=40_000_000,
        turns=40,
        tool_calls=calls_max,
        children=600,
        depth=3,
        deadline_s=600,
        output_tokens_per_request=100,
        **bounds,
    )
    host = site.open(model, TOOLS)
    result = host.run(limits=limits, on_stop="end")
    tree = tree_of(site, result.run_id)
    within(tree)
    used = total_use(tree)
    assert model.requests == used["model_attempts"] <= 80
    assert used["turns"] == result.spent["turns"] <= 40
    assert used["tool_calls"] == result.spent["tool_calls"] <= calls_max
    assert len(SEARCHES) <= calls_max
    assert result.outcome == "incomplete"
    assert max(state.depth for state, _ in tree.values()) == (2 if calls_max == 20 else 3)


def scripted(seed: int, width: int) -> Play:
    """Random behaviour, a function of the run and its turn."""

    def answer(request: ModelInput) -> ScriptedTurn:
        chance = random.Random(
            f"{seed}/{len(request.items)}/{request.turn}/{request.system}/{request.items[0]}"
        )
        if request.turn > 1 + chance.randrange(5):
            return say("done")
        action = chance.choice(ACTIONS if request.system else ("agents", "both"))
        asked = [call("search", {"query": str(chance.random())}) for _ in range(chance.randrange(1, 4))]
        agents = [
            call(chance.choice(("node", "small")), {"input": str(chance.random())})
            for _ in range(chance.randrange(1, width + 1))
        ]
        match action:
            case "search":
                return calls(*asked)
            case "agents":
                return calls(*agents)
            case "both":
                return calls(*asked, *agents)
            case "fail":
                return ScriptedTurn(finish="provider_error", error_code="overloaded", retryable=False)
            case "cut":
                return ScriptedTurn(text="x", finish="truncated")
            case _:
                return say("done")

    return Play({"": [answer] * 100, "node": [answer] * 100, "small": [answer] * 100}, price=priced(100))


@settings(max_examples=examples(40), deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 8),
    st.integers(1, 60),
    st.integers(0, 60),
    st.integers(0, 30),
    st.integers(0, 3),
    st.sampled_from([900, 5_000, 1_000_000]),
    st.booleans(),
)
def test_random_trees_keep_every_law(
    seed: int, width: int, turns: int, tool_calls: int, children: int, depth: int, cost: int, crash: bool
) -> None:
    SEARCHES.clear()
    site = Site()
    try:
        play = scripted(seed, width)
        limits = Limits(
            cost=cost,
            turns=turns,
            model_attempts=turns + 5,
            tool_calls=tool_calls,
            children=children,
            depth=1 + depth,
            output_tokens_per_request=40,
        )
        host = site.open(play.model, TOOLS)
        chance = random.Random(seed)
        if crash:
            host.line.cut_at(lambda events: chance.random() < 0.05 and not first(events), before=True)
        run_id = host.start(limits=limits, on_stop="end")
        host.settle()
        if host.line.broken.is_set():
            host.line.bury()
            host.crash()
            host = site.after_crash(host, TOOLS)
        host.advance(4_000_000)
        result = host.rest(run_id)
        assert result.status == "ended"
        tree = tree_of(site, run_id)
        within(tree)
        used = total_use(tree)
        for name, total in used.items():
            assert result.spent[name] == total, name
        assert used["turns"] <= turns
        assert used["tool_calls"] <= tool_calls
        assert used["children"] <= children
        assert len(play.asked) >= used["turns"]
        assert result.spent["cost_micros"] <= cost
        for state, events in tree.values():
            own = own_use(events)
            below = [event.spent for event in events if isinstance(event, e.ChildSettled)]
            for name in own:
                meter = getattr(state.meters, name)
                assert meter.spent == own[name] + sum(spent.get(name, 0) for spent in below), name
    finally:
        site.close()


def first(events: tuple[e.AnyEvent, ...]) -> bool:
    """The append that creates the run: its caller is told if that fails."""
    return isinstance(events[0], e.RunStarted)
