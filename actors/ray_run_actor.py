"""``RunActor``: a host of runs in a process of its own, and the messenger that carries its store calls between machines.

Plain classes, made actors elsewhere (``ray_run_actors``), so that they pickle by reference. Nothing here runs an
application's tools, and nothing blocks: a control call is answered between two turns of the loop. If the store's owner is
gone the process ends: whoever owns the file next gives its runs to others.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from ..eventstore.carried import CarriedStore
from ..eventstore.owned import lock_path
from ..eventstore.owner import live_owner
from ..eventstore.process_identity import this_process
from ..eventstore.remote import RemoteStore
from ..eventstore.socket_client import SocketStore
from ..eventstore.submit import encode_answer
from ..runtime.binding import PRODUCER
from ..runtime.commands import decode_command
from ..runtime.errors import StoreError
from ..runtime.state import State
from .executors import ToolExecutors
from .host import Host
from .places import RemotePlaces
from .shipping import Shipment, unpack

EXIT_HOST_LOST: Final = 71
EXIT_OWNER_GONE: Final = 72
EXIT_LINGERING: Final = 73


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the store: its file's absolute path, and the Ray node of its owner. On another node the calls go
    through the messenger beside the owner."""

    path: str
    node_id: str


class ToolsWay(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the tool pools: the actors' namespace, and what each executor must say of itself."""

    namespace: str
    store: str
    revision: str


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who a run actor is; compared before anything is entrusted to it."""

    kind: str
    name: str
    producer: str
    host_id: str
    node: str
    pid: int
    pid_start: int
    boot_id: str


class LetGoMessage(msgspec.Struct, frozen=True, array_like=True):
    """What a run actor tells the owner's supervisor when a run isn't with it any more."""

    seat: str
    run_id: str
    failed: str
    lingering: bool


RUN_ACTOR: Final = "run_actor"


class RunActor:
    """One host. ``open`` first; then ``adopt``, ``nudge``, ``submit``, until ``drain`` or the end of the process."""

    def __init__(self, name: str, shipment: bytes, way: bytes, messenger: Any, tools: bytes) -> None:
        self._name = name
        self._shipment = shipment
        self._way = msgspec.msgpack.decode(way, type=Way)
        self._messenger = messenger
        self._tools = msgspec.msgpack.decode(tools, type=ToolsWay)
        self._host: Host | None = None
        self._store: RemoteStore | None = None
        self._adopted: set[str] = set()
        self._words: set[asyncio.Task[None]] = set()

    async def open(self) -> bytes:
        """Reach the store, register as a host and tell who this is (an encoded ``Identity``)."""
        application = unpack(self._shipment)
        self._store = store = await self._reached()
        self._host = host = Host(
            store,
            toolbox=application.toolbox,
            policy=application.policy,
            adapter=application.adapter,
            permissions_of=application.permissions_of,
            application=application.application,
            dependencies=application.dependencies,
            looks=False,
        )
        host.executors = self._executors(application, store, host.host_id)
        host.parked_watchers.append(self._parked)
        host.failed_watchers.append(lambda error: os._exit(EXIT_HOST_LOST))
        await store.switches()
        await host.open()
        process = this_process()
        return msgspec.msgpack.encode(
            Identity(
                kind=RUN_ACTOR,
                name=self._name,
                producer=PRODUCER,
                host_id=host.host_id,
                node=process.host,
                pid=process.pid,
                pid_start=process.pid_start,
                boot_id=process.boot_id,
            )
        )

    async def _reached(self) -> RemoteStore:
        if self._messenger is not None and node_here() != self._way.node_id:
            messenger = self._messenger

            async def carry(request: bytes) -> bytes:
                answer: bytes = await messenger.carry.remote(request)
                return answer

            store = CarriedStore(self._way.path, _ending(carry))
            await store.run("")  # brings the owner's time
            return store
        return await socket_to_owner(self._way.path)

    def _executors(self, application: Shipment, store: RemoteStore, host_id: str) -> ToolExecutors:
        from .ray_dispatch import RayExecutors

        return RayExecutors(
            RemotePlaces(store.ask),
            holder=host_id,
            namespace=self._tools.namespace,
            store=self._tools.store,
            revision=self._tools.revision,
            groups=application.groups,
            dependencies=application.dependencies,
        )

    async def adopt(self, run_ids: Sequence[str]) -> list[str]:
        """Take these runs up; those that it took."""
        host = self._opened()
        taken: list[str] = []
        for run_id in run_ids:
            self._adopted.add(run_id)
            try:
                took = await host.take_up(run_id)
            except StoreError as error:
                self._adopted.discard(run_id)
                self._end_if_owner_is_gone(error)
                continue
            if took:
                taken.append(run_id)
            else:
                self._adopted.discard(run_id)
        return taken

    async def nudge(self, run_ids: Sequence[str]) -> None:
        """What these runs wait for may have changed."""
        for run_id in run_ids:
            self._opened().nudge(run_id)

    async def submit(self, run_id: str, command: bytes) -> bytes | None:
        """The encoded answer to an encoded outside command; None if the run isn't here."""
        host = self._opened()
        if host.hosted(run_id) is None:
            return None
        return encode_answer(await host.submit(run_id, decode_command(command)))

    async def statistics(self) -> dict[str, int]:
        """Counts of this process, for tests and doctors: runs, tasks, threads, open files."""
        import threading

        return {
            "runs": len(self._adopted),
            "tasks": len(asyncio.all_tasks()),
            "threads": threading.active_count(),
            "fds": len(os.listdir("/proc/self/fd")),
            "rss_kib": _rss_kib(),
        }

    async def gone(self) -> None:
        """Never returns: whoever awaits it is told by Ray when the process ends."""
        await asyncio.get_running_loop().create_future()

    async def drain(self) -> None:
        """Put all runs down, ready for others, and give up the owner row."""
        host, self._host = self._opened(), None
        await host.close()
        if self._store is not None:
            await self._store.close()

    def _opened(self) -> Host:
        if self._host is None:
            raise StoreError("closed", "this run actor is closed", path=self._name)
        return self._host

    def _parked(self, run_id: str, state: State) -> None:
        if run_id not in self._adopted:
            return
        self._adopted.discard(run_id)
        host = self._opened()
        failure = host.failures.pop(run_id, None)
        word = LetGoMessage(
            self._name,
            run_id,
            "" if failure is None else f"{type(failure).__name__}: {failure}"[:500],
            host.executors.lingers(run_id),
        )
        task = asyncio.get_running_loop().create_task(self._tell(word))
        self._words.add(task)
        task.add_done_callback(self._words.discard)

    async def _tell(self, word: LetGoMessage) -> None:
        assert self._store is not None
        try:
            await self._store.ask("let_go", msgspec.msgpack.encode(word))
        except StoreError as error:
            self._end_if_owner_is_gone(error)

    def _end_if_owner_is_gone(self, error: StoreError) -> None:
        if error.code in ("owner_gone", "store_closed"):
            os._exit(EXIT_OWNER_GONE)


class StoreMessenger:
    """Runs beside the store's owner and carries the calls of hosts on other machines. It keeps nothing."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._store: SocketStore | None = None
        self._connecting = asyncio.Lock()

    async def carry(self, request: bytes) -> bytes:
        """One encoded ``Request`` to its encoded ``Answer``."""
        async with self._connecting:
            if self._store is None:
                self._store = await socket_to_owner(self._path)
        store = self._store
        try:
            return await store.carry(request)
        except StoreError:
            if self._store is store:
                self._store = None
                await store.close()
            raise

    async def identify(self) -> tuple[str, str, str, str]:
        """(kind, producer revision, path of the file, node)."""
        return "store_messenger", PRODUCER, self._path, node_here()


def node_here() -> str:
    """The Ray node of this process."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


async def socket_to_owner(path: str) -> SocketStore:
    """The socket of the file's owner. Raises ``StoreError`` (``owner_gone``) if there is none that listens."""
    owner = await asyncio.to_thread(live_owner, lock_path(path))
    if owner is None:
        raise StoreError("owner_gone", "nobody owns this file", path=path)
    try:
        return await SocketStore.connect(path, owner)
    except OSError as error:
        raise StoreError("owner_gone", "the file's owner does not listen", path=path) from error


def _ending(carry: Callable[[bytes], Awaitable[bytes]]) -> Callable[[bytes], Awaitable[bytes]]:
    """A way whose end is the end of this process: its runs are another host's by then."""

    async def carried(request: bytes) -> bytes:
        try:
            return await carry(request)
        except Exception:
            os._exit(EXIT_OWNER_GONE)

    return carried


def _rss_kib() -> int:
    with open("/proc/self/statm") as text:
        return int(text.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
