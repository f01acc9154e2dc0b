"""An event loop on a thread of its own, and calls into it from other threads and other loops.

Nobody is left waiting when the loop stops: what hasn't ended by then is cancelled, and its caller is told ``closed``.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, Final, Generic, TypeVar

from ..runtime.errors import CallerError, StoreError

T = TypeVar("T")
STOP_TIMEOUT_S: Final = 30.0
_LAST_TURNS: Final = 20
"""Turns of the loop that cancelled work gets to tidy up."""


class LoopThread:
    """Started when made."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waited_for: set[_HandedOver[Any]] = set()
        self._not_begun: set[Coroutine[Any, Any, Any]] = set()
        self._stopped = False
        self._thread = threading.Thread(target=loop.run_forever, name="boundloop", daemon=True)
        self._thread.start()

    def is_here(self) -> bool:
        """Whether the caller is on this thread, where blocking would block everything."""
        return threading.current_thread() is self._thread

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run it on the loop and block for what it gives. Raises ``CallerError`` on the loop's own thread,
        ``StoreError`` (``closed``) if the loop has stopped or stops meanwhile, ``TimeoutError``."""
        if self.is_here():
            work.close()
            raise own_loop()
        called = _Called(work, self)
        self._hand_over(called, work)
        try:
            return called.future.result(timeout_s)
        except concurrent.futures.CancelledError:
            if self._stopped:
                raise closed() from None
            raise
        except BaseException:
            called.cancel()
            raise
        finally:
            self.forget(called)

    async def call_from(self, work: Coroutine[Any, Any, T]) -> T:
        """The same from a coroutine of any loop."""
        awaited = _Awaited(work, self)
        self._hand_over(awaited, work)
        try:
            return await awaited.answer
        except asyncio.CancelledError:
            task = asyncio.current_task()
            awaited.cancel()
            if self._stopped and (task is None or not task.cancelling()):
                raise closed() from None
            raise
        finally:
            self.forget(awaited)

    def _hand_over(self, handed: _HandedOver[T], work: Coroutine[Any, Any, T]) -> None:
        self._not_begun.add(work)
        try:
            self.loop.call_soon_threadsafe(handed.start)
        except RuntimeError:
            self._not_begun.discard(work)
            work.close()
            raise closed() from None
        self._waited_for.add(handed)
        if self._stopped:
            handed.give_up()  # it came when the loop had turned for the last time, or will not begin it
            if not self._thread.is_alive():
                self._close_not_begun()  # ``stop`` may have done so before it came

    def begins(self, work: Coroutine[Any, Any, Any]) -> bool:
        """On the loop, when it is this work's turn. Whatever began before that the loop cancels as it winds up; what would
        begin now might miss it."""
        self._not_begun.discard(work)
        return not self._stopped

    def _close_not_begun(self) -> None:
        """The loop has turned for the last time: what it didn't begin it never will."""
        for work in tuple(self._not_begun):
            self._not_begun.discard(work)
            work.close()

    def forget(self, handed: _HandedOver[Any]) -> None:
        """Nobody waits for it any more."""
        self._waited_for.discard(handed)

    def stop(self) -> None:
        """End the loop and the thread. Whatever is still under way is cancelled."""
        self.loop.call_soon_threadsafe(lambda: self.loop.create_task(self._wind_up()))
        self._thread.join(STOP_TIMEOUT_S)
        self._stopped = True
        for handed in tuple(self._waited_for):
            handed.give_up()
        if not self._thread.is_alive():
            self._close_not_begun()
            self.loop.close()

    async def _wind_up(self) -> None:
        self._stopped = True
        try:
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task():
                    task.cancel()
            for _ in range(_LAST_TURNS):
                await asyncio.sleep(0)
        finally:
            self.loop.stop()


class _HandedOver(ABC, Generic[T]):
    """Work on one loop whose answer is waited for elsewhere."""

    __slots__ = ("_task", "_thread", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], thread: LoopThread) -> None:
        self._work: Coroutine[Any, Any, T] = work
        self._thread = thread
        self._task: asyncio.Task[T] | None = None

    def start(self) -> None:
        """On the loop that works."""
        if not self._thread.begins(self._work) or self.is_over():
            self._work.close()
            self.give_up()
            return
        self._task = self._thread.loop.create_task(self._work)
        self._task.add_done_callback(self.answer_with)

    def cancel(self) -> None:
        """From where it was waited for, and no more: the work is cancelled, wherever it is."""
        self.give_up()
        with contextlib.suppress(RuntimeError):  # the loop that works is closed, and has cancelled it
            self._thread.loop.call_soon_threadsafe(self._cancel_work)

    def _cancel_work(self) -> None:
        if self._task is not None:
            self._task.cancel()

    @abstractmethod
    def is_over(self) -> bool:
        """Whether nobody waits any more."""

    @abstractmethod
    def answer_with(self, task: asyncio.Task[T]) -> None:
        """On the loop that works: what came of it, which counts as seen also if nobody waits any more."""

    @abstractmethod
    def give_up(self) -> None:
        """From any thread: there will be no answer."""


class _Called(_HandedOver[T]):
    """A thread blocks for it."""

    __slots__ = ("future",)

    def __init__(self, work: Coroutine[Any, Any, T], thread: LoopThread) -> None:
        super().__init__(work, thread)
        self.future: concurrent.futures.Future[T] = concurrent.futures.Future()

    def is_over(self) -> bool:
        return self.future.done()

    def answer_with(self, task: asyncio.Task[T]) -> None:
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # nobody waits any more
            if task.cancelled():
                self.future.cancel()
            elif (error := task.exception()) is not None:
                self.future.set_exception(error)
            else:
                self.future.set_result(task.result())

    def give_up(self) -> None:
        self.future.cancel()


class _Awaited(_HandedOver[T]):
    """A coroutine of another loop awaits it. Two loops need no lock between them, so this costs half of what a future of
    threads does, on each call into a Runtime."""

    __slots__ = ("answer",)

    def __init__(self, work: Coroutine[Any, Any, T], thread: LoopThread) -> None:
        super().__init__(work, thread)
        self.answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def is_over(self) -> bool:
        return self.answer.done()

    def answer_with(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # seen, also if nobody waits any more
        try:
            self.answer.get_loop().call_soon_threadsafe(self._tell, task)
        except RuntimeError:
            self._thread.forget(self)  # the loop that waited is closed, and will not do it

    def _tell(self, task: asyncio.Task[T]) -> None:
        answer = self.answer
        if answer.done():
            return
        if task.cancelled():
            answer.cancel()
        elif (error := task.exception()) is not None:
            answer.set_exception(error)
        else:
            answer.set_result(task.result())

    def give_up(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop that waited is closed
            self.answer.get_loop().call_soon_threadsafe(self.answer.cancel)


def closed() -> StoreError:
    """What a call into a stopped loop raises."""
    return StoreError("closed", "the Runtime is closed")


def own_loop() -> CallerError:
    """What a blocking call on the loop's own thread raises."""
    return CallerError("own_loop", "sync methods can't be called on the Runtime's own loop; use rt.aio")
