"""Every field that counts has its line in ``docs/counters.md``, and each line a test that exists."""

from __future__ import annotations

from typing import Final, get_type_hints

import msgspec
import pytest
from tests.collected_tests import NODE, ROOT, not_collected

from boundloop.runtime.limits import LimitValues
from boundloop.runtime.state import CallState, Counters, Meters, State

PAGE: Final = (ROOT / "docs" / "counters.md").read_text("utf-8")

NO_COUNTERS: Final = frozenset(
    {
        # places, times and epochs
        *("seq", "at_ms", "started_at_ms", "deadline_at_ms", "deadline_cap_ms", "requested_at_ms", "epoch"),
        *("model_epoch", "model_retry_at_ms", "attempt_epoch", "valid_until_ms", "retry_at_ms", "index"),
        *("observed_at_ms", "stopped_at_ms", "next_query_at_ms", "checked_seq", "commands", "stage"),
        # what one request or result holds
        *(
            "reserved_input",
            "reserved_output",
            "reserved_cost",
            "reserved_micros",
            "request_head_bytes",
            "requested_items",
            "size",
        ),
    }
)
"""Integers of a state that count nothing."""

COUNTS: Final = (int, dict[str, int], dict[bytes, int], list[int])


def rows() -> dict[str, list[str]]:
    """Counter -> the cells of its line."""
    found: dict[str, list[str]] = {}
    for line in PAGE.splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            name = cells[0].strip("`")
            assert name not in found, f"{name} has two lines"
            found[name] = cells
    return found


def integers_of(kind: type[msgspec.Struct]) -> set[str]:
    hints = get_type_hints(kind)
    return {name for name in kind.__struct_fields__ if hints[name] in COUNTS}


def test_every_counter_has_a_line() -> None:
    counted = {
        *LimitValues.__struct_fields__,
        *Meters.__struct_fields__,
        *Counters.__struct_fields__,
        *(integers_of(State) | integers_of(CallState)) - NO_COUNTERS,
    }
    missing = sorted(counted - set(rows()))
    assert missing == [], (
        "add a line (what, when, what not, test), or say in NO_COUNTERS that it counts nothing"
    )
    assert sorted(set(rows()) - counted) == [], "a line about nothing"


def test_what_counts_nothing_is_there() -> None:
    assert integers_of(State) | integers_of(CallState) >= NO_COUNTERS


def test_every_line_is_whole_and_names_tests() -> None:
    for name, cells in rows().items():
        assert len(cells) == 5, name
        assert cells[1], name
        assert cells[2] or cells[1].startswith("see `"), name
        assert NODE.search(cells[4]), name


def test_the_tests_are_there(request: pytest.FixtureRequest) -> None:
    assert (
        not_collected({node for cells in rows().values() for node in NODE.findall(cells[4])}, request.session)
        == []
    )
