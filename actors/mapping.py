"""Many runs as one batch: ``Runtime.map``. Each row is a run of its own, and no row fails another."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ..runtime.errors import DeclarationError, Overloaded
from .result import Result
from .run_options import StartOptions, begun_again

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
    """An input with options of ``Runtime.start`` of its own, which come before those of the batch: ``operation_id``,
    ``run_id``, …"""

    input: str
    options: Mapping[str, object] = field(default_factory=dict[str, object])


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


class Batch:
    """See ``Runtime.map``. Made anywhere; ``full``, ``ready`` and ``left`` may be asked on any thread, the coroutines belong
    on the Runtime's loop. Raises ``DeclarationError`` for ``parallel`` out of bounds, and for options that no row could be
    started with."""

    def __init__(self, embedded: Embedded, parallel: int, options: StartOptions) -> None:
        if type(parallel) is not int or not 1 <= parallel <= PARALLEL_MAX:
            raise DeclarationError("option_value", f"must be between 1 and {PARALLEL_MAX}", path="parallel")
        self._embedded = embedded
        self._options = begun_again({"on_stop": "end", **options})
        self._tasks_max = parallel * WINDOW
        self._room = asyncio.Semaphore(parallel)
        self._under_way: deque[asyncio.Task[Mapped]] = deque()
        self._count = 0
        embedded.check_options(self._options)

    @property
    def full(self) -> bool:
        """Whether an outcome has to be taken before the next row is added."""
        return len(self._under_way) >= self._tasks_max

    @property
    def ready(self) -> bool:
        """Whether the next outcome is there."""
        return bool(self._under_way) and self._under_way[0].done()

    @property
    def left(self) -> bool:
        """Whether there are outcomes to come."""
        return bool(self._under_way)

    async def add(self, given: str | Row) -> None:
        """Begin a row as soon as there is room."""
        row = given if isinstance(given, Row) else Row(given)
        self._under_way.append(asyncio.create_task(self._one(self._count, row)))
        self._count += 1

    async def take(self) -> Mapped:
        """The next outcome, in the order of the rows."""
        mapped = await asyncio.shield(self._under_way[0])
        self._under_way.popleft()
        return mapped

    async def close(self) -> None:
        """Nobody waits for what is left: no further row is begun. Runs that were begun go on."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        self._under_way.clear()

    async def _one(self, index: int, row: Row) -> Mapped:
        async with self._room:
            return await self._alone(index, row)

    async def _alone(self, index: int, row: Row) -> Mapped:
        run_id = ""
        result: Result | None = None
        error: Exception | None = None
        try:
            run_id = await self._started(row)
            result = await self._embedded.result(run_id, None, "rest")
        except Exception as raised:  # noqa: BLE001  whatever becomes of one row is that row's
            error = raised
        return Mapped(index=index, input=row.input, run_id=run_id, result=result, error=error)

    async def _started(self, row: Row) -> str:
        """A full admission queue makes a row wait, within bounds; it doesn't lose it."""
        options = begun_again({**self._options, **row.options})
        for _ in range(OVERLOADED_TRIES):
            try:
                return await self._embedded.start(row.input, options, dense=True)
            except Overloaded as error:
                await asyncio.sleep(error.retry_after_ms / 1_000)
        return await self._embedded.start(row.input, options, dense=True)
