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
"""A trial is over when both are. Its slowest statement isn't counted: the time since the answer before it may be one in
which all runs waited for something else, or the connection was made anew, and that says nothing of the way."""

TRIALS_KEPT: Final = 50
"""Trials of the better way before the other is tried again, so that in a load that lasts the trials of the worse one cost a
few hundredths of what lies between them. A load of a few seconds pays more: its first trials are a good part of it."""

TRIALS_UNSURE: Final = 5
"""As many while a second trial of the other hasn't confirmed it. A rate may be of moments in which few runs had anything to
write, as when they come back one by one from a model."""

BETTER: Final = 1.05
"""Half must be better by so much: it makes each append wait longer."""


class Pace:
    """``of`` before each statement, ``answered`` after it. On one thread."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.way: Way = "all"
        self._clock = clock
        self._rates: dict[Way, float] = {}
        self._better: Way | None = None
        self._sure = False
        self._since_tried = 0
        self._answered_s = 0.0
        self._statements = -SETTLING
        self._appends = 0
        self._passed_s = 0.0
        self._slowest = (0.0, 0)
        self._had_choice = False

    def of(self, waiting: int) -> int:
        """How many of so many go now."""
        if waiting <= TOGETHER:
            return waiting
        self._had_choice = True
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
        now_s = self._clock()
        took_s, self._answered_s = now_s - self._answered_s, now_s
        self._statements += 1
        if self._statements <= 0:
            return
        self._appends += appends
        self._passed_s += took_s
        self._slowest = max(self._slowest, (took_s, appends))
        slowest_s, slowest_appends = self._slowest
        counted_s = self._passed_s - slowest_s
        if self._statements >= TRIAL_STATEMENTS and counted_s >= TRIAL_S:
            if self._had_choice:
                self._rates[self.way] = (self._appends - slowest_appends) / counted_s
                self._judge()
            else:
                self._again()  # few waited all the time: either way they go together

    def _again(self) -> None:
        """Another trial of the same way, which needs no settling."""
        self._statements = self._appends = 0
        self._passed_s, self._slowest = 0.0, (0.0, 0)
        self._had_choice = False

    def _judge(self) -> None:
        other: Way = "half" if self.way == "all" else "all"
        self._since_tried += 1
        if other not in self._rates or self._since_tried > (TRIALS_KEPT if self._sure else TRIALS_UNSURE):
            self._since_tried = 0
            way = other
        else:
            way = "half" if self._rates["half"] > BETTER * self._rates["all"] else "all"
            if way != self._better:
                self._better, self._sure = way, False
            elif self._since_tried == 1:
                self._sure = True  # the other was tried again, and is the worse one still
        self._again()
        if way != self.way:
            self.way = way
            self._statements = -SETTLING
