"""Declaring a goal: what is refused before any run exists."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from .canonical import JSON, canonical_bytes
from .declared_shape import several
from .errors import CallerError, DeclarationError
from .goal import Citations, Evidence, Goal
from .output_paths import declared_at, holds_values
from .provenance import ANYWHERE, GIVEN, sources_from

EVIDENCE_COUNT_MAX: Final = 1_000
LEAST_MAX: Final = 256
_marker: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}", re.ASCII).fullmatch


def made_goal(
    evidence: Iterable[str | Evidence],
    output: object,
    from_results: Iterable[str] | Mapping[str, str | Iterable[str]],
    citations: Citations | str | None,
) -> Goal:
    """See ``Goal.of``."""
    made = tuple(_predicate(item) for item in several(evidence, "goal.evidence", "goal_type"))
    sources = sources_from(from_results, "goal.from_results", otherwise=ANYWHERE)
    if sources and output is None:
        raise DeclarationError("goal_output", "values of an output need one", path="goal.from_results")
    if not made and output is None and citations is None:
        raise DeclarationError("empty_goal", "a goal needs at least one predicate", path="goal")
    for item in made:
        if type(item.count) is not int or not 1 <= item.count <= EVIDENCE_COUNT_MAX:
            raise DeclarationError("goal_count", "count must be between 1 and 1000", path=item.tool)
        try:
            canonical_bytes([item.arguments, item.result])
        except CallerError as error:
            raise DeclarationError("goal_value", f"not JSON: {error.code}", path=item.tool) from error
    schema = None if output is None else _schema(output)
    for path in sources:
        _refuse_path(schema or {}, path, "goal.from_results")
    return Goal(made, schema, sources, None if citations is None else _citations(citations, schema))


def checked_goal(goal: Goal) -> Goal:
    """A goal that was made without ``Goal.of``. Raises ``DeclarationError``."""
    if goal == Goal():
        return goal
    return made_goal(goal.evidence, goal.output, goal.from_results, goal.citations)


def goal_from(given: object, path: str) -> Goal:
    """A goal, or one success of the tool that a text names. Raises ``DeclarationError`` for anything else."""
    if isinstance(given, str):
        return made_goal((given,), None, (), None)
    if not isinstance(given, Goal):
        raise DeclarationError("goal_type", "a tool's name, or a Goal", path=path)
    return checked_goal(given)


def _predicate(item: object) -> Evidence:
    if isinstance(item, str):
        return Evidence(item)
    if not isinstance(item, Evidence) or not isinstance(cast(object, item.tool), str):
        raise DeclarationError("goal_type", "evidence is a tool's name, or Evidence(name, …)", path="goal")
    for field in ("arguments", "result"):
        asked: object = getattr(item, field)
        if not isinstance(asked, dict):
            raise DeclarationError(
                "goal_type", "must map names to values", path=f"goal.{item.tool}.{field}"[:256]
            )
    return item


def _schema(output: object) -> dict[str, Any]:
    from .call_signature import schemas_of
    from .schema import compile_schema, normalise_schema

    if isinstance(output, dict):
        schema = normalise_schema(cast("dict[str, JSON]", output))
    else:
        schemas, defs, _ = schemas_of({"output": output}, "goal")
        schema = normalise_schema({**schemas["output"], "$defs": defs} if defs else schemas["output"])
    compile_schema(schema)
    return cast("dict[str, Any]", schema)


def _refuse_path(schema: dict[str, Any], path: str, where: str) -> None:
    """A slip in a path would switch its check off, and nobody would be told."""
    nodes = declared_at(schema, path)
    if not nodes:
        raise DeclarationError("goal_path", "the output declares no such field", path=f"{where}.{path}"[:256])
    if not any(holds_values(node) for node in nodes):
        raise DeclarationError("goal_path", "no text or number stands there", path=f"{where}.{path}"[:256])


def _citations(given: object, schema: dict[str, Any] | None) -> Citations:
    made = Citations((given,)) if isinstance(given, str) else given
    if not isinstance(made, Citations):
        raise DeclarationError("goal_citations", "a source of ids, or Citations", path="goal.citations")
    sources = sources_from({"citations": made.sources}, "goal.citations")["citations"]
    if any(source.partition(".")[0] == GIVEN for source in sources):
        raise DeclarationError("goal_citations", "only results can be cited", path="goal.citations")
    marker, field = cast(object, made.marker), cast(object, made.field)
    if not isinstance(marker, str) or not isinstance(field, str) or _marker(marker) is None:
        raise DeclarationError(
            "goal_citations", "the marker is a word, the field a path", path="goal.citations"
        )
    if field and schema is None:
        raise DeclarationError("goal_citations", "a field of an output needs one", path="goal.citations")
    if field:
        _refuse_path(schema or {}, field, "goal.citations")
    if type(made.least) is not int or not 0 <= made.least <= LEAST_MAX:
        raise DeclarationError("goal_citations", f"least is from 0 to {LEAST_MAX}", path="goal.citations")
    return Citations(sources, made.marker, made.field, made.least)
