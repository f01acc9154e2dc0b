"""Requests of each family, made up here: the same bytes for the same input, results where their API wants them, state that goes back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import pytest
from tests.provider_streams import Call, body, ended

from boundloop.adapters import anthropic_encode as anthropic
from boundloop.adapters import gemini_encode as gemini
from boundloop.adapters import gemini_interactions_encode as interactions
from boundloop.adapters import openai_responses_encode as responses
from boundloop.adapters.families import decode_answer
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
from boundloop.runtime.tool_definition import ToolDefinition

Encode = Callable[[ModelInput], dict[str, Any]]


def sent(encoded: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(encoded)
    return found


def to_responses(request: ModelInput, **options: Any) -> dict[str, Any]:
    return sent(responses.encode_request(responses.ResponsesOptions(**options), request))


def to_anthropic(request: ModelInput, **options: Any) -> dict[str, Any]:
    return sent(anthropic.encode_request(anthropic.AnthropicOptions(**options), request))


def to_gemini(request: ModelInput, **options: Any) -> dict[str, Any]:
    return sent(gemini.encode_request(gemini.GeminiOptions(**options), request))


def to_interactions(request: ModelInput, **options: Any) -> dict[str, Any]:
    return sent(interactions.encode_request(interactions.InteractionsOptions(**options), request))


FAMILIES: Final[dict[str, Encode]] = {
    "openai_responses": to_responses,
    "anthropic": to_anthropic,
    "gemini": to_gemini,
    "gemini_interactions": to_interactions,
}
SCHEMA: Final = {
    "type": "object",
    "properties": {"at": {"type": "string"}},
    "required": ["at"],
    "additionalProperties": False,
}
LOOK: Final = ToolDefinition(name="look", description="Look.", parameters=SCHEMA, risk="read")


def asked(*items: Item, tools: tuple[ToolDefinition, ...] = (), hosted: tuple[str, ...] = ()) -> ModelInput:
    return ModelInput(
        run_id="r",
        turn=1,
        attempt=1,
        model="m1",
        system="Be brief.",
        items=items,
        tools=tools,
        output_tokens_max=77,
        request_sha256=b"",
        hosted=hosted,
    )


def called(family: str, *calls: Call, text: str = "", turn: int = 1, keep: bool = True) -> AssistantItem:
    """An earlier answer of this family, with what it left to be sent back."""
    answer = decode_answer(
        family, 200, {}, body(family, ended(family, "calls", text=text, calls=calls)), now_ms=0
    )
    made = tuple(
        AssistantCall(f"c{turn}.{number}", call.provider_call_id, call.name, call.arguments)
        for number, call in enumerate(answer.calls)
    )
    return AssistantItem(answer.text, made, answer.continuation if keep else None)


def results(item: AssistantItem, *, error: int = -1) -> list[ResultItem]:
    return [
        ResultItem(call.call_id, call.provider_call_id, call.name, number == error, b'{"data":%d}' % number)
        for number, call in enumerate(item.calls)
    ]


def wire_results(family: str, request: dict[str, Any]) -> list[tuple[str, bool]]:
    """(call id, is an error) of each result, in order."""
    match family:
        case "openai_responses":
            return [
                (one["call_id"], False) for one in request["input"] if one.get("type", "").endswith("_output")
            ]
        case "anthropic":
            blocks = [block for message in request["messages"] for block in message["content"]]
            found = [block for block in blocks if block["type"] == "tool_result"]
            return [(block["tool_use_id"], block.get("is_error", False)) for block in found]
        case "gemini":
            parts = [part for content in request["contents"] for part in content["parts"]]
            found = [part["functionResponse"] for part in parts if "functionResponse" in part]
            return [(one.get("id", ""), "error" in one["response"]) for one in found]
        case _:
            found = [step for step in request["input"] if step["type"] == "function_result"]
            return [(step["call_id"], step.get("is_error", False)) for step in found]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_input_is_the_same_request_with_limits_tools_and_system(family: str) -> None:
    encode = FAMILIES[family]
    item = called(family, Call("id_1", "look", '{"at":"x"}'), text="Hm")
    request = asked(UserItem("Look"), item, *results(item), tools=(LOOK,))
    one = encode(request)
    assert one == encode(request)
    written = json.dumps(one)
    assert "Be brief." in written
    assert "77" in written
    assert '"look"' in written
    assert json.dumps(SCHEMA, sort_keys=True) in json.dumps(one, sort_keys=True)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_results_go_back_in_call_order_with_their_ids_and_errors(family: str, keep: bool) -> None:
    calls = [Call(f"id_{number}", "look", '{"at":"x"}') for number in range(3)]
    item = called(family, *calls, keep=keep)
    request = FAMILIES[family](asked(UserItem("Look"), item, *results(item, error=1)))
    found = wire_results(family, request)
    # Responses has no flag of an error; it stands in the text. Gemini has no ids where none came.
    flags = [False, False, False] if family == "openai_responses" else [False, True, False]
    ids = ["", "", ""] if family == "gemini" and not keep else ["id_0", "id_1", "id_2"]
    assert found == list(zip(ids, flags, strict=True))


@pytest.mark.parametrize("family", ["openai_responses", "anthropic", "gemini_interactions"])
def test_ids_that_each_answer_counts_anew_are_told_apart(family: str) -> None:
    first = called(family, Call("call_0", "look", "{}"), turn=1)
    second = called(family, Call("call_0", "look", "{}"), turn=2)
    request = FAMILIES[family](asked(UserItem("Look"), first, *results(first), second, *results(second)))
    assert [label for label, _ in wire_results(family, request)] == ["call_0", "call_c2_0"]
    assert json.dumps(request).count('"call_c2_0"') == 2


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_that_are_missing_or_twice_in_one_answer_are_told_apart(family: str) -> None:
    calls = [Call("", "look", "{}"), Call("", "look", "{}"), Call("a", "look", "{}"), Call("a", "look", "{}")]
    item = called(family, *calls)
    request = FAMILIES[family](asked(UserItem("Look"), item, *results(item)))
    found = [label for label, _ in wire_results(family, request)]
    assert len(found) == 4
    if family == "gemini":
        assert found[2:] in (["a", "call_c1_3"], ["", ""])
    else:
        assert len(set(found)) == 4


@pytest.mark.parametrize("family", FAMILIES)
def test_another_familys_state_is_left_alone_and_its_calls_go_back(family: str) -> None:
    other = next(name for name in FAMILIES if name != family)
    item = called(other, Call("id_1", "look", '{"at":"x"}'), text="Hm")
    request = json.dumps(FAMILIES[family](asked(UserItem("Look"), item, *results(item))))
    assert '"Hm"' in request
    assert "boundloop_call" not in request


@pytest.mark.parametrize("family", FAMILIES)
def test_garbled_arguments_in_the_history_break_no_later_request(family: str) -> None:
    item = called(family, Call("id_1", "look", "{}"))
    broken = AssistantItem(
        "", (AssistantCall("c1.0", "id_1", "lo ok", b'{"at":1,"at":2}'),), item.continuation
    )
    request = FAMILIES[family](asked(UserItem("Look"), broken, *results(broken)))
    assert '"lo_ok"' in json.dumps(request)
    assert '"at"' not in json.dumps(request)


@pytest.mark.parametrize("family", FAMILIES)
def test_notes_digests_and_texts_have_their_places(family: str) -> None:
    item = called(family, Call("id_1", "look", "{}"))
    request = FAMILIES[family](
        asked(
            DigestItem("old turns"),
            UserItem("Look"),
            item,
            *results(item),
            NoteItem("Not done."),
            UserItem(" "),
        )
    )
    written = json.dumps(request)
    assert "old turns" in written
    assert "recorded_turns" in written
    assert "[runtime] Not done." in written
    if family == "anthropic":
        assert [message["role"] for message in request["messages"]] == [
            "user", "assistant", "user", "assistant", "user",
        ]  # fmt: skip
        assert request["messages"][-1]["content"][0]["type"] == "tool_result"


# --- state that goes back ---------------------------------------------------------------------------------------------


def answered(family: str, answer: dict[str, Any]) -> AssistantItem:
    turn = decode_answer(family, 200, {}, json.dumps(answer).encode(), now_ms=0)
    made = tuple(
        AssistantCall(f"c1.{number}", call.provider_call_id, call.name, call.arguments)
        for number, call in enumerate(turn.calls)
    )
    return AssistantItem(turn.text, made, turn.continuation)


def test_reasoning_goes_back_before_what_it_produced() -> None:
    reasoning: Any = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "opaque"}
    call = {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "look", "arguments": "{}"}
    message = {"type": "message", "id": "m_1", "role": "assistant", "phase": "commentary",
               "content": [{"type": "output_text", "text": "Hm"}]}  # fmt: skip
    strange = {"type": "some_future_type", "x": 1}
    output: Any = [reasoning, strange, message, call]
    item = answered("openai_responses", {"id": "r", "status": "completed", "output": output})
    request = to_responses(asked(UserItem("Look"), item, *results(item)))
    assert request["input"][1:5] == output
    assert request["include"] == ["reasoning.encrypted_content"]
    assert request["store"] is False


def test_reasoning_that_cannot_go_back_is_left_out_with_the_ids_that_name_it() -> None:
    reasoning: Any = {"type": "reasoning", "id": "rs_1", "summary": []}
    call = {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "look", "arguments": "{}"}
    item = answered("openai_responses", {"id": "r", "status": "completed", "output": [reasoning, call]})
    kept = to_responses(asked(UserItem("Look"), item), encrypted_reasoning=False)["input"][1:]
    assert kept == [reasoning, call]
    (left,) = to_responses(asked(UserItem("Look"), item))["input"][1:]
    assert left == {name: value for name, value in call.items() if name != "id"}


def test_thinking_goes_back_with_its_signature_in_its_place() -> None:
    blocks: Any = [
        {"type": "thinking", "thinking": "", "signature": "sig"},
        {"type": "redacted_thinking", "data": "opaque"},
        {"type": "text", "text": ""},
        {"type": "tool_use", "id": "a", "name": "look", "input": {"at": "x"}, "caller": {"type": "direct"}},
        {"type": "some_future_block", "x": [1]},
    ]
    item = answered("anthropic", {"id": "r", "content": blocks, "stop_reason": "tool_use"})
    request = to_anthropic(asked(UserItem("Look"), item, *results(item)))
    # An empty text is what the API itself sends and refuses to take.
    assert request["messages"][1]["content"] == [blocks[0], blocks[1], blocks[3], blocks[4]]


def test_a_paused_turn_goes_back_unchanged_and_last() -> None:
    blocks: Any = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
    ]
    item = answered("anthropic", {"id": "r", "content": blocks, "stop_reason": "pause_turn"})
    request = to_anthropic(asked(UserItem("Search"), item))
    assert request["messages"][-1] == {"role": "assistant", "content": blocks}


def test_signatures_of_parts_stay_where_they_were() -> None:
    parts: Any = [
        {"text": "I see", "thought": True},
        {"functionCall": {"name": "look", "args": {"at": "x"}}, "thoughtSignature": "sig"},
        {"functionCall": {"name": "look", "args": {}}},
        {"text": "", "thoughtSignature": "end"},
    ]
    item = answered("gemini", {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]})
    request = to_gemini(asked(UserItem("Look"), item, *results(item)), signatures=True)
    assert request["contents"][1] == {"role": "model", "parts": parts}
    assert len(request["contents"][2]["parts"]) == 2


def test_a_call_of_another_model_has_the_escape_value_where_a_signature_is_asked_for() -> None:
    item = called("anthropic", Call("a", "look", "{}"), Call("b", "look", "{}"))
    parts = to_gemini(asked(UserItem("Look"), item, *results(item)), signatures=True)["contents"][1]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == [gemini.FOREIGN_SIGNATURE, None]


# F22
@pytest.mark.parametrize(
    ("setting", "given", "expected"),
    [
        ("given", "a", ["a"]),
        ("given", "", [""]),
        ("always", "", ["call_c1_0"]),
        ("always", "a", ["a"]),
        ("never", "a", [""]),
    ],
)
def test_whether_ids_are_echoed_is_a_setting_of_the_model(
    setting: Any, given: str, expected: list[str]
) -> None:
    item = called("gemini", Call(given, "look", "{}"))
    request = to_gemini(asked(UserItem("Look"), item, *results(item)), call_ids=setting)
    assert [label for label, _ in wire_results("gemini", request)] == expected
    call = request["contents"][1]["parts"][0]["functionCall"]
    assert [call.get("id", "")] == expected


def test_a_continued_answer_is_the_same_request_with_its_token() -> None:
    answer = {
        "candidates": [
            {
                "content": {"parts": [{"text": "One"}]},
                "finishReason": "CONTINUATION",
                "continuationToken": "t1",
            }
        ]
    }
    item = answered("gemini", answer)
    request = to_gemini(asked(UserItem("Count"), item))
    assert request["continuationToken"] == "t1"
    assert [content["role"] for content in request["contents"]] == ["user"]
    later = to_gemini(asked(UserItem("Count"), item, AssistantItem("two"), UserItem("On")))
    assert "continuationToken" not in later
    assert [content["role"] for content in later["contents"]] == ["user", "model", "user"]


def test_a_stored_interaction_is_named_and_what_came_since_goes_along() -> None:
    item = called("gemini_interactions", Call("a", "look", "{}"))
    items: list[Item] = [UserItem("Look"), item, *results(item), UserItem("And?")]
    kept = to_interactions(asked(*items), store=True)
    assert kept["previous_interaction_id"] == "r1"
    assert [step["type"] for step in kept["input"]] == ["user_input", "user_input"]
    whole = to_interactions(asked(*items))
    assert "previous_interaction_id" not in whole
    assert [step["type"] for step in whole["input"]] == [
        "user_input", "function_call", "function_result", "user_input",
    ]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_the_providers_own_tools_go_along_only_where_the_run_declares_them(family: str) -> None:
    definition = {"type": "search_20990101", "name": "search"}
    hosted = json.dumps({"search": definition}).encode()
    encode: Any = FAMILIES[family]
    assert "search_20990101" not in json.dumps(encode(asked(UserItem("x"), tools=(LOOK,)), hosted=hosted))
    with_it = encode(asked(UserItem("x"), tools=(LOOK,), hosted=("search",)), hosted=hosted)
    assert with_it["tools"][-1] == definition


def test_parallel_calls_are_switched_off_in_each_familys_way() -> None:
    request = asked(UserItem("x"), tools=(LOOK,))
    assert to_responses(request, parallel_tool_calls=False)["parallel_tool_calls"] is False
    assert to_anthropic(request, parallel_tool_calls=False)["tool_choice"] == {
        "type": "auto",
        "disable_parallel_tool_use": True,
    }


def test_long_ids_go_back_whole() -> None:
    long = "call_" + "x" * 3_000
    for family, encode in FAMILIES.items():
        whole = called(family, Call(long, "look", "{}"))
        cut = AssistantItem("", (AssistantCall("c1.0", long[:256], "look", b"{}"),), whole.continuation)
        request = encode(asked(UserItem("x"), cut, *results(cut)))
        assert wire_results(family, request) == [(long, False)]
