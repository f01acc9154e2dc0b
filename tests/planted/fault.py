"""A planted fault: one small, realistic slip in the source, and a copy of the tree that has it.

The slip is a replacement of a text that stands exactly once in its file. If the source moves on and the text isn't there
any more, planting raises: a fault that is no longer planted would be "found" by nobody and missed by nobody.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

import msgspec

ROOT = Path(__file__).resolve().parent.parent.parent
COPIED = ("runtime", "eventstore", "adapters", "actors", "src", "tests", "examples", "bench", "docs")
COPIED_FILES = ("pyproject.toml", "README.md", "CHANGELOG.md")

ChosenBy = Literal["authors", "reader"]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """``old`` becomes ``new`` in ``file``. ``breaks``: the promise that it breaks; ``shows``: the situation in which that can
    be seen. ``chosen_by``: one of the authors, or a reader of the source who had not seen the tests."""

    name: str
    file: str
    old: str
    new: str
    breaks: str
    shows: str
    chosen_by: ChosenBy = "authors"


class NotPlantable(Exception):
    """The text to replace isn't there exactly once."""


def planted_source(fault: Fault, root: Path = ROOT) -> str:
    """The text of the file with the fault in it."""
    text = (root / fault.file).read_text("utf-8")
    count = text.count(fault.old)
    if count != 1:
        raise NotPlantable(f"{fault.name}: its text is {count} times in {fault.file}, not once")
    return text.replace(fault.old, fault.new)


def copy_with(fault: Fault | None, folder: Path) -> None:
    """The tree in ``folder``, with the fault in it; without one it is the tree as it is."""
    for name in COPIED:
        shutil.copytree(
            ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in COPIED_FILES:
        shutil.copy(ROOT / name, folder / name)
    if fault is not None:
        (folder / fault.file).write_text(planted_source(fault), "utf-8")
