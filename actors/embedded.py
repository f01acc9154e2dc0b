"""A Runtime's half that lives on its loop: it owns the store, or goes through whoever does. Runtime and its twin call into it.

In a cluster the first Runtime on a store is its owner, the others go through it; when the owner is gone the next that
notices takes its place. Without a cluster a store that is owned is refused. Where a server keeps the store, a Runtime whose host had to
stop because the server was away has the next one as soon as it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Final, Protocol, TypeVar, cast

import msgspec

from ..adapters.port import ModelAdapter
from ..eventstore.history import load_run
from ..eventstore.inbox import KINDS, Inbox, Kind, gather_inbox
from ..eventstore.location import parse_url
from ..eventstore.port import EventStore
from ..eventstore.shown_url import shown_url
from ..eventstore.token_data import token_data_of
from ..runtime.commands import CommandAnswer, OutsideCommand
from ..runtime.errors import DeclarationError, RunNotFound, StoreError
from ..runtime.events import RunStarted
from ..runtime.prices import PriceTable
from ..runtime.start import start_run
from ..runtime.state import State
from ..runtime.toolbox import Toolbox
from . import wishes
from .attached import GONE, NOT_SERVING, Attached
from .host import Host
from .loop_thread import closed
from .owning import Owning, Parts
from .pool_spec import Pool
from .provisional import Mark
from .result import Result
from .run_options import Asked, StartOptions
from .server_use import ServerUse
from .streaming import Committed, Follower, FollowItem, HostedElsewhere, News, Page, committed_from
from .waiting import StillRunning, Until
from .watching import Watchers
from .wishes import CommandRefused

T = TypeVar("T")

MOVES_MAX: Final = 60
"""Owners that one call may be asked of, one after the other."""

MOVE_PAUSE_S: Final = 0.5
MOVE_S: Final = 30.0
"""How long the next owner is looked for: its process may have to be started anew."""

MOVE_LEAST_S: Final = 5.0
"""So long it is looked for by a call, too, that is to take less."""

OPENING_S: Final = 120.0
"""How long one that is there may take to open or to close: executors that come up, a messenger on a node that is slow."""

FINAL: Final = frozenset(("other_store", "other_actor"))
"""What no further try changes."""

FOLLOW_S: Final = 10.0

PIECE_S: Final = 1 / 20
"""How long after something provisional the next of it comes at the earliest; what is committed doesn't wait for that."""

INBOX_ROWS_MAX: Final = 1_000

OWNER_ANSWER_S: Final = 30.0
"""How long a call that waits for nothing may take through another process."""

ACTORS_MAX: Final = 1_000
"""Run actors of one Runtime, of each kind."""

FILES_AN_ACTOR: Final = 2
FILES_BESIDES: Final = 256
"""Open files of an owner: for each run actor its connection and Ray's channel to it; and all others."""


class Serving(Protocol):
    """What both halves can. ``broken``: of a bug, which whoever goes on here would meet again."""

    attached: bool

    @property
    def broken(self) -> bool: ...

    @property
    def store(self) -> EventStore: ...

    async def begin_run(
        self, event: RunStarted, encoded_pins: bytes, *, given_run_id: bool, again: bool
    ) -> None: ...

    async def submit(self, run_id: str, command: OutsideCommand) -> CommandAnswer: ...

    def hosted(self, run_id: str) -> State | None: ...

    async def result(self, run_id: str, timeout_s: float | None, until: Until) -> Result: ...

    async def committed_after(self, run_id: str, after_seq: int, timeout_s: float) -> bool: ...

    async def news(
        self, run_id: str, after_seq: int, mark: Mark, timeout_s: float, elsewhere: str = ""
    ) -> News: ...

    async def close(self) -> None: ...


