"""A PostgreSQL server that is away for longer than a host may go on without its row: a failover, an upgrade.

The host stops, as it must. Its Runtime has the next one when the server is back: runs go on where they are in the log, whoever
waited is answered, and whoever asks meanwhile waits within bounds.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest
from tests.attach_play import half_of, on_loop
from tests.postgres_server import Server, running
from tests.ray.process_table import eventually

from boundloop.actors import embedded, owner_row
from boundloop.actors.client import Runtime
from boundloop.adapters.script import call, held, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.eventstore import postgres_writer
from boundloop.runtime import events as e
from boundloop.runtime.errors import HistoryRefused, StoreError
from boundloop.runtime.limits import WAIVED, Limits
from boundloop.runtime.tool_spec import tool

WITHIN_S: Final = 30.0
FREE: Final = Limits(cost=WAIVED)


@tool(risk="irreversible", key=("order",), far_side="keyed")
async def refund(order: str) -> dict[str, str]:
    """Refund an order; a person is asked."""
    refunds[order] += 1
    return {"refunded": order}


refunds: Counter[str] = Counter()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as made:
        yield made


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that stops after half a second without its row, and a search that takes one."""
    monkeypatch.setattr(owner_row, "RENEW_S", 0.1)
    monkeypatch.setattr(owner_row, "SELF_STOP_S", 0.5)
    monkeypatch.setattr(owner_row, "RENEW_TRY_LEAST_S", 0.1)
    monkeypatch.setattr(embedded, "MOVE_S", 1.0)
    monkeypatch.setattr(postgres_writer, "REACH_S", 0.5)
    monkeypatch.setattr(embedded, "MOVE_PAUSE_S", 0.05)


@pytest.fixture
def runtime(server: Server) -> Iterator[Runtime]:
    model = ScriptedModel([call("refund", {"order": "A1"}), held(say("done"), "gate")])
    with Runtime(store=server.url(), model=model, tools=[refund]) as made:
        yield made
    refunds.clear()


def gate_of(runtime: Runtime) -> Any:
    model: Any = runtime.adapter
    return model.gate("gate")


def until_lost(runtime: Runtime) -> None:
    """Until the host of this moment has stopped."""
    serving: Any = half_of(runtime)._serving
    assert eventually(lambda: serving.failed is not None, WITHIN_S)


def lose_the_host(server: Server, runtime: Runtime) -> str:
    """The server goes away for as long as that takes. The host's id."""
    lost = str(half_of(runtime).host_of().host_id)
    server.kill()
    until_lost(runtime)
    return lost


def test_a_run_that_waits_for_a_person_goes_on_with_the_next_host(server: Server, runtime: Runtime) -> None:
    waiting = runtime.run_sync("refund", limits=FREE, run_id="r1")
    lost = lose_the_host(server, runtime)
    server.start()
    gate_of(runtime).open()
    runtime.approve("r1", waiting.approvals[0].approval_id, by="ann")
    assert runtime.wait("r1", WITHIN_S).text == "done"
    assert refunds == {"A1": 1}
    assert half_of(runtime).host_of().host_id != lost


def test_a_run_under_way_goes_on_and_whoever_waits_for_it_is_answered(
    server: Server, runtime: Runtime
) -> None:
    waiting = runtime.run_sync("refund", limits=FREE, run_id="r1")
    seen: list[str] = []
    runtime.watch(lambda run_id, state, events, seq: seen.extend(type(event).__name__ for event in events))
    runtime.approve("r1", waiting.approvals[0].approval_id, by="ann")
    assert gate_of(runtime).wait_reached(WITHIN_S)
    with ThreadPoolExecutor(1) as threads:
        result = threads.submit(runtime.wait, "r1", WITHIN_S)
        lose_the_host(server, runtime)
        seen.clear()
        server.start()
        gate_of(runtime).open()
        assert result.result(WITHIN_S).text == "done"
    told = [item.event for item in runtime.stream("r1")]
    assert refunds == {"A1": 1}
    assert seen[-1] == "RunTerminated", "watchers hear of the next host's commits"
    assert isinstance(told[-1], e.RunTerminated)
    resumed = [event.cause for event in told if isinstance(event, e.RunResumed)]
    assert "host_died" not in resumed, "an outage counts as no death of the run's host"


