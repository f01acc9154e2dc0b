"""w3: short runs a second, start to end, one tool step each."""

from __future__ import annotations

import asyncio
import os

from bench.measure import Facts, Figures, Stopwatch, repeated, store_bytes
from bench.workload import (
    LIMITS,
    Lane,
    ToolKind,
    insist_completed,
    model_for,
    run_all,
    store_of,
    tool_for,
)

from boundloop.actors import Result, Runtime


def runs_per_second(
    folder: str, *, lane: Lane, kind: ToolKind, runs: int, at_once: int, store: str, repeat: int
) -> Facts:
    """``runs`` runs of one step, at most ``at_once`` of them under way."""

    def once(number: int) -> Figures:
        where, path = store_of(store, folder, f"w3_{number}")
        with Runtime(store=where, model=model_for(1), tools=[tool_for(kind, lane)]) as runtime:
            insist_completed(asyncio.run(run_all(runtime, 1)))
            with Stopwatch() as watch:
                results = asyncio.run(_bounded(runtime, runs, at_once))
            insist_completed(results)
        figures: Figures = {"runs_per_s": runs / watch.wall_s, "cpu_s_per_1000": watch.cpu_s / runs * 1_000}
        if path:
            figures["bytes_per_run"] = store_bytes(path) / (runs + 1)
            os.unlink(path)
        return figures

    return {
        "workload": "w3",
        "lane": lane,
        "tool": kind,
        "runs": runs,
        "at_once": at_once,
        "steps": 1,
        "store": store,
        **repeated(once, repeat),
    }


async def _bounded(runtime: Runtime, runs: int, at_once: int) -> list[Result]:
    places = asyncio.Semaphore(at_once)

    async def one() -> Result:
        async with places:
            return await runtime.aio.run("go", limits=LIMITS)

    return await asyncio.gather(*(one() for _ in range(runs)))
