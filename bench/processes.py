"""A measurement over several processes: this one and everything that it started, Ray's own daemons included."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final, Self

_TICKS: Final = os.sysconf("SC_CLK_TCK")


def family() -> list[int]:
    """The pids of this process and all its descendants, as far as they live now."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := _stat(int(name))):
            children.setdefault(int(fields[1]), []).append(int(name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, ())
    return found


def family_cpu_s() -> dict[int, float]:
    """CPU seconds (user and system) so far, by pid."""
    used: dict[int, float] = {}
    for pid in family():
        fields = _stat(pid)
        if fields:
            used[pid] = (int(fields[11]) + int(fields[12])) / _TICKS
    return used


def family_pss_bytes() -> int:
    """Memory by proportional share, so that what processes share is counted once."""
    return sum(_pss_bytes(pid) for pid in family())


def threads_and_files(pid: int) -> tuple[int, int]:
    """How many threads and open files a process has."""
    return len(os.listdir(f"/proc/{pid}/task")), len(os.listdir(f"/proc/{pid}/fd"))


class FamilyStopwatch:
    """Wall seconds, and CPU seconds over the family. A process that began meanwhile counts whole; of one that ended, what
    it used since the start is lost: measure where none ends."""

    def __enter__(self) -> Self:
        self.wall_s = self.cpu_s = 0.0
        self._cpu = family_cpu_s()
        self._wall = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s = time.perf_counter() - self._wall
        self.cpu_s = sum(used - self._cpu.get(pid, 0.0) for pid, used in family_cpu_s().items())


def _stat(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` after the name: state first, then the parent. Empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _pss_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1_024 for line in text.splitlines() if line.startswith("Pss:"))
