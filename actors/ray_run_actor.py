"""``RunActor``: a host of runs in a process of its own, and the messenger that carries its store calls between machines.

Plain classes, made actors elsewhere (``ray_run_actors``), so that they pickle by reference. Nothing here runs an
application's tools, and nothing blocks: a control call is answered between two turns of the loop. A store with an owner is
reached through it; PostgreSQL is opened by each run actor for itself, and only what concerns seats and places goes to the
process that made it (``ray_questions``). If that process is gone the actor ends, and whoever comes next has its runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from hmac import compare_digest
from typing import Any, Final

import msgspec

from ..eventstore.carried import CarriedStore, refused_answer
from ..eventstore.location import open_store
from ..eventstore.owned import lock_path
from ..eventstore.owner import live_owner
from ..eventstore.port import EventStore
from ..eventstore.process_identity import this_process
from ..eventstore.remote import RemoteStore
from ..eventstore.socket_client import SocketStore
from ..eventstore.socket_protocol import Failure, failure_of
from ..eventstore.submit import encode_answer
from ..runtime.binding import PRODUCER
from ..runtime.commands import decode_command
from ..runtime.errors import BoundloopError, CallerError, StoreError
from ..runtime.state import State
from . import tool_failures
from .executor_process import silence
from .executors import ToolExecutors
from .host import Host
from .places import Ask, RemotePlaces
from .provisional import Mark, Shown
from .ray_questions import Questions, no_questions
from .secret_source import Secrets
from .shipping import HOW_TO_BE_IMPORTABLE, Shipment, unpack

EXIT_HOST_LOST: Final = 71
EXIT_OWNER_GONE: Final = 72
EXIT_UNHEARD: Final = 73

ADOPTIONS_MAX: Final = 16
"""Runs that are taken up at the same time: as many as its connection has in work."""

CLIENTS_MAX: Final = 4_000
"""Connections of one messenger: one for each host and attached Runtime on another machine."""

WORD_TRIES: Final = 5
WORD_PAUSE_S: Final = 1.0
WORD_S: Final = 10.0
"""How often, and for how long each time, the owner is told of a run that left. One that it never hears of would keep its
seat for ever."""


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the store: its file's absolute path, and the Ray node of its owner. On another node the calls go
    through the messenger beside the owner. ``url``: of a store that has no owner, which each process opens; it may hold a
    password, so it travels through the object store only."""

    path: str
    node_id: str
    url: str = ""


