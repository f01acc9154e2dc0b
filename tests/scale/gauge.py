"""A far side that counts how many requests it has at work at once: ``python tests/scale/gauge.py``, a process of its own.

``GET /work?call=NAME&ms=N`` takes so long, whether or not the caller is still there, and answers. ``GET /counts`` tells
what it has seen. Prints its port; ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import parse_qs, urlsplit

HEAD_BYTES_MAX: Final = 4_096
END_S: Final = 10.0


class Gauge:
    """Speaks to one. ``port`` is all that a tool needs."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve())], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def counts(self, since_ns: int = 0) -> dict[str, Any]:
        """``most`` at once, ``requests``, ``calls`` (how often each name came), ``now`` and ``reached``: for each level,
        when it was first reached after ``since_ns`` (monotonic), if it was."""
        answer: dict[str, Any] = json.loads(ask(self.port, f"/counts?since={since_ns}", 30.0))
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(END_S)
        if self._process.stdout is not None:
            self._process.stdout.close()


def ask(port: int, path: str, timeout_s: float) -> bytes:
    """One request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


async def ask_async(port: int, path: str) -> bytes:
    """One request, from a loop."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        await writer.drain()
        return (await reader.read()).partition(b"\r\n\r\n")[2]
    finally:
        writer.close()


class _Counter:
    """The service. ``rises`` are the levels reached, each with its time."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self.calls: dict[str, int] = {}
        self.rises: list[tuple[int, int]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request of one connection."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            url = urlsplit(head.split(b" ")[1].decode())
            given = {name: values[0] for name, values in parse_qs(url.query).items()}
            body = self.counts(int(given["since"])) if url.path == "/counts" else await self._work(given)
            writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # it was killed: whatever it had asked for was done all the same
        finally:
            writer.close()

    async def _work(self, given: dict[str, str]) -> bytes:
        self.calls[given["call"]] = self.calls.get(given["call"], 0) + 1
        self.now += 1
        self.most = max(self.most, self.now)
        self.rises.append((time.monotonic_ns(), self.now))
        try:
            loop = asyncio.get_running_loop()
            over: asyncio.Future[None] = loop.create_future()
            loop.call_later(int(given["ms"]) / 1_000, over.set_result, None)
            await over
        finally:
            self.now -= 1
        return b"{}"

    def counts(self, since_ns: int) -> bytes:
        reached: dict[int, int] = {}
        for at_ns, level in self.rises:
            if at_ns >= since_ns:
                reached.setdefault(level, at_ns)
        return json.dumps(
            {
                "now": self.now,
                "most": self.most,
                "requests": sum(self.calls.values()),
                "calls": self.calls,
                "reached": reached,
            }
        ).encode()


async def _serve() -> None:
    counter = _Counter()
    server = await asyncio.start_server(counter.serve, "127.0.0.1", 0, limit=HEAD_BYTES_MAX, backlog=512)
    over = asyncio.Event()
    loop = asyncio.get_running_loop()

    def watch() -> None:
        sys.stdin.buffer.read()
        loop.call_soon_threadsafe(over.set)

    threading.Thread(target=watch, daemon=True).start()
    print(server.sockets[0].getsockname()[1], flush=True)
    await over.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(_serve())
