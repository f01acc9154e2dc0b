"""Trees over the real Runtime: agents as tools, side by side, in the calling run's limits."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest
from tests.stepped_runtime import HOST_LAPSES_MS, Site, has, results_in
from tests.tree_play import Play, child_runs, data_of, total_use, tree_of

from boundloop.adapters import ScriptedTurn, call, calls, say
from boundloop.runtime import Limits, agent, spawn, tool
from boundloop.runtime import events as e
from boundloop.runtime.children import child_run_id

REFUNDS: list[str] = []


@tool(risk="read")
def search(query: str) -> dict[str, Any]:
    "Search."
    return {"found": query}


@tool(risk="irreversible", key=("order_id",), far_side="keyed")
def refund(order_id: str, ctx: Any) -> dict[str, Any]:
    "Refund an order."
    REFUNDS.append(ctx.key)
    return {"refunded": order_id}


researcher = agent(name="researcher", description="Finds things out.", system="researcher", tools=("search",))
writer = agent(name="writer", description="Writes.", system="writer")
lead = agent(name="lead", description="Leads.", system="lead", tools=("researcher", "clerk", "lead"))
clerk = agent(name="clerk", description="Refunds.", system="clerk", tools=("refund",), goal="refund")
TOOLS = (search, refund, researcher, writer, lead, clerk)


@pytest.fixture(autouse=True)
def forget_refunds() -> None:
    REFUNDS.clear()


def test_an_agent_is_a_tool_and_its_answer_is_the_result(site: Site) -> None:
    play = Play(
        {
            "": [call("researcher", {"input": "find X"}), say("done")],
            "researcher": [call("search", {"query": "X"}), say("X is here")],
        }
    )
    play.model.recorded = deque(maxlen=10)
    host = site.open(play.model, TOOLS)
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
    assert [[tool.name for tool in request.tools] for request in play.model.recorded] == [
        ["researcher"],
        ["search"],
        ["search"],
        ["researcher"],
    ]
    answers = [data_of(item.content) for request in play.model.recorded for item in results_in(request)]
    assert answers[-1]["data"] == {
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


def approval_in_a_grandchild() -> Play:
    return Play(
        {
            "": [call("lead", {"input": "refund A"}), say("refunded")],
            "lead": [call("clerk", {"input": "refund A"}), say("the clerk did it")],
            "clerk": [call("refund", {"order_id": "A"}), say("refunded A")],
        }
    )


def test_an_approval_three_levels_down_survives_a_restart_and_runs_once(site: Site) -> None:
    play = approval_in_a_grandchild()
    host = site.open(play.model, TOOLS)
    run_id = host.start()
    host.settle()
    (child,) = child_runs(site, run_id)
    (grandchild,) = child_runs(site, child)
    for waiting in (run_id, child, grandchild):
        row = host.on_loop(site.store.run(waiting))
        assert row is not None
        assert row.owner == ""
    (asked,) = site.of(grandchild, e.ApprovalRequested)
    host.crash()
    again = site.after_crash(host, TOOLS)
    again.settle()
    again.rt.approve(grandchild, asked.approval_id, by="boss")
    result = again.rest(run_id)
    assert (result.outcome, result.text) == ("completed", "refunded")
    assert len(REFUNDS) == 1
    tree_of(site, run_id)


def test_two_children_that_want_the_same_refund_make_one_effect(site: Site) -> None:
    play = Play(
        {
            "": [
                calls(call("clerk", {"input": "refund A"}), call("clerk", {"input": "refund A please"})),
                say("done"),
            ],
            "clerk": [call("refund", {"order_id": "A"}), say("refunded A")],
        }
    )
    host = site.open(play.model, TOOLS)
    run_id = host.start()
    host.settle()
    first, second = child_runs(site, run_id)
    asked = [*site.of(first, e.ApprovalRequested), *site.of(second, e.ApprovalRequested)]
    assert len(asked) == 1
    owner = first if site.of(first, e.ApprovalRequested) else second
    host.rt.approve(owner, asked[0].approval_id, by="boss")
    result = host.rest(run_id)
    assert result.outcome == "completed"
    assert len(REFUNDS) == 1
    tree_of(site, run_id)


def test_cancel_goes_down_to_parked_grandchildren(site: Site) -> None:
    host = site.open(approval_in_a_grandchild().model, TOOLS)
    run_id = host.start()
    host.settle()
    host.rt.cancel(run_id)
    result = host.rest(run_id)
    assert (result.outcome, result.reason) == ("cancelled", "by_user")
    tree = tree_of(site, run_id)
    assert len(tree) == 3
    for state, _ in tree.values():
        assert (state.phase, state.outcome) == ("terminated", "cancelled")
    below = [state for state, _ in tree.values() if state.depth]
    assert {state.reason for state in below} == {"by_parent"}
    assert not REFUNDS


def test_cancel_reaches_children_at_work(site: Site) -> None:
    play = Play(
        {
            "": [calls(*(call("writer", {"input": str(n)}) for n in range(3))), say("never")],
            "writer": [ScriptedTurn(text="w", gate="pen")],
        }
    )
    host = site.open(play.model, TOOLS)
    run_id = host.start()
    host.settle()
    host.rt.cancel(run_id)
    assert host.rest(run_id).reason == "by_user"
    tree = tree_of(site, run_id)
    assert [state.reason for state, _ in tree.values() if state.depth] == ["by_parent"] * 3


def test_cancel_reaches_a_tool_of_a_grandchild(site: Site) -> None:
    stopped: list[str] = []

    @tool(risk="read", inline=True)
    async def watch(what: str) -> dict[str, Any]:
        "Watch until something happens."
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            stopped.append(what)
        return {}

    watcher = agent(name="watcher", description="Watches.", system="watcher", tools=("watch",))
    boss = agent(name="boss", description="Has it watched.", system="boss", tools=("watcher",))
    play = Play(
        {
            "": [call("boss", {"input": "x"})],
            "boss": [call("watcher", {"input": "x"})],
            "watcher": [calls(call("watch", {"what": "a"}), call("watch", {"what": "b"}))],
        }
    )
    host = site.open(play.model, [watch, watcher, boss])
    run_id = host.start()
    host.settle()
    host.rt.cancel(run_id, by="boss")
    assert host.rest(run_id).reason == "by_user"
    assert sorted(stopped) == ["a", "b"]
    assert {state.phase for state, _ in tree_of(site, run_id).values()} == {"terminated"}


def test_a_childs_cancel_does_not_end_its_parent(site: Site) -> None:
    play = Play(
        {
            "": [call("writer", {"input": "x"}), say("went on")],
            "writer": [ScriptedTurn(text="w", gate="pen")],
        }
    )
    host = site.open(play.model, TOOLS)
    run_id = host.start()
    host.settle()
    (child,) = child_runs(site, run_id)
    host.rt.cancel(child)
    result = host.rest(run_id)
    assert (result.outcome, result.text) == ("completed", "went on")
    assert site.of(run_id, e.ResultBound)[0].code == "by_user"


def test_a_common_deadline_ends_the_child_first_and_then_its_parent(site: Site) -> None:
    play = Play(
        {
            "": [call("writer", {"input": "x"}), say("never")],
            "writer": [ScriptedTurn(text="w", gate="pen")],
        }
    )
    host = site.open(play.model, TOOLS)
    run_id = host.start(limits=Limits(cost="1", deadline_s=60), on_stop="end")
    host.settle()
    host.advance(59_000)
    assert host.state(run_id).live
    host.advance(2_000)
    result = host.rest(run_id)
    assert (result.outcome, result.reason) == ("incomplete", "deadline")
    (child,) = child_runs(site, run_id)
    tree = tree_of(site, run_id)
    assert tree[child][0].reason == "deadline"
    settled = [event for event in tree[run_id][1] if isinstance(event, e.ChildSettled)]
    assert [event.reason for event in settled] == ["deadline"]


def test_a_deadline_reaches_a_parked_tree(site: Site) -> None:
    host = site.open(approval_in_a_grandchild().model, TOOLS)
    run_id = host.start(limits=Limits(cost="1", deadline_s=60), on_stop="end")
    host.settle()
    host.advance(61_000)
    assert host.rest(run_id).reason == "deadline"
    assert {state.phase for state, _ in tree_of(site, run_id).values()} == {"terminated"}


def test_a_child_that_runs_out_gets_more_of_what_is_left(site: Site) -> None:
    play = Play(
        {
            "": [call("researcher", {"input": "a lot"}), say("done")],
            "researcher": [call("search", {"query": str(n)}) for n in range(8)] + [say("found")],
        }
    )
    host = site.open(play.model, TOOLS)
    result = host.run(limits=Limits(cost="1", turns=12, tool_calls=12))
    assert (result.outcome, result.text) == ("completed", "done")
    assert result.spent["turns"] == 11
    (child,) = child_runs(site, result.run_id)
    assert site.of(result.run_id, e.ChildToppedUp)
    assert site.of(child, e.LimitsRaised)
    tree_of(site, result.run_id)


def test_a_child_that_gets_no_more_ends_and_its_parent_hears_why(site: Site) -> None:
    play = Play(
        {
            "": [call("researcher", {"input": "a lot"}), say("done")],
            "researcher": [call("search", {"query": str(n)}) for n in range(50)],
        }
    )
    host = site.open(play.model, TOOLS)
    result = host.run(limits=Limits(cost="1", turns=30, tool_calls=5))
    assert (result.outcome, result.text) == ("completed", "done")
    assert site.of(result.run_id, e.ResultBound)[0].code == "max_tool_calls"
    assert result.spent["tool_calls"] == 5
    tree_of(site, result.run_id)


def test_eight_children_at_once_never_pass_nine_calls(site: Site) -> None:
    play = Play(
        {
            "": [calls(*(call("researcher", {"input": str(n)}) for n in range(8))), say("done")],
            "researcher": [
                calls(call("search", {"query": "a"}), call("search", {"query": "b"})),
                say("found"),
            ],
        }
    )
    host = site.open(play.model, TOOLS)
    result = host.run(limits=Limits(cost="1", tool_calls=9, turns=60))
    assert len(child_runs(site, result.run_id)) == 8
    used = total_use(tree_of(site, result.run_id))
    assert used["tool_calls"] == result.spent["tool_calls"] == 9


def test_a_child_without_limits_of_its_own_has_a_share_of_its_parents(site: Site) -> None:
    play = Play({"": [call("writer", {"input": "x"}), say("done")], "writer": [say("w")]})
    host = site.open(play.model, TOOLS)
    limits = Limits(cost="1", turns=11, total_tokens=50_000, output_tokens=9_000, denials=3, deadline_s=90)
    run_id = host.run(limits=limits).run_id
    (child,) = child_runs(site, run_id)
    got = host.state(child).limits
    assert (got.turns, got.denials, got.deadline_ms) == (5, 3, 90_000)
    assert got.total_tokens <= 25_000
    assert got.output_tokens <= 4_500
    assert got.cost_micros == 500_000


def test_an_agent_that_starts_itself_for_ever_stops_at_the_roots_limits(site: Site) -> None:
    """A counter that is reset at each run's border would never end this."""
    play = Play(
        {
            "": [call("lead", {"input": "x"}), say("done")],
            "lead": [call("lead", {"input": f"again {n}"}) for n in range(100)],
        }
    )
    host = site.open(play.model, TOOLS)
    result = host.run(limits=Limits(cost="1", turns=30, children=12, depth=3))
    tree = tree_of(site, result.run_id)
    used = total_use(tree)
    assert used["turns"] <= 30
    assert used["children"] <= 12
    assert max(state.depth for state, _ in tree.values()) == 3
    assert result.outcome in ("completed", "incomplete")


