"""Every fault of a SQLite store's file and statements, one at a time, and every place at which a caller can be cancelled:
``run.py [--every N] [--only NAME]``. Prints counts; exits 1 if anything was lost, duplicated or half-committed, or a store ended
otherwise than without faults."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    # Started as a file: its neighbours are modules of the package `tests`, below the root of the checkout.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.sqlite_faults.cancelled import CALLS, MOMENTS, Cancellations
from tests.sqlite_faults.cancelled import FORBIDDEN as AFTER_CANCELLING
from tests.sqlite_faults.file_shim import find_library
from tests.sqlite_faults.program import FORBIDDEN
from tests.sqlite_faults.trials import HOWS, MANNERS, Trials


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="only each N-th operation; 1 is all")
    parser.add_argument("--only", choices=(*HOWS, *MANNERS, "cancelled"), help="only this way to fail")
    asked = parser.parse_args()
    began = time.monotonic()
    trials = Trials()
    if find_library() is None:
        print("faults of files: none, because SQLite is built into this Python and can't be reached")
    else:
        for how in HOWS:
            if asked.only in (None, how):
                trials.files(how, every=asked.every)
    for manner in MANNERS:
        if asked.only in (None, manner):
            trials.statements(manner, every=asked.every)
    for name, count in sorted(trials.trials.items()):
        print(f"{name}: {count}")
    for name in sorted({*trials.counts, *FORBIDDEN}):
        print(f"{name}: {trials.counts[name]}")
    cancellations = Cancellations()
    if asked.only in (None, "cancelled"):
        for name in ("open", *CALLS):
            for moment in MOMENTS:
                cancellations.all_steps(name, moment)
    for name, count in sorted(cancellations.trials.items()):
        print(f"cancelled, {name}: {count}")
    for name in sorted({*cancellations.counts, *AFTER_CANCELLING}):
        print(f"cancelled, {name}: {cancellations.counts[name]}")
    faults, calls = trials.trials.total(), cancellations.trials.total()
    print(f"faults: {faults}, cancelled calls: {calls}, seconds: {time.monotonic() - began:.0f}")
    broken = [*trials.broken, *(f"cancelled: {law}" for law in cancellations.broken)]
    for one in broken:
        print(f"VIOLATION: {one}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
