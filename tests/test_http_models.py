"""Models behind HTTP, one adapter a family: what is sent, what shows on the way, what becomes of streams that break, and whole runs."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
from tests.model_server import Heard, Listening, http, speaking
from tests.provider_streams import FAMILIES, Call, body, ended, frame, frames

from boundloop.actors import Runtime
from boundloop.adapters import AnthropicMessages, GeminiInteractions, GeminiModel, OpenAIChat, OpenAIResponses
from boundloop.adapters.answer_draft import CallSeen, TextSeen
from boundloop.adapters.http_model import HttpModel, HttpOptions
from boundloop.adapters.port import AttemptReset, CallPreparing, ModelAdapter, Progress, TextDelta
from boundloop.adapters.shown import Shown
from boundloop.runtime import Limits, tool
from boundloop.runtime.errors import DeclarationError
from boundloop.runtime.model import ModelInput, ModelTurn, UserItem
from boundloop.runtime.prices import FREE

KEY: Final = "sk-test-1234567890abcdef"
Speak = Callable[[Heard], Awaitable[None]]


def model_of(family: str, base_url: str, *, streamed: bool = True, **http_options: Any) -> HttpModel:
    options = HttpOptions(price=FREE, **http_options)
    match family:
        case "openai_responses":
            return OpenAIResponses(model="m1", base_url=base_url, http=options, stream=streamed)
        case "openai_chat":
            return OpenAIChat(model="m1", base_url=base_url, stream=streamed, price=FREE, **http_options)
        case "anthropic":
            return AnthropicMessages(model="m1", base_url=base_url, http=options, stream=streamed)
        case "gemini":
            return GeminiModel(model="m1", base_url=base_url, http=options, stream=streamed)
        case _:
            return GeminiInteractions(model="m1", base_url=base_url, http=options, stream=streamed)


def asked() -> ModelInput:
    return ModelInput(
        run_id="run_1",
        turn=3,
        attempt=2,
        model="m1",
        system="",
        items=(UserItem("hello"),),
        tools=(),
        output_tokens_max=100,
        request_sha256=b"",
    )


def answered(
    family: str, speak: Speak, *, timeout_ms: int = 5_000, streamed: bool = True, **http_options: Any
) -> tuple[ModelTurn, list[Progress], Listening]:
    """What the family's adapter makes of a server that speaks so, and what it showed."""
    seen: list[Progress] = []

    async def run() -> tuple[ModelTurn, list[Progress], Listening]:
        async with speaking(speak) as listening:
            model = model_of(family, listening.url, streamed=streamed, **http_options)
            turn = await model.request(asked(), timeout_ms=timeout_ms, progress=seen.append)
            await model.close()
            return turn, seen, listening

    return asyncio.run(run())


HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data) if data else b""


def says(*events: bytes, end: str = "whole") -> Speak:
    """Events in chunks that end in the middle of them; then the end, a cut, or nothing at all."""

    async def speak(heard: Heard) -> None:
        await heard.say(HEAD)
        for event in events:
            half = len(event) // 2
            await heard.say(chunk(event[:half]))
            await heard.say(chunk(event[half:]))
        if end == "whole":
            await heard.say(b"0\r\n\r\n")
        elif end == "cut":
            heard.cut()
        else:
            await heard.until_closed()

    return speak


def answer_of(family: str) -> list[bytes]:
    calls = [Call("id_1", "look", '{"at":"x"}'), Call("id_2", "look", "{}")]
    return frames(family, ended(family, "calls", text="Hm", calls=calls))


# --- one request ------------------------------------------------------------------------------------------------------

