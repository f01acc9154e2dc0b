"""``--approve ask``: a person in this terminal, or in another shell, whichever comes first."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
from collections.abc import Callable
from typing import Final

from ..runtime.errors import BoundloopError

_LOOK_S: Final = 0.2
_LINE_BYTES_MAX: Final = 4_096


class Terminal:
    """Reads y or n from the terminal until told to stop; nothing if standard input is none. ``decide`` is called once, with
    True for yes, on a thread of its own; that somebody else decided meanwhile is no error."""

    def __init__(self, decide: Callable[[bool], object], again: Callable[[], None]) -> None:
        self._decide = decide
        self._again = again
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if is_terminal():
            self._thread = threading.Thread(target=self._read, name="demo-terminal", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _read(self) -> None:
        while not self._stop.is_set():
            if not select.select([sys.stdin], [], [], _LOOK_S)[0]:
                continue
            line = os.read(sys.stdin.fileno(), _LINE_BYTES_MAX)
            if not line:
                return  # hung up: another shell still can
            answer = line.decode("utf-8", "replace").strip().lower()
            if answer in ("y", "yes", "n", "no"):
                with contextlib.suppress(BoundloopError):
                    self._decide(answer.startswith("y"))
                return
            self._again()


def is_terminal() -> bool:
    """Whether a person can type here."""
    try:
        return sys.stdin is not None and sys.stdin.isatty()
    except ValueError:  # closed
        return False
