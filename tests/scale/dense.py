"""Many runs at work at once in few processes: their memory, their pace, and that none of them fails."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.ray.process_table import eventually
from tests.scale.census import System
from tests.scale.ground import one_node
from tests.scale.verdicts import Verdicts

from boundloop.actors import Result, Runtime
from boundloop.adapters.loopback_process import LoopbackProcess
from boundloop.adapters.loopback_script import ServedScript, ServerScript
from boundloop.adapters.openai_chat import OpenAIChat
from boundloop.adapters.script import ScriptedTurn, call, say
from boundloop.runtime import Limits, tool
from boundloop.runtime.prices import Price

MEMORY_MIB_MAX: Final = 4_096
STEPS: Final = 3
LIMITS: Final = Limits(cost="0.10", turns=STEPS + 1, tool_calls=STEPS, deadline_s=600)
PRICE: Final = Price(input=1_000_000, output=2_000_000)
GATE: Final = "all-here"


@dataclass(frozen=True)
class Size:
    runs: int
    latency_ms: int
    within_s: float
    placements: tuple[int, ...]


FULL: Final = Size(runs=2_000, latency_ms=2_000, within_s=240.0, placements=(0, 2))
SHORT: Final = Size(runs=60, latency_ms=100, within_s=30.0, placements=(1,))


@tool(risk="read", quick=True)
def look_up(order_id: str) -> dict[str, str]:
    """Look one order up."""
    return {"order_id": order_id, "state": "shipped"}


@tool(risk="read", timeout_ms=120_000)
def weigh(order_id: str) -> dict[str, int]:
    """Weigh one order: a sync tool, each call alone in an executor's process."""
    return {"grams": len(order_id)}


def check(size: Size, verdicts: Verdicts) -> None:
    """Each placement once: in the owner (0), or in so many dense run actors."""
    for dense_actors in size.placements:
        _check(size, dense_actors, verdicts)


def _script(size: Size) -> ServerScript:
    steps = [call("look_up", {"order_id": f"{{{{user}}}}-{number}"}) for number in range(STEPS - 1)]
    # At this turn everybody waits for everybody: so all runs are at work at the same time, whatever the pace, and then all
    # of them want one of the few executors.
    together = ScriptedTurn(calls=call("weigh", {"order_id": "{{user}}"}).calls, gate=GATE)
    script = ServedScript(turns=(*steps, together, say("Done.")), substitute=True)
    return ServerScript(scripts=(script,), latency_ms=size.latency_ms, jitter=0.5, seed=1)


def _check(size: Size, dense_actors: int, verdicts: Verdicts) -> None:
    where = f"{dense_actors} dense actors" if dense_actors else "in the owner"
    with (
        LoopbackProcess(_script(size)) as model,
        one_node(),
        tempfile.TemporaryDirectory(prefix="scale-") as folder,
        Runtime(
            store=f"sqlite:///{Path(folder) / 'runs.db'}",
            model=OpenAIChat(
                model="m", base_url=model.base_url, price=PRICE, connections_max=size.runs + 100
            ),
            tools=[look_up, weigh],
            ray="require",
            warm_actors=0,
            dense_actors=dense_actors,
        ) as runtime,
    ):
        system = System([model.pid])
        done: list[Result] = []
        errors: list[BaseException] = []
        worker = threading.Thread(target=lambda: asyncio.run(_all(runtime, size, done, errors)), daemon=True)
        cpu_s, began = system.cpu_s(), time.monotonic()
        with system.watched() as counts:
            worker.start()
            together = eventually(lambda: model.reached(GATE) >= size.runs or bool(errors), size.within_s)
            gathered_s = time.monotonic() - began
            at_gate = system.census()
            model.open_gate(GATE)
            worker.join(size.within_s)
        took_s = time.monotonic() - began
        used_s = system.cpu_s() - cpu_s
        asked = model.counts()
    peak = max(count.pss_mib for count in (*counts, at_gate))
    verdicts.figure(f"{where}: runs", size.runs)
    verdicts.holds(f"{where}: all at work at once", f"after {gathered_s:.1f} s", holds=together)
    verdicts.equal(f"{where}: completed", sum(result.completed for result in done), size.runs)
    for error in errors[:3]:
        verdicts.figure("error", repr(error))
    for result in [result for result in done if not result.completed][:3]:
        verdicts.figure("not completed", f"{result.run_id} {result.reason} {result.detail}")
    verdicts.at_most(f"{where}: PSS of all processes at its peak, MiB", peak, MEMORY_MIB_MAX)
    verdicts.figure(f"{where}: processes", at_gate.processes)
    over = [
        result for result in done if result.spent["turns"] > STEPS + 1 or result.spent["tool_calls"] > STEPS
    ]
    verdicts.equal(f"{where}: runs over a limit", len(over), 0)
    verdicts.at_most(f"{where}: model requests", asked["total"], size.runs * (STEPS + 1) * 2)
    verdicts.figure(f"{where}: model requests in flight at most", asked["in_flight_max"])
    verdicts.figure(f"{where}: runs a second", size.runs / took_s)
    verdicts.figure(f"{where}: CPU seconds", used_s)


async def _all(runtime: Runtime, size: Size, done: list[Result], errors: list[BaseException]) -> None:
    inputs = [f"o{number}" for number in range(size.runs)]
    try:
        async for row in runtime.aio.map(inputs, parallel=size.runs, limits=LIMITS):
            if row.result is not None:
                done.append(row.result)
            elif row.error is not None:
                errors.append(row.error)
    except Exception as error:  # noqa: BLE001  shown as what broke the check
        errors.append(error)
