"""Which process this is, in a way that a reused pid can't imitate."""

from __future__ import annotations

import os
import socket

import msgspec


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """``pid_start`` is the kernel's start time of the process in clock ticks since boot; ``boot_id`` names the boot.
    Both are empty or 0 where the system doesn't tell, and then nothing is ever proved about that process."""

    pid: int
    pid_start: int
    boot_id: str
    host: str


def this_process() -> ProcessIdentity:
    pid = os.getpid()
    return ProcessIdentity(
        pid=pid, pid_start=start_of(pid) or 0, boot_id=boot_id(), host=socket.gethostname()
    )


def start_of(pid: int) -> int | None:
    """When this process started, in ticks since boot; None if there is no such process or the system can't tell."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The second field is the command in parentheses and may hold anything, so count from its end.
            return int(file.read().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def boot_id() -> str:
    """Changes with each boot of this machine; empty if the system can't tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def is_same_process(known: ProcessIdentity) -> bool:
    """Whether the process with this pid is, with proof, the one that ``known`` describes."""
    return (
        known.pid > 0
        and known.pid_start > 0
        and known.boot_id != ""
        and known.boot_id == boot_id()
        and known.host == socket.gethostname()
        and start_of(known.pid) == known.pid_start
    )
