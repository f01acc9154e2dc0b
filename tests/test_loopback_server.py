"""The loopback model server: same request, same answer; what it counts; what it refuses; how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from tests.model_server import seen

from boundloop.adapters.correlation import read_request_id, request_id
from boundloop.adapters.loopback_answer import Answer, answer_chat
from boundloop.adapters.loopback_process import LoopbackProcess
from boundloop.adapters.loopback_script import (
    Fault,
    ServedScript,
    ServerScript,
    read_server_script,
    server_script_from_file,
    write_server_script,
)
from boundloop.adapters.loopback_server import main
from boundloop.adapters.script import ScriptedTurn, attempts, call, held, lost, paused, say
from boundloop.runtime.errors import DeclarationError

TWO: Final = ServerScript(scripts=(ServedScript(turns=(call("look", {"a": 1}), say("done"))),))


def body(*messages: dict[str, Any], model: str = "m1", **more: Any) -> bytes:
    said = [{"role": "user", "content": "refund order A7 now"}, *messages]
    return json.dumps({"model": model, "messages": said, **more}).encode()


def calling(*ids: str) -> dict[str, Any]:
    made = [{"id": one, "type": "function", "function": {"name": "look", "arguments": "{}"}} for one in ids]
    return {"role": "assistant", "content": None, "tool_calls": made}


def result(label: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": label, "content": "{}"}


def told(answer: Answer) -> Any:
    return json.loads(answer.body)


def message(answer: Answer) -> Any:
    return told(answer)["choices"][0]["message"]


# --- the answer is a function of the request --------------------------------------------------------------------------


def test_the_turn_is_one_more_than_the_assistant_messages() -> None:
    assert message(answer_chat(TWO, {}, body()))["tool_calls"][0]["function"]["arguments"] == '{"a":1}'
    assert message(answer_chat(TWO, {}, body(calling("c"), result("c"))))["content"] == "done"
    over = answer_chat(TWO, {}, body(calling("c"), result("c"), {"role": "assistant", "content": "done"}))
    assert (over.status, told(over)["error"]["code"]) == (400, "script_exhausted")


def test_a_request_id_says_turn_and_attempt() -> None:
    script = ServerScript(scripts=(ServedScript(turns=(attempts(lost("x"), say("second"), say("third")),)),))
    answers = [
        answer_chat(script, {"x-client-request-id": request_id("r1", 1, attempt)}, body())
        for attempt in (1, 2, 3, 9)
    ]
    assert [answer.fault for answer in answers] == ["truncate", None, None, None]
    assert [message(answer)["content"] for answer in answers[1:]] == ["second", "third", "third"]
    assert {answer.run for answer in answers} == {"r1"}


@pytest.mark.parametrize(
    "text", ["", "r1", "r1/t1", "r1/t1/a1 ", "r 1/t1/a1", "r1/t-1/a1", "é/t1/a1", "r" * 300 + "/t1/a1"]
)
def test_what_is_no_request_id_is_none(text: str) -> None:
    assert read_request_id(text) is None
    assert answer_chat(TWO, {"x-client-request-id": text}, body()).turn == 1
    assert request_id("two words", 1, 1) == ""


def test_scripts_are_chosen_by_model_and_conversation() -> None:
    script = ServerScript(
        scripts=(
            ServedScript(model="a", turns=(say("model a"),)),
            ServedScript(user="order A7", turns=(say("{{user}}: {{user.3}}{{user.99}}"),), substitute=True),
            ServedScript(user="letter", turns=(say("letter"),)),
        )
    )
    assert message(answer_chat(script, {}, body(model="a")))["content"] == "model a"
    assert message(answer_chat(script, {}, body(model="b")))["content"] == "refund order A7 now: A7"
    other = json.dumps(
        {"model": "b", "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}
    )
    assert answer_chat(script, {}, other.encode()).status == 404


def test_a_script_may_answer_what_was_said_last() -> None:
    refusal = ServedScript(last="approval_rejected", turns=(say("early"), say("a person said no")))
    script = ServerScript(scripts=(refusal, *TWO.scripts))
    said_no = {**result("c"), "content": '{"code":"approval_rejected"}'}
    assert message(answer_chat(script, {}, body(calling("c"), said_no)))["content"] == "a person said no"
    assert message(answer_chat(script, {}, body(calling("c"), result("c"))))["content"] == "done"
    assert message(answer_chat(script, {}, body()))["tool_calls"]


def test_a_substituted_text_stays_json() -> None:
    script = ServerScript(scripts=(ServedScript(turns=(call("look", {"a": "{{user}}"}),), substitute=True),))
    odd = 'say "é\\n" }{ \\'
    asked = json.dumps({"model": "m", "messages": [{"role": "user", "content": odd}]}).encode()
    arguments = message(answer_chat(script, {}, asked))["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments) == {"a": odd}


def test_latency_and_faults_are_drawn_from_the_request() -> None:
    script = ServerScript(
        scripts=TWO.scripts, latency_ms=1_000, jitter=0.5, seed=3, faults=(Fault(kind="drop", share=0.3),)
    )
    answers = [
        answer_chat(script, {"x-client-request-id": request_id(f"r{run}", 1, attempt)}, body())
        for run in range(200)
        for attempt in (1, 2)
    ]
    again = answer_chat(script, {"x-client-request-id": "r0/t1/a1"}, body())
    assert again == answers[0]
    delays = [answer.delay_ms for answer in answers]
    assert 500 <= min(delays) < 600
    assert 1_400 < max(delays) <= 1_500
    assert 60 < sum(answer.fault == "drop" for answer in answers) < 180


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b'{"model":"m"}', 400),
        (b"[" * 100_000, 400),
        (body(calling("a", "b"), result("a")), 400),
        (body(calling("a"), result("a"), result("a")), 400),
        (body(calling("a"), result("b")), 400),
        (body(calling("a", "a"), result("a"), result("a")), 400),
        (body(calling(""), result("")), 400),
        (body(calling("a"), {"role": "user", "content": "x"}, result("a")), 400),
        (body(result("a")), 400),
        (body(calling("a", "b"), result("b"), result("a")), 200),
    ],
)
def test_a_history_without_one_result_a_call_is_refused(asked: bytes, status: int) -> None:
    assert answer_chat(TWO, {}, asked).status == status


def test_a_key_where_the_script_asks_for_one() -> None:
    script = ServerScript(scripts=TWO.scripts, api_key="k")
    assert answer_chat(script, {}, body()).status == 401
    assert answer_chat(script, {"authorization": "Bearer k"}, body()).status == 200


# --- files ------------------------------------------------------------------------------------------------------------


def test_files_read_back_and_a_plain_script_is_one(tmp_path: Path) -> None:
    script = ServerScript(
        scripts=(
            ServedScript(turns=(call("look", {"a": 1}), attempts(lost("x"), say("y"))), model="m", user="u"),
        ),
        faults=(Fault(kind="status", share=0.5, status=429, retry_after_s=1),),
        latency_ms=5,
        jitter=0.1,
        seed=9,
        api_key="k",
    )
    assert read_server_script(write_server_script(script)) == script
    file = tmp_path / "script.json"
    file.write_text('{"turns": [{"text": "hello"}]}')
    assert server_script_from_file(file).scripts[0].turns == (say("hello"),)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"scripts": 7}',
        '{"scripts": [], "x": 1}',
        '{"scripts": [], "scripts": []}',
        '{"scripts": [], "latency_ms": -1}',
        '{"scripts": [], "jitter": 2.0}',
        '{"scripts": [], "faults": [{"kind": "explode"}]}',
        '{"scripts": [], "faults": [{"kind": "drop", "share": 1.5}]}',
        '{"scripts": [], "faults": [{"kind": "status", "status": 200}]}',
        '{"scripts": [], "faults": [{"kind": "drip", "drip_ms": 0}]}',
        '{"scripts": [{"turns": [[]]}]}',
        '{"scripts": [{"turns": [{"text": "x", "finish": "paused"}]}]}',
        '{"turns": [{"text": "x", "hosted": ["search"]}]}',
    ],
)
def test_files_that_mean_nothing_are_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "script.json"
    file.write_text(text)
    with pytest.raises(DeclarationError):
        server_script_from_file(file)
    assert main(["--script", str(file)]) == 2
    assert capsys.readouterr().err
    assert main(["--script", str(tmp_path / "none.json")]) == 2


# --- the process ------------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[LoopbackProcess]:
    turns: tuple[ScriptedTurn, ...] = (call("look"), held(say("done"), "door"))
    with LoopbackProcess(ServerScript(scripts=(ServedScript(turns=turns),))) as process:
        yield process


async def exchange(port: int, raw: bytes) -> bytes:
    """Everything that comes back until the server closes, or its first answer's worth."""
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw)
        data = await reader.read(65_536)
        writer.close()
        return data


