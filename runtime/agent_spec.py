"""Agents as tools: ``agent(...)`` declares one, ``spawn(...)`` one tool over several.

Both give what a ``Toolbox`` takes beside tools. A call of one starts a child run under a lease of the calling run's
limits; nothing is executed here, and the result is what became of that run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, cast

from .agent_definition import AgentDefinition
from .call_signature import CallSignature
from .declared_shape import names_of, several
from .errors import BugError, DeclarationError
from .goal import Goal
from .goal_spec import goal_from
from .hosted import hosted_names
from .limits import CEILING, Limits, LimitValues, checked, micros
from .provenance import Sources, sources_from
from .schema import normalise_schema
from .schema_lint import close_root
from .stage_definition import StageDefinition
from .stage_spec import Stage, names_in_stages, stages_from
from .taint import AfterUntrusted, Trust
from .tool_definition import ApprovalRule, ToolDefinition, is_tool_name
from .tool_rules import refuse_contradictions
from .tool_spec import ToolSpec, tool_spec

INPUT_CHARS_MAX: Final = 65_536
AGENTS_MAX: Final = 32
"""Agents of one ``spawn``."""

SYSTEM_BYTES_MAX: Final = 1_048_576
RESULT_BYTES_MAX: Final = 16_384
"""What an agent's result may show of its child run's answer, unless said otherwise."""

RESULT_BYTES_LEAST: Final = 256
"""Room for who ran, how it ended and that the rest was left out."""

_INPUT: Final = {"type": "string", "minLength": 1, "maxLength": INPUT_CHARS_MAX}
_NOT_ASKED: Final = frozenset({"tool_calls_each", "token_bound"})


def agent(
    *,
    name: str,
    description: str,
    system: str = "",
    tools: Iterable[str] = (),
    limits: Limits | Mapping[str, object] | None = None,
    goal: Goal | str | None = None,
    stages: Iterable[Stage] | None = None,
    on_stop: Literal["suspend", "end"] = "end",
    permissions: tuple[str, ...] = (),
    approval: ApprovalRule = "policy",
    params: dict[str, Any] | None = None,
    result_bytes_max: int = RESULT_BYTES_MAX,
    version: str = "1",
    trust: Trust = "undeclared",
    after_untrusted: AfterUntrusted = "policy",
    hosted: Iterable[str] = (),
    from_results: Iterable[str] | Mapping[str, str | Iterable[str]] = (),
) -> ToolSpec:
    """Declare an agent: a tool whose call is a child run. Raises ``DeclarationError``.

    ``tools``: the names that the child is offered, of the toolbox that this agent is put into; other agents and itself
    may be among them, down to the limit ``depth``. ``limits``: what the child asks for, such as
    ``{"turns": 5, "cost": "0.05", "deadline_s": 60}``; it gets at most what its parent has free, and a share of whatever
    isn't named. ``depth`` there is how deep the child may start others, 0 for not at all; with a smaller
    ``context_tokens`` alone a request asks for half of it as output at most. ``goal``: the evidence that the child needs for success. ``stages``:
    its parts, each with some of ``tools``. ``on_stop``: "end" ends a child that stops, so
    that its parent goes on; "suspend" lets a stop that a person can lift wait for that person. ``params`` replaces the
    schema of the arguments, ``{"input": text}``; the child is then given them as JSON. ``result_bytes_max`` bounds the
    child's answer as the parent's model sees it. ``trust``: its answer is as tainted as its run was, unless the host vouches for
    it ("trusted"): an agent without tools that act, whose goal and arguments bound what it can answer. ``after_untrusted`` as of
    a tool. ``hosted``: which of the provider's own tools that its caller accepts it may have; none unless named.
    ``from_results``: as of a tool; such arguments are then among what the child is ``given``.
    """
    names = _names(tools, name)
    made = AgentDefinition(
        name=name,
        description=description,
        system=_system(system, name),
        tools=names,
        limits=_limits(limits, name),
        goal=None if goal is None else goal_from(goal, f"{name}.goal"),
        stages=_stages(stages, names, name),
        hosted=hosted_names(hosted),
        on_stop=_on_stop(on_stop, name),
        permissions=tuple(sorted(names_of(permissions, f"{name}.permissions"))),
        approval=approval,
    )
    schema = params if params is not None else _object({"input": dict(_INPUT)})
    sources = sources_from(from_results, f"{name}.from_results")
    return _spec(
        name,
        description,
        (made,),
        schema,
        permissions,
        approval,
        result_bytes_max,
        version,
        trust=trust,
        after_untrusted=after_untrusted,
        from_results=sources,
    )


def spawn(
    agents: Iterable[ToolSpec],
    *,
    name: str = "spawn",
    description: str = "",
    permissions: tuple[str, ...] = (),
    approval: ApprovalRule = "policy",
    result_bytes_max: int = RESULT_BYTES_MAX,
) -> ToolSpec:
    """One tool over several agents: ``{"agent": name, "input": text}``. Raises ``DeclarationError``.

    ``agents`` are what ``agent`` gave; they needn't be in the toolbox themselves. What each says of ``permissions`` and
    ``approval`` holds for its own calls, beside what is said here of all of them; so does a kill switch by its name. Its
    own ``params`` have no place in this tool, and ``result_bytes_max`` is this tool's.
    """
    made: list[AgentDefinition] = []
    for given in several(agents, f"{name}.agents"):
        spec = tool_spec(given)
        if spec.definition.kind != "agent" or len(spec.definition.agents) != 1:
            raise DeclarationError("not_an_agent", "declare it with agent(...)", path=spec.name)
        if spec.definition.parameters != _closed(_object({"input": dict(_INPUT)})):
            raise DeclarationError("spawn_params", "an agent of a spawn is given one text", path=spec.name)
        made += spec.definition.agents
    names = [one.name for one in made]
    if not 0 < len(made) <= AGENTS_MAX or len(set(names)) < len(names):
        raise DeclarationError("spawn_agents", f"1 to {AGENTS_MAX} agents of different names", path=name)
    text = description or "Start one of these agents and wait for its answer:\n" + "\n".join(
        f"- {one.name}: {one.description}" for one in made
    )
    schema = _object({"agent": {"type": "string", "enum": names}, "input": dict(_INPUT)})
    return _spec(name, text, tuple(made), schema, permissions, approval, result_bytes_max, "1")


def _spec(
    name: str,
    description: str,
    agents: tuple[AgentDefinition, ...],
    schema: dict[str, Any],
    permissions: tuple[str, ...],
    approval: ApprovalRule,
    result_bytes_max: int,
    version: str,
    *,
    trust: Trust = "undeclared",
    after_untrusted: AfterUntrusted = "policy",
    from_results: Sources | None = None,
) -> ToolSpec:
    if not is_tool_name(name):
        raise DeclarationError("tool_name", "a name is [a-z][a-z0-9_]{0,63} in ASCII", path=ascii(name)[:80])
    if not isinstance(cast(object, description), str) or not description.strip():
        raise DeclarationError("description_missing", "give a description", path=name)
    definition = ToolDefinition(
        name=name,
        version=version,
        description=description,
        parameters=_closed(schema),
        risk="read",
        permissions=tuple(sorted(permissions)),
        approval=approval,
        result_bytes_max=result_bytes_max,
        max_attempts=1,
        kind="agent",
        agents=agents,
        trust=trust,
        after_untrusted=after_untrusted,
        from_results=from_results or {},
    )
    refuse_contradictions(definition, is_async=False)
    if result_bytes_max < RESULT_BYTES_LEAST:
        raise DeclarationError(
            "out_of_bounds", f"at least {RESULT_BYTES_LEAST}", path=f"{name}.result_bytes_max"
        )
    signature = CallSignature(definition.parameters, {}, takes_ctx=False, needs_self=False, is_async=False)
    return ToolSpec(definition=definition, handler=_never_executed, signature=signature)


def _never_executed(**arguments: object) -> None:
    raise BugError("agent_executed", "an agent is a run of its own and is never executed")


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    return close_root(normalise_schema(schema))


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _system(system: object, name: str) -> str:
    try:
        if isinstance(system, str) and len(system.encode()) <= SYSTEM_BYTES_MAX:
            return system
    except UnicodeEncodeError:
        pass
    raise DeclarationError("agent_system", f"a text of at most {SYSTEM_BYTES_MAX} bytes", path=name)


def _names(tools: object, name: str) -> tuple[str, ...]:
    if isinstance(tools, str) or not isinstance(tools, Iterable):
        raise DeclarationError("agent_tools", "must be several names, not one text", path=name)
    names = tuple(cast("Iterable[object]", tools))
    if not all(isinstance(one, str) and is_tool_name(one) for one in names) or len(set(names)) < len(names):
        raise DeclarationError("agent_tools", "names of tools, each once", path=name)
    return cast("tuple[str, ...]", names)


def _stages(given: Iterable[Stage] | None, tools: tuple[str, ...], name: str) -> tuple[StageDefinition, ...]:
    """A child is never offered in a stage what it isn't offered at all."""
    made = stages_from(given, f"{name}.stages")
    missing = sorted(set(names_in_stages(made)).difference(tools))
    if missing:
        raise DeclarationError("stage_tools", f"{missing[0]} is no tool of this agent", path=f"{name}.stages")
    return made


