"""A limited group across owners: what a closed Runtime leaves at the far side takes places of the next one."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import ray as real_ray
from tests.attach_play import half_of, on_loop
from tests.ray.process_table import eventually

from boundloop.actors.client import Runtime
from boundloop.adapters.script import call, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.runtime.limits import WAIVED, Limits
from boundloop.runtime.tool_spec import tool

ray: Any = real_ray  # it has few types of its own
TIMEOUT_MS: Final = 60_000


@tool(risk="write", key="call", group="bank", timeout_ms=TIMEOUT_MS)
def pay_for_long(path: str) -> int:
    """Be at the far side until killed."""
    Path(path).write_text(str(os.getpid()))
    threading.Event().wait()
    return 0


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        namespace="groups",
        num_cpus=1,
        logging_level=logging.ERROR,
    )
    yield
    ray.shutdown()


def test_a_close_with_a_call_out_leaves_its_place_taken(cluster: None, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def opened() -> Runtime:
        return Runtime(
            store=f"sqlite:///{tmp_path}/runs.db",
            model=ScriptedModel([call("pay_for_long", {"path": str(begun)}), say("Done.")]),
            tools=[pay_for_long],
            groups={"bank": 1, "mail": 1},
            ray="require",
            run_actors=1,
        )

    with opened() as runtime:
        runtime.start("go", limits=Limits(cost=WAIVED))
        assert eventually(begun.exists, 60.0)
    with opened() as runtime:
        half = half_of(runtime).serving
        holds: dict[str, tuple[int, int]] = on_loop(runtime, half.store.group_holds())
        assert list(holds) == ["bank"]
        places, until_ms = holds["bank"]
        assert places == 1
        assert 0 < until_ms - half.store.now_ms() <= TIMEOUT_MS + 2_000
        group = half._cluster._pools.statistics().groups["bank"]
        assert (group.lost, group.closed) == (1, False)
