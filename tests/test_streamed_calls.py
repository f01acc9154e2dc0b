"""Calls in streams as each family writes them, made up here: mixed, in any chunks, cut, garbled, and long.

A call is never run before its API's own last event, never when anything says that it was cut, and it costs its length.
"""

from __future__ import annotations

import json
import random
from typing import Any, Final

import pytest
from tests.provider_streams import FAMILIES, Answer, Call, body, ended, frame, frames, stream

from boundloop.adapters.answer_draft import CallSeen, Exchange, Sign, TextSeen
from boundloop.adapters.families import decode_answer, decoder_of
from boundloop.adapters.http_failure import HttpFailed
from boundloop.runtime.model import FINISH, ModelTurn, Usage

HOSTILE_TEXTS: Final = (
    '}{][":,\\',
    'a "quoted" \\"text\\" with \\\\ and \\n',
    '{"not": ["an", {"object": "\\u0041"}]}',
    "line\nfeed\r\n\ttab\u2028\u2029",
    "data: [DONE]\n\nevent: message_stop\n\n",
    "😀 é 漢字 \u0000",
    "",
)
CUT: Final = HttpFailed("connection_lost", "the answer broke off")


def decoded(family: str, data: bytes) -> ModelTurn:
    return decode_answer(family, 200, {}, data, now_ms=0)


def chunked(family: str, data: bytes, rng: random.Random) -> tuple[ModelTurn, list[Sign]]:
    one = decoder_of(family, Exchange())
    place, signs = 0, list[Sign]()
    while place < len(data):
        size = rng.choice((1, 2, 5, 40, 400))
        signs += one.feed(data[place : place + size])
        place += size
    return one.end(), signs


def made_up(rng: random.Random, count: int) -> tuple[Call, ...]:
    calls: list[Call] = []
    for number in range(count):
        arguments: dict[str, Any] = {
            rng.choice(("text", "b.c", "key's", "[0]", 'q"')): rng.choice(HOSTILE_TEXTS),
            "list": [rng.choice(HOSTILE_TEXTS), number, None, True, {"deep": [[1.5], [rng.random()]]}],
        }
        calls.append(Call(f"id_{number}", rng.choice(("look", "write")), json.dumps(arguments)))
    return tuple(calls)


def said(turn: ModelTurn) -> list[tuple[str, str, Any]]:
    return [(call.provider_call_id, call.name, json.loads(call.arguments or b"{}")) for call in turn.calls]


def meant(calls: tuple[Call, ...]) -> list[tuple[str, str, Any]]:
    return [(call.id, call.name, json.loads(call.arguments or "{}")) for call in calls]


# --- the same, however it comes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", range(2, 9))
@pytest.mark.parametrize("family", FAMILIES)
def test_calls_that_are_mixed_in_a_stream_are_told_apart(family: str, count: int) -> None:
    for seed in range(6):
        rng = random.Random(f"{family}{count}{seed}")
        calls = made_up(rng, count)
        data = stream(family, ended(family, "calls", text="Let me see: {", calls=calls), rng=rng)
        turn, signs = chunked(family, data, rng)
        assert (turn.finish, turn.text) == ("calls", "Let me see: {")
        assert said(turn) == meant(calls)
        assert turn.usage == Usage(10, 5)
        assert (turn.response_id, turn.served_model) == ("r1", "m1")
        assert "".join(sign.text for sign in signs if isinstance(sign, TextSeen)) == turn.text
        assert [sign for sign in signs if isinstance(sign, CallSeen)] == [
            CallSeen(number, call.name) for number, call in enumerate(calls)
        ]
        assert turn == decoded(family, data)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_body_and_a_stream_of_one_answer_are_one_turn(family: str) -> None:
    calls = made_up(random.Random(family), 3)
    for answer in (
        ended(family, "calls", text="So:", calls=calls),
        ended(family, "final", text="Done."),
        ended(family, "truncated", text="Do"),
    ):
        whole, streamed = decoded(family, body(family, answer)), decoded(family, stream(family, answer))
        assert said(whole) == said(streamed)
        for name in ("finish", "finish_raw", "text", "usage", "response_id", "served_model", "hosted"):
            assert getattr(whole, name) == getattr(streamed, name)
        if whole.continuation is not None:
            kept = [json.loads(turn.continuation or b"") for turn in (whole, streamed)]
            assert kept[0].keys() == kept[1].keys()


