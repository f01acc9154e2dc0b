"""What a run actor asks its maker: nothing is lost, doubled or heard of twice, however the calls between them fare."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest
from tests.stepped_loop import SteppedLoop

from boundloop.actors.ray_questions import OPEN_S, SILENCE_S, TOGETHER_MAX, WATCH_S, Answering, Questions
from boundloop.runtime.errors import CallerError

T = TypeVar("T")


def play(body: Callable[[SteppedLoop], Coroutine[Any, Any, None]]) -> None:
    loop = SteppedLoop()
    try:
        loop.run_until_complete(body(loop))
    finally:
        loop.close()


class Between:
    """The calls from the maker to the actor. ``lose`` says of each whether it is lost before or after it was made."""

    def __init__(self, questions: Questions) -> None:
        self.questions = questions
        self.lose: dict[str, list[str]] = {"next": [], "answered": []}
        self.told: list[bytes] = []

    async def next(self, heard: int) -> bytes:
        questions: bytes = await self._through("next", lambda: self.questions.next(heard))
        return questions

    async def answered(self, data: bytes) -> None:
        async def done() -> None:
            self.told.append(data)
            self.questions.answered(data)

        await self._through("answered", done)

    async def _through(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        how = self.lose[name].pop(0) if self.lose[name] else ""
        if how == "before":
            raise ConnectionError
        value = await call()
        if how == "after":
            raise ConnectionError
        return value


def test_a_question_is_answered() -> None:
    async def body(loop: SteppedLoop) -> None:
        between = Between(Questions())
        heard: list[str] = []

        async def answer(kind: str, payload: bytes) -> bytes:
            heard.append(kind)
            return payload[::-1]

        working = loop.create_task(Answering(between.next, between.answered, answer).work())
        assert await between.questions.ask("places.lease", b"abc") == b"cba"
        assert heard == ["places.lease"]
        working.cancel()

    play(body)


@pytest.mark.parametrize("name", ["next", "answered"])
@pytest.mark.parametrize("how", ["before", "after"])
def test_a_lost_call_loses_no_question_and_asks_none_twice(name: str, how: str) -> None:
    async def body(loop: SteppedLoop) -> None:
        between = Between(Questions())
        between.lose[name] = [how, how]
        heard: list[bytes] = []

        async def answer(kind: str, payload: bytes) -> bytes:
            heard.append(payload)
            return payload

        working = loop.create_task(Answering(between.next, between.answered, answer).work())
        asked = [loop.create_task(between.questions.ask("k", bytes([number]))) for number in range(3)]
        await loop.advance(3_000)
        assert [task.result() for task in asked] == [b"\0", b"\1", b"\2"]
        # A lost answer of ``next`` brings the same questions again; the maker had not seen them.
        assert sorted(heard) == [b"\0", b"\1", b"\2"]
        working.cancel()

    play(body)


def test_what_the_maker_raises_is_raised_at_the_actor() -> None:
    async def body(loop: SteppedLoop) -> None:
        between = Between(Questions())

        async def answer(kind: str, payload: bytes) -> bytes:
            raise CallerError("not_ours", "no", path=kind)

        working = loop.create_task(Answering(between.next, between.answered, answer).work())
        with pytest.raises(CallerError, match="not_ours"):
            await between.questions.ask("k", b"")
        working.cancel()

    play(body)


def test_a_question_that_takes_long_holds_up_no_other() -> None:
    async def body(loop: SteppedLoop) -> None:
        between = Between(Questions())
        gate = asyncio.Event()

        async def answer(kind: str, payload: bytes) -> bytes:
            if kind == "slow":
                await gate.wait()
            return kind.encode()

        working = loop.create_task(Answering(between.next, between.answered, answer).work())
        slow = loop.create_task(between.questions.ask("slow", b""))
        await loop.settle()
        assert await between.questions.ask("quick", b"") == b"quick"
        assert not slow.done()
        gate.set()
        assert await slow == b"slow"
        working.cancel()

    play(body)


def test_whoever_gives_up_is_not_answered_and_nothing_is_kept_of_it() -> None:
    async def body(loop: SteppedLoop) -> None:
        between = Between(Questions())
        gate = asyncio.Event()

        async def answer(kind: str, payload: bytes) -> bytes:
            await gate.wait()
            return b""

        working = loop.create_task(Answering(between.next, between.answered, answer).work())
        asking = loop.create_task(between.questions.ask("k", b""))
        await loop.settle()
        asking.cancel()
        await loop.settle()
        gate.set()
        await loop.settle()
        assert not between.questions._asked
        assert len(between.told) == 1
        working.cancel()

    play(body)


def test_many_questions_come_in_several_answers() -> None:
    async def body(loop: SteppedLoop) -> None:
        between = Between(Questions())

        async def answer(kind: str, payload: bytes) -> bytes:
            return payload

        count = 2 * TOGETHER_MAX + 1
        asked = [
            loop.create_task(between.questions.ask("k", str(number).encode())) for number in range(count)
        ]
        working = loop.create_task(Answering(between.next, between.answered, answer).work())
        assert await asyncio.gather(*asked) == [str(number).encode() for number in range(count)]
        working.cancel()

    play(body)


def test_an_owner_that_asks_no_more_is_found_to_be_gone() -> None:
    async def body(loop: SteppedLoop) -> None:
        questions = Questions()
        silent = loop.create_task(questions.until_silent())
        for _ in range(20):
            asked = loop.create_task(questions.next(0))
            await loop.advance(int(OPEN_S * 1_000))
            assert asked.done()
        assert not silent.done()
        await loop.advance(int((SILENCE_S - 2 * WATCH_S) * 1_000))
        assert not silent.done()
        await loop.advance(int(3 * WATCH_S * 1_000))
        assert silent.done()

    play(body)


def test_silence_counts_from_when_the_owner_could_ask() -> None:
    """Opening the store may take long, a failover for one; before it is open nobody asks."""

    async def body(loop: SteppedLoop) -> None:
        questions = Questions()
        await loop.advance(int(2 * SILENCE_S * 1_000))
        silent = loop.create_task(questions.until_silent())
        await loop.advance(int((SILENCE_S - WATCH_S) * 1_000))
        assert not silent.done()
        await loop.advance(int(3 * WATCH_S * 1_000))
        assert silent.done()

    play(body)
