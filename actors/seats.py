"""Which run goes to which run actor, as plain data: ``assign`` says who sits down where, who is started and who leaves.

A *seat* is one run actor. A solo seat takes one run at a time and is reused; a dense seat takes many. A seat serves the
first tenant that it was given a run of, and no other. Nothing here waits or calls anybody: the supervisor does what
``assign`` says and tells what became of it.

Runs of one tenant and kind form a *line*, first come first served. A line without a seat of its tenant is *outside*: if no
seat can be made for it, the next seat that falls idle and whose own line is younger, or empty, leaves to make room. So the
run that has waited longest is always served next of all that its seat can serve, and no tenant keeps another one out.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import Final

DENSE_RUNS_MAX: Final = 5_000
"""Runs in one dense seat; further ones wait."""

STARTING_MAX: Final = 2
"""Seats being made at the same time: each takes a third of a second of a core and more."""

QUEUE_MAX: Final = 50_000
"""Runs that may wait for a seat. They are durable in the store; this only bounds what is remembered of them here."""


@dataclass(slots=True)
class Seat:
    """One run actor. ``tenant`` is empty until its first run. ``leaving``: nobody sits down any more. ``makes_room``: it
    is to leave once it is empty."""

    name: str
    dense: bool
    tenant: str = ""
    open: bool = False
    leaving: bool = False
    makes_room: bool = False
    runs: set[str] = field(default_factory=set[str])

    @property
    def free(self) -> bool:
        """Whether it takes a further run, of its tenant."""
        if not self.open or self.leaving or self.makes_room:
            return False
        return len(self.runs) < (DENSE_RUNS_MAX if self.dense else 1)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A run without a host. ``suspect``: a host died in it, so it gets a seat to itself."""

    run_id: str
    tenant: str
    dense: bool
    suspect: bool = False


@dataclass(frozen=True, slots=True)
class Assigned:
    """What is to be done: runs to seats by name, how many seats of each kind to start, and seats to end."""

    sit: tuple[tuple[str, str], ...]
    start_solo: int
    start_dense: int
    leave: tuple[str, ...]


_Line = deque[tuple[int, str]]
"""(number of arrival, run id)"""

_Kind = tuple[str, bool]
"""(tenant, dense)"""


