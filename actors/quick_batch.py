"""A batch of short reads in one executor: one after the other in the thread that was called, and past one that hangs.

While batches come, a thread looks at the one at work every few milliseconds. If nothing has ended since and calls are
left, one more thread goes on with them. The thread that was called can't come back from a call that hangs: what has
ended is then *harvested* by whoever waits for the batch, and the process has to be ended.

The validity of a read counts from when its own code begins: it has no effect that has to be over by then, and what it waited for
in its host, on its way and behind the others of its batch is no fault of it. The batch itself has an end.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from .execution import Report, not_dispatched
from .executors import Dispatch
from .reception import overdue, run_here

LOOK_S: Final = 0.005
"""A call that takes longer is passed."""

REST_S: Final = 1.0
"""Without a batch for so long, nobody looks any more until the next one comes."""

THREADS_MAX: Final = 8
"""At work on one batch; if so many are stuck, the others wait for their validity to end."""

BATCH_S: Final = 1.0
"""What hasn't begun so long after its batch did never begins."""

GRACE_S: Final = 0.02
"""Beyond a call's validity: its thread may just be about to end."""

Slot = Dispatch | Report


class QuickBatch:
    """``slots`` are dispatches, or reports of those that were refused on arrival."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._reports: list[Report | None] = [it if isinstance(it, Report) else None for it in slots]
        self._left = deque(place for place, it in enumerate(slots) if isinstance(it, Dispatch))
        self._open = len(self._left)
        self._open_before = -1
        self._threads = 1
        self._until_s = time.monotonic() + BATCH_S
        self._over = False
        self._changed = threading.Condition()

    def run(self) -> tuple[list[Report], bool]:
        """All reports in order, and whether a call is still at work in another thread."""
        self._work()
        return self.harvest() if self._open else self._settled()

    def harvest(self) -> tuple[list[Report], bool]:
        """The same from another thread, although this batch may never come to its end. Waits until it does or all times
        are over; what hasn't begun by then never begins."""
        with self._changed:
            while self._open and (left_s := self._left_s()) > 0:
                self._changed.wait(left_s)
            self._over = True
            return self._settled()

    def pass_by(self) -> None:
        """Look: if nothing has ended since the last time, have another thread take the next call."""
        with self._changed:
            stuck = self._open == self._open_before
            self._open_before = self._open
            if not stuck or self._over or not self._left or self._threads >= THREADS_MAX:
                return
            self._threads += 1
        threading.Thread(target=self._work, name="quick-reads", daemon=True).start()

    def _work(self) -> None:
        """Take calls until none is left."""
        while True:
            with self._changed:
                if self._over or not self._left:
                    return
                place = self._left.popleft()
                dispatch = self._slots[place]
                assert isinstance(dispatch, Dispatch)
                now = time.monotonic()
                dispatch.validity_from(now)
            report = _expired(dispatch) if now >= self._until_s else run_here(dispatch)
            with self._changed:
                self._reports[place] = report
                self._open -= 1
                self._changed.notify_all()

    def _left_s(self) -> float:
        """Until the last open call must be over, or the next must have begun."""
        waiting = set(self._left)
        ends = [
            _left_s(it)
            for place, (it, report) in enumerate(zip(self._slots, self._reports, strict=True))
            if report is None and isinstance(it, Dispatch) and place not in waiting
        ]
        if waiting:
            ends.append(self._until_s - time.monotonic())
        return max(ends, default=0.0) + GRACE_S

    def _settled(self) -> tuple[list[Report], bool]:
        reports: list[Report] = []
        stuck = False
        for place, (report, slot) in enumerate(zip(self._reports, self._slots, strict=True)):
            if report is None:
                assert isinstance(slot, Dispatch)
                waits = place in self._left
                stuck = stuck or not waits
                report = _expired(slot) if waits else overdue(slot)
            reports.append(report)
        return reports, stuck


class Passer:
    """The thread that looks at the batch at work. ``batch`` is None between two of them."""

    def __init__(self) -> None:
        self.batch: QuickBatch | None = None
        self._awake = threading.Event()
        threading.Thread(target=self._look, name="quick-passer", daemon=True).start()

    def begin(self, batch: QuickBatch) -> None:
        self.batch = batch
        if not self._awake.is_set():
            self._awake.set()

    def end(self) -> None:
        self.batch = None

    def _look(self) -> None:
        pause = threading.Event()
        idle_s = 0.0
        while True:
            batch = self.batch
            idle_s = 0.0 if batch is not None else idle_s + LOOK_S
            if batch is not None:
                batch.pass_by()
            elif idle_s > REST_S:
                self._awake.clear()
                if self.batch is None:  # else it came just now, and may have found this awake
                    self._awake.wait()
                idle_s = 0.0
            pause.wait(LOOK_S)


def _left_s(dispatch: Dispatch) -> float:
    return dispatch.started_s + dispatch.valid_ms / 1_000 - time.monotonic()


def _expired(dispatch: Dispatch) -> Report:
    return Report(not_dispatched(dispatch.call, dispatch.context.attempt, "expired"))
