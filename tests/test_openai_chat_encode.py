"""Requests of Chat Completions: the same bytes for the same input, a history that servers accept, tools as declared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.decider.shop import limits, pins
from tests.decider.spec import Run

from boundloop.adapters.answer_draft import CALL_ID_CHARS_MAX
from boundloop.adapters.history import fits_strict, wire_ids
from boundloop.adapters.openai_chat_decode import decode_answer
from boundloop.adapters.openai_chat_encode import ChatOptions, encode_request
from boundloop.runtime.events import CallProposed
from boundloop.runtime.model import (
    AssistantCall,
    AssistantItem,
    DigestItem,
    Item,
    ModelInput,
    NoteItem,
    ResultItem,
    UserItem,
)
from boundloop.runtime.reported import LABEL_CHARS_MAX
from boundloop.runtime.tool_definition import ToolDefinition

CLOSED: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}
OPTIONAL: dict[str, Any] = {**CLOSED, "required": []}


def tool(name: str = "look", parameters: dict[str, Any] = CLOSED) -> ToolDefinition:
    return ToolDefinition(name=name, description="Look.", parameters=parameters, risk="read")


def given_items(items: Sequence[Item], **changed: Any) -> ModelInput:
    asked = ModelInput(
        run_id="r1",
        turn=2,
        attempt=1,
        model="m1",
        system="Be brief.",
        items=items,
        tools=(),
        output_tokens_max=99,
        request_sha256=b"",
    )
    return msgspec.structs.replace(asked, **changed)


def written(items: Sequence[Item] = (), options: ChatOptions | None = None, **changed: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(encode_request(options or ChatOptions(), given_items(items, **changed)))
    return made


def test_the_exact_bytes() -> None:
    """Golden: another byte for the same input is another encoding, and `ChatOptions.encoding` says so."""
    items: list[Item] = [
        UserItem("Hi é"),
        AssistantItem("", (AssistantCall("c1.0", "call_9", "look", b'{"a": "x"}'),)),
        ResultItem("c1.0", "call_9", "look", False, b'{"status":"ok"}'),
    ]
    body = encode_request(ChatOptions(extra=b'{"temperature":0}'), given_items(items, tools=(tool(),)))
    assert body.decode() == (
        '{"max_completion_tokens":99,"messages":['
        '{"content":"Be brief.","role":"system"},'
        '{"content":"Hi é","role":"user"},'
        '{"content":null,"role":"assistant","tool_calls":[{"function":{"arguments":"{\\"a\\": \\"x\\"}","name":"look"},'
        '"id":"call_9","type":"function"}]},'
        '{"content":"{\\"status\\":\\"ok\\"}","role":"tool","tool_call_id":"call_9"}],'
        '"model":"m1","stream":false,"temperature":0,"tools":[{"function":{"description":"Look.","name":"look",'
        '"parameters":{"additionalProperties":false,"properties":{"a":{"type":"string"}},"required":["a"],"type":"object"},'
        '"strict":true},"type":"function"}]}'
    )


def test_the_revision_changes_with_whatever_changes_the_bytes() -> None:
    changed = [
        ChatOptions(),
        ChatOptions(output_limit_field="max_tokens"),
        ChatOptions(strict=False),
        ChatOptions(parallel_tool_calls=False),
        ChatOptions(system_role="developer"),
        ChatOptions(extra=b'{"temperature":0}'),
    ]
    assert len({options.revision() for options in changed}) == len(changed)
    assert ChatOptions().revision() == ChatOptions(strict=True).revision()


def test_options() -> None:
    body = written(options=ChatOptions(output_limit_field="max_tokens", system_role="developer"))
    assert body["max_tokens"] == 99
    assert "max_completion_tokens" not in body
    assert body["messages"] == [{"role": "developer", "content": "Be brief."}]
    assert "tools" not in body
    assert written(system="")["messages"] == []
    options = ChatOptions(parallel_tool_calls=False)
    assert written(options=options, tools=(tool(),))["parallel_tool_calls"] is False
    assert "parallel_tool_calls" not in written(options=options)


def test_a_note_is_told_from_a_user() -> None:
    assert [
        message["content"] for message in written([UserItem("a"), NoteItem("b")], system="")["messages"]
    ] == [
        "a",
        "[runtime] b",
    ]


def test_digests_go_out_as_a_tools_result_and_nobody_elses_words() -> None:
    messages = written([UserItem("a"), DigestItem("one\ntwo"), calling("x")], system="")["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    made = messages[1]["tool_calls"]
    assert messages[1]["content"] is None
    assert [one["function"] for one in made] == [{"name": "recorded_turns", "arguments": "{}"}]
    assert messages[2] == {"role": "tool", "tool_call_id": made[0]["id"], "content": "one\ntwo"}
    assert made[0]["id"].isalnum()
    assert len(made[0]["id"]) == 9


# --- the history ------------------------------------------------------------------------------------------------------


def calling(*labels: str, name: str = "look", arguments: bytes = b"{}") -> AssistantItem:
    return AssistantItem(
        "", tuple(AssistantCall(f"c1.{index}", label, name, arguments) for index, label in enumerate(labels))
    )


@given(
    st.lists(st.sampled_from(["", "", "a", "a", "call_c1_0", "call_c1_1", "call_c1_1_", "é" * 9]), max_size=8)
)
def test_every_call_has_an_id_of_its_own_and_its_result_the_same(labels: list[str]) -> None:
    item = calling(*labels)
    results = [ResultItem(call.call_id, call.provider_call_id, "look", False, b"1") for call in item.calls]
    messages = written([item, *reversed(results)], system="")["messages"]
    ids = [call["id"] for call in messages[0].get("tool_calls", ())]
    assert all(ids)
    assert len(set(ids)) == len(labels)
    assert [message["tool_call_id"] for message in messages[1:]] == ids[::-1]
    for label, wire in zip(labels, ids, strict=True):
        if label and labels.count(label) == 1:
            assert wire == label  # a usable id of the provider's goes back unchanged
    assert list(wire_ids(item).values()) == ids


def long_ids() -> tuple[str, ...]:
    """Some servers hide signatures in their ids; two of these differ only at the end."""
    return ("s" * 5_000 + "a", "short", "s" * 5_000 + "b", "é" * CALL_ID_CHARS_MAX, "")


def test_long_call_ids_go_back_whole_through_a_run() -> None:
    labels = long_ids()
    wired = [
        {"id": label, "function": {"name": "get_order", "arguments": '{"order_id":"A"}'}} for label in labels
    ]
    answer = {"choices": [{"message": {"tool_calls": wired}, "finish_reason": "tool_calls"}]}
    turn = decode_answer(200, {}, json.dumps(answer).encode(), now_ms=0)
    run = Run(pins(bounds=limits(calls_per_turn=3, repeats=9, equal_results=9)))
    run.reply(*turn.calls, continuation=turn.continuation)
    for index in range(3):
        run.check(f"c1.{index}")
    for index in range(3):
        run.report(f"c1.{index}")
    recorded = [event.provider_call_id for event, _ in run.log if isinstance(event, CallProposed)]
    assert max(map(len, recorded)) <= LABEL_CHARS_MAX
    messages = written(run.state.items, system="")["messages"]
    (said,) = [message for message in messages if message["role"] == "assistant"]
    ids = [call["id"] for call in said["tool_calls"]]
    assert ids[:4] == list(labels[:4])
    assert ids[4].startswith("call_")
    assert sorted(message["tool_call_id"] for message in messages if message["role"] == "tool") == sorted(ids)


def test_one_long_id_twice_is_two_ids_and_one_that_is_too_long_is_no_answer() -> None:
    for labels, kept in ((["x" * 400] * 2, 1), (["x" * (CALL_ID_CHARS_MAX + 1)], 0)):
        wired = [{"id": label, "function": {"name": "look", "arguments": "{}"}} for label in labels]
        answer = {"choices": [{"message": {"tool_calls": wired}, "finish_reason": "tool_calls"}]}
        turn = decode_answer(200, {}, json.dumps(answer).encode(), now_ms=0)
        if not kept:
            assert (turn.finish, turn.error_code, turn.calls) == ("provider_error", "call_id_too_long", ())
            continue
        calls = tuple(AssistantCall(f"c1.{n}", label[:256], "look", b"{}") for n, label in enumerate(labels))
        item = AssistantItem("", calls, turn.continuation)
        ids = [call["id"] for call in written([item], system="")["messages"][0]["tool_calls"]]
        assert ids[0] == labels[0]
        assert len(set(ids)) == 2


@pytest.mark.parametrize(
    ("name", "wire"),
    [("look", "look"), ("", "unnamed"), ("a b/é", "a_b__"), ("x" * 80, "x" * 64), ("\ud800", "_")],
)
def test_a_name_that_no_server_takes_back_is_written_in_its_nearest_form(name: str, wire: str) -> None:
    message = written([calling("a", name=name)], system="")["messages"][0]
    assert message["tool_calls"][0]["function"]["name"] == wire


@pytest.mark.parametrize(
    ("arguments", "wire"),
    [
        (b' {"b": 1,"a":"\xc3\xa9"} ', ' {"b": 1,"a":"é"} '),
        (b"{}", "{}"),
        (b"", "{}"),
        (b"null", "{}"),
        (b"[1]", "{}"),
        (b"{", "{}"),
        (b'{"v": ', "{}"),
        (b'{"a":1,"a":2}', "{}"),
        (b'{"a":NaN}', "{}"),
        (b"\xff{", "{}"),
        (b'{"a":' * 900 + b"1" + b"}" * 900, "{}"),
        (b'{"a":"' + b"x" * 300_000 + b'"}', "{}"),
    ],
)
def test_arguments_go_back_as_they_came_if_a_server_can_read_them(arguments: bytes, wire: str) -> None:
    message = written([calling("a", arguments=arguments)], system="")["messages"][0]
    assert message["tool_calls"][0]["function"]["arguments"] == wire


@given(st.binary(max_size=30) | st.text(alphabet='{}[]":,\\u0a1e.-nulNaN ', max_size=12).map(str.encode))
def test_the_arguments_of_a_history_are_always_an_object(arguments: bytes) -> None:
    message = written([calling("a", arguments=arguments)], system="")["messages"][0]
    assert isinstance(json.loads(message["tool_calls"][0]["function"]["arguments"]), dict)


@given(st.text(max_size=30), st.binary(max_size=30), st.text(max_size=9))
def test_encoding_never_fails_for_what_a_log_can_hold(text: str, raw: bytes, label: str) -> None:
    items: list[Item] = [
        UserItem(text),
        NoteItem(text),
        DigestItem(text),
        AssistantItem(text, (AssistantCall("c1.0", label, text, raw),), raw),
        ResultItem("c1.0", label, text, True, raw),
        ResultItem("c9.9", label, text, True, raw),
        AssistantItem(text, (), raw),
    ]
    assert written(items) == written(items)


def test_what_the_server_wants_back_goes_back_as_it_came() -> None:
    message: dict[str, Any] = {
        "content": [{"type": "thinking", "thinking": []}, {"type": "text", "text": "t"}],
        "reasoning_content": "because",
        "reasoning_details": [{"signature": "s", "n": 1.5}],
        "extra_content": {"sig": "x"},
        "reasoning": "not this",
        "tool_calls": [
            {"id": "a", "function": {"name": "look", "arguments": "{}"}},
            {"id": "b", "function": {"name": "look", "arguments": "{}"}, "extra_content": {"sig": "y"}},
        ],
    }
    answer = {"choices": [{"message": message, "finish_reason": "tool_calls"}]}
    turn = decode_answer(200, {}, json.dumps(answer).encode(), now_ms=0)
    calls = tuple(
        AssistantCall(f"c1.{index}", call.provider_call_id, call.name, call.arguments)
        for index, call in enumerate(turn.calls)
    )
    sent = written([AssistantItem(turn.text, calls, turn.continuation)], system="")["messages"][0]
    for name in ("content", "reasoning_content", "reasoning_details", "extra_content"):
        assert sent[name] == message[name]
    assert "reasoning" not in sent
    assert [call.get("extra_content") for call in sent["tool_calls"]] == [None, {"sig": "y"}]


@pytest.mark.parametrize(
    "foreign",
    [b"", b"\xff", b"[]", b"7", b'{"openai_chat":2,"message":{"content":"x"}}', b'{"message":{"content":"x"}}',
     b'{"openai_chat":1,"ids":7}', b'{"openai_chat":1,"ids":[7,{},"x"]}',
     b'{"openai_chat":1,"message":{"role":"system","tool_calls":[]}}', b'{"openai_chat":1,"message":7,"calls":7}'],
)  # fmt: skip
def test_state_of_another_family_is_left_alone(foreign: bytes) -> None:
    message = written([AssistantItem("hello", (), foreign)], system="")["messages"][0]
    assert message == {"role": "assistant", "content": "hello"}


# --- tools ------------------------------------------------------------------------------------------------------------


SCHEMAS: list[tuple[dict[str, Any], bool]] = [
    (CLOSED, True),
    (OPTIONAL, False),
    ({**CLOSED, "additionalProperties": True}, False),
    ({"type": "object", "properties": {}, "required": [], "additionalProperties": False}, True),
    ({"type": "object", "properties": {}, "additionalProperties": False}, True),
    ({"type": "string"}, False),
    ({**CLOSED, "properties": {"a": {"type": "string", "pattern": "x"}}}, False),
    ({**CLOSED, "properties": {"a": {"type": "array", "items": OPTIONAL}}}, False),
    ({**CLOSED, "properties": {"a": {"anyOf": [{"type": "null"}, CLOSED]}}}, True),
    ({**CLOSED, "properties": {"a": {"anyOf": [{"type": "null"}, OPTIONAL]}}}, False),
    ({**CLOSED, "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": OPTIONAL}}, False),
    ({**CLOSED, "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": CLOSED}}, True),
    ({**CLOSED, "properties": {"a": {"type": "object"}}}, False),
]


@pytest.mark.parametrize(("schema", "fits"), SCHEMAS)
def test_strict_only_where_the_schema_is_in_its_subset(schema: dict[str, Any], fits: bool) -> None:
    assert fits_strict(schema) is fits
    function = written(tools=(tool(parameters=schema),))["tools"][0]["function"]
    assert function.get("strict") is (True if fits else None)
    assert function["parameters"] == schema
    plain = written(options=ChatOptions(strict=False), tools=(tool(parameters=schema),))
    assert "strict" not in plain["tools"][0]["function"]
