"""Hosts and attached Runtimes on other nodes than the store's owner: they reach it by the messenger beside it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import ray as real_ray
from examples.far_side import FarSide
from tests.attach_play import half_of
from tests.ray.cluster import LocalCluster
from tests.ray.run_actor_play import (
    LIMITS,
    WITHIN_S,
    completed,
    events_so_far,
    host_with,
    runtime_on,
    start,
    supervisor_of,
    until,
)

from boundloop.actors import ray_run_actors
from boundloop.actors.client import Runtime
from boundloop.runtime import events as e

ray: Any = real_ray  # it has few types of its own
PLAIN: Final = dict(ray_run_actors.OWNED_OPTIONS)


@pytest.fixture(scope="module")
def elsewhere(cluster: LocalCluster) -> Iterator[str]:
    """The resource of a node that isn't this process's."""
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    here = ray.get_runtime_context().get_node_id()
    index = next(node.index for node in cluster.nodes if node.inner.node_id != here and node.index)
    yield f"node{index}"
    ray.shutdown()


@pytest.fixture
def far() -> Iterator[FarSide]:
    with FarSide.start() as made:
        yield made


@pytest.fixture
def runtime(
    elsewhere: str, tmp_path: Path, far: FarSide, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Runtime]:
    """An owner whose run actors are all on the other node."""
    make_messenger = vars(ray_run_actors)["_messenger_actor"]

    def messenger(*given: Any) -> Any:
        with monkeypatch.context() as for_it:
            for_it.setattr(ray_run_actors, "OWNED_OPTIONS", PLAIN)
            return make_messenger(*given)

    monkeypatch.setattr(ray_run_actors, "_messenger_actor", messenger)
    monkeypatch.setattr(ray_run_actors, "OWNED_OPTIONS", PLAIN | {"resources": {elsewhere: 1}})
    with runtime_on(tmp_path / "runs.db", far, ray="require") as made:
        yield made


def node_of(cluster: LocalCluster, pid: int) -> str:
    return next(f"node{process.node}" for process in cluster.processes() if process.pid == pid)


def test_a_run_is_carried_on_another_node_and_survives_its_messenger(
    runtime: Runtime, cluster: LocalCluster, elsewhere: str, tmp_path: Path, far: FarSide
) -> None:
    gate = tmp_path / "gate"
    run_id = start(runtime, "look hold book", str(gate))
    first = host_with(runtime, run_id)
    assert node_of(cluster, first) == elsewhere
    until("it is at its call", lambda: isinstance(events_so_far(runtime, run_id)[-1], e.CallStarted))
    messenger = half_of(runtime).serving._cluster._messenger
    killed = messenger.handle
    ray.kill(killed)
    until("another messenger is there", lambda: messenger.handle is not killed)
    second = host_with(runtime, run_id, other_than=first)
    assert node_of(cluster, second) == elsewhere
    gate.touch()
    assert completed(runtime.result(run_id, WITHIN_S))
    assert sum(far.counts()["effects"].values()) == 1
    assert supervisor_of(runtime).deaths >= 1


def attached_elsewhere(path: str) -> dict[str, Any]:
    with runtime_on(path) as runtime:
        half = half_of(runtime)
        run = runtime.run_sync("go", system="look", limits=LIMITS)
        waiting = runtime.run_sync("go", system="pay", limits=LIMITS)
        runtime.approve(waiting.run_id, waiting.approvals[0].approval_id, by="os:ann@desk")
        return {
            "store": type(half.serving.store).__name__,
            "completed": [completed(run), completed(runtime.wait(waiting.run_id, WITHIN_S))],
            "seqs": [item.seq for item in runtime.stream(run.run_id)],
            "rows": [row.completed for row in runtime.map(["a", "b"], system="look", limits=LIMITS)],
        }


def test_a_runtime_on_another_node_attaches_through_the_messenger(
    runtime: Runtime, elsewhere: str, tmp_path: Path
) -> None:
    task: Any = ray.remote(attached_elsewhere).options(num_cpus=0, resources={elsewhere: 1})
    said = ray.get(task.remote(str(tmp_path / "runs.db")), timeout=WITHIN_S)
    assert said["store"] == "CarriedStore"
    assert said["completed"] == [True, True]
    assert said["rows"] == [True, True]
    assert said["seqs"] == list(range(1, len(said["seqs"]) + 1))
