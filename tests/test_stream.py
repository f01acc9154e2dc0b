"""A run's committed events as they come: each once and in order, from wherever a reader left off, whatever its pace."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from tests.attach_play import LIMITS, half_of, on_loop, runtime_on
from tests.stepped_runtime import Site
from tests.test_trees import TOOLS, approval_in_a_grandchild

from boundloop.actors import embedded, streaming
from boundloop.actors.client import Runtime
from boundloop.actors.streaming import Committed
from boundloop.actors.waiting import Until
from boundloop.adapters import ScriptedModel, say
from boundloop.eventstore.codec import resolve
from boundloop.eventstore.memory import MemoryStore
from boundloop.runtime import events as e
from boundloop.runtime.errors import BoundloopError, ConflictError, HistoryRefused, RunNotFound, StoreError
from boundloop.runtime.limits import WAIVED, Limits

WITHIN_S: Final = 30.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def runtime(path: Path) -> Iterator[Runtime]:
    with runtime_on(path) as made:
        yield made


def ended(runtime: Runtime, plan: str = "look look look") -> str:
    result = runtime.run_sync("go", system=plan, limits=LIMITS)
    assert result.outcome == "completed"
    return result.run_id


def seqs(items: list[Committed]) -> list[int]:
    return [item.seq for item in items]


def test_a_stream_gives_what_is_in_the_log(runtime: Runtime) -> None:
    run_id = ended(runtime)
    items = list(runtime.stream(run_id))
    assert seqs(items) == list(range(1, runtime.state(run_id).seq + 1))
    assert isinstance(items[0].event, e.RunStarted)
    assert isinstance(items[-1].event, e.RunTerminated)
    assert sorted(item.at_ms for item in items) == [item.at_ms for item in items]


@pytest.mark.parametrize("page", [1, 2, 200])
def test_a_reader_goes_on_from_any_seq_also_from_the_middle_of_an_append(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(streaming, "PAGE_ROWS", page)
    run_id = ended(runtime)
    last = runtime.state(run_id).seq
    for after in range(last + 1):
        assert seqs(list(runtime.stream(run_id, after_seq=after))) == list(range(after + 1, last + 1))


def test_what_was_read_before_is_not_decoded_again(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = ended(runtime)
    last = runtime.state(run_id).seq
    decoded: list[int] = []

    async def counted(rows: Any, get_blob: Any) -> Any:
        decoded.extend(row.first_seq for row in rows)
        return await resolve(rows, get_blob)

    monkeypatch.setattr("boundloop.actors.streaming.resolve", counted)
    assert list(runtime.stream(run_id, after_seq=last)) == []
    assert decoded == []


def test_a_slow_reader_misses_nothing_and_holds_up_nobody(runtime: Runtime, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    run = runtime.start(str(gate), system="look hold look look", limits=LIMITS)
    reading = runtime.stream(run.run_id)
    got = [next(reading)]
    gate.touch()
    assert run.result(WITHIN_S).outcome == "completed", "the run ends although its reader stands still"
    got += list(reading)
    assert seqs(got) == list(range(1, runtime.state(run.run_id).seq + 1))


def test_a_reader_is_woken_by_each_append(runtime: Runtime, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    run = runtime.start(str(gate), system="hold look", limits=LIMITS)
    got: list[Committed] = []
    started = threading.Event()

    def read() -> None:
        for item in runtime.stream(run.run_id):
            got.append(item)
            if isinstance(item.event, e.CallStarted):
                started.set()

    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(read)
        assert started.wait(WITHIN_S), "it is told of what is committed while the run goes on"
        gate.touch()
        reading.result(WITHIN_S)
    assert seqs(got) == list(range(1, runtime.state(run.run_id).seq + 1))


def test_a_stream_of_a_run_that_waits_ends_where_the_reader_wants_it_to(runtime: Runtime) -> None:
    waiting = runtime.run_sync("go", system="look pay", limits=LIMITS)
    assert waiting.status == "waiting"
    so_far = list(runtime.stream(waiting.run_id, until="rest"))
    assert isinstance(so_far[-1].event, e.ApprovalRequested)
    with ThreadPoolExecutor(1) as threads:
        rest = threads.submit(lambda: list(runtime.stream(waiting.run_id, after_seq=so_far[-1].seq)))
        runtime.approve(waiting.run_id, waiting.approvals[0].approval_id, by="os:ann@desk")
        assert isinstance(rest.result(WITHIN_S)[-1].event, e.RunTerminated)
        assert rest.result()[0].seq == so_far[-1].seq + 1


def test_a_stream_of_a_tree_ends_when_all_of_it_waits_for_a_person(site: Site) -> None:
    host = site.open(approval_in_a_grandchild().model, TOOLS)
    run_id = host.start()
    assert host.rest(run_id).status == "waiting"
    seq = host.state(run_id).seq
    wanted: tuple[tuple[Until, bool], ...] = (("rest", True), ("stop", False))
    for until, over in wanted:
        page = host.on_loop(streaming.committed_from(site.store, run_id, seq, seq, until))
        assert (page.items, page.over) == ((), over)


def test_a_stream_ends_with_a_stop_and_another_takes_up_there(runtime: Runtime) -> None:
    stopped = runtime.run_sync("go", system="look look", limits=Limits(cost=WAIVED, turns=1))
    assert stopped.status == "stopped"
    until_stop = list(runtime.stream(stopped.run_id))
    assert isinstance(until_stop[-1].event, e.RunSuspended)
    runtime.raise_limits(stopped.run_id, turns=9)
    runtime.resume(stopped.run_id)
    rest = list(runtime.stream(stopped.run_id, after_seq=until_stop[-1].seq))
    assert isinstance(rest[-1].event, e.RunTerminated)
    assert seqs(until_stop + rest) == list(range(1, runtime.state(stopped.run_id).seq + 1))


def test_a_stream_of_nobody_says_so(runtime: Runtime) -> None:
    with pytest.raises(RunNotFound):
        list(runtime.stream("nobody"))


def test_a_damaged_run_is_read_as_far_as_it_goes_and_then_refused(path: Path) -> None:
    with runtime_on(path) as runtime:
        waiting = runtime.run_sync("go", system="look pay", limits=LIMITS)
        store = half_of(runtime).serving.store
        on_loop(runtime, store.mark_damaged(waiting.run_id, "a bad append"))
        got: list[Committed] = []
        with pytest.raises(HistoryRefused, match="a bad append"):
            got.extend(runtime.stream(waiting.run_id))


def test_altered_rows_are_not_given_as_events(path: Path) -> None:
    with runtime_on(path) as runtime:
        run_id = ended(runtime)
    connection = sqlite3.connect(path)
    for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {trigger}")
    connection.execute("UPDATE appends SET body = X'00' WHERE first_seq > 1")
    connection.commit()
    connection.close()
    with pytest.raises(BoundloopError), runtime_on(path) as runtime:
        list(runtime.stream(run_id))


def test_a_run_that_nobody_here_can_carry_on_does_not_hold_its_reader_for_ever(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "FOLLOW_S", 0.05)
    with runtime_on(path) as runtime:
        run = runtime.start(str(tmp_path / "never"), system="hold", limits=LIMITS)
        next(runtime.stream(run.run_id))
    with (
        Runtime(store=f"sqlite:///{path}") as stranger,
        pytest.raises(ConflictError, match="other_application"),
    ):
        list(stranger.stream(run.run_id))


def test_a_stream_that_is_given_up_leaves_nothing_behind(runtime: Runtime, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    run = runtime.start(str(gate), system="hold", limits=LIMITS)

    async def first_only() -> None:
        async for item in runtime.aio.stream(run.run_id):
            assert item.seq == 1
            break

    asyncio.run(first_only())
    reading = runtime.stream(run.run_id)
    assert next(reading).seq == 1
    reading.close()
    gate.touch()
    assert run.result(WITHIN_S).outcome == "completed"
    assert not half_of(runtime).serving._followers._waiting


def test_a_stream_that_outlives_its_runtime_says_so_and_nothing_more(path: Path, tmp_path: Path) -> None:
    with runtime_on(path) as runtime:
        run = runtime.start(str(tmp_path / "never"), system="hold", limits=LIMITS)
        reading, forgotten = runtime.stream(run.run_id), runtime.stream(run.run_id)
        next(reading)
        next(forgotten)
    with pytest.raises(StoreError, match="closed"):
        list(reading)
    del forgotten
    gc.collect()


def test_a_memory_store_streams_too() -> None:
    with Runtime(store=MemoryStore(), model=ScriptedModel([say("Done.")])) as runtime:
        run_id = runtime.run_sync("go", limits=LIMITS).run_id
        assert seqs(list(runtime.stream(run_id))) == list(range(1, runtime.state(run_id).seq + 1))


def test_a_reader_that_is_interrupted_while_it_waits_is_told_of_that_alone(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt comes while the caller waits for the next event; the stream's step is still under way then."""
    gate = tmp_path / "gate"
    handle = runtime.start(str(gate), system="hold look", limits=LIMITS)
    reading = runtime.stream(handle.run_id)
    while not isinstance(next(reading).event, e.CallStarted):
        pass
    result = Future[Any].result
    asked: list[Future[Any]] = []

    def interrupted(future: Future[Any], timeout: float | None = None) -> Any:
        asked.append(future)
        if len(asked) == 1:
            raise KeyboardInterrupt
        return result(future, timeout)

    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(reading)
    monkeypatch.undo()
    gate.touch()
    assert handle.result(WITHIN_S).completed
