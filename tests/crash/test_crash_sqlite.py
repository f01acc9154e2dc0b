"""SIGKILL at every append of the scenario, on a file. ``python tests/crash/run.py`` does all four positions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from examples.far_side import FarSide

from .child import Forge
from .points import Position
from .sqlite_case import count_appends, crash_once

APPENDS = 17
"""Of the undisturbed scenario; the first test counts them."""

CASES: list[tuple[int, Position]] = [
    (at, position)
    for at in range(1, APPENDS + 1)
    for position in (("inside", "after_answer") if at % 2 else ("after_commit", "before"))
]


@pytest.fixture(scope="module")
def forge() -> Iterator[Forge]:
    with Forge() as started:
        yield started


@pytest.fixture(scope="module")
def far() -> Iterator[FarSide]:
    with FarSide.start(in_order=True) as started:
        yield started


def test_the_boundaries_are_all_of_them(forge: Forge, far: FarSide, tmp_path: Path) -> None:
    assert count_appends(forge, far, tmp_path) == APPENDS


@pytest.mark.parametrize(("at", "position"), CASES)
def test_a_killed_process_loses_nothing_and_doubles_nothing(
    forge: Forge, far: FarSide, tmp_path: Path, at: int, position: Position
) -> None:
    crash_once(forge, far, tmp_path, at, position)


@pytest.mark.parametrize("again_at", [1, 2])
def test_nor_does_a_successor_that_is_killed_too(
    forge: Forge, far: FarSide, tmp_path: Path, again_at: int
) -> None:
    crash_once(forge, far, tmp_path, 6, "after_answer", again_at=again_at)
