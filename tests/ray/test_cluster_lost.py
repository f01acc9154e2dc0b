"""All of Ray is killed at once, with everyone who uses it: what the store holds is enough to go on with on a new cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kill.judge import FORBIDDEN
from tests.kill.run import on_a_cluster


def test_a_cluster_that_is_lost_whole_loses_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    found, lines = on_a_cluster(tmp_path, 1, 11, ["cluster"])
    assert {name: found[name] for name in FORBIDDEN if found[name]} == {}, lines
    assert found["runs left"] == 0
    assert found["killed: cluster"] == 1
    assert found["acknowledged to the driver: started"] > 5
