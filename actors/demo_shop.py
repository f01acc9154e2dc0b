"""The demo's way to its far side: a client that tools and the demo share, and the process it speaks to."""

from __future__ import annotations

import http.client
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

from .demo_far_side import ADDRESS

ANSWER_S: Final = 15.0
START_S: Final = 30.0
END_S: Final = 5.0
LINE_BYTES_MAX: Final = 64

COMMAND: Final = (sys.executable, "-P", "-m", f"{__package__}.demo_far_side")
"""How the shop's process is started; ``-P``: never with modules of the folder in which the demo happens to run."""


class ShopError(Exception):
    """The shop answered with an error: it did nothing."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class ShopClient:
    """Asks the shop at a port of this machine, one connection a request. Pickles by its port."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(
        self, path: str, operation: str, *, timeout_s: float = ANSWER_S, **body: object
    ) -> dict[str, Any]:
        """Raises ``ShopError``; ``OSError`` or ``http.client.HTTPException`` if no whole answer came in time: then it may
        have happened."""
        connection = http.client.HTTPConnection(ADDRESS, self.port, timeout=timeout_s)
        try:
            connection.request("POST", f"/{path}", json.dumps({**body, "operation": operation}))
            answer = connection.getresponse()
            data: dict[str, Any] = json.loads(answer.read())
            if answer.status != 200:
                raise ShopError(answer.status)
            return data
        finally:
            connection.close()


class ShopProcess(ShopClient):
    """Starts the shop when made; ``close`` ends it, and so does the end of this process, whatever it dies of. Raises
    ``RuntimeError`` if it doesn't listen in time."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        # A group of its own: Ctrl-C in the terminal is for whoever started it.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
        )
        try:
            super().__init__(_port(self._process))
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def close(self) -> None:
        """End it. Idempotent."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[ShopClient], tuple[int]]:
        return ShopClient, (self.port,)


def _port(process: subprocess.Popen[bytes]) -> int:
    """The line that the shop prints once it listens."""
    assert process.stdout is not None
    until = time.monotonic() + START_S
    line = b""
    while b"\n" not in line:
        ready = select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))[0]
        data = os.read(process.stdout.fileno(), LINE_BYTES_MAX) if ready else b""
        if not data or len(line) > LINE_BYTES_MAX:
            raise RuntimeError(f"the shop didn't listen within {START_S:.0f} s")
        line += data
    return int(line)
