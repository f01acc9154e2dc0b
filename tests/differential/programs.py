"""Random programs for stores: what is done is drawn beforehand, and depends on no store's answers.

A step names writers, keys and hosts by number. A writer knows what its own store told it, as a host does; so where a store
answers otherwise than another, their programs part, and the first answer that differs is the fault.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import msgspec

RUNS: Final = 6
KEYS: Final = 3
HOSTS: Final = 3
TENANTS: Final = ("acme", "other")
STEPS: Final = 60


class Step(msgspec.Struct, frozen=True):
    """``what`` is a method of ``play.Player``, ``with_`` its arguments."""

    what: str
    with_: dict[str, Any]


def program(seed: int) -> list[Step]:
    """The same for the same seed, always."""
    draw = random.Random(seed)
    return [_step(draw) for _ in range(STEPS)]


def _step(draw: random.Random) -> Step:
    what = draw.choices(tuple(_WEIGHTS), tuple(_WEIGHTS.values()))[0]
    if what == "together":
        return Step(what, {"appends": [_append(draw) for _ in range(draw.randint(2, 6))]})
    return Step(what, _ARGUMENTS[what](draw))


def _append(draw: random.Random) -> dict[str, Any]:
    """``how`` it relates to what its writer knows, and what it carries."""
    settlements = [_settlement(draw) for _ in range(draw.choices((0, 1, 2), (6, 3, 1))[0])]
    waiting = draw.sample(range(KEYS), draw.choices((0, 1, 2), (6, 3, 1))[0])
    return {
        "run": draw.randrange(RUNS),
        "how": draw.choices(tuple(_HOW), tuple(_HOW.values()))[0],
        "text": draw.choices(("x", "long " * 4_000, "a\0b"), (20, 1, 1))[0],
        "events": draw.choices((1, 2, 20), (6, 3, 1))[0],
        "later_ms": draw.choices((0, 1, 50, -1), (8, 4, 2, 1))[0],
        "status": draw.choices(("open_calls", "suspended", "terminated"), (10, 5, 1))[0],
        "waiting_for": draw.choice(("", "", "approval:a1", "key", "timer")),
        "waiting_keys": sorted(waiting),
        "wake_in_ms": draw.choices((None, 0, 30, 5_000), (6, 1, 2, 1))[0],
        "claim": _claim(draw) if draw.random() < 0.35 else None,
        "settlements": settlements,
        "settled_first": draw.randint(0, len(settlements)),
        "release": draw.random() < 0.3,
        "ready": draw.random() < 0.15,
        "wakes": draw.sample(range(RUNS + 1), draw.choices((0, 1, 3), (6, 2, 1))[0]),
        "blob": draw.choices((None, 10, 300_000), (12, 2, 1))[0],
        "host": draw.randrange(HOSTS),
    }


def _claim(draw: random.Random) -> dict[str, Any]:
    return {
        "key": draw.randrange(KEYS),
        "call": draw.randrange(2),
        "kind": draw.choice(("intent", "intent", "approval")),
        "intent": draw.choices((0, 1), (5, 1))[0],
        "attempt": draw.randint(1, 3),
        "over": None if draw.random() < 0.7 else [draw.randrange(RUNS), draw.randrange(2)],
        "foreign": draw.random() < 0.03,
    }


def _settlement(draw: random.Random) -> dict[str, Any]:
    return {
        "key": draw.randrange(KEYS),
        "call": draw.randrange(2),
        "to": draw.choice(
            ("succeeded", "succeeded", "unknown", "unknown", "in_flight", "rejected", "free", "free")
        ),
        "sent": draw.random() < 0.3,
        "foreign": draw.random() < 0.02,
    }


_HOW: Final = {
    "good": 30,
    "again": 4,
    "rival": 4,
    "stale": 3,
    "old_epoch": 2,
    "new_epoch": 1,
    "other_history": 1,
    "gap": 1,
}

_WEIGHTS: Final = {
    "append": 40,
    "together": 10,
    "acquire": 14,
    "release": 5,
    "register": 5,
    "renew": 3,
    "drop": 3,
    "advance": 10,
    "look": 12,
    "switch": 3,
    "blob": 2,
    "damage": 1,
    "prune": 4,
    "submit": 2,
    "hold": 1,
}

_ARGUMENTS: Final[dict[str, Callable[[random.Random], dict[str, Any]]]] = {
    "append": lambda draw: {"append": _append(draw)},
    "acquire": lambda draw: {
        "run": draw.randrange(RUNS + 1),
        "host": draw.randrange(HOSTS),
        "dead": draw.sample(range(HOSTS), draw.choices((0, 1), (4, 1))[0]),
    },
    "release": lambda draw: {
        "run": draw.randrange(RUNS + 1),
        "host": draw.randrange(HOSTS),
        "off": draw.choices((0, -1, 1), (6, 1, 1))[0],
        "ready": draw.random() < 0.5,
    },
    "register": lambda draw: {"host": draw.randrange(HOSTS), "pid": draw.randint(1, 9)},
    "renew": lambda draw: {"host": draw.randrange(HOSTS)},
    "drop": lambda draw: {"host": draw.randrange(HOSTS), "died": draw.random() < 0.5},
    "advance": lambda draw: {"by_ms": draw.choice((1, 1, 30, 1_000, 5_000, 10_000, -500))},
    "look": lambda draw: {
        "limit": draw.choice((1, 2, 100)),
        "status": draw.choice((None, "suspended", "terminated")),
        "tenant": draw.choice((None, *TENANTS)),
        "prefix": draw.choice((None, "", "approval:", "key", "a\0")),
        "outcome": draw.choice((None, None, "", "completed")),
        "since_ms": draw.choice((None, None, 0, 1_000, 20_000)),
        "of": draw.choice(("created", "updated")),
        "after": draw.choice((None, None, draw.randrange(RUNS + 1))),
        "after_seq": draw.randint(0, 4),
    },
    "switch": lambda draw: {
        "scope": draw.choice(("global", "tenant", "tool")),
        "target": draw.choice(("", "acme", "refund")),
        "on": draw.random() < 0.6,
    },
    "blob": lambda draw: {"size": draw.choice((0, 5, 300_000)), "fill": draw.randrange(3)},
    "damage": lambda draw: {"run": draw.randrange(RUNS + 1)},
    "prune": lambda draw: {"run": draw.randrange(RUNS + 1)},
    "submit": lambda draw: {"run": draw.randrange(RUNS), "refused": draw.random() < 0.3},
    "hold": lambda draw: {"places": draw.randint(1, 3), "for_ms": draw.choice((10, 5_000))},
}
