"""A run as it goes, with what its model writes: whoever follows, from whenever, gets the text so far and then the rest."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from tests.attach_play import half_of, use_sockets
from tests.model_server import Heard, speaking

from boundloop.actors import Runtime, embedded
from boundloop.actors.provisional import Mark, Provisional, Shown
from boundloop.actors.streaming import Committed, Follower, FollowItem, News
from boundloop.adapters import OpenAIChat, ScriptedModel, held, say
from boundloop.adapters.port import AttemptReset, CallPreparing, ProgressSink, TextDelta
from boundloop.runtime import Limits, Policy, Redaction
from boundloop.runtime import events as e
from boundloop.runtime.guardrails import Guardrails
from boundloop.runtime.limits import WAIVED
from boundloop.runtime.model import ModelInput, ModelTurn

WITHIN_S: Final = 20.0
LIMITS: Final = Limits(cost=WAIVED)
HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def piece(text: str = "", finish: str | None = None) -> bytes:
    delta = {"content": text} if text else {}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "r1", "choices": [choice]}).encode() + b"\n\n"


class Writer:
    """A server that writes an answer up to a place, and goes on when it is told to. ``breaks``: attempts that it cuts there."""

    def __init__(self, before: str, after: str, *, breaks: int = 0) -> None:
        self.before, self.after, self.breaks = before, after, breaks
        self.go_on = asyncio.Event()
        self.asked = 0

    async def __call__(self, heard: Heard) -> None:
        self.asked += 1
        await heard.say(HEAD)
        for letter in self.before:
            await heard.say(piece(letter))
        await self.go_on.wait()
        if self.asked <= self.breaks:
            self.go_on.clear()
            heard.cut()
            return
        for letter in self.after:
            await heard.say(piece(letter))
        await heard.say(piece(finish="stop") + b"data: [DONE]\n\n")


class Reader:
    """Follows a run on a task of its own; ``until`` waits for what it has seen."""

    def __init__(self, items: AsyncGenerator[FollowItem]) -> None:
        self.items: list[FollowItem] = []
        self._grew = asyncio.Condition()
        self._task = asyncio.create_task(self._read(items))

    async def _read(self, items: AsyncGenerator[FollowItem]) -> None:
        try:
            async for item in items:
                async with self._grew:
                    self.items.append(item)
                    self._grew.notify_all()
        finally:
            await items.aclose()

    async def until(self, happened: Callable[[], bool], within_s: float = WITHIN_S) -> None:
        async with asyncio.timeout(within_s), self._grew:
            await self._grew.wait_for(happened)

    async def all(self) -> list[FollowItem]:
        async with asyncio.timeout(WITHIN_S):
            await self._task
        return self.items

    def shown(self, turn: int = 1, attempt: int = 1) -> str:
        """The text of an attempt, as its deltas add up; a gap or something twice is an error."""
        text = ""
        for item in self.items:
            if isinstance(item, TextDelta) and (item.turn, item.attempt) == (turn, attempt):
                assert item.offset == len(text), (item, text)
                text += item.text
        return text

    def seqs(self) -> list[int]:
        return [item.seq for item in self.items if isinstance(item, Committed)]


def model_at(url: str) -> OpenAIChat:
    return OpenAIChat(model="m", base_url=url, stream=True)


@pytest.mark.asyncio
async def test_whoever_attaches_while_a_turn_is_written_gets_the_text_so_far_and_then_the_rest() -> None:
    write = Writer("Half of ", "an answer.")
    async with (
        speaking(write) as server,
        Runtime(store="memory://", model=model_at(server.url)) as runtime,
    ):
        run = await runtime.aio.start("go", limits=LIMITS)
        first = Reader(runtime.aio.follow(run))
        await first.until(lambda: first.shown() == "Half of ")
        second = Reader(runtime.aio.follow(run))
        third = Reader(runtime.aio.follow(run, after_seq=first.seqs()[-1]))
        await second.until(lambda: second.shown() == "Half of ")
        await third.until(lambda: third.shown() == "Half of ")
        write.go_on.set()
        for reader in (first, second, third):
            assert isinstance((await reader.all())[-1], Committed)
            assert "Half of an answer.".startswith(reader.shown())
            assert reader.shown().startswith("Half of ")
        last = (await runtime.aio.state(run)).seq
        assert first.seqs() == second.seqs() == list(range(1, last + 1))
        assert isinstance(third.items[0], TextDelta), "what it had read isn't read again"


@pytest.mark.asyncio
async def test_provisional_text_stands_between_the_request_and_the_answer() -> None:
    write = Writer("Half of ", "an answer.")
    async with (
        speaking(write) as server,
        Runtime(store="memory://", model=model_at(server.url)) as runtime,
    ):
        run = await runtime.aio.start("go", limits=LIMITS)
        reader = Reader(runtime.aio.follow(run))
        await reader.until(lambda: reader.shown() == "Half of ")
        write.go_on.set()
        items = await reader.all()
    places = [place for place, item in enumerate(items) if isinstance(item, TextDelta)]
    asked = [place for place, item in enumerate(items) if is_event(item, e.ModelRequested)]
    answered = [place for place, item in enumerate(items) if is_event(item, e.ModelResponded)]
    assert asked[0] < places[0] <= places[-1] < answered[0]


def is_event(item: FollowItem, kind: type[e.Event]) -> bool:
    return isinstance(item, Committed) and isinstance(item.event, kind)


@pytest.mark.asyncio
async def test_a_failed_attempt_is_reset_before_its_event_and_the_next_is_shown_from_its_start() -> None:
    write = Writer("Half of ", "an answer.", breaks=1)
    async with (
        speaking(write) as server,
        Runtime(store="memory://", model=model_at(server.url)) as runtime,
    ):
        run = await runtime.aio.start("go", limits=LIMITS)
        reader = Reader(runtime.aio.follow(run))
        await reader.until(lambda: reader.shown() == "Half of ")
        write.go_on.set()
        await reader.until(lambda: reader.shown(1, 2) == "Half of ")
        late = Reader(runtime.aio.follow(run))
        await late.until(lambda: late.shown(1, 2) == "Half of ")
        write.go_on.set()
        items = await reader.all()
        await late.all()
    resets = [place for place, item in enumerate(items) if isinstance(item, AttemptReset)]
    assert [items[place] for place in resets] == [AttemptReset(1, 1)]
    assert is_event(items[resets[0] + 1], e.ModelFailed)
    assert not any(isinstance(item, AttemptReset) for item in late.items), "it was never shown what failed"
    assert late.shown() == ""


@pytest.mark.asyncio
async def test_another_process_follows_through_the_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_sockets(monkeypatch.setattr)
    write = Writer("Half of ", "an answer.", breaks=1)
    async with speaking(write) as server:
        store = f"sqlite:///{tmp_path}/runs.db"
        async with (
            Runtime(store=store, model=model_at(server.url)) as owner,
            Runtime(store=store, model=model_at(server.url)) as other,
        ):
            assert (half_of(owner).serving.attached, half_of(other).serving.attached) == (False, True)
            run = await other.aio.start("go", limits=LIMITS)
            reader = Reader(other.aio.follow(run))
            await reader.until(lambda: reader.shown() == "Half of ")
            write.go_on.set()
            await reader.until(lambda: reader.shown(1, 2) == "Half of ")
            late = Reader(other.aio.follow(run))
            await late.until(lambda: late.shown(1, 2) == "Half of ")
            write.go_on.set()
            await reader.all()
            await late.all()
            assert reader.seqs() == late.seqs() == list(range(1, (await owner.aio.state(run)).seq + 1))
        assert [item for item in reader.items if isinstance(item, AttemptReset)] == [AttemptReset(1, 1)]


@pytest.mark.parametrize("opted_in", [False, True])
@pytest.mark.asyncio
async def test_text_that_is_still_to_be_judged_is_shown_only_where_the_application_says_so(
    opted_in: bool,
) -> None:
    write = Writer("Half of ", "an answer.")
    guardrails = Guardrails(answer=lambda asked: "allow", revision="1", provisional=opted_in)
    async with (
        speaking(write) as server,
        Runtime(
            store="memory://", model=model_at(server.url), policy=Policy(guardrails=guardrails)
        ) as runtime,
    ):
        run = await runtime.aio.start("go", limits=LIMITS)
        reader = Reader(runtime.aio.follow(run))
        if opted_in:
            await reader.until(lambda: reader.shown() == "Half of ")
        else:
            await reader.until(lambda: any(is_event(item, e.ModelRequested) for item in reader.items))
        write.go_on.set()
        await reader.all()
    assert bool(reader.shown()) is opted_in


@pytest.mark.asyncio
async def test_text_that_may_hold_a_declared_secret_is_shown_whole_or_not_at_all() -> None:
    write = Writer("Half of ", "an answer.")
    async with (
        speaking(write) as server,
        Runtime(
            store="memory://", model=model_at(server.url), redact=Redaction(values={"K": "Half"})
        ) as runtime,
    ):
        write.go_on.set()
        run = await runtime.aio.start("go", limits=LIMITS)
        reader = Reader(runtime.aio.follow(run))
        await reader.all()
    assert reader.shown() == ""


class Talker:
    """A model that writes a letter at a time and never waits, until the gate opens."""

    family, model, revision, price = "talker", "m", "1", None

    def __init__(self, letters: int) -> None:
        self.letters = letters
        self.gate = threading.Event()

    async def request(
        self, request: ModelInput, *, timeout_ms: int, progress: ProgressSink | None = None
    ) -> ModelTurn:
        assert progress is not None
        for offset in range(self.letters):
            progress(TextDelta(request.turn, request.attempt, offset, "x"))
        progress(CallPreparing(request.turn, request.attempt, 0, "look"))
        progress(TextDelta(request.turn, request.attempt, self.letters, "y"))
        progress(TextDelta(request.turn, request.attempt + 1, 0, "of no attempt that is out"))
        progress(TextDelta(request.turn, request.attempt, self.letters + 7, "not where the text ends"))
        await asyncio.to_thread(self.gate.wait, WITHIN_S)
        return ModelTurn(finish="final", finish_raw="stop", text="x" * self.letters + "y")

    async def close(self) -> None:
        """Nothing to give back."""


@pytest.mark.asyncio
async def test_what_a_model_writes_quickly_comes_merged_and_only_where_it_goes_on() -> None:
    model = Talker(10_000)
    async with Runtime(store="memory://", model=model) as runtime:
        run = await runtime.aio.start("go", limits=LIMITS)
        reader = Reader(runtime.aio.follow(run))
        await reader.until(lambda: reader.shown() == "x" * 10_000 + "y")
        model.gate.set()
        items = await reader.all()
    deltas = [item for item in items if not isinstance(item, Committed)]
    assert deltas == [
        TextDelta(1, 1, 0, "x" * 10_000),
        CallPreparing(1, 1, 0, "look"),
        TextDelta(1, 1, 10_000, "y"),
    ]


@pytest.mark.asyncio
async def test_deltas_come_at_most_twenty_times_a_second_and_events_at_once() -> None:
    """The pause after a piece is a wait for the next event, so that nothing committed waits for it."""
    pieces: list[tuple[float, float, bool]] = []
    waits: list[float] = []
    write = Writer("ab", "cd")
    async with (
        speaking(write) as server,
        Runtime(store="memory://", model=model_at(server.url)) as runtime,
    ):
        half = half_of(runtime)
        news, grown = half._news, half._grown

        async def asked_for_news(run_id: str, after_seq: int, mark: Mark, elsewhere: str) -> Any:
            asked_at = time.monotonic()
            told = await news(run_id, after_seq, mark, elsewhere)
            pieces.append((asked_at, time.monotonic(), bool(told.shown.items)))
            return told

        async def asked_for_events(run_id: str, after_seq: int, timeout_s: float) -> bool:
            waits.append(timeout_s)
            more: bool = await grown(run_id, after_seq, timeout_s)
            return more

        half._news, half._grown = asked_for_news, asked_for_events
        run = await runtime.aio.start("go", limits=LIMITS)
        reader = Reader(runtime.aio.follow(run))
        await reader.until(lambda: reader.shown() == "ab")
        write.go_on.set()
        await reader.all()
    assert any(shown for _, _, shown in pieces)
    assert all(waited <= embedded.PIECE_S == 1 / 20 for waited in waits), waits
    for (_, came_at, shown), (asked_at, _, _) in pairwise(pieces):
        assert not shown or asked_at - came_at > 0.9 * embedded.PIECE_S


@pytest.mark.asyncio
async def test_a_follower_that_is_given_up_leaves_nothing_behind() -> None:
    write = Writer("ab", "cd")
    async with (
        speaking(write) as server,
        Runtime(store="memory://", model=model_at(server.url)) as runtime,
    ):
        run = await runtime.aio.start("go", limits=LIMITS)
        async for item in runtime.aio.follow(run):
            if isinstance(item, TextDelta):
                break
        write.go_on.set()
        await runtime.aio.result(run)
        board = half_of(runtime).serving.host.provisional
        assert not board._waiting
        assert not board._attempts


@pytest.mark.asyncio
async def test_a_host_that_has_nothing_to_show_yet_is_asked_again() -> None:
    """It may be told of a commit that the reader has read already, or be about to take the run up; its log grows no more then."""
    model = ScriptedModel([held(say("Done."), "gate")])
    async with Runtime(store="memory://", model=model) as runtime:
        run = await runtime.aio.start("go", limits=LIMITS)
        reader = Reader(runtime.aio.follow(run))
        await reader.until(lambda: any(is_event(item, e.ModelRequested) for item in reader.items))
        serving = half_of(runtime).serving
        text = Shown(Mark(1, 1, 1), 1, (TextDelta(1, 1, 0, "ab"),))
        answers = [Shown(Mark()), Shown(Mark()), text]

        async def shown(run_id: str, mark: Mark, timeout_s: float) -> Shown:
            return answers.pop(0) if answers else text

        serving.host.shown = shown
        asked = asyncio.run_coroutine_threadsafe(
            serving.news(run.run_id, reader.seqs()[-1], Mark(), 3_600.0), runtime_loop(runtime)
        )
        assert await asyncio.wait_for(asyncio.wrap_future(asked), WITHIN_S) == News(False, text)
        del serving.host.shown
        model.gate("gate").open()
        await reader.all()


def runtime_loop(runtime: Runtime) -> asyncio.AbstractEventLoop:
    loop: asyncio.AbstractEventLoop = half_of(runtime).serving.host._loop
    return loop


def test_following_from_a_script() -> None:
    with Runtime(store="memory://", model=ScriptedModel([say("Done.")])) as runtime:
        run = runtime.start("go", limits=LIMITS)
        items = list(runtime.follow(run))
        assert [item.seq for item in items if isinstance(item, Committed)] == list(
            range(1, runtime.state(run).seq + 1)
        )


# --- what is shown, and what becomes of it -----------------------------------------------------------------------------


def now(board: Provisional, mark: Mark) -> Any:
    return asyncio.run(board.after("r", mark, 0.0))


def test_a_reader_gets_each_piece_once_and_an_attempt_that_landed_is_shown_to_no_newcomer() -> None:
    board = Provisional()
    board.add("r", TextDelta(1, 1, 0, "ab"), 3)
    first = now(board, Mark())
    assert (first.items, first.after_seq) == ((TextDelta(1, 1, 0, "ab"),), 3)
    board.add("r", TextDelta(1, 1, 2, "c"), 3)
    board.add("r", TextDelta(1, 1, 3, "d"), 3)
    assert now(board, first.mark).items == (TextDelta(1, 1, 2, "cd"),)
    assert now(board, Mark()).items == (TextDelta(1, 1, 0, "abcd"),)
    board.landed("r")
    assert now(board, first.mark).items == (TextDelta(1, 1, 2, "cd"),)
    assert now(board, Mark()).items == (), "its event is about to come, and says all"
    board.over("r")
    assert now(board, first.mark).items == ()


def test_what_is_kept_of_an_attempt_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("boundloop.actors.provisional.TEXT_CHARS_MAX", 5)
    board = Provisional()
    board.add("r", TextDelta(1, 1, 0, "abc"), 1)
    board.add("r", TextDelta(1, 1, 3, "def"), 1)
    board.add("r", TextDelta(1, 1, 6, "g"), 1)
    assert now(board, Mark()).items == (TextDelta(1, 1, 0, "abc"),), (
        "what is too much leaves no gap behind it"
    )


def requested(turn: int, attempt: int) -> e.ModelRequested:
    return e.ModelRequested(turn, attempt, b"", 1, 1, 1, 0)


def responded(finish: str) -> e.ModelResponded:
    return e.ModelResponded(1, 1, finish, "", "", 0, None, 0, 0, 0)


@pytest.mark.parametrize(
    ("event", "void"),
    [
        (responded("final"), False),
        (responded("calls"), False),
        (responded("paused"), False),
        (responded("truncated"), True),
        (responded("refused"), True),
        (e.ModelFailed(1, 1, "lost", True, 0, 0, 0, 0), True),
        (e.RunSuspended("incomplete", "deadline"), True),
        (e.RunTerminated("cancelled", "by_user"), True),
        (e.MessageReceived("user", "Hm"), False),
    ],
)
def test_what_was_shown_is_void_unless_an_answer_came_of_it(event: e.AnyEvent, void: bool) -> None:
    board = Provisional()
    board.add("r", TextDelta(1, 1, 0, "ab"), 3)
    follower = Follower()
    assert follower.take(now(board, follower.mark), 3) == (TextDelta(1, 1, 0, "ab"),)
    assert follower.reset_before(event) == (AttemptReset(1, 1) if void else None)
    if not isinstance(event, e.MessageReceived):
        assert follower.reset_before(e.RunTerminated("failed", "model_failed")) is None, "once"


def test_a_reader_that_is_behind_reads_the_request_first() -> None:
    board = Provisional()
    board.add("r", TextDelta(2, 1, 0, "ab"), 9)
    follower = Follower()
    assert follower.take(now(board, follower.mark), 8) == ()
    assert follower.reset_before(requested(2, 1)) is None
    assert follower.take(now(board, follower.mark), 9) == (TextDelta(2, 1, 0, "ab"),)


def test_a_reader_that_read_what_became_of_an_attempt_is_shown_no_more_of_it() -> None:
    board = Provisional()
    board.add("r", TextDelta(1, 1, 0, "ab"), 3)
    follower = Follower()
    assert follower.reset_before(responded("final")) is None
    assert follower.take(now(board, follower.mark), 5) == ()
