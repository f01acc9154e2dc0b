"""Processes below this one, by pid and start: one to kill on purpose, and whatever is left at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Final

from ..eventstore.process_identity import start_of

GONE_S: Final = 10.0
_LOOK_AGAIN_S: Final = 0.02
PROCESSES_MAX: Final = 10_000


def kill_and_wait(pid: int, pid_start: int) -> bool:
    """SIGKILL, if this is still that process; whether it is gone (a zombie is). ``pid_start`` is 0 where the system doesn't
    tell it."""
    if pid == os.getpid() or (start_of(pid) or 0) != pid_start:
        return False
    os.kill(pid, signal.SIGKILL)
    return _gone(pid, pid_start, GONE_S)


def descendants() -> dict[int, int]:
    """Processes below this one, with their starts. Empty where the system doesn't tell."""
    children: dict[int, list[int]] = {}
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()][:PROCESSES_MAX]
    except OSError:
        return {}
    for pid in pids:
        fields = _stat(pid)
        if fields:
            children.setdefault(int(fields[1]), []).append(pid)
    found: dict[int, int] = {}
    todo = [os.getpid()]
    while todo:
        for pid in children.get(todo.pop(), ()):
            start = start_of(pid)
            if start is not None and pid not in found:
                found[pid] = start
                todo.append(pid)
    return found


def end_all(known: dict[int, int]) -> int:
    """SIGKILL to all below this process and those of the known that live still, by pid and start; how many there were. Waits until
    they are gone.

    All are stopped first: one that is killed may have begun another that nobody has seen, and that nobody finds any more, since what
    its parent leaves behind isn't below this process.
    """
    left: dict[int, int] = {}
    until = time.monotonic() + GONE_S
    while True:
        living = {pid: start for pid, start in {**known, **descendants()}.items() if not _is_over(pid, start)}
        new = {pid: start for pid, start in living.items() if pid not in left}
        for pid, start in new.items():
            _signal(pid, start, signal.SIGSTOP)
        left.update(new)
        # Only of processes that have stopped is it known that they begin no other one.
        if (not new and all(map(_is_still, living))) or time.monotonic() > until:
            break
        if not new:
            time.sleep(_LOOK_AGAIN_S)
    for pid, start in left.items():
        _signal(pid, start, signal.SIGKILL)
    for pid, start in left.items():
        _gone(pid, start, GONE_S)
    return len(left)


def _signal(pid: int, pid_start: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        if start_of(pid) == pid_start:
            os.kill(pid, number)


def _is_still(pid: int) -> bool:
    fields = _stat(pid)
    return not fields or fields[0] in "TtZX"


def _gone(pid: int, pid_start: int, within_s: float) -> bool:
    until = time.monotonic() + within_s
    while not _is_over(pid, pid_start):
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_AGAIN_S)
    return True


def _is_over(pid: int, pid_start: int) -> bool:
    fields = _stat(pid)
    if fields:
        return fields[0] in ("Z", "X") or start_of(pid) != pid_start
    try:
        os.kill(pid, 0)  # the system doesn't tell more
    except OSError:
        return True
    return pid_start != 0


def _stat(pid: int) -> list[str]:
    """State, parent and further fields of ``/proc/PID/stat``."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []
