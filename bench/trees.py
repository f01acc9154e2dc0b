"""tree: runs and turns a second of trees in which agents are tools, all runs of them in one process."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Final

from bench.measure import Facts, Figures, repeated, store_bytes
from bench.processes import FamilyStopwatch
from bench.workload import MANY, Placement, cluster, insist_completed, store_of

from boundloop.actors import Result, Runtime
from boundloop.adapters.script import ScriptedTurn, call, calls, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.runtime import Limits, agent, tool
from boundloop.runtime.model import ModelInput

DEPTH: Final = 2
WIDTH: Final = 4
RUNS_A_TREE: Final = sum(WIDTH**level for level in range(DEPTH + 1))
TURNS_A_RUN: Final = 2
LIMITS: Final = Limits(
    cost="0.000001",
    turns=MANY,
    model_attempts=MANY,
    tool_calls=MANY,
    call_attempts=MANY,
    input_tokens=MANY,
    output_tokens=MANY,
    total_tokens=MANY,
    active_ms=MANY,
    deadline_ms=MANY,
    children=RUNS_A_TREE,
    depth=DEPTH,
    output_tokens_per_request=256,
)


@tool(risk="read", quick=True, inline=True)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def trees_per_second(
    folder: str, *, trees: int, at_once: int, repeat: int, placement: Placement = "dense"
) -> Facts:
    """``trees`` trees of ``RUNS_A_TREE`` runs: each run but a leaf calls ``WIDTH`` agents in one turn, a leaf a tool, and
    all say a word at the end. At most ``at_once`` trees at a time. CPU is that of all processes with Ray's own."""

    def once(number: int) -> Figures:
        where, path = store_of("sqlite", folder, f"tree_{number}")
        with Runtime(
            store=where,
            model=ScriptedModel(_answer),
            tools=_tools(),
            ray=None if placement == "process" else "require",
            warm_actors=0,
        ) as runtime:
            insist_completed(asyncio.run(_grown(runtime, 1, 1)))
            with FamilyStopwatch() as watch:
                results = asyncio.run(_grown(runtime, trees, at_once))
            insist_completed(results)
        runs = trees * RUNS_A_TREE
        figures: Figures = {
            "trees_per_s": trees / watch.wall_s,
            "runs_per_s": runs / watch.wall_s,
            "turns_per_s": runs * TURNS_A_RUN / watch.wall_s,
            "cpu_s_per_1000_runs": watch.cpu_s / runs * 1_000,
            "bytes_per_run": store_bytes(path) / (runs + RUNS_A_TREE),
        }
        os.unlink(path)
        return figures

    with cluster(placement):
        figures_of_all = repeated(once, repeat)
    return {
        "workload": "tree",
        "placement": placement,
        "trees": trees,
        "at_once": at_once,
        "depth": DEPTH,
        "width": WIDTH,
        **figures_of_all,
    }


def _tools() -> list[Any]:
    leaf = agent(name="leaf", description="Adds.", system="leaf", tools=("add",))
    branch = agent(name="branch", description="Has leaves.", system="branch", tools=("leaf",))
    return [add, leaf, branch]


def _answer(request: ModelInput) -> ScriptedTurn:
    if request.turn > 1:
        return say("done")
    if request.system == "leaf":
        return call("add", {"a": 1, "b": 2})
    below = "leaf" if request.system == "branch" else "branch"
    return calls(*(call(below, {"input": f"part {number}"}) for number in range(WIDTH)))


async def _grown(runtime: Runtime, trees: int, at_once: int) -> list[Result]:
    results: list[Result] = []
    async for row in runtime.aio.map(["go"] * trees, parallel=at_once, limits=LIMITS):
        if row.result is None:
            raise RuntimeError(f"row {row.index}") from row.error
        results.append(row.result)
    return results
