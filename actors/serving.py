"""Waiting for the word to end: a signal to the process, or another thread's ``close``."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Generator
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Word:
    """Given once, from any thread or from a signal handler, and never taken back. A pipe and no lock: a handler runs in the
    middle of whatever its thread does, and could wait for a lock that this very thread holds."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe()
        os.set_blocking(self._in, False)

    def give(self) -> None:
        """Whoever waits goes on. Harmless when given before."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._in, b"\0")

    def wait(self) -> None:
        """Until it was given."""
        select.select([self._out], [], [])

    def __del__(self) -> None:
        # Not sooner: who is about to give the word would write to whatever has the descriptor by then.
        os.close(self._out)
        os.close(self._in)


@contextlib.contextmanager
def given_by_signals(word: Word) -> Generator[None]:
    """SIGTERM and SIGINT give the word and do nothing else; then they mean again what they meant. On any other thread than
    the main one signals stay as they are: Python lets no other install handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        word.give()

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
