"""A tree whose process dies at each of its appends, once before and once after it: the same end, one effect, whole leases."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.stepped_runtime import HOST_LAPSES_MS, Site, by_run
from tests.tree_play import THREE_LEVELS_LIMITS, own_use, three_levels, tree_of

from boundloop.adapters.script import call, say
from boundloop.eventstore.submit import host_for_one_command, submit_unhosted
from boundloop.runtime import agent, tool
from boundloop.runtime import events as e
from boundloop.runtime.commands import Cancel, CommandAnswer

KEYS: list[str] = []


@tool(risk="read")
def search(query: str) -> dict[str, Any]:
    "Search."
    return {"found": query}


@tool(risk="write", key=("order_id",), far_side="keyed")
def pay(order_id: str, ctx: Any) -> dict[str, Any]:
    "Pay; the far side knows the key."
    KEYS.append(ctx.key)
    return {"paid": order_id}


lead = agent(name="lead", description="Leads.", system="lead", tools=("worker", "search"))
worker = agent(name="worker", description="Works.", system="worker", tools=("pay", "search"))
TOOLS = (search, pay, lead, worker)


class NthAppend:
    """Breaks the line at the n-th append, counted from 1; ``seen`` tells how many there were."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.seen = 0

    def __call__(self, events: tuple[e.AnyEvent, ...]) -> bool:
        self.seen += 1
        return self.seen == self.number


def appends_of_a_whole_tree() -> int:
    site = Site()
    counter = NthAppend(0)
    host = site.open(three_levels().model, TOOLS)
    host.line.cut_at(counter, before=True)
    assert host.run(limits=THREE_LEVELS_LIMITS).text == "done"
    site.close()
    return counter.seen


APPENDS = appends_of_a_whole_tree()


def test_the_tree_is_worth_crashing(site: Site) -> None:
    KEYS.clear()
    assert APPENDS > 25
    host = site.open(three_levels().model, TOOLS)
    result = host.run(limits=THREE_LEVELS_LIMITS)
    tree = tree_of(site, result.run_id)
    assert len(tree) == 4
    assert any(isinstance(event, e.ChildToppedUp) for _, events in tree.values() for event in events)
    assert len(set(KEYS)) == 1


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("number", range(2, APPENDS + 1))  # the first is the caller's own start
def test_a_process_that_dies_at_an_append_changes_nothing(number: int, before: bool, site: Site) -> None:
    KEYS.clear()
    host = site.open(three_levels().model, TOOLS)
    host.line.cut_at(NthAppend(number), before=before)
    run_id = host.start(limits=THREE_LEVELS_LIMITS)
    host.settle()
    assert host.line.broken.is_set()
    host.line.bury()  # a command that was under way gives its run back on the way out, and would wait for ever
    host.crash()
    again = site.after_crash(host, TOOLS)
    again.settle()
    again.advance(2 * HOST_LAPSES_MS)
    result = again.rest(run_id)
    assert (result.outcome, result.text) == ("completed", "done")
    tree = tree_of(site, run_id)
    assert len(tree) == 4
    assert len(set(KEYS)) == 1
    assert result.spent["children"] == 3
    started = sum(own_use(events)["turns"] for _, events in tree.values())
    assert result.spent["turns"] == started <= 24


# --- a cancel that comes while a child run is being made --------------------------------------------------------------


def is_childs_first(events: tuple[e.AnyEvent, ...]) -> bool:
    return any(isinstance(event, e.RunStarted) and event.parent_run for event in events)


HELPED = [call("lead", {"input": "go"}), say("never asked for")]
INTENTS = (e.ModelRequested, e.CallStarted, e.ChildReserved)


def check_child_never_acted(site: Site, run_id: str) -> None:
    """Both logs end as cancelled, and the child's has no intent."""
    tree = tree_of(site, run_id)
    assert len(tree) == 2
    for name, (state, events) in tree.items():
        reason = "by_user" if name == run_id else "by_parent"
        assert (state.phase, state.outcome, state.reason) == ("terminated", "cancelled", reason)
        assert name == run_id or not [event for event in events if isinstance(event, INTENTS)]


@pytest.mark.parametrize("before", [True, False], ids=["before it is there", "before its parent knows"])
def test_a_child_that_is_made_under_a_cancel_never_acts(before: bool, site: Site) -> None:
    """The host dies as it makes the child; the cancel is in the log when the next one goes on."""
    host = site.open(by_run(HELPED, [say("never asked for")]), TOOLS)
    host.line.cut_at(is_childs_first, before=before)
    run_id = host.start()
    host.settle()
    assert host.line.broken.is_set()
    host.crash()
    assert site.loop is not None
    site.loop.now_ms += HOST_LAPSES_MS

    async def cancel() -> CommandAnswer:
        async with host_for_one_command(site.store) as it:
            dead = tuple(row.host_id for row in await site.store.hosts())
            command = Cancel(command_id="stop", by="somebody")
            return await submit_unhosted(site.store, run_id, command, host_id=it, dead_hosts=dead)

    assert asyncio.run(cancel()).accepted
    again = site.open(host.model, TOOLS)
    again.settle()
    again.advance(2 * HOST_LAPSES_MS)
    again.rest(run_id)
    check_child_never_acted(site, run_id)


def test_a_child_whose_making_a_cancel_overtakes_never_acts(site: Site) -> None:
    host = site.open(by_run(HELPED, [say("never asked for")]), TOOLS)
    gate = host.line.stall_at(is_childs_first)
    run_id = host.start()
    host.settle()
    host.rt.cancel(run_id)
    gate.open()
    host.settle()
    host.advance(2 * HOST_LAPSES_MS)
    host.rest(run_id)
    check_child_never_acted(site, run_id)
