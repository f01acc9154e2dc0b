"""A PostgreSQL server that is away for longer than a host may go on without its row: a failover, an upgrade.

The host stops, as it must. Its Runtime has the next one when the server is back: runs go on where they are in the log, whoever
waited is answered, and whoever asks meanwhile waits within bounds.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import contextlib
import importlib
import threading
from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest
from tests.attach_play import half_of, on_loop
from tests.postgres_server import Server, running
from tests.ray.process_table import eventually

from boundloop.actors import owner_row, owners
from boundloop.actors.client import Runtime
from boundloop.adapters.script import call, held, say
from boundloop.adapters.scripted import Gate, ScriptedModel
from boundloop.eventstore import postgres_writer
from boundloop.eventstore.postgres_url import parse_postgres_url
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
    monkeypatch.setattr(owners, "MOVE_S", 1.0)
    monkeypatch.setattr(postgres_writer, "REACH_S", 0.5)
    monkeypatch.setattr(owners, "MOVE_PAUSE_S", 0.05)


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
    serving: Any = half_of(runtime).serving
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
    mine = half_of(runtime)._owners
    search, searches = mine._search_after, list[Any]()

    async def counted(from_: Any) -> None:
        searches.append(from_)
        await search(from_)

    mine._search_after = counted
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
    monkeypatch.setattr(owners, "MOVE_S", 60.0)
    monkeypatch.setattr(owners, "MOVE_LEAST_S", 0.1)
    runtime.run_sync("refund", limits=FREE, run_id="r1")
    lose_the_host(server, runtime)
    with pytest.raises(StoreError, match="host_lost"):
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
    assert eventually(lambda: half_of(runtime).serving.host.host_id != lost, WITHIN_S)
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


def test_a_call_while_a_lost_host_still_stops_its_drivers_loses_nobody(
    server: Server, runtime: Runtime
) -> None:
    """It looks for the next host itself, and closes the lost one for that, which hasn't told anybody yet."""
    waiting = runtime.run_sync("refund", limits=FREE, run_id="r1")
    runtime.approve("r1", waiting.approvals[0].approval_id, by="ann")
    assert gate_of(runtime).wait_reached(WITHIN_S)
    old: Any = half_of(runtime).serving
    stop_drivers, stopping, go_on = old.host._stop_drivers, threading.Event(), Gate("go on")

    async def slowly() -> None:
        stopping.set()
        await go_on.passed()
        await stop_drivers()

    old.host._stop_drivers = slowly
    with ThreadPoolExecutor(2) as threads:
        result = threads.submit(runtime.wait, "r1", WITHIN_S)
        server.kill()
        assert stopping.wait(WITHIN_S)
        started = threads.submit(runtime.start, "refund", limits=FREE)
        assert eventually(lambda: half_of(runtime)._owners._search is not None, WITHIN_S)
        go_on.open()
        server.start()
        gate_of(runtime).open()
        assert result.result(WITHIN_S).text == "done"
        assert runtime.result(started.result(WITHIN_S).run_id, WITHIN_S).approvals
    assert half_of(runtime).serving is not old


def test_whoever_begins_to_wait_while_it_is_away_waits_for_the_next_host(
    server: Server, runtime: Runtime
) -> None:
    waiting = runtime.run_sync("refund", limits=FREE, run_id="r1")
    server.kill()
    with ThreadPoolExecutor(2) as threads:
        before = threads.submit(runtime.wait, "r1", WITHIN_S)  # its host is still there
        until_lost(runtime)
        after = threads.submit(runtime.wait, "r1", WITHIN_S)
        server.start()
        gate_of(runtime).open()
        assert eventually(lambda: half_of(runtime).serving.failed is None, WITHIN_S)
        runtime.approve("r1", waiting.approvals[0].approval_id, by="ann")
        assert (before.result(WITHIN_S).text, after.result(WITHIN_S).text) == ("done", "done")


