"""Connections cut around commits: ``run.py --cuts 1000 [--kills N] [--seed N]``. Prints counts; exits 1 if anything was lost,
duplicated or half-committed."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    # Started as a file: its neighbours are modules of the package `tests`, below the root of the checkout.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.cuts.trial import FORBIDDEN, Trial
from tests.postgres_server import running


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=1_000)
    parser.add_argument("--kills", type=int, help="of the server; a fiftieth of the cuts unless given")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    kills = max(1, asked.cuts // 50) if asked.kills is None else asked.kills
    began = time.monotonic()
    with running() as server:
        trial = Trial(server, asked.seed)
        asyncio.run(trial.run(asked.cuts, kills))
    for name in sorted({*trial.counts, *FORBIDDEN}):
        print(f"{name}: {trial.counts[name]}")
    print(f"seconds: {time.monotonic() - began:.0f}, seed {asked.seed}")
    broken = [name for name in FORBIDDEN if trial.counts[name]]
    for name in broken:
        print(f"VIOLATION: {name}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
