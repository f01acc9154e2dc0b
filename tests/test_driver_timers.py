"""A timer that has rung is seen to; it doesn't ring again while what it asked for is under way."""

from __future__ import annotations

from typing import Any

import pytest
from tests.stepped_runtime import Site

from boundloop.actors.driver import RunDriver
from boundloop.adapters import call, say
from boundloop.adapters.scripted import Gate
from boundloop.runtime import tool
from boundloop.runtime.errors import ToolError
from boundloop.runtime.far_side import Applied

STEPS_MAX = 40
"""Far above what the run below takes, far below what a loop without a pause would make of it."""


class Spins(Exception):
    """The driver goes round without waiting."""


def test_query_that_takes_its_time_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate("query")
    steps = 0
    step = vars(RunDriver)["_step"]

    async def counted(self: RunDriver) -> bool:
        nonlocal steps
        steps += 1
        if steps > STEPS_MAX:
            raise Spins
        return bool(await step(self))

    async def query(key: str) -> Applied:
        await gate.passed()
        return Applied({"shipped": key[:4]})

    @tool(risk="write", key=("order_id",), far_side="queryable", query=query)
    async def ship(order_id: str) -> dict[str, Any]:
        """Ship an order; the answer is lost."""
        raise ToolError("answer_lost")

    monkeypatch.setattr(RunDriver, "_step", counted)
    site = Site()
    host = site.open([call("ship", {"order_id": "A"}), say("Done")], [ship])
    run_id = host.start()
    host.settle()
    assert host.state(run_id).calls["c1.0"].phase == "reconciling"
    assert steps < STEPS_MAX
    gate.open()
    assert host.rest(run_id).completed
    site.close()
