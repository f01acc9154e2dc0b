"""What must hold once everything has come to rest, whoever was killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from tests.crash.proof import Acknowledged
from tests.kill.acks import Ack

from boundloop.eventstore.history import load_run
from boundloop.eventstore.location import open_store
from boundloop.eventstore.port import EventStore, RunFilter, RunRow
from boundloop.eventstore.verify import verify_store
from boundloop.runtime import events as e
from boundloop.runtime.errors import BugError
from boundloop.runtime.invariants import check_state, check_tree
from boundloop.runtime.state import State

PAGE_RUNS: Final = 1_000


async def judge(
    url: str, counts: Mapping[str, Mapping[str, int]], acknowledged: Iterable[Acknowledged]
) -> Counter[str]:
    """The violations by name, and how much was looked at. ``counts`` is the far side's, ``acknowledged`` what hosts heard
    a yes to."""
    store = await open_store(url)
    try:
        found: Counter[str] = Counter()
        found["damaged logs"] = 0 if (await verify_store(store)).ok else 1
        requests, effects = counts["requests"], counts["effects"]
        intents: Counter[str] = Counter()
        hashes: dict[tuple[str, int, int], bytes] = {}
        trees: dict[str, dict[str, State]] = {}
        after = ""
        while page := await store.runs(RunFilter(after=after, limit=PAGE_RUNS)):
            for row in page:
                state = await _judge_run(store, row, found, intents, hashes)
                trees.setdefault(row.root_id, {})[row.run_id] = state
            after = page[-1].run_id
    finally:
        await store.close()
    _judge_trees(trees, found)
    for append in acknowledged:
        key = (append.run_id, append.first_seq, append.event_count)
        found["acknowledged events"] += append.event_count
        if hashes.get(key) != append.hash:
            found["lost or changed events"] += append.event_count
    for name, count in requests.items():
        kind, _, key_hex = name.partition(":")
        found["requests without an intent"] += max(0, count - intents[key_hex])
        if kind in ("none", "queryable"):
            found[f"{kind} effects asked for twice"] += count > 1
    found["effects"] = sum(effects.values())
    found["duplicate effects"] = sum(count - 1 for count in effects.values())
    return found


async def _judge_run(
    store: EventStore,
    row: RunRow,
    found: Counter[str],
    intents: Counter[str],
    hashes: dict[tuple[str, int, int], bytes],
) -> State:
    found["runs"] += 1
    for stored in await store.read(row.run_id):
        hashes[row.run_id, stored.first_seq, stored.event_count] = stored.hash
    state, records = await load_run(store, row.run_id)
    try:
        check_state(state)
    except BugError as error:
        found[f"{row.run_id} breaks {error.code}: {error.message}"] += 1
        found["laws broken"] += 1
    if state.phase != "terminated" and not row.index.waiting_for and state.phase != "suspended":
        found["stranded runs"] += 1
    if state.phase == "terminated":
        found[f"ended {state.outcome}, {state.reason}"] += 1
    keys: dict[str, str] = {}
    bound: Counter[str] = Counter()
    proposed = 0
    for record in records:
        match record.event:
            case e.CallProposed():
                proposed += 1
            case e.CallValidated(call=call, key=bytes(key)):
                keys[call] = key.hex()
            case e.CallStarted(call=call) if call in keys:
                intents[keys[call]] += 1
            case e.ResultBound(call=call):
                bound[call] += 1
            case _:
                pass
    if state.phase == "terminated" and (len(bound) != proposed or set(bound.values()) - {1}):
        found["calls without exactly one result"] += 1
    return state


def _judge_trees(trees: Mapping[str, Mapping[str, State]], found: Counter[str]) -> None:
    """The laws of leases over each tree."""
    for root_id, runs in trees.items():
        found["trees"] += len(runs) > 1
        found["deepest run"] = max(found["deepest run"], *(state.depth for state in runs.values()))
        try:
            check_tree(runs)
        except BugError as error:
            found[f"the tree of {root_id} breaks {error.code}: {error.message}"] += 1
            found["laws broken"] += 1


async def judge_acks(url: str, acks: Iterable[Ack]) -> Counter[str]:
    """What the driver was told yes to: each run is there, and so is each approval."""
    found: Counter[str] = Counter()
    store = await open_store(url)
    try:
        for ack in acks:
            found[f"acknowledged to the driver: {ack.what}"] += 1
            wanted = e.RunStarted if ack.what == "started" else e.ApprovalDecided
            _, records = await load_run(store, ack.run_id)
            if not any(one.seq == ack.seq and isinstance(one.event, wanted) for one in records):
                found["lost yeses"] += 1
    finally:
        await store.close()
    return found


FORBIDDEN: Final = (
    "damaged logs",
    "lost or changed events",
    "requests without an intent",
    "duplicate effects",
    "none effects asked for twice",
    "queryable effects asked for twice",
    "calls without exactly one result",
    "stranded runs",
    "laws broken",
    "zombies let in",
    "lost yeses",
    "leaked actors",
    "given up",
)
