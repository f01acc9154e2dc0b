"""A run that stopped is in the inbox until a person lifts or closes it, with what to type; unknown effects of runs below
are named where the run at the top is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.command_line import CommandLine
from tests.decider.family import helped
from tests.decider.shop import limits
from tests.decider.spec import Run
from tests.decider.spec import call as proposal
from tests.stepped_runtime import Site, by_run
from tests.written_runs import WrittenRun, asking, pins_for, unknown

from boundloop.actors.client import Runtime
from boundloop.adapters.script import call, cut, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.eventstore.inbox import Inbox, InboxRow, Kind, gather_inbox, inbox_rows
from boundloop.eventstore.port import EventStore
from boundloop.runtime import events as e
from boundloop.runtime.agent_spec import agent
from boundloop.runtime.errors import DeclarationError, ToolError
from boundloop.runtime.limits import Limits, LimitValues
from boundloop.runtime.tool_spec import tool


def stops(run: Run) -> list[InboxRow]:
    return [row for row in inbox_rows(run.state, run.now) if row.kind == "stop"]


# --- which stops -----------------------------------------------------------------------------------------------------


def stopped_by(reason: str) -> Run:
    """A run that stopped for this reason, in the way that is quickest."""
    if reason == "max_turns":
        run = Run(pins_of(turns=1))
        run.reply(proposal("get_order", order_id="A"))
        run.check("c1.0")
        run.report("c1.0")
    elif reason == "no_progress":
        run = Run(pins_of(invalid_streak=1))
        run.reply(proposal("no_such_tool"))
        run.check("c1.0")
    elif reason == "crash_loop":
        run = Run()
        run.reply(proposal("refund", order_id="A", amount=1))
        run.ask("c1.0")
        for _ in range(3):
            run.crash()
    elif reason == "model_failed":
        run = Run(pins_of(model_attempts_per_turn=1))
        run.reply(finish="transport_broken")
    elif reason == "deadline":
        run = Run()
        run.reply(proposal("refund", order_id="A", amount=1))
        run.ask("c1.0")
        run.tick(run.state.deadline_at_ms - run.now)
    else:
        run = Run()
        run.reply(finish="truncated") if reason == "truncated" else run.reply(text=" ")
    assert run.stop()[0] == "suspended"
    assert run.state.reason == reason
    return run


def pins_of(**bounds: Any) -> Any:
    from tests.decider.shop import pins

    return pins(bounds=limits(**bounds))


@pytest.mark.parametrize(
    ("reason", "commands"),
    [
        ("max_turns", ["limits raise r1 turns=N", "resume r1", "close r1"]),
        ("no_progress", ["resume r1", "close r1"]),
        ("crash_loop", ["resume r1", "close r1"]),
        ("model_failed", ["resume r1", "close r1"]),
        ("deadline", ["limits raise r1 deadline_ms=N", "resume r1", "close r1"]),
        ("truncated", ["resume r1", "close r1"]),
        ("empty_response", ["resume r1", "close r1"]),
    ],
)
def test_a_stop_that_someone_can_lift_is_asked_of_people_with_what_lifts_it(
    reason: str, commands: list[str]
) -> None:
    run = stopped_by(reason)
    [row] = stops(run)
    assert (row.outcome, row.reason) == (run.state.outcome, reason)
    assert (row.run_id, row.call, row.since_ms) == ("r1", "", run.now)
    assert list(row.next_commands) == [f"boundloop {command}" for command in commands]
    assert row.unfinished == run.state.unfinished


def test_a_stop_for_an_unknown_effect_asks_for_the_effect_alone() -> None:
    run = Run()
    run.reply(proposal("pay", order_id="A", amount=1))
    run.check("c1.0")
    run.report("c1.0", "unknown")
    assert run.state.reason == "outcome_unknown"
    assert [row.kind for row in inbox_rows(run.state, run.now)] == ["unknown"]


def test_a_run_that_ended_or_is_ending_asks_for_nothing() -> None:
    run = stopped_by("truncated")
    run.fold_every_append = False
    run.state.close_requested = True
    assert stops(run) == []
    ended = Run()
    ended.final()
    assert stops(ended) == []


def test_an_unknown_effect_of_an_earlier_turn_is_named_by_the_stop_and_asked_for_too() -> None:
    run = Run()
    run.reply(proposal("pay", order_id="A", amount=1))
    run.check("c1.0")
    run.report("c1.0", "unknown")
    run.tick(run.state.deadline_at_ms - run.now)
    run.fold_every_append = False
    run.state.unknown_calls["c1.0"] = run.state.calls.pop("c1.0")
    run.state.reason = "deadline"
    kinds = {row.kind: row for row in inbox_rows(run.state, run.now)}
    assert set(kinds) == {"stop", "unknown"}
    assert kinds["stop"].unknown == (e.UnknownBelow("r1", "c1.0", "pay"),)


def test_unknown_effects_of_ended_runs_below_are_named_by_the_stop() -> None:
    family = helped()
    child = family.child(family.root, "c1.0")
    child.reply(proposal("pay", order_id="A", amount=1))
    child.check("c1.0")
    child.report("c1.0", "unknown")
    child.cancel()
    assert family.settle(family.root, "c1.0")
    family.root.reply(finish="truncated")
    [row] = stops(family.root)
    assert row.unknown == (e.UnknownBelow(child.state.run_id, "c1.0", "pay"),)


# --- through the runtime ---------------------------------------------------------------------------------------------


@tool(risk="write", key=("order",), far_side="none")
async def pay(order: str) -> dict[str, Any]:
    """Pay; nobody knows whether it came to anything."""
    raise ToolError("gone", safe_message="the line is dead")


PAYER = agent(name="payer", description="Pays.", system="You pay.", tools=("pay",), on_stop="end")
ALLOWED = Limits(cost="1", deadline_s=600)


def inbox_of(site: Site, *kinds: Kind, **options: Any) -> Inbox:
    chosen: Any = {"kinds": frozenset(kinds)} if kinds else {}
    return asyncio.run(gather_inbox(site.store, **chosen, **options))


def test_a_stop_is_in_the_inbox_until_it_is_lifted(site: Site) -> None:
    host = site.open([cut("so f"), cut("so f"), say("done")])
    run_id = host.run("go").run_id
    [row] = inbox_of(site).rows
    assert (row.kind, row.run_id, row.root_id, row.reason) == ("stop", run_id, run_id, "truncated")
    host.rt.resume(run_id)
    host.rest(run_id)
    assert [row.kind for row in inbox_of(site).rows] == ["stop"]
    host.rt.resume(run_id)
    assert host.rest(run_id).completed
    assert inbox_of(site).rows == ()


def test_closing_takes_a_stop_out(site: Site) -> None:
    host = site.open([cut("so f")])
    run_id = host.run("go").run_id
    host.rt.close_run(run_id)
    assert host.rest(run_id).status == "ended"
    assert inbox_of(site).rows == ()


def test_a_run_that_ends_instead_of_stopping_asks_nobody(site: Site) -> None:
    host = site.open([cut("so f")])
    assert host.run("go", on_stop="end").reason == "truncated"
    assert inbox_of(site).rows == ()


def below(site: Site) -> tuple[Any, str, str]:
    """A root that stopped, and the ended child below it that left an effect unknown."""
    host = site.open(
        by_run([call("payer", {"input": "pay"}), cut("so f"), say("done")], [call("pay", {"order": "1"})]),
        [pay, PAYER],
    )
    waiting = host.run("go", tools=["payer"], limits=ALLOWED)
    assert waiting.status == "waiting"
    [child] = site.of(waiting.run_id, e.ChildStarted)
    assert waiting.unknown_effects == (f"{child.child_run}/c1.0",)
    host.rt.cancel(child.child_run)
    stopped = host.rest(waiting.run_id)
    assert stopped.reason == "truncated"
    return host, stopped.run_id, child.child_run


def test_the_root_names_unknown_effects_below_until_they_are_settled(site: Site) -> None:
    host, root, child = below(site)
    assert host.rest(root).unknown_effects == (f"{child}/c1.0",)
    rows = {row.kind: row for row in inbox_of(site, root_id=root).rows}
    assert {kind: (row.run_id, row.root_id) for kind, row in rows.items()} == {
        "unknown": (child, root),
        "stop": (root, root),
    }
    assert rows["stop"].unknown == (e.UnknownBelow(child, "c1.0", "pay"),)
    host.rt.resolve_call(child, "c1.0", by="boss", applied=False)
    assert host.rest(root).unknown_effects == ()
    [left] = inbox_of(site, root_id=root).rows
    assert (left.kind, left.unknown) == ("stop", ())


def test_a_program_reads_the_inbox_too(site: Site) -> None:
    host, root, child = below(site)
    assert {row.kind for row in host.rt.inbox().rows} == {"unknown", "stop"}
    [row] = host.rt.inbox(root=root, kind="stop").rows
    assert row.run_id == root
    assert asyncio.run(host.rt.aio.inbox(kind="unknown", limit=1)).rows[0].run_id == child
    wrong: Any = "other"
    for options in ({"kind": wrong}, {"limit": 0}, {"limit": 1_001}):
        with pytest.raises(DeclarationError):
            host.rt.inbox(**options)


# --- from another shell ----------------------------------------------------------------------------------------------


def test_why_names_what_is_unknown_below_until_it_is_settled(cli: CommandLine) -> None:
    script = by_run([call("payer", {"input": "pay"}), cut("so f")], [call("pay", {"order": "1"})])
    with Runtime(store=cli.url, model=ScriptedModel(script), tools=[pay, PAYER]) as rt:
        waiting = rt.run_sync("go", run_id="r1", tools=["payer"], limits=ALLOWED)
        child = waiting.unknown_effects[0].partition("/")[0]
        rt.cancel(child)
        assert rt.wait("r1", 30).reason == "truncated"
    assert f"Unknown below: c1.0 pay, in run {child}\n" in cli("why", "r1").out
    assert f"  unknown    pay, call c1.0 of run {child}\n" in cli("inbox", "--kind", "stop").out
    assert cli("call", "resolve", child, "c1.0", "--absent").code == 0
    assert "Unknown below" not in cli("why", "r1").out
    assert cli("inbox", "--kind", "unknown", "-o", "json").value == []


async def one_of_each(store: EventStore) -> None:
    run = await WrittenRun.start(store, "r1", pins=pins_for(LimitValues(cost_micros=0, turns=1)))
    await run.replies(calls=[("get_order", {"order_id": "A1"})])
    await run.checks()
    await run.executes({"state": "shipped"})
    await asking(store, "r2")
    await unknown(store, "r3")


def test_the_inbox_shows_stops_and_can_be_asked_for_one_kind(cli: CommandLine) -> None:
    cli.build(one_of_each)
    shown = cli("inbox")
    assert "Stopped: run r1 of agent\n" in shown.out
    assert "  how        incomplete, max_turns, since " in shown.out
    assert "\n  boundloop limits raise r1 turns=N\n  boundloop resume r1\n  boundloop close r1\n" in shown.out
    kinds = {"approval": "r2", "stop": "r1", "unknown": "r3"}
    for kind, run_id in kinds.items():
        [row] = cli("inbox", "--kind", kind, "-o", "json").value
        assert (row["kind"], row["run"], row["root"]) == (kind, run_id, run_id)
    assert cli("inbox", "--kind", "question", "-o", "json").value == []
    assert len(cli("inbox", "-o", "json").value) == 3
    [stop] = cli("inbox", "--kind", "stop", "-o", "json").value
    assert (stop["id"], stop["reason"], stop["next"][0]) == (
        "r1",
        "max_turns",
        "boundloop limits raise r1 turns=N",
    )
    assert cli("inbox", "--kind", "other").code == 2


def test_what_lifts_a_stop_takes_it_out(cli: CommandLine) -> None:
    cli.build(one_of_each)
    assert cli("limits", "raise", "r1", "turns=2").code == 0
    assert [row["run"] for row in cli("inbox", "--kind", "stop", "-o", "json").value] == ["r1"]
    assert cli("resume", "r1").code == 0
    assert cli("inbox", "--kind", "stop", "-o", "json").value == []


def test_closing_from_another_shell_takes_it_out(cli: CommandLine) -> None:
    cli.build(one_of_each)
    assert cli("close", "r1").code == 0
    assert cli("inbox", "--kind", "stop", "-o", "json").value == []
