"""Ray as far as it shows without Ray: the environment, this user's Ray processes, and the ports they listen on."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from .doctor_findings import Finding, fail, ok, warn
from .doctor_machine import ESTABLISHED, LISTEN, IpAddress, Machine, Process

SHOWN_MAX: Final = 8

OURS: Final = frozenset(("RunActor", "StoreMessenger", "SyncExecutor", "AsyncExecutor", "QuickExecutor"))
"""Titles of our actors' processes: the names of their classes."""

OPEN_TO_OTHERS: Final = (
    "whoever reaches these ports runs code as this user and reads every run: Ray trusts its network"
)
CLOSE_IT: Final = (
    "RAY_AUTH_MODE=token on every node before Ray starts, one token (ray get-auth-token --generate), and a private "
    "network or RAY_USE_TLS=1, since a token travels in the clear"
)

CHANGES: Final[tuple[tuple[str, str, str], ...]] = (
    # name or its beginning, what it means, what to do
    (
        "RAY_testing_",
        "Ray injects faults or delays: fine in a test, nowhere else",
        "unset it outside of tests",
    ),
    (
        "RAY_process_group_cleanup_enabled",
        "children of a killed tool executor may live on",
        "unset it: Ray's default ends them",
    ),
    (
        "RAY_memory_monitor_refresh_ms",
        "at 0 Ray kills nobody in time when memory runs out, and the kernel picks its own victim",
        "unset it, or keep it above 0",
    ),
    (
        "RAY_health_check_",
        "how long a dead node counts as alive; a host of runs is given up after 10 s by the store whatever this says",
        "keep Ray's defaults unless nodes are taken for dead wrongly",
    ),
    (
        "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES",
        "the object store is another size than Ray would choose",
        "64 MiB are plenty: results travel in events",
    ),
    (
        "RAY_max_direct_call_object_size",
        "results of tools may go through the object store, which dies with its owner",
        "unset it",
    ),
)


class Cluster(NamedTuple):
    """What runs here. ``auth`` and ``tls`` are those of a running GCS or raylet; None if none runs or tells."""

    processes: list[Process]
    open_ports: list[str]
    several_machines: str
    auth: str | None
    tls: bool


def role_of(process: Process) -> str:
    """What a Ray process is; empty for one that is none of Ray's."""
    program = process.command.partition(" ")[0].rpartition("/")[2]
    if program in ("gcs_server", "raylet"):
        return program
    if "/dashboard/dashboard.py" in process.command:
        return "dashboard" if "--disable-frontend" not in process.command else "api server"
    if "/ray/util/client/server" in process.command:
        return "client server"
    return "worker" if process.command.startswith("ray::") else ""


def cluster_here(machine: Machine) -> Cluster:
    """This user's Ray processes and how far they are open."""
    found = [process for process in machine.processes() if role_of(process)]
    holders = {inode: process for process in found for inode in machine.inodes_of(process.pid)}
    sockets = machine.sockets() if found else []
    own = {socket.local for socket in sockets} | _node_addresses(found)
    listening = [one for one in sockets if one.state == LISTEN and one.inode in holders]
    ports = [
        f"{role_of(holders[one.inode])} on {one.local}:{one.local_port}"
        for one in listening
        if not one.local.is_loopback
    ]
    gcs_ports = {one.local_port for one in listening if role_of(holders[one.inode]) == "gcs_server"}
    elsewhere = next(
        (
            f"{one.remote} is connected to the GCS"
            for one in sockets
            if one.state == ESTABLISHED
            and one.local_port in gcs_ports
            and one.remote not in own
            and not one.remote.is_loopback
        ),
        "",
    ) or _head_elsewhere(found, own)
    auth, tls = _protection(machine, found)
    return Cluster(found, sorted(set(ports)), elsewhere, auth, tls)


def _node_addresses(processes: list[Process]) -> set[IpAddress]:
    texts = [
        match
        for process in processes
        for match in re.findall(r"node[-_]ip[-_]address=(\S+)", process.command)
    ]
    return {address for text in texts if (address := _address(text)) is not None}


