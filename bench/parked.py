"""w5: what runs cost that wait for a person, and how fast one goes on once the person has said yes."""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import threading
import time

from bench.measure import Facts, Figures, process_cpu_s, repeated, resident_bytes, store_bytes
from bench.workload import LIMITS, insist_completed, model_for, store_of

from boundloop.actors import Runtime
from boundloop.runtime import tool

CHUNK = 500
"""Runs started at once: parking is what is measured here, not starting."""


def parked_runs(folder: str, *, runs: int, window_s: float, wakes: int, store: str, repeat: int) -> Facts:
    """``runs`` runs of one step, each at rest before an effect that needs approval.

    ``idle_cpu`` is the process's CPU seconds per second over ``window_s`` with all of them parked, ``idle_cpu_empty``
    the same before any run existed. ``wake_ms`` counts from the call of ``approve`` until the tool begins, ``ended_ms``
    until the caller has the run's result; medians over ``wakes`` runs, one after another.
    """
    figures = repeated(lambda number: _measured(folder, number, runs, window_s, wakes, store), repeat)
    return {"workload": "w5", "runs": runs, "store": store, "processes": 1, **figures}


def _measured(folder: str, number: int, runs: int, window_s: float, wakes: int, store: str) -> Figures:
    began: list[float] = []

    @tool(name="add", risk="irreversible", key=("a", "b"), far_side="keyed", inline=True)
    async def add(a: int, b: int) -> int:
        """Add two numbers, once a person agrees."""
        began.append(time.perf_counter())
        return a + b

    where, path = store_of(store, folder, f"w5_{number}")
    with Runtime(store=where, model=model_for(1), tools=[add]) as runtime:
        _parked(runtime, 1)
        gc.collect()
        resident = resident_bytes()
        idle_empty = _idle_cpu(window_s)
        start = time.perf_counter()
        # Only those that will be woken are remembered here, so that the harness adds nothing to the memory of a run.
        waiting: list[tuple[str, str]] = []
        for first in range(0, runs, CHUNK):
            waiting = (waiting + _parked(runtime, min(CHUNK, runs - first)))[-wakes:]
        park_s = time.perf_counter() - start
        gc.collect()
        grown = resident_bytes() - resident
        idle = _idle_cpu(window_s)
        threads = threading.active_count()
        wake_ms, ended_ms = _woken(runtime, waiting, began)
    figures: Figures = {
        "resident_bytes_per_run": grown / runs,
        "threads": threads,
        "idle_cpu": idle,
        "idle_cpu_empty": idle_empty,
        "park_runs_per_s": runs / park_s,
        "wake_ms_p50": statistics.median(wake_ms),
        "wake_ms_max": max(wake_ms),
        "ended_ms_p50": statistics.median(ended_ms),
    }
    if path:
        figures["bytes_per_run"] = store_bytes(path) / (runs + 1)
        os.unlink(path)
    return figures


def _parked(runtime: Runtime, count: int) -> list[tuple[str, str]]:
    """Start that many and wait until each waits for its approval; their run and approval ids."""

    async def all_of_them() -> list[tuple[str, str]]:
        results = await asyncio.gather(*(runtime.aio.run("go", limits=LIMITS) for _ in range(count)))
        return [(result.run_id, result.approvals[0].approval_id) for result in results]

    return asyncio.run(all_of_them())


def _idle_cpu(window_s: float) -> float:
    start, cpu = time.perf_counter(), process_cpu_s()
    threading.Event().wait(window_s)
    return (process_cpu_s() - cpu) / (time.perf_counter() - start)


def _woken(
    runtime: Runtime, waiting: list[tuple[str, str]], began: list[float]
) -> tuple[list[float], list[float]]:
    wake_ms: list[float] = []
    ended_ms: list[float] = []
    for run_id, approval_id in waiting:
        start = time.perf_counter()
        runtime.approve(run_id, approval_id, by="someone")
        insist_completed([runtime.wait(run_id, 60)])
        ended_ms.append((time.perf_counter() - start) * 1e3)
        wake_ms.append((began[-1] - start) * 1e3)
    return wake_ms, ended_ms
