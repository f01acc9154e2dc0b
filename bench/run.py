"""Measure boundloop: one JSON line a result. Questions, definitions and figures are in README.md beside this file.

w1 tool steps a second · w2 a new process takes a run over · w3 short runs a second · w4 rebuild from the store ·
w5 parked runs · tree runs a second in trees of agents · core the pure core alone · store appends against their
floors · lists runs list with each filter · layers where a step's time goes
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

if __name__ == "__main__":
    # Started as a file: its neighbours are modules of the package `bench`, below the root of the checkout.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench.measure import Facts, machine
from bench.postgres import end_servers
from bench.workload import LANES, PLACEMENTS, STORES, TOOLS

Given = argparse.Namespace
Results = Iterator[Facts]


def main(arguments: list[str] | None = None) -> None:
    """Run one workload and print its results as they come."""
    given = _options().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=given.folder) as folder:
        about = machine(folder)
        if given.placement is None:
            given.placement = "dense" if given.lane == "pooled" else "process"
        try:
            for result in WORKLOADS[given.workload](given, folder):
                show({**result, **about}, given.output)
        finally:
            end_servers()


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("workload", choices=WORKLOADS)
    add("--lane", choices=LANES, default="inline", help="where the tool runs (w1, w3)")
    add("--placement", choices=PLACEMENTS, help="on Ray: many runs in the owner, or an actor a run (w1, w3)")
    add("--tool", choices=TOOLS, default="read", help="quick read, or keyed write (w1, w3)")
    add(
        "--store",
        choices=STORES,
        default="sqlite",
        help="null keeps nothing (w1); postgres starts a server (w1)",
    )
    add("--runs", type=_positive, help="runs at once (w1, store), runs in all (w3, w5, lists), trees (tree)")
    add("--steps", type=_positive, help="tool steps a run (w1, w2, w4, core, layers)")
    add("--repeat", type=_positive, default=3, help="fresh measurements; the median is shown")
    add("--raw", action="store_true", help="store: SQLite and PostgreSQL, against raw sqlite3 and asyncpg")
    add("--growth", action="store_true", help="w1: the cost of a step in a long run against short ones")
    add("--seconds", type=float, default=2.0, help="how long to append (store), to stay idle (w5)")
    add("--wakes", type=_positive, default=50, help="w5: how many parked runs to approve")
    add("--folder", help="where store files go; its disk is what is measured")
    add("-o", dest="output", choices=("json", "table"), default="table")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


# Each measurement loads only what it measures.


def _w1(given: Given, folder: str) -> Results:
    from bench import steps

    way = {"lane": given.lane, "kind": given.tool, "store": given.store, "repeat": given.repeat}
    if given.growth and given.placement != "process":
        raise SystemExit("--growth is measured in one process")
    if given.growth:
        yield steps.growth(folder, **way, long=given.steps or steps.GROWTH_LONG)
    else:
        yield steps.steps_per_second(
            folder, **way, runs=given.runs or 1, steps=given.steps or 1_000, placement=given.placement
        )


def _w2(given: Given, folder: str) -> Results:
    from bench.takeover import seconds_to_next_step

    for steps in [given.steps] if given.steps else [100, 1_000]:
        yield seconds_to_next_step(folder, steps=steps, repeat=given.repeat)


def _w3(given: Given, folder: str) -> Results:
    from bench.starts import runs_per_second

    runs = given.runs or 1_000
    way = {"lane": given.lane, "kind": given.tool, "store": given.store, "repeat": given.repeat}
    for at_once in sorted({min(32, runs), runs}):
        yield runs_per_second(folder, **way, runs=runs, at_once=at_once, placement=given.placement)


def _start(given: Given, folder: str) -> Results:
    from bench.starts import seconds_to_start

    yield seconds_to_start(folder, starts=given.runs or 200, repeat=given.repeat)


def _w4(given: Given, folder: str) -> Results:
    from bench.rebuild import events_per_second

    for steps in [given.steps] if given.steps else [1_000, 10_000]:
        yield events_per_second(folder, steps=steps, repeat=given.repeat)


def _w5(given: Given, folder: str) -> Results:
    from bench.parked import parked_runs

    runs = given.runs or 10_000
    yield parked_runs(
        folder,
        runs=runs,
        window_s=given.seconds,
        wakes=min(given.wakes, runs),
        store="memory" if given.store == "memory" else "sqlite",
        repeat=given.repeat,
    )


def _tree(given: Given, folder: str) -> Results:
    from bench.trees import trees_per_second

    trees = given.runs or 20
    yield trees_per_second(
        folder,
        trees=trees,
        at_once=min(8, trees),
        repeat=given.repeat,
        placement="dense" if given.placement == "actor" else given.placement,
    )


def _core(given: Given, folder: str) -> Results:
    from bench.core import core_figures

    yield core_figures(given.steps or 1_000, given.repeat)


def _store(given: Given, folder: str) -> Results:
    from bench.appends import RUNS, appends_per_second

    for runs in [given.runs] if given.runs else RUNS:
        yield appends_per_second(folder, runs=runs, seconds=given.seconds, repeat=given.repeat)
    if given.raw:
        from bench.raw_stores import against_raw

        yield from against_raw(folder, seconds=given.seconds, repeat=given.repeat)


def _lists(given: Given, folder: str) -> Results:
    from bench.lists import lists_of_runs

    yield from lists_of_runs(folder, runs=given.runs or 100_000)


def _blobs(given: Given, folder: str) -> Results:
    from bench.blobs import blobs_kept

    yield from blobs_kept(
        folder, store="postgres" if given.store == "postgres" else "sqlite", repeat=given.repeat
    )


def _layers(given: Given, folder: str) -> Results:
    from bench.layers import step_layers

    yield step_layers(folder, steps=given.steps or 1_000, repeat=given.repeat)


WORKLOADS: dict[str, Callable[[Given, str], Results]] = {
    "w1": _w1,
    "w2": _w2,
    "w3": _w3,
    "start": _start,
    "w4": _w4,
    "w5": _w5,
    "tree": _tree,
    "core": _core,
    "store": _store,
    "lists": _lists,
    "blobs": _blobs,
    "layers": _layers,
}


def show(result: Facts, output: str) -> None:
    """A JSON line, or a line a figure."""
    if output == "json":
        print(json.dumps(result), flush=True)
        return
    width = max(map(len, result))
    for name, value in result.items():
        print(f"{name:<{width}}  {value if isinstance(value, str) else json.dumps(value)}")
    print(flush=True)


if __name__ == "__main__":
    main()
