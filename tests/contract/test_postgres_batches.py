"""Which of the appends that wait go to the server together."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.postgres_server import Server

from boundloop.eventstore.postgres import PostgresStore
from boundloop.eventstore.postgres_pace import TOGETHER, Pace

from .log_writer import LogWriter

MANY = 4 * TOGETHER


def after(*measured: tuple[float, float]) -> Pace:
    """After statements that took so long, with so much work beside each."""
    pace = Pace()
    for statement_s, work_s in measured:
        pace.measured(statement_s, work_s)
    return pace


def test_all_go_until_something_is_known() -> None:
    assert Pace().of(1_000) == 1_000


def test_a_host_that_has_much_to_do_between_its_appends_sends_half_of_many() -> None:
    pace = after(*[(0.004, 0.004)] * 8)
    assert [pace.of(waiting) for waiting in (1, TOGETHER, TOGETHER + 1, MANY, MANY + 1)] == [
        1,
        TOGETHER,
        TOGETHER,
        MANY // 2,
        MANY // 2 + 1,
    ]


def test_a_host_that_waits_for_its_server_sends_all() -> None:
    """A standby far away or a slow disk: each statement costs the same for one append as for hundreds."""
    assert after(*[(0.058, 0.008)] * 8).of(MANY) == MANY


def test_a_near_server_is_seen_from_halves_and_from_all() -> None:
    """A statement of 0.3 ms and 0.12 for each append in it, a host that works 0.13 for each."""
    for appends in (MANY, MANY // 3):
        assert after(*[(0.000_3 + appends * 0.000_12, appends * 0.000_13)] * 8).of(MANY) == MANY // 2


def test_one_slow_statement_changes_little_and_many_do() -> None:
    usual = [(0.004, 0.004)] * 16
    assert after(*usual, (0.012, 0.004)).of(MANY) == MANY // 2
    assert after(*usual, *[(0.050, 0.004)] * 4).of(MANY) == MANY


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
async def test_the_runs_of_a_busy_host_go_in_halves(postgres: Server) -> None:
    store = await PostgresStore.open(postgres.url())
    busy = Busy(store, MANY, work_s=0.002)
    await busy.go(appends=6)
    assert busy.at_once[0] == MANY
    assert max(busy.at_once[2:]) <= MANY // 2
    assert sum(busy.at_once) == 6 * MANY
    await store.close()


@pytest.mark.asyncio
async def test_few_appends_that_wait_go_all_together(postgres: Server) -> None:
    store = await PostgresStore.open(postgres.url())
    busy = Busy(store, TOGETHER, work_s=0.001)
    await busy.go(appends=4)
    assert set(busy.at_once) == {TOGETHER}
    await store.close()