PATHS: Final = {
    "openai_responses": ("/v1/responses", "/v1/responses"),
    "openai_chat": ("/v1/chat/completions", "/v1/chat/completions"),
    "anthropic": ("/v1/messages", "/v1/messages"),
    "gemini": ("/v1/models/m1:streamGenerateContent?alt=sse", "/v1/models/m1:generateContent"),
    "gemini_interactions": ("/v1/interactions?alt=sse", "/v1/interactions"),
}
KEYS: Final = {
    "openai_responses": f"authorization: bearer {KEY}",
    "openai_chat": f"authorization: bearer {KEY}",
    "anthropic": f"x-api-key: {KEY}",
    "gemini": f"x-goog-api-key: {KEY}",
    "gemini_interactions": f"x-goog-api-key: {KEY}",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_streamed_request_shows_text_and_calls_by_name_and_ends_in_a_turn(family: str) -> None:
    turn, seen, listening = answered(family, says(*answer_of(family)), api_key=KEY)
    assert (turn.finish, turn.text, [call.name for call in turn.calls]) == ("calls", "Hm", ["look", "look"])
    assert 0 < turn.first_token_ms <= turn.total_ms
    assert [step for step in seen if isinstance(step, CallPreparing)] == [
        CallPreparing(3, 2, 0, "look"),
        CallPreparing(3, 2, 1, "look"),
    ]
    assert "".join(step.text for step in seen if isinstance(step, TextDelta)) == "Hm"
    head = listening.heard[0].head.lower()
    assert head.startswith(f"post {PATHS[family][0].lower()} http/1.1")
    assert KEYS[family] in head
    assert "x-client-request-id: run_1/t3/a2" in head
    asked_for = json.loads(listening.heard[0].body)
    assert asked_for.get("stream", family == "gemini") is True


@pytest.mark.parametrize("family", FAMILIES)
def test_a_request_without_a_stream_is_one_body(family: str) -> None:
    whole = http(body(family, ended(family, "final", text="Done.")))

    async def speak(heard: Heard) -> None:
        await heard.say(whole)

    turn, seen, listening = answered(family, speak, streamed=False)
    assert (turn.finish, turn.text, seen) == ("final", "Done.", [])
    assert listening.heard[0].head.lower().startswith(f"post {PATHS[family][1].lower()} http/1.1")
    assert not json.loads(listening.heard[0].body).get("stream")
    # A server that answers with a body where a stream was asked for is understood too.
    assert answered(family, speak)[0].text == "Done."


def test_the_version_of_the_messages_api_is_a_setting() -> None:
    async def speak(heard: Heard) -> None:
        await heard.say(http(body("anthropic", ended("anthropic", "final", text="Done."))))

    async def run() -> Listening:
        async with speaking(speak) as listening:
            for settings in ({}, {"version": "2026-10-21", "beta": ("one", "two")}):
                model = AnthropicMessages(model="m1", base_url=listening.url, **settings)  # type: ignore[arg-type]  # of two kinds
                await model.request(asked(), timeout_ms=5_000)
                await model.close()
            return listening

    heads = [heard.head.lower() for heard in asyncio.run(run()).heard]
    assert "anthropic-version: 2023-06-01" in heads[0]
    assert "anthropic-beta" not in heads[0]
    assert "anthropic-version: 2026-10-21" in heads[1]
    assert "anthropic-beta: one,two" in heads[1]


# --- streams that break -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stream_that_drops_in_the_middle_runs_nothing(family: str) -> None:
    events = answer_of(family)
    turn, _, _ = answered(family, says(*events[:-3], end="cut"))
    assert (turn.finish, turn.error_code, turn.calls) == ("transport_broken", "connection_lost", ())
    assert turn.retryable
    assert turn.usage is None


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stream_that_stalls_ends_at_the_deadline(family: str) -> None:
    events = answer_of(family)
    turn, _, _ = answered(family, says(*events[:-3], end="stall"), timeout_ms=300)
    assert (turn.finish, turn.error_code, turn.calls) == ("transport_broken", "timeout", ())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stream_that_falls_silent_is_given_up_before_the_deadline(family: str) -> None:
    events = answer_of(family)
    turn, _, _ = answered(family, says(*events[:-3], end="stall"), timeout_ms=60_000, idle_ms=200)
    assert (turn.finish, turn.error_code, turn.retryable) == ("transport_broken", "timeout", True)
    assert turn.total_ms < 30_000


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "gemini"])
def test_a_server_that_keeps_the_connection_open_behind_its_last_event_holds_nobody_up(family: str) -> None:
    turn, _, _ = answered(family, says(*answer_of(family), end="stall"), timeout_ms=20_000)
    assert turn.finish == "calls"
    assert turn.total_ms < 10_000


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stream_over_the_bound_is_cut_off(family: str) -> None:
    events = frames(family, ended(family, "final", text="x" * 20_000))
    turn, _, _ = answered(family, says(*events), response_bytes_max=5_000)
    assert (turn.finish, turn.error_code) == ("transport_broken", "response_too_large")


