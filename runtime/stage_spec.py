"""What users declare: the stages of a run, such as free enquiry, then a draft, then its submission.

    stages=(
        Stage("enquire", tools=("search", "get_order"), leave="get_order"),
        Stage("draft", tools=("create_draft",), leave="create_draft"),
        Stage("submit", tools=("submit_draft",)),
    )

Everything that can be wrong with the declaration is refused here, before any run exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

from .errors import DeclarationError
from .goal import Evidence, Goal
from .read_once import all_read_once
from .stage_definition import StageDefinition
from .tool_definition import is_tool_name

STAGES_MAX: Final = 32
LEAVE_MAX: Final = 64
"""Results that one stage's ``leave`` may ask for, all its predicates together."""

Leave: TypeAlias = "Evidence | Goal | str | Iterable[Evidence | str] | None"


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of a staged run: its name, the names of the tools that are offered in it, and the evidence that ends it: a
    tool's name, an ``Evidence``, several, or a ``Goal`` of evidence alone. The last stage has no ``leave``: it ends as the
    run does, by the goal."""

    name: str
    tools: tuple[str, ...] = ()
    leave: Leave = None

    def __post_init__(self) -> None:
        all_read_once(self, "tools", "leave")


def stages_from(given: object, path: str = "stages") -> tuple[StageDefinition, ...]:
    """The stages as data; none for None. Raises ``DeclarationError`` for what no run can go through."""
    if given is None:
        return ()
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise DeclarationError("stages_type", "must be several Stage(...)", path=path)
    stages = tuple(cast("Iterable[object]", given))
    if not 1 <= len(stages) <= STAGES_MAX:
        raise DeclarationError("stages_count", f"1 to {STAGES_MAX} stages", path=path)
    made = tuple(_made(stage, path, last=stage is stages[-1]) for stage in stages)
    if len({stage.name for stage in made}) < len(made):
        raise DeclarationError("stage_name", "each stage has a name of its own", path=path)
    return made


def names_in_stages(stages: Iterable[StageDefinition]) -> tuple[str, ...]:
    """Every tool that some stage names, once."""
    return tuple(dict.fromkeys(name for stage in stages for name in stage.tools))


def _made(stage: object, path: str, *, last: bool) -> StageDefinition:
    if not isinstance(stage, Stage):
        raise DeclarationError("stages_type", "must be several Stage(...)", path=path)
    if not isinstance(cast(object, stage.name), str) or not is_tool_name(stage.name):
        raise DeclarationError("stage_name", "a name is [a-z][a-z0-9_]{0,63} in ASCII", path=path)
    path = f"{path}.{stage.name}"
    tools = _tools(stage.tools, path)
    leave = _leave(stage.leave, path)
    if bool(leave) == last:
        raise DeclarationError(
            "stage_leave",
            "every stage but the last needs evidence that ends it, and the last has none",
            path=path,
        )
    for predicate in leave:
        if predicate.tool not in tools:
            raise DeclarationError(
                "stage_leave", f"{predicate.tool[:64]} is no tool of this stage", path=path
            )
    if sum(predicate.count for predicate in leave) > LEAVE_MAX:
        raise DeclarationError("stage_leave", f"asks for more than {LEAVE_MAX} results", path=path)
    return StageDefinition(stage.name, tools, leave)


def _tools(given: object, path: str) -> tuple[str, ...]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise DeclarationError("stage_tools", "must be several names, not one text", path=path)
    names = tuple(cast("Iterable[object]", given))
    if not all(isinstance(name, str) and is_tool_name(name) for name in names) or len(set(names)) < len(
        names
    ):
        raise DeclarationError("stage_tools", "names of tools, each once", path=path)
    return cast("tuple[str, ...]", names)


def _leave(given: object, path: str) -> tuple[Evidence, ...]:
    if given is None:
        return ()
    if isinstance(given, Goal):
        if given.output is not None or given.citations is not None:
            raise DeclarationError("stage_leave", "a stage ends by evidence, not by an answer", path=path)
        return Goal.of(*given.evidence).evidence
    if isinstance(given, str | Evidence):
        return Goal.of(given).evidence
    if isinstance(given, Iterable):
        items = tuple(cast("Iterable[object]", given))
        if all(isinstance(item, str | Evidence) for item in items):
            return Goal.of(*cast("tuple[str | Evidence, ...]", items)).evidence
    raise DeclarationError("stage_leave", "must be a tool's name, an Evidence, several, or a Goal", path=path)
