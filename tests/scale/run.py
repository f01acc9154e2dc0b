"""Promises that only show at scale, each measured: ``python tests/scale/run.py CHECK [--short]``.

dense · many runs at work at once in few processes, and their memory
parked · many runs that wait for a person: no process, no thread, no file, no CPU; how fast one wakes
group · a limited group on three nodes under kills: never one call too many at its far side
tree · agents within agents under the root's limits, kills and a cancel
tools · a tool that never ends and what it started, cancelled and timed out
memory · many runs, one after another, in the same processes: nothing grows

``--short`` is a small form of each, on one node. Exit 0 only if everything holds.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
import time
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from tests.scale.ground import one_node, prepare
from tests.scale.verdicts import Verdicts

CHECKS: Final = ("dense", "parked", "group", "tree", "tools", "memory")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("check", choices=(*CHECKS, "all"))
    parser.add_argument("--short", action="store_true")
    given = parser.parse_args()
    prepare()
    names = CHECKS if given.check == "all" else (given.check,)
    # Short forms share one Ray; the others begin each with its own.
    with one_node() if given.short else contextlib.nullcontext():
        return 1 if sum(run(name, short=given.short) for name in names) else 0


def run(name: str, *, short: bool) -> int:
    """One check; how many verdicts were broken."""
    check: Any = importlib.import_module(f"tests.scale.{name}")
    verdicts = Verdicts(name)
    began = time.monotonic()
    check.check(check.SHORT if short else check.FULL, verdicts)
    verdicts.figure("seconds", time.monotonic() - began)
    return verdicts.failed


if __name__ == "__main__":
    sys.exit(main())
