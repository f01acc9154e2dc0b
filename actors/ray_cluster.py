"""The Ray cluster that a Runtime uses: joined if the process is attached to one, started if asked for, refused if unsafe.

One of the files that import Ray, and only when a Runtime that uses Ray is made.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Generator, Iterable
from typing import Any, Final

from ..runtime.errors import CallerError, DeclarationError, StoreError
from .ray_calls import leave_and_end, leave_to_others, untyped_ray

NAMESPACE: Final = "boundloop"
"""All our actors are in it. A name in a namespace is an address, never a permission: whoever reaches the cluster reaches
every actor in it."""

LOCAL_OBJECT_STORE_BYTES: Final = 128 * 1024 * 1024
"""Calls and results are small and don't go through the object store; it is only as large as Ray insists."""


CONNECT_S: Final = 5.0
GREETING_S: Final = 10.0
"""How long joining waits for what listens at an address: a GCS that answers does so within milliseconds."""

TOKEN_HINT: Final = (
    'If that cluster asks for a token, as each does that ray="local" started, set RAY_AUTH_MODE=token and have its token in '
    "~/.ray/auth_token"
)

_SETTINGS: Final = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""An empty frame of HTTP/2: its length, type, flags and stream."""

PORT_MAX: Final = 65_535


class RayUnavailable(CallerError):
    """There is no cluster to attach to, or it can't be reached."""


class Cluster:
    """What this process knows of its cluster. ``started``: by us, so ended by ``leave``."""

    def __init__(self, *, started: bool) -> None:
        ray = untyped_ray()
        self.started = started
        self.node_id: str = ray.get_runtime_context().get_node_id()
        self.address: str = ray.get_runtime_context().gcs_address

    def other_nodes(self) -> bool:
        """Whether the cluster has, or had, a node besides this one."""
        ray = untyped_ray()
        nodes: list[dict[str, Any]] = ray.nodes()
        return sum(1 for node in nodes if node.get("Alive")) > 1

    def leave(self) -> None:
        """End what ``join`` started. What the application is attached to, it may leave once this returns. Waits up to 5 s for
        calls that are out."""
        if self.started and untyped_ray().is_initialized():
            leave_and_end()
            _notices_to(None)
        else:
            leave_to_others()


def send_by_value(modules: Iterable[str]) -> None:
    """What these modules define is pickled as what a script defines, not by its name."""
    pickler = untyped_ray().cloudpickle
    for name in sorted(modules):
        if name in sys.modules:
            pickler.register_pickle_by_value(sys.modules[name])


def attached() -> bool:
    """Whether this process is attached to a cluster already. Doesn't import Ray."""
    ray: Any = sys.modules.get("ray")
    return ray is not None and getattr(ray, "is_initialized", lambda: False)() is True


def refuse_client(address: str) -> None:
    """Raises ``DeclarationError`` for an address of Ray Client."""
    if address.startswith("ray://"):
        raise DeclarationError(
            "ray_client",
            "Ray Client (ray://) puts a proxy between a run and its actors, and a lost channel loses their answers: "
            "run inside the cluster, or give its GCS address",
            path="ray",
        )


def refuse_bad_address(ray_option: str | None, *, path: str = "ray") -> None:
    """Raises ``DeclarationError`` for what can't be an address, by its form alone. ``path``: where it was given."""
    if ray_option in (None, "local", "require", "auto"):
        return
    address = str(ray_option)
    refuse_client(address)
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) <= PORT_MAX:
        raise DeclarationError(
            "ray_address",
            f'"{address[:100]}" is no HOST:PORT of a cluster\'s GCS, such as "10.0.0.5:6379", nor "local", "require" or '
            '"auto"; the port of the dashboard or of its job API is another',
            path=path,
        )


