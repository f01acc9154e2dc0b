"""The owner's side of the socket: every method of the store, for other processes of the same user.

The server has a thread and an event loop of its own, so that a busy or blocked application doesn't keep the command
line from reading. Reads and appends go straight to the store's thread; ``submit`` goes to the application's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
import struct
import sys
import threading
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import msgspec

from ..runtime.errors import BugError, DiskFull, StoreError
from .port import Appended, RunFilter
from .socket_protocol import (
    ARGUMENTS,
    FRAME_BYTES_MAX,
    PROTOCOL_VERSION,
    ROWS_MAX,
    Answer,
    Hello,
    Request,
    encode,
    failure_of,
    frame,
    read_frame,
    socket_address,
)
from .sqlite import SqliteStore

CONNECTIONS_MAX = 64
"""Connections besides those of the owner's own hosts, for which it makes room (``hosts_expected``): command lines and
Runtimes that go through it. A further connection is told so and closed."""

BACKLOG = 128

FIRST_FRAME_WAIT_MS = 2_000
"""How long a new connection may say nothing."""

IDLE_WAIT_MS = 60_000
"""How long a connection with nothing in work may say nothing. A client that comes back connects again."""

FRAME_WAIT_MS = 10_000
"""How long a frame that has begun may take to arrive, and to find room."""

IN_FLIGHT_MAX = 16
"""Requests to the store of one connection in work; the next isn't read before one is answered. All of them end as fast as
the store works: none waits for anybody."""

ASKS_MAX = 32_000
"""What one connection may have open besides, of each of ``LANES``: such requests wait for the application, each run of a
host may have some, and they hold up nothing. A further one is refused at once: were it left unread, so would be what is
behind it, and a host that can't renew its row is taken for dead."""

LANES = {"ask": "ask", "submit": "ask", "tell": "tell"}
"""What is counted together. A question or a command may be a wait; what is told is answered at once, so that places that
are given back and runs that left are heard of however many wait for one."""

LIGHT_FRAME_BYTES_MAX = 64 * 1024

HEAVY_FRAMES_MAX = 2
"""Frames above ``LIGHT_FRAME_BYTES_MAX`` that are being received or worked on, over all connections. So requests hold at
most 2 frames of 66 MiB and, light ones, 64 KiB * 16 a connection."""

DRAIN_WAIT_MS = 5_000
"""How long a server that stops waits for the answers to what it has received."""

_NOTHING = msgspec.Raw(encode(None))

_KEYWORDS = {
    "read": ("after_seq", "rows_max"),
    "acquire": ("dead_hosts",),
    "drop_host": ("died",),
    "release": ("ready",),
    "set_switch": ("on",),
    "drop_blobs": ("put_before_ms",),
}
"""Names of the last arguments of methods that take them by name only."""