def _head_elsewhere(processes: list[Process], own: set[IpAddress]) -> str:
    for process in processes:
        for text in re.findall(r"gcs[-_]address=(\S+):\d+", process.command):
            address = _address(text)
            if role_of(process) == "raylet" and address is not None and address not in own:
                return f"a raylet here belongs to the head at {address}"
    return ""


def _address(text: str) -> IpAddress | None:
    try:
        return ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return None


def _protection(machine: Machine, processes: list[Process]) -> tuple[str | None, bool]:
    for process in processes:
        if role_of(process) in ("gcs_server", "raylet"):
            started_with = machine.environment_of(process.pid)
            if started_with is not None:
                return started_with.get("RAY_AUTH_MODE", "").lower() or "disabled", _is_on(
                    started_with.get("RAY_USE_TLS", "")
                )
    return None, False


def _is_on(text: str) -> bool:
    return text.lower() in ("1", "true")


# --- findings --------------------------------------------------------------------------------------------------------


def check_ray(machine: Machine, *, nobody_owns: bool = False) -> Iterator[Finding]:
    """Everything about Ray that shows without it. ``nobody_owns``: see ``check_actors``."""
    yield check_address(machine.environment)
    cluster = cluster_here(machine)
    yield check_exposure(cluster)
    yield check_authentication(machine.environment, cluster)
    yield check_dashboard(cluster)
    yield check_stopped(cluster)
    yield check_leaked(cluster)
    yield check_actors(cluster, nobody_owns=nobody_owns)
    yield check_log_to_driver(machine.environment)
    yield check_worker_niceness(machine.environment)
    yield from check_changes(machine.environment)


def check_address(environment: Mapping[str, str]) -> Finding:
    address = environment.get("RAY_ADDRESS", "")
    if address.startswith("ray://"):
        return fail(
            "ray.address",
            f"RAY_ADDRESS is {address}",
            "a Ray client puts a proxy between a Runtime and its actors: when its channel breaks, every handle is gone, and "
            "whoever reaches its port has the cluster. A Runtime refuses it",
            "run on a node of the cluster and name the GCS (HOST:6379) or auto",
        )
    return ok("ray.address", f"RAY_ADDRESS is {address}" if address else "RAY_ADDRESS is not set")


def check_exposure(cluster: Cluster) -> Finding:
    if not cluster.processes:
        return ok("ray.exposure", "no Ray process of this user runs here")
    if not cluster.open_ports:
        return ok("ray.exposure", "every port of Ray's that could be seen is on loopback")
    found = f"{len(cluster.open_ports)} ports beyond loopback: " + ", ".join(cluster.open_ports[:SHOWN_MAX])
    if cluster.several_machines and cluster.auth != "token":
        return fail("ray.exposure", f"{found}; {cluster.several_machines}", OPEN_TO_OTHERS, CLOSE_IT)
    if cluster.auth != "token":
        return warn("ray.exposure", found, OPEN_TO_OTHERS, CLOSE_IT)
    if cluster.several_machines and not cluster.tls:
        return warn(
            "ray.exposure",
            f"{found}, with token authentication; {cluster.several_machines}",
            "the token and all data travel unencrypted",
            "a private network, or RAY_USE_TLS=1 on every node",
        )
    return ok("ray.exposure", f"{found}, with token authentication")


def check_authentication(environment: Mapping[str, str], cluster: Cluster) -> Finding:
    mode = environment.get("RAY_AUTH_MODE", "").lower()
    running = "" if cluster.auth is None else f"; the Ray that runs here: {cluster.auth}"
    if mode == "token":
        return ok("ray.authentication", f"RAY_AUTH_MODE is token{running}")
    if mode:
        return warn(
            "ray.authentication", f"RAY_AUTH_MODE is {mode}{running}", OPEN_TO_OTHERS, "RAY_AUTH_MODE=token"
        )
    return ok(
        "ray.authentication",
        f"RAY_AUTH_MODE is not set{running}",
        "from 2.59 on Ray makes a token for a cluster that ray.init starts, and none for one that `ray start` starts",
        "RAY_AUTH_MODE=token wherever a cluster has more than one node",
    )


