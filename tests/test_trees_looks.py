"""How often a parent looks at its children, and what it does for one that asks while it ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.stepped_runtime import Site, has
from tests.tree_play import Play, child_runs, tree_of

from boundloop.actors.children import ask_parent
from boundloop.adapters import ScriptedTurn, call, calls, say
from boundloop.eventstore.history import load_run
from boundloop.eventstore.port import RunRow
from boundloop.eventstore.submit import host_for_one_command, submit_unhosted
from boundloop.runtime import Limits, agent, tool
from boundloop.runtime import events as e
from boundloop.runtime.commands import Cancel, NothingLeft, RaiseLease

CHILDREN = 12

writer = agent(name="writer", description="Writes.", system="writer")
lead = agent(name="lead", description="Leads.", system="lead", tools=("writer",))
HELD = ScriptedTurn(text="w", gate="pen")


def counted(site: Site, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each run's row is read from now on."""
    seen: Counter[str] = Counter()
    read = site.store.run

    async def run(run_id: str) -> RunRow | None:
        seen[run_id] += 1
        return await read(run_id)

    monkeypatch.setattr(site.store, "run", run)
    return seen


@pytest.mark.parametrize("hosted", [True, False], ids=["hosted", "parked"])
def test_an_append_costs_no_look_at_every_child(
    hosted: bool, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here those of the commands that raise the root's limits, one after the other."""
    held = asyncio.Event()

    @tool(risk="read", inline=True)
    async def watch() -> dict[str, Any]:
        "Hold the root where it is."
        await held.wait()
        return {}

    writers = [call("writer", {"input": str(n)}) for n in range(CHILDREN)]
    play = Play(
        {"": [calls(*writers, *([call("watch", {})] if hosted else [])), say("done")], "writer": [HELD]}
    )
    host = site.open(play.model, [writer, watch])
    run_id = host.start(limits=Limits(cost="1", parallel=CHILDREN + 1))
    host.settle()
    assert len(site.of(run_id, e.ChildStarted)) == CHILDREN
    seen = counted(site, monkeypatch)
    for number in range(5):
        host.rt.raise_limits(run_id, denials=100 + number)
        host.settle()
    assert len(site.of(run_id, e.LimitsRaised)) == 5
    assert sum(seen[child] for child in child_runs(site, run_id)) == 0
    play.model.gate("pen").open()
    host.on_loop(released(held))
    assert host.rest(run_id).text == "done"
    assert len(tree_of(site, run_id)) == CHILDREN + 1


async def released(held: asyncio.Event) -> None:
    held.set()


def stopped_in_the_middle(site: Site, *, deep: bool) -> tuple[str, list[str]]:
    """A root, its child and, if ``deep``, a grandchild, whose process died: none has ended."""
    play = Play(
        {
            "": [call("lead" if deep else "writer", {"input": "x"}), say("done")],
            "lead": [call("writer", {"input": "x"}), say("led")],
            "writer": [HELD],
        }
    )
    host = site.open(play.model, [writer, lead])
    run_id = host.start(limits=Limits(cost="1", turns=9))
    host.settle()
    below = child_runs(site, run_id)
    below += child_runs(site, below[0])
    host.crash()
    assert site.loop is not None
    site.loop.now_ms += 60_000  # whoever had them is gone by now
    return run_id, below


async def asked(site: Site, run_id: str, **short: int) -> Any:
    child, _ = await load_run(site.store, run_id)
    return await ask_parent(site.store, child, short)


async def cancel(site: Site, run_id: str) -> None:
    async with host_for_one_command(site.store) as host_id:
        command = Cancel(command_id="stop", by="boss")
        answer = await submit_unhosted(site.store, run_id, command, host_id=host_id)
        assert answer.accepted


@pytest.mark.parametrize("deep", [False, True], ids=["child", "grandchild"])
def test_a_child_that_asks_a_cancelled_parent_is_cancelled_with_it(deep: bool, site: Site) -> None:
    """Not told that there is nothing left, as which it would stop for a reason that isn't the true one."""
    run_id, below = stopped_in_the_middle(site, deep=deep)
    asyncio.run(cancel(site, run_id))
    site.open([say("never")], [])  # a host that takes commands, and leaves these runs alone
    site.hosts[-1].settle()
    answer = site.hosts[-1].on_loop(asked(site, below[-1], output_tokens=2**40))
    assert isinstance(answer, Cancel)
    assert (answer.reason, answer.by) == ("by_parent", f"run:{([run_id, *below])[-2]}")
    if deep:
        assert [event.reason for event in site.of(below[0], e.CancelRequested)] == ["by_parent"]


def test_a_child_that_asks_a_living_parent_is_answered(site: Site) -> None:
    _, below = stopped_in_the_middle(site, deep=False)
    site.open([say("never")], [])
    site.hosts[-1].settle()
    assert isinstance(site.hosts[-1].on_loop(asked(site, below[0], turns=1)), RaiseLease)
    assert isinstance(
        site.hosts[-1].on_loop(asked(site, below[0], output_tokens=2**50)), NothingLeft | RaiseLease
    )


def test_children_that_come_to_be_after_a_cancel_name_their_parent(site: Site) -> None:
    """They are short of everything: what they need first is more than what they were lent."""
    play = Play(
        {
            "": [calls(*(call("writer", {"input": str(n)}) for n in range(3))), say("done")],
            "writer": [HELD],
        }
    )
    host = site.open(play.model, [writer])
    host.line.cut_at(has(e.ChildReserved), before=False)
    run_id = host.start(limits=Limits(cost="1", turns=3))
    host.settle()
    host.line.bury()
    host.crash()
    assert site.loop is not None
    site.loop.now_ms += 60_000
    asyncio.run(cancel(site, run_id))
    again = site.after_crash(host, [writer])
    again.settle()
    assert again.rest(run_id).reason == "by_user"
    tree = tree_of(site, run_id)
    assert [state.reason for state, _ in tree.values() if state.depth] == ["by_parent"] * 3