def post(data: bytes, *headers: str) -> bytes:
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        "host: x",
        *headers,
        f"content-length: {len(data)}",
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + data


def test_it_counts_by_run_and_begins_anew_with_a_new_process(server: LoopbackProcess) -> None:
    for attempt in (1, 2):
        asyncio.run(exchange(server.port, post(body(), f"x-client-request-id: r1/t1/a{attempt}")))
    asyncio.run(exchange(server.port, post(body(model="m2"))))
    asyncio.run(exchange(server.port, post(b"{}")))
    counts = server.counts()
    assert (counts["total"], counts["answered"], counts["in_flight"]) == (4, 3, 0)
    assert counts["by_status"] == {"200": 3, "400": 1}
    assert counts["by_model"] == {"m1": 2, "m2": 1}
    assert counts["by_run"]["r1"] == [2, 1]
    port = server.port
    server.kill()
    server.start()
    assert server.port == port
    assert server.counts()["total"] == 0


def test_a_gate_holds_and_a_client_that_leaves_is_abandoned(server: LoopbackProcess) -> None:
    second = post(body(calling("c"), result("c")))
    with socket.create_connection(("127.0.0.1", server.port), 10) as leaving, ThreadPoolExecutor(1) as pool:
        leaving.sendall(second)
        waiting = pool.submit(asyncio.run, exchange(server.port, second))
        assert seen(lambda: server.reached("door") == 2)
        leaving.close()
        assert seen(lambda: server.counts()["abandoned"] == 1)
        assert not waiting.done()
        server.open_gate("door")
        assert b'"done"' in waiting.result(10)
    counts = server.counts()
    assert (counts["answered"], counts["abandoned"], counts["in_flight_max"]) == (1, 1, 2)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"GET /v1/chat/completions HTTP/1.1\r\n\r\n", 405),
        (b"POST /x HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400),
        (b"POST /x HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n", 413),
        (b"POST /x HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        (b"POST /x HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 40_000, 431),
    ],
)
def test_what_is_no_request_is_answered_so(raw: bytes, status: int, server: LoopbackProcess) -> None:
    assert asyncio.run(exchange(server.port, raw)).startswith(b"HTTP/1.1 %d " % status)
    assert server.counts()["in_flight"] == 0


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT, None])
def test_it_ends_when_told_or_when_nobody_holds_its_input(
    ending: signal.Signals | None, tmp_path: Path
) -> None:
    file = tmp_path / "script.json"
    file.write_text('{"turns": [{"text": "hello"}]}')
    command = [
        sys.executable,
        "-m",
        "boundloop.adapters.loopback_server",
        "--script",
        str(file),
        "--until-stdin-closes",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert told["pid"] == process.pid
        if ending is None:
            process.stdin.close()
        else:
            os.kill(process.pid, ending)
        assert process.wait(10) == 0


def test_a_taken_port_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "script.json"
    file.write_text('{"turns": []}')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["--script", str(file), "--port", str(taken.getsockname()[1])]) == 2
    assert "port" in capsys.readouterr().err


