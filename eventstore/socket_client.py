"""The store of another process: the same methods, through the owner's socket."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from ..runtime.errors import OwnedError, StoreError
from ..runtime.ledger import LedgerRow
from .owner import OwnerText
from .port import AcquireAnswer, Append, AppendAnswer, HostRow, RunFilter, RunRow, StoredAppend, Switch
from .socket_protocol import (
    ANSWERS,
    PROTOCOL_VERSION,
    ROWS_MAX,
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


class SocketStore:
    """Made by ``connect``, for one event loop. When the owner goes away every open and later call raises
    ``StoreError("owner_gone")``; whether an append was committed is unknown then."""

    def __init__(self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.path = path
        self._reader = reader
        self._writer = writer
        self._number = 0
        self._waiting: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        self._gone: StoreError | None = None
        self._now_ms = 0
        self._switches: tuple[Switch, ...] = ()
        self._now_at_ns = time.monotonic_ns()
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
                    hello = await store._ask("hello", PROTOCOL_VERSION)
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

    async def _listen(self) -> None:
        try:
            while (body := await read_frame(self._reader)) is not None:
                answer = msgspec.msgpack.decode(body, type=Answer)
                self._note_time(answer.now_ms)
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

    def _note_time(self, now_ms: int) -> None:
        self._now_ms = max(self.now_ms(), now_ms)
        self._now_at_ns = time.monotonic_ns()

    async def _ask(self, op: str, *args: object) -> Any:
        if self._gone is not None:
            raise self._gone
        self._number += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        request = frame(Request(self._number, op, msgspec.Raw(encode(args))))
        self._waiting[self._number] = op, future
        try:
            self._writer.write(request)
            await self._writer.drain()
        except ConnectionError:
            pass  # the listener hears of it too, and settles the future
        return await future

    def now_ms(self) -> int:
        """The owner's time as of its last answer, carried on by this process's monotonic clock."""
        return self._now_ms + (time.monotonic_ns() - self._now_at_ns) // 1_000_000

    async def append(self, request: Append) -> AppendAnswer:
        answer: AppendAnswer = await self._ask("append", request)
        return answer

    async def read(self, run_id: str, *, after_seq: int = 0, rows_max: int = 1_000) -> list[StoredAppend]:
        rows: list[StoredAppend] = []
        while len(rows) < rows_max:
            wanted = min(ROWS_MAX, rows_max - len(rows))
            page: list[StoredAppend] = await self._ask("read", run_id, after_seq, wanted)
            rows += page
            if len(page) < wanted:
                break
            after_seq = page[-1].first_seq
        return rows

    async def run(self, run_id: str) -> RunRow | None:
        row: RunRow | None = await self._ask("run", run_id)
        return row

    async def runs(self, where: RunFilter) -> list[RunRow]:
        rows: list[RunRow] = []
        while len(rows) < where.limit:
            wanted = min(ROWS_MAX, where.limit - len(rows))
            page: list[RunRow] = await self._ask("runs", msgspec.structs.replace(where, limit=wanted))
            rows += page
            if len(page) < wanted:
                break
            where = msgspec.structs.replace(where, after=page[-1].run_id)
        return rows

    async def put_blob(self, data: bytes) -> bytes:
        digest: bytes = await self._ask("put_blob", data)
        return digest

    async def get_blob(self, sha256: bytes) -> bytes | None:
        data: bytes | None = await self._ask("get_blob", sha256)
        return data

    async def ledger_row(self, tenant: str, key: bytes) -> LedgerRow | None:
        row: LedgerRow | None = await self._ask("ledger_row", tenant, key)
        return row

    async def ledger_rows(self, after: tuple[str, bytes] | None = None, limit: int = 100) -> list[LedgerRow]:
        rows: list[LedgerRow] = await self._ask("ledger_rows", after, limit)
        return rows

    async def unknown_effects(self, tenant: str | None = None, limit: int = 100) -> list[LedgerRow]:
        rows: list[LedgerRow] = await self._ask("unknown_effects", tenant, limit)
        return rows

    async def register_host(self, host: HostRow) -> None:
        await self._ask("register_host", host)

    async def renew_host(self, host_id: str) -> bool:
        renewed: bool = await self._ask("renew_host", host_id)
        return renewed

    async def drop_host(self, host_id: str, *, died: bool = False) -> None:
        await self._ask("drop_host", host_id, died)

    async def hosts(self) -> list[HostRow]:
        rows: list[HostRow] = await self._ask("hosts")
        return rows

    async def acquire(self, run_id: str, host_id: str, *, dead_hosts: Sequence[str] = ()) -> AcquireAnswer:
        answer: AcquireAnswer = await self._ask("acquire", run_id, host_id, list(dead_hosts))
        return answer

    async def release(self, run_id: str, host_id: str, epoch: int, *, ready: bool) -> None:
        await self._ask("release", run_id, host_id, epoch, ready)

    async def ready_runs(self, limit: int = 100) -> list[str]:
        run_ids: list[str] = await self._ask("ready_runs", limit)
        return run_ids

    async def next_wake_ms(self) -> int | None:
        at_ms: int | None = await self._ask("next_wake_ms")
        return at_ms

    async def mark_damaged(self, run_id: str, reason: str) -> None:
        await self._ask("mark_damaged", run_id, reason)

    async def faults(self) -> list[str]:
        """What ``SqliteStore.faults`` finds, in the owner."""
        found: list[str] = await self._ask("faults")
        return found

    async def switches(self) -> list[Switch]:
        rows: list[Switch] = await self._ask("switches")
        self._switches = tuple(rows)
        return rows

    def switches_known(self) -> tuple[Switch, ...]:
        return self._switches

    async def set_switch(self, switch: Switch, *, on: bool) -> None:
        await self._ask("set_switch", switch, on)
        await self.switches()

    async def submit(self, run_id: str, command_id: str, command: bytes) -> bytes:
        answer: bytes = await self._ask("submit", run_id, command_id, command)
        return answer

    async def close(self) -> None:
        """Hang up; harmless when done before. The owner finishes what it has received."""
        if self._gone is None:
            self._gone = StoreError("store_closed", "this connection is closed", path=self.path)
        self._writer.close()
        self._listening.cancel()
        await asyncio.gather(self._listening, self._writer.wait_closed(), return_exceptions=True)
