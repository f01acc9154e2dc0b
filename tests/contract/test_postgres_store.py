"""The cluster store keeps the contract, on a real server."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from tests.postgres_server import Server

from boundloop.eventstore.postgres import PostgresStore

from .store_contract import StoreContract, World


@pytest.mark.asyncio
class TestPostgresStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, postgres: Server) -> None:
        self.server = postgres

    @asynccontextmanager
    async def opening(self, folder: str) -> AsyncGenerator[World, None]:
        world = World()
        world.store = await PostgresStore.open(
            self.server.url(), clock=world.clock, on_submit=world.on_submit, on_ready=world.on_ready
        )
        yield world
        await world.store.close()
