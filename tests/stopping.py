"""SIGSTOP that has happened when the call returns.

The signal is only sent when `os.kill` returns: a process that sleeps in a wait is woken to stop, and what woke it meanwhile it may
first answer. Beside other work a stopped owner of a file answered one request in three.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Final

STOPPED: Final = frozenset("TtZX")
PATIENCE_S: Final = 10.0


def stop(pid: int) -> None:
    """Stop a process, and come back once none of its threads runs. `AssertionError` if one still does after 10 s."""
    os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + PATIENCE_S
    while not has_stopped(pid):
        assert time.monotonic() < until, f"{pid} has not stopped"
        os.sched_yield()


def has_stopped(pid: int) -> bool:
    """Whether every thread of it is stopped or gone."""
    return all(_state(task) in STOPPED for task in Path(f"/proc/{pid}/task").iterdir())


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"  # it ended between the listing and this
