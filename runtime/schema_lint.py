"""What a schema may say. Everything here happens when a tool is declared, before a value is seen.

The subset is that of JSON Schema 2020-12 that can be checked in bounded time without opening anything: references
are local, patterns are linear, sizes are bounded, unknown keywords are refused instead of ignored (an ignored
keyword is a check that its author believes in and that never runs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, cast

from .canonical import JSON, CanonicalRefused, canonical_bytes, child_path
from .errors import DeclarationError
from .schema_pattern import compile_pattern

SCHEMA_BYTES_MAX: Final = 64 * 1024
SCHEMA_DEPTH_MAX: Final = 24
"""Schemas within schemas."""
SCHEMA_NODES_MAX: Final = 2_000
"""Subschemas in one schema."""
ENUM_VALUES_MAX: Final = 1_000
BRANCHES_MAX: Final = 32

Schema = dict[str, JSON]

TYPE_NAMES: Final = ("object", "array", "string", "integer", "number", "boolean", "null")
_ANNOTATIONS: Final = frozenset(
    {
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$comment",
        "format",
        "contentEncoding",
        "contentMediaType",
        "discriminator",
    }
)
_DIALECTS: Final = (
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2020-12/schema#",
)
_REF_PREFIX: Final = "#/$defs/"
_UNIONS: Final = ("anyOf", "oneOf", "allOf")


def normalise_schema(schema: object) -> Schema:
    """A checked copy of a root schema: closed objects, `type` stated, `$schema` dropped. Raises `DeclarationError`.

    An object that lists `properties` takes no others, whatever it says; an open map is written as
    `additionalProperties: {schema}` without `properties`. A root without properties takes no arguments.
    """
    try:
        size = len(canonical_bytes(cast(JSON, schema)))
    except CanonicalRefused as error:
        raise DeclarationError("schema_json", error.message, path=error.path) from error
    if size > SCHEMA_BYTES_MAX:
        raise DeclarationError("schema_size", f"larger than {SCHEMA_BYTES_MAX} bytes", path="$")
    if not isinstance(schema, dict):
        raise DeclarationError("schema_root", "a root schema is an object", path="$")
    root = cast(Schema, schema)
    if root.get("$schema", _DIALECTS[0]) not in _DIALECTS:
        raise DeclarationError("schema_dialect", "only JSON Schema 2020-12 is read", path="$.$schema")
    copy = cast(Schema, _closed({key: value for key, value in root.items() if key != "$schema"}, 0))
    _Lint(copy).run()
    return copy


def lint_schema(schema: object) -> None:
    """Check a root schema whose values are objects; raises `DeclarationError` with the place in `path`."""
    close_root(normalise_schema(schema))


def close_root(schema: Schema) -> Schema:
    """`schema` as that of a tool's arguments: an object, and one that takes nothing unless it says what."""
    if schema.get("type") != "object":
        raise DeclarationError(
            "schema_root", "arguments are an object: the root needs type object", path="$.type"
        )
    if "properties" in schema or isinstance(schema.get("additionalProperties"), dict):
        return schema
    return {**schema, "properties": {}, "additionalProperties": False}


def local_ref(schema: Schema) -> str | None:
    """The name in `$defs` that a schema refers to."""
    ref = schema.get("$ref")
    return ref.removeprefix(_REF_PREFIX) if isinstance(ref, str) else None


def _closed(schema: JSON, depth: int) -> JSON:
    """A deep copy in which objects with properties are closed and typed. Only schemas are touched, not data."""
    if not isinstance(schema, dict) or depth > SCHEMA_DEPTH_MAX:
        return schema  # the lint says what is wrong with it
    copy = dict(schema)
    for key in ("items", "additionalProperties"):
        if key in copy:
            copy[key] = _closed(copy[key], depth + 1)
    for key in (*_UNIONS, "prefixItems"):
        branches = copy.get(key)
        if isinstance(branches, list):
            copy[key] = [_closed(branch, depth + 1) for branch in branches]
    for key in ("properties", "$defs"):
        members = copy.get(key)
        if isinstance(members, dict):
            copy[key] = {name: _closed(member, depth + 1) for name, member in members.items()}
    if "properties" in copy:
        copy["additionalProperties"] = False
    if "type" not in copy and ("properties" in copy or "required" in copy):
        copy["type"] = "object"
    return copy


