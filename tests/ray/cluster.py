"""A Ray cluster of several nodes on one machine, to break: raylets that are killed or stopped, and what is left then.

Everything of it is under a folder of its own; it listens where Ray listens, on the machine's own address. Whoever makes
it need not be connected to it. Ended by ``close``, by the pids that were seen, and by Ray's own reaper if this process
dies first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Final, Self

from tests.ray.process_table import MARK, Process, alive, alive_after, eventually, marked, pss_bytes, send

OBJECT_STORE_BYTES: Final = 80 * 1024 * 1024
"""Ray's least."""

END_S: Final = 10.0


@contextlib.contextmanager
def one_node(namespace: str = "boundloop") -> Generator[None]:
    """This process attached to a cluster of one node, for the time of the block."""
    import ray as real_ray

    ray: Any = real_ray  # it has few types of its own
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        namespace=namespace,
        num_cpus=2,
        logging_level=logging.ERROR,
    )
    try:
        yield
    finally:
        ray.shutdown()


@dataclass(frozen=True)
class HealthCheck:
    """How Ray finds that a node is dead. A killed raylet's connection fails at once, so it is dead after about
    ``failures`` periods; a stopped one lets each check run into its time-out as well."""

    initial_delay_ms: int = 500
    period_ms: int = 500
    timeout_ms: int = 2_000
    failures: int = 3

    @property
    def stopped_s_max(self) -> float:
        """Until a stopped node counts as dead, at most, on a machine that isn't overloaded."""
        return (self.failures + 1) * (self.period_ms + self.timeout_ms) / 1_000 + 1.0

    def config(self) -> dict[str, int]:
        return {
            "health_check_initial_delay_ms": self.initial_delay_ms,
            "health_check_period_ms": self.period_ms,
            "health_check_timeout_ms": self.timeout_ms,
            "health_check_failure_threshold": self.failures,
        }


class LocalNode:
    """One node. ``index`` 0 is the head; the resource ``node<index>`` stands on it alone, to place actors by."""

    def __init__(self, index: int, node: Any) -> None:
        self.index = index
        self.inner = node
        self.raylet: subprocess.Popen[bytes] = node.all_processes["raylet"][0].process
        self.raylet_pid = self.raylet.pid


