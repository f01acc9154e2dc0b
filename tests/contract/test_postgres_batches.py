"""Which of the appends that wait go to the server together."""

from __future__ import annotations

import asyncio

import pytest
from tests.postgres_server import Server

from boundloop.eventstore.port import Appended
from boundloop.eventstore.postgres import PostgresStore
from boundloop.eventstore.postgres_writer import BATCH_APPENDS_WHOLE

from .log_writer import LogWriter

MANY = 4 * BATCH_APPENDS_WHOLE


async def answered_together(store: PostgresStore, appends: int) -> list[int]:
    """Of so many runs that begin at once: how many were answered by each answer of the server."""
    logs = [LogWriter(store, f"r{number}") for number in range(appends)]
    groups: list[int] = []
    left = {asyncio.ensure_future(store.append(log.request("start"))) for log in logs}
    while left:
        done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        assert all(isinstance(one.result(), Appended) for one in done)
        groups.append(len(done))
    return groups


@pytest.mark.asyncio
async def test_of_many_appends_that_wait_half_go_and_their_runs_go_on_while_the_server_has_the_rest(
    postgres: Server,
) -> None:
    store = await PostgresStore.open(postgres.url())
    groups = await answered_together(store, MANY)
    assert groups[0] == MANY // 2
    assert groups[1] == MANY // 4
    assert sum(groups) == MANY
    await store.close()


@pytest.mark.asyncio
async def test_few_appends_that_wait_go_all_together(postgres: Server) -> None:
    store = await PostgresStore.open(postgres.url())
    assert await answered_together(store, BATCH_APPENDS_WHOLE) == [BATCH_APPENDS_WHOLE]
    await store.close()
