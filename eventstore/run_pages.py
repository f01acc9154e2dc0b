"""Which index a page of runs is read from, for stores that have indexes.

A page is the newest runs of one or more *branches*, each of which one index leads through. A time of change can't be
indexed without a cost to each append, so two columns of a run's row are kept for lists: ``rest`` is its status while it
has ended, stopped or waits, else empty, and ``rested_at_ms`` is its last change then, else NULL. Runs at work, which are as
many as hosts have in hand, are a branch of their own and are looked through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import msgspec

from ..runtime.ledger import RunIndex
from .port import RunFilter

Operator = Literal["=", ">=", "<", "begins"]

_ALWAYS_AT_REST: Final = ("suspended", "terminated")

_LEADING: Final = ("operation_id", "root_id", "waiting_for", "outcome", "rest", "agent", "tenant")
"""The column whose value is shared by the fewest runs comes first, as a rule."""

_COMMON: Final = {"outcome": "completed", "rest": "terminated"}
"""What most runs come to: such a test leads only if no other does."""

_LARGEST: Final = "\U0010ffff"


class Condition(msgspec.Struct, frozen=True):
    """One condition on a column of a run's row. What a text ``begins`` with is a range: ``beginning``."""

    column: str
    operator: Operator
    value: str | int


class Branch(msgspec.Struct, frozen=True):
    """All tests must hold. The index of ``lead`` is gone through; empty if every run is. ``in_order``: that index gives the
    runs in the order of their keys, so that reading may end with the page."""

    tests: tuple[Condition, ...]
    lead: str = ""
    in_order: bool = True


def rest_of(index: RunIndex) -> str:
    """What ``rest`` is for this index row."""
    return index.status if index.waiting_for or index.status in _ALWAYS_AT_REST else ""


def branches(where: RunFilter) -> tuple[Branch, ...]:
    """Where the runs of this page are. No run is in two branches."""
    tests = [
        Condition(column, "=", value)
        for column, value in (
            ("operation_id", where.operation_id),
            ("root_id", where.root_id),
            ("outcome", where.outcome),
            ("agent", where.agent),
            ("tenant", where.tenant),
        )
        if value is not None
    ]
    if where.waiting_for_prefix:
        tests.append(Condition("waiting_for", "begins", where.waiting_for_prefix))
    tests += _between("created_at_ms", where.created_since_ms, where.created_until_ms)
    resting = _between("rested_at_ms", where.updated_since_ms, where.updated_until_ms)
    working = _between("updated_at_ms", where.updated_since_ms, where.updated_until_ms)
    if where.status is not None:
        resting.append(Condition("rest", "=", where.status))
        working.append(Condition("status", "=", where.status))
    if not resting:
        return (_led(tests),)
    at_rest = _led([*tests, *resting])
    if where.status in _ALWAYS_AT_REST or where.waiting_for_prefix:
        return (at_rest,)
    at_work = _led([*tests, *working, Condition("rest", "=", "")])
    return (at_work,) if where.status == "" else (at_rest, at_work)


def _led(tests: list[Condition]) -> Branch:
    equal = {test.column: test.value for test in tests if test.operator == "="}
    ranges = [test.column for test in tests if test.operator != "="]
    names = [name for name in _LEADING if equal.get(name) not in (None, _COMMON.get(name))]
    # An empty text is not in the indexes of these, and is no rare value.
    names = [name for name in names if equal[name] != "" or name in ("rest", "agent", "tenant")]
    if "waiting_for" in ranges and not {"operation_id", "root_id"} & set(names):
        return Branch(tuple(tests), "waiting_for", False)
    if names:
        return Branch(tuple(tests), names[0])
    for column in ("rested_at_ms", "created_at_ms"):
        if column in ranges:
            return Branch(tuple(tests), column, False)
    for name, value in _COMMON.items():
        if equal.get(name) == value:
            return Branch(tuple(tests), name)
    return Branch(tuple(tests))


def _between(column: str, since_ms: int | None, until_ms: int | None) -> list[Condition]:
    found: list[Condition] = []
    if since_ms is not None:
        found.append(Condition(column, ">=", since_ms))
    if until_ms is not None:
        found.append(Condition(column, "<", until_ms))
    return found


def beginning(condition: Condition, stored: Callable[[str], str] = str) -> tuple[Condition, ...]:
    """The condition, and of texts with a beginning the range: in the order of code points, which is that of their UTF-8 bytes.
    ``stored`` is how a column keeps a text; the range is one of texts as they are kept."""
    if not isinstance(condition.value, str):
        return (condition,)
    kept = stored(condition.value)
    if condition.operator != "begins":
        return (Condition(condition.column, condition.operator, kept),)
    found = [Condition(condition.column, ">=", kept)]
    shorter = kept.rstrip(_LARGEST)
    if shorter:
        last = ord(shorter[-1]) + 1
        above = shorter[:-1] + chr(0xE000 if 0xD800 <= last <= 0xDFFF else last)
        found.append(Condition(condition.column, "<", above))
    return tuple(found)
