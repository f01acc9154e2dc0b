"""The whole SQLite matrix: ``python tests/crash/run.py [--twice]``.

A crash at every append of the scenario, at each of the four positions around it; with ``--twice`` the process that goes
on is killed as well, at each of its first appends. Prints one line a failure and the counts; exit 1 if there was one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from examples.far_side import FarSide
from tests.crash.child import Forge
from tests.crash.points import POSITIONS
from tests.crash.sqlite_case import count_appends, crash_once

SECOND_DEATHS = (1, 2, 3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--twice", action="store_true")
    again = SECOND_DEATHS if parser.parse_args().twice else (0,)
    started = time.monotonic()
    failures = crashes = 0
    with tempfile.TemporaryDirectory() as name, FarSide.start(in_order=True) as far, Forge() as forge:
        folder = Path(name)
        appends = count_appends(forge, far, folder)
        for at in range(1, appends + 1):
            for position in POSITIONS:
                for again_at in again:
                    crashes += 1
                    try:
                        crash_once(forge, far, folder, at, position, again_at=again_at)
                    except AssertionError as error:
                        failures += 1
                        print(f"append {at} {position} (again at {again_at}): {error}", flush=True)
    print(f"appends {appends}, crashes {crashes}, violations {failures}, {time.monotonic() - started:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
