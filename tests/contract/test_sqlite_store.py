"""The embedded store keeps the contract, in its owner's process and through the owner's socket."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from boundloop.eventstore.location import connect_store, open_store
from boundloop.eventstore.peer import PeerStore
from boundloop.eventstore.port import Switch
from boundloop.runtime.errors import StoreError

from .store_contract import StoreContract, World


def url_in(folder: str) -> str:
    return f"sqlite:///{os.path.join(folder, 'runs.db')}"


@pytest.mark.asyncio
class TestSqliteStore(StoreContract):
    @asynccontextmanager
    async def opening(self, folder: str) -> AsyncGenerator[World, None]:
        world = World()
        world.store = await open_store(
            url_in(folder), clock=world.clock, on_submit=world.on_submit, on_ready=world.on_ready
        )
        yield world
        await world.store.close()


@pytest.mark.asyncio
class TestSqliteThroughTheSocket(StoreContract):
    @asynccontextmanager
    async def opening(self, folder: str) -> AsyncGenerator[World, None]:
        world = World()
        owner = await open_store(
            url_in(folder), clock=world.clock, on_submit=world.on_submit, on_ready=world.on_ready
        )
        world.store = await connect_store(url_in(folder))
        assert isinstance(world.store, PeerStore)
        assert not world.store.owns
        yield world
        await world.store.close()
        await owner.close()


@pytest.mark.asyncio
async def test_without_a_handler_commands_are_refused_through_the_socket(tmp_path: object) -> None:
    owner = await open_store(url_in(str(tmp_path)))
    peer = await connect_store(url_in(str(tmp_path)))
    for store in (owner, peer):
        with pytest.raises(StoreError) as caught:
            await store.submit("r1", "k1", b"cancel")
        assert caught.value.code == "no_submit_handler"
    await peer.close()
    await owner.close()


@pytest.mark.asyncio
async def test_an_owner_knows_a_switch_that_another_process_set(tmp_path: object) -> None:
    switch = Switch(scope="tool", target="refund", by="os:me@here", reason="drill", at_ms=1)
    owner = await open_store(url_in(str(tmp_path)))
    peer = await connect_store(url_in(str(tmp_path)))
    await peer.set_switch(switch, on=True)
    assert owner.switches_known() == (switch,)
    await peer.close()
    await owner.close()
    again = await open_store(url_in(str(tmp_path)))
    assert again.switches_known() == (switch,)
    await again.close()
