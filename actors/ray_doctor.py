"""What ``doctor --ray`` finds out by joining a cluster, or by starting one: whether it answers, and who is in it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any, Final

from ..runtime.errors import BoundloopError
from .doctor_findings import Finding, fail, ok, warn
from .doctor_ray import CLOSE_IT, OPEN_TO_OTHERS
from .ray_cluster import RayUnavailable, join, refuse_unheard

ANSWER_S: Final = 30.0
SLOW_START_S: Final = 2.0


class Probe:
    """An actor that says where it is."""

    def niceness(self) -> int:
        return os.getpriority(os.PRIO_PROCESS, 0)


def check_cluster(address: str) -> Iterator[Finding]:
    """Join (``local`` starts one and ends it again), look at the nodes, and run one actor."""
    began = time.monotonic()
    try:
        refuse_unheard(address)
    except RayUnavailable:
        yield fail(
            "cluster",
            f"no GCS answers at {address}",
            "no Runtime can use it",
            "ray start, or another address",
        )
        return
    try:
        cluster = join(address)
    except BoundloopError as error:
        yield fail("cluster", f"{address}: {error.message}", "no Runtime can use it", "see the reason")
        return
    try:
        yield ok("cluster", f"{address} answers after {time.monotonic() - began:.1f} s")
        yield from _nodes()
        yield _actor()
    finally:
        cluster.leave()


def _ray() -> Any:
    """Ray, whose own types are only half there."""
    import ray

    return ray


def _nodes() -> Iterator[Finding]:
    rows: list[dict[str, Any]] = _ray().nodes()
    alive = [row for row in rows if row.get("Alive")]
    machines = {str(row.get("NodeManagerAddress")) for row in alive}
    found = f"{len(alive)} alive on {len(machines)} machines, {len(rows) - len(alive)} dead"
    if len(machines) > 1 and os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        yield fail("cluster.nodes", f"{found}, without token authentication", OPEN_TO_OTHERS, CLOSE_IT)
    else:
        yield ok("cluster.nodes", found)


def _actor() -> Finding:
    ray = _ray()
    began = time.monotonic()
    probe = ray.remote(Probe).options(num_cpus=0, max_restarts=0, max_task_retries=0).remote()
    try:
        niceness = ray.get(probe.niceness.remote(), timeout=ANSWER_S)
    except Exception as error:  # noqa: BLE001  whatever Ray raises, the finding says it
        return fail(
            "cluster.actor",
            f"{type(error).__name__}: {str(error)[:200]}",
            "no run can be hosted: an actor could not be made in time",
            "ray status; look for memory, CPU and worker start-up in the logs of the raylet",
        )
    finally:
        ray.kill(probe)
    took = time.monotonic() - began
    found = f"an actor answered after {took:.1f} s, at niceness {niceness}"
    if took > SLOW_START_S:
        return warn(
            "cluster.actor",
            found,
            "runs start from actors that are warm, but new ones come slowly: a node makes as many at once as it has CPUs",
            "more CPUs, or fewer actors of more runs each",
        )
    return ok("cluster.actor", found)
