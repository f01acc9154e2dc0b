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
            for _ in range(5):
                runtime.run_sync("go", limits=Limits(cost="1"))
            runtime.state(runtime.start("go", limits=Limits(cost="1")).run_id)
            runtime.run_sync("go", limits=Limits(cost="1"))
            left = [held for held in gc.get_objects() if isinstance(held, RunDriver | State)]
        finally:
            gc.enable()
    assert len(left) <= 2  # of the last one, whose task may be on its way out
