"""Histories that servers accepted: taken apart into our items and put together again they have the same shape.

Chat Completions has its own such test. What isn't compared is what others chose in ways that the facts leave open: names of result
members, text as a string or as a list of one part, and what was sent beside the history.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from tests.test_recorded_answers import FOLDER, Row, needs_recordings, rows

from boundloop.adapters.anthropic_encode import AnthropicOptions
from boundloop.adapters.anthropic_encode import encode_request as encode_anthropic
from boundloop.adapters.families import decode_answer
from boundloop.adapters.gemini_encode import GeminiOptions
from boundloop.adapters.gemini_encode import encode_request as encode_gemini
from boundloop.adapters.gemini_interactions_encode import InteractionsOptions
from boundloop.adapters.gemini_interactions_encode import encode_request as encode_interactions
from boundloop.adapters.openai_responses_encode import ResponsesOptions
from boundloop.adapters.openai_responses_encode import encode_request as encode_responses
from boundloop.runtime.model import AssistantCall, AssistantItem, Item, ModelInput, ResultItem, UserItem


def of(family: str) -> list[Row]:
    return [row for row in rows("request") if row["family"] == family]


def body_of(row: Row) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(Path(FOLDER, row["file"]).read_bytes())
    return body


def asked(items: list[Item]) -> ModelInput:
    return ModelInput(
        run_id="r",
        turn=1,
        attempt=1,
        model="m",
        system="",
        items=items,
        tools=(),
        output_tokens_max=10,
        request_sha256=b"",
    )


class Taken:
    """Items as a log would have them, made from what a server was sent."""

    def __init__(self, family: str) -> None:
        self.family = family
        self.items: list[Item] = []
        self.calls: list[AssistantCall] = []

    def user(self, text: str) -> None:
        self.items.append(UserItem(text))

    def answer(self, body: dict[str, Any]) -> None:
        turn = decode_answer(self.family, 200, {}, json.dumps(body).encode(), now_ms=0)
        assert turn.finish in ("calls", "final")
        assert turn.continuation is not None
        number = len(self.items)
        self.calls = [
            AssistantCall(f"c{number}.{index}", call.provider_call_id, call.name, call.arguments)
            for index, call in enumerate(turn.calls)
        ]
        self.items.append(AssistantItem(turn.text, tuple(self.calls), turn.continuation))

    def result(self, call: AssistantCall, *, is_error: bool, content: Any = "x") -> None:
        self.items.append(
            ResultItem(call.call_id, call.provider_call_id, call.name, is_error, json.dumps(content).encode())
        )


def plain(content: Any) -> Any:
    """Text as a string and as a list of one part are the same."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return content
    return "".join(part.get("text", "") for part in cast("list[dict[str, str]]", content))


@needs_recordings
def test_the_accepted_requests_are_as_many_as_they_were() -> None:
    counts = {family: len(of(family)) for family in ("openai_responses", "anthropic", "gemini")}
    assert counts == {"openai_responses": 13, "anthropic": 15, "gemini": 9}
    assert len(of("gemini_interactions")) == 2


@needs_recordings
@pytest.mark.parametrize("row", of("openai_responses"), ids=lambda row: row["file"])
def test_responses(row: Row) -> None:
    body = body_of(row)
    taken = Taken("openai_responses")
    output: list[dict[str, Any]] = []
    theirs = [item for item in body["input"] if item.get("role") not in ("system", "developer")]

    def settle() -> None:
        if output:
            taken.answer({"id": "r", "status": "completed", "output": output})
            output.clear()

    for item in theirs:
        if item.get("type") == "function_call_output":
            settle()
            (call,) = [call for call in taken.calls if call.provider_call_id == item["call_id"]] or [
                # Behind a stored answer only the results are sent: its calls are in no request.
                AssistantCall(item["call_id"], item["call_id"], "", b"{}")
            ]
            taken.result(call, is_error=False)
        elif item.get("role") == "user":
            settle()
            taken.user(plain(item["content"]))
        else:
            output.append({"type": "message", **item} if item.get("role") == "assistant" else item)
    settle()
    if body.get("previous_response_id"):
        # That rests on state that the provider keeps, and nothing here does: the whole history goes instead.
        assert [item["type"] for item in theirs] == ["function_call_output"] * 2
        return
    options = ResponsesOptions(encrypted_reasoning=False)
    ours = json.loads(encode_responses(options, asked(taken.items)))["input"]
    assert len(ours) == len(theirs)
    for written, accepted in zip(ours, theirs, strict=True):
        if accepted.get("type") == "function_call_output":
            assert (written["type"], written["call_id"]) == (accepted["type"], accepted["call_id"])
        elif accepted.get("role") == "user":
            assert plain(written["content"]) == plain(accepted["content"])
        elif accepted.get("type") in ("reasoning", "function_call"):
            assert written == accepted
        else:
            assert plain(written["content"]) == plain(accepted["content"])


