"""Many runs as one batch: ``Runtime.map``. Each row is a run of its own, and no row fails another."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from ..runtime.errors import BoundloopError, DeclarationError, Overloaded
from .result import Result
from .run_options import StartOptions

if TYPE_CHECKING:
    from .embedded import Embedded

PARALLEL_DEFAULT: Final = 256
PARALLEL_MAX: Final = 10_000
WINDOW: Final = 4
"""A slow row holds up its successors' answers, not their work: so many times ``parallel`` rows are read ahead."""

OVERLOADED_TRIES: Final = 600
"""How often a row whose start was refused for want of room is started again, a second apart."""


@dataclass(frozen=True, slots=True)
class Row:
    """An input with options of its own, which come before those of the batch: ``operation_id``, ``run_id``, …"""

    input: str
    options: StartOptions = field(default_factory=lambda: cast("StartOptions", {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """What became of one row. ``index`` counts from 0. Exactly one of ``result`` and ``error`` is given; ``run_id`` is
    empty if the run was never begun."""

    index: int
    input: str
    run_id: str
    result: Result | None
    error: BaseException | None

    @property
    def completed(self) -> bool:
        """Whether the row's run ended in success."""
        return self.result is not None and self.result.completed


async def mapped(
    embedded: Embedded, inputs: Iterable[str | Row], parallel: int, options: StartOptions
) -> AsyncGenerator[Mapped]:
    """See ``Runtime.map``. Inputs are read as they are needed."""
    if type(parallel) is not int or not 1 <= parallel <= PARALLEL_MAX:
        raise DeclarationError("option_value", f"must be between 1 and {PARALLEL_MAX}", path="parallel")
    under_way: deque[asyncio.Task[Mapped]] = deque()
    room = asyncio.Semaphore(parallel)
    try:
        for index, given in enumerate(inputs):
            row = given if isinstance(given, Row) else Row(given)
            under_way.append(asyncio.create_task(_one(embedded, index, row, options, room)))
            while len(under_way) >= parallel * WINDOW:
                yield await under_way.popleft()
        while under_way:
            yield await under_way.popleft()
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


async def _one(
    embedded: Embedded, index: int, row: Row, options: StartOptions, room: asyncio.Semaphore
) -> Mapped:
    async with room:
        return await _alone(embedded, index, row, options)


async def _alone(embedded: Embedded, index: int, row: Row, options: StartOptions) -> Mapped:
    run_id = ""
    given = cast("StartOptions", {"on_stop": "end", **options, **row.options})
    try:
        run_id = await _started(embedded, row.input, given)
        result = await embedded.result(run_id, None, "rest")
    except BoundloopError as error:
        return Mapped(index=index, input=row.input, run_id=run_id, result=None, error=error)
    return Mapped(index=index, input=row.input, run_id=run_id, result=result, error=None)


async def _started(embedded: Embedded, input: str, options: StartOptions) -> str:
    """A full admission queue makes a row wait, within bounds; it doesn't lose it."""
    for _ in range(OVERLOADED_TRIES):
        try:
            return await embedded.start(input, options, dense=True)
        except Overloaded as error:
            await asyncio.sleep(error.retry_after_ms / 1_000)
    return await embedded.start(input, options, dense=True)
