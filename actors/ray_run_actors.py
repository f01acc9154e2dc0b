"""Run actors as the owner makes and holds them through Ray.

Options that are ours, and why: ``max_restarts=0`` (a run comes back from its log, elsewhere), ``max_task_retries=0`` (a call
that may have been made is not made again behind our back), ``num_cpus=0`` (a host waits, it doesn't compute), an explicit
concurrency with room for control calls, no task events (they cost a call's price again).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import msgspec

from ..eventstore.process_identity import start_of, this_process
from ..eventstore.socket_protocol import error_of
from ..eventstore.submit import decode_answer
from ..runtime.binding import PRODUCER
from ..runtime.commands import CommandAnswer, OutsideCommand, encode_command
from ..runtime.errors import OwnedError, StoreError
from .places import Ask
from .provisional import Mark, Shown
from .ray_calls import ask_ray, end_actor, end_actor_here, untyped_ray
from .ray_cluster import NAMESPACE
from .ray_pool_actors import refuse_retries
from .ray_questions import asks_of
from .ray_run_actor import (
    MESSENGER,
    RUN_ACTOR,
    Identity,
    NotOpened,
    RunActor,
    StoreMessenger,
    Submitted,
    ToolsWay,
)

CONCURRENCY_MAX: Final = 64_000
"""Calls at once in one actor. A run actor's are short, but for ``gone`` that never ends; a messenger carries questions that
are waits, some for each run of all hosts on other machines, and their renewals must get past those."""

OPEN_S: Final = 60.0
"""How long a run actor may take to be made: Ray's process, its imports and the application's."""

KILL_AGAIN_S: Final = 1.0

ASK_MESSENGER_S: Final = 10.0

NAME_TRIES: Final = 40
NAME_PAUSE_S: Final = 0.25
"""How long a name is waited for that an owner which just ended still has."""

OWNED_OPTIONS: Final[dict[str, Any]] = {
    "namespace": NAMESPACE,
    "num_cpus": 0,
    "max_restarts": 0,
    "max_task_retries": 0,
    "max_concurrency": CONCURRENCY_MAX,
    "enable_task_events": False,
}


class RayRunActor:
    """A run actor by its Ray handle. Made by ``make_run_actor``."""

    def __init__(self, handle: Any, identity: Identity) -> None:
        self._handle = handle
        self.identity = identity
        self._killed = False
        self._answering: asyncio.Task[None] | None = None

    def answer_with(self, answer: Ask) -> None:
        """Answer what it asks, until it is gone or killed: one that opens the store itself has no other way to us."""
        self._answering = asyncio.create_task(asks_of(self._handle, answer).work())

    def _answer_no_more(self) -> None:
        if self._answering is not None:
            self._answering.cancel()

    @property
    def host_id(self) -> str:
        """Its host's id in the store."""
        return self.identity.host_id

    async def adopt(self, run_ids: Sequence[str], number: int) -> dict[str, str]:
        """See ``RunActorHandle``."""
        refused: dict[str, str] = await self._handle.adopt.remote(list(run_ids), number)
        return refused

    async def nudge(self, run_ids: Sequence[str]) -> None:
        """See ``RunActorHandle``."""
        await self._handle.nudge.remote(list(run_ids))

    async def submit(self, run_id: str, command: OutsideCommand) -> CommandAnswer | None:
        """See ``RunActorHandle``."""
        data: bytes = await self._handle.submit.remote(run_id, encode_command(command))
        submitted = msgspec.msgpack.decode(data, type=Submitted)
        if submitted.failure is not None:
            raise error_of(submitted.failure)
        return None if submitted.answer is None else decode_answer(submitted.answer)

    async def shown(self, run_id: str, mark: Mark, timeout_s: float) -> Shown:
        """See ``RunActorHandle``."""
        data: bytes = await self._handle.shown.remote(run_id, msgspec.msgpack.encode(mark), timeout_s)
        return msgspec.msgpack.decode(data, type=Shown)

    async def statistics(self) -> dict[str, int]:
        """See ``RunActor.statistics``."""
        counts: dict[str, int] = await self._handle.statistics.remote()
        return counts

    async def drain(self) -> None:
        """See ``RunActorHandle``."""
        await self._handle.drain.remote()

    async def gone(self) -> None:
        """Returns when Ray says that it is dead."""
        with contextlib.suppress(Exception):
            await self._handle.gone.remote()
        self._answer_no_more()

    def kill(self) -> None:
        """By Ray; and, where it is a process of this machine and still there a while later or when asked again, by its
        pid: one that was stopped doesn't hear Ray."""
        self._answer_no_more()
        if self._killed:
            end_process(self.identity)
            return
        self._killed = True
        end_actor(self._handle)
        asyncio.get_running_loop().call_later(KILL_AGAIN_S, end_process, self.identity)


def end_process(identity: Identity) -> None:
    """SIGKILL to the process that this is, if it is one of this machine and still the same."""
    here = this_process()
    if (identity.node, identity.boot_id) != (here.host, here.boot_id) or identity.pid == here.pid:
        return
    with contextlib.suppress(OSError):
        if start_of(identity.pid) == identity.pid_start:
            os.kill(identity.pid, signal.SIGKILL)


