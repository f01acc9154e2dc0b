"""``python tests/planted/run.py``: does any suite notice, if the source has this fault?

Plants one fault at a time into a copy of the tree (``faults.py`` has the list, ``docs/planted-faults.md`` shows it), runs
the simulation over it until the first failing seed, and the test suites until the first failing test. Prints which suite
found each fault, by what, and after how many seeds; exit 1 if a fault was found by none. ``--every`` goes on with the
other suites once one has found it. The unchanged tree goes first, and must pass.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from tests.planted.fault import Fault, copy_with
from tests.planted.faults import FAULTS
from tests.planted.suites import PYTEST_SUITES, SIMULATION, Look, run_tests, simulate

SUITES: Final = (SIMULATION, *PYTEST_SUITES)


def looked_at(
    fault: Fault | None, suites: Sequence[str], *, seeds: int, start: int, every: bool
) -> list[Look]:
    """What these suites say of a tree with this fault; None is the tree as it is."""
    looks: list[Look] = []
    with tempfile.TemporaryDirectory(prefix="planted-") as name:
        tree = Path(name)
        copy_with(fault, tree)
        for suite in suites:
            if every or not any(look.found for look in looks):
                looks.append(simulate(tree, seeds, start) if suite == SIMULATION else run_tests(tree, suite))
    return looks


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--seeds", type=int, default=1_000, help="how many seeds the simulation may need")
    options.add_argument(
        "--suites", nargs="+", choices=SUITES, default=SUITES, help="which suites look, in this order"
    )
    options.add_argument("--start", type=int, default=0, help="the first seed")
    options.add_argument("--only", nargs="*", help="names of faults")
    options.add_argument("--every", action="store_true", help="ask every suite about every fault")
    options.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    options.add_argument(
        "--as-it-is",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="look at the unchanged tree first",
    )
    options.add_argument("-o", dest="output", choices=("table", "json"), default="table")
    given = options.parse_args()
    chosen = [fault for fault in FAULTS if not given.only or fault.name in given.only]
    if given.only and len(chosen) != len(set(given.only)):
        options.error(
            "no such fault: " + ", ".join(sorted(set(given.only) - {fault.name for fault in FAULTS}))
        )
    if find_spec("pytest") is None:
        options.error("the suites need pytest and hypothesis: pip install -e '.[dev]'")
    started = time.monotonic()
    found: dict[str, list[Look]] = {}
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        if given.as_it_is:
            if given.output == "table":
                print("first the tree as it is, by every suite", flush=True)
            suites = [
                pool.submit(looked_at, None, (suite,), seeds=given.seeds, start=given.start, every=True)
                for suite in given.suites
            ]
            false_alarms = [look for suite in suites for look in suite.result() if look.found]
            if false_alarms:
                print("the tree without any fault is refused:", *false_alarms, sep="\n  ")
                return 2
        futures = {
            pool.submit(
                looked_at, fault, given.suites, seeds=given.seeds, start=given.start, every=given.every
            ): fault
            for fault in chosen
        }
        for future in concurrent.futures.as_completed(futures):
            fault = futures[future]
            looks = future.result()
            found[fault.name] = looks
            print(_line(fault, looks, given.output), flush=True)
    caught = sum(any(look.found for look in looks) for looks in found.values())
    by_simulation = sum(
        any(look.found and look.suite == SIMULATION for look in looks) for looks in found.values()
    )
    print(f"{by_simulation} of them by the simulation; {time.monotonic() - started:.0f} s")
    print(f"{caught}/{len(chosen)} found")
    return 0 if caught == len(chosen) else 1


def _line(fault: Fault, looks: list[Look], output: str) -> str:
    if output == "json":
        return json.dumps(
            {"fault": fault.name, "chosen_by": fault.chosen_by, "looks": [_plain(look) for look in looks]}
        )
    parts: list[str] = []
    for look in looks:
        if look.found:
            after = f" after {look.seeds} seeds" if look.seeds else ""
            parts.append(f"{look.suite}{after} ({look.by}, {look.seconds:.0f} s)")
        else:
            tried = f" in {look.seeds} seeds" if look.seeds else ""
            parts.append(f"not by {look.suite}{tried}")
    verdict = "FOUND " if any(look.found for look in looks) else "MISSED"
    return f"{verdict} {fault.name}: " + "; ".join(parts)


def _plain(look: Look) -> dict[str, object]:
    return {name: getattr(look, name) for name in Look.__struct_fields__}


if __name__ == "__main__":
    sys.exit(main())