def test_whoever_asks_while_it_is_away_is_told_so_and_all_wait_for_one_search(
    server: Server, runtime: Runtime
) -> None:
    lose_the_host(server, runtime)
    half = half_of(runtime)
    search, searches = half._search_after, list[Any]()

    async def counted(from_: Any) -> None:
        searches.append(from_)
        await search(from_)

    half._search_after = counted
    with ThreadPoolExecutor(40) as threads:
        asked = [threads.submit(runtime.start, "refund", limits=FREE) for _ in range(40)]
        errors = [one.exception(WITHIN_S) for one in asked]
    assert {getattr(error, "code", error) for error in errors} == {"store_unreachable"}
    assert len(searches) < 10
    server.start()
    assert runtime.run_sync("refund", limits=FREE).approvals


def test_a_wait_with_a_bound_keeps_it(
    server: Server, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "MOVE_S", 3_600.0)
    monkeypatch.setattr(embedded, "MOVE_LEAST_S", 0.1)
    runtime.run_sync("refund", limits=FREE, run_id="r1")
    lose_the_host(server, runtime)
    with pytest.raises(StoreError):
        runtime.result("r1", 0.2)
    server.start()
    assert runtime.result("r1", WITHIN_S).approvals


def test_it_can_be_closed_while_the_server_is_away(server: Server, runtime: Runtime) -> None:
    lose_the_host(server, runtime)
    runtime.close()
    with pytest.raises(StoreError, match="closed"):
        runtime.start("refund", limits=FREE)
    server.start()


def test_whoever_only_serves_goes_on_serving(server: Server, runtime: Runtime) -> None:
    serving = threading.Thread(target=runtime.serve)
    serving.start()
    lost = lose_the_host(server, runtime)
    server.start()
    assert eventually(lambda: half_of(runtime)._serving.host.host_id != lost, WITHIN_S)
    assert serving.is_alive()
    runtime.close()
    serving.join(WITHIN_S)
    assert not serving.is_alive()


def test_a_server_that_comes_back_without_what_it_acknowledged_is_found_out(
    server: Server, runtime: Runtime
) -> None:
    """A standby that was promoted too early, or a backup: what the last host was told counts for the next one too."""
    waiting = runtime.run_sync("refund", limits=FREE, run_id="r1")
    server.stop()
    before = server.copied()
    server.start()
    runtime.approve("r1", waiting.approvals[0].approval_id, by="ann")
    assert gate_of(runtime).wait_reached(WITHIN_S)
    lose_the_host(server, runtime)
    server.put_back(before)
    server.start()
    with pytest.raises(HistoryRefused, match="log_regressed"):
        runtime.wait("r1", WITHIN_S)
    assert refunds == {"A1": 1}


def test_a_bug_ends_the_host_for_good(server: Server, runtime: Runtime) -> None:
    """The next one would meet it again."""
    runtime.run_sync("refund", limits=FREE, run_id="r1")
    serving: Any = half_of(runtime)._serving

    async def broken(*_: Any) -> None:
        raise ZeroDivisionError("bug")

    async def breaks() -> None:
        serving.host.store.renew_host = broken

    ended = threading.Event()

    def serve() -> None:
        with pytest.raises(StoreError, match=r"host_lost.*ZeroDivisionError"):
            runtime.serve()
        ended.set()

    thread = threading.Thread(target=serve)
    thread.start()
    on_loop(runtime, breaks())
    assert ended.wait(WITHIN_S)
    thread.join()


def test_a_tool_that_outlives_its_host_keeps_its_place(server: Server) -> None:
    """A function can't be stopped: what the next host starts counts beside it."""
    at_work, most, begun, go_on = Counter[str](), [0], threading.Semaphore(0), threading.Event()

    @tool(risk="read", group="bank", timeout_ms=60_000)
    def ask(n: int) -> int:
        """Ask the bank."""
        at_work["bank"] += 1
        most[0] = max(most[0], at_work["bank"])
        begun.release()
        go_on.wait(WITHIN_S)
        at_work["bank"] -= 1
        return n

    model = ScriptedModel([call("ask", {"n": 1}), say("done")])
    with Runtime(store=server.url(), model=model, tools=[ask], groups={"bank": 1}) as runtime:
        runtime.start("ask", limits=FREE, run_id="r1")
        assert begun.acquire(timeout=WITHIN_S)
        lost = lose_the_host(server, runtime)
        server.start()
        assert eventually(lambda: half_of(runtime)._serving.host.host_id != lost, 2 * WITHIN_S)
        assert eventually(lambda: half_of(runtime)._serving.hosted("r1") is not None, WITHIN_S)
        on_loop(runtime, asyncio.sleep(0))
        assert most == [1]
        go_on.set()
        assert runtime.wait("r1", WITHIN_S).text == "done"
    assert most == [1]
