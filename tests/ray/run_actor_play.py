"""The application of the run-actor tests, importable by the actors, and what a test sees of its processes.

A run's system text is its plan, one word a turn: ``look``, ``hold`` (a read that waits for the file named in the input),
``book`` (an effect at a far side that takes the key), ``pay`` (the same, once a person said yes); ``late:`` before a word
holds the first attempt of that turn's model request back for an hour.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from examples.far_side import FarSide
from tests.attach_play import exists, half_of, on_loop
from tests.ray.process_table import eventually

from boundloop.actors.client import Runtime
from boundloop.actors.context import ToolContext
from boundloop.actors.result import Result
from boundloop.adapters.script import ScriptedTurn, call, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.eventstore.port import HostRow, RunRow
from boundloop.runtime import events as e
from boundloop.runtime.limits import WAIVED, Limits
from boundloop.runtime.model import ModelInput, UserItem
from boundloop.runtime.tool_spec import tool

LIMITS: Final = Limits(cost=WAIVED)
WITHIN_S: Final = 120.0
HOUR_MS: Final = 3_600_000
TIMEOUT_MS: Final = 2_000


@tool(risk="read")
async def look(number: int) -> dict[str, int]:
    """Look something up."""
    return {"number": number}


@tool(risk="read", timeout_ms=120_000)
async def hold(path: str) -> dict[str, int]:
    """Wait until the file is there."""
    await exists(path)
    return {"pid": os.getpid()}


@tool(risk="write", key=("order_id",), far_side="keyed", timeout_ms=TIMEOUT_MS)
def book(order_id: str, ctx: ToolContext) -> dict[str, Any]:
    """Book an order; the far side takes the key."""
    return FarSide(ctx.dependencies["far_port"]).submit(ctx.key, order_id=order_id)


@tool(risk="irreversible", key=("order_id",), far_side="keyed", approval="always", timeout_ms=TIMEOUT_MS)
def pay(order_id: str, ctx: ToolContext) -> dict[str, Any]:
    """Pay an order back."""
    return FarSide(ctx.dependencies["far_port"]).submit(ctx.key, order_id=order_id)


def answer(request: ModelInput) -> ScriptedTurn:
    plan = request.system.split()
    if request.turn > len(plan):
        return say("Done.")
    text = next((item.text for item in request.items if isinstance(item, UserItem)), "")
    word = plan[request.turn - 1]
    late = word.startswith("late:") and request.attempt == 1
    word = word.removeprefix("late:")
    arguments: dict[str, dict[str, Any]] = {
        "look": {"number": request.turn},
        "hold": {"path": text},
        "book": {"order_id": request.run_id},
        "pay": {"order_id": request.run_id},
    }
    turn = call(word, arguments[word])
    return msgspec.structs.replace(turn, late_ms=HOUR_MS) if late else turn


def runtime_on(path: Path | str, far: FarSide | None = None, **options: Any) -> Runtime:
    """A Runtime that has everything these runs need, on a file or on the store of a URL."""
    given: dict[str, Any] = {"run_actors": 2, "warm_actors": 1, **options}
    return Runtime(
        store=str(path) if "://" in str(path) else f"sqlite:///{path}",
        model=ScriptedModel(answer),
        tools=[look, hold, book, pay],
        dependencies={"far_port": far.port if far else 0},
        **given,
    )


def start(runtime: Runtime, plan: str, text: str = "go", **options: Any) -> str:
    return runtime.start(text, system=plan, limits=LIMITS, **options).run_id


def completed(result: Result) -> bool:
    return (result.outcome, result.text) == ("completed", "Done.")


# --- what there is of processes ------------------------------------------------------------------------------------------


def store_of(runtime: Runtime) -> Any:
    return half_of(runtime).serving.store


def supervisor_of(runtime: Runtime) -> Any:
    return half_of(runtime).serving._cluster.supervisor


def row_of(runtime: Runtime, run_id: str) -> RunRow:
    row: RunRow | None = on_loop(runtime, store_of(runtime).run(run_id))
    assert row is not None
    return row


def hosts_of(runtime: Runtime) -> dict[str, HostRow]:
    rows: list[HostRow] = on_loop(runtime, store_of(runtime).hosts())
    return {row.host_id: row for row in rows}


def host_with(runtime: Runtime, run_id: str, *, other_than: int = 0) -> int:
    """The process that has the run, once one has it."""
    found: list[int] = []

    def has_host() -> bool:
        host = hosts_of(runtime).get(row_of(runtime, run_id).owner)
        if host is not None and host.pid != other_than:
            found.append(host.pid)
        return bool(found)

    assert eventually(has_host, WITHIN_S), f"nobody takes {run_id} up"
    return found[0]


def actor_pids(runtime: Runtime) -> set[int]:
    """The processes of this Runtime's run actors that hold a row."""
    return {row.pid for row in hosts_of(runtime).values()} - {os.getpid()}


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def until(what: str, happened: Callable[[], bool], seconds: float = WITHIN_S) -> None:
    assert eventually(happened, seconds), what


def events_so_far(runtime: Runtime, run_id: str) -> list[e.AnyEvent]:
    seq = row_of(runtime, run_id).seq
    found: list[e.AnyEvent] = []
    for item in runtime.stream(run_id):
        found.append(item.event)
        if item.seq >= seq:
            break
    return found
