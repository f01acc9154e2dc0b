"""The server's time, as a process knows it between two answers."""

from __future__ import annotations

import time
from collections.abc import Callable

from .clock import NeverFalling


class ServerClock:
    """Goes on from the server's last word at the rate of this process's monotonic clock, and never falls: if the server's
    clock is set back, it stands until that has caught up. It lags by an answer's way back. ``given`` is another clock, for
    tests: it is then the server's too. On one event loop."""

    def __init__(self, given: Callable[[], int] | None = None) -> None:
        self._given = None if given is None else NeverFalling(given)
        self._server_ms = 0
        self._at_ns = time.monotonic_ns()
        self._last_ms = 0

    def given_ms(self) -> int | None:
        """What the server is to take for its time; None if it is to look at its own clock."""
        return None if self._given is None else self._given()

    def observe(self, server_ms: int) -> None:
        """The server has just said so."""
        self._server_ms = server_ms
        self._at_ns = time.monotonic_ns()

    def now_ms(self) -> int:
        """Unix milliseconds."""
        if self._given is not None:
            return self._given()
        passed_ms = (time.monotonic_ns() - self._at_ns) // 1_000_000
        self._last_ms = max(self._last_ms, self._server_ms + passed_ms)
        return self._last_ms
