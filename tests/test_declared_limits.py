"""Limits, money and goals as a caller declares them: what is accepted, and what is refused before any run exists."""

from __future__ import annotations

import datetime
import math
import re
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.decider.shop import pins

from boundloop.runtime.errors import CallerError, DeclarationError, MissingLimits
from boundloop.runtime.goal import Evidence, Goal
from boundloop.runtime.limits import (
    CEILING,
    HOST_DEATHS_MAX,
    MARGIN_MS,
    QUERIES_MAX,
    RAISABLE,
    RECHECKS_MAX,
    SMALLEST_ZERO,
    WAIVED,
    Limits,
    LimitValues,
    backoff_ms,
    micros,
)
from boundloop.runtime.pins import Pins, encode_pins, read_pins
from boundloop.runtime.prices import Price
from boundloop.runtime.start import INPUT_BYTES_MAX, NewRunSpec, start_run
from boundloop.runtime.state import METERED

DOCUMENT = (Path(__file__).parent.parent / "docs" / "limits.md").read_text()


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("0", 0),
        ("0.05", 50_000),
        ("0.050000000", 50_000),
        ("1", 1_000_000),
        ("0.000001", 1),
        (7, 7),
        (Decimal("0.25"), 250_000),
        (Decimal("1E+2"), 100_000_000),
        ("9007199254.740992", CEILING),
    ],
)
def test_money(written: Any, value: int) -> None:
    assert micros(written) == value