def _on_stop(on_stop: object, name: str) -> Literal["suspend", "end"]:
    if on_stop == "end":
        return "end"
    if on_stop == "suspend":
        return "suspend"
    raise DeclarationError("option_value", 'must be "suspend" or "end"', path=f"{name}.on_stop")


def _limits(given: object, name: str) -> dict[str, int]:
    """What is asked for, as ``LimitValues`` names it: what was written, and no default."""
    if given is None:
        return {}
    asked: dict[str, Any] = {}
    if isinstance(given, Limits):
        asked = {key: getattr(given.values, key) for key in sorted(given.given)}
    elif isinstance(given, Mapping):
        for key, value in cast("Mapping[object, Any]", given).items():
            if key == "cost":
                asked["cost_micros"] = micros(value)
            elif key == "deadline_s" and type(value) is int:
                asked["deadline_ms"] = value * 1_000
            else:
                asked[str(key)] = value
    else:
        raise DeclarationError(
            "option_type", "must be a Limits or a mapping of limits", path=f"{name}.limits"
        )
    for key in asked:
        if key not in LimitValues.__struct_fields__ or key in _NOT_ASKED:
            raise DeclarationError("unknown_limit", "no such limit of an agent", path=f"{name}.{key[:80]}")
    if any(type(value) is not int for value in asked.values()):
        raise DeclarationError("limit_type", "must be integers", path=f"{name}.limits")
    _check_asked(asked, name)
    return asked


def _check_asked(asked: dict[str, int], name: str) -> None:
    """Ranges as of any run's limits, but for ``depth``, which counts from the child: 0 is an agent that starts none."""
    if not 0 <= asked.get("depth", 0) <= CEILING:
        raise DeclarationError("limit_range", f"must be between 0 and {CEILING}", path=f"{name}.depth")
    values: dict[str, Any] = {"context_tokens": CEILING, "output_tokens_per_request": 1}
    values |= {key: value for key, value in asked.items() if key != "depth"}
    checked(LimitValues(**values))
