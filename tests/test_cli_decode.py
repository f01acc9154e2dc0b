"""``boundloop decode``: one JSON line a file, and an exit code that says whether all of them were answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import CommandLine
from tests.provider_streams import FAMILIES, Call, body, ended, frames, stream


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize("family", FAMILIES)
def test_bodies_and_streams_of_each_family(cli: CommandLine, tmp_path: Path, family: str) -> None:
    answer = ended(family, "calls", text="Hm", calls=[Call("id_1", "look", '{"at":"é"}')])
    files = [tmp_path / "one.json", tmp_path / "two.sse"]
    files[0].write_bytes(body(family, answer))
    files[1].write_bytes(stream(family, answer))
    done = cli("decode", family.replace("_", "-"), *map(str, files))
    assert done.code == 0
    for line, file in zip(lines(done.out), files, strict=True):
        assert json.loads(line["calls"][0].pop("arguments")) == {"at": "é"}
        line.pop("finish_raw")
        assert line == {
            "file": str(file),
            "outcome": "calls",
            "executable": True,
            "calls": [{"provider_call_id": "id_1", "name": "look"}],
            "text": "Hm",
            "usage": {
                "input_tokens": 10,
                "output_tokens": 5,
                "cached_input_tokens": 0,
                "reasoning_tokens": 0,
            },
            "response_id": "r1",
            "served_model": "m1",
            "refusal": None,
            "code": None,
            "hosted": [],
            "unknown": {},
            "error": None,
        }


def test_a_broken_stream_and_an_error_exit_1_with_the_reason_in_their_lines(
    cli: CommandLine, tmp_path: Path
) -> None:
    whole = frames("anthropic", ended("anthropic", "final", text="Done"))
    (tmp_path / "whole.sse").write_bytes(b"".join(whole))
    (tmp_path / "cut.sse").write_bytes(b"".join(whole[:-1]))
    error = {"type": "error", "error": {"type": "rate_limit_error", "message": "slower"}}
    (tmp_path / "error.json").write_text(json.dumps(error))
    done = cli(
        "decode",
        "anthropic",
        *(str(tmp_path / name) for name in ("whole.sse", "cut.sse", "error.json")),
        "--header",
        "Retry-After: 1.5",
    )
    assert done.code == 1
    assert [line["error"] for line in lines(done.out)] == [
        None,
        {
            "code": "stream_broken",
            "message": "the stream ended before its own last event",
            "retryable": True,
            "retry_after_s": 0.0,
        },
        {"code": "rate_limited", "message": "HTTP 200: slower", "retryable": True, "retry_after_s": 1.5},
    ]


def test_the_status_that_an_answer_came_with(cli: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text("<html>Bad gateway</html>")
    done = cli("decode", "gemini", str(file), "--status", "502")
    assert done.code == 1
    assert lines(done.out)[0]["error"]["code"] == "server_error"
    assert "gateway" not in done.out


def test_calls_that_no_parser_takes_are_not_executable(cli: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "one.sse"
    file.write_bytes(stream("openai_chat", ended("openai_chat", "calls", calls=[Call("a", "pay", '{"n":1')])))
    done = cli("decode", "openai_chat", str(file))
    assert done.code == 0
    assert (lines(done.out)[0]["outcome"], lines(done.out)[0]["executable"]) == ("calls", False)


def test_a_refusal_is_told_from_a_text(cli: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    message = {"content": None, "refusal": "No."}
    file.write_text(json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}))
    line = lines(cli("decode", "openai_chat", str(file)).out)[0]
    assert (line["outcome"], line["refusal"], line["text"]) == ("refused", "No.", "")


def test_what_is_typed_wrong_is_usage(cli: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    file.write_text("{}")
    for wrong in (
        ("anthropik", str(file)),
        ("anthropic", str(tmp_path / "none")),
        ("anthropic", str(file), "--header", "x"),
        ("anthropic",),
    ):
        assert cli("decode", *wrong).code == 2