@pytest.mark.parametrize("written", ["", "{}"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_without_arguments(family: str, written: str) -> None:
    for answer in (body, stream):
        data = answer(family, ended(family, "calls", calls=[Call("a", "look", written)]))
        turn = decoded(family, data)
        assert turn.finish == "calls"
        assert said(turn) == [("a", "look", {})]


# --- never before the end, never when cut -----------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stream_cut_anywhere_runs_nothing_and_ends_nothing(family: str) -> None:
    for answer in (
        ended(family, "calls", text="Hm", calls=[Call("a", "look", '{"at":"}]"}')]),
        ended(family, "final", text="It is done."),
    ):
        data = stream(family, answer)
        place = 0
        while not FINISH[(turn := decoded(family, data[:place])).finish].executable:
            if FINISH[turn.finish].final:
                break
            assert turn.finish == "transport_broken"
            assert turn.calls == ()
            assert turn.retryable
            place += 1
        one = decoder_of(family, Exchange())
        one.feed(data[:place] + b"\n\n")
        assert one.ended


@pytest.mark.parametrize("family", FAMILIES)
def test_a_connection_that_breaks_before_the_last_event_is_a_broken_transport(family: str) -> None:
    events = frames(family, ended(family, "calls", calls=[Call("a", "look", "{}")]))
    for kept in range(len(events)):
        one = decoder_of(family, Exchange(headers={"x-request-id": "req_1"}))
        one.feed(b"".join(events[:kept]))
        if one.ended:
            continue
        turn = one.broke(CUT)
        assert (turn.finish, turn.error_code, turn.usage, turn.calls) == (
            "transport_broken",
            "connection_lost",
            None,
            (),
        )
        assert turn.response_id in ("r1", "req_1")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_truncated_call_is_shown_and_not_run(family: str) -> None:
    arguments = '{"amount": 1' if family not in ("gemini",) else '{"amount": 1}'
    answer = ended(family, "truncated", calls=[Call("a", "pay", arguments)])
    turn = decoded(family, stream(family, answer))
    assert turn.finish == "truncated"
    assert not FINISH[turn.finish].executable


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("native", ["", "eos", "finished", "STOPPED", "complete"])
def test_an_end_that_nobody_knows_is_no_end(family: str, native: str) -> None:
    for calls in ((), (Call("a", "look", "{}"),)):
        if family == "openai_responses":
            data = body(family, Answer("Hm", calls, native))
        else:
            data = stream(family, Answer("Hm", calls, native))
        turn = decoded(family, data)
        assert turn.finish in ("unknown_finish", "transport_broken")
        assert turn.continuation is None


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "garbled", [b"data: {\n\n", b"data: 7\n\n", b"data: [1]\n\n", b'data: {"a":1}{}\n\n']
)
def test_a_chunk_that_cannot_be_read_breaks_the_stream(family: str, garbled: bytes) -> None:
    events = frames(family, ended(family, "calls", calls=[Call("a", "look", "{}")]))
    for place in range(1, len(events)):
        data = b"".join([*events[:place], garbled, *events[place:]])
        turn = decoded(family, data)
        assert (turn.finish, turn.error_code, turn.calls) == ("transport_broken", "bad_chunk", ())


@pytest.mark.parametrize(
    ("family", "error"),
    [
        ("openai_responses", {"type": "error", "code": "server_error", "message": "no"}),
        ("openai_responses", {"type": "error", "error": {"code": "server_error", "message": "no"}}),
        ("openai_chat", {"error": {"message": "no", "code": 502}}),
        ("anthropic", {"type": "error", "error": {"type": "overloaded_error", "message": "no"}}),
        ("gemini", {"error": {"code": 503, "status": "UNAVAILABLE", "message": "no"}}),
        ("gemini_interactions", {"event_type": "error", "error": {"code": "x", "message": "no"}}),
    ],
)
def test_an_error_in_the_middle_of_a_stream_is_the_answer(family: str, error: Any) -> None:
    events = frames(family, ended(family, "calls", calls=[Call("a", "look", "{}")]))
    for place in range(1, len(events)):
        turn = decoded(family, b"".join(events[:place]) + frame(error, "error"))
        assert turn.finish == "provider_error"
        assert turn.retryable
        assert turn.calls == ()
        assert turn.safe_message.endswith("no")


def test_an_error_body_in_a_streams_place_is_read() -> None:
    error = json.dumps(
        {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "slower"}}, indent=2
    )
    events = frames("gemini", ended("gemini", "calls", calls=[Call("a", "look", "{}")]))
    turn = decoded("gemini", events[0] + error.encode())
    assert (turn.finish, turn.error_code) == ("provider_error", "rate_limited")


