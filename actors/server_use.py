"""How a Runtime without Ray uses a store that a server keeps: beside other hosts, and with a host of its own again after the
server was away for too long.

The store stays open meanwhile: it remembers what was acknowledged to this process, and looks whether that is there when it
reaches a server again, and whether it is the same store at all.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from ..eventstore.location import open_store
from ..eventstore.port import EventStore
from .executors import Executors
from .host import EXECUTORS_S
from .owning import Owning, Parts


class ServerUse:
    """A ``StoreUse``: the store and the executors, which outlive each host, and what the last host left."""

    foreign_errors = False

    def __init__(self) -> None:
        self._store: EventStore | None = None
        self._executors: Executors | None = None
        self._before: Owning | None = None

    async def serve(
        self,
        parts: Parts,
        url: str,
        *,
        take_over: bool,
        clock: Callable[[], int] | None,
        lost: Callable[[], None],
    ) -> Owning:
        """Host beside whoever else does. Raises as ``open_store``, or as the store's calls once it is open."""
        if self._store is None:
            self._store = await open_store(url, clock=clock)
        if self._executors is None:
            self._executors = Executors(
                groups=parts.groups, dependencies=parts.dependencies, secrets=parts.secrets
            )
        serving = await Owning.open(
            parts,
            self._store,
            take_over=take_over,
            clock=clock,
            lost=lost,
            executors=self._executors,
            after=self._before,
        )
        self._before = serving
        return serving

    @property
    def address(self) -> str:
        """Of no cluster."""
        return ""

    async def leave(self) -> None:
        """Wait for what still runs, within the bound for that, and close the store."""
        if self._executors is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EXECUTORS_S):
                    await self._executors.close()
        if self._store is not None:
            await self._store.close()
