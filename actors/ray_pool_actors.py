"""Executors as Ray actors: made, checked and ended by the owner's process, with which they end.

Never detached, never restarted and never retried by Ray: a new executor is a new actor under a new name.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ..eventstore.process_identity import ProcessIdentity, is_same_process
from ..runtime.errors import BugError, CallerError, DeclarationError
from .dispatch_wire import ExecutorIdentity, decode_identity, encode_grants
from .places import Kind
from .pool_spec import Pool
from .ray_calls import ask_ray, untyped_ray
from .ray_executor import CONTROL, ENDED, GROUPS, WATCH, AsyncExecutor, QuickExecutor, SyncExecutor
from .shipping import HOW_TO_BE_IMPORTABLE
from .slot_reports import PoolKey

CONTROL_HEADROOM: Final = 8
"""Calls that a loop takes beyond its places: an answer that is late must not keep a control call out."""

LOGGER: Final = logging.getLogger("boundloop.ray")
ANSWER_S: Final = 30.0
CLEAR_S: Final = 0.5
"""How long an executor may take to have its tools' processes ended, before it is killed itself."""

CLASSES: Final[dict[Kind, type]] = {"sync": SyncExecutor, "quick": QuickExecutor, "async": AsyncExecutor}


def check_options(pools: Mapping[str, Pool]) -> None:
    """Hand each option of each pool to Ray's own validation. Raises ``DeclarationError`` that names the key."""
    for name, pool in pools.items():
        for key, value in pool.ray_options.items():
            try:
                untyped_ray().remote(**{key: value})(SyncExecutor)
            except Exception as error:
                raise DeclarationError(
                    "ray_option_refused", str(error)[:300], path=f"pools.{name}.ray_options.{key}"
                ) from error


def refuse_retries(handle: Any) -> None:
    """Raise ``BugError`` if Ray might run a method of this actor a second time by itself."""
    for name in handle._ray_method_signatures:
        if name.startswith("_"):
            continue
        method = getattr(handle, name)
        retries, exceptions = method._max_task_retries, method._retry_exceptions
        if retries not in (0, None) or exceptions not in (False, None):
            raise BugError(
                "ray_retries", f"max_task_retries={retries}, retry_exceptions={exceptions}", path=name
            )


