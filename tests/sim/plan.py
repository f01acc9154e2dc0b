"""What a seed stands for: the runs that are started, how the world is set up, and the faults that strike when.

A plan is plain data made from the seed alone. Whatever else is left to chance during a seed (what the model says, how
long something takes) is drawn by ``dice`` from the seed and the name of what it is for, so leaving one fault out of a
plan doesn't reshuffle the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from random import Random
from typing import Final

import msgspec

from .kinds import KINDS, PASSES
from .pinned import GOALS, NOT_TIGHT, PROFILES

STRIKES_MAX: Final = 7
TIME_MS_MAX: Final = 9_000
LOST_MAX: Final = 3
_LOST: Final = ("queryable_lost", "queryable_late", "queryable_unheard")


class Strike(msgspec.Struct, frozen=True):
    """One planned fault: at the ``nth`` pass of its kind's point, or at the millisecond ``nth``."""

    kind: str
    nth: int
    size: int

    def __str__(self) -> str:
        at = (
            f"at {self.nth} ms"
            if KINDS[self.kind].point == "time"
            else f"at {KINDS[self.kind].point} {self.nth}"
        )
        return f"{self.kind} {at}, size {self.size}"


class Root(msgspec.Struct, frozen=True):
    """A run that somebody starts."""

    run_id: str
    at_ms: int
    profile: str
    goal: str
    operation: str
    on_stop: str
    hosted: bool


class Plan(msgspec.Struct, frozen=True):
    """``hosts``: how many there are at first. ``slow_store``: each request takes a moment, so that hosts interleave.
    ``pooled``: hosts share their executors, which then know every run's newest epoch."""

    seed: int
    hosts: int
    slow_store: bool
    pooled: bool
    roots: tuple[Root, ...]
    strikes: tuple[Strike, ...]


def dice(seed: int, *names: object) -> Random:
    """The chance that belongs to this name in this seed."""
    text = "/".join(map(str, names)).encode("utf-8", "backslashreplace")
    digest = blake2b(text, digest_size=8, key=seed.to_bytes(8, "big")).digest()
    return Random(int.from_bytes(digest, "big"))


@lru_cache(maxsize=1)
def _weighted() -> tuple[list[str], list[int]]:
    return list(KINDS), [kind.weight for kind in KINDS.values()]


def plan_of(seed: int) -> Plan:
    """The plan of a seed, the same everywhere and for ever."""
    chance = dice(seed, "plan")
    names, weights = _weighted()
    count = 0 if chance.random() < 0.06 else chance.randint(3, STRIKES_MAX)
    return Plan(
        seed=seed,
        hosts=chance.choice((1, 2, 2, 2, 3)),
        slow_store=chance.random() < 0.3,
        pooled=chance.random() < 0.5,
        roots=_roots(chance),
        strikes=tuple(_strikes(chance, chance.choices(names, weights, k=count))),
    )


def _strikes(chance: Random, kinds: list[str]) -> Iterator[Strike]:
    """The far side is only asked about effects that got lost, so a fault of a question brings some of those."""
    for kind in kinds:
        yield Strike(kind, _nth(chance, kind), chance.randrange(1_000))
        if KINDS[kind].point == "query":
            lost = _LOST[:2] if kind == "query_late" else _LOST
            for nth in range(1, LOST_MAX + 1):
                yield Strike(chance.choice(lost), nth, chance.randrange(1_000))


def _nth(chance: Random, kind: str) -> int:
    point = KINDS[kind].point
    return chance.randrange(TIME_MS_MAX) if point == "time" else chance.randint(1, PASSES[point])


def _roots(chance: Random) -> tuple[Root, ...]:
    roots: list[Root] = []
    for number in range(chance.choice((1, 1, 2, 2))):
        tight = chance.random() < 0.06
        profile = chance.choice([name for name in PROFILES if name not in NOT_TIGHT])
        if not tight:
            profile = chance.choices(NOT_TIGHT, (70, 11, 15, 4))[0]
        roots.append(
            Root(
                run_id=f"root{number}",
                at_ms=number * chance.choice((0, 400, 2_500)),
                profile=profile,
                goal=chance.choice(("", "", *GOALS)),
                operation="op" if chance.random() < 0.4 else f"op{number}",
                on_stop=chance.choice(("suspend", "suspend", "end")),
                hosted=chance.random() < 0.5,
            )
        )
    return tuple(roots)
