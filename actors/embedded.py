"""A Runtime's half that lives on its loop: what Runtime and its twin ask of whoever serves the store (``owners.py``)."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Final, cast

import msgspec

from ..adapters.port import ModelAdapter
from ..eventstore.history import load_run
from ..eventstore.inbox import KINDS, Inbox, Kind, gather_inbox
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
from .host import Host
from .owners import OWNER_ANSWER_S, Owners, Serving, StoreUse
from .owning import Owning, Parts
from .pool_spec import Pool
from .provisional import Mark
from .result import Result
from .run_options import Asked, StartOptions
from .streaming import Committed, Follower, FollowItem, HostedElsewhere, News, Page, committed_from
from .waiting import StillRunning, Until
from .watching import Watchers
from .wishes import CommandRefused

FOLLOW_S: Final = 10.0

PIECE_S: Final = 1 / 20
"""How long after something provisional the next of it comes at the earliest; what is committed doesn't wait for that."""

INBOX_ROWS_MAX: Final = 1_000

ACTORS_MAX: Final = 1_000
"""Run actors of one Runtime, of each kind."""

FILES_AN_ACTOR: Final = 2
FILES_BESIDES: Final = 256
"""Open files of an owner: for each run actor its connection and Ray's channel to it; and all others."""


class Embedded:
    """All methods but ``host_of`` belong on the loop. ``closed`` is set by whoever begins to close."""

    def __init__(
        self, parts: Parts, *, prices: PriceTable, principal: str, cluster: Callable[[], StoreUse] | None
    ) -> None:
        self.parts = parts
        self.prices = prices
        self.principal = principal
        self._owners = Owners(parts, cluster)

    @property
    def closed(self) -> bool:
        """Whether somebody has begun to close, and has said so here."""
        return self._owners.closed

    @closed.setter
    def closed(self, closed: bool) -> None:
        self._owners.closed = closed

    @property
    def told_of_loss(self) -> list[Callable[[], None]]:
        """Who hears that this process hosts nothing any more."""
        return self._owners.told_of_loss

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
        return self._owners.address

    async def open(
        self, store: str | EventStore, *, take_over: bool, clock: Callable[[], int] | None
    ) -> None:
        """Open the store and begin to host, or attach to whoever does."""
        await self._owners.open(store, take_over=take_over, clock=clock)

    async def shut_down(self) -> None:
        """Stop hosting, and answer whoever still waits."""
        try:
            await self._owners.close()
        finally:
            await self._leave()

    async def _leave(self) -> None:
        try:
            if self.adapter is not None:
                await self.adapter.close()
        finally:
            await self._owners.leave()

    @property
    def serving(self) -> Serving:
        """The half in use. Raises ``StoreError`` (``closed``)."""
        return self._owners.serving

    def failure(self) -> StoreError | None:
        """Why this process hosts nothing any more, from any thread; None while it does, or looks for the next owner."""
        return self._owners.failure()

    def host_of(self) -> Host:
        """This process's host, from any thread. Raises ``StoreError`` (``closed``, ``attached``)."""
        serving = self.serving
        if not isinstance(serving, Owning):
            raise StoreError(
                "attached",
                "another process owns the store and hosts its runs",
                path=shown_url(self._owners.url),
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
        return await self._owners.ask(lambda serving: serving.submit(run_id, command))

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
        return await self._owners.ask(
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

        await self._owners.ask(turn)

    # --- runs ------------------------------------------------------------------------------------------------------

    async def start(self, input: str, options: StartOptions, *, dense: bool = False) -> str:
        """Begin a run; gives its id."""
        event, encoded, given_run_id = self._begun(input, options, dense=dense)
        again = False

        async def begin(serving: Serving) -> None:
            nonlocal again
            asked_before, again = again, True
            await serving.begin_run(event, encoded, given_run_id=given_run_id, again=asked_before)

        await self._owners.ask(begin)
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
        _ = self.serving  # once closed, that is what is said first
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

        return await self._owners.ask(read)

    async def token_data(self, run_id: str, turn: int) -> bytes | None:
        """As ``Runtime.token_data``."""
        return await self._owners.ask(lambda serving: token_data_of(serving.store, run_id, turn))

    async def result(self, run_id: str, timeout_s: float | None, until: Until) -> Result:
        """Wait for a run; raises as ``Runtime.result``."""
        loop = asyncio.get_running_loop()
        end = None if timeout_s is None else loop.time() + timeout_s

        async def wait(serving: Serving) -> Result:
            return await serving.result(run_id, None if end is None else max(0.0, end - loop.time()), until)

        return await self._owners.ask(wait, within_s=None, end_s=end)

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
        return await self._owners.follow(
            lambda serving: committed_from(serving.store, run_id, after_seq, row_seq, until),
            within_s=OWNER_ANSWER_S,
        )

    async def _insist_on_a_host(self, run_id: str, until: Until) -> None:
        """Whether anybody can carry it on is asked now and then, or a reader could wait for ever."""
        with contextlib.suppress(StillRunning):
            await self._owners.follow(lambda serving: serving.result(run_id, 0.0, until))

    async def _grown(self, run_id: str, after_seq: int, timeout_s: float) -> bool:
        """Wait for an append; False if none came in time."""
        return await self._owners.follow(
            lambda serving: serving.committed_after(run_id, after_seq, timeout_s)
        )

    async def _news(self, run_id: str, after_seq: int, mark: Mark, elsewhere: str) -> News:
        """Wait for an append, or for something that is shown."""
        return await self._owners.follow(
            lambda serving: serving.news(run_id, after_seq, mark, FOLLOW_S, elsewhere)
        )


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
