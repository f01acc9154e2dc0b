"""Which of the appends that wait go to the server together."""

from __future__ import annotations

import asyncio
import time
from functools import cache
from heapq import heappop, heappush

import pytest
from tests.postgres_server import Server as RealServer

from boundloop.eventstore import postgres_pace, postgres_writer
from boundloop.eventstore.postgres import PostgresStore
from boundloop.eventstore.postgres_pace import SETTLING, TOGETHER, Pace, Way

from .log_writer import LogWriter

MANY = 4 * TOGETHER


class Server:
    """A host with so many runs and its server, played through: ``price_s`` a statement, ``server_s`` and ``host_s`` an append,
    ``beside`` of the host's time is taken by other things. The host works while a statement is out, and after it."""

    def __init__(
        self, runs: int, price_s: float, server_s: float, host_s: float, beside: float = 0.0
    ) -> None:
        self.runs = runs
        self.price_s, self.server_s, self.host_s = price_s, server_s, host_s / (1 - beside)
        self.now_s = 0.0
        self.pace = Pace(lambda: self.now_s)
        self._back = [0.0] * runs
        """When each run that waits or works comes back with its next append: a heap."""
        self._host_free_s = 0.0
        """When it has worked through all that were answered."""

    def pause(self, seconds: float, spread_s: float = 0.0) -> None:
        """Every run waits for something else meanwhile, and comes back by and by."""
        until_s = self.now_s + seconds
        self._back = [until_s + spread_s * place / self.runs for place in range(self.runs)]
        self.now_s = until_s

    def appends_a_second(self, seconds: float, way: Way | None = None) -> float:
        begun_s, done = self.now_s, 0
        while self.now_s - begun_s < seconds:
            if way is not None:
                self.pace.way = way
            if self._back[0] > self.now_s or self.pace.waits_for_answered:
                # It works through all that were answered, and sends then.
                self.now_s = max(self.now_s, self._host_free_s, self._back[0])
            waiting = sum(1 for back_s in self._back if back_s <= self.now_s)
            taken = self.pace.of(waiting)
            for _ in range(taken):
                heappop(self._back)
            self.now_s = max(
                self.now_s + self.price_s + taken * self.server_s, min(self._host_free_s, self.now_s + 1)
            )
            self._host_free_s = max(self._host_free_s, self.now_s)
            for _ in range(taken):
                self._host_free_s += self.host_s
                heappush(self._back, self._host_free_s)
            done += taken
            self.pace.answered(taken)
        return done / (self.now_s - begun_s)


def best(server: Server) -> float:
    """Appends a second of the better way with as many runs, on such a server."""
    return _best(server.runs, server.price_s, server.server_s, server.host_s)


@cache
def _best(runs: int, price_s: float, server_s: float, host_s: float) -> float:
    ways: tuple[Way, ...] = ("all", "half")
    return max(Server(runs, price_s, server_s, host_s).appends_a_second(20, way) for way in ways)


@pytest.mark.parametrize("runs", [32, 64, 240])
@pytest.mark.parametrize("price_s", [0.000_3, 0.001, 0.005, 0.03])
@pytest.mark.parametrize(
    ("server_s", "host_s"), [(0.000_11, 0.000_13), (0.000_4, 0.000_18), (0.000_05, 0.000_3)]
)
@pytest.mark.parametrize("beside", [0.0, 0.5])
def test_the_better_way_is_found_and_kept(
    runs: int, price_s: float, server_s: float, host_s: float, beside: float
) -> None:
    server = Server(runs, price_s, server_s, host_s, beside)
    server.appends_a_second(20)
    assert server.appends_a_second(60) > 0.93 * best(server)


CHEAP_S = 0.000_3
"""The price of a statement at which half is better."""

DEAR_S = 0.05
"""The price at which all is."""


def played(price_s: float, runs: int = 64) -> Server:
    return Server(runs, price_s, server_s=0.000_11, host_s=0.000_13)


@pytest.mark.parametrize(("price_s", "better"), [(CHEAP_S, "half"), (DEAR_S, "all")])
def test_the_better_way_is_found_within_seconds(price_s: float, better: Way) -> None:
    server = played(price_s)
    server.appends_a_second(2)
    assert server.pace.way == better
    assert server.appends_a_second(15) > 0.93 * best(server)


@pytest.mark.parametrize(
    ("was_s", "way", "becomes_s"),
    [
        pytest.param(CHEAP_S, "half", DEAR_S, id="what is kept gets worse"),
        pytest.param(DEAR_S, "all", CHEAP_S, id="the other gets better, and what is kept no worse"),
    ],
)
def test_what_was_better_once_is_left_when_the_server_changes(
    was_s: float, way: Way, becomes_s: float
) -> None:
    server = played(was_s)
    server.appends_a_second(20)
    assert server.pace.way == way
    server.price_s = becomes_s
    server.appends_a_second(60)
    assert server.appends_a_second(60) > 0.93 * best(server)


