"""A tree on disk, read back and decided upon from the command line; and its runs over SQLite, in process."""

from __future__ import annotations

import pytest
from tests.command_line import CommandLine
from tests.stepped_runtime import Site
from tests.test_trees import TOOLS, approval_in_a_grandchild
from tests.tree_play import Play, child_runs, read_tree

from boundloop.actors import Runtime
from boundloop.actors.resting import rested_result
from boundloop.adapters import ScriptedTurn, call, calls, say
from boundloop.eventstore.family import asked_below, read_family
from boundloop.eventstore.port import EventStore
from boundloop.runtime import Limits, agent
from boundloop.runtime import events as e
from boundloop.runtime.children import child_run_id
from boundloop.runtime.errors import RunNotFound

ONE = Limits(cost="1")


def waits_below_it(rt: Runtime, run_id: str, play: Play) -> None:
    """Until the clerk two levels down waits for a person; the model is asked for it once it exists."""
    grandchild = child_run_id(child_run_id(run_id, "c1.0"), "c1.0")
    assert play.asked_for(grandchild).wait(30)
    assert rt.result(grandchild, timeout_s=30).status == "waiting"


def finished() -> Play:
    return Play(
        {
            "": [calls(call("lead", {"input": "a"}), call("writer", {"input": "b"})), say("done")],
            "lead": [call("researcher", {"input": "c"}), say("led")],
            "researcher": [call("search", {"query": "x"}), say("found")],
            "writer": [ScriptedTurn(text="cut", finish="truncated")],
        }
    )


def test_a_tree_on_disk(cli: CommandLine) -> None:
    with Runtime(store=cli.url, model=finished().model, tools=TOOLS) as rt:
        result = rt.run_sync("go", limits=ONE)
    assert (result.outcome, result.text) == ("completed", "done")

    async def laws(store: EventStore) -> int:
        return len(await read_tree(store, result.run_id))

    assert cli.build(laws) == 4
    seen = cli("tree", result.run_id, "-o", "json").value
    assert [(run["depth"], run["agent"], run["outcome"], run["reason"]) for run in seen] == [
        (0, "agent", "completed", "final"),
        (1, "lead", "completed", "final"),
        (2, "researcher", "completed", "final"),
        (1, "writer", "incomplete", "truncated"),
    ]
    assert [run["turns"] for run in seen] == [7, 4, 2, 1]
    assert [run["children"] for run in seen] == [3, 1, 0, 0]
    below = cli("tree", seen[1]["run"], "-o", "json").value
    assert [run["run"] for run in below] == [seen[1]["run"], seen[2]["run"]]
    assert cli("tree", seen[2]["run"], "--whole", "-o", "json").value == seen
    shown = cli("tree", result.run_id)
    assert shown.code == 0
    assert f"    {seen[2]['run']}" in shown.out
    assert cli("tree", "r_none").code == 3
    assert cli("verify").code == 0
    assert cli("store", "check").code == 0
    log = cli("log", result.run_id).out
    for tag in ("child_reserved", "child_started", "child_settled"):
        assert tag in log
    for run in seen:
        last = cli("show", run["run"], "-o", "json").value["seq"]
        for seq in range(1, last + 1):
            assert cli("replay", run["run"], "--at", str(seq)).code == 0


def test_the_inbox_of_a_run_that_does_not_exist_is_no_empty_one(cli: CommandLine) -> None:
    with Runtime(store=cli.url, tools=TOOLS) as rt, pytest.raises(RunNotFound):
        rt.inbox(root="r_unknown")
    refused = cli("inbox", "--root", "r_unknown")
    assert (refused.code, refused.out) == (3, "")
    assert "run_not_found" in refused.err


