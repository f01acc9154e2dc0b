"""This process and its machine: versions, priorities, bounds, memory, identity."""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Final

from ..eventstore.process_identity import boot_id, start_of
from ..eventstore.sqlite_library import SqliteLibrary, this_library
from .doctor_findings import Finding, fail, ok, warn
from .doctor_machine import Machine

WATCHED: Final = ("ray", "msgspec", "httpx", "pydantic", "click")
OPEN_FILES_LOW: Final = 4_096
"""A host of many runs, its socket, its tools' connections and Ray's own channels stay below that."""

RAY_BYTES: Final = 410 * 1024 * 1024
"""What an idle local Ray takes: GCS, raylet, agents, API server."""

ACTOR_BYTES: Final = 90 * 1024 * 1024
"""One actor process, before it holds anything."""

OBJECT_STORE_BYTES: Final = 80 * 1024 * 1024
"""The smallest that Ray accepts, and enough: results travel in events."""

_RANGE = re.compile(r"^([A-Za-z0-9_.-]+)\s*(\[[^\]]*\])?\s*\(?([^;)]*)\)?")


def check_process(machine: Machine) -> Iterator[Finding]:
    yield from check_versions()
    yield check_sqlite(this_library())
    yield check_niceness(os.getpriority(os.PRIO_PROCESS, 0))
    yield check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield check_shared_memory(_size_of(machine.shm))
    yield check_memory(machine)
    yield check_identity(boot_id(), start_of(os.getpid()) or 0)


# --- versions --------------------------------------------------------------------------------------------------------


def check_versions() -> Iterator[Finding]:
    """Python and the packages that a promise hangs on, against the ranges that the installed package states."""
    ranges = supported_ranges()
    python = ".".join(str(part) for part in sys.version_info[:3])
    yield check_version("python", python, ranges.get("python", ""))
    for name in WATCHED:
        if name in ranges or name == "ray":
            yield check_version(name, _installed(name), ranges.get(name, ""))


def supported_ranges() -> dict[str, str]:
    """``{package: ">=a,<b"}`` as boundloop's own metadata has it, without extras; ``python`` among them."""
    try:
        found = metadata.metadata("boundloop")
        asked = metadata.requires("boundloop") or []
    except metadata.PackageNotFoundError:
        return {}
    ranges = {"python": str(found["Requires-Python"] or "")}
    for entry in asked:
        parts = _RANGE.match(entry)
        if parts is not None and "extra ==" not in entry:
            ranges[parts[1].lower()] = parts[3].replace(" ", "")
    return ranges


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def check_version(name: str, version: str, supported: str) -> Finding:
    subject = f"version.{name}"
    if not version:
        return fail(subject, "not installed", f"boundloop needs {name} {supported}", f"pip install {name}")
    if not supported:
        return ok(subject, version)
    if not within(version, supported):
        return fail(
            subject,
            f"{version}, and not {supported}",
            "nothing is promised outside of the range that is tested",
            f"pip install '{name}{supported}'",
        )
    return ok(subject, f"{version} ({supported})")


def within(version: str, supported: str) -> bool:
    """Whether a version meets every bound of ``>=a,<b,!=c``, by its numbers alone."""
    for bound in filter(None, supported.split(",")):
        operator = re.match(r"[<>=!~]+", bound)
        if operator is None:
            continue
        mine, other = _numbers(version), _numbers(bound[operator.end() :])
        width = max(len(mine), len(other))
        mine += (0,) * (width - len(mine))
        other += (0,) * (width - len(other))
        holds = {
            ">=": mine >= other,
            "<": mine < other,
            "<=": mine <= other,
            ">": mine > other,
            "==": mine == other,
            "!=": mine != other,
        }
        if not holds.get(operator[0], True):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[a-z+]", version, maxsplit=1)[0]))


def check_sqlite(library: SqliteLibrary) -> Finding:
    range_note = (
        ", in the range of the WAL-reset race (3.7.0 to 3.51.2): the file is opened EXCLUSIVE, so no second connection "
        "can be there"
        if library.wal_reset_race
        else "; EXCLUSIVE locking all the same"
    )
    return ok(
        "version.sqlite",
        f"{library.version}{range_note}",
        f"synchronous is set to FULL and read back when a file is opened (this library's default: {library.synchronous})",
    )


# --- this process and the machine ------------------------------------------------------------------------------------


def check_niceness(niceness: int) -> Finding:
    if niceness > 0:
        return warn(
            "process.niceness",
            str(niceness),
            "as the owner of a store it would get what others leave: every append of every run waits for it",
            "start it without nice; never own a store from a Ray worker (niceness 15)",
        )
    return ok("process.niceness", str(niceness))


def check_open_files(limit: int) -> Finding:
    if limit != resource.RLIM_INFINITY and limit < OPEN_FILES_LOW:
        return warn(
            "process.open_files",
            f"at most {limit}",
            "sockets of runs, tools and Ray count; at the bound nothing can be opened",
            f"ulimit -n {OPEN_FILES_LOW} or more",
        )
    return ok("process.open_files", "no bound" if limit == resource.RLIM_INFINITY else f"at most {limit}")


def _size_of(folder: str) -> tuple[int, int] | None:
    try:
        space = os.statvfs(folder)
    except OSError:
        return None
    return space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize


def check_shared_memory(sizes: tuple[int, int] | None) -> Finding:
    """``sizes``: of all of it and of what is free, in bytes."""
    name = "machine.shared_memory"
    if sizes is None:
        return warn(
            name, "there is no /dev/shm", "Ray puts its object store on a disk instead: slow", "mount it"
        )
    whole, free = sizes
    found = f"/dev/shm {whole // 2**20} MiB, {free // 2**20} MiB free"
    if free < OBJECT_STORE_BYTES:
        return warn(
            name,
            found,
            f"Ray's object store takes {OBJECT_STORE_BYTES // 2**20} MiB at least; it goes to a disk instead, or Ray doesn't start",
            "docker run --shm-size=512m, or remount it larger",
        )
    return ok(name, found)


def check_memory(machine: Machine) -> Finding:
    available = machine.number("meminfo", "MemAvailable")
    if available < 0:
        return warn("machine.memory", "the system doesn't tell", "actors may be killed unseen", "mount /proc")
    actors = max(0, available - RAY_BYTES) // ACTOR_BYTES
    found = f"{available // 2**20} MiB available: Ray itself and about {actors} actors"
    if actors < 4:
        return warn(
            "machine.memory",
            found,
            "Ray takes 410 MB and each actor 90 MB; when memory ends Ray or the kernel kills processes, and effects that "
            "were out are unknown",
            "more memory, or a Runtime in process (ray=None)",
        )
    return ok("machine.memory", found)


def check_identity(boot: str, start: int) -> Finding:
    if not boot or not start:
        return warn(
            "machine.identity",
            "the system tells neither its boot nor when a process began",
            "the death of a host can't be proved: its runs wait out their 10 s, and nobody can be taken over",
            "mount /proc",
        )
    return ok("machine.identity", f"boot {boot}")
