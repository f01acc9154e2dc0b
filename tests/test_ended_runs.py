"""What a host remembers of runs that have ended: nothing."""

# pyright: reportPrivateUsage=false
# That nothing is kept shows only inside of the host.

from __future__ import annotations

import gc
from pathlib import Path

from boundloop.actors import Runtime
from boundloop.actors.driver import RunDriver
from boundloop.adapters import ScriptedModel, say
from boundloop.runtime import Limits
from boundloop.runtime.state import State


def test_a_host_keeps_no_lock_of_a_run_that_has_ended(tmp_path: Path) -> None:
    with Runtime(store=f"sqlite:///{tmp_path / 'runs.db'}", model=ScriptedModel([say("done")])) as runtime:
        run_ids = [runtime.run_sync("go", limits=Limits(cost="1")).run_id for _ in range(10)]
        host = runtime._embedded.host_of()
        for run_id in run_ids:
            assert runtime.state(run_id).phase == "terminated"
        assert len(host._locks) == 0
        assert not host._drivers
        assert not host._tasks


def test_the_state_of_a_run_that_has_ended_is_gone_without_a_garbage_collection(tmp_path: Path) -> None:
    """A long history in a cycle of references stays until the collector's last generation; many of them make it slow."""
    with Runtime(store=f"sqlite:///{tmp_path / 'runs.db'}", model=ScriptedModel([say("done")])) as runtime:
        runtime.run_sync("go", limits=Limits(cost="1"))
        gc.collect()
        gc.disable()
        try:
            ended = {runtime.run_sync("go", limits=Limits(cost="1")).run_id for _ in range(5)}
            runtime.run_sync("go", limits=Limits(cost="1"))  # so that the task of the one before is gone
            left = [_run_of(held) for held in gc.get_objects() if isinstance(held, RunDriver | State)]
        finally:
            gc.enable()
    assert not ended & set(left)


def _run_of(held: RunDriver | State) -> str:
    return held.state.run_id if isinstance(held, RunDriver) else held.run_id
