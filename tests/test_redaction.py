"""What is taken out of a text and a value, what a declaration may say, and that nothing of it is shown."""

from __future__ import annotations

import base64
import json
import pickle
import re
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundloop.runtime.canonical import JSON, canonical_bytes
from boundloop.runtime.errors import DeclarationError
from boundloop.runtime.model import ModelTurn, ProposedCall
from boundloop.runtime.redacted_turn import redacted_turn
from boundloop.runtime.redaction import Redaction, Redactor
from boundloop.runtime.secret_arguments import is_reference, reference_name

KEY = 'sk-live/4242+"quoted"\\and\nlined é'
REDACTION = Redaction(
    values={"api_key": KEY, "pin": "90210"},
    patterns={"aws": r"AKIA[0-9A-Z]{16}", "card": r"[0-9]{4}(?:-[0-9]{4}){3}"},
    fields=("password", "X-Token"),
)
REDACTOR = REDACTION.redactor()


def test_a_value_is_found_wherever_it_stands_and_marked_by_its_name() -> None:
    assert REDACTOR.text(f"a {KEY} b {KEY}") == "a [redacted:api_key] b [redacted:api_key]"
    assert REDACTOR.text("nothing here") == "nothing here"


@pytest.mark.parametrize(
    "written",
    [
        json.dumps(KEY),
        json.dumps(KEY, ensure_ascii=False),
        quote(KEY),
        quote(KEY, safe=""),
        "sk-live%2f4242%2b%22quoted%22%5cand%0alined%20%c3%a9",
        base64.b64encode(b"user:" + KEY.encode()).decode(),
        base64.b64encode(b"us:" + KEY.encode() + b":x").decode(),
        base64.urlsafe_b64encode(KEY.encode()).decode(),
    ],
)
def test_a_value_is_found_as_other_texts_write_it(written: str) -> None:
    redacted = REDACTOR.text(f"before {written} after")
    assert "[redacted:api_key]" in redacted
    assert redacted.startswith("before ")
    assert redacted.endswith(" after")
    assert "4242" not in redacted
    assert KEY[3:9] not in redacted


def test_patterns_are_found_inside_a_text_and_the_longer_of_two_values_first() -> None:
    assert REDACTOR.text("keyAKIAABCDEFGHIJKLMNOP!") == "key[redacted:aws]!"
    assert REDACTOR.text("4111-1111-1111-1111") == "[redacted:card]"
    both = Redaction(values={"short": "abcdef", "long": "abcdefgh"}).redactor()
    assert both.text("abcdefgh abcdef") == "[redacted:long] [redacted:short]"


def test_members_are_redacted_at_any_depth_by_name_value_and_number() -> None:
    value: JSON = {
        "password": ["anything", 1],
        "list": [{"x-token": 7, "kept": None}, {"password": None}],
        KEY: 90210,
        "n": 1.5,
        "yes": True,
    }
    assert REDACTOR.json(value) == {
        "password": "[redacted:password]",
        "list": [{"x-token": "[redacted:x-token]", "kept": None}, {"password": None}],
        "[redacted:api_key]": "[redacted:pin]",
        "n": 1.5,
        "yes": True,
    }


CARD = "4111111111111111"
NUMBERS = Redaction(
    values={
        "card": CARD,
        "account": "9123456789012345678",
        "padded": "0055667788990011",
        "rate": "271.82818284500",
    },
    patterns={"iban": r"77[0-9]{14}"},
)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("4111111111111111", "card"),
        ("-4111111111111111", "card"),
        ("4111111111111111e-30", "card"),
        ("4111111111111111E+30", "card"),
        ("4111111111111111e-99999", "card"),
        ("4.111111111111111e15", "card"),
        ("4.111111111111111e-15", "card"),
        ("411111111111.1111e-300", "card"),
        ("0.00004111111111111111", "card"),
        ("12.4111111111111111", "card"),
        ("4111111111111111.0000000000000001", "card"),
        ("9123456789012345678.0", "account"),
        ("0.9123456789012345678e19", "account"),
        ("55667788990011", "padded"),
        ("5566778899001.1e-7", "padded"),
        ("271.828182845", "rate"),
        ("271828182845e-40", "rate"),
        ("7712345678901234.5", "iban"),
        ("7712345678901234e-40", "iban"),
    ],
)
def test_a_value_is_found_however_a_number_holds_it(written: str, name: str) -> None:
    redactor = NUMBERS.redactor()
    text = f'{{"n": [1, {{"m": {written}}}], "text": "{name} 1e5"}}'
    reply = ModelTurn(finish="calls", calls=(ProposedCall("x", text.encode(), "l"),))
    (kept,) = redacted_turn(reply, redactor, {}).calls
    assert kept.withheld == "$.n[1].m"
    assert json.loads(kept.arguments)["n"][0] == 1
    assert f"[redacted:{name}]" in json.loads(kept.arguments)["n"][1]["m"]
    assert json.loads(kept.arguments)["text"] == f"{name} 1e5"
    broken = ProposedCall("x", text[:-1].encode(), "l")
    (kept,) = redacted_turn(ModelTurn(finish="calls", calls=(broken,)), redactor, {}).calls
    assert (kept.withheld, kept.arguments) == ("$", b"[redacted:unreadable]")


