"""The work that every measurement does: a free scripted model that proposes one call a turn, and two tools.

Everything that a production run has is on: strict parsing, schemas, policy, limits, hashes, bindings, the chain, and a
synchronous commit before anything is sent. Limits are raised, not switched off, so that none of them ends a run.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, Literal

from boundloop.actors import Result, Runtime
from boundloop.adapters.scripted import ScriptedModel
from boundloop.eventstore.port import EventStore
from boundloop.runtime import Limits, tool
from boundloop.runtime.model import ModelInput, ModelTurn, ProposedCall, Usage

Lane = Literal["inline", "task", "thread", "pooled"]
Placement = Literal["process", "dense", "actor"]
ToolKind = Literal["read", "write"]
LANES: Final = ("inline", "task", "thread", "pooled")
PLACEMENTS: Final = ("process", "dense", "actor")
TOOLS: Final = ("read", "write")
STORES: Final = ("sqlite", "memory", "null", "postgres")
ACTORS: Final = 4
"""Run actors of the ``actor`` placement. More than there are cores, or nobody works while one waits."""


MANY: Final = 2**40
LIMITS: Final = Limits(
    cost="0.000001",
    turns=MANY,
    model_attempts=MANY,
    tool_calls=MANY,
    call_attempts=MANY,
    input_tokens=MANY,
    output_tokens=MANY,
    total_tokens=MANY,
    context_tokens=MANY,
    history_bytes=MANY,
    active_ms=MANY,
    deadline_ms=MANY,
)
_USAGE: Final = Usage(100, 20)


def tool_for(kind: ToolKind, lane: Lane) -> Callable[..., Any]:
    """``read``: quick and side-effect free. ``write``: keyed by both arguments, so each call claims a ledger key.

    ``inline`` runs in the host's loop, ``task`` is an async tool as a task of its own, ``thread`` a sync tool, which on
    Ray is ``pooled``: it runs in an executor's process.
    """
    inline = lane == "inline"
    declare = (
        tool(name="add", risk="read", quick=True, inline=inline)
        if kind == "read"
        else tool(name="add", risk="write", key="arguments", far_side="keyed", inline=inline)
    )
    if lane in ("thread", "pooled"):

        def add_here(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        return declare(add_here)

    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    return declare(add)


def model_for(steps: int) -> ScriptedModel:
    """Proposes ``add`` in turns 1 to ``steps``, each time with another argument, then gives a final answer. It answers
    at once."""

    def answer(request: ModelInput) -> ModelTurn:
        turn = request.turn
        if turn > steps:
            return ModelTurn(finish="final", text="done", usage=_USAGE)
        call = ProposedCall("add", b'{"a":%d,"b":1}' % turn, f"call_{turn}")
        return ModelTurn(finish="calls", calls=(call,), usage=_USAGE, response_id=f"resp_{turn}")

    return ScriptedModel(answer)


def store_of(kind: str, folder: str, name: str) -> tuple[str | EventStore, str]:
    """The store to give to ``Runtime``, and the path of its file (empty without one)."""
    if kind == "sqlite":
        path = os.path.join(folder, f"{name}.db")
        return f"sqlite:///{path}", path
    if kind == "postgres":
        from bench.postgres import server_in

        return server_in(folder).url(), ""
    if kind == "null":
        from bench.null_store import NullStore

        return NullStore(), ""
    return "memory://", ""


def runtime_of(
    where: str | EventStore, *, steps: int, kind: ToolKind, lane: Lane, placement: Placement = "process"
) -> Runtime:
    """``process``: all of it here, without Ray. ``dense``: on Ray, with all runs hosted by the owner. ``actor``: on Ray, a
    run actor for each run at work."""
    return Runtime(
        store=where,
        model=model_for(steps),
        tools=[tool_for(kind, lane)],
        ray=None if placement == "process" else "require",
        run_actors=ACTORS,
        warm_actors=ACTORS if placement == "actor" else 0,
    )


async def run_all(
    runtime: Runtime, runs: int, placement: Placement = "process", at_once: int = 10_000
) -> list[Result]:
    """Start ``runs`` runs at once and wait until each has ended. ``at_once`` bounds dense ones."""
    if placement != "dense":
        return await asyncio.gather(*(runtime.aio.run("go", limits=LIMITS) for _ in range(runs)))
    rows = runtime.aio.map(["go"] * runs, parallel=min(runs, at_once), limits=LIMITS)
    results: list[Result] = []
    async for row in rows:
        if row.result is None:
            raise RuntimeError(f"row {row.index}") from row.error
        results.append(row.result)
    return results


@contextmanager
def cluster(placement: Placement) -> Generator[None]:
    """The Ray that a placement needs, on this machine, for as long as the block lasts."""
    if placement == "process":
        yield
        return
    from boundloop.actors.ray_calls import untyped_ray

    ray = untyped_ray()
    ray.init(
        address="local",
        namespace="boundloop",
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=128 * 1024 * 1024,
    )
    try:
        yield
    finally:
        ray.shutdown()


def insist_completed(results: list[Result]) -> None:
    """A measurement of runs that stopped early would be a lie."""
    for result in results:
        if not result.completed:
            raise RuntimeError(f"{result.run_id} stopped: {result.reason} {result.detail}")
