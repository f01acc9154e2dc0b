"""A canary through every door of one real run on disk: it is in no file of the store, in no command's output, in no log line."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import CommandLine

from boundloop.actors.client import Runtime
from boundloop.adapters import ScriptedModel
from boundloop.adapters.script import call, calls, say
from boundloop.runtime import Limits, Redaction, ToolError, tool
from boundloop.runtime.prices import FREE

CANARY = "sk-live-CANARY-4242"
TOKEN = "tok-RESOLVED-9191"
LIMITS = Limits(cost="1")
ENCODED = ("sk-live-CANARY", "CANARY-4242", "RESOLVED-9191")


@tool(risk="read")
def small(name: str) -> dict[str, Any]:
    """A result with it."""
    return {"deep": [{"key": CANARY}], CANARY: name}


@tool(risk="read")
def large(name: str) -> dict[str, Any]:
    """A result with it that is kept as a blob."""
    return {"head": CANARY, "rows": ["x" * 100] * 2_000, "tail": CANARY}


@tool(risk="read")
def fails(name: str) -> str:
    """An error with it."""
    raise ToolError("broken", safe_message=f"not with {CANARY}")


@tool(risk="read")
def raises(name: str) -> str:
    """An exception with it."""
    raise KeyError(CANARY, {"nested": [CANARY]})


@tool(risk="write", key=("order",), approval="always", secret_arguments={"token": "billing"})
async def pay(order: str, token: str) -> str:
    """An effect with a reference, a preview and a result."""
    return f"{token} paid with {CANARY}"


def script() -> Any:
    return [
        calls(*(call(name, {"name": "a"}) for name in ("small", "large", "fails", "raises")), text=CANARY),
        call("small", {"name": f"key={CANARY}"}),
        call("pay", {"order": "1", "token": "secret://billing"}),
        say(f"It was {CANARY}."),
    ]


def leaks(folder: Path) -> list[str]:
    """Files with it, plain or in pieces."""
    return [
        f"{path.name}: {piece}"
        for path in folder.iterdir()
        if path.is_file()
        for piece in ENCODED
        if piece.encode() in path.read_bytes()
    ]


READERS: tuple[tuple[str, ...], ...] = (
    ("show", "{run}"),
    ("log", "{run}"),
    ("why", "{run}"),
    ("replay", "{run}", "--at", "9"),
    ("tree", "{run}"),
    ("inbox",),
    ("runs", "list"),
    ("verify",),
)


def test_it_is_in_no_file_no_output_and_no_log_line(
    cli: CommandLine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOUNDLOOP_TOOL_ERRORS", "full")
    folder = cli.path.parent
    model = ScriptedModel(script(), price=FREE, record_max=100)
    events: list[str] = []
    with (
        caplog.at_level(logging.DEBUG),
        Runtime(
            store=cli.url,
            model=model,
            tools=[small, large, fails, raises, pay],
            redact=Redaction(values={"api_key": CANARY}),
            secrets={"billing": TOKEN},
        ) as rt,
    ):
        rt.watch(lambda run, state, committed, seq: events.append(repr(committed)))
        run = rt.start(f"go with {CANARY}", limits=LIMITS, system=f"You have {CANARY}.")
        waiting = run.result(30)
        assert waiting.status == "waiting", waiting
        assert cli("send", run.run_id, f"psst, {CANARY}").code == 0
        outputs = [waiting.text, repr(waiting), cli("inbox").out, cli("inbox", "-o", "json").out]
        rt.approve(run.run_id, waiting.approvals[0].approval_id, by="boss", reason=CANARY)
        result = run.wait(30)
        assert result.completed
        assert result.text == "It was [redacted:api_key]."
        assert leaks(folder) == []
        outputs += [repr(result), repr(rt.state(run)), *(repr(item) for item in rt.stream(run))]
    assert leaks(folder) == []
    for words in READERS:
        for style in ("plain", "json", "jsonl", "table"):
            done = cli(*(word.format(run=run.run_id) for word in words), "-o", style)
            assert done.code == 0, done
            outputs += [done.out, done.err]
    told = "".join([*outputs, *events, caplog.text, repr(model.recorded)])
    for piece in ENCODED:
        assert piece not in told
    assert "[redacted:api_key]" in told
    assert "[redacted:billing] paid with [redacted:api_key]" in told
    assert "secret://billing" in told
    assert "Traceback" in caplog.text


def test_without_redaction_the_same_run_would_have_left_it(cli: CommandLine) -> None:
    model = ScriptedModel([call("small", {"name": "a"}), say("done")], price=FREE)
    with Runtime(store=cli.url, model=model, tools=[small]) as rt:
        assert rt.run_sync("go", limits=LIMITS).completed
    assert leaks(cli.path.parent) != []
