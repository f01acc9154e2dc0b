"""What a session of seeds adds up to, in a form that processes can hand to each other."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from .triples import Triple
from .world import World

LIMIT_REASONS: Final = frozenset(
    {
        "max_turns",
        "max_tool_calls",
        "budget_tokens",
        "budget_cost",
        "deadline",
        "no_progress",
        "context_exhausted",
    }
)
"""Stops that say that a limit of the run was reached, and nothing else."""


class Violation(msgspec.Struct, frozen=True):
    """A seed in which a law broke."""

    seed: int
    law: str
    what: str


class Summary(msgspec.Struct):
    """Counts over seeds. ``events`` and ``runs`` have one number a seed."""

    events: list[int] = []
    runs: list[int] = []
    faults: Counter[str] = msgspec.field(default_factory=Counter[str])
    outcomes: Counter[str] = msgspec.field(default_factory=Counter[str])
    runs_with_effect: int = 0
    runs_ended_by_limit: int = 0
    requests: int = 0
    effects: int = 0
    epochs_most: int = 0
    at_appends: set[Triple] = msgspec.field(default_factory=set[Triple])
    beside: set[Triple] = msgspec.field(default_factory=set[Triple])
    walked: set[tuple[str, str, str]] = msgspec.field(default_factory=set[tuple[str, str, str]])
    violations: list[Violation] = []

    def add(self, world: World) -> None:
        """One seed that was played."""
        judge = world.judge
        self.events.append(judge.events)
        self.runs.append(len(judge.runs))
        self.faults.update(world.faults)
        for run_id, watch in judge.runs.items():
            state = watch.state
            ended = f"{state.outcome}, {state.reason}" if state.outcome else "waiting"
            self.outcomes[ended if watch.ended or not state.outcome else f"{ended} (stopped)"] += 1
            self.runs_with_effect += run_id in world.far_side.runs
            self.runs_ended_by_limit += state.reason in LIMIT_REASONS
            self.epochs_most = max(self.epochs_most, watch.epoch)
        self.requests += sum(world.far_side.requests.values())
        self.effects += sum(world.far_side.effects.values())
        self.at_appends |= world.triples.at_appends
        self.beside |= world.triples.beside
        self.walked |= judge.walked
        if judge.violation is not None:
            law, what = judge.violation
            self.violations.append(Violation(world.plan.seed, law, what))

    def merge(self, other: Summary) -> None:
        """What another process played."""
        self.events += other.events
        self.runs += other.runs
        self.faults += other.faults
        self.outcomes += other.outcomes
        self.runs_with_effect += other.runs_with_effect
        self.runs_ended_by_limit += other.runs_ended_by_limit
        self.requests += other.requests
        self.effects += other.effects
        self.epochs_most = max(self.epochs_most, other.epochs_most)
        self.at_appends |= other.at_appends
        self.beside |= other.beside
        self.walked |= other.walked
        self.violations += other.violations
