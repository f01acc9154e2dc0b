"""The scripted model: plays a script, always the same, and says how often it was asked.

It is a product, not a test double that happens to ship: an application tests its tools, policy and limits with it,
without network, cost or chance. The answer to a request depends on its turn and attempt alone (and on its items, where
a function answers), so a run that is carried on by another process meets the same model.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from ..runtime.errors import DeclarationError
from ..runtime.model import ModelInput, ModelTurn, Usage
from ..runtime.prices import FREE, Price
from ..runtime.side_bounds import SideBounds, side_bounds
from .port import CallPreparing, ProgressSink, TextDelta
from .script import SCRIPT_BYTES_MAX, Script, ScriptedTurn, check_entry, read_script, write_script

USAGE_DEFAULT: Final = Usage(100, 20)
DELTA_CHARS_DEFAULT: Final = 16

Answer: TypeAlias = "ScriptedTurn | ModelTurn"
TurnFor: TypeAlias = "Callable[[ModelInput], Answer]"
Entry: TypeAlias = "ScriptedTurn | ModelTurn | Sequence[Answer] | TurnFor"
Prepared: TypeAlias = "Answer | tuple[Answer, ...] | TurnFor"
SleepMs: TypeAlias = "Callable[[int], Awaitable[None]]"


async def real_sleep_ms(ms: int) -> None:
    """The loop's own time."""
    await asyncio.sleep(ms / 1_000)


