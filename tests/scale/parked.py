"""Many runs that wait for a person: what they hold, what they cost, and how fast one goes on."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from tests.scale.census import Census, System, rss_bytes
from tests.scale.ground import one_node
from tests.scale.person import Person
from tests.scale.verdicts import Verdicts

from boundloop.actors import Runtime
from boundloop.actors.pool_spec import Pool
from boundloop.adapters.loopback_process import LoopbackProcess
from boundloop.adapters.loopback_script import ServedScript, ServerScript
from boundloop.adapters.openai_chat import OpenAIChat
from boundloop.adapters.script import call, say
from boundloop.runtime import Limits, tool
from boundloop.runtime.events import CallExecuted
from boundloop.runtime.prices import Price

LIMITS: Final = Limits(cost="0.10", deadline_s=86_400, approval_ms=80_000_000)
PRICE: Final = Price(input=1_000_000, output=2_000_000)
WAKE_MS_MAX: Final = 500.0
START_MS_P50_MAX: Final = 20.0
SPARE_THREADS: Final = 8
"""Ray makes some of its threads when it first has a use for them."""

SPARE_SHARE: Final = 0.05
"""CPU seconds a second that two measurements of the same idleness may differ by: Ray's own daemons do."""

REMEMBERED: Final = 21
"""Of the parked runs: those that are woken, and one for the command line."""


class Waiting(NamedTuple):
    """A run that waits, and for which approval."""

    run_id: str
    approval_id: str


@dataclass(frozen=True)
class Size:
    runs: int
    at_once: int
    window_s: float
    starts: int
    dense_actors: int


FULL: Final = Size(runs=10_000, at_once=500, window_s=10.0, starts=100, dense_actors=1)
SHORT: Final = Size(runs=100, at_once=100, window_s=1.0, starts=10, dense_actors=1)


@tool(risk="irreversible", key=("order_id",), far_side="keyed")
def pay(order_id: str) -> dict[str, int]:
    """Pay once a person agrees; says when it began."""
    return {"began_ns": time.monotonic_ns(), "pid": os.getpid()}


def check(size: Size, verdicts: Verdicts) -> None:
    """Empty, then with all of them parked, then some woken, then starts."""
    script = ServedScript(turns=(call("pay", {"order_id": "{{user}}"}), say("Paid.")), substitute=True)
    with (
        LoopbackProcess(ServerScript(scripts=(script,))) as model,
        one_node(),
        tempfile.TemporaryDirectory(prefix="scale-") as folder,
        Runtime(
            store=f"sqlite:///{Path(folder) / 'runs.db'}",
            model=OpenAIChat(model="m", base_url=model.base_url, price=PRICE),
            tools=[pay],
            ray="require",
            run_actors=4,
            warm_actors=2,
            dense_actors=size.dense_actors,
            pools={"default": Pool(warm=1)},
        ) as runtime,
        Person(str(Path(folder) / "runs.db")) as person,
    ):
        system = System([model.pid, person.pid], elsewhere=lambda: model.counts()["connections"])
        # Everything that is made on first use is there before it is counted.
        asyncio.run(_parked(runtime, size.at_once, size.at_once, "warm"))
        _woken(runtime, person, asyncio.run(_parked(runtime, 2, 2, "first"))[0])
        before, idle_before, rss_before = _at_rest(system, size)
        began = time.monotonic()
        waiting, asking = asyncio.run(_parked(runtime, size.runs, size.at_once, "o"))
        verdicts.figure("runs parked", size.runs)
        verdicts.figure("parked a second", size.runs / (time.monotonic() - began))
        after, idle_after, rss_after = _at_rest(system, size)
        _compare(verdicts, before, after)
        verdicts.holds(
            "idle CPU, seconds a second",
            f"{idle_after:.3f} with them, {idle_before:.3f} before",
            holds=idle_after <= idle_before + SPARE_SHARE,
        )
        grown = sum(rss_after[pid] - rss_before[pid] for pid in rss_before.keys() & rss_after.keys())
        verdicts.figure("resident bytes grown, a run", grown / size.runs)
        verdicts.figure("idle connections to the model server", model.counts()["connections"])
        verdicts.equal("wait for a person", asking, size.runs)
        wake_ms, ended = _woken(runtime, person, waiting[:-1])
        verdicts.at_most(
            "approve in another process to the tool's beginning, ms, p50",
            statistics.median(wake_ms),
            WAKE_MS_MAX,
        )
        verdicts.figure("the slowest of them", max(wake_ms))
        verdicts.equal("woken runs that completed", ended, len(wake_ms))
        _by_shell(runtime, Path(folder) / "runs.db", waiting[-1], verdicts)
        _started(runtime, size, verdicts)


