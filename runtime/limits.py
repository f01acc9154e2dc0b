"""Every bound of a run, with its unit in its name, a finite default and a hard ceiling.

``Limits`` is what a caller writes; cost must be given or waived. Counts (turns, calls, attempts) can never be passed;
tokens and cost never by what is asked for. ``docs/counters.md`` tells what each counter counts and what not.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from decimal import Decimal
from typing import Final, Literal, cast

import msgspec

from .errors import DeclarationError, MissingLimits

MICROS_PER_UNIT: Final = 1_000_000
MICRO_DIGITS: Final = 6
_MONEY: Final = re.compile(r"[0-9]{1,20}(\.[0-9]{1,40})?").fullmatch
CEILING: Final = 2**53
"""No limit may be higher: sums of limits stay exact in every consumer of the log."""

MARGIN_MS: Final = 5_000
"""Slack between clocks of one store: a lost attempt counts as over this long after its validity."""

RECHECKS_MAX: Final = 3
"""How often an unknown check is run again before it denies."""

QUERIES_MAX: Final = 5
QUERY_BACKOFF_MS: Final = (200, 1_000, 5_000, 15_000)
MODEL_BACKOFF_MS: Final = (200, 1_000, 5_000, 15_000)
CALL_BACKOFF_MS: Final = (100, 500, 2_000, 10_000)
HOST_DEATHS_MAX: Final = 3
"""The third death of a host in one run is a crash loop."""


def backoff_ms(table: tuple[int, ...], attempt: int) -> int:
    """Delay after the given attempt (from 1); the last entry repeats. Jitter is the driver's."""
    return table[min(attempt, len(table)) - 1]


def micros(amount: str | int | Decimal, *, name: str = "cost") -> int:
    """Money as integer micro-units. A string is a decimal amount of the price table's currency ("0.05"); an int is
    already micro-units. Floats, signs, exponents, non-finite and amounts finer than a micro-unit are refused."""
    if isinstance(amount, bool) or not isinstance(cast(object, amount), int | str | Decimal):
        raise DeclarationError(
            "money_type", "write money as a decimal string or integer micro-units", path=name
        )
    if isinstance(amount, int):
        value = amount
    else:
        written = amount if isinstance(amount, str) else _written(amount)
        if _MONEY(written) is None:
            raise DeclarationError("money_syntax", "not a decimal amount", path=name)
        whole, _, fraction = written.partition(".")
        fraction = fraction.rstrip("0")
        if len(fraction) > MICRO_DIGITS:
            raise DeclarationError("money_precision", "not a whole number of micro-units", path=name)
        value = int(whole) * MICROS_PER_UNIT + int(fraction.ljust(MICRO_DIGITS, "0"))
    if not 0 <= value <= CEILING:
        raise DeclarationError("money_range", f"must be between 0 and {CEILING} micro-units", path=name)
    return value


def _written(amount: Decimal) -> str:
    """The plain digits; empty for what has none of a sane length, so that no exponent is ever written out."""
    if not amount.is_finite() or abs(amount.adjusted()) > 32 or len(amount.as_tuple().digits) > 32:
        return ""
    return format(amount, "f")


