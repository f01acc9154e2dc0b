"""A Runtime whose disk fails once, for good, or loses its power in the middle of a run with effects that nothing repeats."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.sqlite_faults.file_shim import FileShim, How, find_library

from boundloop.actors.client import Runtime
from boundloop.actors.context import ToolContext
from boundloop.actors.result import Result
from boundloop.adapters.script import ScriptedTurn, call, calls, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.eventstore.history import load_run
from boundloop.eventstore.location import open_store
from boundloop.eventstore.verify import verify_store
from boundloop.runtime import events as e
from boundloop.runtime.errors import ConflictError, RunNotFound, StoreError
from boundloop.runtime.limits import Limits
from boundloop.runtime.tool_spec import tool

pytestmark = pytest.mark.skipif(
    find_library() is None, reason="SQLite is built into this Python and can't be reached from outside"
)

SCRIPT: list[ScriptedTurn] = [
    calls(call("send", {"n": 1}), call("send", {"n": 2})),
    call("send", {"n": 3}),
    say("Done."),
]
STUCK_S = 60.0
LOOK_S = 0.02
FAULTS_MAX = 200


class Play:
    """One run on one file, in one Runtime after the other. ``sent`` counts by call id."""

    def __init__(self, path: Path) -> None:
        self.sent: Counter[str] = Counter()
        self._url = f"sqlite:///{path}"

    def runtime(self) -> Runtime:
        sent = self.sent

        @tool(risk="write", key=("n",), far_side="none", inline=True)
        async def send(n: int, ctx: ToolContext) -> int:
            """Send one."""
            sent[ctx.call_id] += 1
            return n

        return Runtime(store=self._url, model=ScriptedModel(SCRIPT), tools=[send])

    def start(self, rt: Runtime) -> None:
        """As a caller does who tries again after an error of the store."""
        for _ in range(5):
            with contextlib.suppress(StoreError):
                with contextlib.suppress(ConflictError):  # it had been written after all
                    rt.start("go", run_id="r1", limits=Limits(cost=0))
                return
        raise AssertionError("it can't be started")

    def intents(self) -> Counter[str]:
        """By call id, as the file has them."""

        async def read() -> list[Any]:
            store = await open_store(self._url)
            try:
                assert (await verify_store(store)).ok
                _, records = await load_run(store, "r1")
                return [record.event for record in records]
            finally:
                await store.close()

        return Counter(event.call for event in asyncio.run(read()) if isinstance(event, e.CallStarted))


@pytest.mark.parametrize("how", ["once", "full", "unsynced", "dropped"])
def test_a_disk_that_fails_once_holds_a_run_up_and_no_more(tmp_path: Path, how: How) -> None:
    every = 1 if how in ("unsynced", "dropped") else 9
    for number in range(1, FAULTS_MAX, every):
        play = Play(tmp_path / f"{number}.db")
        with FileShim(find_library()) as shim:
            with play.runtime() as rt:
                shim.arm(number, how)
                play.start(rt)
                result = rt.result("r1", STUCK_S)
                fired = shim.met.is_set()
                shim.heal()
            assert (result.outcome, sorted(play.sent.values())) == ("completed", [1, 1, 1])
            assert set(play.intents()) == set(play.sent)
        if not fired:
            return
    raise AssertionError("the run has no end")


@pytest.mark.parametrize("how", ["gone", "power"])
def test_whatever_was_sent_has_its_intent_when_the_disk_or_the_power_is_back(
    tmp_path: Path, how: How
) -> None:
    completed = 0
    for number in range(1, FAULTS_MAX, 5):
        play = Play(tmp_path / f"{number}.db")
        with FileShim(find_library()) as shim:
            rt = play.runtime()
            shim.arm(number, how)
            ended = run_into(rt, shim)
            with contextlib.suppress(StoreError):
                rt.close()
            shim.heal()
            sent = Counter(play.sent)
            if sent:
                assert set(sent) <= set(play.intents())
            with play.runtime() as rt:
                play.start(rt)
                result = rt.result("r1", STUCK_S)
            # An effect whose answer was lost is for a person; nothing that may have happened is done again.
            assert result.outcome == "completed" or result.unknown_effects, result
            assert set(play.sent.values()) <= {1}
            assert set(play.intents()) >= set(play.sent)
            completed += result.outcome == "completed"
        if ended is not None:
            assert completed > 1
            return
    raise AssertionError("the run has no end")


def run_into(rt: Runtime, shim: FileShim) -> Result | None:
    """Until the disk fails; the result of a run that ended before."""
    with contextlib.suppress(StoreError):
        rt.start("go", run_id="r1", limits=Limits(cost=0))
    while not shim.met.is_set():
        with contextlib.suppress(TimeoutError, StoreError, RunNotFound):
            return rt.result("r1", LOOK_S)
    return None