@pytest.mark.parametrize(
    "number", [4111111111111111, 4.111111111111111e-15, 0.4111111111111111, 55667788990011]
)
def test_a_value_is_found_in_a_number_of_a_result(number: float) -> None:
    kept = NUMBERS.redactor().json({"rows": [number, "x", 2.5]})
    assert isinstance(kept, dict)
    assert "[redacted:" in str(kept["rows"])
    assert str(number) not in str(kept)


@pytest.mark.parametrize(
    "written",
    ["1e309", "0.5", "3.141592653589793", "411111111111111", "5566.7788", "-1e-400", "27182818284e2"],
)
def test_another_number_stays_as_it_is_written(written: str) -> None:
    redactor = NUMBERS.redactor()
    raw = f'{{"n": {written}}}'
    assert redactor.numbers(raw) == raw
    assert redactor.number(written) == written


@given(
    st.text("123456789", min_size=8, max_size=19),
    st.text("0123456789", max_size=3),
    st.integers(0, 18),
    st.integers(-330, 280),
)
def test_no_way_to_write_a_number_hides_the_digits_of_a_value(
    value: str, before: str, point: int, exponent: int
) -> None:
    digits = before.lstrip("0") + value
    cut = min(point, len(digits) - 1)
    written = f"{digits[: cut + 1]}.{digits[cut + 1 :] or '0'}e{exponent}"
    redactor = Redaction(values={"v": value}).redactor()
    call = ProposedCall("x", f'{{"n": {written}}}'.encode(), "l")
    (kept,) = redacted_turn(ModelTurn(finish="calls", calls=(call,)), redactor, {}).calls
    assert kept.withheld
    assert value.encode() not in kept.arguments


def test_two_members_that_become_one_name_are_both_kept() -> None:
    redactor = Redaction(values={"a": "first-secret"}).redactor()
    value: JSON = {"first-secret": 1, "[redacted:a]": 2}
    assert redactor.json(value) == {"[redacted:a]": 1, "[redacted:a]#2": 2}


def test_a_value_without_secrets_is_given_back_itself() -> None:
    value: JSON = {"a": [1, "b", {"c": None}]}
    assert REDACTOR.json(value) is value


words = st.text(alphabet='sk-live/4242AKIA[redacted:pin]90210 \\"é\n', max_size=60)
leaves = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | words
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


@given(words, st.sampled_from([KEY, "90210", "AKIA" + "A1" * 8, ""]), words)
def test_redacting_again_changes_nothing_and_leaves_no_value(before: str, secret: str, after: str) -> None:
    once = REDACTOR.text(before + secret + after)
    assert REDACTOR.text(once) == once
    assert KEY not in once
    assert "90210" not in once


@given(values)
def test_a_redacted_value_is_stable_and_holds_nothing_declared(value: Any) -> None:
    once = REDACTOR.json(value)
    assert canonical_bytes(REDACTOR.json(once)) == canonical_bytes(once)
    assert b"90210" not in canonical_bytes(once)


def test_a_proposed_secret_is_named_by_its_place_and_a_reference_is_none() -> None:
    arguments: dict[str, JSON] = {
        "token": "secret://billing",
        "password": "secret://billing",
        "text": "plain",
    }
    assert REDACTOR.arguments(arguments, ("token",)) == (arguments, "")
    kept, path = REDACTOR.arguments({"a": {"b": ["x", f"is {KEY}"]}}, ())
    assert (kept, path) == ({"a": {"b": ["x", "is [redacted:api_key]"]}}, "$.a.b[1]")
    kept, path = REDACTOR.arguments({"password": "hunter2"}, ())
    assert (kept, path) == ({"password": "[redacted:password]"}, "$.password")
    kept, path = REDACTOR.arguments({"token": "hunter2"}, ("token",))
    assert (kept, path) == ({"token": "[redacted:argument]"}, "$.token")


@pytest.mark.parametrize(
    "value",
    [
        [KEY],
        {"a": KEY},
        90210,
        True,
        ["secret://billing"],
        "secret://pin90210",
        "secret://AKIAABCDEFGHIJKLMNOP",
    ],
)
def test_what_is_no_clean_reference_is_taken_out_of_a_secret_argument_whatever_its_type(value: Any) -> None:
    kept, path = REDACTOR.arguments({"token": value}, ("token",))
    assert (kept, path) == ({"token": "[redacted:argument]"}, "$.token")


