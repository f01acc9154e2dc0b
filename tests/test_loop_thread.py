"""Calls into the Runtime's loop from other threads and other loops: each is answered, cancelled or told, and none is left."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any

import pytest

from boundloop.actors.loop_thread import LoopThread
from boundloop.runtime.errors import StoreError

STUCK_S = 30.0


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    made = LoopThread(asyncio.new_event_loop())
    yield made
    if not made.loop.is_closed():
        made.stop()


class Work:
    """Work that waits until it is let go, and says how it ended."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.over = threading.Event()
        self.ended = ""
        self._go: asyncio.Event | None = None

    async def run(self) -> str:
        self._go = asyncio.Event()
        self.begun.set()
        try:
            await self._go.wait()
            self.ended = "done"
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
        finally:
            self.over.set()
        return self.ended

    def let_go(self, thread: LoopThread) -> None:
        go = self._go
        assert go is not None
        thread.loop.call_soon_threadsafe(go.set)


async def going_on() -> str:
    return "goes on"


def awaited(thread: LoopThread, work: Coroutine[Any, Any, Any]) -> Any:
    async def main() -> Any:
        async with asyncio.timeout(STUCK_S):
            return await thread.call_from(work)

    return asyncio.run(main())


def blocking(thread: LoopThread, work: Coroutine[Any, Any, Any]) -> Any:
    return thread.call(work, STUCK_S)


How = Callable[[LoopThread, Coroutine[Any, Any, Any]], Any]
either_way = pytest.mark.parametrize("how", [awaited, blocking])


def held(thread: LoopThread, first: Callable[[], object] = bool) -> threading.Event:
    """The loop stands still until this is set; ``first`` is done before, in the same turn."""
    stands, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        first()
        stands.set()
        go_on.wait(STUCK_S)

    thread.loop.call_soon_threadsafe(hold)
    assert stands.wait(STUCK_S)
    return go_on


class Noted(set[Any]):
    """Says when something is added."""

    def __init__(self) -> None:
        super().__init__()
        self.added = threading.Event()

    def add(self, element: Any, /) -> None:
        super().add(element)
        self.added.set()


def handed_over(
    pool: ThreadPoolExecutor, how: How, thread: LoopThread, work: Coroutine[Any, Any, Any]
) -> Future[Any]:
    """By another thread, which has done so."""
    thread._waited_for = noted = Noted()
    waiting = pool.submit(how, thread, work)
    assert noted.added.wait(STUCK_S)
    return waiting


