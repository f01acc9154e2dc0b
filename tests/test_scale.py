"""The short form of every check of the scale suite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
WITHIN_S: Final = 240
"""About 40 s on an idle machine of two cores."""


def test_what_holds_at_scale_holds_in_small() -> None:
    done = subprocess.run(
        [sys.executable, "tests/scale/run.py", "all", "--short"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    broken = [line for line in done.stdout.splitlines() if line.startswith("BROKEN")]
    assert not broken, "\n".join(broken)
    assert done.returncode == 0, done.stderr[-4_000:]
