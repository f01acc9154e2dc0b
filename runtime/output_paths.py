"""What a schema says of a dotted path: what can stand there, and whether something must. Lists on the way are passed through.

A path that a schema doesn't declare would be a check that its author believes in and that never runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast

from .canonical import JSON
from .schema_lint import TYPE_NAMES, Schema, local_ref

_VALUES: Final = frozenset(("string", "integer", "number"))
_STEPS_MAX: Final = 64
"""Schemas within schemas that are gone through to say that something must be there; beyond them nothing must."""


def declared_at(root: Mapping[str, JSON], path: str) -> list[Schema]:
    """All schemas of what can stand at a path; none if the schema declares no such member. A map of names declares each."""
    defs = cast("Mapping[str, JSON]", root.get("$defs", {}))
    here: list[JSON] = [cast(JSON, root)]
    for field in path.split("."):
        found: list[JSON] = []
        for node in _nodes(here, defs):
            members = node.get("properties")
            if isinstance(members, dict):
                found.extend([members[field]] if field in members else [])
            elif isinstance(node.get("additionalProperties"), dict):
                found.append(node["additionalProperties"])
        here = found
    return list(_nodes(here, defs))


def members_at(root: Mapping[str, JSON], path: Sequence[str]) -> list[Schema]:
    """All schemas of what can be the member of this path, by names alone: lists are not passed through. None where the schema
    rules it out; an empty one where it says nothing of it."""
    defs = cast("Mapping[str, JSON]", root.get("$defs", {}))
    here: list[JSON] = [cast(JSON, root)]
    for name in path:
        found: list[JSON] = []
        for node in _nodes(here, defs, lists=False):
            members, more = node.get("properties", {}), node.get("additionalProperties", True)
            if "object" not in _kinds(node):
                continue
            if isinstance(members, dict) and name in members:
                found.append(members[name])
            elif more is not False:
                found.append(more)
        here = found
    return list(_nodes(here, defs, lists=False))


def can_be_scalar(node: Schema) -> bool:
    """Whether a text, a number or a truth value can stand there."""
    return not {"object", "array", "null"}.issuperset(_kinds(node))


def _kinds(node: Schema) -> list[str]:
    kinds = node.get("type", list(TYPE_NAMES))
    return cast("list[str]", kinds if isinstance(kinds, list) else [kinds])


def holds_values(node: Schema) -> bool:
    """Whether a text or a number can stand there: anything else is held against nothing."""
    if _VALUES.isdisjoint(_kinds(node)):
        return False
    allowed = node.get("enum", [node["const"]] if "const" in node else None)
    return not isinstance(allowed, list) or any(
        isinstance(one, str | int | float) and not isinstance(one, bool) for one in allowed
    )


def _nodes(schemas: Sequence[JSON], defs: Mapping[str, JSON], *, lists: bool = True) -> Iterator[Schema]:
    """These schemas with those that they refer to, their branches and, with ``lists``, the elements of their lists, each once."""
    stack, seen = list(schemas), set[int]()
    while stack:
        node = stack.pop()
        if node is True:
            yield {}
        if not isinstance(node, dict) or id(node) in seen:
            continue
        seen.add(id(node))
        name = local_ref(node)
        inside = [] if name is None else [defs[name]]
        for keyword in ("allOf", "anyOf", "oneOf", *(("prefixItems",) if lists else ())):
            inside.extend(cast("list[JSON]", node.get(keyword, [])))
        if lists and ("items" in node or node.get("type") == "array"):
            inside.append(node.get("items", True))
        stack.extend(inside)
        if "type" in node or not inside:
            yield node


def must_hold(root: Mapping[str, JSON], path: str) -> bool:
    """Whether every value of the schema has a text or a number at the path."""
    defs = cast("Mapping[str, JSON]", root.get("$defs", {}))
    return _must(cast(JSON, root), tuple(path.split(".")), defs, _STEPS_MAX)


def _must(node: JSON, path: tuple[str, ...], defs: Mapping[str, JSON], steps: int) -> bool:
    if not isinstance(node, dict) or steps == 0:
        return False

    def goes_on(inside: JSON, rest: tuple[str, ...] = path) -> bool:
        return _must(inside, rest, defs, steps - 1)

    name = local_ref(node)
    all_of = cast("list[JSON]", node.get("allOf", []))
    if any(goes_on(inside) for inside in (*all_of, *([] if name is None else [defs[name]]))):
        return True
    if any(
        all(goes_on(inside) for inside in cast("list[JSON]", node[union]))
        for union in ("anyOf", "oneOf")
        if union in node
    ):
        return True
    kind = node.get("type")
    if kind == "array":
        prefix = cast("list[JSON]", node.get("prefixItems", []))
        return cast(int, node.get("minItems", 0)) > 0 and goes_on(prefix[0] if prefix else node.get("items"))
    if path and kind == "object":
        members = cast(Schema, node.get("properties", {}))
        required = cast("list[JSON]", node.get("required", []))
        return path[0] in required and goes_on(members.get(path[0]), path[1:])
    return not path and bool(kind) and _VALUES.issuperset(kind if isinstance(kind, list) else [kind])