def test_what_a_parent_swallows_is_still_its_own_limit(site: Site) -> None:
    """A parent that dispatches failed children again and again ends at its limit, not never."""
    play = Play(
        {
            "": [call("researcher", {"input": f"try {n}"}) for n in range(100)],
            "researcher": [call("search", {"query": "x"}) for _ in range(100)],
        }
    )
    host = site.open(play.model, TOOLS)
    result = host.run(limits=Limits(cost="1", turns=200, tool_calls=9, model_attempts=300), on_stop="end")
    assert (result.outcome, result.reason) == ("incomplete", "max_tool_calls")
    assert result.spent["tool_calls"] == total_use(tree_of(site, result.run_id))["tool_calls"] == 9


def test_a_kill_switch_holds_up_agents(site: Site) -> None:
    play = Play({"": [call("writer", {"input": "x"}), say("done")], "writer": [say("w")]})
    host = site.open(play.model, TOOLS)
    host.rt.switch("tool", "writer", on=True, by="ops")
    result = host.run()
    assert result.outcome == "completed"
    assert site.of(result.run_id, e.CallRejected)[0].rung == "switch"
    assert not child_runs(site, result.run_id)


def test_a_person_is_asked_before_an_agent_that_says_so(site: Site) -> None:
    careful = agent(name="careful", description="Careful.", system="writer", approval="always")
    play = Play({"": [call("careful", {"input": "x"}), say("done")], "writer": [say("w")]})
    host = site.open(play.model, [careful])
    result = host.run()
    assert result.status == "waiting"
    host.rt.approve(result.run_id, result.approvals[0].approval_id, by="boss")
    assert host.rest(result.run_id).outcome == "completed"
    tree_of(site, result.run_id)


