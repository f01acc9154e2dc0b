"""What the runs of a host show while their models write: of the attempt that is out the text so far, for whoever asks, whenever.

Nothing of it is stored, and nothing is buffered for a reader. A reader says how far it is (``Mark``) and gets all that came
since as one piece, so one that is slow gets fewer and larger pieces, and one that comes late the whole text so far first.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from ..adapters.port import AttemptReset, CallPreparing, Progress, TextDelta
from ..runtime.events import AnyEvent, ModelFailed, ModelResponded

TEXT_CHARS_MAX: Final = 4 * 1024 * 1024
PIECES_MAX: Final = 65_536
"""What is kept of one attempt; at twenty pieces a second these are most of an hour. Nothing that comes behind it is shown to
those who follow, so there is no gap in what is."""

_SETTLING: Final = (ModelResponded, ModelFailed)
"""Looked at with every append, so by type alone."""

DONE: Final = 2**62
"""As a place: behind all that an attempt may show."""


class Mark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far a reader is: so many pieces of this attempt were taken. The first one is before every attempt."""

    turn: int = 0
    attempt: int = 0
    taken: int = 0


class Shown(msgspec.Struct, frozen=True, array_like=True):
    """What came since a mark, and the next mark. ``after_seq``: the run's log up to here, with the attempt's request, is what
    comes before it."""

    mark: Mark
    after_seq: int = 0
    items: tuple[TextDelta | CallPreparing, ...] = ()


class _Attempt:
    """What one attempt showed. ``full``: nothing more is kept. ``landed``: what it came to is on its way into the log."""

    __slots__ = ("after_seq", "attempt", "chars", "full", "landed", "pieces", "turn")

    def __init__(self, turn: int, attempt: int, after_seq: int) -> None:
        self.turn = turn
        self.attempt = attempt
        self.after_seq = after_seq
        self.pieces: list[TextDelta | CallPreparing] = []
        self.chars = 0
        self.full = False
        self.landed = False

    def add(self, item: TextDelta | CallPreparing) -> None:
        if isinstance(item, TextDelta):
            if item.offset != self.chars or self.chars + len(item.text) > TEXT_CHARS_MAX:
                self.full = True  # whoever reads on would read over a gap
            self.chars += len(item.text)
        if len(self.pieces) >= PIECES_MAX:
            self.full = True
        if not self.full:
            self.pieces.append(item)

    def since(self, mark: Mark) -> Shown:
        here, there = (self.turn, self.attempt), (mark.turn, mark.attempt)
        if there > here or (there != here and self.landed):
            return Shown(mark)
        taken = mark.taken if there == here else 0
        if taken >= len(self.pieces):
            return Shown(mark)
        items = _merged(self.pieces[taken:])
        return Shown(Mark(self.turn, self.attempt, len(self.pieces)), self.after_seq, items)


class Provisional:
    """Of one host, on its loop. An entry is there from the first piece of an attempt to the event of what became of it."""

    def __init__(self) -> None:
        self._attempts: dict[str, _Attempt] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    def add(self, run_id: str, item: Progress, after_seq: int) -> None:
        """One piece of the attempt whose request is in the log up to ``after_seq``. A reset takes all of it back."""
        attempt = self._attempts.get(run_id)
        if isinstance(item, AttemptReset):
            self.over(run_id)
            return
        if attempt is None or (attempt.turn, attempt.attempt) != (item.turn, item.attempt):
            attempt = self._attempts[run_id] = _Attempt(item.turn, item.attempt, after_seq)
        attempt.add(item)
        self.tell(run_id)

    def landed(self, run_id: str) -> None:
        """The attempt that is out has come to something, whose event is about to be committed. From here on nobody begins to
        read it: one that had read that event already would be shown it again."""
        attempt = self._attempts.get(run_id)
        if attempt is not None:
            attempt.landed = True

    def committed(self, run_id: str, events: tuple[AnyEvent, ...]) -> None:
        """What the run's log has now. With what became of the attempt its text is over."""
        if run_id in self._attempts and any(type(event) in _SETTLING for event in events):
            del self._attempts[run_id]
        if self._waiting:
            self.tell(run_id)

    def over(self, run_id: str) -> None:
        """The run is let go of, or the attempt was reset: forget it."""
        self._attempts.pop(run_id, None)
        self.tell(run_id)

    def tell(self, run_id: str) -> None:
        """Whoever waits for news of the run looks again."""
        for future in self._waiting.pop(run_id, ()):
            if not future.done():
                future.set_result(None)

    def end(self) -> None:
        """Nobody waits any longer."""
        for run_id in tuple(self._waiting):
            self.tell(run_id)

    async def after(self, run_id: str, mark: Mark, timeout_s: float) -> Shown:
        """What came since ``mark``, at once or when there is something. Without items: the time was over, or something else
        became of the run first."""
        shown = self._since(run_id, mark)
        if shown.items or timeout_s <= 0:
            return shown
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run_id, set()).add(future)
        try:
            await asyncio.wait((future,), timeout=timeout_s)
        finally:
            left = self._waiting.get(run_id)
            if left is not None:
                left.discard(future)
                if not left:
                    del self._waiting[run_id]
        return self._since(run_id, mark)

    def _since(self, run_id: str, mark: Mark) -> Shown:
        attempt = self._attempts.get(run_id)
        return Shown(mark) if attempt is None else attempt.since(mark)


def _merged(pieces: list[TextDelta | CallPreparing]) -> tuple[TextDelta | CallPreparing, ...]:
    """Texts that follow one another as one."""
    merged: list[TextDelta | CallPreparing] = []
    texts: list[TextDelta] = []

    def close() -> None:
        if texts:
            first = texts[0]
            text = "".join(piece.text for piece in texts)
            merged.append(TextDelta(first.turn, first.attempt, first.offset, text))
            texts.clear()

    for piece in pieces:
        if isinstance(piece, TextDelta):
            texts.append(piece)
        else:
            close()
            merged.append(piece)
    close()
    return tuple(merged)
