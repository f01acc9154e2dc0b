"""A store that says yes and keeps nothing: what is left of a step's time with it is not the store's.

Only for measuring. Runs can be started and driven to their end; nothing can be read back.
"""

from __future__ import annotations

import asyncio

from boundloop.eventstore.memory import MemoryStore
from boundloop.eventstore.port import Append, AppendAnswer, Appended


class NullStore(MemoryStore):
    """Acknowledges every append after a run's first one without keeping it."""

    async def append(self, request: Append) -> AppendAnswer:
        """Yields once to the event loop, as a store that waits for a commit does."""
        if request.create is not None:
            return await super().append(request)
        await asyncio.sleep(0)
        return Appended(request.expected_seq + request.event_count, request.at_ms)
