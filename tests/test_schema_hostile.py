"""What a schema may not say is refused when it is declared, before a value is seen and without opening anything."""

from __future__ import annotations

import builtins
import re
import socket
import subprocess
import sys
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundloop.runtime.errors import DeclarationError
from boundloop.runtime.schema import compile_schema, lint_schema
from boundloop.runtime.schema_pattern import compile_pattern


def refusal(schema: Any) -> tuple[str, str]:
    with pytest.raises(DeclarationError) as caught:
        lint_schema(schema)
    with pytest.raises(DeclarationError):
        compile_schema(schema)
    return caught.value.code, caught.value.path


def member(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"v": schema}}


# hostile: 40, 41
@pytest.mark.parametrize(
    "ref",
    [
        "http://169.254.169.254/latest/meta-data",
        "https://example.com/s.json#/$defs/a",
        "file:///etc/passwd",
        "//host/share",
        "other.json",
        "/etc/passwd",
        "urn:uuid:0",
        "",
        "#",
        "#anchor",
        "#/properties/v",
        "#/$defs/missing",
        "#/$defs/a/../../x",
        "HTTP://x",
        1,
        None,
        {},
    ],
)
@pytest.mark.parametrize("place", ["property", "items", "union", "definition", "map"])
def test_references_beyond_the_schema_are_refused_and_never_opened(
    ref: Any, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*_arguments: object, **_options: object) -> NoReturn:
        raise AssertionError("a schema opened something")

    monkeypatch.setattr(socket, "socket", opened)
    monkeypatch.setattr(builtins, "open", opened)
    bad = {"$ref": ref}
    schema = {
        "property": member(bad),
        "items": member({"type": "array", "items": bad}),
        "union": member({"anyOf": [{"type": "null"}, bad]}),
        "definition": {**member({}), "$defs": {"b": member(bad)}},
        "map": {"type": "object", "additionalProperties": bad},
    }[place]
    assert refusal(schema)[0] == "schema_ref"


def test_a_definition_named_like_an_address_doesn_t_make_it_local() -> None:
    assert refusal({**member({"$ref": "http://x"}), "$defs": {"http://x": {}}})[0] == "schema_ref"


def test_a_reference_may_not_hide_behind_a_property_s_name() -> None:
    assert compile_schema(member({"type": "object", "properties": {"$ref": {"type": "string"}}})) is not None
    assert refusal(member({"properties": {"$ref": {"$ref": "http://x"}}})) == (
        "schema_ref",
        '$.properties.v.properties["$ref"]["$ref"]',
    )


@pytest.mark.parametrize(
    "keyword",
    [
        "$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$vocabulary", "id", "definitions",
        "dependencies", "if", "then", "else", "not", "contains", "unevaluatedProperties", "patternProperties",
        "propertyNames", "dependentSchemas", "x-internal", "Type", "additionalproperties",
    ],
)  # fmt: skip
def test_keywords_that_would_be_ignored_are_refused(keyword: str) -> None:
    assert refusal(member({keyword: "x"}))[0] == "schema_keyword"
    assert refusal({"type": "object", keyword: {}})[0] == "schema_keyword"


BADLY_TYPED: list[Any] = [
    {"type": "text"}, {"type": []}, {"type": ["string", "string"]}, {"type": None}, {"type": 1},
    {"type": "string", "minimum": 1}, {"type": "integer", "maxLength": 1}, {"type": "string", "properties": {}},
    {"type": "array", "required": ["a"]}, {"minLength": -1}, {"minLength": 1.0}, {"minLength": True},
    {"minimum": "1"}, {"maximum": True}, {"multipleOf": 0}, {"multipleOf": 0.5},
    {"type": "number", "multipleOf": 2}, {"uniqueItems": 1}, {"required": "a"}, {"required": [1]}, {"enum": []},
    {"enum": "abc"}, {"items": [{}]}, {"items": None}, {"prefixItems": []}, {"anyOf": []}, {"anyOf": {}},
    {"properties": []}, {"properties": {"a": 1}}, {"additionalProperties": "no"}, {"pattern": 1},
    {"$defs": {"a": {}}}, "string", None, [], 1,
]  # fmt: skip


@pytest.mark.parametrize("schema", BADLY_TYPED)
def test_badly_typed_keywords_are_refused(schema: Any) -> None:
    code, path = refusal(member(schema))
    assert code.startswith(("schema_", "pattern_"))
    assert path.startswith("$.properties.v")


@pytest.mark.parametrize(
    "root", [{}, {"type": "array"}, {"anyOf": [{"type": "object"}]}, True, [], None, "object"]
)
def test_a_root_that_is_no_object_is_refused(root: Any) -> None:
    with pytest.raises(DeclarationError):
        lint_schema(root)