class SocketServer:
    """Serves from ``start`` to ``stop``. ``token`` proves to a client that this is the owner it looked for."""

    def __init__(self, store: SqliteStore, folder: str, name: str, token: str) -> None:
        self._store = store
        self._folder = folder
        self._name = name
        self._token = token
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._at_work: set[asyncio.Task[None]] = set()
        self._drained = False
        self.hosts_expected = 0
        self._heavy = asyncio.Semaphore(HEAVY_FRAMES_MAX)

    def start(self) -> None:
        """Bind and serve. Raises ``StoreError``. The caller holds the file's lock, so an old socket is nobody's."""
        listener = _listen(self._folder, self._name)
        self._thread = threading.Thread(
            target=self._run, args=(listener,), name="boundloop-socket", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Take the socket away, answer what was received (for ``DRAIN_WAIT_MS`` at most) and end the thread. What is in work
        then goes on in the store and isn't answered. On a disk that takes nothing any more the socket's name stays; the next
        owner replaces it."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with contextlib.suppress(OSError, StoreError), socket_address(self._folder, self._name) as address:
            _remove_socket(address)
        while thread.is_alive():
            if self._loop is not None and self._stopping is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed, so the thread is at its end
                    self._loop.call_soon_threadsafe(self._stopping.set)
            thread.join(0.01)

    # --- on the server's thread ------------------------------------------------------------------------------------

    def _run(self, listener: socket.socket) -> None:
        asyncio.run(self._serve(listener))

    async def _serve(self, listener: socket.socket) -> None:
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if sys.version_info >= (3, 13):
            # The socket's file is ours to remove, under the name that we made it by; its address may be a short
            # one that is no longer good.
            server = await asyncio.start_unix_server(self._connected, sock=listener, cleanup_socket=False)
        else:
            server = await asyncio.start_unix_server(self._connected, sock=listener)
        try:
            await self._stopping.wait()
        finally:
            # asyncio breaks on a connection that was accepted but not yet made known when its server closes: no more
            # are accepted, and those that were get their two turns of the loop.
            self._loop.remove_reader(listener)
            for _ in range(2):
                await asyncio.sleep(0)
            server.close()
            if self._at_work:
                await asyncio.wait(self._at_work, timeout=DRAIN_WAIT_MS / 1000)
            self._drained = True
            open_connections = list(self._connections)
            for task in open_connections:
                task.cancel()
            await asyncio.gather(*open_connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if not _is_same_user(writer):
                return
            if len(self._connections) >= CONNECTIONS_MAX + self.hosts_expected:
                await self._turn_away(reader, writer)
                return
            self._connections.add(task)
            writer.transport.set_write_buffer_limits(high=0)  # drained means handed to the kernel
            await self._converse(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            return  # the peer is gone, or the server stops: nobody reads an answer
        finally:
            if self._stopping is not None and self._stopping.is_set():
                writer.transport.abort()  # a peer that doesn't read must not hold up the owner's end
            writer.close()
            # A cancel that comes while it closes ends here too: asyncio complains of a connection that ends cancelled.
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()
            self._connections.discard(task)

    async def _turn_away(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Closing with the peer's first frame unread would take the answer away with the connection.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_FRAME_WAIT_MS / 1000):
                await read_frame(reader)
        error = StoreError("too_many_connections", f"{len(self._connections)} are open")
        writer.write(frame(self._failed(0, error)))
        await writer.drain()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._stopping is not None
        room = asyncio.Semaphore(IN_FLIGHT_MAX)
        lanes: dict[str, set[asyncio.Task[None]]] = {lane: set() for lane in LANES.values()}
        at_work: set[asyncio.Task[None]] = set()
        wait_ms = FIRST_FRAME_WAIT_MS
        try:
            while True:
                await room.acquire()
                size = await _frame_size(reader, wait_ms, at_work)
                if size is None or self._stopping.is_set():
                    return
                wait_ms = IDLE_WAIT_MS
                heavy = self._heavy if size > LIGHT_FRAME_BYTES_MAX else None
                request = await _request(reader, size, heavy)
                if request is None:
                    return
                lane = lanes.get(LANES.get(request.op, ""))
                refused = lane is not None and len(lane) >= ASKS_MAX
                work = asyncio.create_task(self._answer(request, writer, refused=refused))
                for tasks in (at_work, self._at_work) if lane is None else (at_work, self._at_work, lane):
                    tasks.add(work)
                    work.add_done_callback(tasks.discard)
                if lane is not None:
                    room.release()
                else:
                    work.add_done_callback(lambda _: room.release())
                if heavy is not None:
                    work.add_done_callback(lambda _: self._heavy.release())
        finally:
            # Work goes on without its peer: a command that was received is a command. A server that has waited for its
            # answers doesn't wait again for an application that never gives one.
            if at_work and not self._drained:
                await asyncio.wait(at_work)

    async def _answer(self, request: Request, writer: asyncio.StreamWriter, *, refused: bool) -> None:
        try:
            if refused:
                raise StoreError("too_many_questions", f"{ASKS_MAX} are open on this connection")
            value = msgspec.Raw(encode(await self._call(request)))
            answer = frame(
                Answer(request.number, self._store.now_ms(), value, switches=self._store.switches_count)
            )
        except Exception as error:  # noqa: BLE001  every error travels as a typed answer
            answer = frame(self._failed(request.number, error))
        if not writer.is_closing():
            writer.write(answer)
            try:
                await writer.drain()
            except ConnectionError:
                return

    async def _call(self, request: Request) -> object:
        if request.op not in ARGUMENTS:
            raise StoreError(
                "unknown_operation", "the owner doesn't know this operation", path=request.op[:64]
            )
        try:
            args: tuple[Any, ...] = msgspec.msgpack.decode(request.args, type=ARGUMENTS[request.op])
        except (msgspec.DecodeError, RecursionError) as error:
            raise BugError("bad_arguments", str(error)[:200], path=request.op) from error
        if request.op == "hello":
            return Hello(PROTOCOL_VERSION, self._token, os.getpid())
        args = _clamped(request.op, args)
        names = _KEYWORDS.get(request.op, ())
        plain = len(args) - len(names)
        method: Callable[..., Awaitable[object]] = getattr(
            self._store, request.op
        )  # one of ARGUMENTS, checked above
        answer = await method(*args[:plain], **dict(zip(names, args[plain:], strict=True)))
        if request.op == "append" and isinstance(answer, Appended):
            self._store.told_of_append(args[0].run_id)
        return answer

    def _failed(self, number: int, error: BaseException) -> Answer:
        return Answer(number, self._store.now_ms(), _NOTHING, failure_of(error))


async def _frame_size(reader: asyncio.StreamReader, wait_ms: int, at_work: Collection[object]) -> int | None:
    """The size of the next frame; None if there will be none, or none that is of use."""
    while True:
        try:
            async with asyncio.timeout(wait_ms / 1000):
                size = int.from_bytes(await reader.readexactly(4), "big")
                return size if size <= FRAME_BYTES_MAX else None
        except TimeoutError:
            if not at_work:  # who waits for an answer has nothing to say
                return None
        except (asyncio.IncompleteReadError, ConnectionError):
            return None


async def _request(
    reader: asyncio.StreamReader, size: int, heavy: asyncio.Semaphore | None
) -> Request | None:
    """The frame's request; None if it doesn't come in time or is none. ``heavy`` is taken for it, and kept if it came."""
    taken = False
    request = None
    try:
        async with asyncio.timeout(FRAME_WAIT_MS / 1000):
            if heavy is not None:
                await heavy.acquire()
                taken = True
            request = msgspec.msgpack.decode(await reader.readexactly(size), type=Request)
    except (TimeoutError, asyncio.IncompleteReadError, ConnectionError, msgspec.DecodeError, RecursionError):
        return None
    finally:
        if heavy is not None and taken and request is None:
            heavy.release()
    return request


def _clamped(op: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """A peer can't ask for everything at once."""
    if op == "runs":
        where: RunFilter = args[0]
        return (msgspec.structs.replace(where, limit=max(0, min(where.limit, ROWS_MAX))),)
    if op in (
        "read",
        "lost_logs",
        "astray",
        "runs_in_order",
        "blob_names",
        "earlier_rows",
        "ledger_rows",
        "unknown_effects",
        "ready_runs",
    ):  # the last argument is the number of rows
        return (*args[:-1], max(0, min(args[-1], ROWS_MAX)))
    return args


def _listen(folder: str, name: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket_address(folder, name) as address:
            _remove_socket(address)
            os.fchmod(listener.fileno(), 0o600)  # what the kernel makes the file with
            listener.bind(address)
            os.chmod(address, 0o600)
            listener.listen(BACKLOG)
            listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(folder) from error
        raise StoreError("socket_unusable", str(error), path=os.path.join(folder, name)) from error
    except BaseException:
        listener.close()
        raise
    return listener


def _remove_socket(address: str) -> None:
    try:
        if not stat.S_ISSOCK(os.lstat(address).st_mode):
            raise StoreError("socket_unusable", "something that is no socket has its name", path=address)
        os.unlink(address)
    except FileNotFoundError:
        return


def _is_same_user(writer: asyncio.StreamWriter) -> bool:
    peer: socket.socket = writer.get_extra_info("socket")
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the mode of the socket's file has to do
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid: int = struct.unpack("3i", credentials)[1]
    return uid in (0, os.geteuid())
