"""Those who follow a run's log: woken after every append to it, by whichever process."""

from __future__ import annotations

import asyncio

from ..eventstore.port import EventStore, SharedStore
from ..runtime.errors import RunNotFound

LOOK_S = 0.25
"""How often a run is looked at that a host elsewhere in a shared store may have: nobody here is told of its appends."""


class Followers:
    """On the owner's loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    def end(self) -> None:
        """Nothing more is told of: nobody waits any longer."""
        for run_id in tuple(self._waiting):
            self.tell(run_id)

    def tell(self, run_id: str) -> None:
        """The run's log has grown."""
        for future in self._waiting.pop(run_id, ()):
            if not future.done():
                future.set_result(None)

    async def wait(self, store: EventStore, run_id: str, after_seq: int, timeout_s: float) -> bool:
        """Whether the log has more than ``after_seq`` events, now or within the time. Raises ``RunNotFound``."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run_id, set()).add(future)  # before the look, so that nothing falls between
        try:
            row = await store.run(run_id)
            if row is None:
                raise RunNotFound(run_id)
            if row.seq > after_seq:
                return True
            if not isinstance(store, SharedStore):
                await asyncio.wait((future,), timeout=timeout_s)
                return future.done()
            loop = asyncio.get_running_loop()
            over_at = loop.time() + timeout_s
            while not future.done() and loop.time() < over_at:
                await asyncio.wait((future,), timeout=min(LOOK_S, max(over_at - loop.time(), 0)))
                row = await store.run(run_id)
                if row is not None and row.seq > after_seq:
                    return True
            return future.done()
        finally:
            left = self._waiting.get(run_id)
            if left is not None:
                left.discard(future)
                if not left:
                    del self._waiting[run_id]
