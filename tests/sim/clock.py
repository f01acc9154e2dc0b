"""An event loop without sockets, whose time jumps from timer to timer: one seed's whole world runs on it.

Nothing here waits for real, and nothing is asked of the system, so the order of everything is the order in which it
was scheduled. ``group_tasks`` tells whose task is whose: a crash ends one host's tasks and nobody else's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final

TURNS_MAX: Final = 4_000
"""Passes of one seed's loop; an ordinary seed has a few hundred. Something that never waits comes to an end here."""


class StandsStill(Exception):
    """No timer is left and nothing is ready, or something never waits: the world doesn't come to an end."""


class VirtualLoop(asyncio.BaseEventLoop):
    """``now_s`` counts from 0 and moves only when nothing is left to do at this moment."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.turns_left = TURNS_MAX
        self._selector = _Jump(self)
        self.set_task_factory(_task_of_its_group)

    def time(self) -> float:
        return self.now_s

    def _process_events(self, event_list: list[Any]) -> None:
        """Nothing outside ever happens."""

    def _write_to_self(self) -> None:
        """Nobody is asleep."""


class _Jump:
    """Stands where a loop has its selector: instead of waiting it moves the clock."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        self._loop.turns_left -= 1
        if self._loop.turns_left < 0:
            raise StandsStill(f"more than {TURNS_MAX} passes of the loop")
        if timeout is None:
            raise StandsStill("nothing is left to happen")
        if timeout > 0:
            self._loop.now_s += timeout
        return []


async def passed(seconds: float) -> None:
    """Virtual time goes by, for whoever awaits this."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    timer = loop.call_later(seconds, _over, over)
    try:
        await over
    finally:
        timer.cancel()


def _over(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Group:
    """The tasks of one process of the world, and the context that marks them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.context: Context = copy_context()
        self.context.run(_GROUP.set, self)

    def cancel(self) -> None:
        """End all of them, in the order in which they were made."""
        for task in list(self.tasks):
            task.cancel()

    def task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Something that this process does."""
        return asyncio.get_running_loop().create_task(work, context=self.context)


_GROUP: Final[ContextVar[Group | None]] = ContextVar("group", default=None)


def _task_of_its_group(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
    context: Context | None = None,
) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
    group = _GROUP.get() if context is None else context.get(_GROUP)
    if group is not None:
        group.tasks[task] = None
        task.add_done_callback(group.tasks.pop)
    return task
