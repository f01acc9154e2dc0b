"""The planted faults are still planted: each slip has its place in the source, and the page names it."""

from __future__ import annotations

import ast
from collections import Counter

import pytest
from tests.planted.fault import ROOT, Fault, NotPlantable, planted_source
from tests.planted.faults import FAULTS
from tests.planted.suites import PYTEST_SUITES

PAGE = ROOT / "docs" / "planted-faults.md"


def test_there_are_twenty_five_and_ten_or_more_were_chosen_by_a_reader() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) == 25
    assert Counter(fault.chosen_by for fault in FAULTS)["reader"] >= 10


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted_and_is_python(fault: Fault) -> None:
    text = planted_source(fault)
    assert text != (ROOT / fault.file).read_text("utf-8")
    ast.parse(text)


def test_a_fault_whose_text_is_gone_or_twice_there_is_not_planted() -> None:
    gone = Fault(name="gone", file="runtime/budget.py", old="no such text", new="", breaks="", shows="")
    twice = Fault(name="twice", file="runtime/budget.py", old="def ", new="", breaks="", shows="")
    for fault in (gone, twice):
        with pytest.raises(NotPlantable, match=fault.name):
            planted_source(fault)


def test_the_page_has_a_row_for_each_fault() -> None:
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [fault.name for fault in FAULTS]
    for row, fault in zip(rows, FAULTS, strict=True):
        assert f"`{fault.file}`" in row
        assert fault.breaks in row


def test_the_suites_are_where_they_are_looked_for() -> None:
    assert [path for paths in PYTEST_SUITES.values() for path in paths if not (ROOT / path).exists()] == []
