"""Answers of Chat Completions servers, as invented here: the truth table as published, and everything hostile."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.random_examples import examples

from boundloop.adapters.openai_chat_decode import CALLS_MAX, decide, decode_answer
from boundloop.adapters.openai_chat_usage import read_usage
from boundloop.adapters.provider_errors import RETRY_AFTER_MS_MAX, retry_after_ms
from boundloop.runtime.model import FINISH, ModelTurn, ProposedCall, Usage

DOC: Final = (Path(__file__).resolve().parent.parent / "docs/model-adapters.md").read_text("utf-8")
CALL: Final[dict[str, Any]] = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "look", "arguments": '{"a":1}'},
}


def answer(finish: Any = "stop", calls: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": None if calls else "hello", **more}
    if calls is not None:
        message["tool_calls"] = calls
    return {
        "id": "r1",
        "model": "m1",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }


def turn(body: Any, status: int = 200, **headers: str) -> ModelTurn:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return decode_answer(status, names, data, now_ms=1_000_000)


# --- the published tables ---------------------------------------------------------------------------------------------


def published(first: str) -> list[list[str]]:
    """The cells of the rows of the table that begins with this head."""
    lines = DOC[DOC.index(first) :].splitlines()[2:]
    rows = [line for line in lines[: lines.index("")] if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in rows]


WITH: Final[dict[str, dict[str, Any]]] = {
    "a refusal": {"refused": True},
    "a call of something that is no function": {"odd": True, "calls": (ProposedCall("f", b"{}"),)},
    "calls, all with arguments": {"calls": (ProposedCall("f", b"{}"),)},
    "a call without arguments": {"calls": (ProposedCall("f", b"{}"), ProposedCall("f", b""))},
    "calls": {"calls": (ProposedCall("f", b""),)},
    "no calls": {},
    "no message at all": {"no_message": True},
}
NATIVE: Final[dict[str, list[Any]]] = {
    "any": ["stop", "length", "tool_calls", None, "", "eos"],
    "any other": ["eos", "end_turn", 7, True, ["stop"]],
    "null, missing or empty": [None, ""],
}


@pytest.mark.parametrize(
    "row", published("| finish value | with | is | code |"), ids=lambda row: "-".join(row[:2])
)
def test_the_truth_table_is_as_published(row: list[str]) -> None:
    native, along, finish, code = row
    situations = list(WITH.values())[3:] if along == "anything" else [WITH[along]]
    for value in NATIVE.get(native, [native]):
        for situation in situations:
            assert decide(value, **situation) == (finish, code)


@pytest.mark.parametrize("row", published("| status | code | sent again | used |"), ids=lambda row: row[0])
def test_the_table_of_statuses_is_as_published(row: list[str]) -> None:
    statuses, code, again, used = row
    for status in statuses.split(", "):
        for body in (
            b"",
            b"<html>no</html>",
            b'{"error":{"message":"no","code":null}}',
            b'{"detail":"no"}',
            b"[]",
        ):
            made = turn(body, int(status))
            assert (made.finish, made.error_code) == ("provider_error", code)
            assert made.retryable == (again == "yes")
            assert made.usage == (Usage(0, 0) if used == "nothing" else None)
            assert "html" not in made.safe_message


def test_nothing_but_a_published_final_is_final() -> None:
    values = [None, "", "stop", "length", "tool_calls", "function_call", "content_filter", "error", "x", 1]
    final = [
        (value, name)
        for value in values
        for name, situation in WITH.items()
        if FINISH[decide(value, **situation)[0]].final
    ]
    assert final == [("stop", "no calls")]


@given(st.text(max_size=20))
def test_no_unknown_value_is_final_or_runs(native: str) -> None:
    if native not in ("", "stop", "tool_calls", "function_call"):
        for situation in WITH.values():
            rule = FINISH[decide(native, **situation)[0]]
            assert not rule.final
            assert not rule.executable


# --- whole answers ----------------------------------------------------------------------------------------------------


def test_a_text() -> None:
    made = turn(answer())
    assert made == ModelTurn(
        finish="final",
        finish_raw="stop",
        text="hello",
        usage=Usage(10, 5),
        response_id="r1",
        served_model="m1",
    )


def test_calls_come_with_their_bytes_and_labels() -> None:
    raw = '{"b":1,"b":2,  "a":"\\u00e9"}'
    made = turn(
        answer("tool_calls", [CALL, {"id": "call_1", "function": {"name": "look", "arguments": raw}}])
    )
    assert made.finish == "calls"
    assert made.calls == (
        ProposedCall("look", b'{"a":1}', "call_1"),
        ProposedCall("look", raw.encode(), "call_1"),
    )


@pytest.mark.parametrize(
    ("written", "handed_on"),
    [
        ('"{\\"a\\":1}"', b'{"a":1}'),
        ('""', b""),
        ("null", b""),
        ('"null"', b"null"),
        ('"[]"', b"[]"),
        ('{"a": 1,"a":2}', b'{"a": 1,"a":2}'),
        ('{"n": 99999999999999999999}', b'{"n": 99999999999999999999}'),
        ("[1]", b"[1]"),
        ("7", b"7"),
        ("[" * 60 + "]" * 60, None),
        ('{"a":' * 60 + "1" + "}" * 60, b'{"a":' * 60 + b"1" + b"}" * 60),
    ],
)
def test_arguments_are_handed_on_as_they_came(written: str, handed_on: bytes | None) -> None:
    whole = json.dumps(answer("tool_calls", [CALL]))
    made = turn(whole.replace(json.dumps(CALL["function"]["arguments"]), written).encode())
    if handed_on is None:
        assert (made.finish, made.error_code) == ("provider_error", "json_depth")
    else:
        assert made.finish == "calls"
        assert [call.arguments for call in made.calls] == [handed_on]


@pytest.mark.parametrize("call", [{}, {"id": None}, {"id": 7, "function": {}}, {"function": {"name": None}}])
def test_a_call_without_id_name_or_arguments_is_still_a_call(call: dict[str, Any]) -> None:
    made = turn(answer("tool_calls", [call]))
    assert made.finish == "calls"
    assert made.calls == (ProposedCall("", b"", ""),)


@pytest.mark.parametrize("arguments", ["", None])
def test_without_a_finish_value_nothing_says_that_empty_arguments_are_whole(arguments: str | None) -> None:
    call = {"id": "a", "function": {"name": "look", "arguments": arguments}}
    assert turn(answer(None, [call])).error_code == "arguments_missing"
    assert turn(answer("tool_calls", [call])).calls == (ProposedCall("look", b"", "a"),)


def test_a_cut_answer_shows_its_calls_and_runs_none() -> None:
    made = turn(answer("length", [CALL]))
    assert made.finish == "truncated"
    assert len(made.calls) == 1
    assert not FINISH[made.finish].executable


def test_something_called_that_is_no_function() -> None:
    made = turn(
        answer("tool_calls", [CALL, {"id": "x", "type": "custom", "custom": {"name": "look", "input": "{}"}}])
    )
    assert (made.finish, made.error_code) == ("model_error", "call_type")


def test_the_legacy_call_counts_and_an_empty_one_does_not() -> None:
    legacy = answer("function_call", function_call={"name": "look", "arguments": "{}"})
    assert turn(legacy).calls == (ProposedCall("look", b"{}", ""),)
    beside = answer("tool_calls", [CALL], function_call={"name": "", "arguments": ""})
    assert [call.provider_call_id for call in turn(beside).calls] == ["call_1"]
    alone = answer("stop", function_call={"name": "", "arguments": ""})
    assert (turn(alone).finish, turn(alone).calls) == ("final", ())


def test_refusals() -> None:
    assert turn(answer("stop", content=None, refusal="No.")).finish == "refused"
    assert turn(answer("stop", content=None, refusal="No.")).text == "No."
    parts = [{"type": "refusal", "refusal": "No."}]
    assert turn(answer("stop", content=parts)).finish == "refused"
    assert turn(answer("tool_calls", [CALL], refusal="No.")).finish == "refused"
    assert turn(answer("stop", refusal="")).finish == "final"


def test_content_in_parts() -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "he"},
        {"type": "hologram", "text": 7},
        {"type": "text", "text": "llo"},
    ]
    made = turn(answer("stop", content=parts))
    assert (made.text, made.finish) == ("hello", "final")
    assert json.loads(made.continuation or b"")["message"] == {"content": parts}


@pytest.mark.parametrize("choices", [None, [], "none"])
def test_no_choice(choices: Any) -> None:
    made = turn({**answer(), "choices": choices})
    assert made.finish in ("model_error", "provider_error")
    assert made.error_code in ("no_choice", "response_shape")
    del (body := answer())["choices"]
    assert turn(body).error_code == "no_choice"


def test_several_choices_are_nobodys_answer() -> None:
    body = answer()
    body["choices"] = body["choices"] * 2
    assert (turn(body).finish, turn(body).error_code) == ("model_error", "several_choices")
    assert turn(body).usage == Usage(10, 5)


def test_what_is_sent_back() -> None:
    call = {**CALL, "extra_content": {"sig": "s"}}
    more: dict[str, Any] = {
        "reasoning_content": "r",
        "reasoning_details": [{"signature": "x"}],
        "reasoning": "shown elsewhere",
    }
    kept = json.loads(turn(answer("tool_calls", [CALL, call], **more)).continuation or b"")
    assert kept["message"] == {"reasoning_content": "r", "reasoning_details": [{"signature": "x"}]}
    assert kept["calls"] == [None, {"sig": "s"}]
    assert json.loads(turn(answer("stop", **more)).continuation or b"")["message"] == {
        "reasoning_details": [{"signature": "x"}]
    }
    assert turn(answer()).continuation is None


# --- usage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 5}, Usage(10, 5)),
        ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 40}, Usage(10, 30)),
        ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 3}, Usage(10, 5)),
        ({"prompt_tokens": 10}, Usage(10, None)),
        ({"prompt_tokens": -1, "completion_tokens": 5}, Usage(None, 5)),
        ({"prompt_tokens": 1.0, "completion_tokens": True}, None),
        ({"prompt_tokens": "10", "completion_tokens": "5"}, None),
        ({"total_tokens": 15}, None),
        ({}, None),
        (None, None),
        ([], None),
        ("many", None),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 4},
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
            Usage(10, 5, 4, 2),
        ),
        (
            {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": -4}},
            Usage(10, 5),
        ),
        ({"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": 3}, Usage(10, 5)),
    ],
)
def test_usage_is_what_was_reported_and_nothing_else(usage: Any, expected: Usage | None) -> None:
    made = turn({**answer(), "usage": usage})
    assert made.finish == "final"
    assert made.usage == expected


def test_usage_that_is_missing_or_ambiguous_is_not_reported() -> None:
    import msgspec

    assert read_usage(msgspec.Raw(b"")) is None
    assert read_usage(msgspec.Raw(b'{"prompt_tokens":1,"prompt_tokens":2,"completion_tokens":1}')) is None
    assert read_usage(msgspec.Raw(b'{"prompt_tokens":99999999999999999999,"completion_tokens":1}')) is None


REPORTED: Final = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}


@pytest.mark.parametrize("status", [200, 400, 429, 503])
@pytest.mark.parametrize("code", [401, 429, 500, "insufficient_quota", "context_length_exceeded", None])
def test_usage_that_an_error_reports_counts(status: int, code: Any) -> None:
    made = turn({"error": {"code": code, "message": "no"}, "usage": REPORTED}, status)
    assert made.usage == Usage(100, 50)
    assert turn({"error": "no", "usage": REPORTED}, status).usage == Usage(100, 50)


@pytest.mark.parametrize("code", [401, 402, 404, 413, 429, "insufficient_quota", "context_length_exceeded"])
def test_an_error_under_a_good_status_is_never_known_to_have_used_nothing(code: Any) -> None:
    assert turn({"error": {"code": code}}).usage is None
    assert turn({"error": {"code": code}, "usage": {"prompt_tokens": "many"}}).usage is None
    assert turn({"error": {"code": code}}, 429).usage == Usage(0, 0)


# --- bodies that aren't answers ---------------------------------------------------------------------------------------

WHOLE: Final = json.dumps(answer()).encode()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "broken_json"),
        (b'{"choices":[{"mess', "broken_json"),
        (WHOLE[:-1], "broken_json"),
        (b"<!doctype html><h1>Welcome</h1>", "not_json"),
        (b"data: {}\n\ndata: [DONE]\n\n", "stream_broken"),
        (b"\xff\xfe{\x00}\x00", "not_json"),
        (WHOLE.replace(b"hello", b"h\xe9llo"), "not_json"),
        (b"\xef\xbb\xbf" + WHOLE, "not_json"),
        (WHOLE + b"{}", "broken_json"),
        (b"[1]", "not_json"),
        (b"null", "not_json"),
        (WHOLE.replace(b'"hello"', b'"hello", "content": "bye"'), "json_dup_key"),
        (WHOLE.replace(b'"stop"', b'"length", "finish_reason": "stop"'), "json_dup_key"),
        (WHOLE[:-1] + b', "choices": []}', "json_dup_key"),
        (WHOLE[:-1] + b', "x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "response_shape"),
        (WHOLE.replace(b'"hello"', b'"\\ud800"'), "json_surrogate"),
        (WHOLE.replace(b'"hello"', b"NaN"), "json_non_finite"),
        (WHOLE.replace(b'"message": {', b'"message": 7, "m": {'), "response_shape"),
        (WHOLE.replace(b'"choices": [', b'"choices": [null,'), "response_shape"),
        (b'{"choices": {"0": {}}}', "response_shape"),
        (
            b'{"choices": [{"finish_reason": "tool_calls", "message": {"tool_calls": "f()"}}]}',
            "response_shape",
        ),
    ],
)
def test_a_body_that_is_no_answer(body: bytes, code: str) -> None:
    made = turn(body)
    assert made.error_code == code
    assert FINISH[made.finish].retry
    assert (made.calls, made.text) == ((), "")


SAYS_A: Final = b'[{"finish_reason":"stop","message":{"content":"A"}}]'
SAYS_B: Final = SAYS_A.replace(b"A", b"B")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (b'"choices":' + SAYS_A, b'"choices":' + SAYS_B),
        (b'"choices":' + SAYS_A, b'"ch\\u006fices":' + SAYS_B),
        (b'"\\u0063hoices":[]', b'"choices":' + SAYS_B),
        (b'"choices":' + SAYS_A + b',"model":"a"', b'"mode\\u006c":"b"'),
        (b'"choices":' + SAYS_A + b',"error":{"code":500}', b'"error":null'),
        (b'"choices":' + SAYS_A + b',"id":"a"', b'"id":"b"'),
        (b'"x":{"a":1,"a":2}', b'"choices":' + SAYS_A.replace(b"message", b'm\\u0065ssage":{},"message')),
        (b'"x":1,"x":2', b'"choices":' + SAYS_A.replace(b'"A"', b'"A","content":"B"')),
        (b'"x":1e999', b'"choices":' + SAYS_A.replace(b'"stop"', b'"stop","x":18446744073709551616')),
        (b'"x":1e999', b'"choices":' + SAYS_A.replace(b"A", b"\\ud800")),
    ],
    ids=range(10),
)
def test_what_is_read_says_one_thing_or_nothing(first: bytes, second: bytes) -> None:
    for body in (first + b"," + second, second + b"," + first):
        made = turn(b"{" + body + b"}")
        assert made.finish == "provider_error"
        assert (made.text, made.usage) == ("", None)


@pytest.mark.parametrize("second", [b'"usage"', b'"us\\u0061ge"'])
def test_usage_that_is_reported_twice_is_not_reported(second: bytes) -> None:
    twice = (
        b',"usage":{"prompt_tokens":9,"completion_tokens":9},%s:{"prompt_tokens":0,"completion_tokens":0}}'
    )
    made = turn(b'{"choices":' + SAYS_A + twice % second)
    assert (made.finish, made.text, made.usage) == ("final", "A", None)


def test_disputes_over_arguments_are_the_ladders_also_beside_other_oddities() -> None:
    raw = b'{"a":1,"a":2,"b":{"c":1e999}}'
    function = b'{"name":"look","arguments":%s}' % raw
    calls = b'{"message":{"tool_calls":[{"function":%s}],"function_call":%s}}' % (function, function)
    made = turn(b'{"choices":[%s],"x":{"a":1,"a":2}}' % calls)
    assert [call.arguments for call in made.calls] == [raw]
    beside = calls.replace(b'"name"', b'"x":{"a":1,"a":2},"name"')
    assert turn(b'{"choices":[%s]}' % beside).error_code == "json_dup_key"


def test_odd_answers_with_many_calls_cost_their_length() -> None:
    """A quadratic decoder takes minutes for the second; this one a fraction of a second."""
    for count, finish in ((CALLS_MAX, "calls"), (20_000, "model_error")):
        calls = b",".join(b'{"function":{"name":"f","arguments":{"a":%d}}}' % n for n in range(count))
        body = b'{"choices":[{"finish_reason":"stop","message":{"tool_calls":[%s]}}],"x":1,"x":2}' % calls
        began = time.process_time()
        assert turn(body).finish == finish
        assert time.process_time() - began < 5


def test_more_calls_than_anybody_means_are_no_answer() -> None:
    assert len(turn(answer("tool_calls", [CALL] * CALLS_MAX)).calls) == CALLS_MAX
    made = turn(answer("tool_calls", [CALL] * (CALLS_MAX + 1)))
    assert (made.finish, made.error_code, made.calls) == ("model_error", "too_many_calls", ())
    assert made.usage == Usage(10, 5)


@pytest.mark.parametrize("content", [["x"], [None], [1], [[]], [True, {"type": "text", "text": "x"}]])
def test_content_in_parts_that_are_none(content: Any) -> None:
    made = turn(answer("stop", content=content))
    assert (made.finish, made.error_code) == ("provider_error", "response_shape")


NAMES: Final = [
    *(
        "id",
        "model",
        "choices",
        "usage",
        "error",
        "finish_reason",
        "message",
        "content",
        "refusal",
        "tool_calls",
    ),
    *(
        "function_call",
        "name",
        "arguments",
        "type",
        "text",
        "function",
        "reasoning_content",
        "extra_content",
        "code",
    ),
    *(
        "reasoning_details",
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
        "detail",
        "status",
        "thinking",
    ),
]
WORDS: Final = [
    "",
    "stop",
    "length",
    "tool_calls",
    "function",
    "text",
    "refusal",
    "thinking",
    "{}",
    '{"a":1}',
    "\ud800",
]
SCALARS: Final = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from(WORDS)
    | st.text(max_size=6)
)
ANY: Final = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=20,
)


def shaped(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An object of this shape, in which anything may be something else."""
    return st.fixed_dictionaries({}, optional={name: ANY | value for name, value in members.items()})