class StoreUse(Protocol):
    """How a Runtime finds out who serves its store, again and again: on Ray ``ray_cluster_use.py``, ``server_use.py`` where a server
    keeps it. A file that no cluster shares has one owner, once. ``foreign_errors``: whether any error may come of it while what it
    goes through is not itself; else one that isn't ours is a bug."""

    @property
    def foreign_errors(self) -> bool: ...

    async def serve(
        self,
        parts: Parts,
        url: str,
        *,
        take_over: bool,
        clock: Callable[[], int] | None,
        lost: Callable[[], None],
    ) -> Owning | Attached: ...

    @property
    def address(self) -> str:
        """Of the cluster's GCS; empty without one."""
        ...

    async def leave(self) -> None: ...


class Embedded:
    """All methods but ``host_of`` belong on the loop. ``closed`` is set by whoever begins to close."""

    def __init__(
        self, parts: Parts, *, prices: PriceTable, principal: str, cluster: Callable[[], StoreUse] | None
    ) -> None:
        self.parts = parts
        self.prices = prices
        self.principal = principal
        self.closed = False
        self._join = cluster
        self._use: StoreUse | None = None
        self._serving: Serving | None = None
        self._search: asyncio.Task[None] | None = None
        self._mover: asyncio.Task[None] | None = None
        self._clock: Callable[[], int] | None = None
        self._finding: asyncio.Future[Serving] | None = None
        self._url = ""
        self._bug: StoreError | None = None
        self.told_of_loss: list[Callable[[], None]] = []

    @property
    def toolbox(self) -> Toolbox:
        """All tools of the application."""
        return self.parts.toolbox

    @property
    def adapter(self) -> ModelAdapter | None:
        """The model."""
        return self.parts.adapter

    @property
    def ray_address(self) -> str:
        """Of the cluster in use; empty without one."""
        return "" if self._use is None else self._use.address

    async def open(
        self, store: str | EventStore, *, take_over: bool, clock: Callable[[], int] | None
    ) -> None:
        """Open the store and begin to host, or attach to whoever does."""
        self._clock = clock
        if isinstance(store, str):
            self._url = store
            if self._join is not None:
                self._use = self._join()
            elif parse_url(store).kind == "postgres":
                self._use = ServerUse()
        try:
            self._serving = await self._found(store, take_over, clock)
        except BaseException:
            if self._use is not None:
                await self._use.leave()
            raise

    async def _found(
        self, store: str | EventStore, take_over: bool, clock: Callable[[], int] | None
    ) -> Serving:
        """An owner that is just opening, or closing, is waited for, within bounds."""
        time = asyncio.get_running_loop().time
        began = time()
        while True:
            try:
                return await self._found_now(store, take_over, clock)
            except StoreError as error:
                if error.code not in GONE or self._use is None or self._is_final(error, time() - began):
                    raise
            await asyncio.sleep(MOVE_PAUSE_S)

    async def _found_now(
        self, store: str | EventStore, take_over: bool, clock: Callable[[], int] | None
    ) -> Serving:
        """One try, which whoever closes this Runtime puts an end to."""
        if self.closed:
            raise closed()
        self._finding = finding = asyncio.ensure_future(self._served(store, take_over, clock))
        try:
            return await finding
        except asyncio.CancelledError:
            raise _unless_ended_by_closing() from None

    def _is_final(self, error: StoreError, passed_s: float) -> bool:
        """Whether no further try is made after this one."""
        if error.code in FINAL or self.closed:
            return True
        return passed_s >= (OPENING_S if error.code == NOT_SERVING else MOVE_S)

    async def _served(
        self, store: str | EventStore, take_over: bool, clock: Callable[[], int] | None
    ) -> Serving:
        if self._use is not None and isinstance(store, str):
            return await self._use.serve(
                self.parts, store, take_over=take_over, clock=clock, lost=self._owner_lost
            )
        return await Owning.open(self.parts, store, take_over=take_over, clock=clock, lost=self._owner_lost)

    async def shut_down(self) -> None:
        """Stop hosting, and answer whoever still waits."""
        if self._mover is not None:
            self._mover.cancel()
        if self._finding is not None:
            self._finding.cancel()
        try:
            if self._search is not None:
                self._search.cancel()
                await asyncio.gather(self._search, return_exceptions=True)
            ends = [serving.close() for serving in self._open_ones()]
            failures = [error for error in await asyncio.gather(*ends, return_exceptions=True) if error]
            if failures:
                raise failures[0]
        finally:
            await self._leave()

    async def _leave(self) -> None:
        try:
            if self.adapter is not None:
                await self.adapter.close()
        finally:
            if self._use is not None:
                await self._use.leave()

    def _open_ones(self) -> list[Serving]:
        """What is in use, and what was found just as the search for it was ended."""
        found = self._finding
        late = found is not None and found.done() and not found.cancelled() and found.exception() is None
        both = [self._serving, found.result() if found is not None and late else None]
        return list({id(one): one for one in both if one is not None}.values())

    # --- from owner to owner ---------------------------------------------------------------------------------------

    def _owner_lost(self) -> None:
        """Found out without a call: the next owner is looked for at once, so that runs don't wait for one. Where there is
        none, whoever only serves is told."""
        if self._serving is not None and not self._may_move(self._serving):
            self._tell_of_loss()
        elif not self.closed and (self._mover is None or self._mover.done()):
            self._mover = asyncio.create_task(self._move_quietly())

    def _tell_of_loss(self) -> None:
        for tell in tuple(self.told_of_loss):
            tell()

    async def _move_quietly(self) -> None:
        """Until there is one, or this Runtime closes: runs may wait for it that nobody asks about."""
        serving = self._serving
        while serving is not None and serving is self._serving and not self.closed:
            try:
                await self._move_on(serving)
            except StoreError as error:
                if error.code in FINAL or self._bug is not None:
                    return  # each call says so
            if serving is self._serving:
                await asyncio.sleep(MOVE_PAUSE_S)

    async def _move_on(self, from_: Serving) -> None:
        """Wait until the next owner is found, or this is it. All who ask meanwhile wait for one search, and hear of its end at
        the same time, however many they are. Raises ``StoreError`` if it found none in time."""
        if self._serving is not from_ or self.closed:
            return
        if self._search is None or self._search.done():
            self._search = asyncio.create_task(self._search_after(from_))
            self._search.add_done_callback(_looked_at)
        try:
            await asyncio.shield(self._search)
        except asyncio.CancelledError:
            raise _unless_ended_by_closing() from None

    async def _search_after(self, from_: Serving) -> None:
        time = asyncio.get_running_loop().time
        began = time()
        with contextlib.suppress(Exception):  # what it still holds goes with its process
            async with asyncio.timeout(MOVE_S):
                await from_.close()
        while True:
            try:
                self._serving = await self._found_now(self._url, False, self._clock)
            except StoreError as error:
                last = error
            except Exception as error:  # whatever Ray raises while the cluster is not itself
                if self._use is not None and not self._use.foreign_errors:
                    self._bug = StoreError("host_lost", f"no next host: unexpected {type(error).__name__}")
                    self._bug.__cause__ = error
                    self._tell_of_loss()
                    raise self._bug from error
                last = StoreError("owner_gone", f"no next owner: {error}"[:300], path=shown_url(self._url))
            else:
                return
            if self._is_final(last, time() - began):
                raise last
            await asyncio.sleep(MOVE_PAUSE_S)

    async def _with(
        self,
        call: Callable[[Serving], Awaitable[T]],
        *,
        within_s: float | None = OWNER_ANSWER_S,
        end_s: float | None = None,
    ) -> T:
        """Make a call that may be made again with the next owner. ``within_s``: how long one may take through another
        process; ``end_s``: until when a next owner is waited for, on the loop's clock. Raises what the call raises, and
        ``StoreError`` (``owner_gone``, ``owner_silent``, and what kept the next owner away)."""
        for _ in range(MOVES_MAX):
            serving = self.serving
            try:
                if serving.attached and within_s is not None:
                    return await self._answered(call(serving), within_s)
                return await call(serving)
            except StoreError as error:
                if error.code not in GONE or not self._may_move(serving) or self.closed:
                    raise
                self._owner_lost()  # whatever becomes of this call, somebody goes on looking
                try:
                    async with asyncio.timeout_at(end_s):
                        await self._move_on(serving)
                except TimeoutError:
                    raise error from None
        raise StoreError("owner_gone", "owners keep going away", path=shown_url(self._url))

    async def _answered(self, call: Awaitable[T], within_s: float) -> T:
        time = asyncio.timeout(within_s)
        try:
            async with time:
                return await call
        except TimeoutError as error:
            if not time.expired():
                raise
            raise StoreError(
                "owner_silent", "the store's owner does not answer", path=shown_url(self._url)
            ) from error

    def _may_move(self, serving: Serving) -> bool:
        if self._bug is not None:
            return False
        return serving.attached or (self._use is not None and not serving.broken)

    @property
    def serving(self) -> Serving:
        """The half in use. Raises ``StoreError`` (``closed``)."""
        if self._serving is None or self.closed:
            raise closed()
        return self._serving

    def failure(self) -> StoreError | None:
        """Why this process hosts nothing any more, from any thread; None while it does, or looks for the next owner."""
        serving = self._serving
        if not isinstance(serving, Owning) or self._may_move(serving):
            return None
        return self._bug or serving.failed

    def host_of(self) -> Host:
        """This process's host, from any thread. Raises ``StoreError`` (``closed``, ``attached``)."""
        serving = self.serving
        if not isinstance(serving, Owning):
            raise StoreError(
                "attached", "another process owns the store and hosts its runs", path=shown_url(self._url)
            )
        return serving.host

    @property
    def watchers(self) -> Watchers:
        """Of this process's hosts, the next ones too. Raises as ``host_of``."""
        self.host_of()
        return self.parts.watchers

    # --- commands --------------------------------------------------------------------------------------------------

    async def submit(self, run_id: str, command: OutsideCommand) -> CommandAnswer:
        """Hand in a command; a refusal is an answer. What is declared doesn't leave this process."""
        if self.parts.secrets is not None:
            command = self.parts.secrets.command(command)
        return await self._with(lambda serving: serving.submit(run_id, command))

    async def command(self, run_id: str, command: OutsideCommand) -> int:
        """Hand in a command; gives the seq of its event. Raises ``CommandRefused``."""
        answer = await self.submit(run_id, command)
        if not answer.accepted:
            if answer.code == "run_not_found":
                raise RunNotFound(run_id)
            raise CommandRefused(answer.code, answer.message, path=run_id)
        return answer.seq

    async def inbox(
        self, root_id: str | None, kind: Kind | None, tenant: str | None, limit: int, after: str
    ) -> Inbox:
        """What waits for a person; raises ``DeclarationError`` for another kind, or a limit out of bounds, and as
        ``gather_inbox``."""
        if kind is not None and kind not in KINDS:
            raise DeclarationError("option_value", f"one of {', '.join(sorted(KINDS))}", path="kind")
        if type(limit) is not int or not 1 <= limit <= INBOX_ROWS_MAX:
            raise DeclarationError("option_value", f"must be from 1 to {INBOX_ROWS_MAX}", path="limit")
        kinds = KINDS if kind is None else frozenset((kind,))
        return await self._with(
            lambda serving: gather_inbox(
                serving.store, tenant=tenant, root_id=root_id, kinds=kinds, limit=limit, after=after
            )
        )

    async def switch(self, scope: str, target: str, by: str, reason: str, *, on: bool) -> None:
        """Turn a kill switch."""

        async def turn(serving: Serving) -> None:
            store = serving.store
            turned = wishes.switch(scope, target, by, reason, store.now_ms())
            if self.parts.secrets is not None:
                turned = self.parts.secrets.switch(turned)
            await store.set_switch(turned, on=on)

        await self._with(turn)

    # --- runs ------------------------------------------------------------------------------------------------------

    async def start(self, input: str, options: StartOptions, *, dense: bool = False) -> str:
        """Begin a run; gives its id."""
        event, encoded, given_run_id = self._begun(input, options, dense=dense)
        again = False

        async def begin(serving: Serving) -> None:
            nonlocal again
            asked_before, again = again, True
            await serving.begin_run(event, encoded, given_run_id=given_run_id, again=asked_before)

        await self._with(begin)
        return event.run_id

    def check_options(self, options: StartOptions) -> None:
        """Raises what no run could be started with: as ``start``, but for what its input or its id is to blame for."""
        self._begun("-", options, dense=True)

    def _begun(self, input: str, options: StartOptions, *, dense: bool) -> tuple[RunStarted, bytes, bool]:
        """The first event, its encoded pins, and whether the caller gave the run's id."""
        asked = Asked(
            input,
            options,
            tenant=self.parts.tenant,
            principal=self.principal,
            application=self.parts.application,
            dense=dense,
        )
        if self._serving is None or self.closed:
            raise closed()
        if self.adapter is None:
            raise DeclarationError("missing_model", "this Runtime has no model", path="model")
        pins = asked.pins(
            self.toolbox, self.parts.policy, self.adapter, self.prices, self.parts.permissions_of
        )
        spec = asked.spec
        secrets = self.parts.secrets
        if secrets is not None:
            text = secrets.redactor.text
            spec = msgspec.structs.replace(
                spec,
                input=text(spec.input),
                given=secrets.given(spec.given),
                as_of=text(spec.as_of),
                trace=text(spec.trace),
            )
            pins = msgspec.structs.replace(
                pins, system=text(pins.system), redaction=secrets.settings.revision
            )
        event, _, encoded = start_run(spec, pins)
        return event, encoded, asked.given_run_id

    async def run(self, input: str, options: StartOptions) -> Result:
        """Begin a run and wait until it rests."""
        return await self.result(await self.start(input, options), None, "rest")

    async def load(self, run_id: str) -> State:
        """The state as committed now. Raises ``RunNotFound``."""

        async def read(serving: Serving) -> State:
            state, _ = await load_run(serving.store, run_id)
            return state

        return await self._with(read)

    async def token_data(self, run_id: str, turn: int) -> bytes | None:
        """As ``Runtime.token_data``."""
        return await self._with(lambda serving: token_data_of(serving.store, run_id, turn))

    async def result(self, run_id: str, timeout_s: float | None, until: Until) -> Result:
        """Wait for a run; raises as ``Runtime.result``."""
        loop = asyncio.get_running_loop()
        end = None if timeout_s is None else loop.time() + timeout_s

        async def wait(serving: Serving) -> Result:
            return await serving.result(run_id, None if end is None else max(0.0, end - loop.time()), until)

        look_s = None if end is None else max(end, loop.time() + MOVE_LEAST_S)
        return await self._with(wait, within_s=None, end_s=look_s)

    async def stream(self, run_id: str, after_seq: int, until: Until) -> AsyncGenerator[Committed]:
        """Committed events from ``after_seq`` on, until the run rests or stops."""
        row_seq = 0
        while True:
            read = row_seq
            page = await self._page(run_id, after_seq, read, until)
            row_seq = page.row_seq
            for item in page.items:
                after_seq = item.seq
                yield item
            if page.over:
                return
            if row_seq == read and not await self._grown(run_id, read, FOLLOW_S):
                await self._insist_on_a_host(run_id, until)

    async def follow(self, run_id: str, after_seq: int, until: Until) -> AsyncGenerator[FollowItem]:
        """As ``stream``, with what is provisional of the attempt that is out."""
        time = asyncio.get_running_loop().time
        follower = Follower()
        row_seq, due, elsewhere = 0, time(), ""
        while True:
            read = row_seq
            page = await self._page(run_id, after_seq, read, until)
            row_seq = page.row_seq
            for item in page.items:
                after_seq = item.seq
                reset = follower.reset_before(item.event)
                if reset is not None:
                    yield reset
                yield item
            if page.over:
                return
            if row_seq != read or (due > time() and await self._grown(run_id, read, due - time())):
                continue
            news = await self._news(run_id, read, follower.mark, elsewhere)
            if news.elsewhere:
                elsewhere = news.elsewhere
                yield HostedElsewhere(run_id=run_id, host_id=elsewhere)
                continue
            pieces = follower.take(news.shown, after_seq)
            for piece in pieces:
                yield piece
            if pieces:
                due = time() + PIECE_S
            elif not news.grown:
                await self._insist_on_a_host(run_id, until)

    async def _page(self, run_id: str, after_seq: int, row_seq: int, until: Until) -> Page:
        return await self._with(
            lambda serving: committed_from(serving.store, run_id, after_seq, row_seq, until)
        )

    async def _insist_on_a_host(self, run_id: str, until: Until) -> None:
        """Whether anybody can carry it on is asked now and then, or a reader could wait for ever."""
        with contextlib.suppress(StillRunning):
            await self._with(lambda serving: serving.result(run_id, 0.0, until), within_s=None)

    async def _grown(self, run_id: str, after_seq: int, timeout_s: float) -> bool:
        """Wait for an append; False if none came in time."""
        return await self._with(
            lambda serving: serving.committed_after(run_id, after_seq, timeout_s), within_s=None
        )

    async def _news(self, run_id: str, after_seq: int, mark: Mark, elsewhere: str) -> News:
        """Wait for an append, or for something that is shown."""
        return await self._with(
            lambda serving: serving.news(run_id, after_seq, mark, FOLLOW_S, elsewhere), within_s=None
        )


