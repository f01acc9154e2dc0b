"""An event loop whose time moves only when told to, from timer to timer.

For code that is all asyncio: ``settle`` runs everything that can run now, ``advance`` moves the clock and runs what
becomes due on the way, each timer at its own moment. In between time stands still and the loop waits to be woken.
"""

from __future__ import annotations

import asyncio
import math
import selectors


class SteppedLoop(asyncio.SelectorEventLoop):
    """``now_ms`` counts from 0."""

    def __init__(self) -> None:
        self.now_ms = 0
        self._until_ms = 0
        self._settled: asyncio.Future[None] | None = None
        super().__init__(_SteppedSelector(self))

    def time(self) -> float:
        return self.now_ms / 1_000

    async def settle(self) -> None:
        """Until everything waits for a timer or to be woken."""
        await self.advance(0)

    async def advance(self, ms: int) -> None:
        """Move the clock, then settle."""
        self._until_ms = self.now_ms + ms
        self._settled = self.create_future()
        await self._settled

    def step(self, timeout_s: float | None) -> bool:
        """Called where a loop would wait: move to the next timer, or say that all is settled. False: really wait."""
        if self._settled is None:
            return False
        if timeout_s is not None:
            due_ms = self.now_ms + max(1, math.ceil(timeout_s * 1_000 - 1e-6))
            if due_ms <= self._until_ms:
                self.now_ms = due_ms
                return True
        self.now_ms = self._until_ms
        self._settled.set_result(None)
        self._settled = None
        return True


class _SteppedSelector(selectors.SelectSelector):
    def __init__(self, loop: SteppedLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0 or self._loop.step(timeout):
            return ready
        return super().select(None)
