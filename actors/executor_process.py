"""What a process with an application's code in it does about itself: that code prints nowhere, and in an executor nothing that
it starts outlives it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final
from uuid import uuid4

from ..eventstore.process_identity import start_of
from . import executor_guard

OURS: Final = "boundloop"
MARK: Final = "BOUNDLOOP_EXECUTOR"
GUARD_START_S: Final = 10.0


def silence() -> None:
    """From now on what this process and its children write to stdout and stderr is thrown away: it would go to log files
    and to the driver, and it may hold anything that the application was given. Records of our own loggers go where stderr
    went before."""
    heard = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace", buffering=1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (1, 2):
        os.dup2(null, fd)
    os.close(null)
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  open as long as the process
    ours = logging.getLogger(OURS)
    handler = logging.StreamHandler(heard)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    ours.addHandler(handler)
    ours.propagate = False


class Guard:
    """This process's guard (see ``executor_guard``). Made once, before any tool's code runs."""

    def __init__(self) -> None:
        token = f"{MARK}={uuid4().hex}"
        pid = os.getpid()
        script = str(Path(executor_guard.__file__))
        environment = {name: value for name, value in os.environ.items() if name != MARK}
        self._lock = threading.Lock()
        with subprocess.Popen(
            [sys.executable, "-I", "-S", script, str(pid), str(start_of(pid) or 0), token],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        ) as parent:
            assert parent.stdin is not None
            self._orders = os.dup(parent.stdin.fileno())
            parent.wait(GUARD_START_S)  # its child is the guard
        os.environ[MARK] = token.partition("=")[2]
        os.register_at_fork(after_in_child=self._forked)

    def end(self) -> None:
        """End this process and all that it has started. Returns before that happens."""
        self._say(executor_guard.END)

    def clear(self) -> None:
        """End all that this process has started, but not itself. Returns before that happens."""
        self._say(executor_guard.CLEAR)

    def _forked(self) -> None:
        # In a child that runs no other program: its environment, as the system shows it, has no mark.
        self._lock = threading.Lock()
        self._say(executor_guard.FORKED % os.getpid())

    def _say(self, line: bytes) -> None:
        with self._lock:
            try:
                os.write(self._orders, line)
            except OSError:
                return  # no guard is left; the executor's own end doesn't need it