@pytest.mark.parametrize("price_s", [CHEAP_S, 0.01, DEAR_S])
@pytest.mark.parametrize("pause_s", [1, 30])
@pytest.mark.parametrize("before_s", [0.1, 0.5, 0.9, 1.3, 20.0, 20.6, 25.0])
def test_a_pause_says_nothing_of_either_way(price_s: float, pause_s: float, before_s: float) -> None:
    """Whether it comes in the first trial of a way, or in a later one of either."""
    server = played(price_s)
    server.appends_a_second(before_s)
    server.pause(pause_s)
    assert server.appends_a_second(30) > 0.93 * best(server)


@pytest.mark.parametrize("price_s", [CHEAP_S, 0.01, DEAR_S])
@pytest.mark.parametrize("spread_s", [0.5, 2])
@pytest.mark.parametrize("before_s", [0.1, 0.5, 0.9, 1.3, 20.0, 20.6, 25.0])
def test_what_was_found_while_runs_came_back_one_by_one_is_soon_found_anew(
    price_s: float, spread_s: float, before_s: float
) -> None:
    server = played(price_s)
    server.appends_a_second(before_s)
    server.pause(5, spread_s)
    server.appends_a_second(spread_s)
    assert server.appends_a_second(30) > 0.9 * best(server)


def test_a_load_that_leaves_no_choice_says_nothing_of_either_way() -> None:
    server = played(CHEAP_S, runs=TOGETHER)
    for _ in range(50):
        server.appends_a_second(0.1)
        assert server.pace.way == "all"


def test_few_that_wait_go_all_whatever_was_found() -> None:
    pace = Pace(lambda: 0.0)
    for way in ("all", "half"):
        pace.way = way
        assert [pace.of(waiting) for waiting in (1, TOGETHER)] == [1, TOGETHER]
    assert [pace.of(waiting) for waiting in (TOGETHER + 1, MANY, MANY + 1)] == [
        TOGETHER,
        MANY // 2,
        MANY // 2 + 1,
    ]


class Busy:
    """Writers of one log each that have work to do before each append, on one thread as hosts do."""

    def __init__(self, store: PostgresStore, writers: int, name: str = "r", work_s: float = 0.0) -> None:
        self.logs = [LogWriter(store, f"{name}{number}") for number in range(writers)]
        self.work_s = work_s
        self.at_once: list[int] = []
        self._answered: set[int] = set()

    async def go(self, appends: int) -> None:
        await asyncio.gather(*(self._write(number, log, appends) for number, log in enumerate(self.logs)))

    async def _write(self, number: int, log: LogWriter, appends: int) -> None:
        for place in range(appends):
            await log.write("start" if not place else "x")
            self._answered.add(number)
            if len(self._answered) == 1:
                asyncio.get_running_loop().call_soon(self._count)
            until = time.thread_time() + self.work_s
            while time.thread_time() < until:
                pass

    def _count(self) -> None:
        """Behind all that the same answer of the server set going."""
        self.at_once.append(len(self._answered))
        self._answered.clear()


def noted(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], asyncio.Event]:
    """How many appends the pace is told were answered, by statement, and when the first statement goes."""
    told: list[int] = []
    sent = asyncio.Event()

    class Noted(Pace):
        def of(self, waiting: int) -> int:
            sent.set()
            return super().of(waiting)

        def answered(self, appends: int) -> None:
            told.append(appends)
            super().answered(appends)

    monkeypatch.setattr(postgres_writer, "Pace", Noted)
    return told, sent


@pytest.mark.asyncio
async def test_a_host_tries_both_ways_and_says_how_many_were_answered(
    postgres: RealServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_pace, "TRIAL_S", 0.0)
    monkeypatch.setattr(postgres_pace, "TRIAL_STATEMENTS", 4)
    told, _ = noted(monkeypatch)
    store = await PostgresStore.open(postgres.url())
    busy = Busy(store, MANY, work_s=0.000_5)
    await busy.go(appends=20)
    # Of what waits when a half is answered another half goes, and the answered ones have no turn before it.
    assert told[:9] == [MANY] * (4 + SETTLING) + [MANY // 2, MANY // 4]
    assert sum(busy.at_once) == 20 * MANY
    assert told == busy.at_once
    await store.close()


@pytest.mark.asyncio
async def test_all_that_wait_are_those_that_were_just_answered_too(
    postgres: RealServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else these and the ones that came while their statement was out would go in turns."""
    monkeypatch.setattr(postgres_pace, "TRIAL_S", 1e9)  # they all go together, always
    told, sent = noted(monkeypatch)
    store = await PostgresStore.open(postgres.url())
    first, then = Busy(store, MANY // 2), Busy(store, MANY // 2, "s")

    async def go_then() -> None:
        await sent.wait()
        await then.go(appends=4)

    await asyncio.gather(first.go(appends=4), go_then())
    assert told == [MANY // 2, MANY, MANY, MANY, MANY // 2]
    await store.close()


@pytest.mark.asyncio
async def test_few_appends_that_wait_go_all_together(postgres: RealServer) -> None:
    store = await PostgresStore.open(postgres.url())
    busy = Busy(store, TOGETHER, work_s=0.001)
    await busy.go(appends=4)
    assert set(busy.at_once) == {TOGETHER}
    await store.close()
