"""A small process beside each executor that outlives it, and ends everything which the executor's tools have started.

Run as a script with the executor's pid, its start and its mark; imports nothing of the package, so that it starts quickly
and stays small. It waits for the end of the executor, whatever ended it; on the word it
ends what was started at once, or the executor too. What belongs to the
executor is: every process with the mark in its environment (programs that tools started), processes of its process group,
processes that it said it forked, and all their descendants as they were last seen, which is looked at every second.

A program that was started with an environment of its own, in a session of its own, by a process that has ended since, all
within one second before the executor was killed from outside, escapes. Where there is no /proc, nothing is swept.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

LOOK_S = 1.0
SWEEP_S = 10.0
PAUSE_S = 0.02
CLEAN_PASSES = 3
"""So many looks in a row find nothing before the sweep ends: a process that is being made shows a moment later."""

END = b"end\n"
CLEAR = b"clear\n"
FORKED = b"forked %d\n"

Known = dict[int, int]
"""Start of each process by its pid; together they name it for good."""


def started(pid: int) -> int:
    """In ticks since boot; 0 if there is no such process, or only its remains."""
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] not in (b"Z", b"X") else 0


def _stat(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
            found += [int(child) for child in file.read().split()]
    return found


def descendants(roots: Known) -> Known:
    """Of the processes that still are who they were, with them."""
    found: Known = {}
    ahead = [pid for pid, start in roots.items() if started(pid) == start]
    while ahead:
        pid = ahead.pop()
        if pid not in found and (start := started(pid)):
            found[pid] = start
            ahead += children(pid)
    return found


def belonging(mark: bytes, group: int) -> Known:
    """Processes with the mark in their environment or of the process group (0: of none), but this one."""
    found: Known = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        pid = int(name)
        fields = _stat(pid)
        if not fields or fields[0] in (b"Z", b"X"):
            continue
        if (group and int(fields[2]) == group) or mark in _environment(pid):
            found[pid] = int(fields[19])
    return found


def _environment(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:
        return b""


def others_than(executor: int, found: Known) -> Known:
    return {pid: start for pid, start in found.items() if pid != executor}


def kill(found: Known) -> Known:
    for pid, start in found.items():
        if started(pid) == start:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    return found


def sweep(known: Known, mark: bytes, group: int) -> None:
    """Kill all of it until nothing is left, at most ``SWEEP_S``."""
    deadline = time.monotonic() + SWEEP_S
    clean = 0
    while clean < CLEAN_PASSES and time.monotonic() < deadline:
        found = descendants({**known, **belonging(mark, group)})
        known.update(kill(found))
        clean = 0 if found else clean + 1
        time.sleep(PAUSE_S)


def watch(executor: int, start: int, mark: bytes) -> None:
    """Until the executor is gone or to be ended; then sweep."""
    try:
        ended = os.pidfd_open(executor)
    except OSError:
        ended = -1
    group = executor if _stat(executor)[2:3] == [b"%d" % executor] else 0
    known: Known = {}
    orders = sys.stdin.fileno()
    rest = b""
    while started(executor) == start:
        ready, _, _ = select.select([fd for fd in (ended, orders) if fd >= 0], [], [], LOOK_S)
        if orders in ready:
            data = os.read(orders, 4096)
            *lines, rest = (rest + data).split(b"\n")
            if not data:
                orders = -1
            for line in lines:
                if line == CLEAR.strip():
                    known.update(kill(others_than(executor, descendants({executor: start}))))
                elif line == END.strip():
                    known.update(others_than(executor, descendants({executor: start})))
                    kill({executor: start})
                elif line.startswith(b"forked ") and line[7:].isdigit():
                    known[int(line[7:])] = started(int(line[7:]))
        elif ended not in ready:
            known = {pid: at for pid, at in known.items() if started(pid) == at}
            known.update(others_than(executor, descendants({executor: start})))
    sweep(known, mark, group)


def main() -> None:
    """Leave the executor's children and its session, so that nobody who ends those ends this."""
    if os.fork():
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.path.isdir("/proc/self/task"):
        watch(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode())


if __name__ == "__main__":
    main()
