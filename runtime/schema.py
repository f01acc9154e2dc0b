"""From a schema to a function that checks a value. Strict: nothing is coerced, repaired or guessed.

A schema is linted, then turned once into nested closures; checking allocates nothing until something is wrong.
References and unions spend from a bounded amount of work a value, since recursive unions over a deep value could
otherwise take exponential time.
"""

from __future__ import annotations

from typing import cast

from .canonical import JSON
from .schema_checks import (
    Check,
    SchemaViolation,
    Validator,
    accept,
    all_of,
    allowed_values,
    any_of,
    array_items,
    by_type,
    counted,
    enum,
    never,
    number,
    object_members,
    of_type,
    one_of,
    ref,
    string,
    type_name,
    types_of,
    unique,
)
from .schema_lint import APPLIES_TO, TYPE_NAMES, Schema, lint_schema, local_ref, normalise_schema

__all__ = ["Schema", "SchemaViolation", "Validator", "compile_schema", "lint_schema", "normalise_schema"]


def compile_schema(schema: object) -> Validator:
    """Lint and compile a root schema; raises `DeclarationError`. Objects with `properties` take no others."""
    normal = normalise_schema(schema)
    return Validator(normal, _Compiler(normal).root())


class _Compiler:
    """Compiles the schemas of one root. A reference looks its check up when called, so that types may recurse."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._defs = cast(Schema, root.get("$defs", {}))
        self._checks: dict[str, Check] = {}

    def root(self) -> Check:
        self._checks.update({name: self.compile(schema) for name, schema in self._defs.items()})
        return self.compile(self._root)

    def compile(self, schema: JSON) -> Check:
        if isinstance(schema, bool):
            return accept if schema else never
        node = cast(Schema, schema)
        parts = [*self._types(node), *self._unions(node)]
        if not parts:
            return accept
        return parts[0] if len(parts) == 1 else all_of(parts)

    def _types(self, node: Schema) -> list[Check]:
        bounded = any(keyword in APPLIES_TO for keyword in node)
        allowed = [enum(allowed_values(node))] if "enum" in node or "const" in node else []
        if "type" not in node and not bounded:
            return allowed
        types = node.get("type", list(TYPE_NAMES))
        names = cast("list[str]", types if isinstance(types, list) else [types])
        if allowed and not bounded and all(type_name(value) in names for value in allowed_values(node)):
            return allowed  # membership implies the type
        checks = {name: self._typed(node, name) for name in names}
        return [checks[names[0]] if len(names) == 1 else by_type(checks), *allowed]

    def _typed(self, node: Schema, name: str) -> Check:
        match name:
            case "object":
                return self._object(node)
            case "array":
                return self._array(node)
            case "string":
                return string(node)
            case "integer" | "number":
                return number(node, name)
            case _:
                return of_type(name)

    def _object(self, node: Schema) -> Check:
        members = cast(Schema, node.get("properties", {}))
        additional = node.get("additionalProperties", True)
        check = object_members(
            {name: self.compile(member) for name, member in members.items()},
            tuple(cast("list[str]", node.get("required", []))),
            None if additional is False else self.compile(additional),
        )
        return counted(check, node, "properties", "minProperties", "maxProperties")

    def _array(self, node: Schema) -> Check:
        prefix = [self.compile(item) for item in cast("list[JSON]", node.get("prefixItems", []))]
        check = array_items(prefix, self.compile(node.get("items", True)))
        check = counted(check, node, "items", "minItems", "maxItems")
        return unique(check) if node.get("uniqueItems") is True else check

    def _unions(self, node: Schema) -> list[Check]:
        checks: list[Check] = []
        name = local_ref(node)
        if name is not None:
            checks.append(ref(self._checks, name))
        checks.extend(self.compile(branch) for branch in cast("list[JSON]", node.get("allOf", [])))
        if "anyOf" in node:
            checks.append(self._any_of(cast("list[JSON]", node["anyOf"])))
        if "oneOf" in node:
            checks.append(one_of([self.compile(branch) for branch in cast("list[JSON]", node["oneOf"])]))
        return checks

    def _any_of(self, branches: list[JSON]) -> Check:
        """Branches of different types are chosen by the value's type, which costs one look-up and says what is wrong."""
        table: dict[str, Check] = {}
        for branch in branches:
            names = types_of(branch, self._defs, len(self._defs) + 1)
            if (
                names is None
                or not table.keys().isdisjoint(names)
                or {"integer", "number"} <= {*table, *names}
            ):
                return any_of([self.compile(branch) for branch in branches])
            table.update(dict.fromkeys(names, self.compile(branch)))
        return by_type(table)
