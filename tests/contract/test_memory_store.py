"""The reference store keeps the contract."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from boundloop.eventstore.memory import MemoryStore
from boundloop.runtime.errors import StoreError

from .store_contract import StoreContract, World


@pytest.mark.asyncio
class TestMemoryStore(StoreContract):
    @asynccontextmanager
    async def opening(self, folder: str) -> AsyncGenerator[World, None]:
        world = World()
        world.store = MemoryStore(clock=world.clock, on_submit=world.on_submit, on_ready=world.on_ready)
        yield world
        await world.store.close()


@pytest.mark.asyncio
async def test_without_a_handler_commands_are_refused() -> None:
    with pytest.raises(StoreError) as caught:
        await MemoryStore().submit("r1", "k1", b"cancel")
    assert caught.value.code == "no_submit_handler"
