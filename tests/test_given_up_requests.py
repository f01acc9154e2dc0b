"""A model request that is given up before anything of it ran, as when its host ends in the same moment."""

from __future__ import annotations

import asyncio

import pytest

from boundloop.actors.model_request import ask_model
from boundloop.adapters.port import ProgressSink
from boundloop.runtime.model import ModelInput, ModelTurn
from boundloop.runtime.prices import FREE, Price


class Pending:
    """Never answers. ``inline`` as the scripted model is: its first step runs at once."""

    family = revision = model = "pending"
    price: Price | None = FREE

    def __init__(self, inline: bool) -> None:
        self.inline = inline
        self.steps: list[str] = []

    async def request(
        self, request: ModelInput, *, timeout_ms: int, progress: ProgressSink | None = None
    ) -> ModelTurn:
        self.steps.append("sent")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.steps.append("closed")
        raise AssertionError("unreachable")

    async def close(self) -> None:
        """Nothing to give back."""


@pytest.mark.asyncio
@pytest.mark.parametrize(("inline", "steps"), [(True, ["sent", "closed"]), (False, [])])
async def test_a_request_that_is_given_up_at_once_is_closed_and_delivers_nothing(
    inline: bool, steps: list[str]
) -> None:
    adapter, delivered = Pending(inline), list[ModelTurn]()
    asked = ModelInput(
        run_id="r",
        turn=1,
        attempt=1,
        model="pending",
        system="",
        items=(),
        tools=(),
        output_tokens_max=1,
        request_sha256=b"",
    )
    cancel = ask_model(adapter, asked, 1_000, lambda _: None, delivered.append)
    assert cancel is not None
    cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    assert (adapter.steps, delivered) == (steps, [])
