"""`python tests/flip/run.py --flips 10000`: flip single bytes of a store's file; exit 1 if one goes unnoticed."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.flip.flips import flip_many


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--flips", type=int, default=1_000)
    options.add_argument("--seed", type=int, default=None, help="which flips; without it others each time")
    given = options.parse_args()
    seed = int(time.time()) if given.seed is None else given.seed
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        fates, missed = flip_many(folder, given.flips, seed)
    passed = round(time.monotonic() - start, 1)
    print(json.dumps({"flips": given.flips, "seed": seed, **fates, "seconds": passed, "missed_at": missed}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
