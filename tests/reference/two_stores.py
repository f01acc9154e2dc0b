"""Both stores under one machine: the clock that the test moves, and a loop of its own to ask them on."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Coroutine
from typing import Any, Literal, TypeVar

from boundloop.eventstore.clock import FixedClock
from boundloop.eventstore.memory import MemoryStore
from boundloop.eventstore.port import EventStore
from boundloop.eventstore.sqlite import SqliteStore

T = TypeVar("T")
Kind = Literal["memory", "sqlite"]


class Opened:
    """One open store. ``ask`` runs a call of it to its end."""

    def __init__(self, kind: Kind) -> None:
        self.clock = FixedClock()
        self._loop = asyncio.new_event_loop()
        self._folder = tempfile.TemporaryDirectory() if kind == "sqlite" else None
        self.store: EventStore
        if self._folder is None:
            self.store = MemoryStore(clock=self.clock)
        else:
            path = os.path.join(self._folder.name, "runs.db")
            self.store = self.ask(SqliteStore.open(path, clock=self.clock))

    def ask(self, call: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(call)

    def close(self) -> None:
        self.ask(self.store.close())
        self._loop.close()
        if self._folder is not None:
            self._folder.cleanup()
