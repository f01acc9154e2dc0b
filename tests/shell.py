"""Another shell: a process with a Runtime of its own on a file, told what to do line by line.

``Shell.open`` starts ``python tests/shell.py``. Every command is one JSON object, every answer another. The runs are
those of the kill load: the system text is the plan.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

ROOT: Final = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from examples.far_side import FarSide
from tests.kill.load import LIMITS, TIMEOUT_MS, runtime_on
from tests.small_disk import fill, make_room

from boundloop.actors.client import CommandRefused, Runtime
from boundloop.eventstore.port import Append, AppendAnswer
from boundloop.eventstore.sqlite import SqliteStore
from boundloop.runtime.errors import BoundloopError, OwnedError, StoreError

ANSWER_TIMEOUT_S: Final = 60.0
PATIENCE_S: Final = 600
"""How long a patient shell waits for its far side: longer than any test, so that no time-out decides one."""


class Shell:
    """The parent's end. ``options``: ``take-over``; ``patient``: its tools wait for ``PATIENCE_S``; ``disk``: the file is on a
    disk of its own, and space ends there really. ``under``: what its command is started by. A context manager that ends
    the process by its pid, whatever state it is in."""

    def __init__(self, path: Path, far: FarSide, *options: str, under: Sequence[str] = ()) -> None:
        program = str(Path(__file__).resolve())
        command = [*under, sys.executable, program, str(path), str(far.port), *options]
        # Unbuffered: an answer that was read ahead would be invisible to ``select``.
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, bufsize=0
        )
        self.opened = self.answer()

    @property
    def pid(self) -> int:
        return self.process.pid

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """One command and its answer."""
        self.tell(do, **arguments)
        return self.answer()

    def tell(self, do: str, **arguments: Any) -> None:
        """One command, without waiting for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """The next answer."""
        pipe = self.process.stdout
        assert pipe is not None
        assert select.select([pipe], [], [], ANSWER_TIMEOUT_S)[0], "the shell says nothing"
        line = pipe.readline()
        assert line, f"the shell ended with {self.process.wait(ANSWER_TIMEOUT_S)}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self) -> int:
        """Let it come to its end by itself: its input ends, and nothing is closed. Its exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(ANSWER_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(ANSWER_TIMEOUT_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


# --- in the other process --------------------------------------------------------------------------------------------


class Space:
    """As if the disk were full: no file of this process may grow beyond so many bytes (0: as it was). With a ``disk`` it
    is full, to the last byte."""

    def __init__(self, disk: Path | None) -> None:
        self._disk = disk
        self.append_failed = threading.Event()
        self._left = self._bytes = 0
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that a write fails and nobody dies
        append = SqliteStore.append

        async def counted_append(store: SqliteStore, request: Append) -> AppendAnswer:
            self._left -= 1
            if self._left == 0:
                self.limit(self._bytes)
            try:
                return await append(store, request)
            except StoreError:
                self.append_failed.set()
                raise

        SqliteStore.append = counted_append  # type: ignore[assignment,method-assign]  # a process that can run out of space

    def limit(self, size_bytes: int) -> None:
        """From now on."""
        if self._disk is not None:
            if size_bytes:
                fill(self._disk)
            else:
                make_room(self._disk)
            return
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes or hard, hard))

    def limit_at(self, append: int, size_bytes: int) -> None:
        """From right before the given append on, counted from now."""
        self._left, self._bytes = append, size_bytes


class PatientFarSide(FarSide):
    """Asked by somebody who doesn't give up."""

    def submit(self, key: str, *, timeout_s: float = PATIENCE_S, **body: object) -> dict[str, Any]:
        return super().submit(key, timeout_s=timeout_s, **body)


def serve(path: str, port: int, options: list[str]) -> None:
    """Until the input ends. The Runtime is left open then, as a forgetful program leaves it."""
    space = Space(Path(path).parent if "disk" in options else None)
    patient = "patient" in options
    far = PatientFarSide(port) if patient else FarSide(port)
    timeout_ms = PATIENCE_S * 1_000 if patient else TIMEOUT_MS
    try:
        runtime = runtime_on(path, far, timeout_ms=timeout_ms, take_over="take-over" in options)
    except OwnedError as error:
        say({"owned_by": error.pid, "host": error.host})
        return
    say({"open": os.getpid()})
    for line in sys.stdin.buffer:
        command = json.loads(line)
        do = command.pop("do")
        try:
            say(_do(runtime, space, do, command))
        except CommandRefused as error:
            say({"refused": error.code})
        except BoundloopError as error:
            say({"error": error.code, "actor": error.actor})


def _do(runtime: Runtime, space: Space, do: str, arguments: dict[str, Any]) -> dict[str, Any]:
    match do:
        case "start":
            runtime.start("Go.", run_id=arguments["run"], limits=LIMITS, system=arguments["plan"])
            return {"started": arguments["run"]}
        case "result" | "wait":
            result = getattr(runtime, do)(arguments["run"], ANSWER_TIMEOUT_S)
            return {
                "status": result.status,
                "outcome": result.outcome,
                "reason": result.reason,
                "waiting_for": result.waiting_for,
                "approvals": [approval.approval_id for approval in result.approvals],
                "unknown": list(result.unknown_effects),
            }
        case "limit_files":
            space.limit(arguments["bytes"])
            return {"limited": arguments["bytes"]}
        case "limit_files_at_append":
            space.limit_at(arguments["append"], arguments["bytes"])
            return {"limited": arguments["bytes"]}
        case "append_failed":
            return {"failed": space.append_failed.wait(ANSWER_TIMEOUT_S)}
        case "approve":
            return {"seq": runtime.approve(arguments["run"], arguments["approval"], by="os:ann@desk")}
        case _:
            runtime.close()
            return {"closed": True}


def say(answer: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