def test_a_schema_of_another_dialect_is_refused() -> None:
    lint_schema({"$schema": "https://json-schema.org/draft/2020-12/schema", **member({})})
    assert (
        refusal({"$schema": "http://json-schema.org/draft-07/schema#", **member({})})[0] == "schema_dialect"
    )


def test_hostile_sizes_are_refused() -> None:
    assert refusal(member({"description": "x" * 70_000}))[0] == "schema_size"
    assert refusal({"type": "object", "properties": {f"p{i}": {} for i in range(2_100)}})[0] == "schema_size"
    assert refusal(member({"enum": list(range(1_001))}))[0] == "schema_enum"
    assert refusal(member({"anyOf": [{}] * 33}))[0] == "schema_keyword"


@pytest.mark.parametrize("depth", [25, 63, 100_000])
def test_deeply_nested_schemas_are_refused_without_recursion(depth: int) -> None:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    assert refusal({"type": "object", "properties": {"v": schema}})[0] in ("schema_depth", "schema_json")


@pytest.mark.parametrize("value", [float("nan"), 2**70, (1,), {1: 2}, b"x", "\ud800"])
def test_schemas_that_aren_t_json_are_refused(value: object) -> None:
    assert refusal(member({"default": value}))[0] == "schema_json"


@pytest.mark.parametrize(
    "definitions",
    [
        {"a": {"$ref": "#/$defs/a"}},
        {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        {
            "a": {"anyOf": [{"type": "null"}, {"allOf": [{"$ref": "#/$defs/b"}]}]},
            "b": {"oneOf": [{"$ref": "#/$defs/a"}]},
        },
    ],
)
def test_references_that_go_in_a_circle_are_refused(definitions: Any) -> None:
    assert refusal({**member({"$ref": "#/$defs/a"}), "$defs": definitions})[0] == "schema_ref"


def test_properties_in_two_places_at_once_are_refused() -> None:
    part: Any = {"type": "object", "properties": {"a": {}}}
    splits: list[Any] = [
        {"allOf": [part, part]},
        {"properties": {"b": {}}, "allOf": [part]},
        {"properties": {"b": {}}, "anyOf": [part, {"required": ["b"]}]},
        {"properties": {"b": {}}, "$ref": "#/$defs/P"},
        {"anyOf": [part], "oneOf": [{"$ref": "#/$defs/P"}]},
    ]
    for split in splits:
        assert refusal({**member(split), "$defs": {"P": part}})[0] == "schema_split_object"


def test_alternative_required_lists_of_one_object_are_allowed() -> None:
    schema: Any = {
        "type": "object",
        "properties": {"a": {}, "b": {}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    }
    validator = compile_schema(schema)
    assert validator({"a": 1}) is None
    assert validator({}) is not None


def test_a_recursive_union_over_a_deep_value_ends_by_counted_work() -> None:
    anything: dict[str, Any] = {}
    branch: Any = {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}}
    definitions: Any = {
        "a": {
            "anyOf": [
                {**branch, "required": ["y"], "properties": {**branch["properties"], "y": anything}},
                {**branch, "required": ["z"], "properties": {**branch["properties"], "z": anything}},
                {"type": "null"},
            ]
        }
    }
    validator = compile_schema({**member({"$ref": "#/$defs/a"}), "$defs": definitions})
    value: Any = None
    for _ in range(30):  # two to the thirtieth ways
        value = {"x": value}
    violation = validator({"v": value})
    assert violation is not None
    assert violation.code == "work"


def test_exhausted_work_is_never_taken_for_a_failed_branch() -> None:
    definitions: Any = {
        "a": {"oneOf": [{"type": "null"}, {"type": "object", "additionalProperties": {"$ref": "#/$defs/a"}}]}
    }
    validator = compile_schema({**member({"$ref": "#/$defs/a"}), "$defs": definitions})
    violation = validator({"v": {str(index): {"a": None} for index in range(30_000)}})
    assert violation is not None
    assert violation.code == "work"


# hostile: 38
@pytest.mark.parametrize(
    "pattern", ["safe", "^safe", "safe$", "", "^a|b$", "^safe\\$", "^(a)|(b)$", "\\^a$", "^", "$"]
)
def test_patterns_without_both_anchors_are_refused(pattern: str) -> None:
    assert refusal(member({"type": "string", "pattern": pattern})) == (
        "pattern_unanchored",
        "$.properties.v.pattern",
    )


def test_a_pattern_matches_the_whole_text_or_nothing() -> None:
    validator = compile_schema(member({"type": "string", "pattern": "^safe$"}))
    assert validator({"v": "safe"}) is None
    for text in ("rm -rf / # safe", "safe\n", "safe\nrm", "\nsafe", "Safe", ""):
        violation = validator({"v": text})
        assert violation is not None
        assert violation.code == "pattern"


# hostile: 39
@pytest.mark.parametrize(
    "pattern",
    [
        "^(a+)+$", "^(a*)*$", "^(a|a)*$", "^(a|aa)+$", "^(.*a){20}$", "^a*a*a*a*b$", "^(a?){50}a{50}$", "^.*.*=.*$",
        "^([a-z]+)*x$", "^(x+x+)+y$", "^(a{1,9}){1,9}$", "^\\w+\\d+$", "^(a|b|ab)*c$", "^((a|b)*)*$", "^(a+|b)*a$",
        "^(?:[a-z0-9]+\\.?)+$", "^[a-z]+[a-z0-9]*$", "^(|a)+$", "^(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)$", "^a?a?a*$",
        "^(\\s*x?)*$", "^(|a)a*$", "^()*$",
    ],
)  # fmt: skip
def test_patterns_that_can_blow_up_are_refused(pattern: str) -> None:
    assert refusal(member({"type": "string", "pattern": pattern})) == (
        "pattern_ambiguous",
        "$.properties.v.pattern",
    )


@pytest.mark.parametrize(
    "pattern",
    [
        "^(a)\\1$", "^(?=a)a$", "^(?!a)b$", "^(?<=a)b$", "^(?P<n>a)$", "^(?i)a$", "^\\ba$", "^(?>a)$", "^(?#c)a$",
        "^\\p{L}$", "^\\Z$",
    ],
)  # fmt: skip
def test_features_beyond_regular_languages_are_refused(pattern: str) -> None:
    assert refusal(member({"pattern": pattern}))[0] == "pattern_feature"


@pytest.mark.parametrize(
    "pattern",
    [
        "^a**$", "^a+?$", "^a++$", "^*$", "^(a$", "^a)$", "^[a$", "^[]$", "^[z-a]$", "^a{2,1}$", "^a{,3}$", "^a{99999}$",
        "^a{0}$", "^{$", "^a$b$", "^a^b$", "^\\x1$", "^[[:alpha:]]$", "^[\\d-z]$",
    ],
)  # fmt: skip
def test_malformed_patterns_are_refused(pattern: str) -> None:
    assert refusal(member({"pattern": pattern}))[0] == "pattern_syntax"


def test_long_patterns_are_refused() -> None:
    assert refusal(member({"pattern": "^" + "a" * 300 + "$"}))[0] == "pattern_size"
    assert refusal(member({"pattern": "^" + "(" * 17 + "a" + ")" * 17 + "$"}))[0] == "pattern_size"


LINEAR = [
    "^[a-z][a-z0-9_]{0,63}$", "^[a-z]+(-[a-z]+)*$", "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", "^(cat|car)$",
    "^\\d{4}-\\d{2}-\\d{2}$", "^[^@\\s]+@[a-z0-9.-]+$", "^(a|b)*$", "^(ab|cd)+x?$", "^$", "^A\\d+$", "^-?\\d+(\\.\\d+)?$",
    "^[\\w.-]+$", "^(?:EUR|USD|GBP)$", "^\\/[^/]*\\/$", "^.{0,20}$", "^\\x41\\u0042$", "^[^\\n]*$", "^(ab?c)*$", "^(a*|b)c$",
]  # fmt: skip


@pytest.mark.parametrize("pattern", LINEAR)
@given(data=st.data())
def test_accepted_patterns_match_as_python_matches_them(pattern: str, data: st.DataObject) -> None:
    ours = compile_pattern(pattern)
    theirs = re.compile(pattern[1:-1], re.ASCII)
    text = data.draw(st.from_regex(theirs, fullmatch=True) | st.text("ab-c0dx9_.@/A", max_size=12))
    if not re.search("[\r\u2028\u2029]", text):  # ECMAScript's dot stops at these too
        assert bool(ours(text)) == bool(theirs.fullmatch(text))


MATCH = """
import sys
from boundloop.runtime.schema_pattern import compile_pattern
pattern, part, end = sys.argv[1:]
print(bool(compile_pattern(pattern)(part * 200_000 + end)))
"""


@pytest.mark.parametrize(
    ("pattern", "part", "end"),
    [
        ("^[a-z]+(-[a-z]+)*$", "a-", "!"),
        ("^(a|b)*$", "ab", "!"),
        ("^(ab?c)*$", "abc", "ab"),
        ("^[\\w.-]+$", "a", "!"),
    ],
)
def test_accepted_patterns_end_on_long_texts(pattern: str, part: str, end: str) -> None:
    """In a process of its own, since a matcher that blows up can't be interrupted from within."""
    command = [sys.executable, "-c", MATCH, pattern, part, end]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("False\n", "")


@given(st.text("ab()[]|*+?{}^$\\.-1,:d", max_size=14))
def test_every_pattern_is_refused_or_compiles(body: str) -> None:
    try:
        matches = compile_pattern(f"^{body}$")
    except DeclarationError:
        return
    matches("abab")
