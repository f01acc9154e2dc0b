"""Definitions in flight: what a run does when the application that takes it up has another definition of a tool than its own.

A change of what a call means (``CONTRACT_FIELDS``) is never adopted: the next call of that tool stops the run,
``definition_changed``. Any other change of what a model, an approver or a limit goes by (``ADOPTED_FIELDS``) is adopted with
the take-over, by an event that holds the new definition; so a log says under which definitions each request went out. A tool
that is gone is withdrawn by the same event, and comes back by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from .errors import HistoryRefused
from .read_result import READ_RESULT
from .taint import Trust, stricter
from .tool_definition import (
    DEFINITION_HASH_FIELDS,
    DEFINITION_HASH_FIELDS_IF_SET,
    ApprovalRule,
    ToolDefinition,
)

if TYPE_CHECKING:
    from .state import State

CONTRACT_FIELDS: Final = (
    "name",
    "effect_version",
    "parameters",
    "risk",
    "key",
    "incidental",
    "far_side",
    "kind",
    "from_results",
    "secret_arguments",
)
"""What a definition must keep for a run in flight."""

ADOPTED_FIELDS: Final = (
    *(name for name in DEFINITION_HASH_FIELDS if name not in CONTRACT_FIELDS),
    *(name for name in DEFINITION_HASH_FIELDS_IF_SET if name not in CONTRACT_FIELDS),
    "facts",
    "conditions",
    "timeout_ms",
    "result_bytes_max",
    "max_attempts",
)
"""What of it is adopted. Where a tool runs (pool, group, quick, inline) is the host's own affair, and its code's revision is
on record with each call."""

_STRICTER: Final[tuple[ApprovalRule, ...]] = ("never", "policy", "always")
_LESS_TRUSTED: Final[tuple[Trust, ...]] = ("untrusted", "undeclared", "trusted")
_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(ToolDefinition).decode


class DefinitionChange(msgspec.Struct, frozen=True, gc=False):
    """A tool of a run whose definition is to change. ``definition``: what it is from now on; None if it is gone."""

    tool: str
    definition: ToolDefinition | None


def contract_kept(pinned: ToolDefinition, present: ToolDefinition) -> bool:
    """Whether a call that was validated under ``pinned`` means the same under ``present``."""
    # Nearly always they are equal whole, which is one comparison in C.
    return pinned == present or all(
        getattr(pinned, field) == getattr(present, field) for field in CONTRACT_FIELDS
    )


def stricter_approval(one: ApprovalRule, other: ApprovalRule) -> ApprovalRule:
    """The one of two rules that asks more often."""
    if one == other:
        return one
    return other if _STRICTER.index(other) > _STRICTER.index(one) else one


def adopted(known: ToolDefinition, present: ToolDefinition) -> ToolDefinition | None:
    """What the run goes by from now on; None if that is what it goes by already, or may not change. A deploy can't loosen
    a run in flight: permissions that were needed stay needed, of two approval or taint rules the stricter holds, and results
    are trusted no more than before."""
    if known is present or known.kind != "tool" or not contract_kept(known, present):
        return None
    changed: dict[str, object] = {name: getattr(present, name) for name in ADOPTED_FIELDS}
    changed["permissions"] = tuple(sorted({*known.permissions, *present.permissions}))
    changed["approval"] = stricter_approval(known.approval, present.approval)
    changed["after_untrusted"] = stricter(known.after_untrusted, present.after_untrusted)
    changed["trust"] = min(known.trust, present.trust, key=_LESS_TRUSTED.index)
    changed["handler_revision"] = present.handler_revision
    changed["offered"] = True
    same = all(getattr(known, name) == value for name, value in changed.items() if name != "handler_revision")
    return None if same else msgspec.structs.replace(known, **changed)


def changes(
    tools: Mapping[str, ToolDefinition], present: Callable[[str], ToolDefinition | None]
) -> tuple[DefinitionChange, ...]:
    """What an application that takes a run up changes of its tools. ``present`` gives its own definition by name."""
    found: list[DefinitionChange] = []
    for name, known in tools.items():
        now = present(name)
        if now is known or known is READ_RESULT:
            continue
        if now is None:
            if known.offered:
                found.append(DefinitionChange(name, None))
            continue
        if not known.offered and known.kind != "tool" and contract_kept(known, now):
            found.append(DefinitionChange(name, msgspec.structs.replace(known, offered=True)))
            continue
        then = adopted(known, now)
        if then is not None:
            found.append(DefinitionChange(name, then))
    return tuple(found)


def is_offered(state: State, tool: str) -> bool:
    """Whether the run's model may call a tool of this name now."""
    definition = state.tools.get(tool)
    return definition is not None and definition.offered


def tools_offered(state: State) -> tuple[ToolDefinition, ...]:
    """What the next request of the run's model offers; with ``read_result`` at the end once there is something to read on."""
    if not state.definitions:
        tools = state.pins.tools_offered(state.stage)
    else:
        stages = state.pins.stages
        tools = tuple(
            tool
            for tool in state.tools.values()
            if tool.offered
            and tool is not READ_RESULT
            and (not stages or tool.name in stages[state.stage].tools)
        )
    return (*tools, READ_RESULT) if state.reading else tools


def encode_definition(definition: ToolDefinition) -> bytes:
    """Deterministic JSON."""
    return _encode(definition)


def decode_definition(data: bytes, tool: str) -> ToolDefinition:
    """Raises ``HistoryRefused`` for what is no definition of that tool."""
    try:
        definition = _decode(data)
    except msgspec.DecodeError as error:
        raise HistoryRefused("definition_decode", f"an adopted definition can't be read: {error}") from error
    if definition.name != tool:
        raise HistoryRefused("definition_decode", "an adopted definition is of another tool", path=tool)
    return definition