class _Lint:
    """One pass over a closed root schema. Collects references, which are checked when all schemas are known."""

    def __init__(self, root: Schema) -> None:
        self.root = root
        self.nodes = 0
        defs = root.get("$defs", {})
        if not isinstance(defs, dict):
            raise DeclarationError("schema_keyword", "$defs is a map of schemas", path="$.$defs")
        self.defs = defs

    def run(self) -> None:
        self.schema(self.root, "$", 0)
        for name, schema in self.defs.items():
            self.schema(schema, child_path("$.$defs", name), 1)
        self.refuse_ref_loops()

    def schema(self, schema: JSON, path: str, depth: int) -> None:
        if isinstance(schema, bool) and depth > 0:
            return
        if not isinstance(schema, dict):
            raise DeclarationError("schema_type", "a schema is an object or a boolean", path=path)
        self.nodes += 1
        if self.nodes > SCHEMA_NODES_MAX:
            raise DeclarationError("schema_size", f"more than {SCHEMA_NODES_MAX} schemas", path=path)
        if depth > SCHEMA_DEPTH_MAX:
            raise DeclarationError("schema_depth", f"nested deeper than {SCHEMA_DEPTH_MAX}", path=path)
        for keyword, value in schema.items():
            self.keyword(schema, keyword, value, child_path(path, keyword), depth)
        _refuse_split_object(schema, self.defs, path)
        _refuse_useless(schema, path)

    def keyword(self, schema: Schema, keyword: str, value: JSON, path: str, depth: int) -> None:
        if keyword in _ANNOTATIONS:
            return
        if keyword in ("items", "additionalProperties"):
            self.schema(value, path, depth + 1)
        elif keyword in _UNIONS or keyword == "prefixItems":
            if not isinstance(value, list) or not 0 < len(value) <= BRANCHES_MAX:
                raise DeclarationError("schema_keyword", f"a list of 1 to {BRANCHES_MAX} schemas", path=path)
            for index, branch in enumerate(value):
                self.schema(branch, f"{path}[{index}]", depth + 1)
        elif keyword == "properties":
            if not isinstance(value, dict):
                raise DeclarationError("schema_keyword", "properties is a map of schemas", path=path)
            for name, member in value.items():
                self.schema(member, child_path(path, name), depth + 1)
        elif keyword == "$defs":
            if depth > 0:
                raise DeclarationError("schema_keyword", "$defs stands at the root only", path=path)
        elif keyword == "$ref":
            self.refuse_bad_ref(value, path)
        else:
            check = _VALUE_CHECKS.get(keyword)
            if check is None:
                raise DeclarationError(
                    "schema_keyword", "this keyword isn't read; an ignored check is none", path=path
                )
            check(value, path)

    def refuse_bad_ref(self, ref: JSON, path: str) -> None:
        if not isinstance(ref, str) or not ref.startswith(_REF_PREFIX):
            raise DeclarationError(
                "schema_ref", "only references into $defs are followed, none is opened", path=path
            )
        if ref.removeprefix(_REF_PREFIX) not in self.defs:
            raise DeclarationError("schema_ref", "refers to nothing in $defs", path=path)

    def refuse_ref_loops(self) -> None:
        """A reference that comes back to itself without going into the value would never end."""
        done: set[str] = set()
        for start in self.defs:
            trail: list[tuple[str, Iterator[str]]] = [(start, _direct_refs(self.defs[start]))]
            open_names = {start}
            while trail and start not in done:
                name, refs = trail[-1]
                following = next(refs, None)
                if following is None:
                    trail.pop()
                    open_names.discard(name)
                    done.add(name)
                elif following in open_names:
                    raise DeclarationError(
                        "schema_ref", "a reference loop", path=child_path("$.$defs", following)
                    )
                elif following not in done:
                    open_names.add(following)
                    trail.append((following, _direct_refs(self.defs[following])))


def _direct_refs(schema: JSON) -> Iterator[str]:
    """Names reached without going into a member or an element."""
    if not isinstance(schema, dict):
        return
    name = local_ref(schema)
    if name is not None:
        yield name
    for union in _UNIONS:
        branches = schema.get(union)
        for branch in branches if isinstance(branches, list) else ():
            yield from _direct_refs(branch)


def _refuse_split_object(schema: Schema, defs: Schema, path: str) -> None:
    """Properties in two places at once: each closed part would refuse the other's."""
    groups = [1] if "properties" in schema else []
    beside: list[JSON] = [{"$ref": schema["$ref"]}] if "$ref" in schema else []
    all_of = schema.get("allOf")
    beside.extend(all_of if isinstance(all_of, list) else ())
    groups.extend(1 for branch in beside if _has_properties(branch, defs, BRANCHES_MAX))
    for union in ("anyOf", "oneOf"):
        branches = schema.get(union)
        if isinstance(branches, list) and any(
            _has_properties(branch, defs, BRANCHES_MAX) for branch in branches
        ):
            groups.append(1)
    if len(groups) > 1:
        raise DeclarationError("schema_split_object", "list an object's properties in one place", path=path)


