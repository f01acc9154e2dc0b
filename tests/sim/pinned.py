"""What the runs of the simulated world are started under: few limits and goals, so that their pins are made once."""

from __future__ import annotations

from functools import cache
from typing import Final

from boundloop.runtime.goal import Goal
from boundloop.runtime.limits import LimitValues
from boundloop.runtime.pins import Pins, encode_pins
from boundloop.runtime.prices import Price
from boundloop.runtime.stage_spec import Stage, stages_from

from .shop import policy, toolbox

FAMILY: Final = "simulated"
MODEL: Final = "sim-1"
PRICE: Final = Price(input=1_000, output=2_000)
TOKENS: Final = 300_000
"""What a roomy run has: more than it needs, and less than a provider may report."""

GOALS: Final = ("book", "tag", "refund")

_ROOMY: Final = {
    "turns": 20,
    "model_attempts": 40,
    "calls_per_turn": 6,
    "tool_calls": 40,
    "call_attempts": 80,
    "deadline_ms": 240_000,
    "approval_ms": 20_000,
    "answer_ms": 15_000,
    "model_request_ms": 6_000,
    "output_tokens_per_request": 512,
    "context_tokens": 60_000,
    "cost_micros": 1_000_000,
    "parallel": 3,
    "repeats": 8,
    "equal_results": 4,
    "children": 6,
    "depth": 3,
    "total_tokens": TOKENS,
}

PROFILES: Final[dict[str, dict[str, int]]] = {
    "roomy": {},
    "few_turns": {"turns": 2},
    "few_calls": {"tool_calls": 3, "call_attempts": 4},
    "little_money": {"cost_micros": 12},
    "few_tokens": {"total_tokens": 12_000},
    "soon_over": {"deadline_ms": 5_000},
    "small_context": {"context_tokens": 5_600},
    "staged": {},
    "lean": {"turns": 4},
    "no_patience": {"denials": 1, "failures": 1, "invalid_streak": 1, "repeats": 2, "equal_results": 1},
}

NOT_TIGHT: Final = ("roomy", "small_context", "staged", "lean")
"""Profiles under which a run isn't expected to run out of anything."""

_STAGES: Final = stages_from(
    (
        Stage("enquire", tools=("look", "audit", "mail", "ask_user"), leave="look"),
        Stage("draft", tools=("look", "book", "tag", "clerk"), leave="book"),
        Stage("submit", tools=("look", "tag", "refund", "pay", "letter", "wire", "helper")),
    )
)


@cache
def pins(profile: str, goal: str) -> tuple[Pins, bytes]:
    """The pins of a run with their bytes."""
    fields = {**_ROOMY, **PROFILES[profile]}
    made = Pins(
        producer="sim",
        model=MODEL,
        api_family=FAMILY,
        adapter_revision="1",
        template_revision="1",
        system="",
        tools=toolbox("base").offered(frozenset()),
        permissions=(),
        policy_revision=policy("p1").revision,
        separate_approver=False,
        limits=LimitValues(**fields),  # type: ignore[arg-type]  # ints by the names of limits
        goal=Goal.of(goal) if goal else None,
        price=PRICE,
        price_revision="1",
        stages=_STAGES if profile == "staged" else (),
    )
    return made, encode_pins(made)
