"""The places of one limited group: how many are held, which are lost until when, and whether it is closed."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class GroupPlaces:
    """``held``: by calls at work. ``lost``: until when each of the others that are taken stays so. Before ``closed_until_ms``
    there is no room at all."""

    limit: int
    closed_until_ms: int = 0
    held: int = 0
    lost: list[int] = field(default_factory=list[int])

    def room(self, now_ms: int) -> int:
        """How many more calls may be at the far side."""
        return 0 if now_ms < self.closed_until_ms else self.limit - self.held - len(self.lost)

    def lose(self, until_ms: int) -> None:
        """One that was held stays taken until then."""
        self.held -= 1
        self.lost.append(until_ms)

    def pass_time(self, now_ms: int) -> None:
        """What was taken until now is free."""
        self.lost = [until for until in self.lost if until > now_ms]
        if self.closed_until_ms <= now_ms:
            self.closed_until_ms = 0

    def taken_until_ms(self, now_ms: int) -> list[int]:
        """Until when each place is taken that no call holds."""
        closed = [self.closed_until_ms] * self.limit if self.closed_until_ms > now_ms else []
        return closed + [until for until in self.lost if until > now_ms]
