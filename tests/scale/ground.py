"""Where a check of the scale suite stands: a Ray of one node in this process, and the limits of a process."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final, Protocol

from tests.ray.cluster import LocalCluster
from tests.ray.process_table import MARK, Process, marked

ROOT: Final = Path(__file__).resolve().parent.parent.parent
FILES_MAX: Final = 16_384
OBJECT_STORE_BYTES: Final = 128 * 1024 * 1024


def prepare() -> None:
    """What every process of a check inherits: the checkout on the path, room for a connection a run, and Ray's workers no
    nicer than others, or on a busy machine they get nothing at all and are taken for dead."""
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES_MAX if hard == resource.RLIM_INFINITY else min(FILES_MAX, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class Ground(Protocol):
    """A cluster to stand on: this process's own, or one of several nodes."""

    @property
    def address(self) -> str:
        """What a Runtime in another process joins by."""
        ...

    def actors(self, *names: str) -> list[Process]:
        """The processes that are actors of these classes."""
        ...


class OneNode:
    """The Ray that this process is attached to."""

    @property
    def address(self) -> str:
        """See ``Ground``."""
        return str(_untyped_ray().get_runtime_context().gcs_address)

    def actors(self, *names: str) -> list[Process]:
        """See ``Ground``."""
        return [process for process in marked(_token()) if process.actor in names]


def _untyped_ray() -> Any:
    import ray

    return ray


def _token() -> str:
    """In the environment of everything that this process's Ray starts."""
    return f"scale-{os.getpid()}"


@contextlib.contextmanager
def one_node() -> Generator[OneNode]:
    """A Ray on this machine; the one that the process is attached to already, if it is."""
    ray = _untyped_ray()
    if ray.is_initialized():
        yield OneNode()
        return
    os.environ[MARK] = f"{_token()}:0"
    ray.init(
        address="local",
        namespace="boundloop",
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=OBJECT_STORE_BYTES,
        num_cpus=4,
    )
    try:
        yield OneNode()
    finally:
        ray.shutdown()
        del os.environ[MARK]


@contextlib.contextmanager
def nodes(count: int) -> Generator[Ground]:
    """So many; with one, as ``one_node``."""
    if count == 1:
        with one_node() as single:
            yield single
    else:
        with LocalCluster(nodes=count) as cluster:
            yield cluster


def say(text: str) -> None:
    """A line of progress, apart from the figures."""
    print(text, file=sys.stderr, flush=True)
