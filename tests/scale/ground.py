"""Where a check of the scale suite stands: a Ray of one node in this process, and the limits of a process."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Final

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


@contextlib.contextmanager
def one_node() -> Generator[None]:
    """A Ray on this machine; the one that the process is attached to already, if it is."""
    import ray

    if ray.is_initialized():
        yield
        return
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
        yield
    finally:
        ray.shutdown()


def say(text: str) -> None:
    """A line of progress, apart from the figures."""
    print(text, file=sys.stderr, flush=True)
