"""The table of what must hold names tests that exist, and no row of it is without one."""

from __future__ import annotations

import re
from typing import Final

import pytest
from tests.collected_tests import NODE, ROOT, not_collected

TABLE: Final = ROOT / "docs" / "requirements.md"
FIELD_ROWS: Final = frozenset(
    f"F{number}"
    for number in (
        *(1, 2, 3, 5, 7, 8, 10, 11, 13, 15, 16, 18, 19),
        *(21, 22, 23, 25, 26, 28, 30, 31, 32, 33, 35, 36, 37, 39),
        *(40, 41, 42, 43, 44, 45, 47, 49, 51, 52, 53, 54, 55, 57, 58, 59),
        *(60, 62, 63, 65, 67, 69, 70, 71, 72),
    )
)
HOSTILE_ROWS: Final = frozenset(
    f"H{number}"
    for number in (
        *(1, 3, 4, 5, 6, 8, 10, 11, 12, 14, 15, 16, 17, 19, 20, 22, 24, 25, 27, 28, 30, 33, 34, 36, 38, 39),
        *(40, 41, 50, 51, 52, 55, 56, 57, 59, 60, 61, 62),
    )
)

RAY_ROWS: Final = frozenset(f"R{number}" for number in range(1, 31))


def rows() -> list[tuple[list[str], str]]:
    """(row ids, tests) of each line of the tables."""
    found: list[tuple[list[str], str]] = []
    for line in TABLE.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 5 and re.fullmatch(r"[FHR](\d+|x)(, [FH]\d+)*", cells[1]):
            found.append((cells[1].split(", "), cells[3]))
    return found


def test_every_row_has_tests() -> None:
    assert {name for names, _ in rows() for name in names} == FIELD_ROWS | HOSTILE_ROWS | RAY_ROWS | {"Hx"}
    assert [names for names, tests in rows() if not NODE.search(tests)] == []


def test_every_test_in_the_table_is_collected(request: pytest.FixtureRequest) -> None:
    assert not_collected({node for _, tests in rows() for node in NODE.findall(tests)}, request.session) == []


def test_each_way_in_which_ray_fails_is_explained() -> None:
    """What happens and what is done stands in the page on Ray, under an anchor for each row."""
    page = (ROOT / "docs" / "ray.md").read_text("utf-8")
    anchors = set(re.findall(r'^\| <a id="r(\d+)"></a>R\1 \| .+ \| .+ \|$', page, flags=re.MULTILINE))
    assert {f"R{number}" for number in anchors} == RAY_ROWS
