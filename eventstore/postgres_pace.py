"""How many of the appends that wait go in the next statement: all of them, or half.

One statement is out at a time. With all that wait in it, the host has nothing to do until it is answered, and the server
nothing until the answered runs come back with their next appends: each waits for the other. Of those that wait when it is
answered half go, before the answered ones come back: so in steady work a third of the runs is at the server, a third works
here, and a third waits. But a statement has a price of its own (a flush, a standby, the way there), which is paid three
times as often then.

Which is better hangs on that price, on the server, on what the runs do between two appends, and on whatever else this
process does; none of it is known here. So both are tried, and what answered more appends a second is kept, and the other
one tried again now and then.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final, Literal

Way = Literal["all", "half"]

TOGETHER: Final = 16
"""So many go in any case. Runs whose tools are on Ray come back in the batches that they went in, and a call of Ray
costs the same for a few as for many."""

SETTLING: Final = 3
"""Statements after a change of the way that say nothing of it: those before them were of the other one."""

TRIAL_STATEMENTS: Final = 12
TRIAL_S: Final = 0.2
"""A trial is over when both are."""

TRIALS_KEPT: Final = 50
"""Trials of the better way before the other is tried again, so that the trials of the worse one cost a few hundredths of what lies between them."""

BETTER: Final = 1.05
"""Half must be better by so much: it makes each append wait longer."""


class Pace:
    """``of`` before each statement, ``answered`` after it. On one thread."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.way: Way = "all"
        self._clock = clock
        self._rates: dict[Way, float] = {}
        self._kept = 0
        self._begun_s = 0.0
        self._appends = 0
        self._statements = -SETTLING
        self._matters = False

    def of(self, waiting: int) -> int:
        """How many of so many go now."""
        if waiting <= TOGETHER:
            return waiting
        self._matters = True
        if self.way == "all":
            return waiting
        return max((waiting + 1) // 2, TOGETHER)

    @property
    def waits_for_answered(self) -> bool:
        """Whether those that were just answered are to have a turn before the next statement. Else they and those that
        waited meanwhile would take turns for ever, in halves though all are to go."""
        return self.way == "all"

    def answered(self, appends: int) -> None:
        """A statement of so many appends was answered."""
        self._statements += 1
        if self._statements <= 0:
            self._begun_s = self._clock()
            return
        self._appends += appends
        passed_s = self._clock() - self._begun_s
        if self._statements >= TRIAL_STATEMENTS and passed_s >= TRIAL_S:
            if self._matters:
                self._rates[self.way] = self._appends / passed_s
                self._judge()
            else:
                self._again()  # few waited all the time: either way they go together

    def _again(self) -> None:
        """Another trial of the same way, which needs no settling."""
        self._matters = False
        self._appends = self._statements = 0
        self._begun_s = self._clock()

    def _judge(self) -> None:
        other: Way = "half" if self.way == "all" else "all"
        self._kept += 1
        if other not in self._rates or self._kept > TRIALS_KEPT:
            self._kept = 0
            way = other
        else:
            way = "half" if self._rates["half"] > BETTER * self._rates["all"] else "all"
        self._again()
        if way != self.way:
            self.way = way
            self._statements = -SETTLING