class LocalCluster:
    """Use as a context manager. ``cpus`` is per node."""

    def __init__(self, *, nodes: int = 3, cpus: int = 2, health: HealthCheck | None = None) -> None:
        self.health = health or HealthCheck()
        self._cpus = cpus
        self._token = token_hex(8)
        self._folder = tempfile.mkdtemp(prefix="ray-")
        self._seen: dict[tuple[int, int], Process] = {}
        self._made = 0
        self.nodes: list[LocalNode] = []
        try:
            self._cluster = self._begin()
            for _ in range(nodes - 1):
                self.add_node()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> Any:
        from ray.cluster_utils import Cluster

        logging.getLogger("ray").setLevel(logging.ERROR)
        cluster: Any = Cluster(initialize_head=False)
        with self._environment():
            head = cluster.add_node(
                num_cpus=self._cpus,
                resources={"node0": 1_000},
                include_dashboard=False,
                include_log_monitor=False,
                object_store_memory=OBJECT_STORE_BYTES,
                _system_config=self.health.config(),
            )
        self.nodes.append(LocalNode(0, head))
        self._made = 1
        return cluster

    @property
    def address(self) -> str:
        """What ``ray.init(address=…)`` takes."""
        return str(self._cluster.address)

    def add_node(self) -> LocalNode:
        """One more node; it is registered when this returns. About a second."""
        index = self._made
        self._made += 1
        with self._environment():
            node = self._cluster.add_node(
                num_cpus=self._cpus,
                resources={f"node{index}": 1_000},
                object_store_memory=OBJECT_STORE_BYTES,
            )
        made = LocalNode(index, node)
        self.nodes.append(made)
        return made

    @contextlib.contextmanager
    def _environment(self) -> Generator[None]:
        """What the next node's processes inherit."""
        names = {MARK: f"{self._token}:{self._made - 1 if self.nodes else 0}", "RAY_TMPDIR": self._folder}
        before = {name: os.environ.get(name) for name in names}
        os.environ.update(names)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    # --- what runs -----------------------------------------------------------------------------------------------

    def processes(self) -> list[Process]:
        """Every process of the cluster: GCS, raylets, agents, workers, and what those started."""
        self._reap()
        found = marked(self._token)
        self._seen.update({(process.pid, process.start): process for process in found})
        return found

    def actors(self, *names: str) -> list[Process]:
        """The processes that are actors, of these classes (none given: of any)."""
        return [
            process for process in self.processes() if process.actor and (not names or process.actor in names)
        ]

    def pss_bytes(self) -> int:
        """Memory of all of them."""
        return pss_bytes(self.processes())

    def left_after(self, processes: list[Process], seconds: float) -> list[Process]:
        """Those that still live after so long; returns as soon as there is none."""

        def none_left() -> bool:
            self._reap()
            return not alive(processes)

        eventually(none_left, seconds)
        return alive(processes)

    def leaked(self, seconds: float, *names: str) -> list[Process]:
        """The actors that are there now and still there after so long."""
        return self.left_after(self.actors(*names), seconds)

    # --- what breaks ---------------------------------------------------------------------------------------------

    def kill_raylet(self, node: LocalNode) -> None:
        """SIGKILL. Its workers end by themselves once they notice."""
        self.processes()
        os.kill(node.raylet_pid, signal.SIGKILL)
        node.raylet.wait(END_S)
        self._forget(node)

    def stop_node(self, node: LocalNode, *, workers: bool = False) -> list[Process]:
        """SIGSTOP its raylet, and its workers too if asked: what Ray takes for dead may live on. What was stopped."""
        mine = [process for process in self.processes() if process.node == str(node.index)]
        stopped = [process for process in mine if workers or process.pid == node.raylet_pid]
        send(stopped, signal.SIGSTOP)
        return stopped

    def go_on(self, stopped: list[Process]) -> None:
        """SIGCONT. A raylet that was taken for dead ends itself some seconds later, and then its workers do."""
        send(stopped, signal.SIGCONT)

    def kill_gcs(self) -> None:
        """SIGKILL the head's GCS: without it, the cluster is lost."""
        self.processes()
        gcs = self.nodes[0].inner.all_processes["gcs_server"][0].process
        os.kill(gcs.pid, signal.SIGKILL)
        gcs.wait(END_S)

    def is_alive(self, node: LocalNode) -> bool:
        """What Ray thinks of it."""
        return node.inner.node_id in self._cluster.global_state._live_node_ids()

    def await_dead(self, node: LocalNode) -> bool:
        """Whether Ray takes the node for dead within the time that its health check needs."""
        return eventually(lambda: not self.is_alive(node), self.health.stopped_s_max + 5.0)

    def _reap(self) -> None:
        """A raylet that ended is a child of this process, and a zombie until it is asked for: to its workers, which
        look whether its pid exists, it would still be alive."""
        for node in list(self.nodes):
            if node.raylet.poll() is not None:
                self._forget(node)

    def _forget(self, node: LocalNode) -> None:
        self.nodes.remove(node)
        self._cluster.worker_nodes.discard(node.inner)

    # --- the end -------------------------------------------------------------------------------------------------

    def close(self) -> list[Process]:
        """End everything that was ever seen of it, by pid. What could not be ended: always none."""
        self.processes()
        send(self._seen.values(), signal.SIGKILL)
        left = alive_after(self._seen.values(), END_S)
        cluster = getattr(self, "_cluster", None)
        if cluster is not None:
            cluster.global_state.disconnect()
            for node in (*cluster.worker_nodes, *filter(None, [cluster.head_node])):
                node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
            cluster.worker_nodes.clear()
            cluster.head_node = None
        shutil.rmtree(self._folder, ignore_errors=True)
        return left

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
