"""Secrets over real executors and run actors: values are resolved there, and what comes back has been redacted there."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, Final

import pytest
import ray as real_ray

from boundloop.actors.client import Runtime
from boundloop.actors.secret_source import SecretQuestion
from boundloop.adapters import ScriptedModel, call, calls, say
from boundloop.adapters.script import ScriptedTurn
from boundloop.runtime import WAIVED, Limits, Redaction, tool
from boundloop.runtime.model import ModelInput

WITHIN_S: Final = 90.0
CANARY: Final = "sk-live-CANARY-4242"
TOKEN: Final = "tok-RESOLVED-9191"
PIECES: Final = ("sk-live-CANARY", "CANARY-4242", "RESOLVED-9191")
ray: Any = real_ray  # it has few types of its own


@tool(risk="read", secret_arguments={"token": "billing"})
def sync_read(token: str, ctx: Any) -> dict[str, Any]:
    """In a process of its own; says that it had the value, without saying it."""
    print(f"printed by the tool {len(token)}")
    return {"pid": os.getpid(), "length": len(token), "said": f"{token} {CANARY}"}


@tool(risk="read", secret_arguments={"token": "billing"})
async def async_read(token: str) -> dict[str, Any]:
    """On the loop of an executor."""
    return {"pid": os.getpid(), "length": len(token), "said": f"{token} {CANARY}"}


@tool(risk="read", quick=True, secret_arguments={"token": "billing"})
def quick_read(token: str) -> dict[str, Any]:
    """In a batch."""
    return {"pid": os.getpid(), "length": len(token), "said": f"{token} {CANARY}"}


@tool(risk="read", secret_arguments={"token": "billing"})
def raising(token: str) -> str:
    """With both in what it raises."""
    raise KeyError(token, CANARY)


TOOLS: Final = (sync_read, async_read, quick_read, raising)


def answer(request: ModelInput) -> ScriptedTurn:
    if request.turn > 1:
        return say(f"It is {CANARY}.")
    return calls(*(call(name.__name__, {"token": "secret://billing"}) for name in TOOLS))


def asked_where_it_runs(asked: SecretQuestion) -> str:
    return {"billing": TOKEN}[asked.name]


def leaks(folder: Path) -> list[str]:
    """Files below it, sockets left out, that hold a piece."""
    return [
        f"{path}: {piece}"
        for path in folder.rglob("*")
        if path.is_file()
        for piece in PIECES
        if piece.encode() in path.read_bytes()
    ]


def test_values_are_resolved_in_executors_and_leave_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BOUNDLOOP_TOOL_ERRORS", "full")
    context = ray.init(
        address="local", include_dashboard=False, log_to_driver=False, num_cpus=4, logging_level=logging.ERROR
    )
    try:
        with (
            caplog.at_level(logging.WARNING),
            Runtime(
                store=f"sqlite:///{tmp_path / 'runs.db'}",
                model=ScriptedModel(answer),
                tools=TOOLS,
                redact=Redaction(values={"api_key": CANARY}),
                secrets=asked_where_it_runs,
                ray="require",
                run_actors=1,
            ) as rt,
        ):
            run = rt.start(f"go with {CANARY}", limits=Limits(cost=WAIVED))
            result = run.wait(WITHIN_S)
            assert result.text == "It is [redacted:api_key]."
            told = "".join(repr(item) for item in rt.stream(run))
            assert leaks(tmp_path) == []
        assert leaks(tmp_path) == []
        assert leaks(Path(context.address_info["session_dir"]) / "logs") == []
    finally:
        ray.shutdown()
    assert told.count("[redacted:billing] [redacted:api_key]") >= len(TOOLS) - 1
    assert told.count(f'\\"length\\":{len(TOKEN)}') + told.count(f'"length":{len(TOKEN)}') >= len(TOOLS) - 1
    for piece in PIECES:
        assert piece not in told + caplog.text
