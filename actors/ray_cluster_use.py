"""How a Runtime uses a cluster: as the owner it makes run actors and tool pools in it, else it goes through the owner.

The first Runtime on a store's file owns it. One on another machine finds it by the Runtime's name: the messenger beside
the owner has it as its actor name, and says which file it speaks for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from hashlib import sha256
from secrets import token_hex
from typing import Any, Final

import msgspec

from ..eventstore.carried import CarriedStore
from ..eventstore.location import parse_url, shown_url
from ..eventstore.owned import OwnedSqliteStore, real_path
from ..eventstore.port import RunRow
from ..eventstore.remote import RemoteStore
from ..runtime.commands import CommandAnswer, OutsideCommand
from ..runtime.errors import (
    BoundloopError,
    CallerError,
    DeclarationError,
    Overloaded,
    OwnedError,
    StoreError,
)
from ..runtime.events import RunStarted
from . import places, tool_failures
from .attached import Attached
from .executors import ToolExecutors
from .group_holds import GroupHolds
from .host import Host
from .owning import Owning, Parts
from .places import PlacesDoor
from .pool_spec import Pool, closed_after_crash_ms, shapes
from .pools import Pools
from .provisional import Mark, Shown
from .ray_calls import untyped_ray
from .ray_cluster import NAMESPACE, Cluster, join, send_by_value
from .ray_dispatch import RayExecutors
from .ray_pool_actors import RayExecutorFactory, check_options
from .ray_pool_fit import warn_of_pools_without_a_node
from .ray_run_actor import LET_GO, TOOL_RAISED, LetGoMessage, ToolsWay, Way, socket_to_owner, unsealed
from .ray_run_actors import OPEN_S, Messenger, RayRunActor, made_within, make_run_actor, messenger_elsewhere
from .seats import Seating
from .shipping import BY_VALUE, Shipment, pack
from .supervisor import LetGo, Supervisor

WARM_S: Final = 30.0
"""How long opening waits for the executors that are kept up. Calls wait for a place whatever comes of it."""

POOLS_S: Final = 5.0
"""How long closing waits for the executors to be ended."""

ADMITTED_MAX: Final = 20_000
"""Runs that may wait for a run actor; a further one is refused before anything is written."""

OVERLOADED_RETRY_MS: Final = 1_000


def refuse_unfit(parts: Parts, pools: Mapping[str, Pool], url: str, *, insisted: bool) -> None:
    """What can be seen without a cluster. ``insisted``: Ray was asked for, not only found. Raises ``DeclarationError``: a
    store that other processes can't reach, an option that Ray refuses, an application that can't travel."""
    kind = parse_url(url).kind
    if kind == "memory":
        if not insisted:
            return
        raise DeclarationError(
            "store_not_shared",
            "memory:// can't be reached by other processes: leave out ray=, or give a file",
            path="store",
        )
    check_options(pools)
    _shipped(parts)


class RayClusterUse:
    """Joins the cluster when made. ``name`` tells several Runtimes of a cluster apart. ``run_actors``: how many runs have
    an actor to themselves at once; ``warm``: how many such actors stand ready; ``dense_actors``: how many actors take
    many runs each (0: the owner hosts those itself)."""

    def __init__(
        self,
        ray_option: str | None,
        *,
        name: str,
        run_actors: int,
        warm: int,
        dense_actors: int,
        pools: Mapping[str, Pool] | None,
    ) -> None:
        self._cluster: Cluster = join(ray_option)
        self._local = ray_option == "local" and self._cluster.started
        self._name = name
        self._seats = (run_actors, warm, dense_actors)
        self._pools = pools or {}
        self._elsewhere = False
        self._store_id = ""

    foreign_errors = True

    async def leave(self) -> None:
        """End the cluster if it was started for this Runtime. Blocks the loop: this is the last that happens on it, and a loop that
        is being ended, since opening failed, gives nobody the turns that another thread's answer takes."""
        self._cluster.leave()

    async def serve(
        self,
        parts: Parts,
        url: str,
        *,
        take_over: bool,
        clock: Callable[[], int] | None,
        lost: Callable[[], None],
    ) -> Owning | Attached:
        """Own the store, or attach to whoever does. Raises as ``open_store``."""
        location = parse_url(url)
        if location.kind == "memory":
            return await Owning.open(parts, url, take_over=take_over, clock=clock)
        serving: Owning | Attached
        if location.kind == "postgres":
            path = shown_url(url)
            serving = await self._beside_others(parts, url, clock=clock, lost=lost)
        else:
            path = real_path(location.path)
            serving = await self._serving(parts, path, url, take_over=take_over, clock=clock, lost=lost)
        await self._insist_on_same_store(serving, path)
        return serving

    async def _beside_others(
        self, parts: Parts, url: str, *, clock: Callable[[], int] | None, lost: Callable[[], None]
    ) -> Owning:
        """A store without an owner: each Runtime has run actors and executors of its own, which take up what is ready."""
        path = shown_url(url)
        return await Owning.open(
            parts,
            url,
            take_over=False,
            clock=clock,
            cluster=lambda host, others: RayHosting(self, parts, path, host.host_id, unclean=others, url=url),
            lost=lost,
        )

    async def _insist_on_same_store(self, serving: Owning | Attached, path: str) -> None:
        """Whoever owns it, it is the store that this Runtime began with: another one has another ledger of effects, and
        what was asked of the first must not be asked again of it."""
        try:
            found = await serving.store.identity()
            if self._store_id not in ("", found):
                raise StoreError(
                    "other_store",
                    f"{path} is store {found[:8]} here; this Runtime began with store {self._store_id[:8]}, whose owner "
                    "is gone",
                    path=path,
                )
        except BaseException:
            await serving.close()
            raise
        self._store_id = found

    async def _serving(
        self,
        parts: Parts,
        path: str,
        url: str,
        *,
        take_over: bool,
        clock: Callable[[], int] | None,
        lost: Callable[[], None],
    ) -> Owning | Attached:
        if not self._local:
            elsewhere = await self._on_another_node(path)
            if elsewhere is not None:
                return await Attached.open(elsewhere, lost)
        if self._elsewhere and not await asyncio.to_thread(os.path.exists, path):
            raise StoreError("owner_gone", "the file is on another machine, and its owner is gone", path=path)
        try:
            return await Owning.open(
                parts,
                url,
                take_over=take_over,
                clock=clock,
                cluster=lambda host, died: RayHosting(self, parts, path, host.host_id, unclean=died),
                lost=lost,
            )
        except OwnedError:
            if take_over:
                raise
        try:
            return await Attached.open(await socket_to_owner(path), lost)
        except OSError as error:
            raise StoreError("owner_gone", "the file's owner does not listen", path=path) from error

    async def _on_another_node(self, path: str) -> RemoteStore | None:
        """The store through the messenger of an owner on another machine, if there is one that lives."""
        handle = await messenger_elsewhere(self.messenger_name(path), path, self._cluster.node_id)
        if handle is None:
            return None

        client = f"runtime-{token_hex(8)}"

        async def carry(request: bytes) -> bytes:
            answer: bytes = await handle.carry.remote(client, request)
            return answer

        store = CarriedStore(path, carry)
        await store.run("")
        self._elsewhere = True
        return store

    def messenger_name(self, path: str) -> str:
        """The name under which the owner of this Runtime's store is found from other machines."""
        return f"{self._name}-{sha256(path.encode()).hexdigest()[:12]}"

    @property
    def node_id(self) -> str:
        """This process's node."""
        return self._cluster.node_id

    @property
    def address(self) -> str:
        """Of the cluster's GCS."""
        return self._cluster.address

    @property
    def local(self) -> bool:
        """Whether the cluster is this process's own, on this machine alone."""
        return self._local

    @property
    def seats(self) -> tuple[int, int, int]:
        """(run actors, warm ones among them, dense actors)."""
        return self._seats

    @property
    def pools(self) -> Mapping[str, Pool]:
        """The declared pools by name."""
        return self._pools


