"""Whoever watches a host: functions of the application that are told what was committed, and provisional progress.

A watcher that raises has a bug of its own. It is dropped, its error is kept, and the runs go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..adapters.port import Progress
from ..runtime.events import AnyEvent
from ..runtime.state import State

Watcher = Callable[[str, State, tuple[AnyEvent, ...], int], None]
ProgressWatcher = Callable[[str, Progress], None]


class Watchers:
    """The watchers of one host, called on its loop. ``errors`` holds what ended a watcher, one for each dropped."""

    __slots__ = ("_of_commits", "_of_progress", "errors")

    def __init__(self) -> None:
        self._of_commits: list[Watcher] = []
        self._of_progress: list[ProgressWatcher] = []
        self.errors: list[BaseException] = []

    def add(self, watcher: Watcher) -> None:
        """Call it after every commit, with (run id, state, events, seq of the first)."""
        self._of_commits.append(watcher)

    def add_of_progress(self, watcher: ProgressWatcher) -> None:
        """Call it for provisional text and notices, with (run id, item)."""
        self._of_progress.append(watcher)

    def committed(self, run_id: str, state: State, events: tuple[AnyEvent, ...], first_seq: int) -> None:
        """Tell of one append."""
        if self._of_commits:
            self._tell(self._of_commits, run_id, state, events, first_seq)

    def progressed(self, run_id: str, item: Progress) -> None:
        """Tell of one notice."""
        if self._of_progress:
            self._tell(self._of_progress, run_id, item)

    def _tell(self, watchers: list[Any], *what: Any) -> None:
        for watch in tuple(watchers):
            try:
                watch(*what)
            except BaseException as error:
                watchers.remove(watch)
                self.errors.append(error)
