"""Which processes belong to a cluster under test, by a mark in their environment.

A process hands its environment down, so whatever a raylet starts carries the mark of its node, also once the raylet is
gone and its children belong to nobody. Some of Ray's agents write their title over the mark; those count by their
parent for as long as it lives.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

MARK: Final = "BOUNDLOOP_CLUSTER_UNDER_TEST"
POLL_S: Final = 0.05


class Process(NamedTuple):
    """One process as it was seen. ``start`` in ticks since boot: with the pid it names a process for good."""

    pid: int
    start: int
    parent: int
    node: str
    state: str
    title: str

    @property
    def actor(self) -> str:
        """The class of the actor that it is; empty if it is none."""
        name = self.title.removeprefix("ray::").split(".")[0].split(":")[-1].strip()
        return name if self.title.startswith("ray::") and name not in _RAYS_OWN else ""


_RAYS_OWN: Final = frozenset(("IDLE", "DashboardAgent", "RuntimeEnvAgent", ""))


def marked(token: str) -> list[Process]:
    """The living processes that carry ``token``, zombies left out. The node is what follows ``token:`` in the mark."""
    found = {process.pid: process for process in _all(f"{MARK}={token}:".encode())}
    nodes = {pid: process.node for pid, process in found.items() if process.node}
    return [
        process._replace(node=nodes.get(process.pid) or nodes[process.parent])
        for process in found.values()
        if process.pid in nodes or process.parent in nodes
    ]


def _all(mark: bytes) -> Iterator[Process]:
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            fields = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()
            environment = _read(f"/proc/{name}/environ")
            title = _read(f"/proc/{name}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # gone meanwhile, or another user's
            continue
        if fields[0] in (b"Z", b"X"):
            continue
        at = environment.find(mark)
        node = environment[at + len(mark) :].partition(b"\0")[0].decode() if at >= 0 else ""
        yield Process(int(name), int(fields[19]), int(fields[1]), node, fields[0].decode(), title)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def alive(processes: Iterable[Process]) -> list[Process]:
    """Those that still live: the same pid with the same start, and no zombie."""
    left: list[Process] = []
    for process in processes:
        try:
            fields = _read(f"/proc/{process.pid}/stat").rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[19]) == process.start and fields[0] not in (b"Z", b"X"):
            left.append(process)
    return left


def alive_after(processes: Iterable[Process], seconds: float) -> list[Process]:
    """Those that still live after so long; returns as soon as there is none."""
    left = alive(processes)
    deadline = time.monotonic() + seconds
    while left and time.monotonic() < deadline:
        select.select([], [], [], POLL_S)
        left = alive(left)
    return left


def send(processes: Iterable[Process], number: signal.Signals) -> int:
    """Signal each of them that is still the process that was seen; how many got it."""
    reached = 0
    for process in processes:
        if alive([process]):
            try:
                os.kill(process.pid, number)
            except ProcessLookupError:
                continue
            reached += 1
    return reached


def pss_bytes(processes: Iterable[Process]) -> int:
    """Their proportional set size together: shared pages count once over all who share them."""
    total = 0
    for process in processes:
        try:
            text = _read(f"/proc/{process.pid}/smaps_rollup").decode()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))
    return total


def eventually(happened: Callable[[], bool], seconds: float) -> bool:
    """Whether it came true within the time."""
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() >= deadline:
            return False
        select.select([], [], [], POLL_S)
    return True
