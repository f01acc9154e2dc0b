"""How many of the appends that wait go in the next statement: all of them, or half.

One statement is out at a time. With all that wait in it, the host has nothing to do until it is answered, and the server
nothing until the answered runs come back with their next appends: each waits for the other. Of those that wait when it is
answered half go, before the answered ones come back: so in steady work a third of the runs is at the server, a third works
here, and a third waits. But a statement has a price of its own (a flush, a standby, the way there), which is paid three
times as often then. So half go for as long as this host works for more than half of the time that a statement takes: while
it mostly waits, more at a time is what helps. Where neither is much better it may change between the two.
"""

from __future__ import annotations

from typing import Final

TOGETHER: Final = 16
"""So many go in any case. Runs whose tools are on Ray come back in the batches that they went in, and a call of Ray
costs the same for a few as for many."""

KEPT: Final = 0.75
"""How much of what was known stays when another statement is measured."""


class Pace:
    """``measured`` after each statement, ``of`` before the next. On one thread."""

    def __init__(self) -> None:
        self._statement_s = 0.0
        self._work_s = 0.0

    def measured(self, statement_s: float, work_s: float) -> None:
        """A statement took ``statement_s``; from the end of the one before to its own this thread worked for ``work_s``."""
        self._statement_s += (statement_s - self._statement_s) * (1 - KEPT)
        self._work_s += (work_s - self._work_s) * (1 - KEPT)

    def of(self, waiting: int) -> int:
        """How many of so many go now."""
        if waiting <= TOGETHER or 2 * self._work_s <= self._statement_s:
            return waiting
        return max((waiting + 1) // 2, TOGETHER)