def test_two_thousand_connections_at_once() -> None:
    async def run(port: int) -> None:
        gate = asyncio.Semaphore(200)  # connecting at once, so that no backlog is in question

        async def one(number: int) -> None:
            async with gate:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(post(body(), f"x-client-request-id: r{number}/t1/a1"))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            writer.close()

        async with asyncio.timeout(60):
            await asyncio.gather(*[one(number) for number in range(2_000)])

    script = ServerScript(scripts=(ServedScript(turns=(held(say("hello"), "door"),)),))
    with LoopbackProcess(script) as server, ThreadPoolExecutor(1) as pool:
        all_of_them = pool.submit(asyncio.run, run(server.port))
        assert seen(lambda: server.reached("door") == 2_000, 60)
        server.open_gate("door")
        all_of_them.result(60)
        counts = server.counts()
    assert (counts["answered"], counts["in_flight_max"], len(counts["by_run"])) == (2_000, 2_000, 2_000)
    assert counts["connections_max"] >= 2_000


def test_what_cannot_be_said_over_chat_is_refused_when_the_server_is_made() -> None:
    from boundloop.adapters.loopback_server import LoopbackServer

    with pytest.raises(DeclarationError):
        LoopbackServer(ServerScript(scripts=(ServedScript(turns=(paused(),)),)))
