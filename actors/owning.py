"""The half of a Runtime that owns the store: it hosts, waits, answers other processes, and runs the cluster if there is one.

Everything is on the Runtime's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Protocol

import msgspec

from ..adapters.port import ModelAdapter
from ..eventstore.admission import create_unhosted
from ..eventstore.history import load_run, pins_from
from ..eventstore.location import open_store
from ..eventstore.port import EventStore, SharedStore, Switch
from ..runtime.commands import CommandAnswer, OutsideCommand
from ..runtime.errors import (
    BoundloopError,
    CallerError,
    ConflictError,
    HistoryRefused,
    OwnedError,
    RunNotFound,
    StoreError,
)
from ..runtime.events import AnyEvent, RunStarted
from ..runtime.policy import Policy
from ..runtime.state import State
from ..runtime.toolbox import Toolbox
from .executors import ToolExecutors
from .fit import other_application
from .following import Followers
from .host import Elsewhere, Host
from .loop_thread import closed
from .places import VALID_MS_MAX
from .provisional import Mark, Shown
from .resting import rested_result
from .result import Result, result_of
from .secret_source import Secrets
from .streaming import News
from .waiting import StillRunning, Until, Waiters, rests
from .watching import Watchers

LOOK_ELSEWHERE_S: Final = 2.0
HOW_TO_SHARE: Final = (
    '; to work beside an owner on Ray attach to it in its cluster (ray="require" or the cluster\'s address, --ray); otherwise '
    "end it, or take the file over (take_over=True, --take-over)"
)
ASKED_AGAIN_S: Final = 0.05
"""How soon a host that showed nothing is asked again."""

ASKED_WAIT_S_MAX: Final = 20.0
"""How long one question of another process is held open; it asks again."""


class HostingElsewhere(Elsewhere, Protocol):
    """What a cluster adds to the owner's half."""

    executors: ToolExecutors

    def serves(self, owning: Owning) -> None:
        """Whom to tell of what its hosts let go."""
        ...

    async def open(self, host: Host) -> None: ...

    async def answer(self, kind: str, question: bytes) -> bytes:
        """A question of one of its hosts. Raises ``CallerError`` (``unknown_question``)."""
        ...

    def expects(self, run_id: str) -> None:
        """A run is about to be created for one of its hosts: it needn't be looked for until ``begun``."""
        ...

    def begun(self, started: RunStarted, *, created: bool) -> None:
        """The run is in the store; or whether it is isn't known."""
        ...

    def full(self) -> BoundloopError | None:
        """Why no further run is admitted; None if there is room."""
        ...

    @property
    def trouble(self) -> BoundloopError | None:
        """Why ready runs don't begin; None if they do. It is tried again meanwhile."""
        ...

    async def drain(self) -> None:
        """Put down what its hosts have, and end them."""
        ...

    async def close(self) -> None:
        """End all that is left of it."""
        ...


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """An application, as its Runtime was given it. ``watchers``: of each host that this Runtime has, one after the other."""

    toolbox: Toolbox
    policy: Policy
    adapter: ModelAdapter | None
    tenant: str
    application: str
    permissions_of: Callable[[str, str], frozenset[str]]
    groups: Mapping[str, int]
    dependencies: Mapping[str, Any]
    secrets: Secrets | None = None
    watchers: Watchers = msgspec.field(default_factory=Watchers)


class FitQuestion(msgspec.Struct, frozen=True, array_like=True):
    """Whether the owner has room for a run, and its application can carry one with these pins; without ``pins`` that was
    asked before."""

    application: str
    pins_sha256: bytes
    pins: bytes


class WaitQuestion(msgspec.Struct, frozen=True, array_like=True):
    """Wait for a run to rest or to stop, or (``until`` "commit") to have more than ``after_seq`` events."""

    run_id: str
    until: str
    after_seq: int
    timeout_s: float


class NewsQuestion(msgspec.Struct, frozen=True, array_like=True):
    """What became of a run that is followed, as ``Owning.news`` is asked."""

    run_id: str
    after_seq: int
    mark: Mark
    timeout_s: float
    elsewhere: str