FUNCTION: Final = shaped(name=st.just("look"), arguments=st.sampled_from(["", "{}", '{"a":1}']))
MESSAGE: Final = shaped(
    content=st.lists(shaped(type=st.sampled_from(WORDS), text=st.text(max_size=4), refusal=ANY), max_size=3),
    refusal=st.just(""),
    tool_calls=st.lists(shaped(id=st.just("a"), function=FUNCTION, extra_content=ANY), max_size=3),
    function_call=FUNCTION,
    reasoning_content=ANY,
    reasoning_details=ANY,
)
COMPLETION: Final = shaped(
    choices=st.lists(shaped(finish_reason=st.sampled_from(WORDS), message=MESSAGE), min_size=1, max_size=1),
    usage=shaped(prompt_tokens=SCALARS, completion_tokens=SCALARS, total_tokens=SCALARS),
    error=shaped(code=SCALARS, message=SCALARS, type=SCALARS),
    id=st.text(max_size=4),
    model=SCALARS,
)


@settings(max_examples=examples(300), deadline=None)
@given(
    ANY | COMPLETION,
    st.sampled_from([200, 200, 200, 400, 429, 500]),
    st.sampled_from(["", ',"x":{"a":1,"a":2}}']),
)
def test_whatever_json_comes_becomes_a_turn(body: Any, status: int, odd: str) -> None:
    data = json.dumps(body)
    if odd and isinstance(body, dict) and body:
        data = data[:-1] + odd
    made = turn(data.encode(), status)
    assert made.finish in FINISH
    assert bool(made.calls) or not FINISH[made.finish].executable
    for label in (made.finish_raw, made.response_id, made.served_model, made.safe_message, made.error_code):
        assert len(label.encode()) <= 4 * 512


