"""Which of the tests that a page names are there: pages and tests mustn't drift apart."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
NODE: Final = re.compile(r"`(tests/[^`]+\.py::[^`]+)`")


def not_collected(named: Collection[str], session: pytest.Session) -> list[str]:
    """Those of these node ids (without parameters) that no test has. What this session collected itself isn't collected again."""
    missing = set(named) - {_bare(item.nodeid) for item in session.items}
    if not missing:
        return []
    files = sorted({node.partition("::")[0] for node in missing})
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return sorted(missing - {_bare(line) for line in listed.stdout.splitlines() if "::" in line})


def _bare(node: str) -> str:
    return re.sub(r"\[.*", "", node)