@needs_recordings
@pytest.mark.parametrize("row", of("anthropic"), ids=lambda row: row["file"])
def test_anthropic(row: Row) -> None:
    theirs = body_of(row)["messages"]
    taken = Taken("anthropic")
    for message in theirs:
        content: Any = message["content"]
        blocks: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if message["role"] == "assistant":
            uses = any(block["type"] == "tool_use" for block in blocks)
            taken.answer({"id": "r", "content": blocks, "stop_reason": "tool_use" if uses else "end_turn"})
            continue
        for block in blocks:
            if block["type"] == "tool_result":
                (call,) = [call for call in taken.calls if call.provider_call_id == block["tool_use_id"]]
                taken.result(call, is_error=bool(block.get("is_error")))
            else:
                taken.user(block["text"])
    ours = json.loads(encode_anthropic(AnthropicOptions(), asked(taken.items)))["messages"]
    assert [message["role"] for message in ours] == [message["role"] for message in theirs]
    for written, accepted in zip(ours, theirs, strict=True):
        if accepted["role"] == "assistant":
            assert written["content"] == [without(block, "cache_control") for block in accepted["content"]]
            continue
        accepted_blocks = accepted["content"]
        if isinstance(accepted_blocks, str):
            assert plain(written["content"]) == accepted_blocks
            continue
        assert [
            (block["type"], block.get("tool_use_id"), bool(block.get("is_error")), block.get("text"))
            for block in written["content"]
        ] == [
            (block["type"], block.get("tool_use_id"), bool(block.get("is_error")), block.get("text"))
            for block in accepted_blocks
        ]


def without(block: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key != name}


@needs_recordings
@pytest.mark.parametrize("row", of("gemini"), ids=lambda row: row["file"])
def test_gemini(row: Row) -> None:
    theirs = body_of(row)["contents"]
    taken = Taken("gemini")
    for content in theirs:
        if content["role"] == "model":
            taken.answer({"candidates": [{"content": content, "finishReason": "STOP"}]})
            continue
        left = list(taken.calls)
        for part in content["parts"]:
            if "functionResponse" in part:
                response = part["functionResponse"]["response"]
                taken.result(left.pop(0), is_error="error" in response)
            elif "text" in part:
                taken.user(part["text"])
    ours = json.loads(encode_gemini(GeminiOptions(), asked(taken.items)))["contents"]
    assert [content["role"] for content in ours] == [content["role"] for content in theirs]
    for written, accepted in zip(ours, theirs, strict=True):
        if accepted["role"] == "model":
            assert written["parts"] == accepted["parts"]
            continue
        for one, other in zip(written["parts"], accepted["parts"], strict=False):
            if "functionResponse" not in other:
                assert one == other
                continue
            response = other["functionResponse"]
            assert one["functionResponse"]["name"] == response["name"]
            assert one["functionResponse"].get("id") == response.get("id")
            assert ("error" in one["functionResponse"]["response"]) == ("error" in response["response"])


@needs_recordings
@pytest.mark.parametrize("row", of("gemini_interactions"), ids=lambda row: row["file"])
def test_interactions(row: Row) -> None:
    body = body_of(row)
    (step,) = body["input"]
    (result,) = step["content"]
    taken = Taken("gemini_interactions")
    taken.user("before")
    call: Any = {"type": "function_call", "id": result["call_id"], "name": result["name"], "arguments": {}}
    known = {"id": body["previous_interaction_id"], "status": "requires_action"}
    taken.answer({**known, "steps": [{"type": "thought", "signature": "s"}, call]})
    taken.result(taken.calls[0], is_error=False, content=result["result"])
    ours = json.loads(encode_interactions(InteractionsOptions(store=True, stream=False), asked(taken.items)))
    assert ours["input"] == body["input"]
    assert ours["previous_interaction_id"] == body["previous_interaction_id"]
    assert ours["stream"] == body["stream"]