def _has_properties(schema: JSON, defs: Schema, hops: int) -> bool:
    if not isinstance(schema, dict) or hops == 0:
        return False
    if "properties" in schema:
        return True
    name = local_ref(schema)
    if name is not None and _has_properties(defs.get(name), defs, hops - 1):
        return True
    branches = [branch for union in _UNIONS for branch in cast("list[JSON]", schema.get(union) or [])]
    return any(_has_properties(branch, defs, hops - 1) for branch in branches)


def _refuse_useless(schema: Schema, path: str) -> None:
    """A bound that its type never meets is a check that its author believes in and that never runs."""
    types = schema.get("type")
    if types is None:
        return
    names = set(cast("list[str]", types) if isinstance(types, list) else [cast(str, types)])
    for keyword in schema:
        wanted = APPLIES_TO.get(keyword)
        if wanted is not None and not names & wanted:
            raise DeclarationError(
                "schema_keyword", "this keyword never applies to the type", path=child_path(path, keyword)
            )
    if "multipleOf" in schema and "number" in names:
        raise DeclarationError("schema_keyword", "multipleOf is read for integers only", path=path)


def _check_type(value: JSON, path: str) -> None:
    names = value if isinstance(value, list) else [value]
    if not names or any(name not in TYPE_NAMES for name in names) or len(set(map(str, names))) < len(names):
        raise DeclarationError("schema_type", "not the name of a JSON type", path=path)


def _check_enum(value: JSON, path: str) -> None:
    if not isinstance(value, list) or not 0 < len(value) <= ENUM_VALUES_MAX:
        raise DeclarationError("schema_enum", f"a list of 1 to {ENUM_VALUES_MAX} values", path=path)


def _check_const(value: JSON, path: str) -> None:
    """Any value is a constant."""


def _check_required(value: JSON, path: str) -> None:
    if not isinstance(value, list) or any(not isinstance(name, str) for name in value):
        raise DeclarationError("schema_keyword", "required is a list of names", path=path)


def _check_count(value: JSON, path: str) -> None:
    if type(value) is not int or value < 0:
        raise DeclarationError("schema_keyword", "a count is an integer from 0", path=path)


def _check_bound(value: JSON, path: str) -> None:
    if type(value) is not int and type(value) is not float:
        raise DeclarationError("schema_keyword", "a bound is a number", path=path)


def _check_multiple(value: JSON, path: str) -> None:
    if type(value) is not int or value <= 0:
        raise DeclarationError("schema_keyword", "multipleOf is a positive integer", path=path)


def _check_flag(value: JSON, path: str) -> None:
    if not isinstance(value, bool):
        raise DeclarationError("schema_keyword", "true or false", path=path)


def _check_pattern(value: JSON, path: str) -> None:
    if not isinstance(value, str):
        raise DeclarationError("pattern_syntax", "a pattern is a string", path=path)
    try:
        compile_pattern(value)
    except DeclarationError as error:
        raise DeclarationError(error.code, error.message, path=path) from error


_VALUE_CHECKS: Final[dict[str, Callable[[JSON, str], None]]] = {
    "type": _check_type,
    "enum": _check_enum,
    "const": _check_const,
    "required": _check_required,
    "minProperties": _check_count,
    "maxProperties": _check_count,
    "minItems": _check_count,
    "maxItems": _check_count,
    "uniqueItems": _check_flag,
    "minLength": _check_count,
    "maxLength": _check_count,
    "pattern": _check_pattern,
    "minimum": _check_bound,
    "maximum": _check_bound,
    "exclusiveMinimum": _check_bound,
    "exclusiveMaximum": _check_bound,
    "multipleOf": _check_multiple,
}

_OBJECT: Final = frozenset({"object"})
_ARRAY: Final = frozenset({"array"})
_STRING: Final = frozenset({"string"})
_NUMERIC: Final = frozenset({"integer", "number"})
APPLIES_TO: Final = {
    **dict.fromkeys(
        ("properties", "additionalProperties", "required", "minProperties", "maxProperties"), _OBJECT
    ),
    **dict.fromkeys(("items", "prefixItems", "minItems", "maxItems", "uniqueItems"), _ARRAY),
    **dict.fromkeys(("minLength", "maxLength", "pattern"), _STRING),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), _NUMERIC),
}