class Gate:
    """Holds answers back until it is opened. Usable from any thread; once open it stays open."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._open = False
        self._reached = threading.Event()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def wait_reached(self, timeout_s: float) -> bool:
        """Block until a request stands at this gate; False if none came in time."""
        return self._reached.wait(timeout_s)

    def open(self) -> None:
        """Let everyone through, now and later."""
        with self._lock:
            self._open = True
            waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, future)

    async def passed(self) -> None:
        """Wait until the gate is open."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._reached.set()
            if self._open:
                return
            waiter = (loop, loop.create_future())
            self._waiters.append(waiter)
        try:
            await waiter[1]
        finally:
            with self._lock:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class ScriptedModel:
    """A model adapter that plays ``turns``.

    ``turns``: one entry a turn (turn 1 gets the first), or one function that answers every request. An entry is a turn,
    a sequence of turns by attempt, or a function of the request (what it raises is a ``script_failed`` error of the
    model and stands in ``last_error``). A request beyond the script gets ``model_error`` with code ``script_exhausted``:
    a script that is too short never looks like success.
    ``usage`` is reported where a turn says nothing, None for "never reported". ``sleep_ms`` is the clock of late answers
    and of time-outs while an answer is held back. ``record_max``: that many of the newest requests are kept in ``recorded``.
    ``side``: the side attempts that it declares (``routed`` plays them), at ``price`` unless it has one of its own.
    ``requests`` counts every request. Raises ``DeclarationError`` for turns that mean nothing.
    """

    family = "scripted"
    inline = True
    """Answers in its first step unless the script holds it back, so a host needs no task for it."""

    def __init__(
        self,
        turns: Iterable[Entry] | TurnFor,
        *,
        model: str = "scripted-1",
        price: Price | None = FREE,
        revision: str = "1",
        usage: Usage | None = USAGE_DEFAULT,
        delta_chars: int = DELTA_CHARS_DEFAULT,
        sleep_ms: SleepMs = real_sleep_ms,
        record_max: int = 0,
        side: SideBounds | None = None,
    ) -> None:
        if delta_chars < 1:
            raise DeclarationError("delta_chars", "at least 1", path="delta_chars")
        self.model = model
        self.price = price
        self.revision = revision
        self.side_attempts_max = self.side_input_tokens_max = self.side_output_tokens_max = 0
        self.side_price = price
        if side is not None:
            side_bounds(side.attempts_max, side.input_tokens_max, side.output_tokens_max, side.price)
            self.side_attempts_max = side.attempts_max
            self.side_input_tokens_max = side.input_tokens_max
            self.side_output_tokens_max = side.output_tokens_max
            self.side_price = price if side.price is None else side.price
        self._side = side
        self.requests = 0
        self.recorded: deque[ModelInput] = deque(maxlen=record_max)
        self.last_error: Exception | None = None
        self._usage = usage
        self._delta_chars = delta_chars
        self._sleep_ms = sleep_ms
        self._gates: dict[str, Gate] = {}
        self._answer_all = turns if callable(turns) else None
        self._entries: tuple[Entry, ...] = () if callable(turns) else tuple(turns)
        self._ready: list[Prepared] = [
            self._prepared(number, entry) for number, entry in enumerate(self._entries, 1)
        ]

    @classmethod
    def from_script(cls, script: Script, *, sleep_ms: SleepMs = real_sleep_ms) -> ScriptedModel:
        """The model of a script that was read."""
        return cls(script.turns, model=script.model, usage=script.usage, side=script.side, sleep_ms=sleep_ms)

    @classmethod
    def from_file(cls, path: str | Path, *, sleep_ms: SleepMs = real_sleep_ms) -> ScriptedModel:
        """Read a script strictly. Raises ``DeclarationError`` that names file and place."""
        name = str(path)
        try:
            with open(path, "rb") as file:
                data = file.read(SCRIPT_BYTES_MAX + 1)
        except OSError as error:
            raise DeclarationError("script_file", error.strerror or "can't be read", path=name) from error
        return cls.from_script(read_script(data, name=name), sleep_ms=sleep_ms)

    def dump(self) -> bytes:
        """The script as a file for ``from_file``. Raises ``DeclarationError`` where an entry is code or a finished
        ``ModelTurn``, which a file can't say."""
        if self._answer_all is not None:
            raise DeclarationError("script_not_data", "a function can't be written to a file", path="turns")
        turns: list[ScriptedTurn | tuple[ScriptedTurn, ...]] = []
        for number, entry in enumerate(self._entries, 1):
            if isinstance(entry, ScriptedTurn):
                turns.append(entry)
                continue
            answers = () if isinstance(entry, ModelTurn) or callable(entry) else tuple(entry)
            data = tuple(turn for turn in answers if isinstance(turn, ScriptedTurn))
            if not data or len(data) < len(answers):
                raise DeclarationError("script_not_data", "this entry is no data", path=f"turn {number}")
            turns.append(data)
        return write_script(Script(turns=tuple(turns), model=self.model, usage=self._usage, side=self._side))

    def gate(self, name: str) -> Gate:
        """The gate of that name; made on first use."""
        return self._gates.setdefault(name, Gate(name))

    async def request(
        self, request: ModelInput, *, timeout_ms: int, progress: ProgressSink | None = None
    ) -> ModelTurn:
        """The scripted answer. Nothing is awaited unless the script holds the answer back."""
        self.requests += 1
        if self.recorded.maxlen:
            # The history goes on growing in place; what is kept is what was asked.
            self.recorded.append(msgspec.structs.replace(request, items=tuple(request.items)))
        answer = self._answer(request)
        if isinstance(answer, ModelTurn):
            if progress is not None:
                self._show(answer, request, progress)
            return answer
        turn = answer.as_turn(request.turn, model=self.model, usage=self._usage)
        if (answer.late_ms or answer.gate) and not await self._held_back(answer, timeout_ms):
            turn = ModelTurn(
                finish="transport_broken",
                error_code="timeout",
                safe_message="no answer in time",
                side_attempts=None,
            )
        if progress is not None:
            self._show(turn, request, progress)
        return turn

    async def close(self) -> None:
        """Nothing to give back."""

    # --- choosing --------------------------------------------------------------------------------------------------

    def _prepared(self, number: int, entry: Entry) -> Prepared:
        """The entry with all that doesn't depend on the request done."""
        if isinstance(entry, ScriptedTurn | ModelTurn):
            return self._finished(number, entry)
        if callable(entry):
            return entry
        prepared = tuple(self._finished(number, turn) for turn in entry)
        if not prepared:
            raise DeclarationError(
                "script_attempts", "a list of attempts needs a turn", path=f"turn {number}"
            )
        return prepared[0] if len(prepared) == 1 else prepared

    def _finished(self, number: int, answer: Answer) -> Answer:
        if isinstance(answer, ModelTurn):
            return answer
        check_entry(answer, path=f"turn {number}")
        if answer.late_ms or answer.gate:
            return answer
        return answer.as_turn(number, model=self.model, usage=self._usage)

    def _answer(self, request: ModelInput) -> Answer:
        if self._answer_all is not None:
            return self._called(self._answer_all, request)
        if not 1 <= request.turn <= len(self._ready):
            return ModelTurn(
                finish="model_error",
                error_code="script_exhausted",
                safe_message=f"the script has {len(self._ready)} turns",
                retryable=False,
                usage=Usage(0, 0),
            )
        found = self._ready[request.turn - 1]
        if isinstance(found, ScriptedTurn | ModelTurn):
            return found
        if callable(found):
            return self._called(found, request)
        return found[min(request.attempt, len(found)) - 1]

    def _called(self, function: TurnFor, request: ModelInput) -> Answer:
        try:
            return self._finished(request.turn, function(request))
        except Exception as error:  # noqa: BLE001  the application's code raises what it likes
            self.last_error = error
            return ModelTurn(
                finish="model_error",
                error_code="script_failed",
                safe_message=type(error).__name__,
                retryable=False,
                usage=Usage(0, 0),
            )

    # --- playing ---------------------------------------------------------------------------------------------------

    async def _held_back(self, answer: ScriptedTurn, timeout_ms: int) -> bool:
        """True once the answer may go out; False if the time for it was over first."""
        late_ms = min(answer.late_ms, timeout_ms)
        if late_ms:
            await self._sleep_ms(late_ms)
        if answer.late_ms > timeout_ms:
            return False
        if not answer.gate:
            return True
        return await _first(self.gate(answer.gate).passed(), self._sleep_ms(timeout_ms - late_ms))

    def _show(self, turn: ModelTurn, request: ModelInput, progress: ProgressSink) -> None:
        number, attempt, size = request.turn, request.attempt, self._delta_chars
        for offset in range(0, len(turn.text), size):
            progress(TextDelta(number, attempt, offset, turn.text[offset : offset + size]))
        for index, made in enumerate(turn.calls):
            progress(CallPreparing(number, attempt, index, made.name))


async def _first(wanted: Awaitable[None], timer: Awaitable[None]) -> bool:
    """Whether ``wanted`` came before the timer."""
    tasks = (asyncio.ensure_future(wanted), asyncio.ensure_future(timer))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].done()
    finally:
        for task in tasks:
            task.cancel()
