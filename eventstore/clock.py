"""The store's time: Unix milliseconds that never fall.

A wall clock may be set back; leases and expiry can't stand still or go backwards meanwhile. So time goes on from the
highest value seen at the rate of the monotonic clock, until the wall clock has caught up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

WallMs = Callable[[], int]


def wall_ms() -> int:
    """This machine's Unix time in milliseconds; may fall."""
    return time.time_ns() // 1_000_000


class StoreClock:
    """``floor_ms``: the highest time that the store has on record; this clock starts no lower. Thread-safe."""

    def __init__(self, floor_ms: int = 0, wall: WallMs = wall_ms) -> None:
        self._wall = wall
        self._lock = threading.Lock()
        self._last_ms = floor_ms
        self._last_mono_ns = time.monotonic_ns()

    def now_ms(self) -> int:
        with self._lock:
            mono_ns = time.monotonic_ns()
            passed_ms = (mono_ns - self._last_mono_ns) // 1_000_000
            # Only whole milliseconds are taken off, else many quick readings would add up to time that never passes.
            self._last_mono_ns += passed_ms * 1_000_000
            self._last_ms = max(self._last_ms + passed_ms, self._wall())
            return self._last_ms

    def raise_to(self, floor_ms: int) -> None:
        """Never answer less than ``floor_ms`` from now on (a time that another process has answered)."""
        with self._lock:
            self._last_ms = max(self._last_ms, floor_ms)


class NeverFalling:
    """Another clock, kept from falling. Thread-safe if that clock is."""

    def __init__(self, clock: WallMs) -> None:
        self._clock = clock
        self._last_ms = 0

    def __call__(self) -> int:
        self._last_ms = max(self._last_ms, self._clock())
        return self._last_ms


class FixedClock:
    """A clock that moves only when told to, for tests and simulation. Not for two threads."""

    def __init__(self, at_ms: int = 1_700_000_000_000) -> None:
        self.at_ms = at_ms

    def __call__(self) -> int:
        return self.at_ms

    def advance(self, by_ms: int) -> None:
        self.at_ms += by_ms