def refuse_unheard(address: str) -> None:
    """Raises ``RayUnavailable`` unless something at ``HOST:PORT`` accepts a connection within ``CONNECT_S``, and greets as a
    gRPC server does within ``GREETING_S`` (under TLS: only accepts). Any other form passes. Ray itself would try for more
    than eight minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        return
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_S) as there:
            if os.environ.get("RAY_USE_TLS", "0") in ("", "0", "false"):
                there.settimeout(GREETING_S)
                _greeted(there)
    except (OSError, OverflowError) as error:
        raise RayUnavailable(
            "ray_unreachable",
            f'no GCS of Ray answers there ({type(error).__name__}): give the address that "ray start --head" printed, or '
            'ray="local" for a cluster of this machine; "boundloop doctor --ray ADDRESS" looks closer',
            path=address,
        ) from error


def _greeted(there: socket.socket) -> None:
    """Begin to speak HTTP/2 (RFC 9113, 3.4), whose servers answer with a SETTINGS frame. Raises ``OSError`` for another
    answer, or none."""
    there.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _SETTINGS)
    header = b""
    while len(header) < len(_SETTINGS):
        more = there.recv(len(_SETTINGS) - len(header))
        if not more:
            raise ConnectionError("it hung up")
        header += more
    if header[3] != _SETTINGS[3] or header[5:] != bytes(4):
        raise ConnectionError("it isn't a gRPC server")


def join(ray_option: str | None) -> Cluster:
    """Attach as ``Runtime(ray=…)`` says: None and "require" use the cluster that the process is attached to ("require"
    also one named by ``RAY_ADDRESS``), "local" starts one on this machine, anything else is a GCS address.

    Raises ``DeclarationError`` for what is no such address, ``RayUnavailable`` (within ``CONNECT_S`` and ``GREETING_S`` for
    an address where no cluster is), ``StoreError`` for an unsupported Ray. Called on a thread
    that lives as long as the cluster is used: a started cluster ends with that thread.
    """
    refuse_bad_address(ray_option)
    if ray_option == "require":
        refuse_bad_address(os.environ.get("RAY_ADDRESS") or None, path="RAY_ADDRESS")
    try:
        ray = untyped_ray()
    except ImportError as error:
        raise RayUnavailable("ray_missing", "install ray to use it", path="ray") from error
    if ray.is_initialized():
        client: Any = ray.util.client.ray
        if client.is_connected():
            refuse_client("ray://")
        if ray_option not in (None, "require", "local"):
            _same_cluster(str(ray_option))
        return Cluster(started=False)
    if ray_option is None:
        raise RayUnavailable("ray_not_attached", "this process is attached to no cluster", path="ray")
    address = (os.environ.get("RAY_ADDRESS") or "auto") if ray_option == "require" else ray_option
    refuse_unheard(address)
    _notices_to(_NOTICES)
    with _only_errors():
        if ray_option == "local":
            _start_local()
            return Cluster(started=True)
        try:
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise RayUnavailable(
                "ray_unreachable", f"{str(error)[:300]}. {TOKEN_HINT}", path=address
            ) from error
    return Cluster(started=True)


def _start_local() -> None:
    ray = untyped_ray()
    # The driver would print its workers' output and Ray's own notices among the application's.
    os.environ.setdefault("RAY_DISABLE_IMPORT_WARNING", "1")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's own default puts its workers below everything on the machine: a run actor that gets no time loses its runs.
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init(
        address="local",
        namespace=NAMESPACE,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        object_store_memory=LOCAL_OBJECT_STORE_BYTES,
        _node_ip_address="127.0.0.1",
    )


_NOTICES: Final = logging.getLogger("boundloop.ray")
_printing: list[Any] = []


def _notices_to(logger: logging.Logger | None) -> None:
    """Ray prints each worker's death as a paragraph on its driver's standard output, whatever it is told about logs. In a
    cluster that we joined for ourselves they go to a logger instead; None gives them back. There is no public way."""
    ray = untyped_ray()
    worker: Any = ray._private.worker
    if logger is None:
        if _printing:
            worker.print_to_stdstream = _printing.pop()
        return
    if not hasattr(worker, "print_to_stdstream") or _printing:
        return
    _printing.append(worker.print_to_stdstream)

    def tell(data: dict[str, Any], ignore_prefix: bool = False) -> None:
        for line in data.get("lines", ()):
            logger.info("%s: %s", data.get("pid", ""), str(line)[:2_000])

    worker.print_to_stdstream = tell


@contextlib.contextmanager
def _only_errors() -> Generator[None]:
    """While it joins, Ray tells its driver's terminal of signals and tokens that are as we want them."""
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _same_cluster(address: str) -> None:
    ray = untyped_ray()
    here = ray.get_runtime_context().gcs_address
    if address not in ("auto", here):
        raise StoreError("other_cluster", f"this process is attached to {here}, not to {address}", path="ray")