class Seating:
    """All seats and the queue before them. ``warm``: solo seats that are kept ready without a run. ``solo_max`` and
    ``dense_max`` bound the seats of each kind, those that are being made or are leaving included."""

    def __init__(self, *, warm: int, solo_max: int, dense_max: int) -> None:
        self.warm = min(warm, solo_max)
        self.solo_max = solo_max
        self.dense_max = dense_max
        self.seats: dict[str, Seat] = {}
        self.seat_of: dict[str, str] = {}
        self._lines: dict[_Kind, _Line] = {}
        self._queued: set[str] = set()
        self._arrivals = 0

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._queued or run_id in self.seat_of

    @property
    def queued(self) -> int:
        """How many runs wait for a seat."""
        return len(self._queued)

    def queued_runs(self) -> tuple[str, ...]:
        """The runs that wait for a seat, in no order."""
        return tuple(self._queued)

    @property
    def open_seats(self) -> int:
        """How many seats there are that take, or have, runs."""
        return sum(1 for seat in self.seats.values() if seat.open and not seat.leaving)

    def enqueue(self, waiting: Waiting) -> bool:
        """Put a run in the queue; False if it is there, has a seat, or the queue is full."""
        if waiting.run_id in self or len(self._queued) >= QUEUE_MAX:
            return False
        self._arrivals += 1
        kind = (waiting.tenant, waiting.dense and not waiting.suspect)
        self._lines.setdefault(kind, deque()).append((self._arrivals, waiting.run_id))
        self._queued.add(waiting.run_id)
        return True

    def starting(self, name: str, *, dense: bool) -> Seat:
        """A seat is being made."""
        seat = self.seats[name] = Seat(name, dense)
        return seat

    def opened(self, name: str) -> None:
        """It is ready for runs."""
        self.seats[name].open = True

    def got_up(self, run_id: str) -> None:
        """The run has left its seat."""
        name = self.seat_of.pop(run_id, None)
        if name is not None and name in self.seats:
            self.seats[name].runs.discard(run_id)

    def gone(self, name: str) -> tuple[str, ...]:
        """A seat is no more; the runs that it had."""
        seat = self.seats.pop(name, None)
        if seat is None:
            return ()
        for run_id in seat.runs:
            self.seat_of.pop(run_id, None)
        return tuple(sorted(seat.runs))

    def leaving(self, name: str) -> None:
        """No further run sits down there."""
        if name in self.seats:
            self.seats[name].leaving = True

    # --- who sits down where -----------------------------------------------------------------------------------------

    def assign(self) -> Assigned:
        """Seat whoever can be seated and say what else is to be done. Costs what is seated, the seats and the lines; how
        many runs wait is nothing to it."""
        sit: list[tuple[str, str]] = []
        leave = [*self._make_room(dense=False), *self._make_room(dense=True)]
        self._seat_all(sit, dense=False)
        self._seat_all(sit, dense=True)
        for kind in [kind for kind, line in self._lines.items() if not line]:
            del self._lines[kind]
        return Assigned(tuple(sit), self._solo_to_start(), self._dense_to_start(), tuple(leave))

    def _seat_all(self, sit: list[tuple[str, str]], *, dense: bool) -> None:
        free: dict[str, list[tuple[int, str]]] = {}
        for seat in self.seats.values():
            if seat.dense == dense and seat.free:
                free.setdefault(seat.tenant, []).append((len(seat.runs), seat.name))
        for seats in free.values():
            heapq.heapify(seats)  # the emptiest first
        # A seat that nobody has sat in yet is for whoever is outside, then for those who have seats that are taken.
        for kind in self._by_age(dense=dense, outside=True) if "" in free else ():
            self._fill(kind, free, sit, runs_max=1)
        for kind in self._by_age(dense=dense, outside=None):
            self._fill(kind, free, sit, runs_max=len(self._lines[kind]))

    def _fill(
        self, kind: _Kind, free: dict[str, list[tuple[int, str]]], sit: list[tuple[str, str]], runs_max: int
    ) -> None:
        tenant, line = kind[0], self._lines[kind]
        for _ in range(runs_max):
            own, fresh = free.setdefault(tenant, []), free.get("", [])
            if not (own or fresh) or not line:
                return
            # Rather a fresh dense seat than one that has runs already.
            name = heapq.heappop(fresh if not own or (fresh and own[0][0]) else own)[1]
            seat = self.seats[name]
            run_id = line.popleft()[1]
            seat.tenant = tenant
            seat.runs.add(run_id)
            self.seat_of[run_id] = name
            self._queued.discard(run_id)
            sit.append((run_id, name))
            if seat.free:
                heapq.heappush(own, (len(seat.runs), name))

    def _by_age(self, *, dense: bool, outside: bool | None) -> list[_Kind]:
        """The lines of this kind, that which waits longest first."""
        inside = {seat.tenant for seat in self.seats.values() if seat.dense == dense and not seat.leaving}
        kinds = [
            kind
            for kind, line in self._lines.items()
            if line and kind[1] == dense and outside in (None, kind[0] not in inside)
        ]
        return sorted(kinds, key=lambda kind: self._lines[kind][0][0])

    def _make_room(self, *, dense: bool) -> list[str]:
        """Seats to end for lines that are outside, where no further seat can be made. Done before anybody sits down: the
        seat that has just fallen idle is the one."""
        seats = [seat for seat in self.seats.values() if seat.dense == dense]
        leave = [seat for seat in seats if seat.makes_room and not seat.runs and not seat.leaving]
        coming = sum(1 for seat in seats if not seat.tenant or seat.leaving or seat.makes_room)
        coming += (self.dense_max if dense else self.solo_max) - len(seats)
        for kind in self._by_age(dense=dense, outside=True)[max(0, coming) :]:
            seat = self._younger_than(self._lines[kind][0][0], seats)
            if seat is None:
                break
            seat.makes_room = True
            if not seat.runs:
                leave.append(seat)
        for seat in leave:
            seat.leaving = True
        return [seat.name for seat in leave]

    def _younger_than(self, arrival: int, seats: list[Seat]) -> Seat | None:
        """A seat that can make room for a run that came then: nobody who came before wants it. A solo one is idle; a dense
        one needn't be empty yet, since it may never be."""

        def fit(seat: Seat) -> bool:
            if not seat.tenant or seat.leaving or seat.makes_room or (seat.runs and not seat.dense):
                return False
            line = self._lines.get((seat.tenant, seat.dense))
            return not line or line[0][0] > arrival

        return min(filter(fit, seats), key=lambda seat: len(seat.runs), default=None)

    # --- how many are made -------------------------------------------------------------------------------------------

    def _solo_to_start(self) -> int:
        solo = [seat for seat in self.seats.values() if not seat.dense]
        starting = sum(1 for seat in solo if not seat.open)
        waits = sum(len(line) for (_, dense), line in self._lines.items() if not dense)
        # Whoever waits now could not sit down in any seat that is idle, so none of those counts as warm.
        idle = 0 if waits else sum(1 for seat in solo if seat.open and not seat.runs and not seat.leaving)
        wanted = waits + self.warm - starting - idle
        return max(0, min(wanted, self.solo_max - len(solo), STARTING_MAX - starting))

    def _dense_to_start(self) -> int:
        dense = [seat for seat in self.seats.values() if seat.dense]
        if len(dense) >= self.dense_max or any(not seat.open for seat in dense):
            return 0
        # One after another: the first serves everybody while the next is made.
        waits = any(line for (_, of_dense), line in self._lines.items() if of_dense)
        return 1 if waits or (dense and all(seat.runs for seat in dense)) else 0