@settings(max_examples=examples(200), deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["retry-after", "retry-after-ms", "date", "x-request-id"]), st.text(max_size=40)
    )
)
def test_whatever_headers_come_are_a_wait_or_none(headers: dict[str, str]) -> None:
    made = decode_answer(429, headers, b"", now_ms=1_000_000)
    assert 0 <= made.retry_after_ms <= RETRY_AFTER_MS_MAX


@pytest.mark.parametrize("odd", [b'"seed": 18085443812934868000', b'"x": {"a": 1, "a": 2}', b'"x": 1e999'])
def test_what_is_never_read_may_be_odd(odd: bytes) -> None:
    assert turn(WHOLE[:-1] + b", " + odd + b"}") == turn(WHOLE)


@given(st.binary(max_size=300))
def test_any_bytes_become_a_turn(body: bytes) -> None:
    for status in (200, 400, 500):
        assert not FINISH[turn(body, status).finish].executable


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "error", "finish", "code", "retryable"),
    [
        (400, {"code": "context_length_exceeded"}, "context_exceeded", "context_exceeded", False),
        (
            400,
            {"type": "exceed_context_size_error", "code": 400},
            "context_exceeded",
            "context_exceeded",
            False,
        ),
        (400, {"message": "Your prompt is too long for it"}, "context_exceeded", "context_exceeded", False),
        (500, {"message": "context length"}, "provider_error", "server_error", True),
        (400, {"code": "content_filter"}, "filtered", "content_filter", False),
        (400, {"code": "tool_use_failed"}, "model_error", "tool_use_failed", True),
        (429, {"code": "insufficient_quota"}, "provider_error", "quota", False),
        (429, {"type": "insufficient_quota", "code": None}, "provider_error", "quota", False),
        (429, {"code": "rate_limit_exceeded"}, "provider_error", "rate_limited", True),
        (200, {"code": 429, "message": "later"}, "provider_error", "rate_limited", True),
        (200, {"code": 502}, "provider_error", "server_error", True),
        (200, {"code": "content_filter", "status": 400}, "filtered", "content_filter", False),
        (200, {"message": "?"}, "provider_error", "error_in_answer", True),
        (200, "text", "provider_error", "error_in_answer", True),
    ],
)
def test_errors_by_their_own_code(status: int, error: Any, finish: str, code: str, retryable: bool) -> None:
    made = turn({"error": error}, status)
    assert (made.finish, made.error_code, made.retryable) == (finish, code, retryable)