def test_a_block_that_was_never_stopped_is_no_whole_call() -> None:
    events = frames("anthropic", ended("anthropic", "calls", calls=[Call("a", "look", "{}")]))
    kept = [event for event in events if b"content_block_stop" not in event]
    turn = decoded("anthropic", b"".join(kept))
    assert (turn.finish, turn.error_code) == ("model_error", "call_incomplete")


def test_a_step_that_was_never_stopped_is_no_whole_call() -> None:
    answer = ended("gemini_interactions", "calls", calls=[Call("a", "look", "{}")])
    kept = [event for event in frames("gemini_interactions", answer) if b"step.stop" not in event]
    turn = decoded("gemini_interactions", b"".join(kept))
    assert (turn.finish, turn.error_code) == ("model_error", "call_incomplete")


def test_an_item_that_was_never_done_is_no_whole_call() -> None:
    answer = ended("openai_responses", "calls", calls=[Call("a", "look", "{}")])
    events = [event for event in frames("openai_responses", answer) if b"output_item.done" not in event]
    last = frame({"type": "response.completed", "response": {"id": "r1", "status": "completed"}})
    turn = decoded("openai_responses", b"".join([*events[:-1], last]))
    assert (turn.finish, turn.error_code) == ("model_error", "call_incomplete")


def test_an_item_that_says_it_is_cut_is_no_whole_call() -> None:
    items = [
        {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}", "status": "incomplete"}
    ]
    data = json.dumps({"id": "r1", "status": "completed", "output": items}).encode()
    turn = decoded("openai_responses", data)
    assert (turn.finish, turn.error_code) == ("model_error", "call_incomplete")


def test_a_last_event_that_holds_another_call_than_the_stream_is_believed_in_neither() -> None:
    streamed = frames(
        "openai_responses", ended("openai_responses", "calls", calls=[Call("a", "pay", '{"n":1}')])
    )
    other = frames(
        "openai_responses", ended("openai_responses", "calls", calls=[Call("a", "pay", '{"n":9}')])
    )
    turn = decoded("openai_responses", b"".join([*streamed[:-1], other[-1]]))
    assert (turn.finish, turn.error_code, turn.calls) == ("provider_error", "answer_disagrees", ())


@pytest.mark.parametrize(
    "puts",
    [
        [{"jsonPath": "$.a", "stringValue": "1"}, {"jsonPath": "$.a", "stringValue": "2"}],
        [
            {"jsonPath": "$.a", "stringValue": "1", "willContinue": True},
            {"jsonPath": "$.b", "numberValue": 1},
        ],
        [{"jsonPath": "$.a[1]", "numberValue": 1}],
        [{"jsonPath": "$.a", "numberValue": 1}, {"jsonPath": "$.a.b", "numberValue": 1}],
        [{"jsonPath": "$"}],
        [{"jsonPath": "a", "numberValue": 1}],
        [{"jsonPath": "$..a", "numberValue": 1}],
        [{"jsonPath": "$.a"}],
        [{"jsonPath": "$" + ".a" * 100, "numberValue": 1}],
        [{"jsonPath": 7, "numberValue": 1}],
    ],
)
def test_arguments_that_come_in_no_order_are_none(puts: list[Any]) -> None:
    parts = [{"functionCall": {"name": "pay", "willContinue": True}}]
    parts += [{"functionCall": {"partialArgs": [put], "willContinue": True}} for put in puts]
    parts.append({"functionCall": {}})
    chunk = {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]}
    turn = decoded("gemini", frame(chunk))
    assert (turn.finish, turn.error_code, turn.calls) == ("model_error", "partial_arguments", ())


def test_a_text_that_was_to_go_on_at_the_stop_is_no_whole_argument() -> None:
    put = {"jsonPath": "$.a", "stringValue": "1", "willContinue": True}
    call = {"name": "pay", "willContinue": True, "partialArgs": [put]}
    chunk = {"candidates": [{"content": {"parts": [{"functionCall": call}]}, "finishReason": "STOP"}]}
    assert decoded("gemini", frame(chunk)).error_code == "call_incomplete"


# --- compatible servers of Chat Completions ---------------------------------------------------------------------------


