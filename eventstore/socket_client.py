"""The store of another process: the same methods, through the owner's socket."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Final

import msgspec

from ..runtime.errors import OwnedError, StoreError
from .owner import OwnerText
from .remote import RemoteStore
from .socket_protocol import (
    ANSWERS,
    PROTOCOL_VERSION,
    Answer,
    Request,
    encode,
    error_of,
    frame,
    read_frame,
    socket_address,
)

HELLO_WAIT_MS = 2_000
"""How long an owner may take to say who it is. A stopped one never does, and is named in the error."""

_CARRIED: Final = ""
"""In the place of an operation: the whole answer is wanted, undecoded."""


class SocketStore(RemoteStore):
    """Made by ``connect``, for one event loop. When the owner goes away every open and later call raises
    ``StoreError("owner_gone")``; whether an append was committed is unknown then."""

    def __init__(self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(path)
        self._reader = reader
        self._writer = writer
        self._number = 0
        self._waiting: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        self._gone: StoreError | None = None
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def connect(cls, path: str, owner: OwnerText) -> SocketStore:
        """Raises ``ConnectionError`` or ``FileNotFoundError`` if nobody listens (yet, or any more), ``OwnedError`` if
        the owner doesn't answer, ``StoreError`` if it is another version."""
        if not owner.socket:
            raise ConnectionError("the owner serves nobody")
        try:
            async with asyncio.timeout(HELLO_WAIT_MS / 1000):
                with socket_address(os.path.dirname(path), owner.socket) as address:
                    reader, writer = await asyncio.open_unix_connection(address)
                store = cls(path, reader, writer)
                try:
                    hello = await store._exchange("hello", PROTOCOL_VERSION)
                except BaseException as error:
                    await store.close()
                    if isinstance(error, StoreError) and error.code == "owner_gone":
                        raise ConnectionError("it hung up") from error
                    raise
        except TimeoutError as error:
            raise OwnedError(owner.process.pid, owner.process.host, path=path) from error
        if hello.token != owner.token:
            await store.close()
            raise ConnectionError("another process listens than the one that holds the lock")
        if hello.version != PROTOCOL_VERSION:
            await store.close()
            raise StoreError("other_protocol", f"the owner speaks version {hello.version}", path=path)
        return store

    @property
    def gone(self) -> bool:
        """Whether the connection has ended: no further call is sent."""
        return self._gone is not None

    async def _listen(self) -> None:
        try:
            while (body := await read_frame(self._reader)) is not None:
                answer = msgspec.msgpack.decode(body, type=Answer)
                self._note(answer)
                op, future = self._waiting.pop(answer.number, ("", None))
                if future is None:
                    if answer.failure is not None and answer.number == 0:
                        self._lose(error_of(answer.failure))
                    continue
                if not future.done():
                    self._settle(op, future, answer)
        except (msgspec.DecodeError, RecursionError):
            pass
        finally:
            self._lose(None)

    def _settle(self, op: str, future: asyncio.Future[Any], answer: Answer) -> None:
        if op == _CARRIED:
            future.set_result(answer)
            return
        if answer.failure is not None:
            future.set_exception(error_of(answer.failure))
            return
        try:
            future.set_result(msgspec.msgpack.decode(answer.value, type=ANSWERS[op]))
        except (msgspec.DecodeError, RecursionError) as error:
            future.set_exception(StoreError("bad_answer", str(error)[:200], path=op))

    def _lose(self, why: BaseException | None) -> None:
        if self._gone is None:
            gone = StoreError(
                "owner_gone", "the store's owner went away; what it did with this call is unknown"
            )
            self._gone = why if isinstance(why, StoreError) else gone
        for _, future in self._waiting.values():
            if not future.done():
                future.set_exception(self._gone)
        self._waiting.clear()

    async def _exchange(self, op: str, *args: object) -> Any:
        return await self._send(op, op, msgspec.Raw(encode(args)))

    async def carry(self, request: bytes) -> bytes:
        """Pass on another process's encoded ``Request``, and give back the encoded ``Answer``. Raises as any call does;
        ``msgspec.DecodeError`` for what is no request."""
        asked = msgspec.msgpack.decode(request, type=Request)
        answer: Answer = await self._send(_CARRIED, asked.op, asked.args)
        return encode(msgspec.structs.replace(answer, number=asked.number))

    async def _send(self, wanted: str, op: str, args: msgspec.Raw) -> Any:
        if self._gone is not None:
            raise self._gone
        self._number += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        request = frame(Request(self._number, op, args))
        self._waiting[self._number] = wanted, future
        try:
            self._writer.write(request)
            await self._writer.drain()
        except ConnectionError:
            pass  # the listener hears of it too, and settles the future
        return await future

    async def close(self) -> None:
        """Hang up; harmless when done before. The owner finishes what it has received."""
        if self._gone is None:
            self._gone = StoreError("store_closed", "this connection is closed", path=self.path)
        self._writer.close()
        self._listening.cancel()
        await asyncio.gather(self._listening, self._writer.wait_closed(), return_exceptions=True)
