"""What a host remembers of runs that have ended: nothing."""

# pyright: reportPrivateUsage=false
# That nothing is kept shows only inside of the host.

from __future__ import annotations

from pathlib import Path

from boundloop.actors import Runtime
from boundloop.adapters import ScriptedModel, say
from boundloop.runtime import Limits


def test_a_host_keeps_no_lock_of_a_run_that_has_ended(tmp_path: Path) -> None:
    with Runtime(store=f"sqlite:///{tmp_path / 'runs.db'}", model=ScriptedModel([say("done")])) as runtime:
        run_ids = [runtime.run_sync("go", limits=Limits(cost="1")).run_id for _ in range(10)]
        host = runtime._embedded.host_of()
        for run_id in run_ids:
            assert runtime.state(run_id).phase == "terminated"
        assert len(host._locks) == 0
        assert not host._drivers
        assert not host._tasks