async def made_within(seconds: float, make: Callable[[], Any]) -> Any:
    """What ``make`` gives, which asks the cluster's control service and blocks while that is away. Raises
    ``TimeoutError``; an actor that comes about all the same is ended."""
    making = _Making(make)
    try:
        async with asyncio.timeout(seconds):
            return await ask_ray(making.run)
    except BaseException:
        making.give_up()
        raise


class _Making:
    """One of it, on a thread, which whoever waits for it may give up. What is to be ended is so within a call that counts as
    out: a callback on the loop would have its turn when the cluster may have been left."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: list[Any] = []
        self._given_up = False

    def run(self) -> Any:
        made = self._make()
        with self._lock:
            self._made.append(made)
            given_up = self._given_up
        if given_up:
            end_actor_here(made)
        return made

    def give_up(self) -> None:
        with self._lock:
            self._given_up = True
            unheard_of = list(self._made)
        for made in unheard_of:
            end_actor(made)


async def make_run_actor(
    name: str, *, shipment: Any, way: Any, messenger: Any, tools: ToolsWay
) -> RayRunActor:
    """Make and open one. ``shipment`` and ``way`` (an encoded ``Way``) are references into the object store, or the bytes. Raises ``TimeoutError`` after
    ``OPEN_S``, ``CallerError`` (``application_code``) if the application's code fails there, and whatever Ray raises; nothing is left
    behind then."""
    end = asyncio.get_running_loop().time() + OPEN_S

    def make() -> Any:
        actor_class: Any = untyped_ray().remote(RunActor)
        return actor_class.options(name=name, **OWNED_OPTIONS).remote(
            name, shipment, way, messenger, msgspec.msgpack.encode(tools)
        )

    handle: Any = await made_within(OPEN_S, make)
    try:
        refuse_retries(handle)
        async with asyncio.timeout_at(end):
            identity = msgspec.msgpack.decode(await handle.open.remote(), type=Identity | NotOpened)
        if isinstance(identity, NotOpened):
            raise error_of(identity.failure)
        if (identity.kind, identity.name, identity.producer) != (RUN_ACTOR, name, PRODUCER):
            raise StoreError(
                "other_actor", f"{identity.kind} {identity.producer} answers to this name", path=name
            )
    except BaseException:
        end_actor(handle)
        raise
    return RayRunActor(handle, identity)


class Messenger:
    """The owner's messenger, beside it on its node; made again when it dies. ``name`` is that by which hosts on other
    machines find it."""

    def __init__(self, name: str, path: str, node_id: str) -> None:
        self._name = name
        self._path = path
        self._node_id = node_id
        self._watching: asyncio.Task[None] | None = None
        self._there = asyncio.Event()
        self.handle: Any = None

    async def open(self) -> None:
        """Raises ``OwnedError`` if an owner that lives has the name."""
        await self._make()
        self._watching = asyncio.create_task(self._watch())

    async def ready(self) -> Any:
        """The handle of one that lives, as far as is known; None if it was never opened. Raises ``TimeoutError``."""
        if self._watching is not None:
            async with asyncio.timeout(OPEN_S):
                await self._there.wait()
        return self.handle

    async def _make(self) -> None:
        for _ in range(NAME_TRIES):
            try:
                handle = await made_within(
                    OPEN_S, lambda: _messenger_actor(self._name, self._path, self._node_id)
                )
            except ValueError:
                await asyncio.sleep(NAME_PAUSE_S)  # the last owner's ends with its process
                continue
            refuse_retries(handle)
            async with asyncio.timeout(OPEN_S):
                await handle.identify.remote()
            self.handle = handle
            self._there.set()
            return
        raise OwnedError(0, "another node", path=self._path)

    async def _watch(self) -> None:
        """Without it, an attached Runtime elsewhere would take the owner for dead."""
        while True:
            with contextlib.suppress(Exception):
                await self.handle.gone.remote()
            self._there.clear()
            with contextlib.suppress(Exception):
                await self._make()
            await asyncio.sleep(NAME_PAUSE_S)

    def close(self) -> None:
        """End it. Harmless when done before."""
        if self._watching is not None:
            self._watching.cancel()
        if self.handle is not None:
            end_actor(self.handle)


def _messenger_actor(name: str, path: str, node_id: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    actor_class: Any = untyped_ray().remote(StoreMessenger)
    return actor_class.options(
        name=name, scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False), **OWNED_OPTIONS
    ).remote(path)


async def messenger_elsewhere(name: str, path: str, node_id: str) -> Any:
    """The messenger of that name, if it lives and isn't on this node; else None. Raises ``StoreError`` (``other_actor``)
    if what has the name is something else, or speaks for another file: nothing is entrusted to it."""
    try:
        handle: Any = await ask_ray(lambda: untyped_ray().get_actor(name, NAMESPACE))
    except ValueError:
        return None  # nobody has that name
    if not hasattr(handle, "identify") or not hasattr(handle, "carry"):
        raise StoreError("other_actor", "an actor of another kind has this Runtime's name", path=name)
    try:
        async with asyncio.timeout(ASK_MESSENGER_S):
            said = cast("tuple[object, ...]", await handle.identify.remote())
    except Exception:  # noqa: BLE001  whatever Ray raises: it is ending
        return None
    wanted = (MESSENGER, PRODUCER, path)
    if len(said) != 4 or said[:3] != wanted:
        raise StoreError("other_actor", f"{said!r} has this Runtime's name, not {wanted!r}"[:400], path=name)
    return None if said[3] == node_id else handle