class Owning:
    """Made by ``open``."""

    attached = False

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.waiters = Waiters()
        self._followers = Followers()
        self._host: Host | None = None
        self._store: EventStore | None = None
        self._owns_store = False
        self._cluster: HostingElsewhere | None = None
        self._serves_others = False
        self._lost: Callable[[], None] = lambda: None
        self._executors: ToolExecutors | None = None
        self._closing: asyncio.Task[None] | None = None
        self._giving_up: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        parts: Parts,
        store: str | EventStore,
        *,
        take_over: bool,
        clock: Callable[[], int] | None,
        cluster: Callable[[Host, bool], HostingElsewhere] | None = None,
        lost: Callable[[], None] = lambda: None,
        executors: ToolExecutors | None = None,
        after: Owning | None = None,
    ) -> Owning:
        """Open the store and begin to host. ``cluster`` is given this process's host before it opens, and whether another
        owner died without closing, or may have. ``lost`` hears that this host had to stop, by a store that didn't answer in time: in a
        cluster the file is given back by then, for whoever opens it next. ``executors``: of a Runtime that has the next
        host by itself, and outlive this one; ``after``: what it was until its host had to stop. Raises as ``open_store``; nothing is
        held then."""
        self = cls(parts)
        self._executors = executors
        self._lost = lost
        opened = await self._opened(store, take_over, clock) if isinstance(store, str) else store
        self._store = opened
        self._owns_store = isinstance(store, str)
        _listen(opened, self)
        try:
            await self._begin(opened, cluster, None if after is None else after._host)
        except BaseException:
            with contextlib.suppress(Exception):  # what failed first is what is told
                await self._wind_up()
            raise
        self._serves_others = True
        return self

    async def _begin(
        self,
        opened: EventStore,
        cluster: Callable[[Host, bool], HostingElsewhere] | None,
        stopped: Host | None,
    ) -> None:
        parts = self.parts
        host = Host(
            opened,
            toolbox=parts.toolbox,
            policy=parts.policy,
            adapter=parts.adapter,
            permissions_of=parts.permissions_of,
            application=parts.application,
            groups=parts.groups,
            dependencies=parts.dependencies,
            secrets=parts.secrets,
            executors=self._executors,
            executors_stay=self._executors is not None,
        )
        host.parked_watchers.append(self._parked)
        host.refused_watchers.append(self.waiters.fail)
        host.failed_watchers.append(self._host_failed)
        host.watchers.add(self._committed)
        host.watchers.add(parts.watchers.committed)
        host.watchers.add_of_progress(parts.watchers.progressed)
        # One file, one owner: whoever held a host row in it before is gone, proved by the lock that we hold. In a shared store
        # other hosts live on.
        alone = self._owns_store and not isinstance(opened, SharedStore)
        rows = await opened.hosts() if self._owns_store else []
        dead = [row.host_id for row in rows] if alone else []
        self._host = host
        if cluster is not None:
            # Of a shared store: rows that expired so long ago say nothing of calls that are at work.
            since_ms = opened.now_ms() - VALID_MS_MAX
            self._cluster = cluster(host, any(alone or row.expires_at_ms > since_ms for row in rows))
            self._cluster.serves(self)
            host.executors = self._cluster.executors
            # Before this host looks for ready runs: those are to go there.
            await self._cluster.open(host)
            host.elsewhere = self._cluster
        await host.open(dead_hosts=dead, after=stopped)

    async def _opened(self, url: str, take_over: bool, clock: Callable[[], int] | None) -> EventStore:
        try:
            return await open_store(
                url, take_over=take_over, on_submit=self.on_submit, on_ready=self.on_ready, clock=clock
            )
        except OwnedError as error:
            if not take_over:
                error.message += HOW_TO_SHARE
            raise

    async def close(self) -> None:
        """Stop hosting, here and elsewhere; whoever still waits is told so at once: of a host that had to stop, that."""
        self._serves_others = False
        self.waiters.fail_all(self.failed or closed())
        self._followers.end()
        if self._closing is None:
            self._closing = asyncio.create_task(self._wind_up())
        await asyncio.shield(self._closing)

    def _host_failed(self, error: BaseException) -> None:
        """An owner that hosts nothing any more must not keep the file from others, nor take runs that nobody hosts."""
        self.waiters.fail_all(error)
        self._serves_others = False
        if self._cluster is None:
            self._lost()
        else:
            self._giving_up = asyncio.create_task(self._give_up())

    async def _give_up(self) -> None:
        with contextlib.suppress(Exception):  # whoever closes it is told the same
            await self.close()
        self._lost()

    async def _wind_up(self) -> None:
        """Whatever fails on the way, the rest is done, and the file is given back. All hosts put down what they have at the
        same time, and this one's closes the executors; then nobody needs the cluster any more."""
        stages: list[list[Callable[[], Awaitable[None]]]] = [[], [], []]
        if self._host is not None:
            stages[0].append(self._host.close)
        if self._cluster is not None:
            stages[0].append(self._cluster.drain)
            stages[1].append(self._cluster.close)
        if self._store is not None and self._owns_store:
            stages[2].append(self._store.close)
        failures: list[BaseException] = []
        for stage in stages:
            done = await asyncio.gather(*(close() for close in stage), return_exceptions=True)
            failures += [error for error in done if isinstance(error, BaseException)]
        self.waiters.fail_all(self.failed or closed())
        if failures:
            raise failures[0]

    @property
    def host(self) -> Host:
        """The host of this process. Raises ``StoreError`` (``closed``, ``host_lost``)."""
        if self._host is None:
            raise closed()
        if self._host.failed is not None and self._cluster is not None:
            raise self._host.failed
        return self._host

    @property
    def store(self) -> EventStore:
        """The store."""
        return self.host.store

    @property
    def failed(self) -> StoreError | None:
        """Why its host had to stop; None if it didn't."""
        return None if self._host is None else self._host.failed

    @property
    def broken(self) -> bool:
        """Whether its host stopped of a bug, which the next one would meet again."""
        return self._host is not None and self._host.broken

    # --- runs ------------------------------------------------------------------------------------------------------

    async def begin_run(
        self, event: RunStarted, encoded_pins: bytes, *, given_run_id: bool, again: bool
    ) -> None:
        """Begin a run; returns when ``run_started`` is durable. ``again``: an earlier owner was asked already, and may have
        begun it. Raises ``ConflictError``, ``Overloaded``, ``StoreError``."""
        host, cluster = self.host, self._cluster
        if not again and given_run_id and await host.store.run(event.run_id) is not None:
            raise ConflictError("run_exists", "a run with this id exists", path=event.run_id)
        if not again and (cluster is None or (event.dense and cluster.dense_stay_here(event.tenant))):
            await host.start_run(event, encoded_pins, root_id=event.run_id)
            return
        full = None if cluster is None else cluster.full()
        if full is not None:
            raise full
        if cluster is None:
            await create_unhosted(host.store, event, encoded_pins, root_id=event.run_id)
            return
        # Its place is asked for without a look through all that is ready, of which there may be thousands.
        created = False
        cluster.expects(event.run_id)
        try:
            await create_unhosted(host.store, event, encoded_pins, root_id=event.run_id)
            created = True
        finally:
            cluster.begun(event, created=created)

    async def submit(self, run_id: str, command: OutsideCommand) -> CommandAnswer:
        """Hand in a command; a refusal is an answer."""
        return await self.host.submit(run_id, command)

    def hosted(self, run_id: str) -> State | None:
        """The live state of a run that is hosted in this process."""
        return self.host.hosted(run_id)

    async def result(self, run_id: str, timeout_s: float | None, until: Until) -> Result:
        """Wait for a run; raises as ``Runtime.result``."""
        host = self.host
        if host.failed is not None and self._executors is not None:
            raise host.failed  # the next host is on its way
        # Waits first and looks then: a run that is let go of in between is heard of.
        future = self.waiters.add(run_id, until)
        looking: asyncio.Task[None] | None = None
        try:
            if host.hosted(run_id) is None:
                rested = await self._rested_if_known(host, run_id, until)
                if rested is not None:
                    return rested
            # Most runs rest here before there is a reason to look elsewhere.
            first_s = LOOK_ELSEWHERE_S if timeout_s is None else min(timeout_s, LOOK_ELSEWHERE_S)
            await asyncio.wait((future,), timeout=first_s)
            if not future.done() and first_s != timeout_s:
                looking = asyncio.create_task(self._look_elsewhere(host, run_id, until, future))
                await asyncio.wait((future,), timeout=None if timeout_s is None else timeout_s - first_s)
            if future.done():
                return future.result()
            raise StillRunning(result_of(host.hosted(run_id) or await self._load(run_id)), timeout_s)
        finally:
            if looking is not None:
                looking.cancel()
            self.waiters.remove(run_id, future)

    async def _rested_if_known(self, host: Host, run_id: str, until: Until) -> Result | None:
        """As ``_rested``; a server that is away keeps nobody from waiting, for it or for the next host."""
        try:
            return await self._rested(host, run_id, until)
        except StoreError as error:
            if error.code != "store_unreachable" or self._executors is None:
                raise
            return None

    async def _load(self, run_id: str) -> State:
        state, _ = await load_run(self.store, run_id)
        return state

    async def _rested(self, host: Host, run_id: str, until: Until) -> Result | None:
        """Where a run rests that isn't hosted here; None if it is about to be. Raises if it will not be."""
        failure = host.failures.get(run_id)
        if failure is not None:
            raise failure
        row = await host.store.run(run_id)
        if row is None:
            raise RunNotFound(run_id)
        if row.damaged:
            raise HistoryRefused("log_damaged", row.damaged, path=run_id)
        trouble = None if self._cluster is None else self._cluster.trouble
        if trouble is not None and row.ready:
            raise trouble
        if row.owner and row.owner != host.host_id:
            return None  # a host has it; folding a long log to learn that would be dear
        state = await self._load(run_id)
        result = await rested_result(host.store, state)
        if host.hosted(run_id) is not None:
            return None
        if not row.ready and rests(result, until):
            return result
        why_not = host.fit.misfit(state.application, state.pins)
        if why_not:
            raise other_application(run_id, why_not)
        if host.failed is not None:
            raise host.failed  # nobody else has the run, and this process carries none any more
        return None

    async def _look_elsewhere(
        self, host: Host, run_id: str, until: Until, future: asyncio.Future[Result]
    ) -> None:
        """What a foreign host of this store does with the run is told to nobody here: look now and then."""
        while not future.done():
            if host.hosted(run_id) is None:
                await self._look_at(host, run_id, until, future)
            await asyncio.sleep(LOOK_ELSEWHERE_S)

    async def _look_at(self, host: Host, run_id: str, until: Until, future: asyncio.Future[Result]) -> None:
        try:
            rested = await self._rested(host, run_id, until)
        except StoreError as error:
            if error is host.failed:
                if not future.done():
                    future.set_exception(error)
                return
            if error.code not in ("store_closed", "closed"):
                return  # if the store stays away the host says so
            rested = None
        except Exception as error:  # noqa: BLE001  for whoever waits
            if not future.done():
                future.set_exception(error)
            return
        if rested is not None and not future.done():
            future.set_result(rested)

    async def committed_after(self, run_id: str, after_seq: int, timeout_s: float) -> bool:
        """Wait until the run has more than ``after_seq`` events; False if the time was over first."""
        return await self._followers.wait(self.store, run_id, after_seq, timeout_s)

    async def news(
        self, run_id: str, after_seq: int, mark: Mark, timeout_s: float, elsewhere: str = ""
    ) -> News:
        """Wait until the run has more than ``after_seq`` events, or shows something since ``mark``, or another host than ``elsewhere``
        has it of which that isn't known; none of it if the time was over first. Raises ``RunNotFound``."""
        now_elsewhere = await self._hosted_elsewhere(run_id)
        if now_elsewhere not in ("", elsewhere):
            return News(False, Shown(mark), now_elsewhere)
        time = asyncio.get_running_loop().time
        end = time() + timeout_s
        asked = [growing := asyncio.ensure_future(self.committed_after(run_id, after_seq, timeout_s))]
        try:
            while True:
                showing = asyncio.ensure_future(self.host.shown(run_id, mark, max(0.0, end - time())))
                try:
                    await asyncio.wait((growing, showing), return_when=asyncio.FIRST_COMPLETED)
                    shown = showing.result() if showing.done() else Shown(mark)
                finally:
                    showing.cancel()
                    await asyncio.gather(showing, return_exceptions=True)
                if shown.items or growing.done() or time() >= end:
                    return News(growing.done() and growing.result(), shown)
                # Told of nothing. The run may be on its way from one host to another, or its host told of what is read already.
                await asyncio.wait(asked, timeout=ASKED_AGAIN_S)
        finally:
            growing.cancel()
            await asyncio.gather(growing, return_exceptions=True)

    async def _hosted_elsewhere(self, run_id: str) -> str:
        """The host of another process that has the run in a shared store, and that isn't asked what it shows; empty for none."""
        host, store = self.host, self.store
        if not isinstance(store, SharedStore) or host.hosted(run_id) is not None:
            return ""
        if self._cluster is not None and self._cluster.holds(run_id):
            return ""
        row = await store.run(run_id)
        if host.failed is not None and (self._executors is not None or self._cluster is not None):
            raise host.failed  # whose it is now, the next host knows
        return "" if row is None or row.owner == host.host_id else row.owner

    # --- what is heard ---------------------------------------------------------------------------------------------

    def _parked(self, run_id: str, state: State) -> None:
        """A driver here let go of a run: whoever waits for that is answered."""
        if self._host is None or not self.waiters.count(run_id):
            return
        failure = self._host.failures.get(run_id)
        if failure is not None:
            self.waiters.fail(run_id, failure)
        else:
            self.waiters.tell(run_id, result_of(state))

    def let_go_elsewhere(self, run_id: str, error: BaseException | None) -> None:
        """A host in another process let go of a run."""
        if error is not None:
            self.waiters.fail(run_id, error)
        elif self.waiters.count(run_id) and self._host is not None:
            self._host.beside(self._tell_waiters(self._host, run_id))

    async def _tell_waiters(self, host: Host, run_id: str) -> None:
        for until, future in self.waiters.of(run_id):
            await self._look_at(host, run_id, until, future)

    def _committed(self, run_id: str, state: State, events: tuple[AnyEvent, ...], first_seq: int) -> None:
        self._followers.tell(run_id)

    def heard_of_append(self, run_id: str) -> None:
        """Another process appended to this run."""
        self._followers.tell(run_id)

    def on_switch(self, switch: Switch) -> Switch:
        """A kill switch, whoever turns it, without what is declared; its reason stays readable to whoever lists them."""
        return switch if self.parts.secrets is None else self.parts.secrets.switch(switch)

    async def on_submit(self, run_id: str, command_id: str, data: bytes) -> bytes:
        return await self.host.on_submit(run_id, command_id, data)

    def on_ready(self, run_ids: Iterable[str]) -> None:
        if self._host is not None:
            self._host.on_ready(run_ids)

    async def on_ask(self, kind: str, question: bytes) -> bytes:
        """The store's ``AskHandler``: questions of attached Runtimes, and of this one's own hosts elsewhere."""
        if kind in ("attach", "fit", "wait", "news") and not self._serves_others:
            raise _not_serving()
        match kind:
            case "attach":
                return b""
            case "fit":
                return await self._asked_fit(msgspec.msgpack.decode(question, type=FitQuestion))
            case "wait":
                return await self._asked_wait(msgspec.msgpack.decode(question, type=WaitQuestion))
            case "news":
                return await self._asked_news(msgspec.msgpack.decode(question, type=NewsQuestion))
            case _ if self._cluster is not None:
                return await self._cluster.answer(kind, question)
            case _:
                raise CallerError("unknown_question", "the owner knows no such question", path=kind[:64])

    async def _asked_fit(self, question: FitQuestion) -> bytes:
        full = None if self._cluster is None else self._cluster.full()
        if full is not None:
            raise full
        if not question.pins:
            return b""  # these were found to fit before
        pins = pins_from(question.pins_sha256, question.pins)
        return self.host.fit.misfit(question.application, pins).encode()

    async def _asked_wait(self, question: WaitQuestion) -> bytes:
        """The encoded ``Result``; nothing if the time was over."""
        timeout_s = min(max(question.timeout_s, 0.0), ASKED_WAIT_S_MAX)
        if question.until == "commit":
            told = await self.committed_after(question.run_id, question.after_seq, timeout_s)
            if not self._serves_others:
                raise _not_serving()
            return b"\x01" if told else b""
        until: Until = "stop" if question.until == "stop" else "rest"
        try:
            return msgspec.msgpack.encode(await self.result(question.run_id, timeout_s, until))
        except StillRunning:
            return b""
        except StoreError as error:
            if not self._serves_others:
                raise _not_serving() from error  # it is for the next owner to answer
            raise

    async def _asked_news(self, question: NewsQuestion) -> bytes:
        """The encoded ``News``."""
        timeout_s = min(max(question.timeout_s, 0.0), ASKED_WAIT_S_MAX)
        news = await self.news(
            question.run_id, question.after_seq, question.mark, timeout_s, question.elsewhere
        )
        if not self._serves_others:
            raise _not_serving()
        return msgspec.msgpack.encode(news)


def _not_serving() -> StoreError:
    return StoreError("owner_not_serving", "the owner is opening or closing")


def _listen(store: Any, owning: Owning) -> None:
    """A store tells whoever hosts what it makes ready; one that was opened by the application didn't know us before."""
    for name, listener in (
        ("on_submit", owning.on_submit),
        ("on_ready", owning.on_ready),
        ("on_switch", owning.on_switch),
        ("on_ask", owning.on_ask),
        ("on_remote_append", owning.heard_of_append),
    ):
        if hasattr(store, name):
            setattr(store, name, listener)
