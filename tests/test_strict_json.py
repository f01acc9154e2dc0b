"""The strict parser refuses by kind, with a code and a path, and agrees with itself on its fast and slow way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from boundloop.runtime.canonical import INT_MAX, INT_MIN
from boundloop.runtime.strict_json import (
    JSON_BYTES_MAX,
    JsonRefused,
    parse_object,
    parse_value,
)


def refusal(raw: bytes | str, **bounds: int) -> tuple[str, str]:
    with pytest.raises(JsonRefused) as caught:
        parse_object(raw, **bounds)
    return caught.value.code, caught.value.path


# hostile: 1
@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (b'{"amount":1,"amount":1000000}', "$.amount"),
        (b'{"amount":1,"amount":1}', "$.amount"),
        (b'{"a":{"b":[{"c":1,"d":2,"c":3}]}}', "$.a.b[0].c"),
        (b'{"a":1,"\\u0061":2}', "$.a"),
        (b'{"a":1,"a":"\\u003a"}', "$.a"),
        (b'{"":1,"":2}', '$[""]'),
        (b'{"at":"10:00","at":"11:00"}', "$.at"),
        (b'{"x":{"k":1,"k":NaN}}', "$.x.k"),
    ],
)
def test_duplicate_keys_are_refused_at_any_depth(raw: bytes, path: str) -> None:
    assert refusal(raw) == ("dup_key", path)


# hostile: 3, 4, 36
@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("shape", ['{{"x":{}}}', '{{"x":[1,{}]}}'])
def test_non_finite_constants_are_refused(constant: str, shape: str) -> None:
    assert refusal(shape.format(constant))[0] == "non_finite"


@pytest.mark.parametrize("word", ["nan", "-NaN", "+Infinity", "inf", "True", "None", "undefined"])
def test_other_words_are_no_json(word: str) -> None:
    assert refusal(f'{{"x":{word}}}')[0] == "syntax"


# hostile: 5
@pytest.mark.parametrize("number", ["1e400", "-1e400", "1.0e309", "9" * 300 + "e300", "1" * 400 + ".5"])
def test_numbers_beyond_a_double_are_refused(number: str) -> None:
    assert refusal(f'{{"x":[{number}]}}') == ("overflow", "$.x[0]")


# hostile: 6
@pytest.mark.parametrize("digits", [20, 400, 5_000, 200_000])
def test_long_integers_are_refused_without_converting_them(digits: int) -> None:
    assert refusal(b'{"x":' + b"7" * digits + b"}") == ("int_range", "$.x")


# hostile: 8
@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**64, 10**19])
def test_integers_outside_64_bits_are_refused(number: int) -> None:
    assert refusal(json.dumps({"a": [{"x": number}]})) == ("int_range", "$.a[0].x")


@pytest.mark.parametrize("number", [INT_MAX, INT_MIN, 0, -1, 2**53 + 1])
def test_integers_of_64_bits_are_exact(number: int) -> None:
    assert parse_object(json.dumps({"x": number})) == {"x": number}


# hostile: 10
@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'])
def test_a_hundred_thousand_nested_are_refused_by_the_scan(opening: bytes) -> None:
    assert refusal(opening * 100_000, bytes_max=10**6)[0] == "depth"


# hostile: 11
@pytest.mark.parametrize("depth", [33, 34, 64, 900])
def test_more_than_32_nested_are_refused(depth: int) -> None:
    assert refusal(b'{"a":' * depth + b"1" + b"}" * depth)[0] == "depth"
    assert refusal(b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}")[0] == "depth"


def test_32_nested_are_read() -> None:
    value: Any = parse_object(b'{"a":' * 32 + b"1" + b"}" * 32)
    for _ in range(32):
        value = value["a"]
    assert value == 1


def test_brackets_in_text_are_not_depth() -> None:
    text = '[{"\\' * 50
    assert parse_object(json.dumps({"a": [text], text: 1})) == {"a": [text], text: 1}


def test_the_scan_isn_t_fooled_by_escaped_quotes() -> None:
    assert refusal(b'{"a":"\\\\","b":' + b"[" * 40 + b"]" * 40 + b"}")[0] == "depth"
    assert parse_object(b'{"a":"\\"' + b"[" * 40 + b'"}') == {"a": '"' + "[" * 40}


@pytest.mark.parametrize("count", [20_000, 100_000])
def test_too_many_values_are_refused_before_parsing(count: int) -> None:
    assert refusal(b'{"a":[' + b"1," * count + b"1]}")[0] == "nodes"
    assert refusal(b'{"a":[' + b"[]," * (count // 2) + b"[]]}")[0] == "nodes"


def test_as_many_values_as_allowed_are_read() -> None:
    assert len(parse_object(b'{"a":[1,2],"b":3}', nodes_max=5)) == 2
    assert refusal(b'{"a":[1,2],"b":{}}', nodes_max=4)[0] == "nodes"


# hostile: 12
@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (b'{"x":"\\ud800"}', "$.x"),
        (b'{"x":"\\udc00\\ud800"}', "$.x"),
        (b'{"x":["ok","\\uDBFFz"]}', "$.x[1]"),
        (b'{"a":{"\\ud800":1}}', "$.a"),
    ],
)
def test_escaped_lone_surrogates_are_refused(raw: bytes, path: str) -> None:
    assert refusal(raw) == ("surrogate", path)


def test_lone_surrogates_in_text_are_refused() -> None:
    assert refusal('{"x":"\ud800"}')[0] == "surrogate"


def test_a_surrogate_pair_is_its_character() -> None:
    assert parse_object(b'{"x":"\\ud83d\\ude00"}') == {"x": "\N{GRINNING FACE}"}


# hostile: 14
@pytest.mark.parametrize("bad", [b"\xff", b"\xc3", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"])
def test_invalid_utf8_is_refused(bad: bytes) -> None:
    assert refusal(b'{"x":"' + bad + b'"}')[0] == "encoding"


# hostile: 15
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16", "utf-32-le", "utf-32-be", "utf-32"])
def test_utf16_and_utf32_are_refused(encoding: str) -> None:
    assert refusal('{"amount":1}'.encode(encoding))[0] == "encoding"


# hostile: 16
def test_a_byte_order_mark_is_refused() -> None:
    assert refusal(b'\xef\xbb\xbf{"x":1}')[0] == "bom"
    assert refusal('\ufeff{"x":1}')[0] == "bom"


# hostile: 17
@pytest.mark.parametrize(
    "raw",
    [
        '{"x":1}x', '{"x":1}{"x":2}', '{"x":1} null', '{"x":1},', '{"x":1}\x00', "", " ", "{", '{"x":1', '{"x":1,}',
        "{'x':1}", '{x:1}', '{"x":01}', '{"x":+1}', '{"x":.5}', '{"x":1.}', '{"x":0x1}', '{"x":1_000}', '{"x":"\t"}',
        '{"x":"\\q"}', '{"x":/*c*/1}', '{"x":1}//', '\xa0{"x":1}', '\x0b{"x":1}', '{"x":\u0661}', '{"x" 1}', "[1}",
    ],
)  # fmt: skip
def test_text_that_isn_t_one_document_is_refused(raw: str) -> None:
    assert refusal(raw) == ("syntax", "")


# hostile: 19
@pytest.mark.parametrize("raw", ['"rm -rf"', "null", "[]", "1", "1.5", "true", '[{"x":1}]'])
def test_a_top_level_value_that_is_no_object_is_refused(raw: str) -> None:
    assert refusal(raw) == ("not_object", "$")
    assert parse_value(raw) == json.loads(raw)


# hostile: 22
@pytest.mark.parametrize("size", [JSON_BYTES_MAX, 20_000_000])
def test_more_bytes_than_allowed_are_refused_before_parsing(size: int) -> None:
    assert refusal(b'{"x":"' + b"a" * size + b'"}')[0] == "bytes"


def test_bytes_are_counted_in_utf8() -> None:
    assert refusal('{"x":"\N{EURO SIGN}\N{EURO SIGN}"}', bytes_max=13)[0] == "bytes"
    assert parse_object('{"x":"\N{EURO SIGN}\N{EURO SIGN}"}', bytes_max=14)


def test_refusals_never_repeat_the_text() -> None:
    secret = "hunter2" * 40
    for raw in (f'{{"x":"{secret}"', f'{{"{secret}":1,"{secret}":2}}', f'{{"x":{secret}}}'):
        with pytest.raises(JsonRefused) as caught:
            parse_object(raw)
        assert "hunter2" not in caught.value.message
        assert len(str(caught.value)) < 200


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(INT_MIN, INT_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(json_values, st.booleans(), st.booleans())
def test_every_strict_document_is_read_as_the_standard_library_reads_it(
    value: Any, ascii_only: bool, spaced: bool
) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only, indent=1 if spaced else None)
    read = parse_value(raw)
    assert read == json.loads(raw)
    assert repr(read) == repr(json.loads(raw))  # 1 and 1.0 and True are equal but not the same


CODES = {
    "",
    "dup_key",
    "non_finite",
    "overflow",
    "int_range",
    "depth",
    "surrogate",
    "encoding",
    "bom",
    "syntax",
}


@given(st.text('{}[]":,\\ \n0123456789-+.eEau truefalsnd\ud800\u00e9', max_size=30))
@example('{"a":1,"a":1}')
@example('["\\ud800"]')
@example("1e999")
@example("-0.0")
def test_what_is_read_is_json_and_what_is_refused_has_a_code(raw: str) -> None:
    code, read = "", None
    try:
        read = parse_value(raw)
    except JsonRefused as refused:
        code = refused.code
    assert code in CODES
    assert code or repr(read) == repr(json.loads(raw))


@given(st.binary(max_size=40))
def test_no_bytes_raise_anything_else(raw: bytes) -> None:
    try:
        read = parse_value(raw)
    except JsonRefused:
        return
    assert repr(read) == repr(json.loads(raw.decode()))


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c:", "\u00e9"]), st.integers(0, 9)), max_size=5))
def test_objects_are_read_exactly_if_their_keys_differ(members: list[tuple[str, int]]) -> None:
    raw = "{" + ",".join(f"{json.dumps(key)}:{value}" for key, value in members) + "}"
    if len({key for key, _ in members}) == len(members):
        assert parse_object(raw) == dict(members)
    else:
        assert refusal(raw)[0] == "dup_key"
