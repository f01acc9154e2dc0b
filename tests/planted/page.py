"""``python tests/planted/page.py``: writes the table of ``docs/planted-faults.md`` from the list."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from tests.planted.fault import ROOT
from tests.planted.faults import FAULTS

HEAD = "| fault | in | the promise that breaks | shows when | chosen by |\n|---|---|---|---|---|\n"


def table() -> str:
    """One row a fault, in the order of the list."""
    rows = (
        f"| `{fault.name}` | `{fault.file}` | {fault.breaks} | {fault.shows} | {fault.chosen_by} |\n"
        for fault in FAULTS
    )
    return HEAD + "".join(rows)


if __name__ == "__main__":
    ArgumentParser(description=__doc__).parse_args()
    path = ROOT / "docs" / "planted-faults.md"
    before, _, _ = path.read_text("utf-8").partition(HEAD)
    path.write_text(before + table(), "utf-8")
