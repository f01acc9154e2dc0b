"""One host's connection to the store, with everything that can be wrong with one.

A dead host's line refuses everything: nothing that is left of it reaches the store. What the store itself decides
(conflicts, old epochs, taken claims) is the memory store's own doing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from boundloop.eventstore.port import (
    AcquireAnswer,
    AlreadyDone,
    Append,
    AppendAnswer,
    Appended,
    HostRow,
    RunFilter,
    RunRow,
    StoredAppend,
    Switch,
)
from boundloop.runtime.errors import StoreError
from boundloop.runtime.ledger import LedgerRow

from .clock import passed
from .plan import Strike

if TYPE_CHECKING:
    from .hosts import SimHost
    from .world import World

T = TypeVar("T")
STALL_MS_MAX: Final = 12_000
OUTAGE_MS_MAX: Final = 7_000


def unavailable(code: str) -> StoreError:
    """What a store says that can't."""
    return StoreError(code, "the simulated store can't")


class Line:
    """The ``EventStore`` that a host is given."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._store = world.store
        self.host: SimHost | None = None
        self.frozen_until_s = 0.0
        self.renewals_wait_until_s = 0.0

    # --- appends -----------------------------------------------------------------------------------------------------

    async def append(self, request: Append) -> AppendAnswer:
        try:
            return await self._append(request)
        except StoreError:
            self._world.judge.promises.append_failed(request.run_id)
            raise

    async def _append(self, request: Append) -> AppendAnswer:
        await self._reached("append")
        strike = self._world.struck("append")
        if strike is None and request.claim is not None and request.claim.kind == "intent":
            strike = self._world.struck("intent")
        if strike is None:
            return self._heard(request, await self._store.append(request))
        self._world.triples.at_append(strike.kind, request)
        return self._heard(request, await self._struck_append(strike, request))

    def _heard(self, request: Append, answer: AppendAnswer) -> AppendAnswer:
        if isinstance(answer, Appended | AlreadyDone):
            self._world.judge.acknowledged(request)
        return answer

    async def _struck_append(self, strike: Strike, request: Append) -> AppendAnswer:
        """``size`` is how long a slow one takes, or how long a full store stays full."""
        store, world = self._store, self._world
        match strike.kind:
            case "crash_before_append":
                await self._die()
            case "crash_after_append":
                await store.append(request)
                await self._die()
            case "intent_fails":
                world.outage_until_s = world.loop.now_s + strike.size / 250
                raise unavailable("busy")
            case "append_answer_lost" | "intent_unheard":
                await store.append(request)
                raise unavailable("disconnected")
            case "append_timeout":
                await store.append(request)
                await passed(strike.size / 200)
                raise unavailable("timeout")
            case "append_twice":
                await store.append(request)
                return await store.append(request)
            case "append_stalled":
                await passed(strike.size * STALL_MS_MAX / 1e6)
                await self._reached("append")
                return await store.append(request)
            case "torn_batch":
                for _, data in request.blobs:
                    await store.put_blob(data)
                raise unavailable("io")
            case "append_full":
                world.full_until_s = world.loop.now_s + strike.size / 400
                raise unavailable("full")
            case _:
                raise unavailable("busy")
        raise AssertionError("unreachable")

    # --- everything else ---------------------------------------------------------------------------------------------

    async def _pass(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        await self._reached(name)
        strike = self._world.struck("store")
        if strike is None:
            return await work()
        self._world.triples.at_moment(strike.kind)
        match strike.kind:
            case "store_answer_lost":
                await work()
                raise unavailable("disconnected")
            case "store_failing":
                self._world.outage_until_s = self._world.loop.now_s + strike.size * OUTAGE_MS_MAX / 1e6
                raise unavailable("busy")
            case "store_slow":
                await passed(strike.size * STALL_MS_MAX / 1e6)
                return await work()
            case _:
                raise unavailable("busy")

    async def _reached(self, name: str) -> None:
        """Get through to the store at all."""
        world, host = self._world, self.host
        if host is not None and not host.alive:
            raise unavailable("gone")
        if self.frozen_until_s > world.loop.now_s:
            await passed(self.frozen_until_s - world.loop.now_s)
        elif world.plan.slow_store:
            await passed(world.latency_s())
        if world.outage_until_s > world.loop.now_s:
            raise unavailable("busy")
        if name == "append" and world.full_until_s > world.loop.now_s:
            raise unavailable("full")
        if host is not None and not host.alive:
            raise unavailable("gone")

    async def _die(self) -> None:
        """The host ends here; whoever asked is cancelled with it."""
        assert self.host is not None
        self._world.crash(self.host)
        await asyncio.get_running_loop().create_future()

    # --- the port ----------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return self._store.now_ms()

    def switches_known(self) -> tuple[Switch, ...]:
        return self._store.switches_known()

    async def identity(self) -> str:
        return "simulated"

    async def read(self, run_id: str, *, after_seq: int = 0, rows_max: int = 1_000) -> list[StoredAppend]:
        return await self._pass(
            "read", lambda: self._store.read(run_id, after_seq=after_seq, rows_max=rows_max)
        )

    async def run(self, run_id: str) -> RunRow | None:
        return await self._pass("run", lambda: self._store.run(run_id))

    async def runs(self, where: RunFilter) -> list[RunRow]:
        return await self._pass("runs", lambda: self._store.runs(where))

    async def put_blob(self, data: bytes) -> bytes:
        return await self._pass("put_blob", lambda: self._store.put_blob(data))

    async def get_blob(self, sha256: bytes) -> bytes | None:
        return await self._pass("get_blob", lambda: self._store.get_blob(sha256))

    async def ledger_row(self, tenant: str, key: bytes) -> LedgerRow | None:
        return await self._pass("ledger_row", lambda: self._store.ledger_row(tenant, key))

    async def ledger_rows(self, after: tuple[str, bytes] | None = None, limit: int = 100) -> list[LedgerRow]:
        return await self._pass("ledger_rows", lambda: self._store.ledger_rows(after, limit))

    async def unknown_effects(self, tenant: str | None = None, limit: int = 100) -> list[LedgerRow]:
        return await self._pass("unknown_effects", lambda: self._store.unknown_effects(tenant, limit))

    async def register_host(self, host: HostRow) -> None:
        await self._store.register_host(host)

    async def renew_host(self, host_id: str) -> bool:
        if self.renewals_wait_until_s > self._world.loop.now_s:
            await passed(self.renewals_wait_until_s - self._world.loop.now_s)
        return await self._pass("renew_host", lambda: self._store.renew_host(host_id))

    async def drop_host(self, host_id: str, *, died: bool = False) -> None:
        await self._pass("drop_host", lambda: self._store.drop_host(host_id, died=died))

    async def hosts(self) -> list[HostRow]:
        return await self._pass("hosts", self._store.hosts)

    async def acquire(self, run_id: str, host_id: str, *, dead_hosts: Sequence[str] = ()) -> AcquireAnswer:
        return await self._pass(
            "acquire", lambda: self._store.acquire(run_id, host_id, dead_hosts=dead_hosts)
        )

    async def release(self, run_id: str, host_id: str, epoch: int, *, ready: bool) -> None:
        await self._pass("release", lambda: self._store.release(run_id, host_id, epoch, ready=ready))

    async def ready_runs(self, limit: int = 100) -> list[str]:
        return await self._pass("ready_runs", lambda: self._store.ready_runs(limit))

    async def next_wake_ms(self) -> int | None:
        return await self._pass("next_wake_ms", self._store.next_wake_ms)

    async def mark_damaged(self, run_id: str, reason: str) -> None:
        self._world.judge.broken("I1", f"{run_id} was marked damaged: {reason}")
        await self._store.mark_damaged(run_id, reason)

    async def switches(self) -> list[Switch]:
        return await self._store.switches()

    async def set_switch(self, switch: Switch, *, on: bool) -> None:
        await self._store.set_switch(switch, on=on)

    async def submit(self, run_id: str, command_id: str, command: bytes) -> bytes:
        return await self._pass("submit", lambda: self._world.submitted(run_id, command_id, command))

    async def close(self) -> None:
        """The world's store stays."""