class LimitValues(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The bounds as integers, pinned in the log. Field names carry the units; see ``docs/limits.md`` and ``docs/counters.md``."""

    turns: int = 50
    model_attempts: int = 100
    model_attempts_per_turn: int = 3
    calls_per_turn: int = 64
    hosted_calls: int = 100
    tool_calls: int = 100
    tool_calls_each: dict[str, int] = {}
    call_attempts: int = 200
    denials: int = 20
    failures: int = 20
    invalid_streak: int = 5
    input_tokens: int = 2_000_000
    output_tokens: int = 200_000
    total_tokens: int = 2_000_000
    output_tokens_per_request: int = 4_096
    model_request_ms: int = 600_000
    cost_micros: int | None = None
    deadline_ms: int = 3_600_000
    active_ms: int = 3_600_000
    parallel: int = 8
    result_bytes: int = 1_048_576
    history_bytes: int = 33_554_432
    context_tokens: int = 200_000
    repeats: int = 20
    equal_results: int = 3
    turns_without_progress: int = 10
    corrective_turns: int = 1
    approval_rounds: int = 3
    approval_ms: int = 86_400_000
    answer_ms: int = 86_400_000
    children: int = 16
    depth: int = 4
    messages: int = 100
    token_bound: Literal["bytes", "estimate"] = "estimate"


RAISABLE: Final = frozenset(
    name for name in LimitValues.__struct_fields__ if name not in {"tool_calls_each", "token_bound", "depth"}
)

SMALLEST_ZERO: Final = frozenset(
    {
        "tool_calls",
        "hosted_calls",
        "denials",
        "failures",
        "children",
        "corrective_turns",
        "cost_micros",
        "messages",
    }
)


def checked(values: LimitValues, *, names: Collection[str] = LimitValues.__struct_fields__) -> LimitValues:
    """The values if each of ``names`` is in range and they agree with each other; else ``DeclarationError`` naming the
    field. A child's lease may leave it less than what anybody could declare."""
    for name in names:
        value = getattr(values, name)
        if name == "token_bound":
            if value not in ("bytes", "estimate"):
                raise DeclarationError("limit_value", 'must be "bytes" or "estimate"', path=name)
        elif name == "tool_calls_each":
            if not isinstance(value, dict):
                raise DeclarationError("limit_type", "must map tool names to counts", path=name)
            for tool, count in cast("dict[str, object]", value).items():
                _check_int(f"{name}.{tool}", count, least=0)
        elif value is not None or name != "cost_micros":
            _check_int(name, value, least=0 if name in SMALLEST_ZERO else 1)
    if values.output_tokens_per_request > values.context_tokens:
        raise DeclarationError(
            "limit_conflict", "must not be above context_tokens", path="output_tokens_per_request"
        )
    return values


def _check_int(name: str, value: object, *, least: int) -> None:
    if type(value) is not int:
        raise DeclarationError("limit_type", "must be an integer", path=name)
    if not least <= value <= CEILING:
        raise DeclarationError("limit_range", f"must be between {least} and {CEILING}", path=name)


class Waived:
    """The explicit statement that a run has no cost limit: ``Limits(cost=WAIVED)``."""

    def __repr__(self) -> str:
        return "WAIVED"


WAIVED: Final = Waived()


class Limits:
    """The bounds of one run, as a caller declares them.

    ``cost`` is required: a decimal string of the price table's currency, integer micro-units, or ``WAIVED``.
    ``deadline_s`` counts wall time from the start and runs through every wait; all other names are those of
    ``LimitValues`` and have its finite defaults. ``given`` names those of ``values`` that the caller wrote: an agent asks for
    them alone. Raises ``MissingLimits`` without a cost, ``DeclarationError`` for a
    value that isn't an integer in range.
    """

    __slots__ = ("given", "values")

    def __init__(
        self,
        *,
        cost: str | int | Decimal | Waived | None = None,
        deadline_s: int | None = None,
        **counts: object,
    ) -> None:
        unknown = sorted(set(counts) - set(LimitValues.__struct_fields__))
        if unknown or "cost_micros" in counts:
            raise DeclarationError("unknown_limit", "no such limit", path=(unknown or ["cost_micros"])[0])
        if cost is None:
            raise MissingLimits(
                "missing_cost", "give a cost limit, or waive it with cost=WAIVED", path="cost"
            )
        fields: dict[str, object] = dict(counts)
        fields["cost_micros"] = None if isinstance(cost, Waived) else micros(cost)
        if deadline_s is not None:
            _check_int("deadline_s", deadline_s, least=1)
            fields["deadline_ms"] = deadline_s * 1_000
        self.given = frozenset(name for name, value in fields.items() if value is not None)
        self.values = checked(LimitValues(**fields))  # type: ignore[arg-type]  # names and types are checked in checked()

    def __repr__(self) -> str:
        return f"Limits({self.values!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Limits) and other.values == self.values

    def __hash__(self) -> int:
        return hash(repr(self.values))
