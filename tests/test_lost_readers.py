"""Whoever reads a run whose host was lost in this process is told so: nobody here carries it on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from tests.attach_play import half_of, on_loop

from boundloop.actors import embedded
from boundloop.actors.client import Runtime
from boundloop.adapters.script import call, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.runtime.errors import StoreError
from boundloop.runtime.limits import WAIVED, Limits
from boundloop.runtime.tool_spec import tool

WITHIN_S: Final = 30.0


@tool(risk="read", timeout_ms=600_000)
async def wait_long() -> dict[str, int]:
    """Wait."""
    await asyncio.Event().wait()
    return {}


READERS: dict[str, Callable[[Runtime, str], Any]] = {
    "result": lambda rt, run_id: rt.result(run_id, WITHIN_S),
    "stream": lambda rt, run_id: list(rt.stream(run_id)),
    "follow": lambda rt, run_id: list(rt.follow(run_id)),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_of_a_lost_hosts_run_is_told(
    reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "FOLLOW_S", 0.2)
    model = ScriptedModel([call("wait_long", {}), say("done")])
    with Runtime(store=f"sqlite:///{tmp_path}/runs.db", model=model, tools=[wait_long]) as rt:
        run_id = rt.start("go", limits=Limits(cost=WAIVED)).run_id
        for item in rt.stream(run_id):
            if type(item.event).__name__ == "CallStarted":
                break
        on_loop(rt, half_of(rt).serving.host._lose("its disk is full", None))
        with pytest.raises(StoreError, match="host_lost"):
            READERS[reader](rt, run_id)
