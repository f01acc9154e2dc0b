"""Which of the tests that a page names are there: pages and tests mustn't drift apart."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
NODE: Final = re.compile(r"`(tests/[^`]+\.py::[^`]+)`")


def not_collected(named: Collection[str]) -> list[str]:
    """Those of these node ids (without parameters) that no test has."""
    files = sorted({node.partition("::")[0] for node in named})
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    collected = {re.sub(r"\[.*", "", line) for line in listed.stdout.splitlines() if "::" in line}
    return sorted(set(named) - collected)
