"""Jobs that share one commit for certain: the store's thread is held up until all of them wait."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from boundloop.eventstore.sqlite import SqliteStore

T = TypeVar("T")
PATIENCE_S = 60


async def hold_up(store: SqliteStore, go_on: threading.Event, *, writes: bool = False) -> None:
    """Returns when the store's thread is at work on something that ends only when told to."""
    begun = threading.Event()

    def job() -> None:
        begun.set()
        go_on.wait(PATIENCE_S)

    store._thread.submit(job, writes=writes, light=False)
    await asyncio.to_thread(begun.wait, PATIENCE_S)


async def in_one_commit(store: SqliteStore, *calls: Coroutine[Any, Any, T]) -> list[T]:
    """Each call is one job. Their answers, errors raised."""
    go_on = threading.Event()
    await hold_up(store, go_on)
    tasks = [asyncio.ensure_future(call) for call in calls]
    while len(store._thread._jobs) < len(tasks):  # noqa: ASYNC110  the tasks have to run to hand their jobs in
        await asyncio.sleep(0)
    go_on.set()
    return await asyncio.gather(*tasks)
