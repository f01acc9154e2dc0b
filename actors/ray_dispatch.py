"""Lines to executor actors over Ray, and the executors of a host that uses them.

Actors are found by name, in a thread because that asks the cluster's control service, and must say that they are what
they should be. An answer is awaited through the reference's own future; everything that Ray raises instead of an answer
means that the call may have run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Final

from .dispatch_wire import Stop, decode_identity, encode_stop
from .lines import ExecutorDied, LineDown, NoAnswer
from .places import Kind, Places
from .pooled_dispatch import PooledExecutors
from .ray_calls import ask_ray, untyped_ray
from .ray_executor import CONTROL, WATCH
from .ray_pool_actors import CLASSES, refuse_other, refuse_retries
from .secret_source import Secrets

CONNECT_S: Final = 10.0
LINES_MAX: Final = 10_000
"""Handles that are remembered; the oldest go first. They are found again."""


class RayLine:
    """See ``Line``."""

    __slots__ = ("_control", "_handle", "_harvest", "_loop", "_run", "gone", "name")

    def __init__(self, name: str, handle: Any) -> None:
        self.name = name
        self.gone = False
        self._handle = handle
        self._loop = asyncio.get_running_loop()
        self._run = handle.run
        self._control = handle.stop.options(concurrency_group=CONTROL)
        harvest = getattr(handle, "harvest", None)
        self._harvest = None if harvest is None else harvest.options(concurrency_group=CONTROL)

    def send(self, calls: bytes) -> asyncio.Future[object]:
        """See ``Line``."""
        try:
            reference = self._run.remote(calls)
        except Exception as error:
            raise LineDown(type(error).__name__) from error
        try:
            return self._answer(reference)
        except Exception as error:  # noqa: BLE001  it was sent, and nothing can be known of it
            unknown: asyncio.Future[object] = self._loop.create_future()
            unknown.set_exception(NoAnswer(type(error).__name__))
            return unknown

    def watch(self) -> None:
        """Learn of the executor's end, by a call that only ends with it. It waits behind those of others: Ray tells all of
        them."""
        loop = self._loop

        def over() -> None:
            self.gone = True

        def ended(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(over)

        self._handle.linger.options(concurrency_group=WATCH).remote().future().add_done_callback(ended)

    def stop(self, stop: Stop) -> None:
        """See ``Line``."""
        try:
            self._control.remote(encode_stop(stop))
        except Exception:  # noqa: BLE001  what doesn't stop is ended
            return

    async def harvest(self, first: Stop) -> object:
        """See ``Line``."""
        if self._harvest is None:
            raise NoAnswer
        try:
            reference = self._harvest.remote(encode_stop(first))
        except Exception as error:
            raise NoAnswer from error
        return await self._answer(reference)

    def _answer(self, reference: Any) -> asyncio.Future[object]:
        """The reference's value as a future of this loop, with errors of ours. What isn't awaited is no complaint."""
        loop = self._loop
        answer: asyncio.Future[object] = loop.create_future()

        def settle(value: object, error: BaseException | None) -> None:
            if not answer.done():
                if error is None:
                    answer.set_result(value)
                else:
                    answer.set_exception(error)
                    answer.exception()

        def came(done: Any) -> None:
            raised = done.exception()
            value = None if raised is not None else done.result()
            try:
                loop.call_soon_threadsafe(settle, value, None if raised is None else _ours(raised))
            except RuntimeError:
                return  # the loop is closed

        reference.future().add_done_callback(came)
        return answer


class RayLines:
    """See ``Lines``. ``store`` and ``revision`` are what every executor must say of itself."""

    def __init__(self, *, namespace: str, store: str, revision: str) -> None:
        self._namespace = namespace
        self._store = store
        self._revision = revision
        self._known: dict[str, RayLine] = {}

    def known(self, name: str) -> RayLine | None:
        """See ``Lines``."""
        line = self._known.get(name)
        return None if line is None or line.gone else line

    async def line(self, name: str, kind: Kind) -> RayLine:
        """See ``Lines``."""
        try:
            handle: Any = await ask_ray(lambda: untyped_ray().get_actor(name, namespace=self._namespace))
            refuse_retries(handle)
            answer = handle.identify.options(concurrency_group=CONTROL).remote()
            async with asyncio.timeout(CONNECT_S):
                data = await asyncio.wrap_future(answer.future())
            refuse_other(decode_identity(data), CLASSES[kind].__name__, self._store, self._revision, name)
            line = RayLine(name, handle)
            line.watch()
        except Exception as error:
            raise LineDown(f"{name}: {type(error).__name__}") from error
        while len(self._known) >= LINES_MAX:
            del self._known[next(iter(self._known))]
        self._known[name] = line
        return line

    def forget(self, name: str) -> None:
        """See ``Lines``."""
        self._known.pop(name, None)


class RayExecutors(PooledExecutors):
    """The executors of a host in a process that is attached to the cluster."""

    def __init__(
        self,
        places: Places,
        *,
        holder: str,
        namespace: str,
        store: str,
        revision: str,
        groups: Mapping[str, int],
        dependencies: Mapping[str, Any],
        secrets: Secrets | None = None,
    ) -> None:
        lines = RayLines(namespace=namespace, store=store, revision=revision)
        super().__init__(
            places, lines, holder=holder, groups=groups, dependencies=dependencies, secrets=secrets
        )


def _ours(raised: BaseException) -> Exception:
    from ray.exceptions import RayActorError  # died, or can't be reached

    if isinstance(raised, RayActorError):
        return ExecutorDied(type(raised).__name__)
    return NoAnswer(type(raised).__name__)
