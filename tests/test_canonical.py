"""Canonical JSON: golden vectors, and the laws that hashing relies on."""

from __future__ import annotations

import hashlib
import struct
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundloop.runtime.canonical import (
    CANONICAL_DEPTH_MAX,
    INT_MAX,
    INT_MIN,
    JSON,
    CanonicalRefused,
    canonical_bytes,
    decode_canonical,
    sha256,
)
from boundloop.runtime.strict_json import parse_value


def refusal(value: object) -> tuple[str, str]:
    with pytest.raises(CanonicalRefused) as caught:
        canonical_bytes(cast(JSON, value))
    return caught.value.code, caught.value.path


# hostile: 24. RFC 8785, appendix B, and ECMAScript's switches between its three forms.
@pytest.mark.parametrize(
    ("bits", "text"),
    [
        (0x0000000000000000, "0"),
        (0x8000000000000000, "0"),
        (0x0000000000000001, "5e-324"),
        (0x8000000000000001, "-5e-324"),
        (0x7FEFFFFFFFFFFFFF, "1.7976931348623157e+308"),
        (0xFFEFFFFFFFFFFFFF, "-1.7976931348623157e+308"),
        (0x4340000000000000, "9007199254740992"),
        (0xC340000000000000, "-9007199254740992"),
        (0x4430000000000000, "295147905179352830000"),
        (0x44B52D02C7E14AF5, "9.999999999999997e+22"),
        (0x44B52D02C7E14AF6, "1e+23"),
        (0x44B52D02C7E14AF7, "1.0000000000000001e+23"),
        (0x444B1AE4D6E2EF4E, "999999999999999700000"),
        (0x444B1AE4D6E2EF4F, "999999999999999900000"),
        (0x444B1AE4D6E2EF50, "1e+21"),
        (0x3EB0C6F7A0B5ED8C, "9.999999999999997e-7"),
        (0x3EB0C6F7A0B5ED8D, "0.000001"),
        (0x41B3DE4355555553, "333333333.3333332"),
        (0x41B3DE4355555554, "333333333.33333325"),
        (0x41B3DE4355555555, "333333333.3333333"),
        (0x41B3DE4355555556, "333333333.3333334"),
        (0x41B3DE4355555557, "333333333.33333343"),
        (0xBECBF647612F3696, "-0.0000033333333333333333"),
        (0x43143FF3C1CB0959, "1424953923781206.2"),
    ],
)
def test_doubles_are_written_as_rfc_8785_writes_them(bits: int, text: str) -> None:
    number = struct.unpack(">d", struct.pack(">Q", bits))[0]
    assert canonical_bytes(number) == text.encode()


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1.0, "1"),
        (-1.0, "-1"),
        (-0.0, "0"),
        (1e16, "10000000000000000"),
        (1e-7, "1e-7"),
        (1e-6, "0.000001"),
        (1.5e-7, "1.5e-7"),
        (1e21, "1e+21"),
        (1e20, "100000000000000000000"),
        (-1.25e30, "-1.25e+30"),
        (0.1, "0.1"),
        (123.456, "123.456"),
        (4.5, "4.5"),
        (2e-3, "0.002"),
    ],
)
def test_numbers_where_python_and_ecmascript_differ(number: float, text: str) -> None:
    assert canonical_bytes({"x": number}) == f'{{"x":{text}}}'.encode()


@pytest.mark.parametrize("number", [INT_MIN, INT_MIN + 1, -(2**53) - 1, 0, 2**53 + 1, INT_MAX - 1, INT_MAX])
def test_integers_within_64_bits_are_exact(number: int) -> None:
    assert canonical_bytes(number) == str(number).encode()
    assert canonical_bytes([number, 0.5]) == f"[{number},0.5]".encode()


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**400])
def test_integers_outside_64_bits_have_no_canonical_form(number: int) -> None:
    assert refusal({"a": [number]}) == ("int_range", "$.a[0]")


def test_a_double_and_the_integer_of_its_value_are_one_document() -> None:
    assert canonical_bytes({"x": 1.0}) == canonical_bytes({"x": 1})
    assert canonical_bytes(2.0**60) == canonical_bytes(2**60) == b"1152921504606846976"


def test_a_double_beyond_64_bits_comes_back_as_a_double() -> None:
    for number in (2.0**68, -(2.0**68), 2.0**63):
        back = decode_canonical(canonical_bytes({"x": number}))
        assert back == {"x": number}
        assert isinstance(back, dict)
        assert type(back["x"]) is float


def test_integers_that_are_one_double_are_two_documents() -> None:
    assert canonical_bytes(2**53) != canonical_bytes(2**53 + 1)


# hostile: 3, 4
@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_numbers_have_no_canonical_form(number: float) -> None:
    assert refusal({"a b": {"c": number}}) == ("non_finite", '$["a b"].c')