def chat(*deltas: Any, finish: str | None = "tool_calls") -> ModelTurn:
    chunks = [frame({"choices": [{"index": 0, "delta": delta}]}) for delta in deltas]
    last = frame({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return decoded("openai_chat", b"".join([*chunks, last]) + b"data: [DONE]\n\n")


def piece(
    index: int | None = 0, id: str | None = None, name: str | None = None, arguments: Any = None
) -> Any:
    function: dict[str, Any] = {"arguments": arguments}
    if name is not None:
        function["name"] = name
    call: dict[str, Any] = {"function": function}
    if index is not None:
        call["index"] = index
    if id is not None:
        call["id"] = id
    return {"tool_calls": [call]}


LOOK: Final = ("a", "look", {"n": 1})
EMPTY: Final[Any] = ("a", "look", {})
SEE: Final = ("b", "see", {"n": 2})


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        pytest.param(
            [piece(None, "a", "look", '{"n":1}'), piece(None, "b", "see", '{"n":2}')],
            [LOOK, SEE],
            id="no index, whole calls",
        ),
        pytest.param(
            [piece(None, "a", "look", '{"n"'), piece(None, None, None, ":1}")],
            [LOOK],
            id="no index, in pieces",
        ),
        pytest.param(
            [piece(0, "a", "look", '{"n":1}'), piece(0, "b", "see", '{"n":2}')],
            [LOOK, SEE],
            id="index always 0",
        ),
        pytest.param(
            [piece(0, "", "look", '{"n":1}'), piece(0, "", "see", '{"n":2}')],
            [("", "look", {"n": 1}), ("", "see", {"n": 2})],
            id="index always 0 and no ids",
        ),
        pytest.param(
            [piece(1, "a", "look", ""), piece(1, None, None, '{"n":1}')], [LOOK], id="the first index is 1"
        ),
        pytest.param(
            [piece(0, "a", "look", '{"n"'), piece(0, "a", "look", ":1}")],
            [LOOK],
            id="id and name in each piece",
        ),
        pytest.param(
            [piece(0, "a", "look", '{"n"'), piece(0, "", None, ":1}")], [LOOK], id="an empty id later"
        ),
        pytest.param(
            [piece(0, "a", "look", '{"n"'), piece(0, "z", None, ":1}")], [LOOK], id="a new id in each piece"
        ),
        pytest.param([piece(0, "a", "look", None)], [EMPTY], id="arguments null"),
        pytest.param([piece(0, None, "look", '{"n":1}')], [("", "look", {"n": 1})], id="no id at all"),
        pytest.param([piece(0, "a", "look", {"n": 1})], [LOOK], id="arguments as an object"),
        pytest.param(
            [
                piece(0, "a", "look", '{"n"'),
                piece(1, "b", "see", '{"n"'),
                piece(0, None, None, ":1}"),
                piece(1, None, None, ":2}"),
            ],
            [LOOK, SEE],
            id="mixed",
        ),
        pytest.param(
            [
                {"function_call": {"name": "look", "arguments": '{"n"'}},
                {"function_call": {"arguments": ":1}"}},
            ],
            [("", "look", {"n": 1})],
            id="the legacy call",
        ),
        pytest.param(
            [piece(0, "a", "look", '{"n":1}') | {"function_call": {"name": "", "arguments": ""}}],
            [LOOK],
            id="an empty legacy call beside it",
        ),
        pytest.param([None, piece(0, "a", "look", '{"n":1}')], [LOOK], id="a delta that is null"),
    ],
)
def test_how_servers_write_pieces_of_calls(deltas: list[Any], expected: list[Any]) -> None:
    for finish in ("tool_calls", "stop", "function_call"):
        turn = chat(*deltas, finish=finish)
        assert turn.finish == "calls"
        assert said(turn) == expected


def test_a_stream_without_a_finish_value_is_no_answer() -> None:
    assert chat(piece(0, "a", "look", '{"n":1}'), finish=None).finish == "transport_broken"
    assert chat(piece(0, "a", "look", '{"n":1}'), finish="").finish == "transport_broken"


@pytest.mark.parametrize("order", [("tool_calls", "length"), ("length", "tool_calls")])
def test_of_two_finish_values_the_one_that_permits_less_counts(order: tuple[str, str]) -> None:
    chunks = [frame({"choices": [{"delta": piece(0, "a", "look", "{}"), "finish_reason": None}]})]
    chunks += [frame({"choices": [{"delta": {}, "finish_reason": finish}]}) for finish in order]
    assert decoded("openai_chat", b"".join(chunks)).finish == "truncated"


