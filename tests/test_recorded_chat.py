"""Every recorded exchange of Chat Completions and compatible servers that isn't a stream, where the recordings are there.

The expectations are columns of the recordings' index, computed by somebody else's parser. What differs from them here
differs on purpose, and is named.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from boundloop.adapters.openai_chat_decode import decode_answer
from boundloop.adapters.openai_chat_encode import ChatOptions, encode_request
from boundloop.runtime.model import (
    FINISH,
    AssistantCall,
    AssistantItem,
    FinishKind,
    Item,
    ModelInput,
    ResultItem,
    UserItem,
)

Row = dict[str, str]
FOLDER: Final = os.environ.get("BOUNDLOOP_RECORDED", "")
FAMILIES: Final = {"openai_chat", "chat_compat"}


def rows(*kinds: str) -> list[Row]:
    if not FOLDER:
        return []
    csv.field_size_limit(sys.maxsize)
    with open(Path(FOLDER, "index.tsv"), encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [
        row
        for row in table
        if row["family"] in FAMILIES and row["kind"] in kinds and not row["file"].endswith(".sse")
    ]


def body_of(row: Row) -> bytes:
    return Path(FOLDER, row["file"]).read_bytes()


def decoded(row: Row) -> Any:
    headers = json.loads(row["resp_headers"] or "{}")
    return decode_answer(int(row["http_status"]), headers, body_of(row), now_ms=0)


needs_recordings = pytest.mark.skipif(not FOLDER, reason="BOUNDLOOP_RECORDED names no recordings")


@needs_recordings
def test_the_recordings_are_as_many_as_they_were() -> None:
    assert len(rows("response")) >= 40
    assert len(rows("error")) >= 15
    assert len(rows("request")) >= 20


# --- answers --------------------------------------------------------------------------------------------------------


def finish_of(row: Row) -> FinishKind:
    """From the index alone: the calls say that there are calls, the finish value whether anything may follow."""
    if row["finish"] == "content_filter":
        return "filtered"
    if int(row["refusal"]):
        return "refused"
    if row["finish"] == "length":
        return "truncated"
    if int(row["n_calls"]):
        return "calls"
    return "final" if row["finish"] == "stop" else "unknown_finish"


@needs_recordings
@pytest.mark.parametrize("row", rows("response"), ids=lambda row: row["file"])
def test_answer(row: Row) -> None:
    turn = decoded(row)
    assert turn.finish == finish_of(row)
    assert turn.finish_raw == row["finish"]
    expected = json.loads(row["calls"])
    assert [(call.provider_call_id, call.name) for call in turn.calls] == [
        (call["id"] or "", call["name"]) for call in expected
    ]
    # One server left the arguments out: nothing is handed on as nothing, for the ladder to judge.
    assert [call.arguments.decode() for call in turn.calls] == [call["arguments"] or "" for call in expected]
    assert len(turn.text) == int(row["text_len"]) or turn.finish == "refused"
    assert turn.response_id == row["response_id"]
    assert turn.served_model == row["model"]
    assert (turn.continuation is not None) >= bool(int(row["signature"]))


@needs_recordings
@pytest.mark.parametrize("row", rows("response"), ids=lambda row: row["file"])
def test_usage(row: Row) -> None:
    usage, expected = decoded(row).usage, json.loads(row["usage"])
    output = expected["output"]
    if expected["total"]:
        output = max(output, expected["total"] - expected["input"])  # reasoning that one server leaves out
    assert usage.input_tokens == expected["input"]
    assert usage.output_tokens == output
    assert usage.cached_input_tokens == (expected["cached"] or 0)
    assert usage.reasoning_tokens == (expected["reasoning"] or 0)


@needs_recordings
@pytest.mark.parametrize("row", rows("response"), ids=lambda row: row["file"])
def test_an_answer_cut_anywhere_is_never_one(row: Row) -> None:
    body = body_of(row).rstrip()
    for end in range(0, len(body) - 1, max(1, len(body) // 97)):
        turn = decode_answer(200, {}, body[:end], now_ms=0)
        assert FINISH[turn.finish].retry
        assert not turn.calls


# --- errors ---------------------------------------------------------------------------------------------------------

ERRORS: Final = {
    "pyai-openrouter-errors-raised-t1": ("provider_error", "rate_limited", True),
    "pyai-tool-use-failed-error-with-text-t1": ("model_error", "tool_use_failed", True),
    "rig-auth-rejection-classifies-with-contract": ("provider_error", "unauthorized", False),
    "rig-blocking-error-carries-the-correlation-id": ("provider_error", "bad_request", False),
    "rig-blocking-ministral-3b": ("provider_error", "bad_request", False),
    "rig-error-matrix-context-overflow-blocking": ("context_exceeded", "context_exceeded", False),
    "rig-forced-tool-choice-under-thinking-is-rejected-upstream-t1": ("provider_error", "bad_request", False),
    "rig-invalid-temperature-blocking": ("provider_error", "bad_request", False),
    "rig-malformed-data-uri": ("provider_error", "bad_request", False),
    "rubyllm-chat-real-error-scenarios-azure-grok-4-1-fast-non-reasonin": (
        "provider_error",
        "rate_limited",
        True,
    ),
    "rubyllm-chat-real-error-scenarios-ollama-cloud-gpt-oss-120b-handle": (
        "context_exceeded",
        "context_exceeded",
        False,
    ),
    "rubyllm-chat-real-error-scenarios-openrouter-claude-haiku-4-5-hand": (
        "context_exceeded",
        "context_exceeded",
        False,
    ),
    "braintrust-openai-client-async-error": ("provider_error", "not_found", False),
    "ollm-prompt-content-filtering-t1": ("filtered", "content_filter", False),
    "pyai-openai-o1-mini-system-role-system": ("provider_error", "bad_request", False),
    "rig-chat-completions-validation-error-carries-identity": ("provider_error", "bad_request", False),
    "vercel-reasoning-model-legacy-parameter-error": ("provider_error", "bad_request", False),
}


@needs_recordings
@pytest.mark.parametrize("row", rows("error"), ids=lambda row: row["file"])
def test_error(row: Row) -> None:
    turn = decoded(row)
    finish, code, retryable = ERRORS[Path(row["file"]).stem]
    assert (turn.finish, turn.error_code, turn.retryable) == (finish, code, retryable)
    assert row["finish"].strip("|").endswith(turn.finish_raw)
    assert turn.calls == ()
    assert turn.safe_message.startswith("HTTP ")


# --- requests that were accepted --------------------------------------------------------------------------------------


@needs_recordings
@pytest.mark.parametrize("row", rows("request"), ids=lambda row: row["file"])
def test_an_accepted_history_is_written_as_it_was(row: Row) -> None:
    """The history of an accepted request goes through our items and comes out with the same calls, results and state."""
    recorded = json.loads(body_of(row))["messages"]
    ours = [
        message
        for message in json.loads(encode_request(ChatOptions(), as_input(recorded)))["messages"]
        if message["role"] in ("assistant", "tool")
    ]
    theirs = [message for message in recorded if message["role"] in ("assistant", "tool")]
    assert [message["role"] for message in ours] == [message["role"] for message in theirs]
    for written, accepted in zip(ours, theirs, strict=True):
        if accepted["role"] == "tool":
            assert written["tool_call_id"] == accepted["tool_call_id"]
            continue
        assert written["content"] == (accepted.get("content") or (None if accepted.get("tool_calls") else ""))
        for name in ("reasoning_content", "reasoning_details", "extra_content"):
            assert written.get(name) == accepted.get(name)
        assert [
            (call["id"], call["type"], call["function"]["name"], call["function"]["arguments"])
            for call in written.get("tool_calls", ())
        ] == [
            (call["id"], call["type"], call["function"]["name"], call["function"]["arguments"])
            for call in accepted.get("tool_calls") or ()
        ]


def as_input(recorded: list[dict[str, Any]]) -> ModelInput:
    """The items that such a history would be in a log: each assistant message decoded as an answer first."""
    items: list[Item] = []
    ids: dict[str, str] = {}
    for number, message in enumerate(recorded):
        if message["role"] == "user":
            items.append(UserItem(str(message["content"])))
        elif message["role"] == "assistant":
            finish = "tool_calls" if message.get("tool_calls") else "stop"
            answer = {"choices": [{"message": message, "finish_reason": finish}]}
            turn = decode_answer(200, {}, json.dumps(answer).encode(), now_ms=0)
            calls = tuple(
                AssistantCall(f"c{number}.{index}", call.provider_call_id, call.name, call.arguments)
                for index, call in enumerate(turn.calls)
            )
            ids = {call.provider_call_id: call.call_id for call in calls}
            items.append(AssistantItem(turn.text, calls, turn.continuation))
        elif message["role"] == "tool":
            call_id = ids[message["tool_call_id"]]
            items.append(ResultItem(call_id, message["tool_call_id"], "", False, b"{}"))
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