def test_a_tool_that_is_slow_to_end_keeps_the_next_host_from_nothing(server: Server) -> None:
    begun, go_on = threading.Event(), Gate("go on")

    @tool(risk="read", timeout_ms=60_000)
    async def clean(n: int) -> int:
        """Tidy up, whoever cancels it."""
        begun.set()
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await go_on.passed()
                return n

    model = ScriptedModel([call("clean", {"n": 1}), say("done")])
    with Runtime(store=server.url(), model=model, tools=[clean]) as runtime:
        runtime.start("clean", limits=FREE, run_id="r1")
        assert begun.wait(WITHIN_S)
        old: Any = half_of(runtime).serving
        lose_the_host(server, runtime)
        server.start()
        assert eventually(lambda: half_of(runtime).serving is not old, 5.0)
        go_on.open()


@contextlib.contextmanager
def shipping(server: Server) -> Generator[tuple[Runtime, threading.Event]]:
    """A Runtime whose run r1 has an effect out, which ends when the event is set."""
    begun, go_on = threading.Event(), threading.Event()

    @tool(risk="write", key=("order",), far_side="none", timeout_ms=60_000)
    def ship(order: str) -> dict[str, str]:
        """Ship an order; the far side answers no questions."""
        begun.set()
        assert go_on.wait(WITHIN_S)
        return {"shipped": order}

    model = ScriptedModel([call("ship", {"order": "A1"}), say("done")])
    with Runtime(store=server.url(), model=model, tools=[ship]) as runtime:
        runtime.start("ship", limits=FREE, run_id="r1")
        assert begun.wait(WITHIN_S)
        yield runtime, go_on


def test_what_an_effect_came_to_after_its_host_had_stopped_settles_it(server: Server) -> None:
    with shipping(server) as (runtime, go_on):
        old: Any = half_of(runtime).serving
        lose_the_host(server, runtime)
        server.start()
        assert eventually(lambda: half_of(runtime).serving is not old, WITHIN_S)
        assert runtime.result("r1", WITHIN_S).reason == "outcome_unknown"
        go_on.set()
        assert eventually(lambda: runtime.result("r1", WITHIN_S).text == "done", WITHIN_S)
        (settled,) = [item.event for item in runtime.stream("r1") if isinstance(item.event, e.CallReconciled)]
        assert (settled.outcome, settled.by) == ("applied", "executor")


def test_what_it_came_to_before_there_is_a_next_host_is_kept_for_it(server: Server) -> None:
    with shipping(server) as (runtime, go_on):
        old: Any = half_of(runtime).serving
        lose_the_host(server, runtime)
        go_on.set()
        assert eventually(lambda: bool(old.host._unheard), WITHIN_S)
        server.start()
        assert eventually(lambda: half_of(runtime).serving is not old, WITHIN_S)
        assert eventually(lambda: runtime.result("r1", WITHIN_S).text == "done", WITHIN_S)


def test_what_it_came_to_outlasts_a_second_outage(server: Server) -> None:
    with shipping(server) as (runtime, go_on):
        first: Any = half_of(runtime).serving
        lose_the_host(server, runtime)
        server.start()
        assert eventually(lambda: half_of(runtime).serving is not first, WITHIN_S)
        second: Any = half_of(runtime).serving
        server.kill()
        go_on.set()  # its report meets a server that is away again
        assert eventually(lambda: second.failed is not None, WITHIN_S)
        server.start()
        assert eventually(lambda: half_of(runtime).serving is not second, WITHIN_S)
        assert eventually(lambda: runtime.result("r1", WITHIN_S).text == "done", WITHIN_S)