@pytest.mark.parametrize(
    ("written", "code"),
    [
        (0.05, "money_type"),
        (True, "money_type"),
        (math.nan, "money_type"),
        (math.inf, "money_type"),
        (None, "money_type"),
        (b"1", "money_type"),
        ([1], "money_type"),
        ("", "money_syntax"),
        ("abc", "money_syntax"),
        ("-1", "money_syntax"),
        ("+1", "money_syntax"),
        (" 1", "money_syntax"),
        ("1\n", "money_syntax"),
        ("1_000", "money_syntax"),
        ("1,5", "money_syntax"),
        (".5", "money_syntax"),
        ("5.", "money_syntax"),
        ("1e3", "money_syntax"),
        ("1e9999999", "money_syntax"),
        ("NaN", "money_syntax"),
        ("Infinity", "money_syntax"),
        ("\u0661", "money_syntax"),
        ("9" * 5_000, "money_syntax"),
        (Decimal("NaN"), "money_syntax"),
        (Decimal("sNaN"), "money_syntax"),
        (Decimal("-Infinity"), "money_syntax"),
        (Decimal("1e999999"), "money_syntax"),
        (Decimal(-1), "money_syntax"),
        ("0.0000001", "money_precision"),
        (Decimal("0.0000001"), "money_precision"),
        (-1, "money_range"),
        (CEILING + 1, "money_range"),
        ("9007199254.740993", "money_range"),
        (2**200, "money_range"),
    ],
)
def test_money_that_is_refused(written: Any, code: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        micros(written)
    assert caught.value.code == code


@given(st.integers(0, CEILING))
def test_money_is_exact(value: int) -> None:
    whole, fraction = divmod(value, 1_000_000)
    assert micros(f"{whole}.{fraction:06d}") == value
    assert micros(Decimal(value).scaleb(-6)) == value


def test_cost_is_given_or_waived() -> None:
    with pytest.raises(MissingLimits) as caught:
        Limits(turns=3)
    assert (caught.value.code, caught.value.path) == ("missing_cost", "cost")
    assert Limits(cost=WAIVED).values.cost_micros is None
    assert Limits(cost="0").values.cost_micros == 0
    assert Limits(cost="0.05", deadline_s=9).values.deadline_ms == 9_000
    assert repr(WAIVED) == "WAIVED"


@pytest.mark.parametrize(
    "value", [None, -1, 1.0, 1.5, math.nan, math.inf, True, "3", CEILING + 1, 2**70, [1]]
)
@pytest.mark.parametrize(
    "name", [name for name in LimitValues.__struct_fields__ if name not in ("cost_micros", "tool_calls_each")]
)
def test_limit_that_is_no_integer_in_range_is_refused(name: str, value: Any) -> None:
    with pytest.raises(DeclarationError) as caught:
        Limits(cost=1, **{name: value})
    assert caught.value.path == name


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in LimitValues.__struct_fields__
        if name not in ("tool_calls_each", "token_bound", "cost_micros")
    ],
)
def test_zero_only_where_it_means_something(name: str) -> None:
    if name in SMALLEST_ZERO:
        assert getattr(Limits(cost=1, **{name: 0}).values, name) == 0
    else:
        with pytest.raises(DeclarationError):
            Limits(cost=1, **{name: 0})


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"max_turns": 3}, "max_turns"),
        ({"cost_micros": 3}, "cost_micros"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"deadline_s": 1.5}, "deadline_s"),
        ({"deadline_s": 2**60}, "deadline_s"),
        ({"deadline_s": 2**50}, "deadline_ms"),
        ({"tool_calls_each": {"a": -1}}, "tool_calls_each.a"),
        ({"tool_calls_each": {"a": 1.0}}, "tool_calls_each.a"),
        ({"tool_calls_each": 5}, "tool_calls_each"),
        ({"tool_calls_each": None}, "tool_calls_each"),
        ({"output_tokens_per_request": 300_000}, "output_tokens_per_request"),
        ({"token_bound": "guess"}, "token_bound"),
    ],
)
def test_declaration_names_its_field(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        Limits(cost=1, **fields)
    assert caught.value.path == path


def test_equal_limits_are_equal() -> None:
    assert Limits(cost=1) == Limits(cost=1)
    assert hash(Limits(cost=1)) == hash(Limits(cost=1))
    assert Limits(cost=1) != Limits(cost=2)
    assert "turns=50" in repr(Limits(cost=1))


def test_every_default_is_finite_and_in_range() -> None:
    values = LimitValues()
    for name in LimitValues.__struct_fields__:
        value = getattr(values, name)
        if isinstance(value, int):
            assert 0 < value <= CEILING, name


def test_back_off_is_bounded() -> None:
    assert [backoff_ms((1, 2, 3), attempt) for attempt in (1, 2, 3, 4, 99)] == [1, 2, 3, 3, 3]


# --- goals ---------------------------------------------------------------------------------------------------------


def test_goal_of_names_and_predicates() -> None:
    goal = Goal.of("refund", Evidence("get_order", result={"state": "paid"}, count=2))
    assert [item.name() for item in goal.evidence] == ["refund", "get_order(state='paid') x2"]


@pytest.mark.parametrize(
    ("evidence", "code"),
    [
        ((), "empty_goal"),
        ((Evidence("a", count=0),), "goal_count"),
        ((Evidence("a", count=-1),), "goal_count"),
        ((Evidence("a", count=1_001),), "goal_count"),
        ((Evidence("a", count=True),), "goal_count"),
        ((Evidence("a", count=1.0),), "goal_count"),  # type: ignore[arg-type]  # what a caller may write
        ((Evidence("a", arguments={"n": math.nan}),), "goal_value"),
        ((Evidence("a", result={"at": datetime.date(2026, 1, 1)}),), "goal_value"),
        ((Evidence("a", result={"n": 2**64}),), "goal_value"),
        ((Evidence("a", result={"s": "\ud800"}),), "goal_value"),
    ],
)
def test_goal_that_is_refused(evidence: tuple[Evidence, ...], code: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        Goal.of(*evidence)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("asked", "found", "met"),
    [
        ({"n": 1}, {"n": 1}, True),
        ({"n": 1}, {"n": 1, "m": 2}, True),
        ({"n": 1}, {"n": True}, False),
        ({"n": 0}, {"n": False}, False),
        ({"n": True}, {"n": 1}, False),
        ({"n": [1, {"m": False}]}, {"n": [1, {"m": 0}]}, False),
        ({"n": 1}, {}, False),
        ({"n": None}, {}, False),
        ({"n": None}, {"n": None}, True),
        ({"n": 1}, [1], False),
        ({"n": 1}, None, False),
        ({"n": 1}, "n", False),
    ],
)
def test_evidence_is_compared_as_json(asked: dict[str, Any], found: Any, met: bool) -> None:
    assert Evidence("a", result=asked).met_by(found) is met
    if isinstance(found, dict):
        assert Evidence("a", arguments=asked).asked_by(cast("dict[str, Any]", found)) is met


# --- starting ------------------------------------------------------------------------------------------------------


def spec(**fields: Any) -> NewRunSpec:
    values: dict[str, Any] = {"run_id": "r", "input": "hello", "operation_id": "op", **fields}
    return NewRunSpec(**values)


@pytest.mark.parametrize("field", ["run_id", "operation_id", "tenant", "principal", "agent"])
@pytest.mark.parametrize("value", ["", "x" * 201, "a\nb", "a\x00", "\u202e", "\ud800"])
def test_names_are_bounded_and_printable(field: str, value: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        start_run(spec(**{field: value}), pins())
    assert caught.value.path == field


@pytest.mark.parametrize(
    ("text", "code"), [("\ud800", "input_encoding"), ("x" * (INPUT_BYTES_MAX + 1), "input_size")]
)
def test_input_is_text_of_a_bounded_size(text: str, code: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        start_run(spec(input=text), pins())
    assert caught.value.code == code


def test_unknown_price_with_a_cost_limit_is_refused_at_the_start() -> None:
    with pytest.raises(DeclarationError) as caught:
        start_run(spec(), pins(price=None))
    assert caught.value.code == "price_unknown"
    start_run(spec(), pins(price=None, bounds=LimitValues(cost_micros=None)))


def test_pins_are_read_back_only_as_they_were() -> None:
    held = pins(
        goal=Goal.of(Evidence("refund", arguments={"n": 1.5}, count=2)), price=Price(input=1, output=2)
    )
    data = encode_pins(held)
    started, digest, encoded = start_run(spec(), held)
    assert (started.pins_sha256, encoded) == (digest, data)
    assert read_pins(digest, data) == held
    assert isinstance(read_pins(digest, data), Pins)
    for broken in (None, b"", data[:-1], data.replace(b"test", b"tesT")):
        with pytest.raises(Exception, match="pins_missing"):
            read_pins(digest, broken)


def test_errors_name_the_caller() -> None:
    with pytest.raises(CallerError) as caught:
        micros("x")
    assert caught.value.actor == "caller"


# --- the published table -------------------------------------------------------------------------------------------


def rows() -> dict[str, list[str]]:
    """First cell of each table row -> its cells; a name may stand in two tables."""
    found: dict[str, list[str]] = {}
    for line in DOCUMENT.splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            found.setdefault(cells[0].strip("`"), cells)
    return found


def test_every_limit_is_published_with_its_default() -> None:
    table, values = rows(), LimitValues()
    for name in LimitValues.__struct_fields__:
        cells = table[name]
        default = getattr(values, name)
        published = cells[2]
        if isinstance(default, int):
            assert published == f"{default:,}", name
        elif isinstance(default, str):
            assert published == f'`"{default}"`', name
        else:
            assert published, name
    metered = DOCUMENT.partition("## Metered limits")[2].partition("## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", metered, re.MULTILINE)) == set(METERED)


def test_fixed_bounds_are_published() -> None:
    for text in (
        f"| {MARGIN_MS:,} ms |",
        f"| {RECHECKS_MAX} |",
        f"| {QUERIES_MAX} |",
        f"| {HOST_DEATHS_MAX} |",
    ):
        assert text in DOCUMENT


def test_only_known_limits_are_raisable() -> None:
    assert set(LimitValues.__struct_fields__) > RAISABLE
