"""Compiled schemas: strict checks, exact places, messages that repeat nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundloop.runtime.schema import SchemaViolation, compile_schema


def check(schema: dict[str, Any], value: object) -> tuple[str, str] | None:
    """The violation's code and path of `value` as the member `v` of an object."""
    validator = compile_schema({"type": "object", "properties": {"v": schema}, "required": ["v"]})
    violation = validator({"v": value})
    return None if violation is None else (violation.code, violation.path)


SAMPLES: list[tuple[str, Any]] = [
    ("string", "1"),
    ("integer", 1),
    ("number", 1.5),
    ("boolean", True),
    ("null", None),
    ("array", [1]),
    ("object", {"a": 1}),
]


# hostile: 34
@pytest.mark.parametrize("name", [name for name, _ in SAMPLES])
@pytest.mark.parametrize(("of", "value"), SAMPLES)
def test_a_type_takes_its_own_values_only(name: str, of: str, value: object) -> None:
    fits = name == of or (name, of) == ("number", "integer")
    assert check({"type": name}, value) == (None if fits else ("type", "$.v"))


@pytest.mark.parametrize("value", ["yes", "true", 1, 0, "1_000", "\u0967\u0968\u0969", 1.0, "1"])
def test_nothing_is_coerced_to_a_boolean_or_an_integer(value: object) -> None:
    assert check({"type": "boolean"}, value) == ("type", "$.v")
    if type(value) is not int:
        assert check({"type": "integer"}, value) == ("type", "$.v")


def test_an_integer_refuses_a_float_and_a_number_takes_both() -> None:
    assert check({"type": "integer"}, 1.0) == ("type", "$.v")
    assert check({"type": "integer"}, True) == ("type", "$.v")
    assert check({"type": "number"}, 1) is None
    assert check({"type": "number"}, 1.0) is None
    assert check({"type": "number"}, False) == ("type", "$.v")


class Number(int):
    """A subclass isn't what JSON gives."""

    __slots__ = ()


@pytest.mark.parametrize("value", [(1,), {1}, Number(1), b"x", object()])
def test_values_that_json_never_gives_have_no_type(value: object) -> None:
    for name, _ in SAMPLES:
        assert check({"type": name}, value) == ("type", "$.v")


# hostile: 33
def test_an_extra_property_is_refused() -> None:
    for written in ({}, {"additionalProperties": True}, {"additionalProperties": False}):
        validator = compile_schema({"type": "object", "properties": {"a": {"type": "integer"}}, **written})
        assert validator({"a": 1, "admin": True}) == SchemaViolation(
            "additional", "$.admin", "not a property of this object"
        )


# hostile: 20
@pytest.mark.parametrize("key", ["__proto__", "__class__", "constructor", "a\u200b", "A"])
def test_special_keys_are_extra_properties_like_any_other(key: str) -> None:
    violation = compile_schema({"type": "object", "properties": {"a": {}}})({"a": 1, key: {"b": 1}})
    assert violation is not None
    assert violation.code == "additional"
    nested = check({"type": "object", "properties": {"a": {}}}, {key: 1})
    assert nested is not None
    assert nested[0] == "additional"


def test_a_nested_object_is_closed_too() -> None:
    schema = {"type": "array", "items": {"type": "object", "properties": {"qty": {"type": "integer"}}}}
    assert check(schema, [{"qty": 1}, {}, {"qty": "1"}]) == ("type", "$.v[2].qty")
    assert check(schema, [{"qty": 1, "x": 1}]) == ("additional", "$.v[0].x")


def test_an_open_map_says_what_it_takes() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 2}
    assert check(schema, {"a": 1, "b c": 2}) is None
    assert check(schema, {"b c": "2"}) == ("type", '$.v["b c"]')
    assert check(schema, {"a": 1, "b": 1, "c": 1}) == ("properties", "$.v")


def test_a_missing_property_is_named() -> None:
    validator = compile_schema(
        {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "required": ["a", "b"]}
    )
    assert validator({"a": 1, "b": None}) is None
    assert validator({"a": 1}) == SchemaViolation("missing", "$.b", "required")
    assert validator({}) == SchemaViolation("missing", "$.a", "required")


@pytest.mark.parametrize(
    ("schema", "good", "bad", "code"),
    [
        ({"minimum": 1}, [1, 2], [0], "range"),
        ({"maximum": 1}, [1, 0], [2], "range"),
        ({"exclusiveMinimum": 1}, [2], [1, 0], "range"),
        ({"exclusiveMaximum": 1}, [0], [1, 2], "range"),
        ({"multipleOf": 5}, [0, 10, -5], [1, 7], "multiple"),
    ],
)
def test_bounds_of_integers(schema: dict[str, Any], good: list[int], bad: list[int], code: str) -> None:
    assert [check({"type": "integer", **schema}, value) for value in good] == [None] * len(good)
    assert [check({"type": "integer", **schema}, value) for value in bad] == [(code, "$.v")] * len(bad)


# hostile: 36
@pytest.mark.parametrize("bound", ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_isn_t_finite_is_within_no_bounds(bound: str, value: float) -> None:
    assert check({"type": "number", bound: 1}, value) == ("range", "$.v")
    assert check({"type": "number"}, value) == ("range", "$.v")


def test_bounds_of_text_count_characters() -> None:
    schema = {"type": "string", "minLength": 2, "maxLength": 3}
    assert check(schema, "\U0001f600" * 3) is None
    assert check(schema, "a") == ("length", "$.v")
    assert check(schema, "\U0001f600" * 4) == ("length", "$.v")


def test_bounds_of_arrays() -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}
    assert check(schema, [1, 2]) is None
    assert check(schema, []) == ("items", "$.v")
    assert check(schema, [1, 2, 3]) == ("items", "$.v")
    assert check(schema, "ab") == ("type", "$.v")