def called_until(begun: threading.Event, thread: LoopThread, work: Coroutine[Any, Any, Any]) -> None:
    """A blocking call whose time is over when its work has begun."""

    class Impatient(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            assert timeout == STUCK_S
            assert begun.wait(STUCK_S)
            raise TimeoutError

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("concurrent.futures.Future", Impatient)
        with pytest.raises(TimeoutError):
            blocking(thread, work)


def stopped_before_closing(thread: LoopThread) -> None:
    """As ``stop`` has it for a moment: the loop has turned for the last time, and isn't closed yet."""
    thread.loop.call_soon_threadsafe(thread.loop.stop)
    thread._thread.join(STUCK_S)
    thread._stopped = True


@either_way
def test_a_caller_gets_what_the_work_gives_or_raises(thread: LoopThread, how: How) -> None:
    async def gives() -> int:
        return 7

    async def raises() -> int:
        raise KeyError("why")

    async def is_cancelled() -> None:
        raise asyncio.CancelledError

    assert how(thread, gives()) == 7
    with pytest.raises(KeyError, match="why"):
        how(thread, raises())
    with pytest.raises((asyncio.CancelledError, CancelledError)):
        how(thread, is_cancelled())
    assert not thread._waited_for
    assert not thread._not_begun


def test_work_of_a_waiter_that_is_cancelled_is_cancelled_where_it_is(thread: LoopThread) -> None:
    work = Work()

    async def main() -> None:
        waiting = asyncio.ensure_future(thread.call_from(work.run()))
        await asyncio.to_thread(work.begun.wait, STUCK_S)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
    assert work.over.wait(STUCK_S)
    assert work.ended == "cancelled"


def test_work_of_a_thread_that_waits_no_longer_is_cancelled_where_it_is(thread: LoopThread) -> None:
    work = Work()
    called_until(work.begun, thread, work.run())
    thread.call(asyncio.sleep(0), STUCK_S)  # behind it
    assert work.ended == "cancelled"


def test_work_of_a_waiter_that_was_cancelled_before_it_began_never_begins(thread: LoopThread) -> None:
    """The loop is held while the waiter comes and goes."""
    work = Work()

    async def main() -> None:
        waiting = asyncio.ensure_future(thread.call_from(work.run()))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    go_on = held(thread)
    asyncio.run(main())
    go_on.set()
    thread.call(asyncio.sleep(0), STUCK_S)  # behind it
    assert not work.begun.is_set()


def test_work_whose_waiter_is_about_to_be_cancelled_never_begins(thread: LoopThread) -> None:
    """Its turn comes before the waiter has had the one in which it says so."""
    work = Work()

    async def main() -> None:
        waiting = asyncio.ensure_future(thread.call_from(work.run()))
        await asyncio.sleep(0)
        waiting.cancel()
        go_on.set()
        thread.call(asyncio.sleep(0), STUCK_S)  # behind the work, and the waiter's loop stands still
        with pytest.raises(asyncio.CancelledError):
            await waiting

    go_on = held(thread)
    asyncio.run(main())
    assert not work.begun.is_set()


def test_work_of_a_thread_that_left_before_it_began_never_begins(thread: LoopThread) -> None:
    work = Work()
    go_on = held(thread)
    with pytest.raises(TimeoutError):
        thread.call(work.run(), 0.01)
    go_on.set()
    thread.call(asyncio.sleep(0), STUCK_S)  # behind it
    assert not work.begun.is_set()


@pytest.mark.parametrize("ends", ["awaited", "blocking"])
def test_what_work_raises_when_nobody_waits_any_more_is_nobodys(thread: LoopThread, ends: str) -> None:
    """Else the loop would log it as never retrieved."""
    said: list[Any] = []
    thread.loop.set_exception_handler(lambda _loop, about: said.append(about))
    begun, over = threading.Event(), threading.Event()

    async def raises_when_cancelled() -> None:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            raise KeyError("why") from None
        finally:
            over.set()

    async def main() -> None:
        waiting = asyncio.ensure_future(thread.call_from(raises_when_cancelled()))
        await asyncio.to_thread(begun.wait, STUCK_S)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await asyncio.to_thread(over.wait, STUCK_S)
        await thread.call_from(asyncio.sleep(0))

    if ends == "awaited":
        asyncio.run(main())
    else:
        called_until(begun, thread, raises_when_cancelled())
        assert over.wait(STUCK_S)
        thread.call(asyncio.sleep(0), STUCK_S)
    gc.collect()
    assert said == []


def test_work_whose_waiter_has_no_loop_any_more_ends_all_the_same(thread: LoopThread) -> None:
    """A loop that is closed without cancelling its tasks can be told nothing; the work's loop goes on."""
    work = Work()
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(thread.call_from(work.run()))
    loop.run_until_complete(asyncio.sleep(0))
    assert work.begun.wait(STUCK_S)
    loop.close()
    work.let_go(thread)
    assert work.over.wait(STUCK_S)
    assert work.ended == "done"
    assert thread.call(going_on(), STUCK_S) == "goes on"
    assert not waiting.done()
    assert not thread._waited_for
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]  # it is what this test is about


@either_way
def test_a_caller_whose_work_is_on_the_loop_when_it_stops_is_told(thread: LoopThread, how: How) -> None:
    work = Work()
    with ThreadPoolExecutor(max_workers=1) as pool:
        waiting = pool.submit(how, thread, work.run())
        assert work.begun.wait(STUCK_S)
        thread.stop()
        with pytest.raises(StoreError, match="closed"):
            waiting.result(STUCK_S)
    assert work.ended == "cancelled"


@either_way
def test_a_caller_whose_work_does_not_end_with_the_loop_is_told_all_the_same(
    thread: LoopThread, how: How
) -> None:
    begun = threading.Event()
    tasks: list[asyncio.Task[Any] | None] = []

    async def goes_on() -> None:
        tasks.append(asyncio.current_task())
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()
        await asyncio.get_running_loop().create_future()

    with ThreadPoolExecutor(max_workers=1) as pool:
        waiting = pool.submit(how, thread, goes_on())
        assert begun.wait(STUCK_S)
        thread.stop()
        with pytest.raises(StoreError, match="closed"):
            waiting.result(STUCK_S)
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[union-attr]  # it is what this test is about


