"""Who sits down where: any sequence of arrivals, departures and deaths keeps the laws, and nobody waits for ever."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from boundloop.actors import seats
from boundloop.actors.seats import Assigned, Seating, Waiting

SOLO_MAX: Final = 3
DENSE_MAX: Final = 2
TENANTS: Final = ("a", "b", "c", "d", "e")


class Room:
    """A seating with a supervisor that does at once what it is told."""

    def __init__(self, *, warm: int = 1, solo_max: int = SOLO_MAX, dense_max: int = DENSE_MAX) -> None:
        self.seating = Seating(warm=warm, solo_max=solo_max, dense_max=dense_max)
        self.numbers = itertools.count(1)
        self.sat: list[str] = []

    def come(self, tenant: str, *, dense: bool = False, suspect: bool = False) -> str:
        run_id = f"{tenant}{next(self.numbers)}"
        assert self.seating.enqueue(Waiting(run_id, tenant, dense, suspect))
        return run_id

    def assign(self) -> Assigned:
        told = self.seating.assign()
        self.sat += [run_id for run_id, _ in told.sit]
        for dense, count in ((False, told.start_solo), (True, told.start_dense)):
            for _ in range(count):
                self.seating.starting(f"s{next(self.numbers)}", dense=dense)
        return told

    def open_all(self) -> bool:
        names = [seat.name for seat in self.seating.seats.values() if not seat.open]
        for name in names:
            self.seating.opened(name)
        return bool(names)

    def settle(self) -> None:
        """Until nothing is left to be done without a run's end."""
        for _ in range(100):
            told = self.assign()
            for name in told.leave:
                self.seating.gone(name)
            opened = self.open_all()
            if not (opened or told.sit or told.leave or told.start_solo or told.start_dense):
                return
        raise AssertionError("the seating never comes to rest")


class Coming(RuleBasedStateMachine):
    """The laws hold whatever happens in whatever order."""

    def __init__(self) -> None:
        super().__init__()
        self.room = Room()
        self.seating = self.room.seating
        self.tenant_of: dict[str, str] = {}
        self.kind_of: dict[str, tuple[str, bool]] = {}
        self.lines: dict[tuple[str, bool], list[str]] = defaultdict(list)

    @rule(tenant=st.sampled_from(TENANTS), dense=st.booleans(), suspect=st.booleans())
    def come(self, tenant: str, dense: bool, suspect: bool) -> None:
        run_id = self.room.come(tenant, dense=dense, suspect=suspect)
        self.tenant_of[run_id] = tenant
        self.kind_of[run_id] = (tenant, dense and not suspect)
        self.lines[self.kind_of[run_id]].append(run_id)

    @rule()
    def assign(self) -> None:
        told = self.room.assign()
        for run_id, name in told.sit:
            seat = self.seating.seats[name]
            assert seat.open
            assert not seat.leaving
            assert seat.dense == self.kind_of[run_id][1]
            # First come, first served, in its line.
            assert self.lines[self.kind_of[run_id]].pop(0) == run_id
        for name in told.leave:
            assert not self.seating.seats[name].runs

    @precondition(lambda self: any(not seat.open for seat in self.seating.seats.values()))
    @rule(data=st.data())
    def open(self, data: st.DataObject) -> None:
        self.seating.opened(data.draw(st.sampled_from([s.name for s in self._seats() if not s.open])))

    @precondition(lambda self: bool(self.seating.seats))
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.seating.seats)))
        for run_id in self.seating.gone(name):
            assert run_id not in self.seating

    @precondition(lambda self: bool(self.seating.seat_of))
    @rule(data=st.data())
    def get_up(self, data: st.DataObject) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.seating.seat_of)))
        self.seating.got_up(run_id)
        assert run_id not in self.seating

    def _seats(self) -> list[seats.Seat]:
        return list(self.seating.seats.values())

    @invariant()
    def seats_are_lawful(self) -> None:
        solo = [seat for seat in self._seats() if not seat.dense]
        assert len(solo) <= SOLO_MAX
        assert len(self._seats()) - len(solo) <= DENSE_MAX
        assert all(len(seat.runs) <= 1 for seat in solo)
        for seat in self._seats():
            assert {self.tenant_of[run_id] for run_id in seat.runs} <= {seat.tenant}
            assert all(self.seating.seat_of[run_id] == seat.name for run_id in seat.runs)
        assert len(self.seating.seat_of) == sum(len(seat.runs) for seat in self._seats())
        assert self.seating.queued == sum(len(line) for line in self.lines.values())

    def teardown(self) -> None:
        """Whatever came is seated in the end, if only runs end."""
        for _ in range(len(self.tenant_of) + 20):
            self.assign()
            for seat in self._seats():
                if seat.leaving:
                    self.seating.gone(seat.name)
            self.room.open_all()
            for run_id in sorted(self.seating.seat_of):
                self.seating.got_up(run_id)
        assert self.seating.queued == 0
        self.room.settle()
        warm = [seat for seat in self._seats() if not seat.dense and seat.open and not seat.runs]
        assert warm


