"""A proxy between a store and its server that cuts the connection around the commit of one chosen write.

It reads the messages of the wire protocol both ways. A statement that writes runs alone in its transaction, so its commit
is the Sync that follows its Execute: the server commits when it reads that, and says so in CommandComplete.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal

Moment = Literal[
    "before it is sent", "within it", "before its answer", "within its answer", "after its answer"
]
MOMENTS: Final[tuple[Moment, ...]] = (
    "before it is sent",
    "within it",
    "before its answer",
    "within its answer",
    "after its answer",
)

PATIENCE_S: Final = 30


class CuttingProxy:
    """``address`` is for ``host=``. ``arm`` chooses the next commit of a statement that holds ``word``; ``cut`` says that it was
    met. ``refusing``: nobody gets through meanwhile."""

    def __init__(self, folder: Path, server: Path) -> None:
        self.address = folder
        self.commits = 0
        self.cuts = 0
        self.refusing = False
        self.cut = asyncio.Event()
        self._server = server
        self._moment: Moment | None = None
        self._word = b""
        self._skip = 0
        self._through: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}

    def arm(self, moment: Moment, word: str = "append_batch", skip: int = 0) -> None:
        """Cut at this moment of the write after ``skip`` more of its kind."""
        self._moment, self._word, self._skip = moment, word.encode(), skip
        self.cut.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client."""
        task = asyncio.current_task()
        assert task is not None
        self._through[task] = [writer]
        try:
            if not self.refusing:
                up_reader, up_writer = await asyncio.open_unix_connection(self._server)
                self._through[task].append(up_writer)
                await _Pair(self, reader, writer, up_reader, up_writer).carry()
        except OSError:
            pass  # the server is away: the client finds its connection ended
        finally:
            for end in self._through.pop(task):
                end.transport.abort()

    def takes(self, statement: bytes) -> Moment | None:
        """The moment at which this write is to be cut, if it is the one."""
        if not self._word or self._word not in statement:
            return None
        self.commits += 1
        moment = self._moment
        if moment is None:
            return None
        if self._skip:
            self._skip -= 1
            return None
        self._moment = None
        return moment

    def met(self) -> None:
        self.cuts += 1
        self.cut.set()

    async def end(self) -> None:
        """Cut whatever goes through."""
        through = dict(self._through)
        for ends in through.values():
            for end in ends:
                end.transport.abort()
        await asyncio.gather(*through, return_exceptions=True)


class _Cut(ConnectionError):
    pass


class _Pair:
    """One client and its backend."""

    def __init__(
        self,
        proxy: CuttingProxy,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._reader, self._writer = reader, writer
        self._up_reader, self._up_writer = up_reader, up_writer
        self._statements: dict[bytes, bytes] = {}
        self._awaited: Moment | None = None

    async def carry(self) -> None:
        """Until one end hangs up, or the cut."""
        ways = [asyncio.ensure_future(self._up()), asyncio.ensure_future(self._down())]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)

    async def _up(self) -> None:
        """What the client says. The messages of one statement are held until its Sync, and sent together."""
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        self._up_writer.write(size.to_bytes(4, "big") + await self._reader.readexactly(size - 4))
        held = b""
        bound: bytes | None = None
        while True:
            kind, body = await _message(self._reader)
            held += _framed(kind, body)
            if kind == b"P":
                name, _, rest = body.partition(b"\0")
                self._statements[name] = rest.partition(b"\0")[0]
            elif kind == b"B":
                name = body.partition(b"\0")[2].partition(b"\0")[0]
                bound = self._statements.get(name, b"")
            elif kind in (b"S", b"Q", b"X", b"H", b"p"):
                moment = self._proxy.takes(bound) if bound is not None else None
                bound = None
                if moment == "before it is sent":
                    self._proxy.met()
                    raise _Cut
                if moment == "within it":
                    self._up_writer.write(held[: len(held) // 2])
                    await self._up_writer.drain()
                    self._proxy.met()
                    raise _Cut
                self._awaited = moment
                self._up_writer.write(held)
                await self._up_writer.drain()
                held = b""

    async def _down(self) -> None:
        """What the server says. Up to ReadyForQuery an answer is held, if it is to be cut."""
        held = b""
        while True:
            kind, body = await _message(self._up_reader)
            moment = self._awaited
            if moment is None:
                self._writer.write(_framed(kind, body))
                continue
            held += _framed(kind, body)
            if kind != b"Z":
                continue
            # The server has said that it is ready for the next: it has committed.
            if moment == "within its answer":
                self._writer.write(held[: len(held) // 2])
            elif moment == "after its answer":
                self._writer.write(held)
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()
            self._proxy.met()
            if moment != "after its answer":
                raise _Cut
            self._writer.close()
            await self._writer.wait_closed()
            raise _Cut


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    kind = await reader.readexactly(1)
    size = int.from_bytes(await reader.readexactly(4), "big")
    return kind, await reader.readexactly(size - 4)


def _framed(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body


@asynccontextmanager
async def cutting(folder: Path, server: Path) -> AsyncGenerator[CuttingProxy]:
    """A proxy for the time of the block, with its socket in the folder."""
    proxy = CuttingProxy(folder, server)
    listening = await asyncio.start_unix_server(proxy.serve, folder / ".s.PGSQL.5432")
    try:
        yield proxy
    finally:
        listening.close()
        await proxy.end()
        await listening.wait_closed()
