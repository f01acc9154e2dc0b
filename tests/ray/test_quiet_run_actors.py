"""What an application prints in a run actor: inline tools, permissions and adapters have no process of their own."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import ray as real_ray
from tests.ray.loud_application import CANARY, OURS, answer, glance, permissions
from tests.ray.process_table import eventually

from boundloop.actors.client import Runtime
from boundloop.adapters.scripted import ScriptedModel
from boundloop.runtime.limits import WAIVED, Limits

ray: Any = real_ray  # it has few types of its own
SESSIONS: Final = Path(tempfile.gettempdir()) / f"q{os.getpid()}"
"""Short: the names of sockets are made of it."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        namespace="quiet",
        num_cpus=1,
        logging_level=logging.ERROR,
        _temp_dir=str(SESSIONS),
    )
    yield
    ray.shutdown()
    shutil.rmtree(SESSIONS, ignore_errors=True)


def found(text: str) -> str:
    logs = SESSIONS / "session_latest" / "logs"
    return subprocess.run(
        ["grep", "-rl", text, str(logs)], capture_output=True, text=True, check=False, timeout=60
    ).stdout


def test_what_an_application_prints_in_a_run_actor_is_nowhere_in_rays_logs(
    cluster: None, tmp_path: Path
) -> None:
    """R26: and what boundloop itself has to say there is still heard."""
    with Runtime(
        store=f"sqlite:///{tmp_path}/runs.db",
        model=ScriptedModel(answer),
        tools=[glance],
        permissions=permissions,
        ray="require",
        run_actors=1,
        warm_actors=1,
    ) as runtime:
        result = runtime.run_sync("go", limits=Limits(cost=WAIVED))
        assert result.text == "Done."
        assert eventually(lambda: bool(found(OURS)), 10.0)
        assert found(CANARY) == ""
