"""What a quick read may take counts from when its code begins: what it waited for before that is no fault of its own.

A host with a thousand runs is later than 50 ms with its own work, and each read that it gave up for that would be tried again.
"""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any, Final

import pytest

from boundloop.actors import ToolContext, context, executors
from boundloop.actors.executors import QUICK_LATE_MS
from boundloop.adapters import call, calls, say
from boundloop.runtime import events as e
from boundloop.runtime import tool

from .stepped_runtime import Site, has

WITHIN_S: Final = 30


def read_in(lane: str, ran: list[str], **options: Any) -> Any:
    def on_thread() -> None:
        """Look, on a thread."""
        ran.append(lane)

    async def on_loop() -> None:
        """Look, on the loop."""
        ran.append(lane)

    body: Any = on_thread if lane == "thread" else on_loop
    return tool(risk="read", name="look", inline=lane == "inline", **options)(body)


def after_a_slow_intent(site: Site, look: Any, late_ms: int) -> list[tuple[str, str]]:
    """What became of each attempt, when the first one's intent was durable so long after it was decided."""
    host = site.open([call("look", {}), say("done")], [look])
    append = host.line.stall_at(has(e.CallStarted, attempt=1))
    run = host.start()
    assert append.wait_reached(WITHIN_S)
    host.advance(late_ms)
    append.open()
    host.settle()
    host.advance(5_000)
    assert host.rest(run).completed
    return [(event.outcome, event.code) for event in site.of(run, e.CallExecuted)]


@pytest.mark.parametrize("lane", ["inline", "task", "thread"])
def test_a_quick_read_whose_intent_was_slow_to_commit_runs_all_the_same(site: Site, lane: str) -> None:
    ran: list[str] = []
    outcomes = after_a_slow_intent(site, read_in(lane, ran, quick=True), QUICK_LATE_MS - 100)
    assert (ran, outcomes) == ([lane], [("succeeded", "")])


@pytest.mark.parametrize("lane", ["inline", "task", "thread"])
def test_one_that_is_later_than_that_is_refused_and_tried_again(site: Site, lane: str) -> None:
    ran: list[str] = []
    outcomes = after_a_slow_intent(site, read_in(lane, ran, quick=True), QUICK_LATE_MS + 100)
    assert (ran, outcomes) == ([lane], [("failed", "expired"), ("succeeded", "")])


@pytest.mark.parametrize("lane", ["inline", "task", "thread"])
def test_a_read_that_is_not_quick_has_its_time_from_its_intent_on(site: Site, lane: str) -> None:
    ran: list[str] = []
    outcomes = after_a_slow_intent(site, read_in(lane, ran, timeout_ms=50), 100)
    assert (ran, outcomes) == ([lane], [("failed", "expired"), ("succeeded", "")])


def time_passes(monkeypatch: pytest.MonkeyPatch, ms: int) -> None:
    """Where a tool looks how long it has left."""
    real = time.monotonic
    monkeypatch.setattr(context, "time", SimpleNamespace(monotonic=lambda: real() + ms / 1_000))


def test_a_quick_read_that_waited_for_a_thread_has_its_whole_time_there(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "THREADS_MAX", 1)
    free = {"a": threading.Event(), "b": threading.Event()}
    began = threading.Event()

    left: list[float] = []

    @tool(risk="read", quick=True)
    def look(name: str, ctx: ToolContext) -> str:
        """Look."""
        if name == "b":
            left.append(ctx.remaining_s)
            began.set()
        assert free[name].wait(WITHIN_S)
        return name

    looks = calls(call("look", {"name": "a"}), call("look", {"name": "b"}))
    host = site.open([looks, say("done")], [look])
    run = host.start()
    host.settle()
    host.advance(40)
    time_passes(monkeypatch, 60)
    free["a"].set()
    assert began.wait(WITHIN_S)
    host.settle()
    host.advance(40)
    free["b"].set()
    assert host.rest(run).completed
    assert [event.outcome for event in site.of(run, e.CallExecuted)] == ["succeeded", "succeeded"]
    assert left[0] > 0


def test_a_quick_read_that_got_no_thread_in_that_time_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "THREADS_MAX", 1)
    free = threading.Event()

    @tool(risk="read", quick=True)
    def look(name: str) -> str:
        """Look."""
        assert free.wait(WITHIN_S)
        return name

    looks = calls(call("look", {"name": "a"}), call("look", {"name": "b"}))
    host = site.open([looks, say("done")], [look])
    run = host.start()
    host.settle()
    host.advance(QUICK_LATE_MS + 10)
    first = {event.call: event.code for event in site.of(run, e.CallExecuted)}
    free.set()
    assert first == {"c1.0": "timeout", "c1.1": "expired"}
    host.settle()
    host.advance(5_000)
    assert host.rest(run).completed
