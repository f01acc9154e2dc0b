"""A line to an executor: how a host in one process reaches one in another, whatever carries it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from .dispatch_wire import Stop
from .places import Kind


class LineDown(Exception):
    """No line to that executor can be had, or nothing was sent on it: proof that nothing ran."""


class ExecutorDied(Exception):
    """It ended before it answered; what it was sent may have run."""


class NoAnswer(Exception):
    """The line failed in another way; what was sent may have run."""


class Line(Protocol):
    """To one executor. ``name`` is the actor's."""

    @property
    def name(self) -> str: ...

    @property
    def gone(self) -> bool:
        """Whether its executor is known to have ended: nothing should be sent any more."""
        ...

    def send(self, calls: bytes) -> asyncio.Future[object]:
        """Hand calls over at once. The future has whatever came back, ``ExecutorDied`` or ``NoAnswer``. Raises ``LineDown``
        if they could not even be handed over."""
        ...

    def stop(self, stop: Stop) -> None:
        """Ask a call to stop; nobody waits for an answer."""
        ...

    async def harvest(self, first: Stop) -> object:
        """What there is of the batch that begins with this call. Raises ``ExecutorDied`` or ``NoAnswer``."""
        ...


class Lines(Protocol):
    """All lines of one host."""

    def known(self, name: str) -> Line | None:
        """One that was had before."""
        ...

    async def line(self, name: str, kind: Kind) -> Line:
        """A line to an executor that says it is what is asked for. Raises ``LineDown``."""
        ...

    def forget(self, name: str) -> None:
        """It is gone."""
        ...
