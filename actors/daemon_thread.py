"""Blocking application code on a thread of its own that never holds up the end of the process.

``asyncio.to_thread`` uses a pool whose threads the interpreter joins at exit: a check or a query that hangs would hang
the program with it. These threads are daemons, one a call; how many there are is bounded by what calls them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def on_daemon_thread(work: Callable[..., T], *args: Any, **keywords: Any) -> T:
    """Run ``work`` and return what it returns or raises. A caller that is cancelled leaves the thread to itself."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(value)
        else:
            done.set_exception(error)

    def body() -> None:
        value: Any = None
        raised: BaseException | None = None
        try:
            value = work(*args, **keywords)
        except BaseException as error:
            # A StopIteration can't be raised into a future.
            raised = RuntimeError("StopIteration") if isinstance(error, StopIteration) else error
        try:
            loop.call_soon_threadsafe(settle, value, raised)
        except RuntimeError:
            # The loop is closed: nobody waits any more.
            return

    threading.Thread(target=body, name="boundloop-application", daemon=True).start()
    return await done
