"""What a driver holds in memory is the fold of its run's log, also where time passes while it works."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from tests.stepped_runtime import START_MS, Site

from boundloop.adapters.script import call, say
from boundloop.eventstore.history import fold_records, read_records
from boundloop.eventstore.memory import MemoryStore
from boundloop.runtime.state import State, state_digest
from boundloop.runtime.tool_spec import tool


@tool(risk="write", key=("order_id",), far_side="keyed")
async def pay(order_id: str) -> dict[str, str]:
    """Pay."""
    return {"paid": order_id}


class TickingSite(Site):
    """A site whose time goes on with every look at the clock, as time does."""

    def __init__(self) -> None:
        super().__init__()
        ticks = itertools.count()
        self.store = MemoryStore(clock=lambda: START_MS + self.passed_ms + next(ticks))


def test_the_live_state_is_the_fold_of_the_log_after_every_append(monkeypatch: pytest.MonkeyPatch) -> None:
    site = TickingSite()
    host = site.open([call("pay", {"order_id": "A1"}), say("paid")], [pay])
    inner: Any = host.rt._embedded.host_of()
    live: list[tuple[int, bytes]] = []
    publish = inner.publish

    def published(run_id: str, state: State, events: Any, first_seq: int) -> None:
        live.append((state.seq, state_digest(state)))
        publish(run_id, state, events, first_seq)

    monkeypatch.setattr(inner, "publish", published)
    run_id = host.start()
    host.settle()
    records = asyncio.run(read_records(site.store, run_id))
    assert len(live) > 2
    for seq, digest in live:
        folded = asyncio.run(fold_records(site.store, records[:seq]))
        assert state_digest(folded) == digest, f"after event {seq}"
    site.close()
