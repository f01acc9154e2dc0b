"""Whole runs over real HTTP: a tool, a store on disk, a model server in a process of its own that is killed on the way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.model_server import seen

from boundloop.actors import Runtime
from boundloop.adapters import OpenAIChat
from boundloop.adapters.loopback_process import LoopbackProcess
from boundloop.adapters.loopback_script import Fault, ServedScript, ServerScript
from boundloop.adapters.script import ScriptedTurn, call, calls, held, say
from boundloop.eventstore.history import read_records
from boundloop.eventstore.location import open_store
from boundloop.runtime import WAIVED, Limits, tool
from boundloop.runtime.events import ModelFailed
from boundloop.runtime.prices import Price

TURNS: tuple[ScriptedTurn, ...] = (
    calls(call("look", {"at": "a"}, id=""), call("look", {"at": "b"}, id="")),
    call("look", {"at": "c"}),
    say("All looked at."),
)


@tool(risk="read")
def look(at: str) -> dict[str, str]:
    """Look at something."""
    return {"at": at, "seen": "yes"}


def serving(*turns: ScriptedTurn, faults: tuple[Fault, ...] = ()) -> ServerScript:
    return ServerScript(scripts=(ServedScript(turns=turns),), faults=faults)


def test_a_run_completes_and_both_sides_count_the_same(tmp_path: Path) -> None:
    price = Price(input=1_000_000, output=2_000_000)
    with LoopbackProcess(serving(*TURNS)) as server:
        model = OpenAIChat(model="m1", base_url=server.base_url, price=price)
        with Runtime(store=f"sqlite:///{tmp_path}/runs.db", model=model, tools=[look]) as rt:
            result = rt.run_sync("Look around.", limits=Limits(cost="1"))
        counts = server.counts()
    assert (result.outcome, result.text) == ("completed", "All looked at.")
    assert counts["by_run"] == {result.run_id: [3, 3]}
    spent = result.spent
    assert (spent["turns"], spent["model_attempts"], spent["tool_calls"]) == (3, 3, 3)
    assert (spent["input_tokens"], spent["output_tokens"], spent["cost_micros"]) == (300, 60, 420)


def test_injected_faults_are_counted_attempts_and_the_run_completes(tmp_path: Path) -> None:
    faults = (
        Fault(kind="status", turns=(1,), attempts=(1,), status=429, retry_after_s=0),
        Fault(kind="drop", turns=(2,), attempts=(1,)),
        Fault(kind="truncate", turns=(3,), attempts=(1,)),
    )
    with LoopbackProcess(serving(*TURNS, faults=faults)) as server:
        model = OpenAIChat(model="m1", base_url=server.base_url)
        with Runtime(store=f"sqlite:///{tmp_path}/runs.db", model=model, tools=[look]) as rt:
            result = rt.run_sync("Look around.", limits=Limits(cost=WAIVED))
        counts = server.counts()
    assert result.outcome == "completed"
    assert result.spent["model_attempts"] == counts["total"] == 6
    assert counts["by_fault"] == {"status": 1, "drop": 1, "truncate": 1}
    assert counts["by_run"] == {result.run_id: [6, 3]}


def test_a_server_that_is_killed_and_comes_back_costs_attempts_and_no_run(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    with LoopbackProcess(serving(TURNS[0], held(TURNS[1], "door"), TURNS[2])) as server:
        model = OpenAIChat(model="m1", base_url=server.base_url)
        with Runtime(store=url, model=model, tools=[look]) as rt:
            run = rt.start("Look around.", limits=Limits(cost=WAIVED, model_attempts_per_turn=8))
            assert seen(lambda: server.reached("door") == 1)
            before = server.counts()["total"]
            server.kill()
            server.start()
            server.open_gate("door")
            result = run.wait(60)
        after = server.counts()["total"]
    assert result.outcome == "completed"
    assert (before, after) == (2, 2)
    assert result.spent["turns"] == 3
    failures = asyncio.run(failures_of(url, result.run_id))
    assert failures[0] == "connection_lost"
    # What reached a server is an attempt of the run, and so is what found nobody there.
    found_nobody = sum(code == "connect" for code in failures)
    assert len(failures) == 1 + found_nobody
    assert result.spent["model_attempts"] == before + after + found_nobody


async def failures_of(url: str, run_id: str) -> list[str]:
    """The codes of the failed model attempts on record."""
    store = await open_store(url)
    try:
        records = await read_records(store, run_id)
    finally:
        await store.close()
    return [record.event.code for record in records if isinstance(record.event, ModelFailed)]


def test_a_wrong_key_stops_a_run_at_once_and_says_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-wrong-key-123456")
    script = ServerScript(scripts=(ServedScript(turns=TURNS),), api_key="right")
    with LoopbackProcess(script) as server:
        model = OpenAIChat(model="m1", base_url=server.base_url, api_key_env="MY_KEY")
        with Runtime(store=f"sqlite:///{tmp_path}/runs.db", model=model, tools=[look]) as rt:
            result = rt.run_sync("Look around.", limits=Limits(cost=WAIVED))
        assert server.counts()["total"] == 1
    assert (result.outcome, result.reason) == ("failed", "model_failed")
    assert "unauthorized" in result.detail
    assert result.spent["model_attempts"] == 1
    assert b"sk-wrong" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
