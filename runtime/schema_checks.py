"""The checks that schemas are compiled into: closures that give `None` or the first violation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias, cast

from .canonical import JSON, CanonicalRefused, canonical_bytes, child_path
from .schema_lint import Schema, local_ref
from .schema_pattern import compile_pattern

SCHEMA_WORK_MAX: Final = 50_000
"""References followed and union branches entered for one value."""
SCHEMA_REF_DEPTH_MAX: Final = 128
"""References within references."""


class SchemaViolation(NamedTuple):
    """The first place where a value breaks its schema.

    `code`: type, additional, missing, enum, pattern, range, multiple, length, items, unique, properties, any_of,
    one_of, never, work. `path`: JSONPath, keys escaped and cut. `message`: bounded, and never repeats the value.
    """

    code: str
    path: str
    message: str

    def under(self, prefix: str) -> SchemaViolation:
        """The same violation, seen from the container."""
        return SchemaViolation(self.code, prefix + self.path, self.message)


class _WorkExceeded(Exception):
    """Not a violation: `oneOf` could take a branch's violation for a reason to accept another."""


class Work:
    """What is left to spend on one value."""

    __slots__ = ("depth", "left")

    def __init__(self) -> None:
        self.left = SCHEMA_WORK_MAX
        self.depth = 0

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise _WorkExceeded


Check: TypeAlias = "Callable[[JSON, Work], SchemaViolation | None]"


class Validator:
    """A compiled schema: call it with a value and get `None` or the first violation. Pure and reusable."""

    __slots__ = ("_check", "schema")

    def __init__(self, schema: Schema, check: Check) -> None:
        self.schema = schema
        self._check = check

    def __call__(self, value: object) -> SchemaViolation | None:
        try:
            violation = self._check(cast(JSON, value), Work())
        except _WorkExceeded:
            return SchemaViolation("work", "$", "takes more steps to check than are allowed")
        return None if violation is None else violation.under("$")


_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_NAMES: Final[dict[type, str]] = {kind: name for name, kinds in _TYPES.items() for kind in kinds} | {
    int: "integer"
}


def type_name(value: object) -> str:
    """The JSON type of a value; its exact type, so a subclass is none."""
    return _NAMES.get(type(value), "no JSON type")


def types_of(schema: JSON, defs: Schema, hops: int) -> list[str] | None:
    """The JSON types that a schema accepts, if that is plain to see."""
    if not isinstance(schema, dict) or hops == 0:
        return None
    types = schema.get("type")
    if types is not None:
        return cast("list[str]", types if isinstance(types, list) else [types])
    if "enum" in schema or "const" in schema:
        return sorted({type_name(value) for value in allowed_values(schema)})
    name = local_ref(schema)
    return None if name is None else types_of(defs[name], defs, hops - 1)


def allowed_values(schema: Schema) -> list[JSON]:
    """The values of `enum`, or of `const`, or those that are both."""
    values = cast("list[JSON]", schema.get("enum", []))
    if "const" not in schema:
        return values
    const = schema["const"]
    return [const] if not values or _identity(const) in {_identity(value) for value in values} else []


def accept(_value: JSON, _work: Work) -> SchemaViolation | None:
    """Any value."""
    return None


def never(_value: JSON, _work: Work) -> SchemaViolation | None:
    """No value."""
    return SchemaViolation("never", "", "no value is allowed here")


def _wrong_type(expected: str, value: object) -> SchemaViolation:
    return SchemaViolation("type", "", f"expected {expected}, got {type_name(value)}")


def of_type(name: str) -> Check:
    """Values of one JSON type and nothing else about them."""
    kind = _TYPES[name][0]

    def check(value: JSON, _work: Work) -> SchemaViolation | None:
        return None if type(value) is kind else _wrong_type(name, value)

    return check


def by_type(checks: Mapping[str, Check]) -> Check:
    """The check that belongs to the value's type."""
    table = {kind: check for name, check in checks.items() for kind in _TYPES[name]}
    expected = " or ".join(checks)

    def check(value: JSON, work: Work) -> SchemaViolation | None:
        chosen = table.get(type(value))
        return _wrong_type(expected, value) if chosen is None else chosen(value, work)

    return check


def string(node: Schema) -> Check:
    """`minLength`, `maxLength` (code points) and `pattern`."""
    if not node.keys() & {"minLength", "maxLength", "pattern"}:
        return of_type("string")
    low = cast(int, node.get("minLength", 0))
    high = cast("int | None", node.get("maxLength"))
    matches = compile_pattern(cast(str, node["pattern"])) if "pattern" in node else None

    def check(value: JSON, _work: Work) -> SchemaViolation | None:
        if type(value) is not str:
            return _wrong_type("string", value)
        if len(value) < low:
            return SchemaViolation("length", "", f"shorter than {low}")
        if high is not None and len(value) > high:
            return SchemaViolation("length", "", f"longer than {high}")
        if matches is not None and not matches(value):
            return SchemaViolation("pattern", "", "doesn't match the pattern")
        return None

    return check


