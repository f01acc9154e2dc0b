"""Calls of Ray that block, on threads of their own, and over before a cluster is left.

Ray asks its control service, which may be away for a minute, so none of this belongs on a loop. A call that is out while its process
detaches from the cluster makes Ray end the process (a failed check in its C++ code: no exception, no ``finally``), and one that
comes after that begins a cluster by itself. So whoever leaves, or hands the cluster back to the application, waits for what is out.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

from .daemon_thread import on_daemon_thread

T = TypeVar("T")

LEAVE_WAIT_S: Final = 5.0
"""How long leaving waits for calls that are out. One that hangs for longer, because the control service is away, is left alone."""


def untyped_ray() -> Any:
    """Ray, imported on first use. Its annotations are too partial for strict checking."""
    import ray

    return ray


class NotAttached(RuntimeError):
    """The process is attached to no cluster any more, or about to leave it."""


class _Calls:
    """Of this process. A call counts from when it is asked for: its thread may have its first turn later."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._out: set[object] = set()
        self._leaving = 0

    def ask(self) -> object:
        call = object()
        with self._changed:
            self._out.add(call)
        return call

    def make(self, call: object, work: Callable[[], T]) -> T:
        """Raises ``NotAttached``, and whatever Ray raises."""
        try:
            with self._changed:
                leaving = self._leaving > 0
            if leaving or not untyped_ray().is_initialized():
                raise NotAttached("this process is attached to no cluster of Ray")
            return work()
        finally:
            with self._changed:
                self._out.discard(call)
                self._changed.notify_all()

    @contextlib.contextmanager
    def none(self, wait_s: float) -> Generator[None]:
        """Wait until what was asked for is over, or the time is; nothing begins meanwhile, nor within the block."""
        with self._changed:
            self._leaving += 1
        try:
            self.await_over(wait_s)
            yield
        finally:
            with self._changed:
                self._leaving -= 1

    def await_over(self, wait_s: float) -> None:
        """Wait until what was asked for by now is over, or the time is. Other Runtimes of the process may go on."""
        end = time.monotonic() + wait_s
        with self._changed:
            out = set(self._out)
            while not out.isdisjoint(self._out) and (left_s := end - time.monotonic()) > 0:
                self._changed.wait(left_s)


_calls: Final = _Calls()


async def ask_ray(work: Callable[[], T]) -> T:
    """What ``work`` gives, which calls Ray and may block. A caller that is cancelled leaves the thread to itself. Raises
    ``NotAttached``, and whatever Ray raises."""
    call = _calls.ask()
    return await on_daemon_thread(_calls.make, call, work)


def end_actor(handle: Any) -> None:
    """Have Ray end it, now and whatever it does; returns at once."""
    threading.Thread(target=_end, args=(handle, _calls.ask()), name="boundloop-end", daemon=True).start()


def end_actor_here(handle: Any) -> None:
    """The same on this thread, which it may block: for one of a call that is out, and counts so until this is done."""
    _end(handle, _calls.ask())


def _end(handle: Any, call: object) -> None:
    with contextlib.suppress(Exception):  # a cluster that is gone has no such actor
        _calls.make(call, lambda: untyped_ray().kill(handle, no_restart=True))


def leave_to_others() -> None:
    """The cluster is the application's, which may leave it at once: see that nothing of this Runtime's is out."""
    _calls.await_over(LEAVE_WAIT_S)


def leave_and_end() -> None:
    """Detach the process from its cluster, and end that if it was begun here."""
    with _calls.none(LEAVE_WAIT_S):
        untyped_ray().shutdown()
