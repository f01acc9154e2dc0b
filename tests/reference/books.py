"""What a tree of runs used, counted by the world: by what it was asked to do and what it answered, never by a meter.

A run's own use is what was sent for it; what it is charged is that, and what its settled children were charged. A lease
is what the parent's log set aside for a child. From these three follows what every meter must show.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

COUNTS = ("turns", "model_attempts", "tool_calls", "call_attempts", "children")
TOKENS = ("input_tokens", "output_tokens", "total_tokens")
QUANTITIES = (*COUNTS, *TOKENS, "cost_micros")


@dataclass(frozen=True)
class Request:
    """One model request as it was sent: its place, and the most that it may use."""

    turn: int
    attempt: int
    input_tokens: int
    output_tokens: int


@dataclass
class Lease:
    """What is set aside for the child of one call."""

    child: str
    granted: Counter[str] = field(default_factory=Counter[str])
    settled: bool = False


@dataclass
class Book:
    """One run's page."""

    parent: str = ""
    used: Counter[str] = field(default_factory=Counter[str])
    request: Request | None = None
    admitted: set[str] = field(default_factory=set[str])
    started: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    leases: dict[str, Lease] = field(default_factory=dict[str, Lease])
    out: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    """What executions that are out may cost."""

    def sent(self, request: Request) -> None:
        """A request that is out; the one before, if nobody answered it, is spent as it was set aside."""
        if self.request == request:
            return
        self.nobody_answered()
        self.used["turns"] += request.attempt == 1
        self.used["model_attempts"] += 1
        self.request = request

    def nobody_answered(self) -> None:
        if self.request is not None:
            self.answered(self.request.input_tokens, self.request.output_tokens)

    def answered(self, input_tokens: int, output_tokens: int) -> None:
        self.used.update(
            input_tokens=input_tokens, output_tokens=output_tokens, total_tokens=input_tokens + output_tokens
        )
        self.request = None

    def started_call(self, call: str, attempt: int, cost: int, *, child: bool) -> None:
        """An execution, or a child run, of which the world was told."""
        if (call, attempt) in self.started:
            return
        self.used["tool_calls"] += attempt == 1
        self.used["call_attempts"] += 1
        self.used["children"] += child
        self.out[call, attempt] = cost
        self.started.add((call, attempt))

    def ended_call(self, call: str, attempt: int) -> None:
        """It came to something, or was given up: what was set aside for it is spent, since no tool here says less."""
        self.used["cost_micros"] += self.out.pop((call, attempt), 0)


@dataclass
class Books:
    """A page a run."""

    pages: dict[str, Book] = field(default_factory=dict[str, Book])

    def charged(self, run: str) -> Counter[str]:
        """What a run's meters must have spent."""
        total = Counter(self.pages[run].used)
        for lease in self.pages[run].leases.values():
            if lease.settled:
                total.update(self.charged(lease.child))
        return total

    def used_below(self, run: str) -> Counter[str]:
        """What a run and all runs below it used, settled or not."""
        total = Counter(self.pages[run].used)
        for lease in self.pages[run].leases.values():
            if lease.child in self.pages:
                total.update(self.used_below(lease.child))
        return total

    def set_aside(self, run: str) -> Counter[str]:
        """What a run's meters must hold reserved."""
        page = self.pages[run]
        total: Counter[str] = Counter(tool_calls=len(page.admitted))
        if page.request is not None:
            most = page.request
            total.update(
                input_tokens=most.input_tokens,
                output_tokens=most.output_tokens,
                total_tokens=most.input_tokens + most.output_tokens,
            )
        total["cost_micros"] += sum(page.out.values())
        for lease in page.leases.values():
            if not lease.settled:
                total.update(lease.granted)
        return total
