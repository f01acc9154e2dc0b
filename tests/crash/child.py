"""Processes that run the scenario on a SQLite file and die where they are told to.

``python tests/crash/child.py`` reads one order a line, forks (everything is imported already), and answers each order
with how its child ended and which appends that child heard acknowledged. The child is a real owner with a real
``Runtime``; it dies by SIGKILL. ``Forge`` starts such a process and speaks to it.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

import msgspec

ROOT: Final = Path(__file__).resolve().parent.parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from examples.far_side import FarSide
from tests.crash.points import DeathAtAppend, Position
from tests.crash.proof import Acknowledged
from tests.crash.scenario import carry_through, model, tools_at

from boundloop.actors.client import Runtime
from boundloop.actors.result import Result
from boundloop.eventstore import sqlite_file
from boundloop.eventstore.port import Append, AppendAnswer
from boundloop.eventstore.sqlite import SqliteStore

CHILD_TIMEOUT_S: Final = 60.0


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Run the scenario on ``path``; die at append ``at`` (0: don't). ``ahead_ms`` is added to the clock, so that what an
    earlier process had in the air is over. ``operation_id`` makes the keys this case's own."""

    path: str
    far_port: int
    operation_id: str
    at: int = 0
    position: Position = "before"
    ahead_ms: int = 0


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag="outcome"):
    """``status`` as ``Popen.returncode``. ``result`` if the run ended there; ``appends`` counts what was begun."""

    status: int
    acknowledged: list[Acknowledged]
    result: Result | None = None
    appends: int = 0
    error: str = ""


Said = Acknowledged | Outcome


class Forge:
    """The process that forks children; a context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )

    def run(self, order: Order) -> Outcome:
        """Carry out one order. Raises ``RuntimeError`` if the forge is gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the forge ended")
        return msgspec.json.decode(line, type=Outcome)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait(CHILD_TIMEOUT_S)


# --- in the forge ----------------------------------------------------------------------------------------------------


def serve() -> None:
    """Until standard input ends."""
    for line in sys.stdin.buffer:
        order = msgspec.json.decode(line, type=Order)
        sys.stdout.buffer.write(msgspec.json.encode(fork(order)) + b"\n")
        sys.stdout.buffer.flush()


def fork(order: Order) -> Outcome:
    """One child, waited for."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            _live(order, lambda message: _write_all(writing, msgspec.json.encode(message) + b"\n"))
        finally:
            os._exit(0)
    os.close(writing)
    said = _read_all(reading, pid)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    outcome = Outcome(status=status, acknowledged=[])
    for line in said.splitlines():
        message = msgspec.json.decode(line, type=Said)
        if isinstance(message, Acknowledged):
            outcome.acknowledged.append(message)
        else:
            outcome = msgspec.structs.replace(message, status=status, acknowledged=outcome.acknowledged)
    return outcome


def _read_all(reading: int, pid: int) -> bytes:
    """All that the child says until it ends. One that hangs is killed, and its status says so."""
    said = bytearray()
    deadline = time.monotonic() + CHILD_TIMEOUT_S
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while True:
            if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                os.kill(pid, signal.SIGABRT)
                return bytes(said)
            part = pipe.read(65_536)
            if not part:
                return bytes(said)
            said += part


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


# --- in the child ----------------------------------------------------------------------------------------------------


def _live(order: Order, say: Callable[[object], None]) -> None:
    armed = False

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def kill(position: Position) -> None:
        nonlocal armed
        if position == "inside":
            armed = True
        elif position == "after_answer":
            asyncio.get_running_loop().call_soon(die)
        else:
            die()

    def trace(statement: str) -> None:
        # Told before the statement runs: the transaction is open and holds all of its rows.
        if armed and statement == "COMMIT":
            die()

    death = DeathAtAppend(order.at, order.position, kill, say)
    append, connect = SqliteStore.append, sqlite_file.connect

    async def dying_append(store: SqliteStore, request: Append) -> AppendAnswer:
        async def inner(wanted: Append) -> AppendAnswer:
            return await append(store, wanted)

        return await death.append(inner, request)

    def traced(path: str) -> Any:
        connection = connect(path)
        connection.set_trace_callback(trace)
        return connection

    SqliteStore.append = dying_append  # type: ignore[assignment,method-assign]  # a process that is made to die
    sqlite_file.connect = traced
    far = FarSide(order.far_port)
    try:
        with Runtime(
            store=f"sqlite:///{order.path}",
            model=model(),
            tools=tools_at(far),
            clock=lambda: time.time_ns() // 1_000_000 + order.ahead_ms,
        ) as runtime:
            result = asyncio.run(carry_through(runtime, far, order.operation_id))
    except Exception as error:  # noqa: BLE001  whatever it is, the parent is told
        say(Outcome(status=0, acknowledged=[], appends=death.appends, error=repr(error)))
    else:
        say(Outcome(status=0, acknowledged=[], result=result, appends=death.appends))


if __name__ == "__main__":
    serve()
