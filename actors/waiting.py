"""Those who wait for a run to rest or to stop, and what they are told."""

from __future__ import annotations

import asyncio
from typing import Literal

from ..runtime.errors import CallerError
from .result import Result

Until = Literal["rest", "stop"]


class StillRunning(CallerError, TimeoutError):
    """A wait was over before the run rested; the run goes on. ``path`` is its id, ``status`` and ``waiting_for`` are
    those of ``Result`` at that moment. Waiting again is fine."""

    status: str
    waiting_for: str

    def __init__(self, result: Result, timeout_s: float | None) -> None:
        at = f"waits for {result.waiting_for}" if result.waiting_for else f"is at {result.phase}"
        super().__init__("still_running", f"after {timeout_s} s the run {at}", path=result.run_id)
        self.status = result.status
        self.waiting_for = result.waiting_for


class Waiters:
    """All waiters of one Runtime. On its loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[tuple[asyncio.Future[Result], Until]]] = {}

    def add(self, run_id: str, until: Until) -> asyncio.Future[Result]:
        """Hear of the run from now on, until ``remove``."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run_id, []).append((future, until))
        return future

    def remove(self, run_id: str, future: asyncio.Future[Result]) -> None:
        """Nobody waits at this future any more."""
        left = [waiting for waiting in self._waiting.pop(run_id, ()) if waiting[0] is not future]
        if left:
            self._waiting[run_id] = left
        if future.done() and not future.cancelled():
            future.exception()  # seen, also if the answer came from elsewhere

    def count(self, run_id: str) -> int:
        """How many wait for this run."""
        return len(self._waiting.get(run_id, ()))

    def of(self, run_id: str) -> list[tuple[Until, asyncio.Future[Result]]]:
        """Whoever waits for this run, and until when."""
        return [(until, future) for future, until in self._waiting.get(run_id, ())]

    def tell(self, run_id: str, result: Result) -> None:
        """The run was let go of in this state: whoever waits for that is answered."""
        for future, until in self._waiting.get(run_id, ()):
            if not future.done() and rests(result, until):
                future.set_result(result)

    def fail(self, run_id: str, error: BaseException) -> None:
        """Nothing more will be heard of the run here."""
        for future, _ in self._waiting.get(run_id, ()):
            if not future.done():
                future.set_exception(error)

    def fail_all(self, error: BaseException) -> None:
        """Nothing more will be heard of any run."""
        for run_id in tuple(self._waiting):
            self.fail(run_id, error)


def rests(result: Result, until: Until) -> bool:
    """Whether this is what was waited for."""
    if result.status in ("ended", "stopped"):
        return True
    return until == "rest" and result.status == "waiting"
