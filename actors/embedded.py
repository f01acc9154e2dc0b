"""A Runtime's half that lives on its loop: the store, the host, and those who wait. Runtime and its twin call into it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from ..adapters.port import ModelAdapter
from ..eventstore.history import load_run
from ..eventstore.location import open_store
from ..eventstore.port import EventStore
from ..runtime.commands import CommandAnswer, OutsideCommand
from ..runtime.errors import (
    ConflictError,
    DeclarationError,
    HistoryRefused,
    OwnedError,
    RunNotFound,
    StoreError,
)
from ..runtime.policy import Policy
from ..runtime.prices import PriceTable
from ..runtime.start import start_run
from ..runtime.state import State
from ..runtime.toolbox import Toolbox
from . import wishes
from .fit import other_application
from .host import Host
from .loop_thread import closed
from .result import Result, result_of
from .run_options import Asked, StartOptions
from .waiting import StillRunning, Until, Waiters, rests
from .wishes import CommandRefused

LOOK_ELSEWHERE_S: Final = 2.0


class Embedded:
    """All methods but ``host_of`` belong on the loop. ``closed`` is set by whoever begins to close."""

    def __init__(
        self,
        *,
        toolbox: Toolbox,
        policy: Policy,
        prices: PriceTable,
        adapter: ModelAdapter | None,
        tenant: str,
        principal: str,
        application: str,
        permissions_of: Callable[[str, str], frozenset[str]],
        groups: Mapping[str, int] | None,
        dependencies: Mapping[str, Any] | None,
    ) -> None:
        self.toolbox = toolbox
        self.policy = policy
        self.prices = prices
        self.adapter = adapter
        self.tenant = tenant
        self.principal = principal
        self.application = application
        self.closed = False
        self._permissions_of = permissions_of
        self._groups = groups
        self._dependencies = dependencies
        self.waiters = Waiters()
        self._host: Host | None = None
        self._store: EventStore | None = None
        self._owns_store = False

    async def open(
        self, store: str | EventStore, *, take_over: bool, clock: Callable[[], int] | None
    ) -> None:
        """Open the store and begin to host."""
        opened = await self._opened(store, take_over, clock) if isinstance(store, str) else store
        self._store = opened
        self._owns_store = isinstance(store, str)
        if not isinstance(store, str):
            _listen(opened, self._on_submit, self._on_ready)
        host = Host(
            opened,
            toolbox=self.toolbox,
            policy=self.policy,
            adapter=self.adapter,
            permissions_of=self._permissions_of,
            application=self.application,
            groups=self._groups,
            dependencies=self._dependencies,
        )
        host.parked_watchers.append(self._parked)
        host.refused_watchers.append(self.waiters.fail)
        host.failed_watchers.append(self.waiters.fail_all)
        try:
            # One file, one owner: whoever held a host row in it before is gone, proved by the lock that we hold.
            dead = [row.host_id for row in await opened.hosts()] if self._owns_store else []
            await host.open(dead_hosts=dead)
        except BaseException:
            if self._owns_store:
                await opened.close()
            raise
        self._host = host

    async def _opened(self, url: str, take_over: bool, clock: Callable[[], int] | None) -> EventStore:
        try:
            return await open_store(
                url, take_over=take_over, on_submit=self._on_submit, on_ready=self._on_ready, clock=clock
            )
        except OwnedError as error:
            if not take_over:
                error.message += "; end it, or take the file over (take_over=True, --take-over)"
            raise

    async def shut_down(self) -> None:
        """Stop hosting, and answer whoever still waits."""
        try:
            if self._host is not None:
                await self._host.close()
            if self.adapter is not None:
                await self.adapter.close()
        finally:
            # Whatever failed above, the file is given back.
            if self._store is not None and self._owns_store:
                await self._store.close()
            self.waiters.fail_all(closed())

    def host_of(self) -> Host:
        """The host, from any thread. Raises ``StoreError`` (``closed``)."""
        if self._host is None or self.closed:
            raise closed()
        return self._host

    async def submit(self, run_id: str, command: OutsideCommand) -> CommandAnswer:
        """Hand in a command; a refusal is an answer."""
        return await self.host_of().submit(run_id, command)

    async def command(self, run_id: str, command: OutsideCommand) -> int:
        """Hand in a command; gives the seq of its event. Raises ``CommandRefused``."""
        answer = await self.submit(run_id, command)
        if not answer.accepted:
            raise CommandRefused(answer.code, answer.message, path=run_id)
        return answer.seq

    async def switch(self, scope: str, target: str, by: str, reason: str, *, on: bool) -> None:
        """Turn a kill switch."""
        host = self.host_of()
        await host.set_switch(wishes.switch(scope, target, by, reason, host.store.now_ms()), on=on)

    async def start(self, input: str, options: StartOptions) -> str:
        """Begin a run; gives its id."""
        host = self.host_of()
        asked = Asked(
            input,
            options,
            tenant=self.tenant,
            principal=self.principal,
            application=self.application,
        )
        if self.adapter is None:
            raise DeclarationError("missing_model", "this Runtime has no model", path="model")
        pins = asked.pins(self.toolbox, self.policy, self.adapter, self.prices, self._permissions_of)
        event, _, encoded = start_run(asked.spec, pins)
        if asked.given_run_id and await host.store.run(event.run_id) is not None:
            raise ConflictError("run_exists", "a run with this id exists", path=event.run_id)
        await host.start_run(event, encoded, root_id=event.run_id)
        return event.run_id

    async def run(self, input: str, options: StartOptions) -> Result:
        """Begin a run and wait until it rests."""
        return await self.result(await self.start(input, options), None, "rest")

    async def load(self, run_id: str) -> State:
        """The state as committed now. Raises ``RunNotFound``."""
        state, _ = await load_run(self.host_of().store, run_id)
        return state

    async def result(self, run_id: str, timeout_s: float | None, until: Until) -> Result:
        """Wait for a run; raises as ``Runtime.result``."""
        host = self.host_of()
        # Waits first and looks then: a run that is let go of in between is heard of.
        future = self.waiters.add(run_id, until)
        looking: asyncio.Task[None] | None = None
        try:
            if host.hosted(run_id) is None:
                rested = await self._rested(host, run_id, until)
                if rested is not None:
                    return rested
            looking = asyncio.create_task(self._look_elsewhere(host, run_id, until, future))
            await asyncio.wait((future,), timeout=timeout_s)
            if future.done():
                return future.result()
            raise StillRunning(result_of(host.hosted(run_id) or await self.load(run_id)), timeout_s)
        finally:
            if looking is not None:
                looking.cancel()
            self.waiters.remove(run_id, future)

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
        state = await self.load(run_id)
        result = result_of(state)
        if host.hosted(run_id) is not None:
            return None
        if not row.ready and rests(result, until):
            return result
        why_not = host.fit.misfit(state.application, state.pins)
        if why_not:
            raise other_application(run_id, why_not)
        return None

    async def _look_elsewhere(
        self, host: Host, run_id: str, until: Until, future: asyncio.Future[Result]
    ) -> None:
        """What another host of this store does with the run is told to nobody here: look now and then."""
        while not future.done():
            await asyncio.sleep(LOOK_ELSEWHERE_S)
            if host.hosted(run_id) is not None:
                continue
            try:
                rested = await self._rested(host, run_id, until)
            except StoreError:
                continue  # if the store stays away the host says so
            except Exception as error:  # noqa: BLE001  for whoever waits
                if not future.done():
                    future.set_exception(error)
                return
            if rested is not None and not future.done():
                future.set_result(rested)

    def _parked(self, run_id: str, state: State) -> None:
        """A driver let go of a run: whoever waits for that is answered."""
        if self._host is None or not self.waiters.count(run_id):
            return
        failure = self._host.failures.get(run_id)
        if failure is not None:
            self.waiters.fail(run_id, failure)
        else:
            self.waiters.tell(run_id, result_of(state))

    async def _on_submit(self, run_id: str, command_id: str, data: bytes) -> bytes:
        return await self.host_of().on_submit(run_id, command_id, data)

    def _on_ready(self, run_ids: Iterable[str]) -> None:
        if self._host is not None:
            self._host.on_ready(run_ids)


def _listen(store: Any, on_submit: Any, on_ready: Any) -> None:
    """A store that was opened by the application: hear what it makes ready, as an owned one."""
    store.on_submit = on_submit
    store.on_ready = on_ready
