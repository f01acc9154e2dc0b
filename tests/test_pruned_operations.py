"""What a pruned run's operation has done isn't done again: on both databases, with the real Runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.postgres_server import Server

from boundloop.actors.client import Runtime
from boundloop.adapters.script import call, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.eventstore.history import read_records
from boundloop.eventstore.location import connect_store
from boundloop.eventstore.prune import Pruned, prune_store
from boundloop.eventstore.verify import verify_store
from boundloop.runtime.errors import ConflictError, RunPruned
from boundloop.runtime.events import CallStarted, ResultBound
from boundloop.runtime.limits import WAIVED, Limits
from boundloop.runtime.tool_spec import tool

FREE = Limits(cost=WAIVED)
FAR_AHEAD_MS = 1 << 42


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/runs.db"
    server: Server = request.getfixturevalue("postgres")
    return server.url()


def on_store(url: str, work: Callable[[Any], Any]) -> Any:
    async def on_it() -> Any:
        store = await connect_store(url)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(on_it())


def test_an_old_operation_id_still_finds_its_ledger_key_after_pruning(url: str) -> None:
    refunded: list[str] = []

    @tool(risk="irreversible", approval="never", key=("order",), far_side="keyed")
    async def refund(order: str) -> dict[str, Any]:
        """Refund an order."""
        refunded.append(order)
        return {"refunded": order}

    def runtime() -> Runtime:
        turns = [call("refund", {"order": "1"}), say("done")]
        return Runtime(store=url, model=ScriptedModel(turns), tools=[refund])

    with runtime() as first:
        result = first.run_sync("refund", limits=FREE, run_id="r1", operation_id="order 1")
        assert result.completed
        assert refunded == ["1"]
        # While the Runtime lives: the command goes through its owner, or beside it.
        pruned: Pruned = on_store(url, lambda store: prune_store(store, ended_before_ms=FAR_AHEAD_MS))
        assert pruned.runs == ("r1",)
    with runtime() as second:
        # The same run isn't another one, and what it came to is said by name.
        with pytest.raises(ConflictError, match="run_exists"):
            second.start("refund", limits=FREE, run_id="r1", operation_id="order 1")
        with pytest.raises(RunPruned) as caught:
            second.result("r1", 30.0)
        assert caught.value.outcome == "completed"
        result = second.run_sync("refund", limits=FREE, run_id="r2", operation_id="order 1")
        assert result.completed
    assert refunded == ["1"], "it was done again"
    records = on_store(url, lambda store: read_records(store, "r2"))
    events = [record.event for record in records]
    assert [event.code for event in events if isinstance(event, ResultBound)] == ["replayed"]
    assert not [event for event in events if isinstance(event, CallStarted)]
    assert on_store(url, verify_store).ok
