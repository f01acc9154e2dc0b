"""A model for trees: each agent has a script of its own, chosen by its system text; and what a tree's logs add up to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from tests.stepped_runtime import Site

from boundloop.adapters import ScriptedModel
from boundloop.adapters.script import ScriptedTurn, call, calls, say
from boundloop.eventstore.history import fold_records, read_records
from boundloop.eventstore.port import EventStore, RunFilter
from boundloop.runtime import events as e
from boundloop.runtime.invariants import check_state, check_tree
from boundloop.runtime.limits import Limits
from boundloop.runtime.model import ModelInput
from boundloop.runtime.prices import FREE, Price
from boundloop.runtime.state import METERED, State

Line = ScriptedTurn | Callable[[ModelInput], ScriptedTurn]
Tree = dict[str, tuple[State, list[e.AnyEvent]]]
"""Runs by id: the state, and the events that it was folded from."""


class Play:
    """``parts``: the lines of each agent by its system text (empty: the root). Every run of an agent plays them anew."""

    def __init__(self, parts: Mapping[str, Sequence[Line]], **options: Any) -> None:
        self.parts = parts
        self.asked: list[tuple[str, int, int]] = []
        self._asked_for: dict[str, threading.Event] = {}
        options.setdefault("price", FREE)
        self.model = ScriptedModel(self.answer, **options)

    def asked_for(self, run_id: str) -> threading.Event:
        """Set once the model was asked for this run. From any thread."""
        return self._asked_for.setdefault(run_id, threading.Event())

    def answer(self, request: ModelInput) -> ScriptedTurn:
        self.asked.append((request.run_id, request.turn, request.attempt))
        self.asked_for(request.run_id).set()
        line = self.parts[request.system][request.turn - 1]
        return line(request) if callable(line) else line


def three_levels() -> Play:
    """Three levels, side by side, one effect that two of them want, and a child that runs out of its lease."""
    return Play(
        {
            "": [calls(call("lead", {"input": "a"}), call("worker", {"input": "b"})), say("done")],
            "lead": [calls(call("worker", {"input": "c"}), call("search", {"query": "s"})), say("led")],
            "worker": [
                call("pay", {"order_id": "A"}),
                call("search", {"query": "1"}),
                call("search", {"query": "2"}),
                say("worked"),
            ],
        }
    )


THREE_LEVELS_LIMITS = Limits(cost="1", turns=24, model_attempts=60, tool_calls=24, children=8)
"""Under which a worker of ``three_levels`` runs out."""


def priced(micros: int) -> Price:
    """A price at which the standard turn of 100 + 20 tokens costs this much."""
    return Price(input=0, output=micros * 50_000)


async def read_tree(store: EventStore, root: str) -> Tree:
    """All runs of a tree by id, folded, with their events. Every law is checked at every event of each log."""
    found: Tree = {}
    for row in await store.runs(RunFilter(root_id=root, limit=10_000)):
        records = await read_records(store, row.run_id)
        state = await fold_records(store, records)
        check_state(state)
        found[row.run_id] = state, [record.event for record in records]
    return found


def check_sums(tree: Tree) -> None:
    """What was settled for a child is what the child spent, all the way up; leases hold."""
    check_tree({run_id: state for run_id, (state, _) in tree.items()})
    for state, events in tree.values():
        for event in events:
            if isinstance(event, e.ChildSettled):
                child, _ = tree[event.child_run]
                assert child.phase == "terminated"
                for name in METERED:
                    assert event.spent.get(name, 0) == getattr(child.meters, name).spent, name
                assert (child.parent_run, child.depth) == (state.run_id, state.depth + 1)


def own_use(events: Sequence[e.AnyEvent]) -> dict[str, int]:
    """What a run used itself, counted from its events without any meter."""
    return {
        "turns": len({event.turn for event in events if isinstance(event, e.ModelRequested)}),
        "model_attempts": sum(isinstance(event, e.ModelRequested) for event in events),
        "tool_calls": len({event.call for event in events if isinstance(event, e.CallStarted)}),
        "call_attempts": sum(isinstance(event, e.CallStarted) for event in events),
        "output_tokens": sum(
            event.spent_output_tokens
            for event in events
            if isinstance(event, e.ModelResponded | e.ModelFailed)
        ),
        "children": sum(isinstance(event, e.ChildReserved) for event in events),
    }


def total_use(tree: Tree) -> dict[str, int]:
    """The sum of that over all runs."""
    sums: dict[str, int] = {}
    for _, events in tree.values():
        for name, count in own_use(events).items():
            sums[name] = sums.get(name, 0) + count
    return sums


def tree_of(site: Site, root: str) -> Tree:
    """``read_tree`` of a stepped site, checked."""
    tree = asyncio.run(read_tree(site.store, root))
    check_sums(tree)
    return tree


def child_runs(site: Site, run_id: str) -> list[str]:
    """The ids of a run's children, in the order in which they were set up."""
    return [event.child_run for event in site.of(run_id, e.ChildReserved)]


def data_of(content: bytes) -> Any:
    """What a model sees of a result."""
    return msgspec.json.decode(content)
