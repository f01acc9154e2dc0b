"""What a call has at work in an executor's process: its tasks, its threads, its programs; and its end at the latest.

A report says what became of a call, not that nothing of it goes on: a coroutine may swallow its cancellation or shield a part
from it, and a thread can't be stopped. An effect that happens after its call's validity and the margin may have been proved
absent by then, so what can't be known to have ended by its time ends with the process.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from .executor_guard import Known, descendants, others_than, started

OVERDUE_S: Final = 1.5
"""How long after its validity a call may still be at work. Its host says that it is overdue a little before."""

PARTS_KEPT: Final = 64
THREADS_MAX: Final = 32
LOOK_S: Final = 0.1
NOT_TOOLS: Final = ("AsyncIO Thread", "ray_", "Dummy-")
"""How the threads are named that Ray makes for itself when it needs them, and those that Python didn't make."""

P = ParamSpec("P")
T = TypeVar("T")


class _Part(Protocol):
    def done(self) -> bool: ...


class Strangers:
    """Threads and processes of this process that no call can be named for. Made before any tool's code runs: what there
    is by then isn't a tool's."""

    def __init__(self) -> None:
        self.own: set[threading.Thread] = set(threading.enumerate())
        self._programs = self._running()

    def none_at_work(self) -> bool:
        """Whether there is none."""
        for thread in threading.enumerate():
            if thread not in self.own and not thread.name.startswith(NOT_TOOLS):
                return False
        return all(self._programs.get(pid) == start for pid, start in self._running().items())

    @staticmethod
    def _running() -> Known:
        pid = os.getpid()
        return others_than(pid, descendants({pid: started(pid)}))


class CallWork:
    """Of one call. ``harmless``: what goes on of it past its time may. ``over``: its own code has come to its end. Parts are
    noted on the loop and read anywhere."""

    def __init__(
        self, strangers: Strangers, grant: str, stop: Callable[[], None], *, until_s: float, harmless: bool
    ) -> None:
        self._strangers = strangers
        self.grant = grant
        self.stop = stop
        self.until_s = until_s
        self.harmless = harmless
        self.over = False
        self._parts: list[_Part] = []
        self._room = PARTS_KEPT

    def note(self, part: _Part) -> None:
        """It belongs to this call."""
        if len(self._parts) >= self._room:
            self._parts = [it for it in self._parts if not it.done()]
            self._room = PARTS_KEPT + 2 * len(self._parts)
        self._parts.append(part)

    def cancel(self) -> None:
        """Ask its tasks to end, those too that the call had shielded. On their loop."""
        for part in list(self._parts):
            if isinstance(part, asyncio.Task) and not part.done():
                part.cancel()

    def tasks_left(self) -> list[asyncio.Task[Any]]:
        """Of the loop that this is called on."""
        return [it for it in self._parts if isinstance(it, asyncio.Task) and not it.done()]

    @property
    def quiet(self) -> bool:
        """Whether nothing goes on of what is known to be its own, or it may."""
        return self.harmless or (self.over and all(it.done() for it in list(self._parts)))

    def ended(self) -> bool:
        """Whether nothing of it goes on for sure, or it may."""
        return self.harmless or (self.quiet and self._strangers.none_at_work())


CURRENT: Final[ContextVar[CallWork | None]] = ContextVar("boundloop_call", default=None)
"""The call whose code runs: tasks inherit it."""


class TrackedThreads(ThreadPoolExecutor):
    """A loop's default executor (``asyncio.to_thread``, look-ups of names) that knows for which call each thread works."""

    def __init__(self, strangers: Strangers) -> None:
        super().__init__(
            THREADS_MAX, "tool-thread", initializer=lambda: strangers.own.add(threading.current_thread())
        )

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See ``ThreadPoolExecutor``."""
        future = super().submit(fn, *args, **kwargs)
        work = CURRENT.get()
        if work is not None:
            work.note(future)
        return future


def track(loop: asyncio.AbstractEventLoop, strangers: Strangers) -> None:
    """From now on what is started on this loop is noted with the call that started it."""
    inner = loop.get_task_factory()

    def made(
        on: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Future[Any]:
        task = asyncio.Task(work, loop=on, **options) if inner is None else inner(on, work, **options)
        call = CURRENT.get()
        if call is not None:
            call.note(task)
        return task

    factory: Any = made  # options differ between versions of Python
    loop.set_task_factory(factory)
    loop.set_default_executor(TrackedThreads(strangers))


class LatestEnds:
    """The calls at work, and a thread that ends this process (``end``) when one is past its ``until_s`` on the monotonic clock
    and isn't harmless. It needs nothing of the loop, of the network or of whoever sent the call."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        self._live: set[CallWork] = set()
        self._lock = threading.Lock()
        self._some = threading.Event()
        threading.Thread(target=self._look, name="latest-ends", daemon=True).start()

    def expect(self, work: CallWork) -> None:
        """It begins."""
        with self._lock:
            self._live.add(work)
        self._some.set()

    def forget(self, work: CallWork) -> None:
        """It has ended, or may go on."""
        with self._lock:
            self._live.discard(work)

    def under(self, grants: frozenset[str]) -> list[CallWork]:
        """Those that these leases have at work."""
        with self._lock:
            return [it for it in self._live if it.grant in grants]

    def _look(self) -> None:
        pause = threading.Event()
        while True:
            self._some.wait()
            pause.wait(LOOK_S)
            now = time.monotonic()
            with self._lock:
                due = [it for it in self._live if it.until_s <= now]
                self._live.difference_update(due)
                if not self._live:
                    self._some.clear()
            if not all(it.ended() for it in due):
                self._end()