async def _parked(runtime: Runtime, runs: int, at_once: int, name: str) -> tuple[list[Waiting], int]:
    """So many more runs, each waiting for its approval: some of them, spread over all, and how many wait. The others aren't
    remembered here, or this would be the memory that they cost."""
    some: list[Waiting] = []
    asking = 0
    inputs = [f"{name}{number}" for number in range(runs)]
    async for row in runtime.aio.map(inputs, parallel=at_once, limits=LIMITS):
        if row.result is None:
            raise RuntimeError(f"row {row.index}") from row.error
        asking += len(row.result.approvals) == 1
        if row.index % max(1, runs // REMEMBERED) == 0:
            some.append(Waiting(row.result.run_id, row.result.approvals[0].approval_id))
    return some, asking


def _at_rest(system: System, size: Size) -> tuple[Census, float, dict[int, int]]:
    census = system.settled()
    share = system.cpu_share(size.window_s)
    return census, share, {pid: rss_bytes(pid) for pid in system.pids()}


def _compare(verdicts: Verdicts, before: Census, after: Census) -> None:
    verdicts.holds(
        "processes",
        f"{after.processes} with them, {before.processes} before",
        holds=after.processes <= before.processes,
    )
    verdicts.holds(
        "threads",
        f"{after.threads} with them, {before.threads} before",
        holds=after.threads <= before.threads + SPARE_THREADS,
    )
    verdicts.holds(
        "open files", f"{after.files} with them, {before.files} before", holds=after.files <= before.files
    )
    verdicts.figure("PSS, MiB", f"{after.pss_mib} with them, {before.pss_mib} before")


def _woken(runtime: Runtime, person: Person, waiting: list[Waiting]) -> tuple[list[float], int]:
    """Approve one after the other; milliseconds from the wish to the tool's first instruction, and how many completed."""
    wake_ms: list[float] = []
    ended = 0
    for result in waiting:
        decision = person.approve(result.run_id, result.approval_id)
        if not decision.accepted:
            raise RuntimeError(f"{result.run_id}: not accepted")
        ended += runtime.wait(result.run_id, 60).completed
        wake_ms.append((_began_ns(runtime, result.run_id) - decision.asked_ns) / 1e6)
    return wake_ms, ended


def _began_ns(runtime: Runtime, run_id: str) -> int:
    for item in runtime.stream(run_id):
        if isinstance(item.event, CallExecuted):
            began: int = msgspec.json.decode(item.event.result or b"{}")["began_ns"]
            return began
    raise RuntimeError(f"{run_id}: no call was executed")


def _by_shell(runtime: Runtime, path: Path, result: Waiting, verdicts: Verdicts) -> None:
    """The same with the command line."""
    began = time.monotonic()
    shell = subprocess.run(
        [
            sys.executable,
            "-m",
            "boundloop",
            "approve",
            result.approval_id,
            "--store",
            f"sqlite:///{path}",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    took_s = time.monotonic() - began
    verdicts.holds(
        "boundloop approve in another shell",
        f"exit {shell.returncode}, {took_s:.2f} s with the start of Python {shell.stderr[-200:]}",
        holds=shell.returncode == 0 and runtime.wait(result.run_id, 60).completed,
    )


def _started(runtime: Runtime, size: Size, verdicts: Verdicts) -> None:
    """Starts of runs with an actor to themselves, one after the other, all those parked runs beside them."""
    start_ms: list[float] = []
    begun_ms: list[float] = []
    for number in range(size.starts):
        asked = time.monotonic()
        handle = runtime.start(f"s{number}", limits=LIMITS)
        start_ms.append((time.monotonic() - asked) * 1e3)
        next(runtime.stream(handle.run_id, after_seq=1))
        begun_ms.append((time.monotonic() - asked) * 1e3)
        handle.result(60)
    verdicts.at_most("start returns, ms, p50", statistics.median(start_ms), START_MS_P50_MAX)
    verdicts.figure("the warm actor's first event, ms, p50", statistics.median(begun_ms))
    verdicts.figure("the slowest of them", max(begun_ms))
