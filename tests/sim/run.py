"""Deterministic simulation: ``python tests/sim/run.py --seeds N [--start S] [--jobs J] [--uncovered] [--first] [--no-shrink]
[--report-only]``,
or ``--seed S --narrate`` for the story of one seed.

Each seed is a world of its own: trees of runs on two or three hosts, far sides and people, under planned faults, on a
virtual clock. The laws are checked after every append (``laws.py``, ``docs/simulation.md``). A seed that breaks one is
named, shrunk and told. Exit 1 if a law broke, or if a session shows less than it is to show (``report.shortfalls``),
which shorter ones may with ``--report-only``.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from tests.sim.plan import plan_of
from tests.sim.report import headline, lines, shortfalls, story
from tests.sim.shrink import shrunk
from tests.sim.summary import Summary
from tests.sim.world import play

CHUNK: Final = 100
STORIES_MAX: Final = 3
"""Failing seeds that are shrunk and told; the others are named."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many worlds (default %(default)s)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default %(default)s)")
    parser.add_argument("--seed", type=int, help="play this one alone")
    parser.add_argument("--narrate", action="store_true", help="tell what happens in --seed")
    parser.add_argument(
        "--uncovered", action="store_true", help="list the triples that were reachable and not covered"
    )
    parser.add_argument(
        "--first", action="store_true", help="stop at the first failing seed; shortfalls don't count"
    )
    parser.add_argument("--no-shrink", action="store_true", help="name failing seeds, and no more")
    parser.add_argument("--report-only", action="store_true", help="only a broken law is a failure")
    asked = parser.parse_args()
    if asked.seeds < 1:
        parser.error("--seeds is at least 1")
    if asked.narrate and asked.seed is None:
        parser.error("--narrate tells one seed: give --seed")
    if asked.seed is not None:
        return one(asked.seed, narrate=asked.narrate)
    started = time.monotonic()
    summary = session(asked.start, asked.seeds, asked.jobs, first=asked.first)
    for line in lines(summary, time.monotonic() - started, uncovered=asked.uncovered):
        print(line)
    for violation in [] if asked.no_shrink else summary.violations[:STORIES_MAX]:
        print(f"\n{headline(violation)}\nshrunk:")
        print("\n".join(story(shrunk(plan_of(violation.seed), violation.law))))
    short = [] if asked.report_only or asked.first else shortfalls(summary)
    return 1 if summary.violations or short else 0


def one(seed: int, *, narrate: bool) -> int:
    """Play one seed; its trace hash names everything that happened in it."""
    quiet()
    world = play(plan_of(seed), narrate=narrate)
    if narrate:
        print("\n".join(story(world)))
    law, what = world.judge.violation or ("", "")
    print(f"seed {seed}, {world.judge.events} events, {len(world.judge.runs)} runs, trace {world.digest()}")
    print(f"broken {law}: {what}" if law else "no law broken")
    return 1 if law else 0


def session(start: int, seeds: int, jobs: int, *, first: bool = False) -> Summary:
    """These seeds, in as many processes. ``first``: up to the first failing one, in this process."""
    summary = Summary()
    if jobs <= 1 or first:
        for part in _chunks(start, seeds):
            summary.merge(played(part, first=first))
            if first and summary.violations:
                break
        return summary
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for done in pool.map(played, _chunks(start, seeds)):
            summary.merge(done)
    return summary


def _chunks(start: int, seeds: int) -> Iterator[range]:
    for first in range(start, start + seeds, CHUNK):
        yield range(first, min(first + CHUNK, start + seeds))


def played(seeds: range, *, first: bool = False) -> Summary:
    """A chunk of seeds in this process; ``first``: up to the first failing one. The logger is silent meanwhile."""
    logger = logging.getLogger("boundloop")
    level = logger.level
    quiet()
    summary = Summary()
    gc.collect()
    gc.freeze()  # what is loaded by now stays, and needn't be looked through
    gc.disable()  # a seed leaves little behind, and its world goes in one piece
    try:
        for seed in seeds:
            summary.add(play(plan_of(seed)))
            if first and summary.violations:
                break
            if seed % 50 == 0:
                gc.collect()
    finally:
        gc.enable()
        gc.unfreeze()
        logger.setLevel(level)
    return summary


def quiet() -> None:
    """Tools that raise are told to an operator's logger; here they are planned."""
    logging.getLogger("boundloop").setLevel(logging.CRITICAL)


if __name__ == "__main__":
    sys.exit(main())
