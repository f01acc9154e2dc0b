"""A damaged log in a tree is that one run's damage: who reads it goes on, says whose it is, and is told at once."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.stepped_runtime import Site, Stepped
from tests.tree_play import Play, child_runs

from boundloop.adapters import ScriptedTurn, call, say
from boundloop.eventstore.port import RunRow
from boundloop.runtime import Limits, agent, tool
from boundloop.runtime import events as e
from boundloop.runtime.children import child_run_id
from boundloop.runtime.errors import LogDamaged, StoreError


@tool(risk="read")
def search(query: str) -> dict[str, Any]:
    "Search."
    return {"found": query}


@tool(risk="write", key=("order_id",), far_side="keyed", approval="always")
def pay(order_id: str) -> dict[str, Any]:
    "Pay."
    return {"paid": order_id}


seeker = agent(name="seeker", description="Finds.", system="seeker", tools=("search",))
payer = agent(name="payer", description="Pays.", system="payer", tools=("pay",))
leader = agent(name="leader", description="Leads.", system="leader", tools=("seeker",))
TOOLS = (search, pay, seeker, payer, leader)


@pytest.fixture
def store_only() -> Any:
    """A site whose damaged logs nobody folds at the end."""
    site = Site()
    yield site
    for host in site.hosts:
        host.close()


def alter(site: Site, run_id: str, place: int = -1) -> None:
    """Bytes that are no event, in one row of the log."""
    log = site.store._runs[run_id].log  # pyright: ignore[reportPrivateUsage]  # the store itself alters nothing
    log[place] = msgspec.structs.replace(log[place], body=log[place].body[:-3] + b"\xc1\xc1\xc1")


def row_of(host: Stepped, site: Site, run_id: str) -> RunRow:
    row = host.on_loop(site.store.run(run_id))
    assert row is not None
    return row


def searching() -> list[ScriptedTurn]:
    """A child that is held at its first turn, and needs more turns than its lease has."""
    first = ScriptedTurn(calls=call("search", {"query": "0"}).calls, finish="calls", gate="begin")
    return [first, *(call("search", {"query": str(n)}) for n in range(1, 9)), say("found")]


def test_a_damaged_parent_does_not_damage_the_child_that_asks_it(store_only: Site) -> None:
    site = store_only
    play = Play({"": [call("seeker", {"input": "x"}), say("never")], "seeker": searching()})
    host = site.open(play.model, TOOLS)
    run_id = host.start(limits=Limits(cost="1", turns=4))
    host.settle()
    (child,) = child_runs(site, run_id)
    alter(site, run_id)
    play.model.gate("begin").open()
    host.settle()
    row = row_of(host, site, child)
    assert (row.damaged, row.index.outcome, row.index.reason) == ("", "incomplete", "max_turns")
    assert site.of(child, e.LeaseDenied)
    assert row_of(host, site, run_id).damaged


def test_damage_two_levels_up_is_that_runs(store_only: Site) -> None:
    site = store_only
    play = Play(
        {
            "": [call("leader", {"input": "x"}), say("never")],
            "leader": [call("seeker", {"input": "x"}), say("led")],
            "seeker": searching(),
        }
    )
    host = site.open(play.model, TOOLS)
    run_id = host.start(limits=Limits(cost="1", turns=6))
    host.settle()
    (child,) = child_runs(site, run_id)
    (grandchild,) = child_runs(site, child)
    alter(site, run_id)
    play.model.gate("begin").open()
    host.settle()
    assert row_of(host, site, run_id).damaged
    for below in (child, grandchild):
        row = row_of(host, site, below)
        assert (row.damaged, row.index.status) == ("", "terminated")


def test_a_child_that_is_damaged_before_it_is_found_does_not_damage_its_parent(store_only: Site) -> None:
    """The child is there, nobody told its parent, and its first row can't be read."""
    site = store_only
    play = Play({"": [call("seeker", {"input": "x"}), say("went on")], "seeker": searching()})
    host = site.open(play.model, TOOLS)
    host.line.cut_at(lambda events: any(isinstance(one, e.ChildStarted) for one in events), before=True)
    run_id = host.start()
    host.settle()
    host.line.bury()
    host.crash()
    child = child_run_id(run_id, "c1.0")
    asyncio.run(
        site.store.acquire(child, "a host that died")
    )  # so that the creation can't be asked for again
    alter(site, child, 0)
    again = site.after_crash(host, TOOLS)
    again.settle()
    row = row_of(again, site, run_id)
    assert (row.damaged, row.index.outcome) == ("", "completed")
    assert row_of(again, site, child).damaged
    assert site.of(run_id, e.ResultBound)[0].code == "log_damaged"


@pytest.mark.parametrize("who", ["mark", "command", "timer"])
def test_a_parked_parent_is_told_of_a_childs_damage_by_whoever_finds_it(who: str, store_only: Site) -> None:
    site = store_only
    play = Play(
        {
            "": [call("payer", {"input": "x"}), say("went on")],
            "payer": [call("pay", {"order_id": "A"}), say("paid")],
        }
    )
    host = site.open(play.model, TOOLS)
    run_id = host.start(limits=Limits(cost="1", deadline_s=600, approval_ms=60_000))
    host.settle()
    (child,) = child_runs(site, run_id)
    (asked,) = site.of(child, e.ApprovalRequested)
    assert row_of(host, site, run_id).owner == ""
    if who == "mark":
        host.on_loop(site.store.mark_damaged(child, "altered"))
        host.settle()
    elif who == "command":
        alter(site, child)
        with pytest.raises(StoreError):
            host.rt.approve(child, asked.approval_id, by="boss")
        host.settle()
    else:
        alter(site, child)
        host.advance(61_000)
    row = row_of(host, site, run_id)
    assert (row.damaged, row.index.outcome) == ("", "completed")
    (settled,) = site.of(run_id, e.ChildSettled)
    assert (settled.outcome, settled.reason) == ("failed", "log_damaged")


def test_another_runs_damage_never_quarantines_the_run_that_came_upon_it(
    store_only: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = store_only

    async def come_upon(*_: object) -> None:
        raise LogDamaged("r_other", 1, 1)

    monkeypatch.setattr("boundloop.actors.children.look_at_child", come_upon)
    play = Play({"": [call("seeker", {"input": "x"}), say("never")], "seeker": searching()})
    host = site.open(play.model, TOOLS)
    run_id = host.start()
    host.settle()
    assert row_of(host, site, run_id).damaged == ""
