"""What is shown of an answer while it comes: text merged to a few pieces a second, and calls by name alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final

from ..runtime.model import ModelInput
from .answer_draft import Sign, TextSeen
from .port import CallPreparing, ProgressSink, TextDelta

PIECES_A_SECOND_MAX: Final = 20


Later = Callable[[float, Callable[[], None]], Callable[[], None]]
"""(seconds, call) -> what cancels it."""


class Shown:
    """Hands signs on to a sink, which may be none. ``clock``: seconds that don't go back. ``later``: calls when the time of a piece is
    there, for answers that come as they are written; without it a piece waits for the next of them."""

    def __init__(
        self,
        request: ModelInput,
        sink: ProgressSink | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        later: Later | None = None,
    ) -> None:
        self._turn, self._attempt = request.turn, request.attempt
        self._sink = sink
        self._clock = clock
        self._later = later
        self._cancel: Callable[[], None] | None = None
        self._texts: list[str] = []
        self._offset = 0
        self._due = 0.0

    def show(self, signs: Iterable[Sign]) -> None:
        """Text waits until the last piece is a twentieth of a second old; a call shows at once, behind the text before it."""
        if self._sink is None:
            return
        for sign in signs:
            if isinstance(sign, TextSeen):
                self._texts.append(sign.text)
            else:
                self.flush()
                self._sink(CallPreparing(self._turn, self._attempt, sign.index, sign.name))
        if not self._texts:
            return
        left_s = self._due - self._clock()
        if left_s <= 0:
            self.flush()
        elif self._later is not None and self._cancel is None:
            self._cancel = self._later(left_s, self._timed)

    def flush(self) -> None:
        """What waits."""
        self._stop_waiting()
        if self._sink is None or not self._texts:
            return
        text = "".join(self._texts)
        self._texts.clear()
        self._sink(TextDelta(self._turn, self._attempt, self._offset, text))
        self._offset += len(text)
        self._due = self._clock() + 1 / PIECES_A_SECOND_MAX

    def close(self) -> None:
        """Nothing more is shown. Idempotent."""
        self._stop_waiting()
        self._sink = None

    def _timed(self) -> None:
        self._cancel = None
        self.flush()

    def _stop_waiting(self) -> None:
        if self._cancel is not None:
            self._cancel()
            self._cancel = None


def on_loop(loop: asyncio.AbstractEventLoop) -> Later:
    """Calls on a loop, from it."""
    return lambda delay_s, call: loop.call_later(delay_s, call).cancel
