"""``docs/rules.md`` goes through the contract rule by rule: no row without tests, and each of them is there."""

from __future__ import annotations

import re
from typing import Final

import pytest
from tests.collected_tests import NODE, ROOT, not_collected

PAGE: Final = (ROOT / "docs" / "rules.md").read_text("utf-8")
SECTIONS: Final = range(3, 12)
"""From the loop to progress and completion."""


def rows() -> list[tuple[int, int, str, str]]:
    """(section, number, rule, tests) of each line."""
    found = re.findall(r"^\| §(\d+)\.(\d+) \| (.+?) \| (.*) \|$", PAGE, flags=re.MULTILINE)
    return [(int(section), int(number), rule, tests) for section, number, rule, tests in found]


def test_rules_are_numbered_without_gaps_and_each_has_tests() -> None:
    numbers: dict[int, list[int]] = {}
    for section, number, _, tests in rows():
        numbers.setdefault(section, []).append(number)
        assert NODE.search(tests), f"§{section}.{number} has no test"
    assert list(numbers) == list(SECTIONS)
    assert all(found == list(range(1, len(found) + 1)) for found in numbers.values())
    assert len(rows()) == PAGE.count("\n| §"), "a line that isn't read"


def test_no_rule_stands_twice() -> None:
    rules = [rule for _, _, rule, _ in rows()]
    assert len(rules) == len(set(rules))


def test_the_tests_are_there(request: pytest.FixtureRequest) -> None:
    assert (
        not_collected({node for _, _, _, tests in rows() for node in NODE.findall(tests)}, request.session)
        == []
    )