# hostile: 25
def test_keys_sort_by_utf16_code_units() -> None:
    assert canonical_bytes({"\ue000": 1, "\U0001f600": 2}) == '{"\U0001f600":2,"\ue000":1}'.encode()
    assert canonical_bytes({"b": 1, "a": 2, "B": 3, "": 4, "aa": 5}) == b'{"":4,"B":3,"a":2,"aa":5,"b":1}'
    assert canonical_bytes({"z": {"\ue000": 1, "\U0001f600": 2}, "a": 1.5}) == (
        '{"a":1.5,"z":{"\U0001f600":2,"\ue000":1}}'.encode()
    )


def test_the_sorting_example_of_rfc_8785() -> None:
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    ordered = ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    assert list(cast(Any, decode_canonical(canonical_bytes(dict.fromkeys(keys, 0))))) == ordered


@pytest.mark.parametrize("other", ["", "\u00e9", 0.5])  # the last two take the slow writer
def test_escapes_are_those_of_rfc_8785(other: JSON) -> None:
    text = '\u20ac$\x0f\nA\'B"\\\\"/\x00\x08\t\x0c\r\x1f\x7f<>&\u2028\U0001f600'
    written = canonical_bytes([text, other])
    expected = r'"€$\u000f\nA' + r"'B\"\\\\\"/\u0000\b\t\f\r\u001f" + '\x7f<>&\u2028\U0001f600"'
    assert written.startswith(b"[" + expected.encode() + b",")


def test_text_is_not_normalised() -> None:
    assert canonical_bytes("e\u0301") != canonical_bytes("\u00e9")


# hostile: 12
@pytest.mark.parametrize(
    ("value", "path"),
    [({"a": "\ud800"}, "$.a"), ({"a": {"\udc00": 1}}, "$.a"), (["x", "a\udfffb"], "$[1]"), ("\ud800", "$")],
)
def test_lone_surrogates_have_no_canonical_form(value: object, path: str) -> None:
    assert refusal(value) == ("surrogate", path)


class Text(str):
    """A subclass may say anything about itself."""

    __slots__ = ()


@pytest.mark.parametrize("value", [(1, 2), {1}, b"x", object(), Text("x"), 1j])
def test_other_types_have_no_canonical_form(value: object) -> None:
    assert refusal({"a": value}) == ("type", "$.a")


@pytest.mark.parametrize("key", [1, None, True, Text("x"), (1,)])
def test_keys_are_text(key: object) -> None:
    assert refusal({"a": {key: 1}}) == ("key", "$.a")


def test_depth_is_bounded_also_for_a_value_that_holds_itself() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert refusal(loop)[0] == "depth"
    nested: Any = 1
    for _ in range(CANONICAL_DEPTH_MAX):
        nested = [nested]
    assert canonical_bytes(nested) == b"[" * 64 + b"1" + b"]" * 64
    assert refusal([nested])[0] == "depth"


def test_bytes_that_are_no_json_are_refused() -> None:
    for data in (b"", b"{", b"\xff", b"[1" + b"0" * 30):
        with pytest.raises(CanonicalRefused):
            decode_canonical(data)


def test_sha256_is_the_raw_digest() -> None:
    assert sha256(b"abc").hex() == hashlib.sha256(b"abc").hexdigest()


scalars = (
    st.none()
    | st.booleans()
    | st.integers(INT_MIN, INT_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), inner, max_size=4)
    ),
    max_leaves=15,
)


@given(values)
def test_decoding_gives_the_value_back(value: Any) -> None:
    assert decode_canonical(canonical_bytes(value)) == value


@given(values)
def test_writing_twice_changes_nothing(value: Any) -> None:
    once = canonical_bytes(value)
    assert canonical_bytes(decode_canonical(once)) == once


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_double_comes_back_as_the_same_number(number: float) -> None:
    back = decode_canonical(canonical_bytes(number))
    assert isinstance(back, int | float)
    assert float(back) == number
    assert back == number


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), st.integers(0, 9)))
def test_the_order_of_members_says_nothing(members: dict[str, JSON]) -> None:
    backwards = dict(reversed(members.items()))
    assert canonical_bytes(backwards) == canonical_bytes(members)


@given(values, values)
def test_two_documents_of_one_hash_are_one_value(left: Any, right: Any) -> None:
    if canonical_bytes(left) == canonical_bytes(right):
        assert left == right


@given(st.dictionaries(st.text(st.characters(max_codepoint=0x7F), max_size=5), st.integers(INT_MIN, INT_MAX)))
def test_the_fast_and_the_slow_writer_agree(members: dict[str, JSON]) -> None:
    fast = canonical_bytes(members)
    slow = canonical_bytes([members, 0.5])  # a float sends the whole value to the slow writer
    assert slow == b"[" + fast + b",0.5]"


@given(values)
def test_the_strict_parser_reads_canonical_bytes(value: Any) -> None:
    written = canonical_bytes(value)
    if not any(
        len(run) >= 19 for run in "".join(c if c in "0123456789" else " " for c in written.decode()).split()
    ):
        assert parse_value(written) == decode_canonical(written)
