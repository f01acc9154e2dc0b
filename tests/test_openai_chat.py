"""The Chat Completions adapter over real HTTP: what goes out, what comes back, and that its key goes nowhere else."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import threading
from typing import Any, Final

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.model_server import Heard, Listening, http, speaking
from tests.random_examples import examples

from boundloop.actors.model_spec import adapter_from
from boundloop.adapters import OpenAIChat
from boundloop.adapters.decoding import TurnDecoder
from boundloop.adapters.http_model import LOOP_BYTES_MAX
from boundloop.adapters.loopback_script import Fault, ServedScript, ServerScript
from boundloop.adapters.loopback_server import LoopbackServer
from boundloop.adapters.port import ModelAdapter
from boundloop.adapters.script import (
    ScriptedTurn,
    call,
    calls,
    cut,
    failed,
    filtered,
    lost,
    refused,
    say,
    unknown_finish,
)
from boundloop.adapters.scripted import ScriptedModel
from boundloop.adapters.secret import Secret, safe_text
from boundloop.runtime.errors import DeclarationError
from boundloop.runtime.model import ModelInput, ModelTurn, Usage, UserItem
from boundloop.runtime.prices import FREE

KEY: Final = "sk-test-1234567890abcdef"
ANSWER: Final = {
    "id": "r1",
    "model": "m1",
    "choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}],
}


def asked(turn: int = 1, attempt: int = 1, model: str = "m1") -> ModelInput:
    return ModelInput(
        run_id="run_1",
        turn=turn,
        attempt=attempt,
        model=model,
        system="",
        items=(UserItem("hello"),),
        tools=(),
        output_tokens_max=100,
        request_sha256=b"",
    )


def answered(data: bytes, **settings: Any) -> tuple[ModelTurn, Listening, OpenAIChat]:
    """What the adapter makes of a server that says this."""

    async def run() -> tuple[ModelTurn, Listening, OpenAIChat]:
        async def speak(heard: Heard) -> None:
            await heard.say(data)

        async with speaking(speak) as listening:
            model = OpenAIChat(model="m1", base_url=listening.url, **settings)
            turn = await model.request(asked(), timeout_ms=5_000)
            await model.close()
            return turn, listening, model

    return asyncio.run(run())


def as_json(body: Any, *headers: str, status: str = "200 OK") -> bytes:
    return http(json.dumps(body).encode(), "content-type: application/json", *headers, status=status)


def test_one_request() -> None:
    turn, listening, model = answered(
        as_json(ANSWER), api_key=KEY, extra={"temperature": 0}, headers={"X-Org": "o1"}
    )
    assert (turn.finish, turn.text, turn.served_model) == ("final", "hello", "m1")
    assert 0 <= turn.total_ms < 5_000
    head = listening.heard[0].head.lower()
    assert head.startswith("post /v1/chat/completions http/1.1")
    assert f"authorization: bearer {KEY}" in head
    assert "x-client-request-id: run_1/t1/a1" in head
    assert "x-org: o1" in head
    assert "accept-encoding: identity" in head
    body = json.loads(listening.heard[0].body)
    assert body["model"] == "m1"
    assert body["max_tokens"] == 100
    assert body["temperature"] == 0
    checked: ModelAdapter = model
    assert (checked.family, checked.model, checked.price) == ("openai_chat", "m1", None)


def test_the_wrong_content_type_is_no_matter_and_the_wrong_body_is() -> None:
    good = http(json.dumps(ANSWER).encode(), "content-type: text/plain")
    assert answered(good)[0].finish == "final"
    page = http(b"<html>hello</html>", "content-type: application/json")
    assert answered(page)[0].error_code == "not_json"


@pytest.mark.parametrize(("padding", "elsewhere"), [(0, False), (LOOP_BYTES_MAX + 1, True)])
def test_a_large_answer_is_read_beside_the_event_loop(
    padding: int, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    end = TurnDecoder.end

    def reading(decoder: TurnDecoder) -> ModelTurn:
        threads.append(threading.get_ident())
        return end(decoder)

    monkeypatch.setattr(TurnDecoder, "end", reading)
    assert answered(as_json({**ANSWER, "padding": "x" * padding}))[0].text == "hello"
    (thread,) = threads
    assert (thread != threading.get_ident()) is elsewhere


# --- who must act, and what stays secret ------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
def test_a_refused_key_names_where_it_came_from_and_not_itself(
    status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    echo = {"error": {"message": f"Incorrect API key provided: {KEY}. Or sk-abc***wxyz, Bearer {KEY}"}}
    turn, _, _ = answered(as_json(echo, status=status), api_key_env="MY_KEY")
    assert (turn.finish, turn.retryable, turn.usage) == ("provider_error", False, Usage(0, 0))
    assert "$MY_KEY" in turn.safe_message
    assert KEY not in turn.safe_message
    assert "wxyz" not in turn.safe_message


def test_a_key_that_is_missing_or_unusable_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    turn, listening, _ = answered(as_json(ANSWER), api_key_env="MY_KEY")
    assert (turn.error_code, turn.retryable) == ("api_key_missing", False)
    assert "MY_KEY" in turn.safe_message
    assert listening.heard == []
    monkeypatch.setenv("MY_KEY", "two\nlines")
    assert answered(as_json(ANSWER), api_key_env="MY_KEY")[0].error_code == "secret"


def test_the_client_writes_no_url_to_a_log_and_leaves_others_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    answered(as_json(ANSWER))

    async def by_hand() -> None:
        async def speak(heard: Heard) -> None:
            await heard.say(as_json(ANSWER))

        async with speaking(speak) as listening, httpx.AsyncClient() as client:
            model = OpenAIChat(model="m1", base_url=f"{listening.url}?key=PLAIN")
            await model.request(asked(), timeout_ms=5_000)
            await model.close()
            await client.post(listening.url)

    assert [record for record in caplog.records if record.name.startswith("http")] == []
    asyncio.run(by_hand())
    (own,) = [record for record in caplog.records if record.name.startswith("http")]
    assert "HTTP Request: POST" in own.getMessage()
    assert "PLAIN" not in own.getMessage()


def test_the_key_is_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    hidden = "hidden-header-value"
    turn, _, model = answered(
        as_json({"error": {"message": f"{KEY} {hidden}"}}, status="500 No"),
        api_key=KEY,
        headers={"api-key": hidden},
    )
    shown = repr(model) + str(model) + repr(vars(model)) + repr(turn)
    for secret in (KEY, hidden):
        assert secret not in shown
        assert secret not in "".join(
            str(vars(record)) for record in caplog.records if record.name.startswith("httpx")
        )
    assert repr(Secret(KEY)) == "Secret(…)"
    with pytest.raises(DeclarationError) as error:
        Secret("nö secret at all")
    assert "secret at all" not in str(error.value) + repr(error.value)


PLAIN: Final = "gatewaytoken0123456789abcdefghijklmnopqrstuvwxyz"
"""A key that no pattern knows."""


@pytest.mark.parametrize("key", [KEY, PLAIN, "Word " * 1_500 + "end"])
@given(st.integers(0, 70_000), st.integers(0, 20), st.integers(0, 600))
@settings(max_examples=examples(60), deadline=None)
def test_no_part_of_a_secret_is_left_wherever_a_text_is_cut(
    key: str, before: int, copies: int, chars_max: int
) -> None:
    shown = safe_text(
        "x" * before + key * copies + "y" * 70_000, chars_max, [Secret("other-secret"), Secret(key)]
    )
    assert key[:8] not in shown
    assert len(shown) <= chars_max


def test_a_secret_that_holds_another_goes_whole() -> None:
    secrets = [Secret("gateway"), Secret("gateway-long-tail"), Secret("long-tail-x")]
    assert safe_text("a gateway-long-tail b gateway", 100, secrets) == "a [key] b [key]"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("key AIzaSyA1234567890_abcdefghijklmnop.", "key [key]."),
        ("?key=AIzaSyA1234567890-abcdefghijklmnop&x", "?key=[key]&x"),
        ("bearer\x00abcdef", "[key]"),
        ("Authorization: Bearer abc.def", "Authorization: [key]"),
        ("wrong sk-abc***wxyz given", "wrong [key] given"),
        ("task_running, disk-usage, invalid_api_key", "task_running, disk-usage, invalid_api_key"),
        ("AIza is short", "AIza is short"),
    ],
)
def test_what_looks_like_a_key_is_taken_out_and_plain_words_are_not(text: str, shown: str) -> None:
    assert safe_text(text, 100) == shown


LABELS: Final = 250


@pytest.mark.parametrize("pad", [0, LABELS - 130, LABELS - 20, LABELS, 500])
@pytest.mark.parametrize("status", ["200 OK", "400 Bad Request", "401 Unauthorized", "429 Slow"])
def test_nothing_that_a_server_writes_back_puts_a_part_of_a_secret_on_record(status: str, pad: int) -> None:
    echo = "x" * pad + " " + PLAIN
    call = {"id": echo, "type": "function", "function": {"name": echo, "arguments": "{}"}}
    choice = {"finish_reason": "tool_calls", "message": {"tool_calls": [call]}}
    bodies: list[dict[str, Any]] = [
        {"error": {"message": echo, "type": echo, "code": echo}, "id": echo, "model": echo},
        {"error": echo},
        {"detail": echo},
        {"choices": [choice], "id": echo, "model": echo},
        {"choices": [{**choice, "finish_reason": echo}], "id": echo, "model": echo},
    ]
    for body in bodies:
        turn, _, _ = answered(
            as_json(body, f"x-request-id: {echo}", status=status), api_key=KEY, headers={"api-key": PLAIN}
        )
        assert PLAIN[:8] not in repr(turn)


def test_the_query_of_a_base_url_is_a_secret_too() -> None:
    key = "AIzaSy1234567890"  # too short for the pattern

    async def run() -> tuple[ModelTurn, OpenAIChat]:
        async def speak(heard: Heard) -> None:
            path = heard.head.split(" ")[1]
            assert f"key={key}" in path
            await heard.say(as_json({"error": {"message": f"not found: {path}"}}, status="404 No"))

        async with speaking(speak) as listening:
            model = OpenAIChat(model="m1", base_url=f"{listening.url}?api-version=2024-10-21&key={key}")
            turn = await model.request(asked(), timeout_ms=5_000)
            await model.close()
            return turn, model

    turn, model = asyncio.run(run())
    assert "2024-10-21" in turn.safe_message
    for shown in (
        repr(turn),
        repr(model),
        str(model),
        repr(vars(model)),
        repr(pickle.loads(pickle.dumps(model))),
    ):
        assert key not in shown
    assert "127.0.0.1" in repr(model)


def test_a_copy_works_and_shares_nothing() -> None:
    _, _, model = answered(as_json(ANSWER), api_key=KEY, price=FREE)
    copy: OpenAIChat = pickle.loads(pickle.dumps(model))
    assert (copy.model, copy.price, copy.revision, repr(copy)) == (
        model.model,
        FREE,
        model.revision,
        repr(model),
    )
    named = OpenAIChat(model="m1", api_key_env="MY_KEY")
    assert b"MY_KEY" in pickle.dumps(named)


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"model": ""},
        {"model": "a\nb"},
        {"base_url": "ftp://x/v1"},
        {"base_url": "http://"},
        {"base_url": "http://user:pass@127.0.0.1/v1"},
        {"base_url": "http://127.0.0.1:99999/v1"},
        {"base_url": "http://127.0.0.1/v1#x"},
        {"base_url": "http://ex ample/v1"},
        {"base_url": "http://model.example/v1", "api_key": KEY},
        {"base_url": "http://model.example/v1", "headers": {"api-key": KEY}},
        {"api_key": KEY, "api_key_env": "X"},
        {"api_key": "a\r\nb"},
        {"api_key": ""},
        {"extra": {"messages": []}},
        {"extra": {"stream": True}},
        {"extra": {"temperature": float("nan")}},
        {"headers": {"Content-Length": "1"}},
        {"headers": {"x y": "1"}},
        {"headers": {"x": "1\r\ny: 2"}},
        {"connections_max": 0},
    ],
)
def test_settings_that_cannot_be_meant(settings: dict[str, Any]) -> None:
    given: dict[str, Any] = {"model": "m1", **settings}
    with pytest.raises(DeclarationError) as error:
        OpenAIChat(**given)
    assert KEY not in str(error.value)


def test_settings_by_address() -> None:
    own, other = OpenAIChat(model="m"), OpenAIChat(model="m", base_url="https://model.example/v1")
    assert own.revision != other.revision
    same = OpenAIChat(
        model="m",
        base_url="https://model.example/v1",
        output_limit_field="max_completion_tokens",
        strict=True,
    )
    assert same.revision == own.revision
    OpenAIChat(model="m", base_url="http://model.example/v1", api_key=KEY, insecure_http=True)
    OpenAIChat(model="m", base_url="http://[::1]:8000/v1", api_key=KEY)


def test_the_query_of_a_base_url_stays_behind_the_path() -> None:
    async def run() -> str:
        async def speak(heard: Heard) -> None:
            await heard.say(as_json(ANSWER))

        async with speaking(speak) as listening:
            model = OpenAIChat(model="m1", base_url=f"{listening.url}/?api-version=1")
            await model.request(asked(), timeout_ms=5_000)
            await model.close()
            return listening.heard[0].head.split(" ")[1]

    assert asyncio.run(run()) == "/v1/chat/completions?api-version=1"


def test_specs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOUNDLOOP_API_KEY", raising=False)
    own = adapter_from("openai-chat:gpt-5-mini")
    assert (own.family, own.model) == ("openai_chat", "gpt-5-mini")
    assert "OPENAI_API_KEY" in str(vars(own))
    other = adapter_from("openai-chat:org/model@rev@http://model.example:8000/v1")
    assert other.model == "org/model@rev"
    assert "API_KEY" not in str(vars(other))
    monkeypatch.setenv("BOUNDLOOP_API_KEY", KEY)
    keyed = adapter_from("openai-chat:m@http://127.0.0.1:1/v1")
    assert "BOUNDLOOP_API_KEY" in str(vars(keyed))
    assert KEY not in str(vars(keyed))
    for spec in (
        "openai-chat:",
        "openai-chat",
        "openai-chat:m@http://u:p@h/v1",
        "other:x",
        "openai-chat:m@http://h/v1",
    ):
        with pytest.raises(DeclarationError):
            adapter_from(spec)


# --- one script, played in the process and over HTTP ------------------------------------------------------------------

SAYABLE: Final[list[ScriptedTurn]] = [
    say("hello é"),
    call("look", {"a": 1}, text="so:"),
    calls(call("look", id=""), call("look", id="x"), call("look", id="x", raw='{"a":1,"a":2}')),
    cut("hel"),
    cut(call("look", raw='{"a":')),
    refused("no"),
    filtered(),
    unknown_finish("odd", "hello"),
    say("x", usage=None),
    say("x", usage=Usage(7, 8, 3, 2)),
    failed("overloaded", retry_after_ms=1_500),
    failed("bad_request", retryable=False),
    lost("hello"),
    ScriptedTurn(finish="context_exceeded", usage=Usage(0, 0)),
]


@pytest.mark.parametrize("number", range(len(SAYABLE)))
def test_a_script_means_the_same_over_http(number: int) -> None:
    script = SAYABLE[number]

    async def run() -> tuple[ModelTurn, ModelTurn]:
        server = LoopbackServer(ServerScript(scripts=(ServedScript(turns=(script,)),)))
        model = OpenAIChat(model="m1", base_url=await server.start())
        over_http = await model.request(asked(), timeout_ms=5_000)
        direct = await ScriptedModel([script], model="m1").request(asked(), timeout_ms=5_000)
        await model.close()
        await server.close()
        return over_http, direct

    over_http, direct = asyncio.run(run())
    assert over_http.finish == direct.finish
    assert over_http.retryable == direct.retryable or over_http.finish == "context_exceeded"
    assert over_http.retry_after_ms == direct.retry_after_ms
    if over_http.finish in ("provider_error", "transport_broken", "context_exceeded"):
        return  # an error's words differ; what it means doesn't
    nothing = {"total_ms": 0, "error_code": "", "safe_message": "", "finish_raw": ""}
    assert msgspec.structs.replace(over_http, **nothing) == msgspec.structs.replace(direct, **nothing)


@pytest.mark.parametrize(
    ("kind", "finish", "code"),
    [
        ("status", "provider_error", "overloaded"),
        ("html", "provider_error", "server_error"),
        ("drop", "transport_broken", "connection_lost"),
        ("truncate", "transport_broken", "connection_lost"),
        ("drip", "transport_broken", "timeout"),
        ("slow_headers", "transport_broken", "timeout"),
        ("hang", "transport_broken", "timeout"),
    ],
)
def test_every_injected_fault_is_its_own_failure_and_the_next_attempt_is_well(
    kind: Any, finish: str, code: str
) -> None:
    async def run() -> tuple[ModelTurn, ModelTurn, int]:
        fault = Fault(kind=kind, attempts=(1,), drip_ms=20)
        server = LoopbackServer(ServerScript(scripts=(ServedScript(turns=(say("hello"),)),), faults=(fault,)))
        model = OpenAIChat(model="m1", base_url=await server.start())
        broken = await model.request(asked(), timeout_ms=300)
        whole = await model.request(asked(attempt=2), timeout_ms=5_000)
        await model.close()
        await server.close()
        return broken, whole, server.counts.total

    broken, whole, total = asyncio.run(run())
    assert (broken.finish, broken.error_code, broken.retryable) == (finish, code, True)
    assert (whole.finish, whole.text) == ("final", "hello")
    assert total == 2