class RayExecutorFactory:
    """An ``ExecutorFactory`` in the owner's process, attached to the cluster.

    ``prefix`` is part of every name and was never used before in the namespace: what an earlier owner made is never
    found under it. ``shipment`` is put into the object store once and read from there by each executor.
    """

    def __init__(
        self,
        *,
        namespace: str,
        prefix: str,
        store: str,
        revision: str,
        shipment: bytes,
        pools: Mapping[str, Pool],
    ) -> None:
        self._namespace = namespace
        self._prefix = prefix
        self._store = store
        self._revision = revision
        self._pools = pools
        self._shipment = shipment
        self._shipment_ref: Any = None
        self._putting = threading.Lock()
        self._handles: dict[str, Any] = {}
        self._processes: dict[str, ProcessIdentity] = {}
        self._ends: dict[str, asyncio.Future[None]] = {}
        self._told_of_failure = False

    def name_of(self, key: PoolKey, number: int) -> str:
        pool, kind = key
        return f"{self._prefix}:{pool}:{kind}:{number}"

    async def start(self, name: str, key: PoolKey, gone: Callable[[], None]) -> None:
        """See ``ExecutorFactory``. Raises whatever Ray raises, or ``BugError`` for an actor that isn't what was asked for."""
        handle = await ask_ray(lambda: self._make(name, key))
        self._handles[name] = handle
        refuse_retries(handle)
        answer = handle.identify.options(concurrency_group=CONTROL).remote()
        async with asyncio.timeout(ANSWER_S):
            data = await asyncio.wrap_future(answer.future())
        identity = decode_identity(data)
        if identity.failure and not self._told_of_failure:
            self._told_of_failure = True
            LOGGER.error(
                "executors can't load the application: %s; %s", identity.failure[:300], HOW_TO_BE_IMPORTABLE
            )
        refuse_other(identity, CLASSES[key[1]].__name__, self._store, self._revision, name)
        self._processes[name] = identity.process
        self._watch(name, handle, gone)

    async def confirm(self, name: str, grant_ids: Sequence[str]) -> bool:
        """See ``ExecutorFactory``."""
        handle = self._handles.get(name)
        if handle is None:
            return False
        answer = handle.confirm.options(concurrency_group=CONTROL).remote(encode_grants(grant_ids))
        said: object = await asyncio.wrap_future(answer.future())
        return said == ENDED

    async def end(self, name: str) -> None:
        """See ``ExecutorFactory``. What its tools have started is ended first, while it still shows whose it is; its guard
        sees to what is left or made meanwhile."""
        handle = self._handles.pop(name, None)
        if handle is None:
            return
        process = self._processes.pop(name, None)
        ended = self._ends.pop(name, None)
        if ended is not None and not ended.done():
            cleared = handle.clear.options(concurrency_group=CONTROL).remote()
            clearing = asyncio.wrap_future(cleared.future())
            clearing.add_done_callback(_nothing_to_tell)
            done, _ = await asyncio.wait(
                [clearing, ended], timeout=CLEAR_S, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                _kill_here(process)
        with contextlib.suppress(Exception):  # a cluster that is gone has no such actor
            await ask_ray(lambda: untyped_ray().kill(handle, no_restart=True))

    def _make(self, name: str, key: PoolKey) -> Any:
        """The actor's handle, at once; the process comes up later. Blocks on the cluster's control service. On any thread."""
        with self._putting:
            if self._shipment_ref is None:
                self._shipment_ref = untyped_ray().put(self._shipment)
        pool, kind = key
        declared = self._pools.get(pool, Pool())
        # Without a resource to reserve Ray would put all of them on this node.
        options: dict[str, Any] = {"num_cpus": 0, "scheduling_strategy": "SPREAD", **declared.ray_options}
        options |= {
            "name": name,
            "namespace": self._namespace,
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": declared.async_places + CONTROL_HEADROOM if kind == "async" else 1,
            "enable_task_events": kind != "quick",
        }
        actor = untyped_ray().remote(concurrency_groups=GROUPS)(CLASSES[kind])
        return actor.options(**options).remote(self._shipment_ref, self._store, self._revision)

    def _watch(self, name: str, handle: Any, gone: Callable[[], None]) -> None:
        """A call that only ends with the process: Ray tells of an actor's death to whoever waits for an answer of it."""
        loop = asyncio.get_running_loop()
        ended = self._ends[name] = loop.create_future()

        def tell() -> None:
            if not ended.done():
                ended.set_result(None)
                gone()

        def answered(_: object) -> None:
            try:
                loop.call_soon_threadsafe(tell)
            except RuntimeError:
                return  # the loop is closed, and nobody is left to tell

        # Of a dead actor that is an error at once.
        handle.linger.options(concurrency_group=WATCH).remote().future().add_done_callback(answered)


def _nothing_to_tell(clearing: asyncio.Future[Any]) -> None:
    """That the executor died meanwhile is what was wanted; asyncio would complain of an error that nobody looked at."""
    if not clearing.cancelled():
        clearing.exception()


def _kill_here(process: ProcessIdentity | None) -> None:
    """Ray asks a process to end itself and takes seconds over one that doesn't answer; on this machine there is no need
    to wait for that."""
    if process is not None and is_same_process(process):
        with contextlib.suppress(OSError):
            os.kill(process.pid, signal.SIGKILL)


def refuse_other(identity: ExecutorIdentity, class_name: str, store: str, revision: str, name: str) -> None:
    """Raise unless an actor that was found by its name is what it should be: names may be anybody's."""
    said = (identity.class_name, identity.store, identity.revision)
    if said != (class_name, store, revision):
        raise BugError("executor_identity", f"it says that it is {said}"[:300], path=name)
    if identity.failure:
        raise CallerError(
            "application_failed",
            f"it can't be loaded in another process: {identity.failure}; {HOW_TO_BE_IMPORTABLE}",
            path=name,
        )
