"""Many runs, one after another, in the same processes: what those hold afterwards is what they held before."""

from __future__ import annotations

import asyncio
import gc
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.processes import threads_and_files
from tests.scale.census import System, rss_bytes
from tests.scale.ground import one_node, say
from tests.scale.verdicts import Verdicts

from boundloop.actors import Runtime
from boundloop.adapters.loopback_process import LoopbackProcess
from boundloop.adapters.loopback_script import ServedScript, ServerScript
from boundloop.adapters.openai_chat import OpenAIChat
from boundloop.adapters.script import call
from boundloop.adapters.script import say as final
from boundloop.runtime import Limits, tool
from boundloop.runtime.prices import Price

LIMITS: Final = Limits(cost="0.10", deadline_s=600)
PRICE: Final = Price(input=1_000_000, output=2_000_000)
CONNECTIONS: Final = 32
BYTES_PER_RUN_MAX: Final = 700.0
"""The slope of resident memory that counts as none. The least that a run could leave behind, a task with its coroutine, is
thousands of bytes. What is left is not Python's: bare Ray calls of an empty method cost 50 to 100 resident bytes each, and a
run here makes three; in the owner, SQLite's pages and the rows of runs that the store remembers fill up to their bounds."""


@dataclass(frozen=True)
class Size:
    runs: int
    round: int
    parallel: int
    warm_rounds: int
    judge: bool


FULL: Final = Size(runs=20_000, round=1_000, parallel=64, warm_rounds=6, judge=True)
SHORT: Final = Size(runs=80, round=20, parallel=16, warm_rounds=1, judge=False)


@tool(risk="read", quick=True)
def look_up(order_id: str) -> dict[str, str]:
    """Look one order up."""
    return {"order_id": order_id}


@tool(risk="write", key=("order_id",), far_side="keyed")
async def note(order_id: str) -> dict[str, str]:
    """Note one order."""
    return {"noted": order_id}


def check(size: Size, verdicts: Verdicts) -> None:
    """Half of the rounds to warm up and half to judge by; in one dense actor, over HTTP, with a read and an effect each."""
    script = ServedScript(
        turns=(
            call("look_up", {"order_id": "{{user}}"}),
            call("note", {"order_id": "{{user}}"}),
            final("Done."),
        ),
        substitute=True,
    )
    with (
        LoopbackProcess(ServerScript(scripts=(script,))) as model,
        one_node(),
        tempfile.TemporaryDirectory(prefix="scale-") as folder,
        Runtime(
            store=f"sqlite:///{Path(folder) / 'runs.db'}",
            model=OpenAIChat(model="m", base_url=model.base_url, price=PRICE, connections_max=CONNECTIONS),
            tools=[look_up, note],
            ray="require",
            run_actors=1,
            warm_actors=0,
            dense_actors=1,
        ) as runtime,
    ):
        system = System([model.pid])
        measured: list[_Held] = []
        began = time.monotonic()
        for number in range(size.runs // size.round):
            asyncio.run(_round(runtime, number, size))
            measured.append(_held(runtime, system))
            say(f"{(number + 1) * size.round} runs: {measured[-1]}")
        verdicts.figure("runs", size.runs)
        verdicts.figure("runs a second", size.runs / (time.monotonic() - began))
        _judge(verdicts, measured[size.warm_rounds :], size)
        _remembered(verdicts, runtime)


async def _round(runtime: Runtime, number: int, size: Size) -> None:
    inputs = [f"o{number}-{index}" for index in range(size.round)]
    async for row in runtime.aio.map(inputs, parallel=size.parallel, limits=LIMITS):
        if not row.completed:
            raise RuntimeError(f"row {row.index}: {row.result}") from row.error


@dataclass(frozen=True)
class _Held:
    owner_rss: int
    actor_rss: int
    owner: tuple[int, int]
    actor: tuple[int, int]
    processes: int
    actor_tasks: int


def _held(runtime: Runtime, system: System) -> _Held:
    """What the owner, which is this process, and the run actor hold now."""
    import os

    gc.collect()
    (held,) = _supervisor(runtime)._actors.values()
    pid: int = held.handle.identity.pid
    counts: dict[str, int] = asyncio.run(_on_loop(runtime, held.handle.statistics()))
    return _Held(
        rss_bytes(os.getpid()),
        rss_bytes(pid),
        threads_and_files(os.getpid()),
        threads_and_files(pid),
        len(system.pids()),
        counts["tasks"],
    )


async def _on_loop(runtime: Runtime, work: Any) -> Any:
    inner: Any = runtime.aio
    return await inner._on_loop(work)


def _supervisor(runtime: Runtime) -> Any:
    inner: Any = runtime
    return inner._embedded.serving._cluster.supervisor


def _judge(verdicts: Verdicts, measured: list[_Held], size: Size) -> None:
    """The slope is Theil and Sen's: the median of the slopes between all pairs of rounds, so that one noisy round is
    nothing to it."""
    for who, values in (
        ("owner", [one.owner_rss for one in measured]),
        ("dense actor", [one.actor_rss for one in measured]),
    ):
        slope = _slope(values) / size.round
        shown = f"{slope:,.1f} bytes a run, {values[0] / 2**20:,.1f} to {values[-1] / 2**20:,.1f} MiB"
        if size.judge:
            verdicts.holds(f"{who}: resident memory grows by", shown, holds=slope <= BYTES_PER_RUN_MAX)
        else:
            verdicts.figure(f"{who}: resident memory grows by", shown)
    first, last = measured[0], measured[-1]
    for name, before, after in (
        ("owner: threads", first.owner[0], last.owner[0]),
        ("owner: open files", first.owner[1], last.owner[1]),
        ("dense actor: threads", first.actor[0], last.actor[0]),
        ("dense actor: open files", first.actor[1], last.actor[1]),
        ("dense actor: tasks", first.actor_tasks, last.actor_tasks),
        ("processes", first.processes, last.processes),
    ):
        # Connections come and go, and the last words of a round may still be on their way; one a run would be thousands.
        spare = CONNECTIONS if name.endswith(("files", "tasks")) else 2
        verdicts.holds(name, f"{before} to {after}", holds=after <= before + spare)


def _slope(values: list[int]) -> float:
    slopes = [
        (values[later] - values[earlier]) / (later - earlier)
        for earlier in range(len(values))
        for later in range(earlier + 1, len(values))
    ]
    return statistics.median(slopes)


def _remembered(verdicts: Verdicts, runtime: Runtime) -> None:
    """What the owner still knows of runs that have ended, by name and number."""
    supervisor = _supervisor(runtime)
    inner: Any = runtime
    owning = inner._embedded.serving
    host = owning.host
    for name, kept in (
        ("runs seated", supervisor.seating.seat_of),
        ("runs queued", supervisor.seating.queued_runs()),
        ("suspects", supervisor._suspects),
        ("refusals", supervisor._refusals),
        ("adoptions", supervisor._adopting),
        ("drivers", host._drivers),
        ("failures", host.failures),
        ("left alone", host._not_ours),
        ("doubtful", host._doubtful),
        ("waiters", owning.waiters._waiting),
        ("followers", owning._followers._waiting),
    ):
        verdicts.equal(f"owner: {name}", len(kept), 0)
    verdicts.figure("owner: locks", len(host._locks))
