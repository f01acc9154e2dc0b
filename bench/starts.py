"""w3: short runs a second, start to end, one tool step each."""

from __future__ import annotations

import asyncio
import os
import statistics
import time

from bench.measure import Facts, Figures, Stopwatch, repeated, store_bytes
from bench.processes import FamilyStopwatch
from bench.workload import (
    ACTORS,
    LIMITS,
    Lane,
    Placement,
    ToolKind,
    cluster,
    insist_completed,
    run_all,
    runtime_of,
    store_of,
)

from boundloop.actors import Result, Runtime


def runs_per_second(
    folder: str,
    *,
    lane: Lane,
    kind: ToolKind,
    runs: int,
    at_once: int,
    store: str,
    repeat: int,
    placement: Placement = "process",
) -> Facts:
    """``runs`` runs of one step, at most ``at_once`` of them under way. CPU is that of all processes with Ray's own."""

    def once(number: int) -> Figures:
        where, path = store_of(store, folder, f"w3_{number}")
        with runtime_of(where, steps=1, kind=kind, lane=lane, placement=placement) as runtime:
            insist_completed(
                asyncio.run(run_all(runtime, 1 if placement == "process" else ACTORS, placement))
            )
            with Stopwatch() if placement == "process" else FamilyStopwatch() as watch:
                results = asyncio.run(
                    run_all(runtime, runs, placement, at_once)
                    if placement == "dense"
                    else _bounded(runtime, runs, at_once)
                )
            insist_completed(results)
        figures: Figures = {"runs_per_s": runs / watch.wall_s, "cpu_s_per_1000": watch.cpu_s / runs * 1_000}
        if path:
            figures["bytes_per_run"] = store_bytes(path) / (runs + 1)
            os.unlink(path)
        return figures

    with cluster(placement):
        figures_of_all = repeated(once, repeat)
    return {
        "workload": "w3",
        "placement": placement,
        "lane": lane,
        "tool": kind,
        "runs": runs,
        "at_once": at_once,
        "steps": 1,
        "store": store,
        **figures_of_all,
    }


async def _bounded(runtime: Runtime, runs: int, at_once: int) -> list[Result]:
    places = asyncio.Semaphore(at_once)

    async def one() -> Result:
        async with places:
            return await runtime.aio.run("go", limits=LIMITS)

    return await asyncio.gather(*(one() for _ in range(runs)))


def seconds_to_start(folder: str, *, starts: int, repeat: int) -> Facts:
    """What a caller waits for on Ray with warm run actors: ``start_ms`` until ``run_started`` is durable, ``begun_ms`` until
    the run actor's first event of it is, one run after another."""

    def once(number: int) -> Figures:
        where, path = store_of("sqlite", folder, f"start_{number}")
        with runtime_of(where, steps=1, kind="read", lane="inline", placement="actor") as runtime:
            insist_completed(asyncio.run(run_all(runtime, ACTORS)))
            start_ms: list[float] = []
            begun_ms: list[float] = []
            for _ in range(starts):
                asked = time.perf_counter()
                handle = runtime.start("go", limits=LIMITS)
                start_ms.append((time.perf_counter() - asked) * 1e3)
                next(runtime.stream(handle.run_id, after_seq=1))
                begun_ms.append((time.perf_counter() - asked) * 1e3)
                insist_completed([handle.result(60)])
        os.unlink(path)
        return {
            "start_ms_p50": statistics.median(start_ms),
            "begun_ms_p50": statistics.median(begun_ms),
            "begun_ms_max": max(begun_ms),
        }

    with cluster("actor"):
        figures = repeated(once, repeat)
    return {"workload": "start", "placement": "actor", "starts": starts, **figures}
