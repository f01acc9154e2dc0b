"""`python tests/fuzz/run.py --mutations 200000`: garble answers of every family; exit 1 if one doesn't become a turn."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fuzz.mutations import MEMORY_BYTES_MAX, garble_many


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--mutations", type=int, default=2_000)
    options.add_argument("--seed", default=None, help="which mutations; without it others each time")
    given = options.parse_args()
    seed = str(int(time.time())) if given.seed is None else given.seed
    start = time.monotonic()
    came, failed, grown = garble_many(given.mutations, seed)
    passed = round(time.monotonic() - start, 1)
    found = {"came": came, "grown_bytes": grown, "seconds": passed, "failed": failed[:20]}
    print(json.dumps({"mutations": given.mutations, "seed": seed, **found}))
    return 1 if failed or grown > MEMORY_BYTES_MAX else 0


if __name__ == "__main__":
    sys.exit(main())
