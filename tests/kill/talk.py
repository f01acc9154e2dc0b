"""Processes that tell what happens in them, one line a message, and who listens to them."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from tests.crash.proof import Acknowledged

ROOT: Final = Path(__file__).resolve().parent.parent.parent
END_S: Final = 20.0


class Committed(msgspec.Struct, frozen=True, tag="committed"):
    """The owner of the store said yes to this append, of the host ``host_id``. ``rests``: after it the run ended, stopped,
    or waits for someone."""

    run_id: str
    first_seq: int
    event_count: int
    hash: bytes
    host_id: str
    rests: bool

    def acknowledged(self) -> Acknowledged:
        return Acknowledged(self.run_id, self.first_seq, self.event_count, self.hash)


class TurnedAway(msgspec.Struct, frozen=True, tag="turned_away"):
    """The owner refused an append or a renewal of a host whose time is over."""

    what: str
    run_id: str
    host_id: str


class HostSeen(msgspec.Struct, frozen=True, tag="host"):
    """A process registered as a host."""

    host_id: str
    pid: int


class HostDropped(msgspec.Struct, frozen=True, tag="host_dropped"):
    """A host was given up: its runs are for others now."""

    host_id: str


class Note(msgspec.Struct, frozen=True, tag="note"):
    """How far the process is."""

    text: str


class Looked(msgspec.Struct, frozen=True, tag="looked"):
    """One look at the store by the person at the desk; see ``desk.Report``."""

    left: int
    counts: dict[str, int]
    open_runs: list[str]


Message = Committed | TurnedAway | HostSeen | HostDropped | Note | Looked
decode_message = msgspec.json.Decoder(Message).decode


def say(message: Message) -> None:
    """To whoever listens, whole: pipes take so much at once."""
    data = msgspec.json.encode(message) + b"\n"
    while data:
        data = data[os.write(1, data) :]


class Heard(NamedTuple):
    """A message, from which process (None: one of Ray's), and when it came (monotonic seconds)."""

    speaker: Speaker | None
    message: Message
    at: float


class Speaker:
    """A child process of this module's package, ``python -m tests.kill.NAME ARGUMENTS``. Its standard input stays open
    until ``ask_to_end``; a child must end by itself when that closes."""

    def __init__(
        self,
        name: str,
        arguments: list[str],
        heard: queue.SimpleQueue[Heard],
        environment: Mapping[str, str],
        errors: Path,
    ) -> None:
        self.name = name
        with open(errors, "ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"tests.kill.{name}", *arguments],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=dict(environment),
            )
        self.pid = self.process.pid
        self.killed = False
        self.started_at = time.monotonic()
        self._reader = threading.Thread(target=self._listen, args=(heard.put,), daemon=True)
        self._reader.start()

    def _listen(self, put: Callable[[Heard], None]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(msgspec.MsgspecError):  # whatever a library prints
                put(Heard(self, decode_message(line), time.monotonic()))

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        """SIGKILL, reaped, and everything that it had said is heard."""
        self.killed = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.reap()

    def reap(self) -> None:
        """Wait for its end, and for the last of what it said."""
        self.process.wait()
        self._close()

    def ask_to_end(self, seconds: float = END_S) -> bool:
        """Close its standard input; whether it ended by itself."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        self._close()
        return self.process.returncode == 0

    def tell(self, line: str) -> None:
        """One line to its standard input."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()

    def _close(self) -> None:
        self._reader.join(END_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
