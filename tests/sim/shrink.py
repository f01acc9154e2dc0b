"""The smallest plan that still breaks the same law: faults, runs and hosts are left out while it does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from .plan import Plan
from .world import World, play

TRIES_MAX: Final = 80


def shrunk(plan: Plan, law: str) -> World:
    """The last world that broke the law, played with its story told. Takes at most ``TRIES_MAX`` plays."""
    best = plan
    tries = 0
    changed = True
    while changed and tries < TRIES_MAX:
        changed = False
        for smaller in _smaller(best):
            tries += 1
            if tries > TRIES_MAX:
                break
            if _breaks(smaller, law):
                best, changed = smaller, True
                break
    return play(best, narrate=True)


def _breaks(plan: Plan, law: str) -> bool:
    violation = play(plan).judge.violation
    return violation is not None and violation[0] == law


def _smaller(plan: Plan) -> Iterator[Plan]:
    replace = msgspec.structs.replace
    strikes, roots = plan.strikes, plan.roots
    if len(strikes) > 2:
        middle = len(strikes) // 2
        yield replace(plan, strikes=strikes[:middle])
        yield replace(plan, strikes=strikes[middle:])
    for place in range(len(strikes)):
        yield replace(plan, strikes=strikes[:place] + strikes[place + 1 :])
    for place in range(len(roots) if len(roots) > 1 else 0):
        yield replace(plan, roots=roots[:place] + roots[place + 1 :])
    if plan.hosts > 1:
        yield replace(plan, hosts=1)
    if plan.slow_store:
        yield replace(plan, slow_store=False)
