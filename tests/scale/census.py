"""What runs on behalf of the system under test: its processes, their threads, open files, memory and CPU.

The system is this process with everything that it started, Ray's own daemons included; servers that stand for the world
outside (models, far sides) are left out.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable
from typing import Final, NamedTuple

from bench.processes import family, family_cpu_s, threads_and_files
from tests.ray.process_table import eventually

SAMPLE_S: Final = 0.5
MIB: Final = 2**20


class Census(NamedTuple):
    """Counts over all processes of the system."""

    processes: int
    threads: int
    files: int
    pss_mib: int


class System:
    """``outside``: pids of the servers that aren't part of it. ``elsewhere``: open files that are none of a run's, such as
    the connections that an HTTP client keeps for its next request, up to a bound of its own."""

    def __init__(
        self, outside: Iterable[int | None] = (), *, elsewhere: Callable[[], int] = lambda: 0
    ) -> None:
        self._outside = frozenset(pid for pid in outside if pid is not None)
        self._elsewhere = elsewhere

    def pids(self) -> list[int]:
        """Its processes now."""
        return [pid for pid in family() if pid not in self._outside]

    def census(self) -> Census:
        """Its counts now."""
        pids = self.pids()
        threads = files = pss = 0
        for pid in pids:
            with contextlib.suppress(OSError):
                more_threads, more_files = threads_and_files(pid)
                threads += more_threads
                files += more_files
                pss += pss_bytes(pid)
        return Census(len(pids), threads, files - self._elsewhere(), pss // MIB)

    def settled(self, seconds: float = 20.0) -> Census:
        """Its counts once its processes and threads didn't change for a second, or after so many seconds."""
        last = self.census()
        changed = time.monotonic()

        def quiet() -> bool:
            nonlocal last, changed
            now = self.census()
            if now[:2] != last[:2]:
                changed = time.monotonic()
            last = now
            return time.monotonic() - changed >= 1.0

        eventually(quiet, seconds)
        return last

    def cpu_s(self) -> float:
        """CPU seconds that its living processes have used."""
        return sum(used for pid, used in family_cpu_s().items() if pid not in self._outside)

    def cpu_share(self, seconds: float) -> float:
        """CPU seconds a second, over so long."""
        began, used = time.monotonic(), self.cpu_s()
        threading.Event().wait(seconds)
        return (self.cpu_s() - used) / (time.monotonic() - began)

    @contextlib.contextmanager
    def watched(self) -> Generator[list[Census]]:
        """Counts taken all the time while the block lasts."""
        taken: list[Census] = [self.census()]
        over = threading.Event()

        def watch() -> None:
            while not over.wait(SAMPLE_S):
                taken.append(self.census())

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield taken
        finally:
            over.set()
            watcher.join()


def pss_bytes(pid: int) -> int:
    """Proportional set size of a process."""
    return _rollup(pid, "Pss:")


def rss_bytes(pid: int) -> int:
    """Resident set size of a process."""
    with open(f"/proc/{pid}/statm") as text:
        return int(text.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _rollup(pid: int, name: str) -> int:
    with open(f"/proc/{pid}/smaps_rollup") as text:
        return sum(int(line.split()[1]) * 1_024 for line in text if line.startswith(name))