def test_an_error_beside_choices_wins_and_a_null_one_is_none() -> None:
    assert turn({**answer(), "error": {"code": 500}}).finish == "provider_error"
    assert turn({**answer(), "error": None}).finish == "final"


def test_the_server_may_say_whether_to_try_again() -> None:
    assert not turn({}, 503, x_should_retry="false").retryable
    assert turn({}, 400, x_should_retry="true").retryable
    assert turn({}, 503, x_should_retry="perhaps").retryable


@pytest.mark.parametrize(
    ("headers", "wait_ms"),
    [
        ({}, 0),
        ({"retry-after": "2"}, 2_000),
        ({"retry-after": " 1.5 "}, 1_500),
        ({"retry-after-ms": "250", "retry-after": "9"}, 250),
        ({"retry-after": "86400"}, RETRY_AFTER_MS_MAX),
        ({"retry-after": "9" * 12}, RETRY_AFTER_MS_MAX),
        ({"retry-after": "9" * 400}, 0),
        ({"retry-after": "-5"}, 0),
        ({"retry-after": "nan"}, 0),
        ({"retry-after": "1e9"}, 0),
        ({"retry-after": "soon"}, 0),
        ({"retry-after": "Thu, 01 Jan 1970 00:16:50 GMT"}, 10_000),
        (
            {"retry-after": "Wed, 21 Oct 2026 07:28:10 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"},
            10_000,
        ),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 0),
        ({"retry-after": "Wed, 99 Oct 99999 07:28:00 GMT"}, 0),
    ],
)
def test_how_long_to_wait(headers: dict[str, str], wait_ms: int) -> None:
    assert retry_after_ms(headers, now_ms=1_000_000) == wait_ms


def test_a_wait_goes_only_with_another_attempt() -> None:
    assert turn({}, 429, retry_after="3").retry_after_ms == 3_000
    assert turn({"error": {"code": "insufficient_quota"}}, 429, retry_after="3").retry_after_ms == 0


def test_a_providers_words_are_bounded_and_plain() -> None:
    made = turn({"error": {"message": "no\x1b[31m\u202e" + "x" * 100_000, "code": "y" * 5_000}}, 400)
    assert len(made.safe_message) < 300
    assert len(made.finish_raw) <= 128
    assert not re.search(r"[\x00-\x1f\u202e]", made.safe_message)
