"""How late an event loop is, seen from a thread: what blocks it can't be seen from itself."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Final

LOOK_S: Final = 0.1
RECENT_S: Final = 1.0


class LoopLag:
    """Looks until the loop is closed. ``stuck`` is called once, on another thread, when the loop has not turned for
    ``stuck_s``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, stuck_s: float, stuck: Callable[[], None]) -> None:
        self._loop = loop
        self._stuck_s = stuck_s
        self._stuck = stuck
        self._asked_at = 0.0
        self._turned = threading.Event()
        self._worst_s = 0.0
        self._turned_at = time.monotonic()
        self._gap_s = 0.0
        threading.Thread(target=self._look, name="loop-lag", daemon=True).start()

    @property
    def ms(self) -> int:
        """The longest that the loop was late, up to now, since this was last asked for."""
        now_s = 0.0 if self._turned.is_set() else time.monotonic() - self._asked_at
        worst_s, self._worst_s = max(self._worst_s, now_s), 0.0
        return int(worst_s * 1_000)

    @property
    def recent_ms(self) -> int:
        """How long the loop stood still lately, its process too: so long may what it takes up now have lain there."""
        since_s = time.monotonic() - self._turned_at
        gap_s = max(since_s, self._gap_s if since_s < RECENT_S else 0.0)
        return max(0, int((gap_s - LOOK_S) * 1_000))

    def _turn(self) -> None:
        now = time.monotonic()
        self._gap_s, self._turned_at = now - self._turned_at, now
        self._turned.set()

    def _look(self) -> None:
        pause = threading.Event()
        while True:
            self._turned.clear()
            self._asked_at = time.monotonic()
            try:
                self._loop.call_soon_threadsafe(self._turn)
            except RuntimeError:
                return  # closed
            if not self._turned.wait(self._stuck_s):
                self._stuck()
                return
            self._worst_s = max(self._worst_s, time.monotonic() - self._asked_at)
            pause.wait(LOOK_S)
