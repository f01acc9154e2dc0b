"""The loopback model server as a process of its own, for whoever wants real HTTP and real deaths."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypedDict, cast

import msgspec

from .loopback_script import ServerScript, write_server_script

START_S: Final = 30.0
END_S: Final = 10.0
ASK_S: Final = 10.0
_LINE_BYTES_MAX: Final = 4_096


class CountsSeen(TypedDict):
    """``loopback_server.Counts`` as JSON."""

    total: int
    answered: int
    abandoned: int
    in_flight: int
    in_flight_max: int
    connections: int
    connections_max: int
    refused_connections: int
    by_status: dict[str, int]
    by_model: dict[str, int]
    by_fault: dict[str, int]
    by_run: dict[str, list[int]]


class LoopbackProcess:
    """Starts the server when made and ends it in ``close``; it ends too when this process dies, whatever it dies of.

    ``base_url`` is for clients. ``port`` 0 takes a free one. Raises ``RuntimeError`` if it doesn't listen in time.
    """

    def __init__(self, script: ServerScript | Path | str, *, port: int = 0) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if isinstance(script, ServerScript):
            self._folder = tempfile.TemporaryDirectory(prefix="boundloop-model-")
            self._file = Path(self._folder.name, "script.json")
            self._file.write_bytes(write_server_script(script))
        else:
            self._file = Path(script)
        self._process: subprocess.Popen[bytes] | None = None
        self.base_url = ""
        self.start(port)

    @property
    def port(self) -> int:
        """The port it listens on, or listened on last."""
        return int(self.base_url.rpartition(":")[2].partition("/")[0])

    @property
    def pid(self) -> int | None:
        """Its process, None if it doesn't run."""
        return None if self._process is None else self._process.pid

    def start(self, port: int | None = None) -> None:
        """Start it; again after a death, on the port it had unless another is given. Its counts begin anew."""
        asked = self.port if port is None else port
        command = [sys.executable, "-m", f"{__package__}.loopback_server", "--script", str(self._file)]
        self._process = subprocess.Popen(
            [*command, "--port", str(asked), "--until-stdin-closes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            self.base_url = cast(str, msgspec.json.decode(_first_line(self._process))["base_url"])
        except BaseException:
            self.kill()
            raise

    def counts(self) -> CountsSeen:
        """What it was asked since it started."""
        return cast(CountsSeen, msgspec.json.decode(self._ask("GET", "/counts")))

    def open_gate(self, name: str) -> None:
        """Let everyone through who stands at that gate, now and later."""
        self._ask("POST", f"/gates/{name}")

    def reached(self, name: str) -> int:
        """How many requests came to that gate so far."""
        return cast(int, msgspec.json.decode(self._ask("GET", f"/gates/{name}"))["reached"])

    def kill(self) -> None:
        """SIGKILL: every connection breaks."""
        self._end(kill=True)

    def close(self) -> None:
        """End it and remove its script. Idempotent."""
        self._end(kill=False)
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, method: str, path: str) -> bytes:
        url = self.base_url.removesuffix("/v1") + path
        request = urllib.request.Request(url, method=method, data=b"" if method == "POST" else None)
        # Never through a proxy that the environment names: this is loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=ASK_S) as reply:
            return cast(bytes, reply.read())

    def _end(self, *, kill: bool) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if kill:
            process.kill()
        else:
            process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def _first_line(process: subprocess.Popen[bytes]) -> bytes:
    """The line that a server prints once it listens; raises ``RuntimeError`` if it ends or takes too long."""
    assert process.stdout is not None
    until = time.monotonic() + START_S
    line = b""
    while b"\n" not in line:
        left = until - time.monotonic()
        ready = select.select([process.stdout], [], [], max(0, left))[0]
        data = os.read(process.stdout.fileno(), _LINE_BYTES_MAX) if ready else b""
        if not data or len(line) > _LINE_BYTES_MAX:
            raise RuntimeError(f"the loopback server didn't listen within {START_S:.0f} s")
        line += data
    return line
