"""The cluster's control service (GCS) is killed and nothing else: what has an actor goes on, nothing stands still, Ray ends
whoever stays, and the store's next owner has all runs.

``BOUNDLOOP_GCS_LOST=1`` waits for Ray to end the process by itself, which takes it a minute; otherwise it is killed.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Final

import pytest
from examples.far_side import FarSide
from tests.attach_play import Member
from tests.ray import run_actor_member
from tests.ray.cluster import LocalCluster
from tests.ray.process_table import eventually
from tests.ray.run_actor_play import WITHIN_S, completed, runtime_on

from boundloop.actors.ray_run_actor import socket_to_owner
from boundloop.eventstore.history import read_records
from boundloop.runtime import events as e

WAITS_FOR_RAY: Final = os.environ.get("BOUNDLOOP_GCS_LOST", "") not in ("", "0")
RAY_ENDS_S: Final = 120.0
SHORT_S: Final = 5.0


def holds(path: Path, run_id: str) -> bool:
    """Whether its second call is out, seen through the owner as a command line does. By then it has met its executor."""

    async def started() -> int:
        store = await socket_to_owner(str(path))
        try:
            records = await read_records(store, run_id)
            return sum(isinstance(record.event, e.CallStarted) for record in records)
        finally:
            await store.close()

    return asyncio.run(started()) == 2


def test_the_control_service_is_killed_and_no_run_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    path, gates = tmp_path.resolve() / "runs.db", [tmp_path / "one", tmp_path / "two"]
    with (
        LocalCluster(nodes=1) as cluster,
        FarSide.start() as far,
        Member(path, cluster.address, str(far.port), script=str(run_actor_member.__file__)) as owner,
    ):
        for number, gate in enumerate(gates):
            owner.ask("start", run=f"r{number}", plan="look hold", input=str(gate))
            assert eventually(lambda: holds(path, f"r{number}"), WITHIN_S)  # noqa: B023  called here
        cluster.kill_gcs()
        gates[0].touch()
        result = owner.ask("result", run="r0")
        assert result.get("outcome") == "completed", result
        owner.ask("start", run="r2", plan="look", input="go")
        began = time.monotonic()
        assert owner.ask("start", run="r3", plan="look", input="go") == {"started": "r3"}
        assert time.monotonic() - began < SHORT_S, "making an actor doesn't hold the owner's loop up"
        if WAITS_FOR_RAY:
            assert owner.process.wait(RAY_ENDS_S) != 0
        else:
            owner.kill()
        gates[1].touch()
        with runtime_on(path, far) as following:
            for run_id in ("r1", "r2", "r3"):
                assert completed(following.result(run_id, WITHIN_S))
