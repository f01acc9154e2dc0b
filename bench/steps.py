"""w1: tool steps a second, for one run and for many at once, and how the cost of a step grows with a run's length."""

from __future__ import annotations

import asyncio
import os

from bench.measure import Facts, Figures, Stopwatch, medians, repeated, rounded, store_bytes
from bench.processes import FamilyStopwatch
from bench.workload import (
    ACTORS,
    Lane,
    Placement,
    ToolKind,
    cluster,
    insist_completed,
    run_all,
    runtime_of,
    store_of,
)

GROWTH_SHORT = 100
GROWTH_LONG = 10_000
LONG_BY_SHORT = 5
"""Short runs follow each other until they have a fifth of the long run's steps: one alone is over too soon to be
measured well."""


def steps_per_second(
    folder: str,
    *,
    lane: Lane,
    kind: ToolKind,
    runs: int,
    steps: int,
    store: str,
    repeat: int,
    placement: Placement = "process",
) -> Facts:
    """From starting ``runs`` runs until all have ended, in a Runtime that is open already. CPU is that of all processes
    with Ray's own."""
    _warm_up(folder, lane, kind)

    def once(number: int) -> Figures:
        return _measured(
            folder,
            f"w1_{number}",
            lane=lane,
            kind=kind,
            runs=runs,
            steps=steps,
            store=store,
            rounds=1,
            placement=placement,
        )

    with cluster(placement):
        figures = repeated(once, repeat)
    return {
        "workload": "w1",
        "placement": placement,
        "lane": lane,
        "tool": kind,
        "runs": runs,
        "steps": steps,
        "store": store,
        **figures,
    }


def growth(
    folder: str, *, lane: Lane, kind: ToolKind, store: str, repeat: int, long: int = GROWTH_LONG
) -> Facts:
    """One long run against short ones, taken in turns so that a change of the machine's load meets both."""
    _warm_up(folder, lane, kind)
    short_samples: list[Figures] = []
    long_samples: list[Figures] = []
    ratios: list[Figures] = []
    for number in range(repeat):
        short_samples.append(
            _measured(
                folder,
                f"short_{number}",
                lane=lane,
                kind=kind,
                runs=1,
                steps=GROWTH_SHORT,
                store=store,
                rounds=max(1, long // GROWTH_SHORT // LONG_BY_SHORT),
            )
        )
        long_samples.append(
            _measured(
                folder, f"long_{number}", lane=lane, kind=kind, runs=1, steps=long, store=store, rounds=1
            )
        )
        ratios.append(
            {
                "growth": short_samples[-1]["steps_per_s"] / long_samples[-1]["steps_per_s"],
                "growth_cpu": long_samples[-1]["cpu_s_per_1000"] / short_samples[-1]["cpu_s_per_1000"],
            }
        )
    return {
        "workload": "w1_growth",
        "lane": lane,
        "tool": kind,
        "runs": 1,
        "store": store,
        f"steps_{GROWTH_SHORT}": medians(short_samples),
        f"steps_{long}": medians(long_samples),
        **medians(ratios),
    }


def _warm_up(folder: str, lane: Lane, kind: ToolKind) -> None:
    """Import and compile all that a first run would be charged for."""
    _measured(folder, "warm", lane=lane, kind=kind, runs=1, steps=3, store="sqlite", rounds=1)


def _measured(
    folder: str,
    name: str,
    *,
    lane: Lane,
    kind: ToolKind,
    runs: int,
    steps: int,
    store: str,
    rounds: int,
    placement: Placement = "process",
) -> Figures:
    """``rounds`` times ``runs`` runs in a new store; bytes count every file of the store, its empty pages too."""
    where, path = store_of(store, folder, name)
    events = appends = 0

    def count(*_: object) -> None:
        nonlocal appends
        appends += 1

    with runtime_of(where, steps=steps, kind=kind, lane=lane, placement=placement) as runtime:
        runtime.watch(count)
        if placement != "process":
            insist_completed(asyncio.run(run_all(runtime, min(runs, ACTORS), placement)))  # makes the actors
            appends = 0
        watch = Stopwatch() if placement == "process" else FamilyStopwatch()
        with watch:
            for _ in range(rounds):
                results = asyncio.run(run_all(runtime, runs, placement))
                insist_completed(results)
                events += sum(result.seq for result in results)
    total = rounds * runs * steps
    figures: Figures = {
        "steps_per_s": total / watch.wall_s,
        "us_per_step": watch.wall_s / total * 1e6,
        "cpu_s_per_1000": watch.cpu_s / total * 1_000,
        "events_per_step": events / total,
        "appends_per_step": appends / total,
    }
    if path:
        figures["bytes_per_step"] = rounded(store_bytes(path) / total)
        os.unlink(path)
    return figures
