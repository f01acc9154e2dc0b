"""More ready runs than a host looks at in one go: all of them are taken up, nobody tells of them again."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from boundloop.actors import Runtime
from boundloop.actors import host as host_module
from boundloop.adapters import ScriptedModel, ScriptedTurn, say
from boundloop.runtime import Limits

RUNS = 12
LIMITS = Limits(cost="1")
WAIT_S = 20.0
"""Well below the time after which a host looks by itself."""


@pytest.mark.parametrize("short", [False, True], ids=["as they come", "ended before the host looks on"])
def test_a_page_of_ready_runs_that_is_full_is_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: bool
) -> None:
    take_up = host_module.Host.take_up

    async def to_its_end(host: host_module.Host, run_id: str) -> bool:
        took = await take_up(host, run_id)
        drives = host._tasks.get(run_id)
        if short and drives is not None:
            await asyncio.wait((drives,))
        return took

    monkeypatch.setattr(host_module.Host, "take_up", to_its_end)
    monkeypatch.setattr(host_module, "READY_RUNS_MAX", 5)
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    with Runtime(store=store, model=ScriptedModel([ScriptedTurn(text="held", gate="closed")])) as runtime:
        run_ids = [runtime.start(f"{number}", limits=LIMITS).run_id for number in range(RUNS)]
    with Runtime(store=store, model=ScriptedModel([say("done")])) as runtime:
        for run_id in run_ids:
            assert runtime.wait(run_id, WAIT_S).completed