ERRORS: Final[dict[str, Any]] = {
    "openai_responses": {"error": {"type": "requests", "code": "rate_limit_exceeded", "message": f"{KEY}?"}},
    "openai_chat": {"error": {"type": "requests", "code": "rate_limit_exceeded", "message": f"{KEY}?"}},
    "anthropic": {"type": "error", "error": {"type": "rate_limit_error", "message": f"{KEY}?"}},
    "gemini": {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": f"{KEY}?"}},
    "gemini_interactions": {"event_type": "error", "error": {"code": 429, "message": f"{KEY}?"}},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_refusal_says_when_to_come_back_and_no_secret(family: str) -> None:
    async def speak(heard: Heard) -> None:
        headers = ("retry-after: 7", "request-id: req_9")
        await heard.say(http(json.dumps(ERRORS[family]).encode(), *headers, status="429 Too Many"))

    turn, _, _ = answered(family, speak, api_key=KEY)
    assert (turn.finish, turn.error_code, turn.retryable) == ("provider_error", "rate_limited", True)
    assert (turn.retry_after_ms, turn.response_id) == (7_000, "req_9")
    assert KEY not in turn.safe_message


@pytest.mark.parametrize("family", FAMILIES)
def test_an_error_in_a_stream_shows_no_secret(family: str) -> None:
    turn, _, _ = answered(family, says(answer_of(family)[0], frame(ERRORS[family], "error")), api_key=KEY)
    assert (turn.finish, turn.error_code) == ("provider_error", "rate_limited")
    assert KEY not in turn.safe_message


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_text_is_shown_twenty_times_a_second_at_most_and_calls_at_once() -> None:
    now = [0.0]
    seen: list[Progress] = []
    shown = Shown(asked(), seen.append, clock=lambda: now[0])
    for number in range(100):
        shown.show([TextSeen(f"{number} ")])
        now[0] += 0.01
    shown.show([CallSeen(0, "look")])
    shown.flush()
    texts = [step for step in seen if isinstance(step, TextDelta)]
    assert 19 <= len(texts) <= 22
    assert "".join(step.text for step in texts) == "".join(f"{number} " for number in range(100))
    assert [step.offset for step in texts] == [
        sum(len(one.text) for one in texts[:n]) for n in range(len(texts))
    ]
    assert seen[-1] == CallPreparing(3, 2, 0, "look")


def test_text_that_waits_is_shown_when_its_time_is_there_though_nothing_more_comes() -> None:
    """A server may stop for minutes in the middle of an answer, and what it wrote last is not to wait for what it writes next."""
    seen: list[Progress] = []
    now = [0.0]
    timers: list[tuple[float, Callable[[], None]]] = []
    cancelled: list[int] = []

    def later(delay_s: float, call: Callable[[], None]) -> Callable[[], None]:
        number = len(timers)
        timers.append((delay_s, call))
        return lambda: cancelled.append(number)

    shown = Shown(asked(), seen.append, clock=lambda: now[0], later=later)
    shown.show([TextSeen("a")])
    assert (seen, timers) == ([TextDelta(3, 2, 0, "a")], []), "the first at once"
    now[0] = 0.01
    shown.show([TextSeen("b")])
    shown.show([TextSeen("c")])
    ((delay_s, call),) = timers
    assert delay_s == pytest.approx(0.04)
    now[0] = 0.05
    call()
    assert seen[1:] == [TextDelta(3, 2, 1, "bc")]
    shown.show([TextSeen("d")])
    shown.flush()
    assert (seen[2:], cancelled) == ([TextDelta(3, 2, 3, "d")], [1]), (
        "a piece that goes anyway needs no timer"
    )
    shown.show([TextSeen("e")])
    shown.close()
    assert (len(seen), cancelled) == (3, [1, 2]), "an answer that nobody waits for any more shows nothing"


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_settings_that_cannot_be_meant_are_refused_and_adapters_pickle(family: str) -> None:
    model: ModelAdapter = model_of(family, "http://127.0.0.1:1/v1", api_key=KEY)
    assert (model.family, model.model) == (family, "m1")
    assert KEY not in repr(model)
    copy = pickle.loads(pickle.dumps(model))
    assert (copy.revision, copy.model) == (model.revision, model.model)
    for wrong in ("ftp://x", "http://u:p@x/v1", "http://example.org/v1"):
        with pytest.raises(DeclarationError) as refused:
            model_of(family, wrong, api_key=KEY)
        assert KEY not in str(refused.value)


def test_what_the_runtime_depends_on_is_no_further_field() -> None:
    with pytest.raises(DeclarationError):
        OpenAIResponses(model="m", extra={"previous_response_id": "r"})
    with pytest.raises(DeclarationError):
        AnthropicMessages(model="m", extra={"tool_choice": {"type": "any"}})
    with pytest.raises(DeclarationError):
        GeminiModel(model="m", extra={"generationConfig": {"candidateCount": 2}})
    with pytest.raises(DeclarationError):
        GeminiInteractions(model="m", extra={"generation_config": {"max_output_tokens": 2}})


def test_revisions_change_with_what_is_sent() -> None:
    one = AnthropicMessages(model="m").revision
    assert AnthropicMessages(model="m", version="2026-10-21").revision != one
    assert AnthropicMessages(model="m", stream=False).revision != one
    assert GeminiModel(model="m", stream=False).revision != GeminiModel(model="m").revision
    assert GeminiModel(model="gemini-3-pro").revision != GeminiModel(model="gemini-2.5-pro").revision


# --- whole runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_of_two_calls_and_an_answer_with_one_broken_attempt(family: str, streamed: bool) -> None:
    at: list[str] = []

    @tool(risk="read")
    async def look(where: str) -> dict[str, Any]:
        """Look somewhere."""
        at.append(where)
        return {"seen": where}

    calls = [Call("id_1", "look", '{"where":"a"}'), Call("id_2", "look", '{"where":"b"}')]
    first = ended(family, "calls", text="Hm", calls=calls)
    last = ended(family, "final", text="Both seen.")
    asked_for: list[dict[str, Any]] = []
    seen: list[Progress] = []

    async def speak(heard: Heard) -> None:
        asked_for.append(json.loads(heard.body))
        answer = last if '"seen"' in heard.body.decode().replace("\\", "") else first
        if len(asked_for) == 1:
            if streamed:
                await says(*frames(family, first)[:-3], end="cut")(heard)
            else:
                await heard.say(http(body(family, first), length=100_000))
                heard.cut()
        elif streamed:
            await says(*frames(family, answer))(heard)
        else:
            await heard.say(http(body(family, answer)))

    async def run() -> str:
        async with speaking(speak) as listening:
            model = model_of(family, listening.url, streamed=streamed)
            async with Runtime(store="memory://", model=model, tools=[look]) as rt:
                rt.watch_progress(lambda run_id, item: seen.append(item))
                result = await rt.aio.run("Look twice", limits=Limits(cost="0.01"))
            return f"{result.outcome}: {result.text}"

    assert asyncio.run(run()) == "completed: Both seen."
    assert sorted(at) == ["a", "b"]
    assert len(asked_for) == 3
    if streamed:
        assert AttemptReset(1, 1) in seen
        assert CallPreparing(1, 2, 1, "look") in seen
        assert all("where" not in repr(step) for step in seen)
