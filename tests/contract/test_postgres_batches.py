"""Which of the appends that wait go to the server together."""

from __future__ import annotations

import asyncio
import time
from collections import deque

import pytest
from tests.postgres_server import Server as RealServer

from boundloop.eventstore import postgres_pace
from boundloop.eventstore.postgres import PostgresStore
from boundloop.eventstore.postgres_pace import TOGETHER, Pace, Way

from .log_writer import LogWriter

MANY = 4 * TOGETHER


class Server:
    """A host with so many runs and its server, played through: ``price_s`` a statement, ``server_s`` and ``host_s`` an append,
    ``beside`` of the host's time is taken by other things. The host works while a statement is out."""

    def __init__(
        self, runs: int, price_s: float, server_s: float, host_s: float, beside: float = 0.0
    ) -> None:
        self.runs = runs
        self.price_s, self.server_s, self.host_s = price_s, server_s, host_s / (1 - beside)
        self.now_s = 0.0
        self.pace = Pace(lambda: self.now_s)
        self._back: deque[float] = deque([0.0] * runs)
        """When each run that waits or works comes back with its next append."""

    def appends_a_second(self, seconds: float, way: Way | None = None) -> float:
        begun_s, done = self.now_s, 0
        host_free_s = self.now_s
        while self.now_s - begun_s < seconds:
            if way is not None:
                self.pace.way = way
            if self._back[0] > self.now_s or self.pace.waits_for_answered:
                self.now_s = max(
                    self.now_s, host_free_s
                )  # it works through all that were answered, and sends then
            waiting = sum(1 for back_s in self._back if back_s <= self.now_s)
            taken = self.pace.of(waiting)
            for _ in range(taken):
                self._back.popleft()
            self.now_s = max(
                self.now_s + self.price_s + taken * self.server_s, min(host_free_s, self.now_s + 1)
            )
            host_free_s = max(host_free_s, self.now_s)
            for _ in range(taken):
                host_free_s += self.host_s
                self._back.append(host_free_s)
            done += taken
            self.pace.answered(taken)
        return done / (self.now_s - begun_s)


@pytest.mark.parametrize("runs", [32, 64, 240])
@pytest.mark.parametrize("price_s", [0.000_3, 0.001, 0.005, 0.03])
@pytest.mark.parametrize(
    ("server_s", "host_s"), [(0.000_11, 0.000_13), (0.000_4, 0.000_18), (0.000_05, 0.000_3)]
)
@pytest.mark.parametrize("beside", [0.0, 0.5])
def test_the_better_way_is_found_and_kept(
    runs: int, price_s: float, server_s: float, host_s: float, beside: float
) -> None:
    rates: dict[Way, float] = {}
    for way in ("all", "half"):
        rates[way] = Server(runs, price_s, server_s, host_s, beside).appends_a_second(20, way)
    server = Server(runs, price_s, server_s, host_s, beside)
    server.appends_a_second(20)
    assert server.appends_a_second(60) > 0.93 * max(rates.values())


def test_what_was_better_once_is_left_when_the_server_changes() -> None:
    server = Server(64, 0.000_3, 0.000_11, 0.000_13)
    server.appends_a_second(20)
    assert server.pace.way == "half"
    server.price_s = 0.05
    server.appends_a_second(60)
    assert server.appends_a_second(60) > 0.93 * Server(64, 0.05, 0.000_11, 0.000_13).appends_a_second(
        60, "all"
    )


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

    def __init__(self, store: PostgresStore, writers: int, work_s: float) -> None:
        self.logs = [LogWriter(store, f"r{number}") for number in range(writers)]
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


@pytest.mark.asyncio
async def test_a_host_tries_both_ways(postgres: RealServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_pace, "TRIAL_S", 0.0)
    monkeypatch.setattr(postgres_pace, "TRIAL_STATEMENTS", 4)
    store = await PostgresStore.open(postgres.url())
    busy = Busy(store, MANY, work_s=0.000_5)
    await busy.go(appends=20)
    assert busy.at_once[0] == MANY
    assert min(busy.at_once) <= MANY // 2
    assert sum(busy.at_once) == 20 * MANY
    await store.close()


@pytest.mark.asyncio
async def test_few_appends_that_wait_go_all_together(postgres: RealServer) -> None:
    store = await PostgresStore.open(postgres.url())
    busy = Busy(store, TOGETHER, work_s=0.001)
    await busy.go(appends=4)
    assert set(busy.at_once) == {TOGETHER}
    await store.close()
