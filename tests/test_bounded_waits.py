"""A wait for a run, or for an owner's answer, takes as long as it may, and no longer."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from boundloop.actors import owning
from boundloop.actors.client import Runtime
from boundloop.actors.owners import Owners
from boundloop.actors.waiting import StillRunning
from boundloop.adapters.script import held, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.runtime.errors import StoreError
from boundloop.runtime.limits import WAIVED, Limits

STUCK_S = 30.0


@pytest.mark.parametrize(
    ("asked_s", "first_s", "then_s"), [(0.03, 0.03, None), (0.05, 0.05, None), (0.07, 0.05, 0.02)]
)
def test_a_wait_in_two_parts_is_as_long_as_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, asked_s: float, first_s: float, then_s: float | None
) -> None:
    """Nobody looks elsewhere in the first part."""
    waits: list[float | None] = []
    real = asyncio.wait

    async def noted(futures: Any, **more: Any) -> Any:
        if len(futures) == 1:
            waits.append(more.get("timeout"))
        return await real(futures, **more)

    monkeypatch.setattr(owning, "LOOK_ELSEWHERE_S", 0.05)
    model = ScriptedModel([held(say("done"), "slow")])
    with Runtime(store="memory://", model=model) as runtime:
        run = runtime.start("go", limits=Limits(cost=WAIVED))
        assert model.gate("slow").wait_reached(STUCK_S)
        monkeypatch.setattr(asyncio, "wait", noted)
        with pytest.raises(StillRunning):
            run.result(asked_s)
        monkeypatch.setattr(asyncio, "wait", real)
        parts = [first_s] if then_s is None else [first_s, then_s]
        assert waits == pytest.approx(parts, abs=0.01)


def test_an_owner_that_does_not_answer_in_time_is_silent() -> None:
    async def never() -> None:
        await asyncio.get_running_loop().create_future()

    async def too_late_itself() -> None:
        raise TimeoutError("of the call's own")

    async def asked(call: Coroutine[Any, Any, None]) -> None:
        here = Owners.__new__(Owners)
        here.url = "postgresql://app:s3cret@h/runs"
        await here._answered(call, 0.01)

    with pytest.raises(StoreError, match="owner_silent") as silent:
        asyncio.run(asked(never()))
    assert "s3cret" not in str(silent.value)
    with pytest.raises(TimeoutError, match="of the call's own"):
        asyncio.run(asked(too_late_itself()))
