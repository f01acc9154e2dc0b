"""What must be on record before a final answer counts: evidence over bound, successful results.

A goal is data, so the log alone can judge it. A predicate is met by one bound result with status ``ok`` of the named
tool whose arguments and result hold the given values. The model's own words are never evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from .canonical import JSON, canonical_bytes, decode_canonical

if TYPE_CHECKING:
    from .schema import Validator


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


class Citations(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An answer must cite bound results: at least ``least`` different ids (0 to 256), and no id that no result holds.

    ``sources``: where ids come from, such as ``("search.items.id",)``; as in ``provenance``, but results alone. An id is written
    ``[source:ID]``, with ``marker`` for the word; or it stands in the typed output, at the dotted path ``field``.
    """

    sources: tuple[str, ...]
    marker: str = "source"
    field: str = ""
    least: int = 1


class Goal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, dict=True):
    """All predicates must be met, and the answer must be what is asked for. ``Goal.of("submit_refund")`` asks for one success
    of that tool.

    ``output``: a schema; the final text must be strict JSON of it. ``from_results``: dotted paths in that output whose values
    must come from results. ``citations``: what the answer must refer to.
    """

    evidence: tuple[Evidence, ...] = ()
    output: dict[str, Any] | None = None
    from_results: dict[str, tuple[str, ...]] = {}
    citations: Citations | None = None

    @staticmethod
    def of(
        *evidence: str | Evidence,
        output: object = None,
        from_results: Iterable[str] | Mapping[str, str | Iterable[str]] = (),
        citations: Citations | str | None = None,
    ) -> Goal:
        """A goal from tool names and predicates, and from what is asked of the answer. ``output``: a type, or a JSON schema.
        ``from_results``: as of a tool, over paths in the output. ``citations``: a source of ids, or ``Citations``. Raises
        ``DeclarationError`` for an empty or absurd one."""
        from .goal_spec import made_goal  # who reads a log declares nothing

        return made_goal(evidence, output, from_results, citations)

    @cached_property
    def validator(self) -> Validator | None:
        """The compiled `output`; compiled once a goal."""
        from .schema import compile_schema

        return None if self.output is None else compile_schema(self.output)

    @cached_property
    def needed(self) -> tuple[tuple[str, ...], ...]:
        """The sources of all that every answer has to hold: without one of each no answer can count."""
        from .output_paths import must_hold

        output = self.output or {}
        named = [sources for path, sources in self.from_results.items() if must_hold(output, path)]
        if self.citations is not None and self.citations.least:
            named.append(self.citations.sources)
        return tuple(named)

    @property
    def watched(self) -> dict[str, tuple[str, ...]]:
        """The sources that the answer is held against."""
        cited = {} if self.citations is None else {"": self.citations.sources}
        return {**self.from_results, **cited}