def check_dashboard(cluster: Cluster) -> Finding:
    roles = {role_of(process) for process in cluster.processes}
    if "client server" in roles:
        return warn(
            "ray.dashboard",
            "a Ray client server runs",
            OPEN_TO_OTHERS,
            "start the head with --ray-client-server-port=0",
        )
    if "dashboard" not in roles:
        return ok("ray.dashboard", "no dashboard runs")
    return warn(
        "ray.dashboard",
        "a dashboard runs",
        "it takes jobs from whoever reaches it, a browser on this machine included; its agents cost memory on each node",
        "include_dashboard=False, or ray start --include-dashboard=false",
    )


def check_stopped(cluster: Cluster) -> Finding:
    stopped = [process for process in cluster.processes if process.state in ("T", "t")]
    if not stopped:
        return ok("ray.stopped", "no Ray process is stopped")
    return warn(
        "ray.stopped",
        ", ".join(f"{role_of(one)} {one.pid}" for one in stopped[:SHOWN_MAX]),
        "Ray takes a stopped node for dead only after its health checks, and a stopped actor never; its runs go on "
        "elsewhere once its host's 10 s are over",
        "kill -CONT it, or end it",
    )


def check_leaked(cluster: Cluster) -> Finding:
    raylets = {process.pid for process in cluster.processes if role_of(process) == "raylet"}
    leaked = [
        process
        for process in cluster.processes
        if role_of(process) == "worker" and process.parent not in raylets
    ]
    if not leaked:
        return ok("ray.leaked", "every Ray worker here has its raylet")
    return warn(
        "ray.leaked",
        ", ".join(f"{one.command[:40].strip()} {one.pid}" for one in leaked[:SHOWN_MAX]),
        "workers whose raylet is gone: they hold memory, and one of a tool pool may still be at work. What they append is "
        "refused",
        "wait ten seconds; kill those that are still there by their pids",
    )


def check_actors(cluster: Cluster, *, nobody_owns: bool) -> Finding:
    """Actors of ours. ``nobody_owns``: a store was named, and no process owns it; its actors would have ended with it."""
    titles = [
        process.command.removeprefix("ray::").partition(" ")[0].partition(".")[0]
        for process in cluster.processes
        if role_of(process) == "worker"
    ]
    ours = Counter(title for title in titles if title in OURS)
    found = ", ".join(f"{count} {title}" for title, count in sorted(ours.items())) or "none of ours run here"
    if ours and nobody_owns:
        return warn(
            "ray.actors",
            f"{found}, and nobody owns the store that was named",
            "they are another store's, or were left by an owner that is gone; those end by themselves within seconds",
            "look again in half a minute; end by its pid what is nobody's",
        )
    return ok("ray.actors", found)


def check_log_to_driver(environment: Mapping[str, str]) -> Finding:
    given = environment.get("RAY_LOG_TO_DRIVER", "")
    if given and _is_on(given):
        return warn(
            "ray.log_to_driver",
            f"RAY_LOG_TO_DRIVER is {given}",
            "what workers print, a tool's secrets among it, comes out on the driver's terminal",
            "RAY_LOG_TO_DRIVER=0",
        )
    return ok("ray.log_to_driver", "a Runtime that starts Ray turns it off")


def check_worker_niceness(environment: Mapping[str, str]) -> Finding:
    given = environment.get("RAY_worker_niceness", "")
    if not given:
        return ok(
            "ray.worker_niceness",
            "workers run at niceness 15, Ray's default",
            "on a busy machine actors get what others leave; the owner of a store is no worker and keeps its own",
        )
    return ok("ray.worker_niceness", f"RAY_worker_niceness is {given}")


def check_changes(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Variables that change what Ray does in a way that shows in what is promised."""
    for name in sorted(environment):
        for beginning, means, do in CHANGES:
            if name.startswith(beginning):
                yield warn("ray.environment", f"{name} is set to {environment[name][:60]}", means, do)