def number(node: Schema, name: str) -> Check:
    """Bounds and `multipleOf`. An integer is never a float, not even 1.0; a number is either, but never a bool."""
    low, high = cast("float | None", node.get("minimum")), cast("float | None", node.get("maximum"))
    above = cast("float | None", node.get("exclusiveMinimum"))
    below = cast("float | None", node.get("exclusiveMaximum"))
    multiple = cast("int | None", node.get("multipleOf"))
    kinds = _TYPES[name]
    if low is high is above is below is multiple is None and name == "integer":
        return of_type(name)

    def check(value: JSON, _work: Work) -> SchemaViolation | None:
        if type(value) not in kinds:
            return _wrong_type(name, value)
        amount = cast(float, value)
        # Written so that NaN, for which every comparison is false, is out of each bound.
        if (low is not None and not amount >= low) or (above is not None and not amount > above):
            return SchemaViolation("range", "", "below the minimum")
        if (high is not None and not amount <= high) or (below is not None and not amount < below):
            return SchemaViolation("range", "", "above the maximum")
        if type(value) is float and not math.isfinite(value):
            return SchemaViolation("range", "", "not a finite number")
        if multiple is not None and type(value) is int and value % multiple:
            return SchemaViolation("multiple", "", f"not a multiple of {multiple}")
        return None

    return check


def object_members(
    members: Mapping[str, Check], required: tuple[str, ...], additional: Check | None
) -> Check:
    """Members, those that must be there, and what others must be (`None`: there may be none)."""
    paths = {name: child_path("", name) for name in members}
    needed = frozenset(required)

    def check(value: JSON, work: Work) -> SchemaViolation | None:
        if type(value) is not dict:
            return _wrong_type("object", value)
        for key, item in value.items():
            member = members.get(key, additional)
            if type(key) is not str:
                return SchemaViolation("type", "", "a key that isn't a string")
            if member is None:
                return SchemaViolation("additional", child_path("", key), "not a property of this object")
            violation = member(item, work)
            if violation is not None:
                return violation.under(paths.get(key) or child_path("", key))
        if not needed <= value.keys():
            name = next(name for name in required if name not in value)
            return SchemaViolation("missing", child_path("", name), "required")
        return None

    return check


def array_items(prefix: list[Check], rest: Check) -> Check:
    """The first elements by position, and all further ones."""

    def check(value: JSON, work: Work) -> SchemaViolation | None:
        if type(value) is not list:
            return _wrong_type("array", value)
        for index, item in enumerate(value):
            violation = (prefix[index] if index < len(prefix) else rest)(item, work)
            if violation is not None:
                code = "items" if violation.code == "never" else violation.code
                return SchemaViolation(code, f"[{index}]{violation.path}", violation.message)
        return None

    return check


def counted(check: Check, node: Schema, code: str, low_keyword: str, high_keyword: str) -> Check:
    """A container of `check` with a bounded number of entries. The count is looked at before the entries."""
    if low_keyword not in node and high_keyword not in node:
        return check
    low = cast(int, node.get(low_keyword, 0))
    high = cast("int | None", node.get(high_keyword))

    def checked(value: JSON, work: Work) -> SchemaViolation | None:
        if type(value) is dict or type(value) is list:
            size = len(value)
            if size < low:
                return SchemaViolation(code, "", f"fewer than {low}")
            if high is not None and size > high:
                return SchemaViolation(code, "", f"more than {high}")
        return check(value, work)

    return checked


def unique(check: Check) -> Check:
    """An array of `check` whose elements all differ, by their canonical bytes."""

    def checked(value: JSON, work: Work) -> SchemaViolation | None:
        violation = check(value, work)
        if violation is not None:
            return violation
        seen: set[bytes | None] = set()
        for index, item in enumerate(value if type(value) is list else []):
            identity = _identity(item)
            if identity is None or identity in seen:
                return SchemaViolation("unique", f"[{index}]", "occurs before")
            seen.add(identity)
        return None

    return checked


def _identity(value: JSON) -> bytes | None:
    try:
        return canonical_bytes(value)
    except CanonicalRefused:
        return None


def enum(values: list[JSON]) -> Check:
    """One of `values`. Strings, the usual case, are looked up; others are compared by type and canonical bytes."""
    strings = frozenset(value for value in values if type(value) is str)
    others = frozenset((type(value), _identity(value)) for value in values if type(value) is not str)

    def check(value: JSON, _work: Work) -> SchemaViolation | None:
        if type(value) is str:
            if value in strings:
                return None
        elif others and (type(value), _identity(value)) in others:
            return None
        return SchemaViolation("enum", "", f"not one of the {len(values)} allowed values")

    return check


def ref(checks: Mapping[str, Check], name: str) -> Check:
    """The check of a schema in `$defs`, looked up when called."""

    def check(value: JSON, work: Work) -> SchemaViolation | None:
        work.spend()
        if work.depth >= SCHEMA_REF_DEPTH_MAX:
            raise _WorkExceeded
        work.depth += 1
        violation = checks[name](value, work)
        work.depth -= 1
        return violation

    return check


def all_of(checks: list[Check]) -> Check:
    """All of them; the first violation counts."""

    def check(value: JSON, work: Work) -> SchemaViolation | None:
        for part in checks:
            violation = part(value, work)
            if violation is not None:
                return violation
        return None

    return check


def any_of(checks: list[Check]) -> Check:
    """At least one of them."""

    def check(value: JSON, work: Work) -> SchemaViolation | None:
        for branch in checks:
            work.spend()
            if branch(value, work) is None:
                return None
        return SchemaViolation("any_of", "", f"matches none of the {len(checks)} alternatives")

    return check


def one_of(checks: list[Check]) -> Check:
    """Exactly one of them."""

    def check(value: JSON, work: Work) -> SchemaViolation | None:
        matches = 0
        for branch in checks:
            work.spend()
            matches += branch(value, work) is None
        if matches == 1:
            return None
        return SchemaViolation(
            "one_of", "", f"matches {matches} of the {len(checks)} alternatives, not exactly one"
        )

    return check
