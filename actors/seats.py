"""Which run goes to which run actor, as plain data: ``assign`` says who sits down where, who is started and who leaves.

A *seat* is one run actor. A solo seat takes one run at a time and is reused; a dense seat takes many. A seat serves the
first tenant that it was given a run of, and no other. Nothing here waits or calls anybody: the supervisor does what
``assign`` says and tells what became of it.
"""

from __future__ import annotations

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
    """One run actor. ``tenant`` is empty until its first run."""

    name: str
    dense: bool
    tenant: str = ""
    open: bool = False
    leaving: bool = False
    runs: set[str] = field(default_factory=set[str])

    def room_for(self, waiting: Waiting) -> bool:
        """Whether this run may sit down here now."""
        if not self.open or self.leaving or self.tenant not in ("", waiting.tenant):
            return False
        if self.dense != (waiting.dense and not waiting.suspect):
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


class Seating:
    """All seats and the queue before them. ``warm``: solo seats that are kept ready without a run. ``solo_max`` and
    ``dense_max`` bound the seats of each kind."""

    def __init__(self, *, warm: int, solo_max: int, dense_max: int) -> None:
        self.warm = min(warm, solo_max)
        self.solo_max = solo_max
        self.dense_max = dense_max
        self.seats: dict[str, Seat] = {}
        self.seat_of: dict[str, str] = {}
        self._queue: deque[Waiting] = deque()
        self._queued: set[str] = set()

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._queued or run_id in self.seat_of

    @property
    def queued(self) -> int:
        """How many runs wait for a seat."""
        return len(self._queue)

    def enqueue(self, waiting: Waiting) -> bool:
        """Put a run in the queue; False if it is there, has a seat, or the queue is full."""
        if waiting.run_id in self or len(self._queue) >= QUEUE_MAX:
            return False
        self._queue.append(waiting)
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

    def assign(self) -> Assigned:
        """Seat whoever can be seated, first come first served among those of one tenant and kind, and say what else is
        to be done."""
        sit: list[tuple[str, str]] = []
        left: deque[Waiting] = deque()
        full: set[tuple[str, bool]] = set()
        solo_waits: list[Waiting] = []
        dense_waits = False
        while self._queue:
            waiting = self._queue.popleft()
            kind = (waiting.tenant, waiting.dense and not waiting.suspect)
            seat = None if kind in full else self._seat_for(waiting)
            if seat is not None:
                seat.tenant = waiting.tenant
                seat.runs.add(waiting.run_id)
                self.seat_of[waiting.run_id] = seat.name
                self._queued.discard(waiting.run_id)
                sit.append((waiting.run_id, seat.name))
                continue
            full.add(kind)
            left.append(waiting)
            if kind[1]:
                dense_waits = True
            elif len(solo_waits) < self.solo_max:
                solo_waits.append(waiting)
        self._queue = left
        start_solo, leave = self._solo_to_start(solo_waits)
        return Assigned(tuple(sit), start_solo, self._dense_to_start(dense_waits), leave)

    def _seat_for(self, waiting: Waiting) -> Seat | None:
        rooms = [seat for seat in self.seats.values() if seat.room_for(waiting)]
        # A seat that knows the tenant before one that is still free for any; then the emptiest.
        return min(rooms, key=lambda seat: (not seat.tenant, len(seat.runs)), default=None)

    def _solo_to_start(self, waits: list[Waiting]) -> tuple[int, tuple[str, ...]]:
        solo = [seat for seat in self.seats.values() if not seat.dense]
        starting = sum(1 for seat in solo if not seat.open)
        idle = [seat for seat in solo if seat.open and not seat.runs and not seat.leaving]
        fresh = sum(1 for seat in idle if not seat.tenant) if waits else len(idle)
        wanted = len(waits) + self.warm - starting - fresh
        room = self.solo_max - len(solo)
        start = max(0, min(wanted, room, STARTING_MAX - starting))
        leave: tuple[str, ...] = ()
        if waits and room <= 0 and not starting and not any(seat.leaving for seat in solo):
            # All seats are taken, and an idle one serves another tenant: it makes room.
            leave = tuple(seat.name for seat in idle[:1])
        return start, leave

    def _dense_to_start(self, waits: bool) -> int:
        dense = [seat for seat in self.seats.values() if seat.dense]
        if any(not seat.open for seat in dense):
            return 0
        if len(dense) >= self.dense_max:
            return 0
        # One after another: the first serves everybody while the next is made.
        return 1 if waits or (dense and all(len(seat.runs) > 0 for seat in dense)) else 0
