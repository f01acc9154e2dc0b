"""The same boundaries over a memory store: the host is dropped where it stands, another one on the same store goes on."""

# pyright: reportPrivateUsage=false
# Dropping a host means stopping the loop of its Runtime, which nobody else may.

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from examples.far_side import FarSide

from boundloop.actors.client import Runtime
from boundloop.actors.result import Result
from boundloop.eventstore.clock import wall_ms
from boundloop.eventstore.memory import MemoryStore
from boundloop.eventstore.port import Append, AppendAnswer, EventStore

from .points import POSITIONS, DeathAtAppend, Gone, MortalStore, Position
from .proof import Acknowledged, Counted, check_end, check_intents, check_log
from .scenario import carry_through, model, tools_at

APPENDS = 17
STUCK_S = 60.0
AHEAD_MS = 60_000


@pytest.fixture(scope="module")
def far() -> Iterator[FarSide]:
    with FarSide.start(in_order=True) as started:
        yield started


class Breakable(MemoryStore):
    """A memory store in which an append can die half-way: admitted, and nothing of it written."""

    break_down: Callable[[], None] | None = None

    def _refusal(self, request: Append, run: Any, now_ms: int) -> AppendAnswer | None:
        refusal = super()._refusal(request, run, now_ms)
        if self.break_down is not None:
            self.break_down()
            raise Gone
        return refusal


class Host:
    """A Runtime that can be dropped: from one moment on nothing of it runs any more, and nothing of it says goodbye."""

    def __init__(self, store: MortalStore, far: FarSide) -> None:
        self._store = store
        self._far = far
        mortal: Any = store  # an EventStore by what it passes on
        self.runtime = Runtime(store=mortal, model=model(), tools=tools_at(far))
        self._ended = threading.Event()
        self._work: Future[Result] | None = None

    def die(self) -> None:
        """Called on the host's loop. The caller must not go on afterwards."""
        self._store.dead = True
        self._ended.set()

    def carry(self, operation_id: str) -> Result | None:
        """The run's result, None if the host died first."""
        work = asyncio.run_coroutine_threadsafe(
            carry_through(self.runtime, self._far, operation_id), self.runtime._thread.loop
        )
        work.add_done_callback(lambda _: self._ended.set())
        assert self._ended.wait(STUCK_S), "the run hangs"
        if self._store.dead:
            self._bury()
            return None
        result = work.result()
        self.runtime.close()
        return result

    def _bury(self) -> None:
        """End what is left of the loop; the store answers nothing of it any more. Threads of tools that are out end
        by themselves: what they had sent is over when they are."""
        loop = self.runtime._thread.loop

        async def end() -> None:
            mine = asyncio.current_task()
            rest = [task for task in asyncio.all_tasks() if task is not mine]
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

        loop.set_exception_handler(lambda loop, context: None)
        asyncio.run_coroutine_threadsafe(end(), loop).result(STUCK_S)
        self.runtime._thread.stop()
        for thread in threading.enumerate():
            if thread.name.startswith("tool-"):
                thread.join(STUCK_S)


def crash(far: FarSide, at: int, position: Position) -> None:
    """One case, from the start to the end that another host brings about."""
    late_ms = 0
    inner = Breakable(clock=lambda: wall_ms() + late_ms)
    acknowledged: list[Acknowledged] = []
    counted = Counted(far)
    store = MortalStore(inner)
    host = Host(store, far)

    def kill(wanted: Position) -> None:
        loop = asyncio.get_running_loop()
        match wanted:
            case "after_answer":
                loop.call_soon(host.die)
            case "inside":
                inner.break_down = host.die
            case _:
                host.die()
                raise Gone

    store.death = DeathAtAppend(at, position, kill, acknowledged.append)
    name = f"{position} {at}"
    assert host.carry(name) is None, "it did not come to that append"
    inner.break_down = None
    records = asyncio.run(check_log(inner, acknowledged))
    check_intents(records, counted.counts()["requests"])
    late_ms = AHEAD_MS
    successor = MortalStore(inner)
    successor.death = DeathAtAppend(0, position, kill, acknowledged.append)
    result = Host(successor, far).carry(name)
    assert result is not None
    records = asyncio.run(check_log(inner, acknowledged))
    check_end(result, records, counted.counts())


def test_the_boundaries_are_all_of_them(far: FarSide) -> None:
    store: EventStore = MemoryStore()
    mortal = MortalStore(store)
    acknowledged: list[Acknowledged] = []
    mortal.death = DeathAtAppend(0, "before", lambda position: None, acknowledged.append)
    result = Host(mortal, far).carry("whole")
    assert result is not None
    assert mortal.death.appends == len(acknowledged) == APPENDS
    asyncio.run(check_log(store, acknowledged))


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("at", range(1, APPENDS + 1))
def test_a_dropped_host_loses_nothing_and_doubles_nothing(far: FarSide, at: int, position: Position) -> None:
    crash(far, at, position)
