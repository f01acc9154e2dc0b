"""All stores do the same: ``run.py --programs 2000 [--seed N]``. Prints each program on which they differ; exits 1 if any."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

if __name__ == "__main__":
    # Started as a file: its neighbours are modules of the package `tests`, below the root of the checkout.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.differential.programs import STEPS
from tests.differential.stores import compared, in_folder, in_memory, on_server
from tests.postgres_server import running

PROGRESS = 100


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1, help="of the first program")
    asked = parser.parse_args()
    began = time.monotonic()
    with (
        running() as server,
        tempfile.TemporaryDirectory(prefix="stores-", dir=server.folder.parent) as folder,
    ):
        stores = {"memory": in_memory, "sqlite": in_folder(folder), "postgres": on_server(server)}

        async def work() -> int:
            differences = 0
            for seed in range(asked.seed, asked.seed + asked.programs):
                found = await compared(seed, stores)
                if found is not None:
                    differences += 1
                    print(found, flush=True)
                played = seed - asked.seed + 1
                if played % PROGRESS == 0:
                    print(f"{played} programs, {differences} differences", file=sys.stderr, flush=True)
            return differences

        differences = asyncio.run(work())
    print(f"programs: {asked.programs} of {STEPS} steps, on {', '.join(stores)}")
    print(f"differences: {differences}")
    print(f"seconds: {time.monotonic() - began:.0f}, seeds from {asked.seed}")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