def test_a_waiter_that_is_cancelled_as_the_loop_winds_up_is_cancelled_and_not_told(
    thread: LoopThread,
) -> None:
    work = Work()

    async def main() -> None:
        waiting = asyncio.ensure_future(thread.call_from(work.run()))
        await asyncio.to_thread(work.begun.wait, STUCK_S)
        thread._stopped = True
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())


@either_way
def test_a_caller_that_comes_when_the_loop_is_closed_is_refused(thread: LoopThread, how: How) -> None:
    thread.stop()
    work = Work().run()
    with pytest.raises(StoreError, match="closed"):
        how(thread, work)
    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED
    assert not thread._not_begun


@either_way
def test_a_caller_that_comes_between_the_last_turn_and_the_end_is_told_and_its_work_never_begins(
    thread: LoopThread, how: How
) -> None:
    stopped_before_closing(thread)
    work = Work().run()
    with pytest.raises(StoreError, match="closed"):
        how(thread, work)
    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED
    assert not thread._waited_for
    thread.loop.close()


class SlowToEnd(asyncio.SelectorEventLoop):
    """A loop whose thread lives on for a while after its last turn."""

    def __init__(self) -> None:
        super().__init__()
        self.turned, self.go_on = threading.Event(), threading.Event()

    def run_forever(self) -> None:
        super().run_forever()
        self.turned.set()
        self.go_on.wait(STUCK_S)


@either_way
def test_work_that_comes_after_the_last_turn_is_closed_though_its_thread_lives(how: How) -> None:
    loop = SlowToEnd()
    thread = LoopThread(loop)
    work = Work().run()
    with ThreadPoolExecutor(max_workers=1) as pool:
        stopping = pool.submit(thread.stop)
        assert loop.turned.wait(STUCK_S)
        with pytest.raises(StoreError, match="closed"):
            how(thread, work)
        loop.go_on.set()
        stopping.result(STUCK_S)
    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED


@either_way
def test_work_whose_turn_would_come_after_the_last_is_closed(thread: LoopThread, how: How) -> None:
    """It is handed over in what turns out to be the last turn."""
    work = Work().run()
    go_on = held(thread, first=thread.loop.stop)
    with ThreadPoolExecutor(max_workers=1) as pool:
        waiting = handed_over(pool, how, thread, work)
        go_on.set()
        thread.stop()
        with pytest.raises(StoreError, match="closed"):
            waiting.result(STUCK_S)
    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED


@either_way
def test_work_handed_over_just_before_the_loop_winds_up_never_begins(thread: LoopThread, how: How) -> None:
    """Its turn comes behind the cancelling, so nothing would cancel it."""
    winding_up: list[asyncio.Task[None]] = []
    work = Work()
    coroutine = work.run()
    go_on = held(thread, first=lambda: winding_up.append(thread.loop.create_task(thread._wind_up())))
    with ThreadPoolExecutor(max_workers=1) as pool:
        waiting = handed_over(pool, how, thread, coroutine)
        assert not thread._stopped
        go_on.set()
        with pytest.raises(StoreError, match="closed"):
            waiting.result(STUCK_S)
    assert not work.begun.is_set()
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
    thread._thread.join(STUCK_S)
    thread.loop.close()


@either_way
def test_work_that_comes_while_the_loop_winds_up_never_begins(thread: LoopThread, how: How) -> None:
    """It might begin in the loop's last turn, when nothing is cancelled any more."""
    winding_up, go_on = threading.Event(), threading.Event()
    work = Work()
    coroutine = work.run()

    async def tidies() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            winding_up.set()
            go_on.wait(STUCK_S)  # one long turn of the loop
            raise

    tasks: list[asyncio.Task[None]] = []
    thread.loop.call_soon_threadsafe(lambda: tasks.append(thread.loop.create_task(tidies())))
    thread.call(asyncio.sleep(0), STUCK_S)
    with ThreadPoolExecutor(max_workers=1) as pool:
        stopping = pool.submit(thread.stop)
        assert winding_up.wait(STUCK_S)
        with pytest.raises(StoreError, match="closed"):
            how(thread, coroutine)
        go_on.set()
        stopping.result(STUCK_S)
    assert not work.begun.is_set()
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