def _unless_ended_by_closing() -> BaseException:
    """What is raised for a cancellation: itself if the caller was cancelled, or that ``shut_down`` put an end to what it waited
    for."""
    task = asyncio.current_task()
    return asyncio.CancelledError() if task is not None and task.cancelling() else closed()


def _looked_at(done: asyncio.Task[None]) -> None:
    """Whoever waited for it may have gone away meanwhile: its error is no complaint of the loop's."""
    if not done.cancelled():
        done.exception()


def cluster_use(
    ray_option: str | None,
    *,
    name: str,
    run_actors: int,
    warm: int,
    dense_actors: int,
    pools: Mapping[str, Pool] | None,
) -> Callable[[], StoreUse] | None:
    """How ``Runtime(ray=…)`` uses Ray; None if it doesn't. Imports nothing of Ray unless it is to be used. Raises
    ``DeclarationError``."""
    from .ray_cluster import attached, refuse_bad_address

    if not (ray_option is None or (isinstance(cast(object, ray_option), str) and ray_option)):
        raise DeclarationError("option_type", 'None, "local", "require" or an address', path="ray")
    refuse_bad_address(ray_option)
    if not name:
        raise DeclarationError("option_value", "a Runtime's name isn't empty", path="name")
    _insist_on_count("run_actors", run_actors, 1)
    _insist_on_count("warm_actors", warm, 0)
    _insist_on_count("dense_actors", dense_actors, 0)
    if warm > run_actors:
        raise DeclarationError(
            "option_value", f"{warm} of {run_actors} run actors can't stand ready", path="warm_actors"
        )
    if ray_option is None and not attached():
        return None
    _insist_on_files(run_actors + dense_actors)
    from .ray_cluster_use import RayClusterUse

    return lambda: RayClusterUse(
        ray_option, name=name, run_actors=run_actors, warm=warm, dense_actors=dense_actors, pools=pools
    )


def _insist_on_files(actors: int) -> None:
    """An owner that can open no file for an actor that it was promised keeps that actor's runs waiting."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    wanted = FILES_BESIDES + FILES_AN_ACTOR * actors
    if limit != resource.RLIM_INFINITY and limit < wanted:
        raise DeclarationError(
            "option_value",
            f"{actors} actors need {wanted} open files, and {limit} are allowed",
            path="run_actors",
        )


def _insist_on_count(name: str, value: object, least: int) -> None:
    if type(value) is not int:
        raise DeclarationError("option_type", f"must be an integer from {least} to {ACTORS_MAX}", path=name)
    if not least <= value <= ACTORS_MAX:
        raise DeclarationError("option_value", f"must be from {least} to {ACTORS_MAX}", path=name)
