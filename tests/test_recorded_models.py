"""Exchanges that are recorded and played again, and functions as models."""

from __future__ import annotations

import asyncio
import json
import stat
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.model_server import Heard, http, speaking
from tests.provider_streams import FAMILIES, Call, ended, frames
from tests.test_http_models import KEY, asked, model_of, says

from boundloop.actors import Runtime
from boundloop.actors.model_spec import adapter_from
from boundloop.adapters import CallableModel, RecordedModel
from boundloop.adapters.port import Progress, TextDelta
from boundloop.runtime import Limits, tool
from boundloop.runtime.errors import DeclarationError
from boundloop.runtime.model import ModelInput, ModelTurn, ProposedCall, Usage
from boundloop.runtime.prices import FREE

LIMITS = Limits(cost="0.01")


@tool(risk="read")
async def look(at: str) -> dict[str, Any]:
    """Look at something."""
    return {"at": at}


def recorded_run(family: str, path: Path) -> str:
    """One run over HTTP that is recorded: a refusal, two calls, an answer that repeats the key."""
    answers: list[Any] = [
        http(
            json.dumps({"error": {"message": f"not with {KEY}"}}).encode(),
            "retry-after-ms: 1",
            status="503 Busy",
        ),
        ended(
            family,
            "calls",
            text="Hm",
            calls=[Call("a", "look", '{"at":"x"}'), Call("b", "look", '{"at":"y"}')],
        ),
        ended(family, "final", text=f"Both seen with {KEY}."),
    ]

    async def speak(heard: Heard) -> None:
        answer = answers.pop(0)
        if isinstance(answer, bytes):
            await heard.say(answer)
        else:
            await says(*frames(family, answer))(heard)

    async def run() -> str:
        async with speaking(speak) as listening:
            record: dict[str, Any] = {"record_to": str(path), "api_key": KEY}
            model = model_of(family, listening.url, **record)
            async with Runtime(store="memory://", model=model, tools=[look]) as rt:
                result = await rt.aio.run("Look", limits=LIMITS)
            return f"{result.outcome}: {result.text}"

    return asyncio.run(run())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_that_was_recorded_is_played_again_without_its_server(family: str, tmp_path: Path) -> None:
    path = tmp_path / "exchanges.jsonl"
    assert recorded_run(family, path) == f"completed: Both seen with {KEY}."
    data = path.read_bytes()
    assert len(data.splitlines()) == 3
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with Runtime(store="memory://", model=f"recorded:{path}", tools=[look]) as rt:
        played = rt.run_sync("Look", limits=LIMITS)
    # What the server repeated of the key was taken out before it was written.
    assert (played.outcome, played.text) == ("completed", "Both seen with [key].")
    assert played.spent["model_attempts"] == 3
    for line in data.splitlines():
        kept = json.loads(line)
        assert KEY not in json.dumps(kept)
        assert "request" not in kept
        assert len(kept["request_sha256"]) == 64


def test_a_stream_that_broke_breaks_again(tmp_path: Path) -> None:
    path = tmp_path / "exchanges.jsonl"
    events = frames("anthropic", ended("anthropic", "final", text="Done"))

    async def run() -> ModelTurn:
        async with speaking(says(*events[:-2], end="cut")) as listening:
            model = model_of("anthropic", listening.url, record_to=str(path))
            turn = await model.request(asked(), timeout_ms=5_000)
            await model.close()
            return turn

    turn = asyncio.run(run())
    again = asyncio.run(RecordedModel(path).request(asked(), timeout_ms=1))
    assert (again.finish, again.error_code, again.calls) == (turn.finish, turn.error_code, ())


def test_what_was_not_recorded_is_no_answer_and_text_shows(tmp_path: Path) -> None:
    path = tmp_path / "exchanges.jsonl"
    assert recorded_run("openai_chat", path).startswith("completed")
    model = RecordedModel(path)
    turn = asyncio.run(model.request(asked(), timeout_ms=1))  # turn 3
    assert (turn.finish, turn.error_code, turn.retryable) == ("model_error", "recording_exhausted", False)
    seen: list[Progress] = []
    second = msgspec.structs.replace(asked(), turn=1, attempt=2)
    asyncio.run(model.request(second, timeout_ms=1, progress=seen.append))
    assert "".join(step.text for step in seen if isinstance(step, TextDelta)) == "Hm"


@pytest.mark.parametrize("written", [b"", b"{}\n", b"no\n", b'{"family":"x"}\n'])
def test_a_file_that_holds_no_exchanges_is_refused(tmp_path: Path, written: bytes) -> None:
    path = tmp_path / "none.jsonl"
    path.write_bytes(written)
    with pytest.raises(DeclarationError):
        RecordedModel(path)
    with pytest.raises(DeclarationError):
        adapter_from(f"recorded:{tmp_path / 'missing'}")


def test_a_disk_that_takes_nothing_loses_the_recording_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert recorded_run("openai_chat", tmp_path / "no" / "folder").startswith("completed")
    assert "wasn't recorded" in caplog.text


# --- functions --------------------------------------------------------------------------------------------------------


def test_a_function_is_a_model() -> None:
    threads: list[bool] = []

    def plain(request: ModelInput) -> ModelTurn | str:
        threads.append(threading.current_thread() is threading.main_thread())
        if request.turn > 1:
            return "Seen."
        return ModelTurn(finish="calls", calls=(ProposedCall("look", b'{"at":"x"}'),), usage=Usage(1, 1))

    async def awaited(request: ModelInput) -> ModelTurn | str:
        return plain(request)

    for function in (plain, awaited):
        model = CallableModel(function, model="local", price=FREE)
        with Runtime(store="memory://", model=model, tools=[look]) as rt:
            result = rt.run_sync("Look", limits=LIMITS)
        assert (result.outcome, result.text, result.spent["tool_calls"]) == ("completed", "Seen.", 1)
    assert threads[0] is False


def test_what_a_function_raises_or_takes_too_long_for_is_no_answer() -> None:
    def fails(request: ModelInput) -> str:
        raise RuntimeError("secret words")

    async def waits(request: ModelInput) -> str:
        await asyncio.Event().wait()
        return ""

    async def ask(model: CallableModel) -> ModelTurn:
        return await model.request(asked(), timeout_ms=50)

    failed = asyncio.run(ask(CallableModel(fails, model="m")))
    assert (failed.finish, failed.error_code, failed.safe_message) == (
        "provider_error",
        "callable_failed",
        "RuntimeError",
    )
    assert asyncio.run(ask(CallableModel(waits, model="m"))).error_code == "timeout"
    with pytest.raises(DeclarationError):
        CallableModel(fails, model="")
