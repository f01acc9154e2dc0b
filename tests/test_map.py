"""Many runs as one batch: outcomes in the order of the rows, and no row fails another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from tests.attach_play import LIMITS, half_of, on_loop, runtime_on, use_sockets
from tests.ray.process_table import eventually

from boundloop.actors import mapping
from boundloop.actors.client import Runtime
from boundloop.actors.mapping import Row
from boundloop.adapters import ScriptedModel, say
from boundloop.eventstore.memory import MemoryStore
from boundloop.runtime import events as e
from boundloop.runtime.errors import (
    ConflictError,
    DeclarationError,
    HistoryRefused,
    MissingLimits,
    Overloaded,
    UnknownTool,
)
from boundloop.runtime.limits import WAIVED, Limits
from boundloop.runtime.model import ModelInput, UserItem
from boundloop.runtime.stage_spec import Stage
from boundloop.runtime.tool_spec import tool

WITHIN_S: Final = 60.0


def echo(request: ModelInput) -> Any:
    text = next(item.text for item in request.items if isinstance(item, UserItem))
    return say(text.upper())


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with Runtime(store=MemoryStore(), model=ScriptedModel(echo)) as made:
        yield made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def slow(path: Path) -> Iterator[Runtime]:
    with runtime_on(path) as made:
        yield made


def test_outcomes_come_in_the_order_of_the_rows(runtime: Runtime) -> None:
    rows = list(runtime.map((f"row {number}" for number in range(2_000)), limits=LIMITS))
    assert [row.index for row in rows] == list(range(2_000))
    assert [row.result.text for row in rows if row.result] == [f"ROW {number}" for number in range(2_000)]
    assert all(row.completed and row.error is None for row in rows)


def test_a_slow_row_holds_up_neither_the_order_nor_the_work(slow: Runtime, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    batch = slow.map(
        [Row(str(gate), {"system": "hold"}), *(["x"] * 6)], system="look", limits=LIMITS, parallel=3
    )
    begun = Begun(slow)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(next, batch)
        begun.await_count(7)  # the last was begun although the first has not ended
        gate.touch()
        assert first.result(WITHIN_S).index == 0
    assert [row.index for row in batch] == [1, 2, 3, 4, 5, 6]


class Begun:
    """The runs that a Runtime's host takes up from now on."""

    def __init__(self, runtime: Runtime) -> None:
        self.run_ids: list[str] = []
        runtime.watch(self._heard)

    def _heard(self, run_id: str, state: Any, events: tuple[e.AnyEvent, ...], first_seq: int) -> None:
        if isinstance(events[0], e.RunStarted | e.RunResumed):
            self.run_ids.append(run_id)

    def await_count(self, count: int) -> list[str]:
        assert eventually(lambda: len(self.run_ids) >= count, WITHIN_S)
        return self.run_ids


def test_no_row_fails_another(runtime: Runtime) -> None:
    taken = runtime.start("go", run_id="taken", limits=LIMITS)
    taken.result(WITHIN_S)
    rows: list[Any] = [
        "fine",
        Row("no such tool", {"tools": ["refund"]}),
        Row("in use", {"run_id": "taken"}),
        Row("not an option", {"limits": "many"}),
        17,
        "fine too",
    ]
    got = list(runtime.map(rows, limits=LIMITS))
    assert [type(row.error) for row in got] == [
        type(None),
        UnknownTool,
        ConflictError,
        DeclarationError,
        DeclarationError,
        type(None),
    ]
    assert [row.completed for row in got] == [True, False, False, False, False, True]
    assert [bool(row.run_id) for row in got] == [True, False, False, False, False, True]
    assert all((row.result is None) != (row.error is None) for row in got)


