"""The host under load: starts runs and carries all of them, old ones too, until it is killed."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Final

from examples.far_side import FarSide
from tests.crash.points import DeathAtAppend
from tests.crash.proof import Acknowledged

from boundloop.actors.client import Runtime
from boundloop.eventstore.port import Append, AppendAnswer
from boundloop.eventstore.sqlite import SqliteStore
from boundloop.runtime.errors import OwnedError

from .load import LIMITS, plan_of, runtime_on

TOGETHER: Final = 6
"""Runs that are under way at once, not counting those that wait for a person."""

OPEN_TRIES: Final = 200
OPEN_PAUSE_S: Final = 0.02


def host(path: str, far_port: int, seed: int, number: int, say: Callable[[Acknowledged], None]) -> None:
    """Until killed. ``number`` counts the hosts; one with number 0 starts no runs. ``say`` hears of every append that
    the store said yes to."""
    _listen(say)
    with _opened(path, FarSide(far_port)) as runtime:
        asyncio.run(_start_runs(runtime, seed, number))


def _listen(say: Callable[[Acknowledged], None]) -> None:
    death = DeathAtAppend(0, "before", lambda position: None, say)
    append = SqliteStore.append

    async def told_append(store: SqliteStore, request: Append) -> AppendAnswer:
        async def inner(wanted: Append) -> AppendAnswer:
            return await append(store, wanted)

        return await death.append(inner, request)

    SqliteStore.append = told_append  # type: ignore[assignment,method-assign]  # a process that tells what it heard


def _opened(path: str, far: FarSide) -> Runtime:
    """The other shell may own the file for the length of a command."""
    for _ in range(OPEN_TRIES):
        try:
            return runtime_on(path, far)
        except OwnedError:
            select.select([], [], [], OPEN_PAUSE_S)
    return runtime_on(path, far)


async def _start_runs(runtime: Runtime, seed: int, number: int) -> None:
    if number == 0:
        await asyncio.get_running_loop().create_future()
    await asyncio.gather(*(_one_after_the_other(runtime, seed, number, lane) for lane in range(TOGETHER)))


async def _one_after_the_other(runtime: Runtime, seed: int, number: int, lane: int) -> None:
    for count in range(1_000_000):
        run_id = f"r{number}_{lane}_{count}"
        await runtime.aio.start("Go.", run_id=run_id, limits=LIMITS, system=plan_of(seed, run_id))
        await runtime.aio.result(run_id)
