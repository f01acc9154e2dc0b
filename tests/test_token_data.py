"""What backends say of an answer token by token: kept byte for byte as a blob that the log names, and read back."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest
from tests.command_line import CommandLine
from tests.model_server import Heard, http, speaking

from boundloop.actors import Runtime
from boundloop.adapters import CallableModel, OpenAIChat, RecordedModel, ScriptedModel, say
from boundloop.adapters.answer_draft import Exchange
from boundloop.adapters.families import decoder_of
from boundloop.runtime import Limits, Redaction
from boundloop.runtime import events as e
from boundloop.runtime import token_data as rules
from boundloop.runtime.errors import LogDamaged, RunNotFound
from boundloop.runtime.limits import WAIVED
from boundloop.runtime.model import ModelInput, ModelTurn, Usage

LIMITS: Final = Limits(cost=WAIVED)

# As an engine writes them: numbers that a parser and a writer would change, blanks, escapes.
PROMPT: Final = b"[1, 2,3 ,151644]"
IDS: Final = (b"[9707,0]", b"[ 13 ]", b"[151645]")
LOGPROBS: Final = (
    b'{"content":[{"token":"Hi","logprob":-1.1920929E-7,"bytes":[72,105],"top_logprobs":[]}]}',
    b'{"content": [ {"token": "\\u2581there", "logprob": -0.10000000000000001, "bytes": null} ]}',
    b'{"content":[{"token":".","logprob":-9999.0,"bytes":[46]}]}',
)
EXPERTS: Final = b"[[[0,7],[3, 1]]]"


def whole_answer() -> bytes:
    """As vLLM answers with ``return_token_ids`` and ``logprobs``."""
    return (
        b'{"id":"r1","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Hi there."},'
        b'"logprobs":' + LOGPROBS[0] + b',"finish_reason":"stop","token_ids":' + IDS[0] + b',"routed_experts":'
        + EXPERTS
        + b'}],"usage":{"prompt_tokens":4,"completion_tokens":3},"prompt_logprobs":null,"prompt_token_ids":'
        + PROMPT
        + b"}"
    )  # fmt: skip


def streamed_answer() -> list[bytes]:
    """The same in pieces: the prompt's ids with the first, the others' with each."""
    texts = (b'"Hi"', b'" there"', b'"."')
    pieces = [
        b'{"id":"r1","model":"m","prompt_token_ids":'
        + PROMPT
        + b',"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null}]}'
    ]
    pieces += [
        b'{"id":"r1","choices":[{"index":0,"delta":{"content":' + text + b'},"logprobs":' + logprobs
        + b',"finish_reason":null,"token_ids":' + ids + b"}]}"
        for text, logprobs, ids in zip(texts, LOGPROBS, IDS, strict=True)
    ]  # fmt: skip
    pieces.append(
        b'{"id":"r1","choices":[{"index":0,"delta":{},"finish_reason":"stop","token_ids":null}],'
        b'"usage":{"prompt_tokens":4,"completion_tokens":3}}'
    )
    return [*pieces, b"[DONE]"]


WHOLE_BLOB: Final = (
    b'{"prompt_token_ids":[' + PROMPT + b'],"choices.logprobs":[' + LOGPROBS[0] + b'],"choices.token_ids":['
    + IDS[0] + b'],"choices.routed_experts":[' + EXPERTS + b"]}"
)  # fmt: skip
STREAM_BLOB: Final = (
    b'{"prompt_token_ids":[' + PROMPT + b'],"choices.logprobs":[' + b",".join(LOGPROBS)
    + b'],"choices.token_ids":[' + b",".join(IDS) + b"]}"
)  # fmt: skip


async def engine(heard: Heard) -> None:
    """Streams where it is asked to."""
    if json.loads(heard.body).get("stream"):
        body = b"".join(b"data: " + piece + b"\n\n" for piece in streamed_answer())
        await heard.say(http(body, "content-type: text/event-stream"))
    else:
        await heard.say(http(whole_answer(), "content-type: application/json"))


def responded(runtime: Runtime, run_id: str) -> e.ModelResponded:
    events = [item.event for item in runtime.stream(run_id)]
    return next(event for event in events if isinstance(event, e.ModelResponded))


@pytest.mark.parametrize("stream", [False, True])
def test_stored_ids_and_log_probabilities_are_the_engines_byte_for_byte(stream: bool, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/runs.db"
    recording = tmp_path / "exchanges.jsonl"
    expected = STREAM_BLOB if stream else WHOLE_BLOB
    asked: list[dict[str, Any]] = []

    async def run() -> str:
        async with speaking(engine) as server:
            model = OpenAIChat(
                model="m",
                base_url=server.url,
                stream=stream,
                record_to=str(recording),
                extra={"logprobs": True, "return_token_ids": True},
            )
            async with Runtime(store=store, model=model) as runtime:
                result = await runtime.aio.run("go", limits=LIMITS)
                assert (result.outcome, result.text) == (
                    "completed",
                    "Hi there.",
                )
                assert await runtime.aio.token_data(result.run_id, 1) == expected
            asked.extend(json.loads(heard.body) for heard in server.heard)
            return result.run_id

    run_id = asyncio.run(run())
    assert [(body["logprobs"], body["return_token_ids"]) for body in asked] == [(True, True)]
    # Another process, later, and a model that plays the recording: the same bytes.
    with Runtime(store=store, model=RecordedModel(recording)) as runtime:
        event = responded(runtime, run_id)
        assert event.tokens == e.TokenData(sha256(expected).digest(), len(expected))
        assert runtime.token_data(run_id, 1) == expected
        assert runtime.token_data(run_id, 2) is None
        with pytest.raises(RunNotFound):
            runtime.token_data("nobody", 1)
        again = runtime.run_sync("go", limits=LIMITS)
        assert runtime.token_data(again.run_id, 1) == expected
    read = json.loads(expected)
    assert [one for piece in read["choices.token_ids"] for one in piece] == (
        [9707, 0, 13, 151645] if stream else [9707, 0]
    )


def turn_of(family: str, *frames: dict[str, Any], whole: bool = False) -> ModelTurn:
    decoder = decoder_of(family, Exchange())
    for frame in frames:
        data = json.dumps(frame, separators=(",", ":")).encode()
        decoder.feed(data if whole else b"data: " + data + b"\n\n")
    return decoder.end()


GEMINI: Final[dict[str, Any]] = {
    "candidates": [
        {
            "content": {"parts": [{"text": "Hi"}]},
            "finishReason": "STOP",
            "avgLogprobs": -0.25,
            "logprobsResult": {"chosenCandidates": [{"token": "Hi", "tokenId": 7, "logProbability": -0.5}]},
        }
    ]
}


def responses(logprobs: Any) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "output_text", "text": "Hi", "logprobs": logprobs}
    item: dict[str, Any] = {"type": "message", "id": "m1", "role": "assistant", "content": [part]}
    return {"id": "r1", "status": "completed", "output": [item]}


SAID: Final = [{"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}]


def test_each_family_that_says_it_keeps_it() -> None:
    gemini = turn_of("gemini", GEMINI, whole=True).token_data
    assert json.loads(gemini or b"") == {
        "candidates.logprobsResult": [GEMINI["candidates"][0]["logprobsResult"]],
        "candidates.avgLogprobs": [-0.25],
    }
    assert turn_of("gemini", GEMINI).token_data == gemini
    whole = turn_of("openai_responses", responses(SAID), whole=True).token_data
    assert json.loads(whole or b"") == {"output.content.logprobs": [SAID]}


def test_a_stream_of_responses_says_it_with_its_items_or_with_its_deltas() -> None:
    delta = {"type": "response.output_text.delta", "output_index": 0, "delta": "Hi", "logprobs": SAID}
    item = responses(SAID)["output"][0]
    silent = responses([])["output"][0]

    def of(done: dict[str, Any]) -> Any:
        return json.loads(
            turn_of(
                "openai_responses",
                delta,
                {"type": "response.output_item.done", "output_index": 0, "item": done},
                {"type": "response.completed", "response": {"id": "r1", "status": "completed", "output": []}},
            ).token_data
            or b"null"
        )

    assert of(item) == {"output.content.logprobs": [SAID]}
    assert of(silent) == {"response.output_text.delta.logprobs": [SAID]}


@pytest.mark.parametrize(
    "nothing", [None, [], {}, {"content": None, "refusal": None}, {"content": [], "refusal": None}]
)
def test_what_says_nothing_is_not_kept(nothing: Any) -> None:
    choice = {"message": {"content": "Hi"}, "finish_reason": "stop", "logprobs": nothing, "token_ids": None}
    assert turn_of("openai_chat", {"choices": [choice]}, whole=True).token_data is None
    if not isinstance(nothing, dict):
        assert turn_of("openai_responses", responses(nothing), whole=True).token_data is None


def test_what_is_odd_where_nobody_reads_is_kept_as_it_is() -> None:
    answer = b'{"choices":[{"message":{"content":"Hi"},"finish_reason":"stop"}],"prompt_logprobs":[1e400]}'
    decoder = decoder_of("openai_chat", Exchange())
    decoder.feed(answer)
    turn = decoder.end()
    assert (turn.finish, turn.token_data) == ("final", b'{"prompt_logprobs":[[1e400]]}')


def test_engines_that_say_it_in_the_message_and_servers_that_say_it_at_the_top() -> None:
    message = {
        "content": "Hi",
        "prompt_token_ids": [1],
        "generation_token_ids": [2],
        "generation_log_probs": [-0.5],
    }
    answer = {
        "choices": [{"message": message, "finish_reason": "stop"}],
        "completion_probabilities": [{"id": 2, "logprob": -0.5}],
    }
    assert json.loads(turn_of("openai_chat", answer, whole=True).token_data or b"") == {
        "completion_probabilities": [[{"id": 2, "logprob": -0.5}]],
        "choices.message.prompt_token_ids": [[1]],
        "choices.message.generation_token_ids": [[2]],
        "choices.message.generation_log_probs": [[-0.5]],
    }


def test_an_answer_that_failed_keeps_none() -> None:
    choice = {"message": {"content": "Hi"}, "finish_reason": "new_value", "token_ids": [1, 2]}
    turn = turn_of("openai_chat", {"choices": [choice]}, whole=True)
    assert (turn.finish, turn.token_data) == ("unknown_finish", None)


def answered(token_data: bytes, **turn: Any) -> Callable[[ModelInput], ModelTurn]:
    given: dict[str, Any] = {"finish": "final", "text": "Done.", "usage": Usage(1, 1), **turn}
    return lambda request: ModelTurn(token_data=token_data, **given)


def test_a_function_gives_what_it_has_and_nobody_reads_it() -> None:
    mask = bytes(range(256))
    with Runtime(store="memory://", model=CallableModel(answered(mask), model="m")) as runtime:
        result = runtime.run_sync("go", limits=LIMITS)
        assert runtime.token_data(result.run_id, 1) == mask
        assert result.outcome == "completed"


def test_a_function_whose_answer_is_tried_again_leaves_only_what_counts() -> None:
    turns = iter([answered(b"void", finish="model_error"), answered(b"kept")])
    with Runtime(
        store="memory://", model=CallableModel(lambda asked: next(turns)(asked), model="m")
    ) as runtime:
        result = runtime.run_sync("go", limits=LIMITS)
        assert runtime.token_data(result.run_id, 1) == b"kept"


def test_what_is_too_large_is_counted_and_the_answer_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "TOKEN_DATA_BYTES_MAX", 10)
    with Runtime(store="memory://", model=CallableModel(answered(b"x" * 11), model="m")) as runtime:
        result = runtime.run_sync("go", limits=LIMITS)
        assert result.outcome == "completed"
        assert responded(runtime, result.run_id).tokens == e.TokenData(None, 11)
        assert runtime.token_data(result.run_id, 1) is None


def test_where_something_is_declared_to_be_redacted_it_is_withheld() -> None:
    """A text that is spelled out token by token may hold it, and nothing finds it there."""
    redact = Redaction(values={"KEY": "Done.and.more"})
    model = CallableModel(answered(b'["Done", ".and", ".more"]'), model="m")
    with Runtime(store="memory://", model=model, redact=redact) as runtime:
        result = runtime.run_sync("go", limits=LIMITS)
        assert responded(runtime, result.run_id).tokens == e.TokenData(None, 25)
        assert runtime.token_data(result.run_id, 1) is None


def test_most_answers_have_none() -> None:
    with Runtime(store="memory://", model=ScriptedModel([say("Done.")])) as runtime:
        result = runtime.run_sync("go", limits=LIMITS)
        assert responded(runtime, result.run_id).tokens is None
        assert runtime.token_data(result.run_id, 1) is None


# --- from the command line ---------------------------------------------------------------------------------------------


@pytest.fixture
def run_id(cli: CommandLine) -> str:
    with Runtime(store=cli.url, model=CallableModel(answered(b'{"ids":[1, 2]}\n'), model="m")) as runtime:
        return runtime.run_sync("go", limits=LIMITS).run_id


def test_log_names_it_and_tokens_writes_it(cli: CommandLine, run_id: str, tmp_path: Path) -> None:
    digest = sha256(b'{"ids":[1, 2]}\n').hexdigest()
    assert f"15 bytes of token data ({digest})" in cli("log", run_id).out
    seen = cli("tokens", run_id, "1", "-o", "json")
    assert (seen.code, seen.value["sha256"], seen.value["bytes"]) == (0, digest, 15)
    assert cli("tokens", run_id, "1", "--to", str(tmp_path / "f")).code == 0
    assert (tmp_path / "f").read_bytes() == b'{"ids":[1, 2]}\n'
    command = [sys.executable, "-m", "boundloop", "tokens", run_id, "1", "--to", "-", "--store", cli.url]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b'{"ids":[1, 2]}\n'
    assert cli("tokens", run_id, "2").code == 3
    assert cli("tokens", "nobody", "1").code == 3


def test_bytes_that_were_altered_or_are_gone_are_not_given(cli: CommandLine, run_id: str) -> None:
    for change in (
        "UPDATE blob_parts SET data = X'00' WHERE sha256 = ?",
        "DELETE FROM blobs WHERE sha256 = ?",
    ):
        connection = sqlite3.connect(cli.path)
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(change, (sha256(b'{"ids":[1, 2]}\n').digest(),))
        for _, text in triggers:
            connection.execute(text)
        connection.commit()
        connection.close()
        assert cli("tokens", run_id, "1").code == 6
        with Runtime(store=cli.url) as runtime, pytest.raises(LogDamaged, match="token data"):
            runtime.token_data(run_id, 1)


def test_collecting_it_takes_time_linear_in_its_size() -> None:
    def seconds(pieces: int) -> float:
        frame = (
            b'data: {"choices":[{"delta":{"content":"x"},"logprobs":'
            + LOGPROBS[0]
            + b',"token_ids":[5]}]}\n\n'
        )
        best = 9.9
        for _ in range(3):
            decoder = decoder_of("openai_chat", Exchange(), answer_bytes_max=64 * 1024 * 1024)
            began = time.process_time()
            for _ in range(pieces):
                decoder.feed(frame)
            decoder.feed(b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n')
            assert len(decoder.end().token_data or b"") > pieces * 80
            best = min(best, time.process_time() - began)
        return best

    assert seconds(8_000) < 25 * seconds(800)
