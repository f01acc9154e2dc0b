"""Trees over the real Runtime: agents as tools, side by side, in the calling run's limits."""

from __future__ import annotations

from typing import Any

from tests.stepped_runtime import Site, results_in
from tests.tree_play import Play, child_runs, data_of, total_use, tree_of

from boundloop.adapters import ScriptedTurn, call, calls, say
from boundloop.runtime import Limits, agent, spawn, tool
from boundloop.runtime import events as e

ASKED: list[str] = []


@tool(risk="read")
def search(query: str) -> dict[str, Any]:
    "Search."
    ASKED.append(query)
    return {"found": query}


researcher = agent(name="researcher", description="Finds things out.", system="researcher", tools=("search",))
writer = agent(name="writer", description="Writes.", system="writer")


def test_an_agent_is_a_tool_and_its_answer_is_the_result(site: Site) -> None:
    play = Play(
        {
            "": [call("researcher", {"input": "find X"}), say("done")],
            "researcher": [call("search", {"query": "X"}), say("X is here")],
        }
    )
    play.model.recorded = type(play.model.recorded)(maxlen=10)
    host = site.open(play.model, [search, researcher])
    result = host.run(tools=["researcher"])
    assert (result.outcome, result.text) == ("completed", "done")
    (child,) = child_runs(site, result.run_id)
    tree = tree_of(site, result.run_id)
    assert set(tree) == {result.run_id, child}
    state, events = tree[child]
    started = events[0]
    assert isinstance(started, e.RunStarted)
    assert (started.input, started.agent, started.on_stop, started.dense) == (
        "find X",
        "researcher",
        "end",
        True,
    )
    assert (state.operation_id, state.tenant, state.depth) == (result.operation_id, "default", 1)
    assert [tool.name for tool in state.pins.tools] == ["search"]
    answers = [data_of(item.content) for request in play.model.recorded for item in results_in(request)]
    shown = next(answer["data"] for answer in answers if "outcome" in answer["data"])
    assert shown == {
        "agent": "researcher",
        "outcome": "completed",
        "reason": "final",
        "run": child,
        "succeeded": {"search": 1},
        "text": "X is here",
    }
    used = total_use(tree)
    assert result.spent["turns"] == used["turns"] == 4
    assert result.spent["tool_calls"] == used["tool_calls"] == 2
    assert result.spent["children"] == 1


def test_several_in_one_turn_run_side_by_side_and_hold_no_host(site: Site) -> None:
    play = Play(
        {
            "": [
                calls(*(call("spawn", {"agent": "writer", "input": f"part {n}"}) for n in range(4))),
                say("all written"),
            ],
            "writer": [ScriptedTurn(text="w", gate="pen")],
        }
    )
    host = site.open(play.model, [spawn([researcher, writer]), search])
    run_id = host.start(limits=Limits(cost="1", parallel=3))
    host.settle()
    parent = host.state(run_id)
    assert [one.phase for one in parent.calls.values()] == ["waiting_child"] * 3 + ["checking"]
    row = host.on_loop(site.store.run(run_id))
    assert row is not None
    assert (row.owner, row.index.status) == ("", "waiting_child")
    assert row.index.waiting_for in {f"child:{child}" for child in child_runs(site, run_id)}
    play.model.gate("pen").open()
    result = host.rest(run_id)
    assert (result.outcome, result.text) == ("completed", "all written")
    assert len(tree_of(site, run_id)) == 5