def test_a_row_that_fails_in_a_way_of_its_own_is_that_rows_too(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = half_of(runtime)
    start = half.start

    async def broken(input: str, options: Any, **more: Any) -> str:
        if input == "bad":
            raise ZeroDivisionError("a bug")
        run_id: str = await start(input, options, **more)
        return run_id

    monkeypatch.setattr(half, "start", broken)
    got = list(runtime.map(["a", "bad", "b"], limits=LIMITS))
    assert [type(row.error) for row in got] == [type(None), ZeroDivisionError, type(None)]


def test_a_row_whose_run_is_damaged_fails_alone(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is found damaged by the next owner, who takes it up for the batch that still waits for it."""
    gate = tmp_path / "gate"
    use_sockets(monkeypatch.setattr)
    first = runtime_on(path)
    with runtime_on(path) as second, ThreadPoolExecutor(1) as threads:
        rows = [Row(str(gate), {"system": "hold", "run_id": "bad"}), Row(str(gate), {"system": "hold look"})]
        taken_up = Begun(first)
        batch = threads.submit(lambda: list(second.map(rows, limits=LIMITS)))
        begun = [run_id for run_id in taken_up.await_count(2) if run_id != "bad"]
        on_loop(first, half_of(first).serving.store.mark_damaged("bad", "a bad append"))
        first.close()
        gate.touch()
        bad, good = batch.result(WITHIN_S)
    assert isinstance(bad.error, HistoryRefused)
    assert (good.run_id, good.completed) == (begun[0], True)


def test_a_run_that_stops_ends_and_one_that_waits_for_a_person_is_given_back(slow: Runtime) -> None:
    stops = Limits(cost=WAIVED, turns=1)
    got = list(
        slow.map(
            [Row("go", {"system": "look look", "limits": stops}), Row("go", {"system": "pay"})],
            limits=LIMITS,
        )
    )
    assert [row.result.status for row in got if row.result] == ["ended", "waiting"]


@pytest.mark.parametrize("parallel", [0, -1, 10_001, True, 1.5])
def test_how_many_at_once_has_its_bounds(runtime: Runtime, parallel: Any) -> None:
    with pytest.raises(DeclarationError, match="parallel"):
        list(runtime.map(["a"], parallel=parallel, limits=LIMITS))


def test_options_that_no_row_could_begin_with_are_refused_once(runtime: Runtime) -> None:
    with pytest.raises(MissingLimits):
        list(runtime.map(["a", "b"]))  # type: ignore[call-arg]  # that is what it is about
    with pytest.raises(UnknownTool):
        list(runtime.map(["a", "b"], limits=LIMITS, tools=["refund"]))


@tool(risk="read")
def look(n: int) -> int:
    """Look."""
    return n


@pytest.mark.parametrize(
    ("option", "items"),
    [
        ("tools", ["look"]),
        ("hosted", ["web_search"]),
        ("stages", [Stage("one", tools=("look",), leave="look"), Stage("two")]),
    ],
)
@pytest.mark.parametrize("of_the_row", [False, True], ids=["of the batch", "of the row"])
def test_an_option_that_gives_its_items_once_is_every_rows(
    option: str, items: list[Any], of_the_row: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: Any = {option: (item for item in items)}
    rows: list[str | Row] = [Row("a", options), "b"] if of_the_row else ["a", "b"]
    with Runtime(store=MemoryStore(), model=ScriptedModel(echo), tools=[look]) as rt:
        half = half_of(rt)
        begin, asked = half.serving.begin_run, set[str]()

        async def full_at_first(event: e.RunStarted, *args: Any, **more: Any) -> None:
            if event.input not in asked:
                asked.add(event.input)
                raise Overloaded(1)  # a row is begun again with its options
            await begin(event, *args, **more)

        monkeypatch.setattr(half.serving, "begin_run", full_at_first)
        got = list(rt.map(rows, limits=LIMITS, **({} if of_the_row else options)))
        about = [rt.state(row.run_id).pins for row in got[: 1 if of_the_row else 2]]
    for pins in about:
        assert [one.name for one in pins.tools] == ["look"]
        assert pins.hosted == (("web_search",) if option == "hosted" else ())
        assert [stage.name for stage in pins.stages] == (["one", "two"] if option == "stages" else [])


def test_never_more_than_asked_for_at_once(slow: Runtime, tmp_path: Path) -> None:
    at_once = highest = 0

    def heard(run_id: str, state: Any, events: tuple[e.AnyEvent, ...], first_seq: int) -> None:
        nonlocal at_once, highest
        for event in events:
            at_once += isinstance(event, e.RunStarted) - isinstance(event, e.RunTerminated)
            highest = max(highest, at_once)

    slow.watch(heard)
    assert len(list(slow.map(["x"] * 40, system="look", limits=LIMITS, parallel=5))) == 40
    assert 1 <= highest <= 5


def test_a_full_queue_makes_a_row_wait(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    half = half_of(runtime)
    begin, refusals = half.serving.begin_run, [0]

    async def full_at_first(*args: Any, **options: Any) -> None:
        refusals[0] += 1
        if refusals[0] <= 3:
            raise Overloaded(1)
        await begin(*args, **options)

    monkeypatch.setattr(half.serving, "begin_run", full_at_first)
    got = list(runtime.map(["a", "b"], limits=LIMITS))
    assert all(row.completed for row in got)


def test_a_batch_that_is_given_up_cancels_no_run_and_leaves_no_task(slow: Runtime, tmp_path: Path) -> None:
    first_gate, gate = tmp_path / "first", tmp_path / "gate"
    rows = [
        Row(str(first_gate), {"system": "hold"}),
        *(Row(str(gate), {"system": "hold", "run_id": f"r{number}"}) for number in range(3)),
    ]
    batch = slow.map(rows, limits=LIMITS)
    begun = Begun(slow)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(next, batch)
        begun.await_count(4)
        first_gate.touch()
        assert first.result(WITHIN_S).completed
    batch.close()
    assert on_loop(slow, _tasks_of_batches()) == []
    gate.touch()
    for number in range(3):
        assert slow.result(f"r{number}", WITHIN_S).outcome == "completed"


async def _tasks_of_batches() -> list[str]:
    names = [str(task.get_coro()) for task in asyncio.all_tasks()]
    return [name for name in names if "Batch." in name]


def test_inputs_are_read_where_the_caller_is_and_as_they_are_needed(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapping, "WINDOW", 1)
    read: list[tuple[int, str]] = []

    def inputs() -> Generator[str]:
        for number in range(20):
            read.append((number, threading.current_thread().name))
            assert runtime.run_sync("in between", limits=LIMITS).completed, "an input may use the Runtime"
            yield str(number)

    batch = runtime.map(inputs(), limits=LIMITS, parallel=2)
    assert next(batch).index == 0
    assert len(read) <= 3
    assert len(list(batch)) == 19
    assert {name for _, name in read} == {threading.current_thread().name}


def test_an_input_that_raises_ends_the_batch_and_leaves_no_task(runtime: Runtime) -> None:
    def inputs() -> Generator[str]:
        yield "a"
        raise LookupError("the table is gone")

    with pytest.raises(LookupError):
        list(runtime.map(inputs(), limits=LIMITS))
    assert on_loop(runtime, _tasks_of_batches()) == []


def test_the_coroutine_twin_gives_the_same(runtime: Runtime) -> None:
    async def body() -> list[str]:
        return [
            row.result.text async for row in runtime.aio.map(["a", "b", "c"], limits=LIMITS) if row.result
        ]

    assert asyncio.run(body()) == ["A", "B", "C"]