def test_a_child_of_another_process_goes_on_when_that_dies(site: Site) -> None:
    play = Play(
        {
            "": [call("writer", {"input": "x"}), say("done")],
            "writer": [ScriptedTurn(text="w", gate="pen")],
        }
    )
    host = site.open(play.model, TOOLS)
    host.line.cut_at(has(e.ChildStarted), before=True)
    run_id = host.start()
    host.settle()
    host.crash()
    again = site.after_crash(host, TOOLS)
    again.settle()
    play.model.gate("pen").open()
    again.advance(HOST_LAPSES_MS)
    assert again.rest(run_id).text == "done"
    assert len(tree_of(site, run_id)) == 2


def test_a_damaged_child_has_spent_its_lease_and_its_parent_goes_on(site: Site) -> None:
    """Nobody writes into a damaged log: whoever marks it wakes its parent, which looks."""
    host = site.open(approval_in_a_grandchild().model, TOOLS)
    run_id = host.start(limits=Limits(cost="1", deadline_s=60), on_stop="end")
    host.settle()
    (child,) = child_runs(site, run_id)
    host.on_loop(site.store.mark_damaged(child, "its log was altered"))
    result = host.rest(run_id)
    assert (result.outcome, result.text) == ("completed", "refunded")
    (settled,) = site.of(run_id, e.ChildSettled)
    assert (settled.outcome, settled.reason) == ("failed", "log_damaged")
    granted = site.of(run_id, e.ChildReserved)[0].granted
    assert settled.spent == {name: amount for name, amount in sorted(granted.items()) if amount}


