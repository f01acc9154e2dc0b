"""One host process after the other on one file, without Ray: each is killed at a random moment under load."""

from __future__ import annotations

import os
import random
import select
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from examples.far_side import FarSide
from tests.crash.proof import Acknowledged
from tests.kill.desk import Desk, Report
from tests.kill.host import host

ALIVE_S: Final = (0.1, 1.0)
"""How long a host lives after its first append, at least and at most."""

FIRST_APPEND_S: Final = 20.0
END_S: Final = 120.0


class Child:
    """A forked process that writes messages, one a line."""

    def __init__(self, live: Callable[[Callable[[object], None]], None]) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            try:
                live(lambda message: _write_all(writing, msgspec.json.encode(message) + b"\n"))
            finally:
                os._exit(1)
        os.close(writing)
        self._reading = reading
        self._rest = b""
        self.ended = False

    def said(self, timeout_s: float) -> list[bytes]:
        """The lines that came, waiting for the first; none if it ended or said nothing in time."""
        if self.ended or not select.select([self._reading], [], [], max(0.0, timeout_s))[0]:
            return []
        part = os.read(self._reading, 1 << 20)
        self.ended = not part
        *lines, self._rest = (self._rest + part).split(b"\n")
        return lines

    def kill(self) -> list[bytes]:
        """SIGKILL, and what it had said by then."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        lines: list[bytes] = []
        while not self.ended:
            lines += self.said(1.0)
        os.close(self._reading)
        return lines


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


class Trial:
    """One file, one far side, one desk, one host after the other."""

    def __init__(self, path: str, far: FarSide, seed: int) -> None:
        self.path = path
        self.far = far
        self.seed = seed
        self.acknowledged: list[Acknowledged] = []
        self.recovery_ms: list[int] = []
        self.last = Report(left=-1, counts={})

    def hear(self, lines: list[bytes]) -> int:
        """Note what a host heard acknowledged."""
        self.acknowledged += [msgspec.json.decode(line, type=Acknowledged) for line in lines if line]
        return len(lines)

    def host(self, number: int) -> Child:
        return Child(lambda say: host(self.path, self.far.port, self.seed, number, say))

    def live_and_die(self, number: int, alive_s: float, killed_at: float) -> float:
        """One host's life. Raises ``RuntimeError`` if it never got to an append, or ended by itself."""
        child = self.host(number)
        deadline = time.monotonic() + FIRST_APPEND_S
        while not self.hear(child.said(deadline - time.monotonic())):
            if child.ended or time.monotonic() > deadline:
                child.kill()
                raise RuntimeError(f"host {number} did nothing")
        if killed_at:
            self.recovery_ms.append(int((time.monotonic() - killed_at) * 1_000))
        until = time.monotonic() + alive_s
        while time.monotonic() < until and not child.ended:
            self.hear(child.said(until - time.monotonic()))
        if child.ended:
            raise RuntimeError(f"host {number} ended by itself")
        self.hear(child.kill())
        return time.monotonic()

    def finish(self, desk: Child) -> None:
        """The last host takes no new runs; until none is left, or the time is over."""
        child = self.host(0)
        deadline = time.monotonic() + END_S
        started = len(self.acknowledged)
        while time.monotonic() < deadline and not child.ended and self.last.left != 0:
            self.hear(child.said(0.02))
            self.note(desk.said(0.02))
            if len(self.acknowledged) == started:
                self.last = Report(left=-1, counts=self.last.counts)
        self.hear(child.kill())

    def note(self, lines: list[bytes]) -> None:
        for line in lines:
            if line:
                self.last = msgspec.json.decode(line, type=Report)


@contextmanager
def at_the_desk(path: str, far: FarSide) -> Generator[Child]:
    """The second shell, from the first moment to the last."""
    stopped, stop = os.pipe()

    def live(say: Callable[[object], None]) -> None:
        os.close(stop)
        Desk(f"sqlite:///{path}", FarSide(far.port), say).work(stopped)
        os._exit(0)

    child = Child(live)
    os.close(stopped)
    try:
        yield child
    finally:
        os.close(stop)
        while not child.ended:
            child.said(1.0)
        os.waitpid(child.pid, 0)


def kill_hosts(folder: str, kills: int, seed: int) -> tuple[Trial, dict[str, dict[str, int]]]:
    """The whole trial; everything has ended when this returns, with what the far side counted."""
    chance = random.Random(seed)
    with FarSide.start(in_order=True) as far:
        trial = Trial(str(Path(folder) / "runs.db"), far, seed)
        with at_the_desk(trial.path, far) as desk:
            killed_at = 0.0
            for number in range(1, kills + 1):
                killed_at = trial.live_and_die(number, chance.uniform(*ALIVE_S), killed_at)
                trial.note(desk.said(0.0))
            trial.finish(desk)
        return trial, far.counts()
