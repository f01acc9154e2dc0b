"""Reserve, spend, settle: how everything that is limited moves, and the law it obeys.

    granted + overrun = spent + reserved + free,  free >= 0,  nothing free beside an overrun

A ``Meter`` holds one quantity of one run. What is reserved can't be reserved again; usage above its reservation draws
on what is free first, and only the rest is overrun (recorded, and nothing further is sent). A child's lease is a
reservation of the parent's meter until the child's own log settles it. All functions are pure arithmetic on the meter.
"""

from __future__ import annotations

import msgspec

from .errors import BugError

UNLIMITED = 2**62
"""``granted`` of a meter whose limit was waived. Only cost can be; the counter itself is kept all the same."""


class Meter(msgspec.Struct, gc=False):
    """One limited quantity. All fields are integers of the quantity's own unit."""

    granted: int
    spent: int = 0
    reserved: int = 0
    overrun: int = 0

    @property
    def free(self) -> int:
        """What can still be reserved or spent."""
        return self.granted + self.overrun - self.spent - self.reserved

    def reserve(self, amount: int) -> None:
        """Set aside. Raises ``BugError`` if it isn't free: callers decide from ``free`` before they ask."""
        if amount < 0 or amount > self.granted + self.overrun - self.spent - self.reserved:
            raise BugError("law_broken", f"reserve {amount} of {self.free} free")
        self.reserved += amount

    def settle(self, reserved: int, spent: int) -> None:
        """Close a reservation with what was really used. The excess over everything free becomes overrun."""
        if reserved < 0 or spent < 0 or reserved > self.reserved:
            raise BugError("law_broken", f"settle {reserved} of {self.reserved} reserved with {spent}")
        self.reserved -= reserved
        excess = spent - (self.granted + self.overrun - self.spent - self.reserved)
        if excess > 0:
            self.overrun += excess
        self.spent += spent
        if self.overrun:
            # What one child left over covers what another overran: nothing is free beside an overrun.
            self.overrun -= min(self.overrun, self.free)

    def spend(self, amount: int) -> None:
        """Use at once, without a reservation before; never more than is free."""
        if amount < 0 or amount > self.granted + self.overrun - self.spent - self.reserved:
            raise BugError("law_broken", f"spend {amount} of {self.free} free")
        self.spent += amount

    def raise_to(self, granted: int) -> None:
        """Grant more. Never less: deadlines and limits only shrink downwards a tree, not in time."""
        if granted < self.granted:
            raise BugError("law_broken", f"lower {self.granted} to {granted}")
        # An overrun that the new grant covers is no overrun any more.
        covered = min(self.overrun, granted - self.granted)
        self.granted = granted
        self.overrun -= covered


def law_holds(meter: Meter) -> bool:
    """The law at one meter: conservation, nothing negative, and nothing free beside an overrun."""
    return (
        meter.granted + meter.overrun == meter.spent + meter.reserved + meter.free
        and min(meter.spent, meter.reserved, meter.overrun, meter.free) >= 0
        and not (meter.overrun and meter.free)
    )


def child_shares(free: int, children: int) -> tuple[int, ...]:
    """The grants of children without limits of their own that start in one tick: half of what is free, in equal
    parts, rounded down. The other half stays with the parent for its own turns and for top-ups."""
    if children < 1 or free < 0:
        raise BugError("child_share", f"{children} children of {free} free")
    return (free // 2 // children,) * children


def child_grant(free: int, share: int, asked: int | None) -> int:
    """One child's grant: what it asked for if that is free, its share if it asked for nothing, never above free."""
    return min(free, share if asked is None else asked)


def top_up(free: int, asked: int) -> int:
    """What a child that runs out gets on top, recorded in the parent's log before it stops: all it asks for, or what
    is left; 0 means that the child stops with its own limit's reason."""
    return max(0, min(free, asked))
