"""The cluster that faults are tried on: it sees what runs on which node, and leaves nothing."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Iterator
from typing import Any, Final

import pytest
from tests.ray.cluster import LocalCluster
from tests.ray.process_table import Process, alive, eventually

ray: Final[Any] = importlib.import_module("ray")  # its own types are only half there

ACTORS_START_S: Final = 30.0


class Sleeper:
    """An actor that does nothing."""

    def pid(self) -> int:
        return os.getpid()


@pytest.fixture(scope="module")
def connected(cluster: LocalCluster) -> Iterator[LocalCluster]:
    ray.init(address=cluster.address, namespace="harness", log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()


def sleepers(nodes: tuple[int, ...]) -> list[Any]:
    made = [
        ray.remote(Sleeper).options(num_cpus=0, resources={f"node{index}": 0.001}).remote() for index in nodes
    ]
    ray.get([actor.pid.remote() for actor in made], timeout=ACTORS_START_S)
    return made


def on_node(found: list[Process], index: int) -> list[Process]:
    return [process for process in found if process.node == str(index)]


def test_actors_are_listed_by_node_and_memory_counts_all_processes(connected: LocalCluster) -> None:
    made = sleepers((1, 1, 2))
    found = connected.actors("Sleeper")
    assert sorted(process.node for process in found) == ["1", "1", "2"]
    assert {process.pid for process in found} == set(ray.get([actor.pid.remote() for actor in made]))
    whole = connected.pss_bytes()
    titles = " ".join(process.title for process in connected.processes())
    assert "gcs_server" in titles
    assert titles.count("raylet/raylet") == 3
    assert 200 * 2**20 < whole < 2**31
    for actor in made:
        ray.kill(actor)
    assert connected.left_after(found, 10.0) == []


def test_a_killed_raylet_takes_its_actors_along_and_another_node_can_be_added(
    connected: LocalCluster,
) -> None:
    added = connected.add_node()
    made = sleepers((added.index, 1))
    found = connected.actors("Sleeper")
    connected.kill_raylet(added)
    assert connected.await_dead(added)
    assert connected.left_after(on_node(found, added.index), 10.0) == []
    assert len(alive(on_node(found, 1))) == 1
    del made


def test_a_stopped_node_is_dead_for_ray_while_its_actor_lives_on(connected: LocalCluster) -> None:
    added = connected.add_node()
    made = sleepers((added.index,))
    found = on_node(connected.actors("Sleeper"), added.index)
    stopped = connected.stop_node(added)
    assert [process.pid for process in stopped] == [added.raylet_pid]
    assert connected.await_dead(added)
    assert alive(found) == found
    connected.go_on(stopped)
    assert connected.left_after([*found, *stopped], 30.0) == []
    del made


def test_what_is_not_of_the_cluster_is_never_seen(connected: LocalCluster) -> None:
    assert os.getpid() not in {process.pid for process in connected.processes()}
    assert os.getppid() not in {process.pid for process in connected.processes()}


def test_the_end_leaves_no_process(connected: LocalCluster) -> None:
    ray.shutdown()
    with LocalCluster(nodes=1) as alone:
        processes = alone.processes()
        os.kill(alone.nodes[0].raylet_pid, signal.SIGSTOP)
        assert eventually(lambda: any(process.state == "T" for process in alone.processes()), ACTORS_START_S)
    assert alive(processes) == []
    assert alive(connected.processes()) != []
