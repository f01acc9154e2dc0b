"""A server on loopback that says exactly the bytes that a test gives it, for what no well-behaved server does."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

Speak = Callable[["Heard"], Awaitable[None]]
WAIT_S: Final = 10.0


def seen(happened: Callable[[], bool], within_s: float = WAIT_S) -> bool:
    """Ask another process until it says yes, or the time is over."""
    until = time.monotonic() + within_s
    while not (yes := happened()) and time.monotonic() < until:
        threading.Event().wait(0.01)
    return yes


class Heard:
    """One connection: what was asked, and the pen to answer with."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.head = ""
        self.body = b""

    async def read(self) -> None:
        """Take in one whole request."""
        self.head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        length = next(
            (
                int(line.partition(":")[2])
                for line in self.head.splitlines()
                if line.lower().startswith("content-length:")
            ),
            0,
        )
        self.body = await self._reader.readexactly(length)

    async def say(self, data: bytes) -> None:
        """Send; a client that left raises ``ConnectionError``."""
        self._writer.write(data)
        await self._writer.drain()

    async def until_closed(self) -> None:
        """Wait until the other side has closed."""
        async with asyncio.timeout(WAIT_S):
            while await self._reader.read(4_096):
                pass

    def cut(self) -> None:
        """Reset the connection."""
        self._writer.transport.abort()


class Listening:
    """A running server: where, and everything it heard."""

    def __init__(self) -> None:
        self.url = ""
        self.heard: list[Heard] = []
        self.closed_by_client = asyncio.Event()


@asynccontextmanager
async def speaking(speak: Speak) -> AsyncGenerator[Listening]:
    """Serve with ``speak`` called once for each connection, after its first request was read."""
    listening = Listening()
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            tasks.add(task)
        heard = Heard(reader, writer)
        try:
            await heard.read()
            listening.heard.append(heard)
            await speak(heard)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            listening.closed_by_client.set()
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    listening.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield listening
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


def http(body: bytes, *headers: str, status: str = "200 OK", length: int | None = None) -> bytes:
    """A whole HTTP answer."""
    lines = [f"HTTP/1.1 {status}", *headers, f"content-length: {len(body) if length is None else length}"]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