def test_tuples_are_positions() -> None:
    schema = {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False}
    assert check(schema, [1, "a"]) is None
    assert check(schema, ["a", 1]) == ("type", "$.v[0]")
    assert check(schema, [1, "a", 2]) == ("items", "$.v[2]")


def test_unique_items_compare_as_json() -> None:
    schema = {"type": "array", "uniqueItems": True}
    assert check(schema, [1, True, "1", None, [1], {"a": 1}]) is None
    assert check(schema, [1, 1.0]) == ("unique", "$.v[1]")
    assert check(schema, [{"a": 1, "b": 2}, {"b": 2, "a": 1}]) == ("unique", "$.v[1]")
    assert check(schema, {}) == ("type", "$.v")


def test_enums_compare_type_and_value() -> None:
    assert check({"enum": ["a", 1, None, [1]]}, "a") is None
    assert check({"enum": ["a", 1, None, [1]]}, [1]) is None
    assert check({"enum": ["a", 1]}, True) == ("enum", "$.v")
    assert check({"enum": ["a", 1]}, 1.0) == ("enum", "$.v")
    assert check({"const": 1}, 1) is None
    assert check({"const": 1}, 2) == ("enum", "$.v")
    assert check({"const": 1, "enum": [1, 2]}, 2) == ("enum", "$.v")
    assert check({"type": "string", "enum": ["a"]}, 1) == ("enum", "$.v")
    assert check({"type": "string", "enum": ["a", 1]}, 1) == ("type", "$.v")


def test_an_optional_value_is_told_by_its_type() -> None:
    schema = {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}]}
    assert check(schema, None) is None
    assert check(schema, "ab") is None
    assert check(schema, "abc") == ("length", "$.v")
    assert check(schema, 1) == ("type", "$.v")


def test_unions_of_objects_take_one_whole_branch() -> None:
    schema: dict[str, Any] = {
        "anyOf": [
            {"type": "object", "properties": {"kind": {"const": "a"}, "x": {}}, "required": ["kind", "x"]},
            {"type": "object", "properties": {"kind": {"const": "b"}, "y": {}}, "required": ["kind", "y"]},
        ]
    }
    assert check(schema, {"kind": "b", "y": 1}) is None
    assert check(schema, {"kind": "a", "y": 1}) == ("any_of", "$.v")
    assert check({"oneOf": schema["anyOf"]}, {"kind": "b", "y": 1}) is None


def test_one_of_takes_exactly_one() -> None:
    schema = {"oneOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 5}]}
    assert check(schema, 2) is None
    assert check(schema, 4) == ("one_of", "$.v")
    assert check(schema, "4") == ("one_of", "$.v")


def test_all_of_takes_what_fits_all() -> None:
    schema = {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 5}]}
    assert check(schema, 4) is None
    assert check(schema, 2) == ("range", "$.v")
    assert check(schema, 6) == ("range", "$.v")


def test_several_types_keep_the_bounds_of_each() -> None:
    schema = {"type": ["string", "integer"], "maxLength": 1, "minimum": 5}
    assert check(schema, "a") is None
    assert check(schema, 5) is None
    assert check(schema, "ab") == ("length", "$.v")
    assert check(schema, 4) == ("range", "$.v")
    assert check(schema, None) == ("type", "$.v")


def test_a_bound_without_a_type_leaves_other_types_alone() -> None:
    assert check({"minimum": 5}, "a") is None
    assert check({"minimum": 5}, 4) == ("range", "$.v")


TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/Node"}},
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
            },
            "required": ["name"],
        }
    },
}


def test_recursive_types_are_followed() -> None:
    validator = compile_schema(TREE)
    inner: dict[str, Any] = {"name": "b", "children": []}
    assert validator({"root": {"name": "a", "children": [inner]}}) is None
    violation = validator({"root": {"name": "a", "children": [{"name": "b", "children": [{"nam": 1}]}]}})
    assert violation is not None
    assert (violation.code, violation.path) == ("additional", "$.root.children[0].children[0].nam")


def test_a_value_that_holds_itself_ends() -> None:
    node: dict[str, Any] = {"name": "a"}
    node["children"] = [node]
    violation = compile_schema(TREE)({"root": node})
    assert violation is not None
    assert violation.code == "work"


def test_many_siblings_are_not_depth() -> None:
    siblings: list[Any] = [{"name": "b"}] * 300  # more than references may nest
    assert compile_schema(TREE)({"root": {"name": "a", "children": siblings}}) is None


def test_a_validator_is_reusable_after_a_violation() -> None:
    validator = compile_schema(TREE)
    for _ in range(300):  # more often than references may nest
        assert validator({"root": {"name": 1}}) is not None
    assert validator({"root": {"name": "a"}}) is None


def test_messages_and_paths_are_bounded_and_repeat_no_value() -> None:
    secret = "hunter2" * 1000
    validator = compile_schema(
        {
            "type": "object",
            "properties": {
                "a": {"type": "string", "maxLength": 3},
                "b": {"enum": ["x"]},
                "c": {"type": "integer"},
            },
        }
    )
    for value in ({"a": secret}, {"b": secret}, {"c": secret}):
        violation = validator(value)
        assert violation is not None
        assert "hunter2" not in violation.message + violation.path
        assert len(violation.message) < 100
    violation = validator({secret: 1})
    assert violation is not None
    assert len(violation.path) < 100
    violation = validator({"\x1b[31m\u202e\n": 1})
    assert violation is not None
    assert violation.path.isascii()
    assert violation.path.isprintable()


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists))
def test_no_value_makes_a_validator_raise(value: object) -> None:
    validator = compile_schema(TREE)
    assert validator(value) is not None
    assert validator({"root": value}) is not None