class ToolsWay(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the tool pools: the actors' namespace, and what each executor must say of itself. ``secret``: known to
    this owner and its run actors alone; a question about places or seats without it is another process's."""

    namespace: str
    store: str
    revision: str
    secret: str


class Identity(msgspec.Struct, frozen=True, kw_only=True, tag="identity"):
    """Who a run actor is; compared before anything is entrusted to it."""

    kind: str
    name: str
    producer: str
    host_id: str
    node: str
    pid: int
    pid_start: int
    boot_id: str


class Submitted(msgspec.Struct, frozen=True, array_like=True):
    """What came of an outside command: the encoded answer, nothing if the run isn't here, or what the host raised."""

    answer: bytes | None = None
    failure: Failure | None = None


class NotOpened(msgspec.Struct, frozen=True, tag="not_opened"):
    """Why a run actor can't work: what the application's code raised here."""

    failure: Failure


class LetGoMessage(msgspec.Struct, frozen=True, array_like=True):
    """What a run actor tells the owner's supervisor when a run isn't with it any more. ``number``: of the adoption that
    brought it."""

    seat: str
    run_id: str
    number: int
    failed: str
    lingering: bool


LET_GO: Final = "let_go"
TOOL_RAISED: Final = "tool_raised"
RAISED_PENDING_MAX: Final = 100
"""Lines about what tools raised that wait to be told to the owner; a further one is in this actor's log alone."""

RUN_ACTOR: Final = "run_actor"
MESSENGER: Final = "store_messenger"


class RunActor:
    """One host. ``open`` first; then ``adopt``, ``nudge``, ``submit``, until ``drain`` or the end of the process."""

    def __init__(self, name: str, shipment: bytes, way: bytes, messenger: Any, tools: bytes) -> None:
        self._name = name
        self._shipment = shipment
        self._way = msgspec.msgpack.decode(way, type=Way)
        self._messenger = messenger
        self._tools = msgspec.msgpack.decode(tools, type=ToolsWay)
        self._host: Host | None = None
        self._store: EventStore | None = None
        self._questions: Questions | None = None
        self._asks: Ask | None = None
        self._tells: Ask | None = None
        self._adopted: dict[str, int] = {}
        self._refused: dict[str, BaseException] = {}
        self._watching: asyncio.Task[None] | None = None
        self._words: set[asyncio.Task[None]] = set()
        self._lines: set[asyncio.Task[None]] = set()

    async def open(self) -> bytes:
        """Reach the store, register as a host and tell who this is (an encoded ``Identity``), or why not (an encoded
        ``NotOpened``)."""
        silence()
        try:
            application = unpack(self._shipment)
        except BaseException as error:  # a module may raise anything on import
            return msgspec.msgpack.encode(NotOpened(failure_of(_faulty(error))))
        try:
            self._store = store = await self._reached()
        except (
            BoundloopError
        ) as error:  # a database that can't be reached from here, or whose driver isn't installed
            return msgspec.msgpack.encode(NotOpened(failure_of(error)))
        secrets = Secrets.of(application.secrets)
        self._host = host = Host(
            store,
            toolbox=application.toolbox,
            policy=application.policy,
            adapter=application.adapter,
            permissions_of=application.permissions_of,
            application=application.application,
            dependencies=application.dependencies,
            secrets=secrets,
            looks=False,
        )
        host.executors = self._executors(application, host.host_id, secrets)
        host.parked_watchers.append(self._parked)
        host.refused_watchers.append(self._refused.__setitem__)
        host.failed_watchers.append(lambda error: os._exit(EXIT_HOST_LOST))
        await store.switches()
        if self._questions is not None:
            self._watching = asyncio.create_task(self._end_in_silence(self._questions))
        tool_failures.LOGGER.addHandler(tool_failures.Forwarding(self._tell_raised))
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

    async def _reached(self) -> EventStore:
        if self._way.url:
            self._questions = questions = Questions()
            self._asks = self._tells = sealed(questions.ask, self._tools.secret)
            return await open_store(self._way.url, on_submit=self._on_submit, on_ready=self._on_ready)
        store = await self._through_owner()
        self._asks = sealed(store.ask, self._tools.secret)
        self._tells = sealed(store.tell, self._tools.secret)
        return store

    async def _on_submit(self, run_id: str, command_id: str, data: bytes) -> bytes:
        return await self._opened().on_submit(run_id, command_id, data)

    def _on_ready(self, run_ids: Iterable[str]) -> None:
        """Runs that are here look again; which others are taken up is for the owner to say."""
        if self._host is not None:
            self._host.on_ready(run_ids)

    async def _end_in_silence(self, questions: Questions) -> None:
        await questions.until_silent()
        os._exit(EXIT_OWNER_GONE)

    async def _through_owner(self) -> RemoteStore:
        if self._messenger is not None and node_here() != self._way.node_id:
            messenger = self._messenger

            async def carry(request: bytes) -> bytes:
                answer: bytes = await messenger.carry.remote(self._name, request)
                return answer

            store = CarriedStore(self._way.path, _ending(carry))
            await store.run("")  # brings the owner's time
            return store
        return await socket_to_owner(self._way.path)

    def _executors(self, application: Shipment, host_id: str, secrets: Secrets | None) -> ToolExecutors:
        from .ray_dispatch import RayExecutors

        assert self._asks is not None
        return RayExecutors(
            RemotePlaces(self._asks, self._tells),
            holder=host_id,
            namespace=self._tools.namespace,
            store=self._tools.store,
            revision=self._tools.revision,
            groups=application.groups,
            dependencies=application.dependencies,
            secrets=secrets,
        )

    async def adopt(self, run_ids: Sequence[str], number: int) -> dict[str, str]:
        """Take these runs up. Those that it didn't take, with the reason; empty if somebody else has it, or this actor is
        about to end. ``number`` comes back with the word that such a run left."""
        room = asyncio.Semaphore(ADOPTIONS_MAX)

        async def adopted(run_id: str) -> str | None:
            async with room:
                return await self._adopt(run_id, number)

        reasons = await asyncio.gather(*(adopted(run_id) for run_id in run_ids))
        return {run_id: why for run_id, why in zip(run_ids, reasons, strict=True) if why is not None}

    async def _adopt(self, run_id: str, number: int) -> str | None:
        """None: taken."""
        host = self._host
        if host is None:
            return ""
        self._adopted[run_id] = number
        try:
            if await host.take_up(run_id):
                return None
        except StoreError as error:
            self._end_if_owner_is_gone(error)
        self._adopted.pop(run_id, None)
        why = self._refused.pop(run_id, None)
        failure = host.failures.pop(run_id, why)
        return "" if failure is None else _text_of(failure)

    async def nudge(self, run_ids: Sequence[str]) -> None:
        """What these runs wait for may have changed."""
        for run_id in run_ids:
            self._opened().nudge(run_id)

    async def submit(self, run_id: str, command: bytes) -> bytes:
        """An encoded outside command to its encoded ``Submitted``."""
        submitted = Submitted()
        try:
            host = self._opened()
            if host.hosted(run_id) is not None:
                submitted = Submitted(encode_answer(await host.submit(run_id, decode_command(command))))
        except BoundloopError as error:
            submitted = Submitted(failure=failure_of(error))
        return msgspec.msgpack.encode(submitted)

    async def shown(self, run_id: str, mark: bytes, timeout_s: float) -> bytes:
        """An encoded ``Mark`` to the encoded ``Shown`` of what came since, within the time. Empty where the run isn't here."""
        host, place = self._host, msgspec.msgpack.decode(mark, type=Mark)
        if host is None or host.hosted(run_id) is None:
            return msgspec.msgpack.encode(Shown(place))
        return msgspec.msgpack.encode(await host.shown(run_id, place, timeout_s))

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

    async def questions(self, heard: int) -> bytes:
        """See ``Questions.next``. Raises ``StoreError`` (``no_questions``) of an actor that goes through the store's owner."""
        if self._questions is None:
            raise no_questions()
        return await self._questions.next(heard)

    async def answered(self, answers: bytes) -> None:
        """See ``Questions.answered``."""
        if self._questions is not None:
            self._questions.answered(answers)

    async def gone(self) -> None:
        """Never returns: whoever awaits it is told by Ray when the process ends."""
        await asyncio.get_running_loop().create_future()

    async def drain(self) -> None:
        """Put all runs down, ready for others, and give up the owner row."""
        host, self._host = self._opened(), None
        self._adopted.clear()  # each is told of by the row that is dropped
        await host.close()
        if self._store is not None:
            await self._store.close()

    def _opened(self) -> Host:
        if self._host is None:
            raise StoreError("closed", "this run actor is closed", path=self._name)
        return self._host

    def _parked(self, run_id: str, state: State) -> None:
        number = self._adopted.pop(run_id, None)
        if number is None:
            return
        host = self._opened()
        failure = host.failures.pop(run_id, None)
        word = LetGoMessage(
            self._name,
            run_id,
            number,
            "" if failure is None else _text_of(failure),
            host.executors.lingers(run_id),
        )
        task = asyncio.get_running_loop().create_task(self._tell(word))
        self._words.add(task)
        task.add_done_callback(self._words.discard)

    def _tell_raised(self, line: str) -> None:
        """On the loop. An operator looks at the owner; nothing depends on its hearing of this."""
        if len(self._lines) < RAISED_PENDING_MAX:
            task = asyncio.get_running_loop().create_task(self._forward(line))
            self._lines.add(task)
            task.add_done_callback(self._lines.discard)

    async def _forward(self, line: str) -> None:
        assert self._tells is not None
        with contextlib.suppress(Exception):
            async with asyncio.timeout(WORD_S):
                await self._tells(TOOL_RAISED, line.encode("utf-8", "replace"))

    async def _tell(self, word: LetGoMessage) -> None:
        tell = self._tells
        assert tell is not None
        for _ in range(WORD_TRIES):
            try:
                async with asyncio.timeout(WORD_S):
                    await tell(LET_GO, msgspec.msgpack.encode(word))
            except Exception as error:  # whatever it was, the owner may not have heard
                if self._host is None:
                    return  # it closes
                self._end_if_owner_is_gone(error)
                await asyncio.sleep(WORD_PAUSE_S)
            else:
                return
        os._exit(EXIT_UNHEARD)

    def _end_if_owner_is_gone(self, error: Exception) -> None:
        if isinstance(error, StoreError) and error.code in ("owner_gone", "store_closed"):
            os._exit(EXIT_OWNER_GONE)


class StoreMessenger:
    """Runs beside the store's owner and carries the calls of hosts and Runtimes on other machines, over a connection for
    each (``client``), so that none waits for another. It keeps nothing."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._stores: dict[str, asyncio.Task[SocketStore]] = {}

    async def carry(self, client: str, request: bytes) -> bytes:
        """One encoded ``Request`` to its encoded ``Answer``, a refused one included. Raises if the owner is gone."""
        try:
            store = await self._connected(client)
            return await store.carry(request)
        except StoreError as error:
            if error.code in ("owner_gone", "store_closed"):
                await self._forget_ended()
                raise
            return refused_answer(request, error)

    async def _connected(self, client: str) -> SocketStore:
        connecting = self._stores.get(client)
        if connecting is None or _has_ended(connecting):
            await self._forget_ended()
            connecting = self._stores.get(client)  # another call may have come first
        if connecting is None:
            if len(self._stores) >= CLIENTS_MAX:
                raise StoreError("too_many_connections", f"{CLIENTS_MAX} are open", path=self._path)
            connecting = self._stores[client] = asyncio.create_task(socket_to_owner(self._path))
        return await asyncio.shield(connecting)

    async def _forget_ended(self) -> None:
        for client in [client for client, made in self._stores.items() if _has_ended(made)]:
            ended = self._stores.pop(client, None)
            if ended is not None and not ended.cancelled() and ended.exception() is None:
                await ended.result().close()

    async def identify(self) -> tuple[str, str, str, str]:
        """(kind, producer revision, path of the file, node)."""
        return MESSENGER, PRODUCER, self._path, node_here()

    async def gone(self) -> None:
        """Never returns: whoever awaits it is told by Ray when the process ends."""
        await asyncio.get_running_loop().create_future()


def _has_ended(connecting: asyncio.Task[SocketStore]) -> bool:
    if not connecting.done():
        return False
    return connecting.cancelled() or connecting.exception() is not None or connecting.result().gone


def sealed(send: Ask, secret: str) -> Ask:
    """Questions and words as the owner's own run actors send them."""
    seal = bytes.fromhex(secret)

    async def sent(kind: str, payload: bytes) -> bytes:
        return await send(kind, seal + payload)

    return sent


def unsealed(payload: bytes, secret: str) -> bytes:
    """What was sent by one of this owner's run actors. Raises ``CallerError`` (``not_ours``) for any other sender's."""
    seal = bytes.fromhex(secret)
    if not compare_digest(payload[: len(seal)], seal):
        raise CallerError("not_ours", "only this owner's run actors may say that")
    return payload[len(seal) :]


def _text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def _faulty(error: BaseException) -> BoundloopError:
    if isinstance(error, BoundloopError):
        return error
    return CallerError(
        "application_code",
        f"it can't be loaded in another process: {_text_of(error)}; {HOW_TO_BE_IMPORTABLE}",
        path="application",
    )


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