def test_a_command_from_elsewhere_that_meets_a_host_as_it_goes_is_decided_by_the_next(
    server: Server, runtime: Runtime
) -> None:
    """That this one decides nothing any more is no refusal of the command."""
    url = half_of(runtime)._owners.url
    waiting = runtime.run_sync("refund", limits=FREE, run_id="r1")
    runtime.approve("r1", waiting.approvals[0].approval_id, by="ann")
    assert gate_of(runtime).wait_reached(WITHIN_S)
    old: Any = half_of(runtime).serving
    stop_drivers, stopping, go_on = old.host._stop_drivers, threading.Event(), Gate("go on")

    async def slowly() -> None:
        stopping.set()
        await go_on.passed()
        await stop_drivers()

    async def lose() -> None:
        old.host._stop_drivers = slowly
        losing.append(asyncio.create_task(old.host._lose("as if the server had been away", None)))

    losing: list[Any] = []
    asked = threading.Event()
    on_submit = old.on_submit

    async def heard(*command: Any) -> bytes:
        asked.set()
        return bytes(await on_submit(*command))

    old.host.store.on_submit = heard
    with Runtime(store=url) as other, ThreadPoolExecutor(1) as threads:
        on_loop(runtime, lose())
        assert stopping.wait(WITHIN_S)
        cancelled = threads.submit(other.cancel, "r1")
        assert asked.wait(WITHIN_S)
        go_on.open()
        cancelled.result(WITHIN_S)
    assert runtime.wait("r1", WITHIN_S).outcome == "cancelled"


def test_of_two_that_waited_for_the_server_neither_takes_the_others_runs_for_a_dead_hosts(
    server: Server, runtime: Runtime
) -> None:
    """Their rows have all expired; whoever is back first finds the others' runs without a host."""
    with Runtime(
        store=half_of(runtime)._owners.url, model=ScriptedModel([held(say("mine"), "gate")])
    ) as second:
        second.start("mine", limits=FREE, run_id="r2")
        assert gate_of(second).wait_reached(WITHIN_S)
        late = half_of(second)._owners
        search, go_on = late._search_after, Gate("go on")

        async def slowly(from_: Any) -> None:
            await go_on.passed()
            await search(from_)

        late._search_after = slowly
        old: Any = half_of(runtime).serving
        lose_the_host(server, runtime)
        until_lost(second)
        server.start()
        expire_all(half_of(runtime)._owners.url)
        assert eventually(lambda: half_of(runtime).serving is not old, WITHIN_S)
        looked = on_loop(runtime, half_of(runtime).serving.host.take_up("r2"))
        go_on.open()
        gate_of(second).open()
        assert second.wait("r2", WITHIN_S).text == "mine"
        assert not looked
        causes = [item.event.cause for item in second.stream("r2") if isinstance(item.event, e.RunResumed)]
    assert causes == ["woken"]


def expire_all(url: str) -> None:
    """As time would."""

    async def expire() -> None:
        place = parse_postgres_url(url)
        asyncpg: Any = importlib.import_module("asyncpg")
        connection = await asyncpg.connect(place.dsn)
        try:
            await connection.execute(f'UPDATE "{place.schema}".hosts SET expires_at_ms = 0')
        finally:
            await connection.close()

    asyncio.run(expire())


def test_a_bug_as_the_next_host_opens_is_called_one_and_ends_the_search(
    server: Server, runtime: Runtime
) -> None:
    store: Any = half_of(runtime)._owners._use._store
    register = store.register_host

    async def broken(*_: Any) -> None:
        raise ZeroDivisionError("bug")

    store.register_host = broken
    lose_the_host(server, runtime)
    server.start()
    with pytest.raises(StoreError, match=r"host_lost.*ZeroDivisionError"):
        runtime.serve()
    store.register_host = register


def test_a_bug_ends_the_host_for_good(server: Server, runtime: Runtime) -> None:
    """The next one would meet it again."""
    runtime.run_sync("refund", limits=FREE, run_id="r1")
    serving: Any = half_of(runtime).serving

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
        assert eventually(lambda: half_of(runtime).serving.host.host_id != lost, 2 * WITHIN_S)
        assert eventually(lambda: half_of(runtime).serving.hosted("r1") is not None, WITHIN_S)
        on_loop(runtime, asyncio.sleep(0))
        assert most == [1]
        go_on.set()
        assert runtime.wait("r1", WITHIN_S).text == "done"
    assert most == [1]
