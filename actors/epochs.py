"""The highest epoch that an executor has seen of each run: a dispatch of a lower one comes from a host that lost it."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

EPOCHS_KEPT_MAX: Final = 100_000
"""Runs that are remembered; more than a host carries at once, the least recently dispatched go first."""


class Epochs:
    """Not for two threads at once."""

    __slots__ = ("_highest",)

    def __init__(self) -> None:
        self._highest: OrderedDict[str, int] = OrderedDict()

    def admit(self, run_id: str, epoch: int) -> bool:
        """Whether no higher one was seen of the run; from then on lower ones are refused."""
        highest = self._highest.get(run_id, 0)
        if epoch < highest:
            return False
        self._highest[run_id] = epoch
        if highest:
            self._highest.move_to_end(run_id)
        elif len(self._highest) > EPOCHS_KEPT_MAX:
            self._highest.popitem(last=False)
        return True
