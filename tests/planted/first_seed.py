"""``python tests/planted/first_seed.py SEEDS START``: plays seeds of the simulation until a law breaks; exit 1 if one does."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from tests.sim.plan import plan_of
from tests.sim.run import quiet
from tests.sim.world import play


def main(seeds: int, start: int) -> int:
    quiet()
    for seed in range(start, start + seeds):
        world = play(plan_of(seed))
        if world.judge.violation is not None:
            law, what = world.judge.violation
            print(f"FAILING SEED {seed}: {law}, {what}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
