"""A host that is taken for dead and lives on: stopped itself, or on a node that Ray lost sight of."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kill.judge import FORBIDDEN
from tests.kill.run import on_a_cluster


def test_hosts_that_are_given_up_and_live_on_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    found, lines = on_a_cluster(tmp_path, 2, 12, ["run-actor", "raylet"])
    assert {name: found[name] for name in FORBIDDEN if found[name]} == {}, lines
    assert found["runs left"] == 0
    assert found["run actors stopped until they were given up"] == 1
    assert found["nodes stopped until they were taken for dead"] == 1
    assert found["zombies refused"] > 0
