"""What is shown of an answer while it comes: text merged to a few pieces a second, and calls by name alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from ..runtime.model import ModelInput
from .answer_draft import Sign, TextSeen
from .port import CallPreparing, ProgressSink, TextDelta

PIECES_A_SECOND_MAX: Final = 20


class Shown:
    """Hands signs on to a sink, which may be none. ``clock``: seconds that don't go back."""

    def __init__(
        self, request: ModelInput, sink: ProgressSink | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._turn, self._attempt = request.turn, request.attempt
        self._sink = sink
        self._clock = clock
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
        if self._texts and self._clock() >= self._due:
            self.flush()

    def flush(self) -> None:
        """What waits."""
        if self._sink is None or not self._texts:
            return
        text = "".join(self._texts)
        self._texts.clear()
        self._sink(TextDelta(self._turn, self._attempt, self._offset, text))
        self._offset += len(text)
        self._due = self._clock() + 1 / PIECES_A_SECOND_MAX
