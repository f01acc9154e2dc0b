"""The tools of an application, by name, in the order given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .agent_reach import names_of_agents, permitted, reachable
from .built_in import BUILT_IN
from .errors import DuplicateTool, UnknownTool
from .evidence_fields import refuse_misnamed
from .provenance import tools_named
from .tool_spec import ToolDefinition, ToolSpec, tool_spec


class Toolbox(Mapping[str, ToolSpec]):
    """An immutable mapping from name to `ToolSpec`.

    Raises `DuplicateTool` for two tools of one name, whether or not they are the same function, `DeclarationError` for
    what isn't declared with `@tool`, `agent` or `spawn` and for an agent's evidence that asks for a field no tool here has, and `UnknownTool` for a tool of an agent, or a source of values, that
    isn't here.
    """

    __slots__ = ("_specs",)

    def __init__(self, tools: Iterable[Callable[..., Any] | ToolSpec] = ()) -> None:
        specs: dict[str, ToolSpec] = {}
        for declared in tools:
            spec = tool_spec(declared)
            if spec.name in specs:
                raise DuplicateTool(spec.name)
            specs[spec.name] = spec
        self._specs = specs
        for spec in specs.values():
            for name in (
                *names_of_agents(spec.definition),
                *sorted(tools_named(spec.definition.from_results)),
            ):
                if name not in specs:
                    raise UnknownTool(name)
        definitions = {name: spec.definition for name, spec in specs.items()}
        for definition in definitions.values():
            for agent in definition.agents:
                refuse_misnamed(agent.goal, agent.stages, definitions, f"{agent.name}.")

    def __getitem__(self, name: str) -> ToolSpec:
        return self._specs[name]

    def spec_of(self, definition: ToolDefinition) -> ToolSpec | None:
        """The tool that a run of this definition goes by: the built-in one if the definition is the runtime's own, else the
        application's of that name; None if it has none. A tool of the application's that has a built-in's name is another
        tool: a run that wasn't offered it never gets there."""
        built_in = BUILT_IN.get(definition.name)
        if built_in is not None and built_in.definition is definition:
            return built_in
        return self._specs.get(definition.name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def __repr__(self) -> str:
        return f"Toolbox({', '.join(self._specs)})"

    @classmethod
    def with_also(cls, tools: Toolbox | Iterable[Callable[..., Any] | ToolSpec], also: ToolSpec) -> Toolbox:
        """The toolbox of these tools and, at their end, of one that they may name and needn't hold. Raises as the constructor
        does: another tool of its name is a duplicate."""
        given = tools.values() if isinstance(tools, Toolbox) else tools
        declared = [tool_spec(one) for one in given]
        return cls(declared if also in declared else [*declared, also])

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """All definitions, in order."""
        return tuple(spec.definition for spec in self._specs.values())

    def subset(self, names: Iterable[str]) -> Toolbox:
        """The toolbox of only these tools, in this toolbox's order; raises `UnknownTool` for a name it lacks."""
        wanted = frozenset(names)
        for name in sorted(wanted - self._specs.keys()):
            raise UnknownTool(name)
        part = Toolbox()  # its agents' tools may be among those left out
        part._specs = {name: spec for name, spec in self._specs.items() if name in wanted}
        return part

    def offered(
        self, permissions: frozenset[str], names: frozenset[str] | None = None
    ) -> tuple[ToolDefinition, ...]:
        """What a principal with `permissions` may be offered: tools all of whose permissions it has, of `names`, and of
        several agents in one tool all permissions of one at least. Behind them, not `offered`, what their agents may be offered and they may not, down to the last agent."""
        usable = {
            definition.name: definition
            for definition in self.definitions
            if permitted(definition, permissions)
        }
        own = [definition for name, definition in usable.items() if names is None or name in names]
        return (*own, *reachable(own, usable))
