"""The runs of one tree, as their logs have them: who started whom, what became of each, what each spent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from ..runtime.errors import RunNotFound, StoreError
from ..runtime.state import METERED, State
from .history import PinsCache, load_run
from .port import EventStore, RunFilter, RunRow
from .reading import read_run
from .rules import ENDED_STATUS

PAGE_RUNS = 500
RUNS_MAX = 10_000
"""Runs of one tree that are looked at; more are left out and said so."""


class Relative(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a tree. ``spent`` is by metered limit and holds what the runs below it spent, once they are settled.
    ``problem`` is empty unless its log is damaged or can't be read; then nothing but its index row is known."""

    run_id: str
    parent_run: str
    parent_call: str
    depth: int
    agent: str
    status: str
    outcome: str
    reason: str
    waiting_for: str
    spent: dict[str, int]
    problem: str = ""


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """``runs`` in the order of a walk: each run is followed by its children, in call order. ``truncated``: there are more."""

    root_id: str
    runs: tuple[Relative, ...]
    truncated: bool = False


async def read_family(store: EventStore, run_id: str, *, whole: bool = False) -> Family:
    """The run and all runs below it; ``whole``: of the whole tree that it belongs to. Raises ``RunNotFound`` and
    ``StoreError``; a run that can't be read doesn't hide the others."""
    row = await store.run(run_id)
    if row is None:
        raise RunNotFound(run_id)
    root_id = row.root_id or row.run_id
    rows, truncated = await _rows(store, root_id)
    if row.run_id not in {found.run_id for found in rows}:
        rows.append(row)
    pins = PinsCache()
    found = {one.run_id: await _relative(store, one, pins) for one in rows}
    first = root_id if whole and root_id in found else run_id
    return Family(root_id=root_id, runs=tuple(_walk(found, first)), truncated=truncated)


async def _rows(store: EventStore, root_id: str) -> tuple[list[RunRow], bool]:
    rows: list[RunRow] = []
    after = ""
    while len(rows) < RUNS_MAX:
        page = await store.runs(RunFilter(root_id=root_id, after=after, limit=PAGE_RUNS))
        rows += page
        if len(page) < PAGE_RUNS:
            return rows, False
        after = page[-1].run_id
    return rows, True


async def _relative(store: EventStore, row: RunRow, pins: PinsCache) -> Relative:
    index = row.index
    known = Relative(
        run_id=row.run_id,
        parent_run=row.parent_id,
        parent_call="",
        depth=0,
        agent=row.agent,
        status="damaged" if row.damaged else index.status,
        outcome=index.outcome,
        reason=index.reason,
        waiting_for=index.waiting_for,
        spent={},
    )
    try:
        read = await read_run(store, row.run_id, pins)
    except StoreError as error:
        return msgspec.structs.replace(known, problem=str(error))
    state = read.state
    if state is None or read.damage:
        return msgspec.structs.replace(known, status="damaged", problem=read.damage or "it can't be folded")
    return msgspec.structs.replace(
        known,
        parent_call=state.parent_call,
        depth=state.depth,
        spent={name: getattr(state.meters, name).spent for name in METERED},
    )


def _walk(found: dict[str, Relative], first: str) -> Iterator[Relative]:
    below: dict[str, list[Relative]] = {}
    for run in found.values():
        if run.parent_run:
            below.setdefault(run.parent_run, []).append(run)
    waiting, seen = [first], set[str]()
    while waiting:  # each run once, whatever its row says of its parent
        run_id = waiting.pop()
        if run_id in seen or run_id not in found:
            continue
        seen.add(run_id)
        yield found[run_id]
        waiting += reversed([run.run_id for run in _in_call_order(below.get(run_id, ()))])


def _in_call_order(runs: Iterable[Relative]) -> list[Relative]:
    """``c2.10`` comes after ``c2.9``; what can't be read comes last."""

    def place(run: Relative) -> tuple[int, int, str]:
        turn, _, index = run.parent_call.removeprefix("c").partition(".")
        known = turn.isdecimal() and index.isdecimal()
        return (int(turn), int(index), run.run_id) if known else (2**53, 0, run.run_id)

    return sorted(runs, key=place)


async def asked_below(store: EventStore, state: State) -> list[RunRow]:
    """The runs below one that waits for child runs alone in which a person has to act, if nothing below goes on before;
    empty if something goes on, or will by itself. Rows first: a log is read only of a run that waits for children."""
    waiting, asked, seen = [state], list[RunRow](), 0
    while waiting and seen < RUNS_MAX:
        state = waiting.pop()
        opened = [call for call in state.calls.values() if call.open]
        if state.phase != "open_calls" or any(call.phase not in _AT_REST for call in opened):
            return []
        for call in opened:
            if call.child is None or call.phase != "waiting_child":
                continue
            seen += 1
            row = await store.run(call.child.run_id)
            if row is None or row.ready or row.owner or row.damaged or row.index.status == ENDED_STATUS:
                return []
            waits = row.index.waiting_for
            if waits.startswith("child:"):
                child, _ = await load_run(store, row.run_id)
                waiting.append(child)
            elif waits.startswith(("approval:", "answer:", "person:")) or row.index.status == "suspended":
                asked.append(row)
            else:
                return []
    return asked


_AT_REST = frozenset({"waiting_child", "waiting_approval", "waiting_answer"})
"""What a call waits at that only somebody else moves on."""
