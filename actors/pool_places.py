"""The executors of one pool, and how it fares: who is free, how often they died or didn't come up, when to start the next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from .slot_reports import PoolKey, PoolShape

CRASH_BACKOFF_MS: Final = (0, 0, 500, 2_000, 5_000, 15_000, 30_000)
"""How long a pool's next start waits after so many executors in a row that died or didn't come up; the last repeats."""

TOGETHER_MS: Final = 1_000
"""Executors of a pool that die within so long died of one cause, a node's end say, and count once."""

FAILING_AFTER: Final = 3
"""Starts in a row that failed, after which whoever waits is told that the executors are failing, if there is none."""

CONTENDED_MS: Final = 1_000
"""A pool for which somebody had to wait counts as contended for so long: others will come again."""


@dataclass(slots=True)
class Executor:
    """One, from the word to start it until it is none of ours any more."""

    name: str
    key: PoolKey
    places: int
    up: bool = False
    idle_since_ms: int = 0
    leases: set[str] = field(default_factory=set[str])


@dataclass(slots=True)
class PoolPlaces:
    """``failed_starts`` and ``failures`` (deaths too) are in a row. Nothing is started before ``start_at_ms``."""

    key: PoolKey
    shape: PoolShape
    executors: dict[str, Executor] = field(default_factory=dict[str, Executor])
    failures: int = 0
    failed_starts: int = 0
    start_at_ms: int = 0
    crashed_ms: int = -TOGETHER_MS
    waited_ms: int = -CONTENDED_MS

    @property
    def failing(self) -> bool:
        """Whether there is none, and starts have failed again and again."""
        return self.failed_starts >= FAILING_AFTER and not self.executors

    def free_executor(self) -> Executor | None:
        """The least loaded; of those, the one that was used last, so that the others may end."""
        free = [it for it in self.executors.values() if it.up and len(it.leases) < it.places]
        return min(free, key=lambda it: (len(it.leases), -it.idle_since_ms), default=None)

    def crashed(self, executor: Executor, now_ms: int) -> None:
        """It died or didn't come up: the next start waits the longer, the more did."""
        if not executor.up or now_ms - self.crashed_ms >= TOGETHER_MS:
            self.failures += 1
            self.crashed_ms = now_ms
        self.failed_starts += 0 if executor.up else 1
        wait = CRASH_BACKOFF_MS[min(self.failures, len(CRASH_BACKOFF_MS) - 1)]
        self.start_at_ms = max(self.start_at_ms, now_ms + wait)
