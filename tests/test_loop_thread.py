"""Calls into the Runtime's loop from coroutines of other loops: each is answered, cancelled or told, and none is left."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
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
    return asyncio.run(thread.call_from(work))


def test_a_coroutine_gets_what_the_work_gives_or_raises(thread: LoopThread) -> None:
    async def gives() -> int:
        return 7

    async def raises() -> int:
        raise KeyError("why")

    assert awaited(thread, gives()) == 7
    with pytest.raises(KeyError, match="why"):
        awaited(thread, raises())


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


def test_work_of_a_waiter_that_was_cancelled_before_it_began_never_begins(thread: LoopThread) -> None:
    """The loop is held while the waiter comes and goes."""
    held, go_on = threading.Event(), threading.Event()
    work = Work()

    def hold() -> None:
        held.set()
        go_on.wait(STUCK_S)

    async def main() -> None:
        thread.loop.call_soon_threadsafe(hold)
        await asyncio.to_thread(held.wait, STUCK_S)
        waiting = asyncio.ensure_future(thread.call_from(work.run()))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go_on.set()

    asyncio.run(main())
    thread.call(asyncio.sleep(0), STUCK_S)  # behind it
    assert not work.begun.is_set()


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
    assert not thread._awaited
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]  # it is what this test is about


def test_a_coroutine_whose_work_is_on_the_loop_when_it_stops_is_told(thread: LoopThread) -> None:
    work = Work()
    with ThreadPoolExecutor(max_workers=1) as pool:
        waiting = pool.submit(awaited, thread, work.run())
        assert work.begun.wait(STUCK_S)
        thread.stop()
        with pytest.raises(StoreError, match="closed"):
            waiting.result(STUCK_S)
    assert work.ended == "cancelled"


def test_a_coroutine_that_comes_when_the_loop_is_closed_is_refused(thread: LoopThread) -> None:
    thread.stop()
    work = Work()
    with pytest.raises(StoreError, match="closed"):
        awaited(thread, work.run())
    assert not work.begun.is_set()


def test_a_coroutine_that_comes_between_the_last_turn_and_the_end_is_told_and_never_begins(
    thread: LoopThread,
) -> None:
    """As ``stop`` has it for a moment: the loop has stopped, and isn't closed yet."""
    thread.loop.call_soon_threadsafe(thread.loop.stop)
    thread._thread.join(STUCK_S)
    thread._stopped = True
    work = Work()
    with pytest.raises(StoreError, match="closed"):
        awaited(thread, work.run())
    assert not work.begun.is_set()
    assert not thread._awaited
    thread.loop.close()


def test_work_that_comes_while_the_loop_winds_up_never_begins(thread: LoopThread) -> None:
    """It might begin in the loop's last turn, when nothing is cancelled any more."""
    winding_up, go_on = threading.Event(), threading.Event()
    work = Work()

    async def tidies() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            winding_up.set()
            go_on.wait(STUCK_S)  # one long turn of the loop
            raise

    async def main() -> None:
        thread.loop.call_soon_threadsafe(lambda: tasks.append(thread.loop.create_task(tidies())))
        await asyncio.to_thread(thread.call, asyncio.sleep(0))
        stopping = asyncio.create_task(asyncio.to_thread(thread.stop))
        await asyncio.to_thread(winding_up.wait, STUCK_S)
        waiting = asyncio.create_task(thread.call_from(work.run()))
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(StoreError, match="closed"):
            await waiting
        await stopping

    tasks: list[asyncio.Task[None]] = []
    asyncio.run(main())
    assert not work.begun.is_set()