def test_calls_that_are_said_and_missing_are_the_models_mistake() -> None:
    assert chat({"content": "I call it now"}).error_code == "calls_missing"


def test_a_second_answer_in_a_stream_is_none() -> None:
    data = frame({"choices": [{"index": 1, "delta": {"content": "or"}, "finish_reason": "stop"}]})
    assert decoded("openai_chat", data).error_code == "several_choices"


def test_usage_may_come_with_a_choice_twice_or_not_at_all() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    last: dict[str, Any] = {"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]}
    assert decoded("openai_chat", frame(last)).usage is None
    assert decoded("openai_chat", frame({**last, "usage": usage})).usage == Usage(3, 2)
    twice = frame({**last, "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
    assert decoded("openai_chat", twice + frame({"choices": [], "usage": usage})).usage == Usage(3, 2)


def test_reasoning_in_pieces_goes_back_as_one() -> None:
    details = [
        {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "I "}]},
        {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "see", "signature": None}]},
        {"reasoning_details": [{"type": "reasoning.text", "index": 0, "signature": "s1"}]},
        {"reasoning_details": [{"type": "reasoning.encrypted", "index": 1, "data": "xyz"}]},
        {"reasoning_content": "I "},
        {"reasoning_content": "see"},
    ]
    turn = chat(*details, piece(0, "a", "look", "{}"))
    assert json.loads(turn.continuation or b"")["message"] == {
        "reasoning_content": "I see",
        "reasoning_details": [
            {"type": "reasoning.text", "index": 0, "text": "I see", "signature": "s1"},
            {"type": "reasoning.encrypted", "index": 1, "data": "xyz"},
        ],
    }


# --- what it costs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_megabyte_in_ten_thousand_fragments_costs_its_length(family: str) -> None:
    def long(fragments: int) -> bytes:
        text = "x" * 100
        if family == "gemini":
            opening = {"functionCall": {"name": "write", "willContinue": True}}
            put = {"jsonPath": "$.text", "stringValue": text, "willContinue": True}
            going = {"functionCall": {"partialArgs": [put], "willContinue": True}}
            end = {"jsonPath": "$.text", "stringValue": ""}
            closing = {"functionCall": {"partialArgs": [end]}}
            some = [opening, *[going] * fragments, closing]
            chunks = [frame({"candidates": [{"content": {"parts": [part]}}]}) for part in some]
            return b"".join(chunks) + frame({"candidates": [{"finishReason": "STOP"}]})
        arguments = '{"text":"' + text * fragments + '"}'
        events = frames(family, ended(family, "calls", calls=[Call("a", "write", arguments)]))
        place = next(number for number, event in enumerate(events) if text in event.decode())
        whole = events[place].decode()
        cut = '{\\"text\\":\\"' + text * fragments + '\\"}'
        written = ['{\\"text\\":\\"', *[text] * fragments, '\\"}']
        head, tail = whole.split(cut)
        events[place : place + 1] = [(head + one + tail).encode() for one in written]
        return b"".join(events)

    def work(fragments: int) -> tuple[int, int, int]:
        data = long(fragments)
        one = decoder_of(family, Exchange(), answer_bytes_max=len(data))
        for place in range(0, len(data), 1_000):
            one.feed(data[place : place + 1_000])
        turn = one.end()
        assert turn.finish == "calls"
        assert len(turn.calls[0].arguments) == len('{"text":""}') + 100 * fragments
        return len(data), one.work, one.frames

    bytes_of, looked_at, frames_of = work(10_000)
    assert bytes_of >= 1_000_000
    assert looked_at == bytes_of
    assert frames_of < 10_020
    half = work(5_000)
    assert abs(looked_at - 2 * half[1]) < 4_000


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_over_its_bound_is_not_kept(family: str) -> None:
    data = stream(family, ended(family, "final", text="x" * 10_000))
    for answer_bytes_max in (10, 1_000, 9_000):
        one = decoder_of(family, Exchange(), answer_bytes_max=answer_bytes_max)
        for place in range(0, len(data), 100):
            one.feed(data[place : place + 100])
        turn = one.end()
        assert (turn.finish, turn.error_code, turn.calls) == ("transport_broken", "response_too_large", ())
