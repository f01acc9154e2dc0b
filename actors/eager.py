"""The first step of trusted, non-blocking coroutines, taken at once instead of in a task of their own.

A task costs more than a whole decision. What is declared ``inline`` (a tool, the scripted model) mostly ends in its first
step; if it doesn't, the rest goes on as a task. Until its first await such a coroutine runs in the driver's task, so it
must not use ``asyncio.timeout`` or ask for the current task before that.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Finished(Generic[T]):
    """It ended in its first step."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value


class _Resumed(Generic[T]):
    __slots__ = ("coroutine", "waited")

    def __init__(self, coroutine: Coroutine[Any, Any, T], waited: object) -> None:
        self.coroutine = coroutine
        self.waited = waited

    def __await__(self) -> Generator[Any, Any, T]:
        waited = self.waited
        while True:
            try:
                yield waited
            except BaseException as error:
                try:
                    waited = self.coroutine.throw(error)
                except StopIteration as done:
                    return done.value  # type: ignore[no-any-return]  # the coroutine's own value
            else:
                try:
                    waited = self.coroutine.send(None)
                except StopIteration as done:
                    return done.value  # type: ignore[no-any-return]  # the coroutine's own value


async def _rest(resumed: _Resumed[T]) -> T:
    return await resumed


def first_step(coroutine: Coroutine[Any, Any, T]) -> Finished[T] | Coroutine[Any, Any, T]:
    """Run to the first wait. Returns the value, or the coroutine that does the rest in a task; raises what it raised."""
    try:
        waited = coroutine.send(None)
    except StopIteration as done:
        return Finished(done.value)
    return _rest(_Resumed(coroutine, waited))