Coming.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestComing = Coming.TestCase


def test_a_tenant_without_a_seat_is_served_though_another_fills_all_of_them_for_ever() -> None:
    room = Room()
    for _ in range(SOLO_MAX * 2):
        room.come("a")
    room.settle()
    late = room.come("b")
    for _ in range(10):
        room.come("a")  # there is always one more of the other tenant
        room.seating.got_up(next(iter(room.seating.seat_of)))
        room.settle()
        if late in room.sat:
            break
    assert late in room.sat
    older = [run_id for run_id in room.sat if run_id.startswith("a") and int(run_id[1:]) > int(late[1:])]
    assert not older, "younger runs of the other tenant were seated first"


def test_a_dense_seat_of_another_tenant_makes_room_once_it_is_empty() -> None:
    room = Room(dense_max=1)
    first = room.come("a", dense=True)
    room.settle()
    late = room.come("b", dense=True)
    room.settle()
    younger = room.come("a", dense=True)
    room.settle()
    assert room.sat == [first], "the seat goes on taking runs of its tenant"
    room.seating.got_up(first)
    room.settle()
    assert room.sat == [first, late]
    room.seating.got_up(late)
    room.settle()
    assert room.sat == [first, late, younger]


def test_more_tenants_than_seats_are_served_in_the_order_in_which_they_came() -> None:
    room = Room()
    runs = [room.come(tenant) for _ in range(3) for tenant in TENANTS]
    room.settle()
    while room.seating.seat_of:
        room.seating.got_up(min(room.seating.seat_of, key=room.sat.index))
        room.settle()
    assert sorted(room.sat) == sorted(runs)
    waited = {run_id: room.sat.index(run_id) - runs.index(run_id) for run_id in runs}
    assert max(waited.values()) <= len(TENANTS) * SOLO_MAX


def test_a_seat_stays_ready_beyond_those_that_are_taken() -> None:
    room = Room(warm=1, solo_max=3)
    room.settle()
    assert len(room.seating.seats) == 1
    room.come("a")
    room.settle()
    assert len(room.seating.seats) == 2
    assert sum(1 for seat in room.seating.seats.values() if not seat.runs) == 1
    room.come("a")
    room.come("a")
    room.settle()
    assert len(room.seating.seats) == 3


def test_a_suspect_dense_run_sits_alone() -> None:
    room = Room()
    runs = [room.come("a", dense=True), room.come("a", dense=True, suspect=True)]
    room.settle()
    kinds = [room.seating.seats[room.seating.seat_of[run_id]].dense for run_id in runs]
    assert kinds == [True, False]


def test_dense_seats_grow_one_at_a_time_and_share_the_runs() -> None:
    room = Room(dense_max=2)
    for _ in range(10):
        room.come("a", dense=True)
    told = room.assign()
    assert told.start_dense == 1
    assert room.assign().start_dense == 0, "a second is made only once the first is open"
    room.settle()
    for _ in range(10):
        room.come("a", dense=True)
    room.settle()
    assert [len(seat.runs) for seat in room.seating.seats.values() if seat.dense] == [10, 10]


def test_what_waits_costs_nothing() -> None:
    room = Room(solo_max=4)
    for _ in range(20_000):
        room.come("a")
    room.settle()
    began = time.process_time()
    for _ in range(1_000):
        room.seating.got_up(next(iter(room.seating.seat_of)))
        room.assign()
    # 20,000 looked at a thousand times would take seconds.
    assert time.process_time() - began < 0.5
    assert room.seating.queued == 20_000 - 4 - 1_000
