"""What a store offers for its own upkeep, besides the port that runs are hosted through."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from .port import RunRow


@runtime_checkable
class Upkeep(Protocol):
    """The shipped stores have all of it. Each call is one transaction, and may raise ``StoreError``."""

    async def reindex(self, row: RunRow) -> bool:
        """Write what a run's index row says beside its log: all but its key, ``seq``, ``head``, owner, readiness and damage.
        The epoch is raised to the row's, never lowered. False, and nothing is written, if the run's seq or head are others:
        it went on. A run that hasn't ended is made ready: whoever takes it up sees what it has to do."""
        ...
