"""What must be on record before a final answer counts: evidence over bound, successful results.

A goal is data, so the log alone can judge it. A predicate is met by one bound result with status ``ok`` of the named
tool whose arguments and result hold the given values. The model's own words are never evidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from .canonical import JSON, canonical_bytes, decode_canonical
from .errors import CallerError, DeclarationError


class Evidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One predicate: ``tool`` succeeded with these top-level argument values and result values. ``count`` results are
    needed (1 to 1,000)."""

    tool: str
    arguments: dict[str, Any] = {}
    result: dict[str, Any] = {}
    count: int = 1

    def name(self) -> str:
        """How the predicate is shown: the tool, and what is asked of it."""
        parts = [f"{key}={value!r}" for key, value in sorted({**self.arguments, **self.result}.items())]
        suffix = f" x{self.count}" if self.count > 1 else ""
        return f"{self.tool}({', '.join(parts)}){suffix}" if parts else f"{self.tool}{suffix}"

    def asked_by(self, arguments: Mapping[str, JSON]) -> bool:
        """Whether a call with these arguments is one that the predicate speaks of."""
        return _holds(arguments, self.arguments)

    def met_by(self, result: JSON) -> bool:
        """Whether a result is such evidence. Replayed results count: the effect is on record."""
        return not self.result or (isinstance(result, dict) and _holds(result, self.result))


def _holds(members: Mapping[str, JSON], asked: Mapping[str, JSON]) -> bool:
    """Equal as JSON: in Python ``True == 1``, in a record ``true`` is no evidence for 1."""
    return all(key in members and _same(members[key], value) for key, value in asked.items())


def _same(left: JSON, right: JSON) -> bool:
    return left == right and canonical_bytes(left) == canonical_bytes(right)


def predicates_met(predicates: Sequence[Evidence], tool: str, whole: bytes) -> tuple[int, ...]:
    """Numbers of the run's predicates (``pins.predicates``) about ``tool`` that a result meets, judged on the whole of it
    (canonical JSON).

    For a result that is too large to be in the log: what is there is a view, and a view is no evidence.
    """
    about = [n for n, item in enumerate(predicates) if item.tool == tool]
    if not about:
        return ()
    result = decode_canonical(whole) if any(predicates[n].result for n in about) else None
    return tuple(n for n in about if predicates[n].met_by(result))


class Goal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All predicates must be met. ``Goal.of("submit_refund")`` asks for one success of that tool."""

    evidence: tuple[Evidence, ...] = ()

    @staticmethod
    def of(*evidence: str | Evidence) -> Goal:
        """A goal from tool names and predicates. Raises ``DeclarationError`` for an empty or absurd one."""
        made = tuple(Evidence(item) if isinstance(item, str) else item for item in evidence)
        if not made:
            raise DeclarationError("empty_goal", "a goal needs at least one predicate", path="goal")
        for item in made:
            if type(item.count) is not int or not 1 <= item.count <= 1_000:
                raise DeclarationError("goal_count", "count must be between 1 and 1000", path=item.tool)
            try:
                canonical_bytes([item.arguments, item.result])
            except CallerError as error:
                raise DeclarationError("goal_value", f"not JSON: {error.code}", path=item.tool) from error
        return Goal(made)