def test_a_secret_argument_may_be_null() -> None:
    assert REDACTOR.arguments({"token": None}, ("token",)) == ({"token": None}, "")


@pytest.mark.parametrize(
    "text", ["secret://", "secret://1x", "secret://a b", "Secret://a", "x secret://a", 7, None]
)
def test_what_is_no_reference(text: Any) -> None:
    assert not is_reference(text)


def test_a_reference_has_a_name() -> None:
    assert reference_name("secret://billing.key-1") == "billing.key-1"


@pytest.mark.parametrize(
    ("declared", "code"),
    [
        ({"values": {"a": "abc"}}, "redaction_value"),
        ({"values": {"a": "x" * 8_193}}, "redaction_value"),
        ({"values": {"a": 12345}}, "redaction_value"),
        ({"values": {"a": "\udcffabc"}}, "redaction_value"),
        ({"values": {"a": "redacted"}}, "redaction_value"),
        ({"values": {"a b": "abcdef"}}, "redaction_name"),
        ({"values": {f"n{i}": f"value{i}" for i in range(101)}}, "redaction_size"),
        ({"patterns": {"p": "a+"}}, "pattern_unbounded"),
        ({"patterns": {"p": "a{1,200}"}}, "pattern_unbounded"),
        ({"patterns": {"p": "a{0,3}"}}, "pattern_empty"),
        ({"patterns": {"p": "^abc"}}, "pattern_anchored"),
        ({"patterns": {"p": "a{1,9}a{1,9}b"}}, "pattern_ambiguous"),
        ({"patterns": {"p": r"(a)\1"}}, "pattern_feature"),
        ({"patterns": {"p": 7}}, "pattern_syntax"),
        ({"fields": "password"}, "redaction_name"),
        ({"fields": ("a b",)}, "redaction_name"),
        ({"revision": ""}, "redaction_revision"),
    ],
)
def test_a_declaration_that_can_not_be_kept_is_refused(declared: dict[str, Any], code: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        Redaction(**declared)
    assert refused.value.code == code
    for value in declared.get("values", {}).values():
        assert str(value) not in repr(refused.value) or str(value) == "redacted"


def test_its_repr_shows_names_only_and_it_travels_with_its_values() -> None:
    assert KEY not in repr(REDACTION)
    assert "90210" not in repr(REDACTION)
    assert "api_key" in repr(REDACTION)
    again = pickle.loads(pickle.dumps(REDACTION))
    assert again.redactor().text(KEY) == "[redacted:api_key]"
    assert KEY not in repr(REDACTOR)


def test_what_is_searched_place_by_place_is_only_what_the_text_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """An expression of all forms of all values tries each at each place: of a megabyte, for seconds on a host's loop."""
    searched: list[str] = []
    whole = re.sub

    def counted(pattern: str, *rest: Any) -> str:
        searched.append(pattern)
        return whole(pattern, *rest)

    values = {f"k{i}": f"value-{i:03}/+=&" * 3 for i in range(100)}
    redactor = Redaction(values=values).redactor()
    monkeypatch.setattr("boundloop.runtime.redaction.re.sub", counted)
    text = "x" * 1_000 + values["k7"] + "[redacted:k8]" + values["k9"]
    assert redactor.text(text) == "x" * 1_000 + "[redacted:k7][redacted:k8][redacted:k9]"
    assert redactor.json([text, "y"]) == [redactor.text(text), "y"]
    assert max(pattern.count("|") for pattern in searched) <= 4
    searched.clear()
    assert redactor.text("x" * 1_000) == "x" * 1_000
    assert searched == []


def test_numbers_are_searched_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred values in each of a result's numbers would hold up a host's loop for seconds."""
    redactor = Redaction(values={f"k{i}": str(10**15 + i * 7919) for i in range(1, 100)}).redactor()
    alone: list[str] = []
    whole = Redactor.number

    def counted(self: Redactor, written: str) -> str:
        alone.append(written)
        return whole(self, written)

    monkeypatch.setattr(Redactor, "number", counted)
    numbers: list[JSON] = [n + 0.25 for n in range(1_000)]
    raw = json.dumps(numbers)
    assert redactor.json(numbers) is numbers
    assert redactor.numbers(raw) == raw
    assert alone == []
    found = redactor.json([*numbers, 1.000000000007919e-9])
    assert isinstance(found, list)
    assert found[-1] == "[redacted:k1]"


def test_a_hostile_text_costs_a_bounded_number_of_steps_a_character() -> None:
    redactor = Redaction(patterns={"p": "a{1,100}b"}).redactor()
    text = "a" * 200_000
    assert redactor.text(text) == text