class RayHosting:
    """The owner's hosts and executors in the cluster. ``unclean``: another owner ended without closing, or that isn't known.
    ``url``: of a store that run actors open themselves."""

    def __init__(
        self, use: RayClusterUse, parts: Parts, path: str, host_id: str, *, unclean: bool, url: str = ""
    ) -> None:
        self._use = use
        self._parts = parts
        self._path = path
        self._label = f"{use.messenger_name(path)}-{host_id[-6:]}"
        self._shipment = _shipped(parts)
        self._url = url
        self._shipment_ref: Any = None
        self._way_ref: Any = None
        self._way_to_tools = ToolsWay(
            namespace=NAMESPACE,
            store=path,
            revision=sha256(self._shipment).hexdigest()[:16],
            secret=token_hex(16),
        )
        self._pools = self._made_pools(unclean)
        self._holds = GroupHolds(self._pools, parts.groups, unclean=unclean)
        self.executors: ToolExecutors = RayExecutors(
            self._pools,
            holder=host_id,
            namespace=NAMESPACE,
            store=path,
            revision=self._way_to_tools.revision,
            groups=parts.groups,
            dependencies=parts.dependencies,
            secrets=parts.secrets,
        )
        self._supervisor: Supervisor | None = None
        self._messenger = Messenger(use.messenger_name(path), path, use.node_id)
        self._owning: Owning | None = None

    def _made_pools(self, unclean: bool) -> Pools:
        parts, declared = self._parts, self._use.pools
        factory = RayExecutorFactory(
            namespace=NAMESPACE,
            prefix=f"{self._label}-tools",
            store=self._path,
            revision=self._way_to_tools.revision,
            shipment=self._shipment,
            pools=declared,
        )
        return Pools(
            shapes(declared, parts.groups, parts.toolbox, parts.policy),
            parts.groups,
            factory,
            closed_ms=closed_after_crash_ms(parts.groups, parts.toolbox) if unclean else None,
        )

    def serves(self, owning: Owning) -> None:
        """Whom to tell of what run actors let go."""
        self._owning = owning

    async def open(self, host: Host) -> None:
        """Make the messenger if hosts may be on other machines, and warm the first run actors. Raises ``DeclarationError``
        if executors that are kept up didn't come up and it is known why; the others are waited for by whoever needs them."""
        solo, warm, dense = self._use.seats
        if isinstance(host.store, OwnedSqliteStore):
            host.store.expect_hosts(solo + dense)
        await self._holds.take_over(host.store)
        if not self._use.local and not self._url:
            await self._messenger.open()
        await warn_of_pools_without_a_node(self._use.pools)
        if not await self._pools.open(warm_s=WARM_S):
            self._refuse_failed_pools()
        owning = self._owning
        assert owning is not None
        self._supervisor = Supervisor(
            host.store,
            self._make,
            seating=Seating(warm=warm, solo_max=solo, dense_max=dense),
            tenant=self._parts.tenant,
            label=self._label,
            look=host.look,
            leave_alone=host.leave_alone,
            host_gone=self._host_gone,
            watch=owning.let_go_elsewhere,
        )
        await self._supervisor.open()

    def _refuse_failed_pools(self) -> None:
        """A pool that only takes long (a machine is being added) is no fault."""
        for (pool, kind), error in self._pools.failures.items():
            statistics = self._pools.statistics().pools[pool, kind]
            if not statistics.up:
                raise DeclarationError(
                    "executors_failing",
                    f"no {kind} executor came up in {WARM_S:.0f} s: {type(error).__name__}: {error}"[:500],
                    path=f"pools.{pool}",
                ) from error

    async def _make(self, name: str, dense: bool) -> RayRunActor:
        actor = await make_run_actor(
            name,
            shipment=await self._shipped_once(),
            way=await self._way_once(),
            messenger=await self._messenger.ready(),
            tools=self._way_to_tools,
        )
        if self._url:
            actor.answer_with(self.answer)
        return actor

    async def _way_once(self) -> Any:
        """Where the store is; with a URL in the object store too, because what an actor is made with is shown to operators."""
        way = msgspec.msgpack.encode(Way(path=self._path, node_id=self._use.node_id, url=self._url))
        if not self._url:
            return way
        if self._way_ref is None:
            self._way_ref = await made_within(OPEN_S, lambda: _ray_put(way))
        return self._way_ref

    async def _shipped_once(self) -> Any:
        """The application in the object store, whence each run actor reads it."""
        if self._shipment_ref is None:
            self._shipment_ref = await made_within(OPEN_S, lambda: _ray_put(self._shipment))
        return self._shipment_ref

    def _host_gone(self, host_id: str) -> None:
        self._pools.host_gone(host_id)

    async def drain(self) -> None:
        """See ``HostingElsewhere``."""
        try:
            await self._holds.hand_over()
        finally:
            if self._supervisor is not None:
                await self._supervisor.close()

    async def close(self) -> None:
        """End everything made here. What takes longer than ``POOLS_S`` ends with this process."""
        try:
            await self._holds.hand_over()
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POOLS_S):
                    await self._pools.close()
            self._messenger.close()

    # --- for the owner's host ------------------------------------------------------------------------------------------

    @property
    def supervisor(self) -> Supervisor:
        """Raises ``StoreError`` before it is open."""
        if self._supervisor is None:
            raise StoreError("not_open", "the cluster's half isn't open yet", path=self._path)
        return self._supervisor

    @property
    def held(self) -> int:
        """See ``Elsewhere``."""
        return self.supervisor.held

    def holds(self, run_id: str) -> bool:
        """See ``Elsewhere``."""
        return self.supervisor.holds(run_id)

    def takes(self, row: RunRow, started: RunStarted) -> bool:
        """See ``Elsewhere``."""
        return self.supervisor.takes(row, started)

    def dense_stay_here(self, tenant: str) -> bool:
        """See ``Elsewhere``."""
        return self.supervisor.dense_stay_here(tenant)

    def expects(self, run_id: str) -> None:
        """See ``HostingElsewhere``."""
        self.supervisor.expects(run_id)

    def begun(self, started: RunStarted, *, created: bool) -> None:
        """See ``HostingElsewhere``."""
        self.supervisor.begun(started, created=created)

    def nudge(self, run_id: str) -> None:
        """See ``Elsewhere``."""
        self.supervisor.nudge(run_id)

    async def submit(self, run_id: str, command: OutsideCommand) -> CommandAnswer | None:
        """See ``Elsewhere``."""
        return await self.supervisor.submit(run_id, command)

    async def shown(self, run_id: str, mark: Mark, timeout_s: float) -> Shown | None:
        """See ``Elsewhere``."""
        return await self.supervisor.shown(run_id, mark, timeout_s)

    def full(self) -> BoundloopError | None:
        """See ``HostingElsewhere``."""
        if self.supervisor.queued >= ADMITTED_MAX:
            return Overloaded(OVERLOADED_RETRY_MS)
        return self.supervisor.trouble

    @property
    def trouble(self) -> BoundloopError | None:
        """See ``HostingElsewhere``."""
        return self.supervisor.trouble

    async def answer(self, kind: str, question: bytes) -> bytes:
        """See ``HostingElsewhere``."""
        secret = self._way_to_tools.secret
        if kind in places.KINDS:
            return await PlacesDoor(self._pools).answer(kind, unsealed(question, secret))
        if kind == LET_GO:
            word = msgspec.msgpack.decode(unsealed(question, secret), type=LetGoMessage)
            self.supervisor.let_go(LetGo(word.seat, word.run_id, word.number, word.failed, word.lingering))
            return b""
        if kind == TOOL_RAISED:
            line = unsealed(question, secret).decode("utf-8", "replace")
            tool_failures.LOGGER.warning("%s", line[: tool_failures.LINE_CHARS_MAX])
            return b""
        raise CallerError("unknown_question", "the owner knows no such question", path=kind[:64])


def _shipped(parts: Parts) -> bytes:
    send_by_value(BY_VALUE)
    ray = untyped_ray()
    return pack(
        Shipment(
            toolbox=parts.toolbox,
            policy=parts.policy,
            adapter=parts.adapter,
            permissions_of=parts.permissions_of,
            dependencies=parts.dependencies,
            groups=parts.groups,
            application=parts.application,
            secrets=None if parts.secrets is None else parts.secrets.settings,
        ),
        ray.cloudpickle.dumps,
    )


def _ray_put(data: bytes) -> Any:
    return untyped_ray().put(data)