def test_a_child_whose_parent_is_damaged_stops_at_its_own_limit(site: Site) -> None:
    play = Play(
        {
            "": [call("researcher", {"input": "a lot"}), say("done")],
            "researcher": [
                ScriptedTurn(text="", calls=call("search", {"query": "0"}).calls, gate="begin"),
                *(call("search", {"query": str(n)}) for n in range(1, 50)),
            ],
        }
    )
    host = site.open(play.model, TOOLS)
    run_id = host.start(limits=Limits(cost="1", turns=9))
    host.settle()
    (child,) = child_runs(site, run_id)
    host.on_loop(site.store.mark_damaged(run_id, "its log was altered"))
    play.model.gate("begin").open()
    result = host.rest(child)
    assert (result.outcome, result.reason) == ("incomplete", "max_turns")
    assert site.of(child, e.LeaseDenied)


def test_an_id_that_another_run_has_is_no_child(site: Site) -> None:
    play = Play({"": [call("writer", {"input": "x"}), say("went on")], "writer": [say("w")]})
    host = site.open(play.model, TOOLS)
    host.run(run_id=child_run_id("root", "c1.0"), tools=["search"], text="not a child")
    result = host.run(run_id="root")
    assert (result.outcome, result.text) == ("completed", "went on")
    assert site.of("root", e.ResultBound)[0].code == "child_conflict"
