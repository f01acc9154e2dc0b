"""A session as people read it: the numbers, what they are held against, and the story of a failing seed."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Final

from .kinds import APPEND_KINDS, KINDS
from .plan import Plan
from .summary import Summary, Violation
from .triples import Triple
from .world import World

EACH_KIND_LEAST: Final = 200
"""How often each kind of fault is to strike in a session of ``FULL_SEEDS``; shorter ones in proportion."""

FULL_SEEDS: Final = 20_000
EVENTS_MEDIAN_LEAST: Final = 60
RUNS_MEDIAN_LEAST: Final = 2
EFFECT_SHARE_LEAST: Final = 0.70
LIMIT_SHARE_MOST: Final = 0.05


def lines(summary: Summary, seconds: float, *, uncovered: bool) -> Iterator[str]:
    """The whole report."""
    seeds, runs = len(summary.events), sum(summary.runs)
    yield f"seeds {seeds}, {seconds:.0f} s"
    yield f"events {sum(summary.events)}, median a seed {median(summary.events):.0f}"
    yield f"runs {runs}, median a seed {median(summary.runs):.0f}"
    yield f"requests at far sides {summary.requests}, effects {summary.effects}, highest epoch {summary.epochs_most}"
    yield f"runs with an effect applied {share(summary.runs_with_effect, runs)}"
    yield f"runs ended by a limit alone {share(summary.runs_ended_by_limit, runs)}"
    yield f"kinds of faults {len(summary.faults)}, strikes {summary.faults.total()}"
    for kind in sorted(KINDS):
        yield f"  {kind} {summary.faults[kind]}"
    yield "outcomes"
    for outcome, count in summary.outcomes.most_common():
        yield f"  {outcome} {share(count, runs)}"
    reachable = reachable_triples(summary)
    missing = sorted(reachable - summary.at_appends)
    yield f"triples (state, event, fault) at appends: {len(reachable) - len(missing)} of {len(reachable)} reachable"
    yield f"triples at other points: {len(summary.beside)}"
    if uncovered:
        yield from (f"  not covered: {' '.join(triple)}" for triple in missing)
    for short in shortfalls(summary):
        yield f"SHORT OF: {short}"
    for violation in summary.violations:
        yield headline(violation)
    yield f"violations {len(summary.violations)}"


def share(part: int, whole: int) -> str:
    """A count with its percentage."""
    return f"{part} ({100 * part / max(1, whole):.1f} %)"


def reachable_triples(summary: Summary) -> set[Triple]:
    """Every (state, event) that was walked, cut by every kind that strikes at an append."""
    return {(*pair, kind) for pair in summary.walked for kind in APPEND_KINDS}


def shortfalls(summary: Summary) -> list[str]:
    """In what a session shows less than it is to show."""
    seeds, runs = len(summary.events), max(1, sum(summary.runs))
    found: list[str] = []
    if median(summary.events) < EVENTS_MEDIAN_LEAST:
        found.append(f"median events {EVENTS_MEDIAN_LEAST}")
    if median(summary.runs) < RUNS_MEDIAN_LEAST:
        found.append(f"median runs {RUNS_MEDIAN_LEAST}")
    if summary.runs_with_effect / runs < EFFECT_SHARE_LEAST:
        found.append(f"{EFFECT_SHARE_LEAST:.0%} of runs with an effect")
    if summary.runs_ended_by_limit / runs > LIMIT_SHARE_MOST:
        found.append(f"at most {LIMIT_SHARE_MOST:.0%} of runs ended by a limit")
    least = EACH_KIND_LEAST * seeds // FULL_SEEDS
    found += [f"{least} of {kind}" for kind in sorted(KINDS) if summary.faults[kind] < least]
    return found


def story(world: World) -> Iterator[str]:
    """What happened in a seed that was played with ``narrate``, one line a thing."""
    yield from plan_lines(world.plan)
    for at_ms, who, what in world.narrative or ():
        yield f"{at_ms:8} {who:10.10} {what}"


def plan_lines(plan: Plan) -> Iterator[str]:
    """What was planned."""
    yield (
        f"seed {plan.seed}: {plan.hosts} hosts, {'slow' if plan.slow_store else 'quick'} store, "
        f"{'shared' if plan.pooled else 'own'} executors"
    )
    for root in plan.roots:
        yield f"  run {root.run_id} at {root.at_ms} ms: {root.profile}, goal {root.goal or 'none'}, {root.operation}"
    for strike in plan.strikes:
        yield f"  fault {strike}"


def headline(violation: Violation) -> str:
    """How a failing seed is named."""
    return f"FAILING SEED {violation.seed} breaks {violation.law}: {violation.what}"
