"""Whole runs against a mock server that others wrote, which breaks what it sends and judges how it was taken.

It is an optional group of the project (``pip install '.[llmock]'``); without it these tests skip.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from boundloop.actors import Runtime
from boundloop.adapters import AnthropicMessages, GeminiModel, HttpOptions, OpenAIChat, OpenAIResponses
from boundloop.adapters.port import ModelAdapter
from boundloop.runtime import Limits, tool
from boundloop.runtime.prices import FREE

ABSENT: Final = "the optional group llmock isn't installed"
chaos: Any = pytest.importorskip("llmock.chaos", reason=ABSENT)
scenarios: Any = pytest.importorskip("llmock.scenarios", reason=ABSENT)
serving: Any = pytest.importorskip("llmock.testing", reason=ABSENT)
judging: Any = pytest.importorskip("llmock.verdict", reason=ABSENT)
pytestmark = [pytest.mark.filterwarnings("ignore")]  # of the server's own parts

KEY: Final = "test-key"
FAMILIES: Final = ("openai_chat", "openai_responses", "anthropic", "gemini")
BEFORE: Final = "Let me look both of them up, the weather and the time, one beside the other."
"""Several events of a stream, so that what breaks after the first is in the middle of it."""

IDLE_MS: Final = 3_000
BETWEEN_MS: Final = 200
both = pytest.mark.parametrize("streamed", [True, False])
each = pytest.mark.parametrize("family", FAMILIES)


def model_of(family: str, server: Any, streamed: bool) -> ModelAdapter:
    http = HttpOptions(api_key=KEY, price=FREE, idle_ms=IDLE_MS)
    match family:
        case "openai_chat":
            url = server.base_url("openai")
            return OpenAIChat(
                model="gpt-4o", base_url=url, stream=streamed, api_key=KEY, price=FREE, idle_ms=IDLE_MS
            )
        case "openai_responses":
            return OpenAIResponses(
                model="gpt-4o", base_url=server.base_url("openai"), http=http, stream=streamed
            )
        case "anthropic":
            url = server.base_url("anthropic") + "/v1"
            return AnthropicMessages(model="claude-sonnet-4-5", base_url=url, http=http, stream=streamed)
        case _:
            url = server.base_url("gemini") + "/v1beta"
            return GeminiModel(model="gemini-2.5-flash", base_url=url, http=http, stream=streamed)


@tool(risk="read")
async def get_weather(city: str) -> dict[str, Any]:
    """Weather of a city."""
    return {"city": city, "sky": "clear"}


@tool(risk="read")
async def get_time(city: str) -> dict[str, Any]:
    """Time in a city."""
    return {"city": city, "time": "12:00"}


class Played:
    """One run against the server: how it ended, and what the server says of its client."""

    def __init__(
        self, family: str, streamed: bool, *behaviours: Any, broken: int = 0, between_ms: int = 0
    ) -> None:
        """``broken``: how many answers are used up by what breaks them. ``between_ms``: how long after a piece of a stream the server
        sends the next."""
        calls: Any = (
            scenarios.ToolCall("get_weather", {"city": "Paris"}),
            scenarios.ToolCall("get_time", {"city": "Paris"}),
        )
        with serving.LLMockServer() as server:
            server.state.stream_chaos = chaos.StreamChaos(chunk_delay_ms=between_ms)
            for behaviour in behaviours:
                server.state.scenarios.add(behaviour)
            server.state.scenarios.add(scenarios.Reply(text=BEFORE, tool_calls=calls, times=1 + broken))
            server.state.scenarios.add(scenarios.Reply(text="It is noon and clear."))
            model = model_of(family, server, streamed)
            with Runtime(store="memory://", model=model, tools=[get_weather, get_time]) as rt:
                self.result = rt.run_sync("What about Paris?", limits=Limits(cost="0.01"))
                self.calls = self.result.spent["tool_calls"]
                self.attempts = self.result.spent["model_attempts"]
            self.verdict: Any = judging.judge(server.state.journal.records())

    def assert_well(self, attempts: int) -> None:
        self.verdict.assert_ok(strict=True)
        assert (self.result.outcome, self.result.text) == ("completed", "It is noon and clear.")
        assert self.attempts == attempts


@both
@each
def test_a_loop_of_two_calls(family: str, streamed: bool) -> None:
    played = Played(family, streamed)
    played.assert_well(attempts=2)
    assert played.calls == 2


@both
@each
def test_a_rate_limit_is_waited_for(family: str, streamed: bool) -> None:
    Played(family, streamed, scenarios.Fail(429, retry_after=1.2)).assert_well(attempts=3)


@both
@each
@pytest.mark.parametrize("status", [500, 502, 503, 504, 529])
def test_a_server_that_fails_is_asked_again(family: str, streamed: bool, status: int) -> None:
    Played(family, streamed, scenarios.Fail(status)).assert_well(attempts=3)


@each
def test_an_outage_is_given_up_within_the_attempts_of_a_turn(family: str) -> None:
    played = Played(family, True, scenarios.Fail(503, times=None))
    played.verdict.assert_ok(strict=True)
    assert (played.result.outcome, played.result.reason) == ("failed", "model_failed")
    assert played.attempts == 3


@each
@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_what_no_further_attempt_mends_is_not_sent_again(family: str, status: int) -> None:
    played = Played(family, True, scenarios.Fail(status))
    played.verdict.assert_ok(strict=True)
    assert (played.result.outcome, played.attempts) == ("failed", 1)


@each
@pytest.mark.parametrize("kind", ["disconnect", "truncate", "malformed", "stall"])
def test_a_stream_that_breaks_is_no_answer_and_is_asked_for_again(family: str, kind: Any) -> None:
    fault = scenarios.StreamFault(kind, after_chunks=1, stall_seconds=30)
    # The server sees that its client left only if it has something left to send then.
    between_ms = BETWEEN_MS if kind == "malformed" else 0
    played = Played(family, True, fault, broken=1, between_ms=between_ms)
    played.assert_well(attempts=3)
    assert played.calls == 2


@both
@each
@pytest.mark.parametrize("kind", ["malformed_arguments", "unknown_tool"])
def test_a_broken_call_goes_back_to_the_model_and_runs_nothing(
    family: str, streamed: bool, kind: Any
) -> None:
    played = Played(family, streamed, scenarios.ToolFault(kind))
    played.verdict.assert_ok(strict=True)
    assert played.result.outcome == "completed"
