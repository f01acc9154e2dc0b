"""What a run actor asks the process that made it, where no socket leads there: over calls that that process makes.

The owner keeps one call to the actor open (``Questions.next``), which is answered as soon as there is something to ask; the
answers go back in a call of their own. So it works between any two nodes and needs no actor beside the owner, and
an owner that asks no more tells the actor that it is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from ..eventstore.socket_protocol import Failure, error_of, failure_of
from ..runtime.errors import StoreError
from .places import Ask

OPEN_S: Final = 5.0
"""How long the owner's call waits for a question before it is made again."""

SILENCE_S: Final = 20.0
"""An owner that has no call open for so long is gone. It is far more than a busy one needs, and an actor that outlives its
owner does no harm: its epochs are valid, and it gets no place for a tool."""

WATCH_S: Final = 1.0
TOGETHER_MAX: Final = 200
"""Questions in one answer of the actor; the others follow in the next."""

PAUSE_S: Final = 0.2
"""Before a call is made again that Ray could not deliver."""


class Question(msgspec.Struct, frozen=True, array_like=True):
    """``number`` rises by one from question to question of an actor."""

    number: int
    kind: str
    payload: bytes


class Answered(msgspec.Struct, frozen=True, array_like=True):
    """The answer to the question of that number, or what the owner raised."""

    number: int
    answer: bytes = b""
    failure: Failure | None = None


_questions = msgspec.msgpack.Decoder(list[Question]).decode
_answers = msgspec.msgpack.Decoder(list[Answered]).decode
_encode = msgspec.msgpack.Encoder().encode


class Questions:
    """The actor's end. On one event loop."""

    def __init__(self) -> None:
        self._asked: dict[int, tuple[Question, asyncio.Future[bytes]]] = {}
        self._number = 0
        self._new = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._open = 0
        self._silent_since = self._loop.time()

    async def ask(self, kind: str, payload: bytes) -> bytes:
        """The owner's answer. Raises what the owner raised. It waits for as long as there is no answer: bound it."""
        self._number += 1
        question = Question(self._number, kind, payload)
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._asked[question.number] = question, answer
        self._new.set()
        try:
            return await answer
        finally:
            self._asked.pop(question.number, None)

    async def next(self, heard: int) -> bytes:
        """For the owner: encoded questions with numbers above ``heard``; none if there was none for ``OPEN_S``. One that an
        earlier call took along is given again if that call's answer didn't arrive."""
        self._open += 1
        try:
            while not (new := [one for one, _ in self._asked.values() if one.number > heard]):
                self._new.clear()
                try:
                    async with asyncio.timeout(OPEN_S):
                        await self._new.wait()
                except TimeoutError:
                    break
            return _encode(new[:TOGETHER_MAX])
        finally:
            self._open -= 1
            self._silent_since = self._loop.time()

    def answered(self, data: bytes) -> None:
        """From the owner: encoded answers. Those to questions that nobody waits for any more are dropped."""
        for one in _answers(data):
            _, answer = self._asked.get(one.number, (None, None))
            if answer is None or answer.done():
                continue
            if one.failure is None:
                answer.set_result(one.answer)
            else:
                answer.set_exception(error_of(one.failure))

    async def until_silent(self) -> None:
        """Returns once the owner has had no call open for ``SILENCE_S``, from when this is called: before the actor is open nobody
        asks."""
        self._silent_since = self._loop.time()
        while self._open or self._loop.time() - self._silent_since < SILENCE_S:  # noqa: ASYNC110  it is time that is waited for
            await asyncio.sleep(WATCH_S)


class Answering:
    """The owner's end, for one actor. ``next`` and ``answered`` call the actor's methods and may raise anything; while they do
    they are called again: whether the actor has died is for its watcher to say, who cancels ``work``."""

    def __init__(
        self,
        next_questions: Callable[[int], Awaitable[bytes]],
        answered: Callable[[bytes], Awaitable[None]],
        answer: Ask,
    ) -> None:
        self._next = next_questions
        self._answered = answered
        self._answer = answer
        self._heard = 0
        self._ready: list[Answered] = []
        self._flush: asyncio.Task[None] | None = None
        self._thinking: set[asyncio.Task[None]] = set()

    async def work(self) -> None:
        """Until cancelled. No answer is given then any more."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    questions = _questions(await self._next(self._heard))
                except Exception:  # noqa: BLE001  whatever Ray raises
                    await asyncio.sleep(PAUSE_S)
                    continue
                for question in questions:
                    self._heard = max(self._heard, question.number)
                    task = loop.create_task(self._think(question))
                    self._thinking.add(task)
                    task.add_done_callback(self._thinking.discard)
        finally:
            for task in (*self._thinking, *(() if self._flush is None else (self._flush,))):
                task.cancel()

    async def _think(self, question: Question) -> None:
        try:
            told = Answered(question.number, await self._answer(question.kind, question.payload))
        except Exception as error:  # noqa: BLE001  it travels to whoever asked
            told = Answered(question.number, failure=failure_of(error))
        self._ready.append(told)
        if self._flush is None or self._flush.done():
            self._flush = asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        """Everything that is ready meanwhile goes along with the next call."""
        while self._ready:
            told, self._ready = self._ready, []
            try:
                await self._answered(_encode(told))
            except Exception:  # noqa: BLE001  whatever Ray raises; the same answer again changes nothing
                self._ready = told + self._ready
                await asyncio.sleep(PAUSE_S)


def no_questions() -> StoreError:
    """For an actor that reaches its owner in another way."""
    return StoreError("no_questions", "this run actor asks its owner through the store")


def asks_of(handle: Any, answer: Ask) -> Answering:
    """For the actor behind a Ray handle."""

    async def next_questions(heard: int) -> bytes:
        data: bytes = await handle.questions.remote(heard)
        return data

    async def answered(data: bytes) -> None:
        await handle.answered.remote(data)

    return Answering(next_questions, answered, answer)
