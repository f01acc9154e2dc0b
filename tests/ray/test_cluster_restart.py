"""Everything of a cluster is killed at once, the owner with it; on the next cluster all runs go on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest
from examples.far_side import FarSide
from tests.attach_play import Member
from tests.ray import run_actor_member
from tests.ray.process_table import MARK, alive_after, marked, send


@pytest.fixture
def far() -> Iterator[FarSide]:
    with FarSide.start() as made:
        yield made


@pytest.mark.skipif(
    "BOUNDLOOP_LONG" not in os.environ, reason="half a minute; tests/ray/test_cluster_lost.py is shorter"
)
def test_all_runs_go_on_after_everything_was_killed(tmp_path: Path, far: FarSide) -> None:
    path, gate, token = tmp_path / "runs.db", tmp_path / "gate", token_hex(8)
    runs = [f"r{number}" for number in range(6)]

    def driver() -> Member:
        return Member(
            path,
            "local",
            str(far.port),
            script=run_actor_member.__file__,
            environment={MARK: f"{token}:0"},
        )

    with driver() as first:
        first.ask("start", run="waits", plan="pay", input="go")
        assert first.ask("result", run="waits")["status"] == "waiting"
        for run_id in runs:  # more than there are actors: some are under way, some wait
            first.ask("start", run=run_id, plan="book hold book look", input=str(gate))
        found = marked(token)
        send(found, signal.SIGKILL)
        assert alive_after(found, 10.0) == []
    gate.touch()
    with driver() as second:
        for run_id in runs:
            assert second.ask("result", run=run_id)["outcome"] == "completed"
        assert second.ask("result", run="waits")["status"] == "waiting"
        second.ask("close")
    assert sorted(far.counts()["effects"].values()) == [1] * len(runs)
