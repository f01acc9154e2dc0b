"""An asynchronous generator that lives on one event loop and is stepped from elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final, TypeVar

T = TypeVar("T")
STEP_END_PAUSE_S: Final = 0.01
STEP_END_TRIES: Final = 50


async def next_of(items: AsyncGenerator[T]) -> T | None:
    """Its next item; None if there is none any more."""
    return await anext(items, None)


async def end_of(items: AsyncGenerator[Any]) -> None:
    """Close it. A step of it that its caller broke off is cancelled, and has a moment to end first. An interrupt can come
    where nothing is cancelled yet: that step ends by itself, and the loop closes what it was a step of."""
    for _ in range(STEP_END_TRIES):
        if not getattr(items, "ag_running", False):
            await items.aclose()
            return
        await asyncio.sleep(STEP_END_PAUSE_S)
