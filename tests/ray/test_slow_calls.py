"""Ray's calls are held up at random, so that they overtake each other: what is done and how often stays the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kill.judge import FORBIDDEN
from tests.kill.run import on_a_cluster

DELAYS = "CoreWorkerService.grpc_server.PushTask=0:150000,CoreWorkerService.grpc_server.KillActor=0:300000"
"""Up to so many microseconds before a call of an actor, or its end, is dealt with."""


def test_calls_that_overtake_each_other_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv("RAY_testing_asio_delay_us", DELAYS)
    found, lines = on_a_cluster(tmp_path, 1, 13, ["executor"])
    assert {name: found[name] for name in FORBIDDEN if found[name]} == {}, lines
    assert found["runs left"] == 0
    assert found["effects"] > 10
