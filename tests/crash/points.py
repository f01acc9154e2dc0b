"""Where a process can die around an append, and a store that lets it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final, Literal

from boundloop.eventstore.port import Append, AppendAnswer, Appended, EventStore

from .proof import Acknowledged

Position = Literal["before", "inside", "after_commit", "after_answer"]
POSITIONS: Final[tuple[Position, ...]] = ("before", "inside", "after_commit", "after_answer")

TURNS: Final = 5
"""Of the loop, until every task that was made has begun its thread."""

Deaths = Callable[[Position], None]
"""What kills. For ``before`` and ``after_commit`` it doesn't return; for ``inside`` it arms a death that comes in the
middle of the append that follows, for ``after_answer`` one that comes once the answer has been acted on."""


class DeathAtAppend:
    """Counts a process's appends and kills at the one asked for (0: none)."""

    def __init__(
        self, at: int, position: Position, kill: Deaths, told: Callable[[Acknowledged], None]
    ) -> None:
        self.appends = 0
        self._at = at
        self._position = position
        self._kill = kill
        self._told = told

    async def append(self, inner: Callable[[Append], Any], request: Append) -> AppendAnswer:
        """In place of the store's ``append``."""
        self.appends += 1
        position = self._position if self.appends == self._at else None
        if position == "before":
            # Whatever was begun too early shows at the far side by then.
            await _everything_out_has_run()
        if position in ("before", "inside"):
            self._kill(position)
        answer: AppendAnswer = await inner(request)
        if position == "after_commit":
            self._kill(position)
        if isinstance(answer, Appended):
            self._told(
                Acknowledged(request.run_id, request.expected_seq + 1, request.event_count, request.hash)
            )
        if position == "after_answer":
            self._kill(position)
        return answer


async def _everything_out_has_run() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)
    for thread in threading.enumerate():
        if thread.name.startswith("tool-"):
            await asyncio.to_thread(thread.join)


class Gone(BaseException):
    """This host is dead. Nothing may catch it and go on."""


class MortalStore:
    """A store seen by a host that can die: from then on every call raises ``Gone``, like a call that never returns."""

    def __init__(self, inner: EventStore) -> None:
        self.inner = inner
        self.death: DeathAtAppend | None = None
        self.dead = False

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("on_submit", "on_ready"):
            setattr(self.inner, name, value)
        else:
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if self.dead:
            raise Gone
        return getattr(self.inner, name)

    async def append(self, request: Append) -> AppendAnswer:
        if self.dead:
            raise Gone
        if self.death is None:
            return await self.inner.append(request)
        return await self.death.append(self.inner.append, request)