def test_the_inbox_of_the_root_has_the_approvals_below(cli: CommandLine) -> None:
    play = approval_in_a_grandchild()
    with Runtime(store=cli.url, model=play.model, tools=TOOLS) as rt:
        run_id = rt.start("go", limits=ONE).run_id
        waits_below_it(rt, run_id, play)
        waits_below_it(rt, rt.start("go", limits=ONE).run_id, play)
    mine = cli("inbox", "--root", run_id, "-o", "json").value
    assert [row["tool"] for row in mine] == ["refund"]
    assert len(cli("inbox", "-o", "json").value) == 2
    why = cli("why", run_id)
    assert "a child run" in why.out
    (child, *_) = [run for run in cli("tree", run_id, "-o", "json").value if run["depth"] == 1]
    assert f"boundloop why {child['run']}" in why.out
    assert cli("limits", "raise", child["run"], "turns=90").code == 4
    assert cli("approve", mine[0]["approval"]).code == 0
    with Runtime(store=cli.url, model=play.model, tools=TOOLS) as rt:
        assert rt.wait(run_id, timeout_s=30).text == "refunded"


def test_a_cancelled_tree_without_a_host_ends_when_one_comes(cli: CommandLine) -> None:
    play = approval_in_a_grandchild()
    with Runtime(store=cli.url, model=play.model, tools=TOOLS) as rt:
        run_id = rt.start("go", limits=ONE).run_id
        waits_below_it(rt, run_id, play)
    assert cli("cancel", run_id).code == 0
    with Runtime(store=cli.url, model=play.model, tools=TOOLS) as rt:
        result = rt.wait(run_id, timeout_s=30)
    assert (result.outcome, result.reason) == ("cancelled", "by_user")
    assert {run["status"] for run in cli("tree", run_id, "-o", "json").value} == {"terminated"}


# --- who waits for whom ----------------------------------------------------------------------------------------------


def test_a_root_whose_whole_tree_waits_for_a_person_says_for_what(site: Site) -> None:
    host = site.open(approval_in_a_grandchild().model, TOOLS)
    run_id = host.start()
    host.settle()
    (grandchild,) = child_runs(site, child_runs(site, run_id)[0])
    (asked,) = site.of(grandchild, e.ApprovalRequested)
    result = host.rest(run_id)
    assert (result.status, result.waiting_for) == ("waiting", f"approval:{asked.approval_id}")
    (approval,) = result.approvals
    host.rt.approve(approval.run_id, approval.approval_id, by="boss")
    assert host.rest(run_id).text == "refunded"


def test_a_tree_in_which_something_goes_on_waits_for_nobody(site: Site) -> None:
    play = Play(
        {
            "": [calls(call("clerk", {"input": "a"}), call("writer", {"input": "b"})), say("done")],
            "clerk": [call("refund", {"order_id": "A"}), say("refunded")],
            "writer": [ScriptedTurn(text="w", gate="pen")],
        }
    )
    host = site.open(play.model, TOOLS)
    run_id = host.start()
    host.settle()
    state = host.state(run_id)
    assert host.on_loop(asked_below(site.store, state)) == []
    assert host.on_loop(rested_result(site.store, state)).status == "running"
    play.model.gate("pen").open()
    host.settle()
    assert host.rest(run_id).waiting_for.startswith("approval:")


def test_a_root_whose_child_was_stopped_waits_for_whoever_lifts_it(site: Site) -> None:
    patient = agent(name="patient", description="Waits.", system="patient", on_stop="suspend")
    play = Play(
        {
            "": [call("patient", {"input": "a"}), say("done")],
            "patient": [ScriptedTurn(text="cut", finish="truncated"), say("whole")],
        }
    )
    host = site.open(play.model, [patient])
    result = host.run()
    (child,) = child_runs(site, result.run_id)
    assert (result.status, result.waiting_for) == ("waiting", f"child:{child}")
    host.rt.resume(child, by="boss")
    assert host.rest(result.run_id).text == "done"


def test_a_damaged_run_does_not_hide_the_others(site: Site) -> None:
    host = site.open(finished().model, TOOLS)
    run_id = host.run().run_id
    child = child_runs(site, run_id)[0]
    host.on_loop(site.store.mark_damaged(child, "broken"))
    family = host.on_loop(read_family(site.store, run_id))
    assert [run.run_id for run in family.runs if run.problem] == [child]
    assert len(family.runs) == 4
