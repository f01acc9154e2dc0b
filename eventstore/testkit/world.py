"""What a case is given: a store, what moves it, and what it has told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ...runtime.errors import BoundloopError, ConflictError, StoreError
from ..clock import FixedClock
from ..port import EventStore, HostRow
from .log_writer import LogWriter

E = TypeVar("E", bound=BoundloopError)
F = TypeVar("F", bound=Callable[..., object])

KEY = b"k" * 32
"""An idempotency key."""

VARIANTS = "boundloop_variants"
"""Attribute of a case that is run once for each of several values."""


@dataclass
class World:
    """Open the store with ``clock`` for its time, ``on_ready`` and ``on_submit`` for its listeners, and set ``store``."""

    clock: FixedClock = field(default_factory=FixedClock)
    woken: list[str] = field(default_factory=list[str])
    submitted: list[tuple[str, str, bytes]] = field(default_factory=list[tuple[str, str, bytes]])
    refuse: StoreError | ConflictError | None = None
    store: EventStore = field(init=False)

    def on_ready(self, run_ids: object) -> None:
        """The store's ``ReadyListener``."""
        assert isinstance(run_ids, list)
        self.woken += run_ids

    async def on_submit(self, run_id: str, command_id: str, command: bytes) -> bytes:
        """The store's ``SubmitHandler``."""
        self.submitted.append((run_id, command_id, command))
        if self.refuse is not None:
            raise self.refuse
        return b"answer to " + command

    def writer(self, run_id: str = "r1", host_id: str = "", tenant: str = "acme") -> LogWriter:
        """Of a run that isn't there yet."""
        return LogWriter(self.store, run_id, host_id, tenant)

    def host(self, host_id: str) -> HostRow:
        """A row to register."""
        return HostRow(host_id=host_id, node="n1", pid=7, pid_start=70, boot_id="b")

    async def settled(self) -> None:
        """Return after everything that the store has announced so far was heard: announcements come in order with answers."""
        await self.store.hosts()
        await asyncio.sleep(0)


@dataclass
class Caught(Generic[E]):
    """What ``refused`` caught."""

    error: E = field(init=False)


@contextmanager
def refused(kind: type[E]) -> Generator[Caught[E]]:
    """The block must raise this; anything else, and nothing, is a failure."""
    caught: Caught[E] = Caught()
    try:
        yield caught
    except kind as error:
        caught.error = error
    else:
        raise AssertionError(f"{kind.__name__} was to be raised, and nothing was")


def each(name: str, *values: str) -> Callable[[F], F]:
    """The case takes ``name`` besides the world, and is run once for each value."""

    def mark(case: F) -> F:
        setattr(case, VARIANTS, (name, values))
        return case

    return mark
