"""A person in another process: approves what it is told to through the socket beside the store's file.

``python -m tests.scale.person FILE``: a line ``RUN APPROVAL`` in, one out: monotonic nanoseconds when the command was handed
in and when it was answered, and whether it was accepted. Ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import NamedTuple, Self

from boundloop.eventstore.location import connect_store
from boundloop.eventstore.submit import decode_answer
from boundloop.runtime.commands import Approve, encode_command

NAME = "os:ann@desk"
END_S = 10.0


class Decision(NamedTuple):
    """When it was handed in, when it was answered, and what came of it."""

    asked_ns: int
    answered_ns: int
    accepted: bool


class Person:
    """Speaks to such a process; a context manager that ends it."""

    def __init__(self, path: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.scale.person", path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def approve(self, run_id: str, approval_id: str) -> Decision:
        """Have it approve; returns when it was answered."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{run_id} {approval_id}\n")
        self._process.stdin.flush()
        asked, answered, accepted = self._process.stdout.readline().split()
        return Decision(int(asked), int(answered), accepted == "True")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(END_S)
        self._process.stdout.close()


async def _work(path: str) -> None:
    store = await connect_store(f"sqlite:///{path}", must_exist=True)
    try:
        while line := await asyncio.to_thread(sys.stdin.readline):
            run_id, approval_id = line.split()
            command = Approve(command_id=f"approve {approval_id}", by=NAME, approval_id=approval_id)
            asked_ns = time.monotonic_ns()
            answer = await store.submit(run_id, command.command_id, encode_command(command))
            accepted = decode_answer(answer).accepted
            print(asked_ns, time.monotonic_ns(), accepted, flush=True)
    finally:
        await store.close()


if __name__ == "__main__":
    asyncio.run(_work(sys.argv[1]))
