"""Fields that evidence asks for, held against the declared types of its tools: one that no call or result can have would never
be met, and a run would learn that at its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .errors import DeclarationError
from .goal import Evidence, Goal
from .output_paths import members_at
from .stage_definition import StageDefinition
from .tool_definition import ToolDefinition


def refuse_misnamed(
    goal: Goal | None,
    stages: Iterable[StageDefinition],
    definitions: Mapping[str, ToolDefinition],
    path: str = "",
) -> None:
    """Raises ``DeclarationError`` (``evidence_field``) for a field of an argument or a result that its tool rules out. A tool that
    isn't here, and a result without a declared type, rule nothing out."""
    for predicate in () if goal is None else goal.evidence:
        _refuse(predicate, definitions, f"{path}goal")
    for stage in stages:
        for predicate in stage.leave:
            _refuse(predicate, definitions, f"{path}stages.{stage.name}")


def _refuse(predicate: Evidence, definitions: Mapping[str, ToolDefinition], path: str) -> None:
    definition = definitions.get(predicate.tool)
    if definition is None:
        return
    for part, asked, schema in (
        ("arguments", predicate.arguments, definition.parameters),
        ("result", predicate.result, definition.result),
    ):
        for name in asked if schema is not None else ():
            if not members_at(schema or {}, (name,)):
                raise DeclarationError(
                    "evidence_field",
                    f"{definition.name} declares no such field",
                    path=f"{path}.{definition.name}.{part}.{name}"[:256],
                )
