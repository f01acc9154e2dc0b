"""How things are measured: clocks, sizes, the machine, and the median of repeats with its spread."""

from __future__ import annotations

import math
import os
import resource
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Self

from boundloop.eventstore.sqlite_file import connect

Figures = dict[str, float]
Facts = dict[str, object]
LIBRARIES: Final = ("boundloop", "msgspec", "pydantic")
YARDSTICK_S: Final = 0.2


class Stopwatch:
    """Wall seconds by the monotonic clock, CPU seconds (user and system) of this process with all its threads."""

    def __enter__(self) -> Self:
        self.wall_s = self.cpu_s = 0.0
        self._cpu = process_cpu_s()
        self._wall = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s = time.perf_counter() - self._wall
        self.cpu_s = process_cpu_s() - self._cpu


def process_cpu_s() -> float:
    """Used so far by this process and its threads; children are not counted."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def resident_bytes() -> int:
    """Of this process, now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def store_bytes(path: str) -> int:
    """All files of a closed SQLite store (database, log, shared memory, lock) after a TRUNCATE checkpoint."""
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    whole = Path(path)
    return sum(file.stat().st_size for file in whole.parent.glob(whole.name + "*") if file.is_file())


def machine(folder: str) -> Facts:
    """What a figure depends on besides the code, taken at the start. ``load_1m`` is the load average: above about 0.5,
    something else was running too. The yardsticks say how fast this machine was just then; compare ratios to them."""
    return {
        "python": sys.version.split()[0],
        "sqlite": sqlite3.sqlite_version,
        "cpus": os.cpu_count() or 0,
        "filesystem": _filesystem(folder),
        "libraries": {name: _version(name) for name in LIBRARIES},
        "load_1m": round(os.getloadavg()[0], 2),
        "yardstick_commits_per_s": rounded(bare_commits_per_s(folder, YARDSTICK_S)),
        "yardstick_sha256_1k_cpu_us": rounded(1e6 / sha256_1k_per_cpu_s(YARDSTICK_S)),
        "yardstick_python_cpu_us": rounded(python_cpu_us(YARDSTICK_S)),
    }


def bare_commits_per_s(folder: str, seconds: float) -> float:
    """The floor of a durable append: SQLite transactions of one UPDATE and one INSERT on this thread, in a new file with
    the store's own settings (WAL, synchronous FULL)."""
    path = os.path.join(folder, "bare.db")
    connection = connect(path)
    connection.execute("CREATE TABLE heads (run_key INTEGER PRIMARY KEY, seq INTEGER, head BLOB) STRICT")
    connection.execute(
        "CREATE TABLE rows (run_key INTEGER, seq INTEGER, body BLOB, hash BLOB, UNIQUE (run_key, seq)) STRICT"
    )
    connection.execute("INSERT INTO heads VALUES (1, 0, x'00')")
    body, head = os.urandom(350), os.urandom(32)
    count, start = 0, time.perf_counter()
    while count == 0 or time.perf_counter() - start < seconds:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            "UPDATE heads SET seq = ?, head = ? WHERE run_key = 1 AND seq = ?", (count + 1, head, count)
        )
        connection.execute("INSERT INTO rows VALUES (1, ?, ?, ?)", (count, body, head))
        connection.execute("COMMIT")
        count += 1
    passed = time.perf_counter() - start
    connection.close()
    for tail in ("", "-wal", "-shm"):
        Path(path + tail).unlink(missing_ok=True)
    return count / passed


def sha256_1k_per_cpu_s(cpu_seconds: float) -> float:
    """Digests of 1,024 bytes in a second of CPU time."""
    data = os.urandom(1_024)
    count, start = 0, time.process_time()
    while count == 0 or time.process_time() - start < cpu_seconds:
        for _ in range(1_000):
            sha256(data).digest()
        count += 1_000
    return count / (time.process_time() - start)


def python_cpu_us(cpu_seconds: float) -> float:
    """CPU microseconds of a thousand tuples put into a dict: how fast plain Python is here and now."""
    count, start = 0, time.process_time()
    while count == 0 or time.process_time() - start < cpu_seconds:
        made: dict[int, tuple[int]] = {}
        for number in range(1_000):
            made[number] = (number,)
        count += 1
    return (time.process_time() - start) / count * 1e6


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def _filesystem(folder: str) -> str:
    """The type of the file system that holds ``folder``: the longest mount point above it."""
    real, best, kind = os.path.realpath(folder), "", "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, found = line.split()[:3]
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, found
    return kind


def repeated(once: Callable[[int], Figures], repeat: int) -> Facts:
    """The median of each figure over ``repeat`` fresh measurements (``once`` gets their number), and under ``spread``
    the least and the greatest."""
    return medians([once(number) for number in range(repeat)])


def medians(samples: Sequence[Figures]) -> Facts:
    """See ``repeated``. Every sample has the same figures."""
    columns = {name: sorted(sample[name] for sample in samples) for name in samples[0]}
    result: Facts = {name: rounded(statistics.median(column)) for name, column in columns.items()}
    result["repeat"] = len(samples)
    result["spread"] = {name: [rounded(column[0]), rounded(column[-1])] for name, column in columns.items()}
    return result


def rounded(value: float) -> float:
    """Four significant digits, so that lines can be read; whole from a thousand on."""
    if value == 0 or not math.isfinite(value):
        return value
    return round(value) if abs(value) >= 1_000 else float(f"{value:.4g}")
