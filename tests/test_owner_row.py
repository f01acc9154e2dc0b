"""By its own clock a host stops before its row may be another's, from its first renewal on."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from tests.stepped_loop import SteppedLoop

from boundloop.actors.owner_row import OwnerRow
from boundloop.eventstore.port import HOST_VALID_MS, EventStore
from boundloop.runtime.errors import StoreError


class SlowThenGone:
    """The row is written at once; the answer to that takes ``slow_s``, and then the store is away."""

    def __init__(self, loop: SteppedLoop, slow_s: float) -> None:
        self._loop, self._slow_s, self.valid_until_s = loop, slow_s, 0.0

    async def register_host(self, host: Any) -> None:
        self.valid_until_s = self._loop.time() + HOST_VALID_MS / 1_000
        answered: asyncio.Future[None] = self._loop.create_future()
        self._loop.call_later(self._slow_s, answered.set_result, None)
        await answered

    async def renew_host(self, host_id: str) -> bool:
        raise StoreError("store_unreachable", "gone")


@pytest.mark.parametrize("slow_s", [0.0, 3.0, 7.5])
def test_a_host_whose_first_answer_was_slow_stops_before_its_row_expires(slow_s: float) -> None:
    loop = SteppedLoop()

    async def body() -> tuple[float, float]:
        store = SlowThenGone(loop, slow_s)
        row = OwnerRow(cast("EventStore", store), "h1")

        async def nothing() -> None:
            return

        async def kept() -> float:
            await row.register()
            await row.keep(nothing)
            return loop.time()

        task = asyncio.create_task(kept())
        await loop.advance(60_000)
        return task.result(), store.valid_until_s

    try:
        stopped_s, expired_s = loop.run_until_complete(body())
    finally:
        loop.close()
    assert stopped_s < expired_s
