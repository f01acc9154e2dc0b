"""The owners of a Runtime's store, one after the other: who serves it now, and the search for the next when that one is lost.

In a cluster the first Runtime on a store is its owner, the others go through it; when the owner is gone the next that
notices takes its place. Without a cluster a store that is owned is refused. Where a server keeps the store, a Runtime whose host had to
stop because the server was away has the next one as soon as it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from ..eventstore.location import parse_url
from ..eventstore.port import EventStore
from ..eventstore.shown_url import shown_url
from ..runtime.commands import CommandAnswer, OutsideCommand
from ..runtime.errors import StoreError
from ..runtime.events import RunStarted
from ..runtime.state import State
from .attached import GONE, NOT_SERVING, Attached
from .loop_thread import closed
from .owning import Owning, Parts
from .provisional import Mark
from .result import Result
from .server_use import ServerUse
from .streaming import News
from .waiting import Until

T = TypeVar("T")

LOGGER: Final = logging.getLogger("boundloop.store")
"""That a store is lost to a Runtime, and that its next host serves: each once, however often it is tried meanwhile."""

MOVES_MAX: Final = 60
"""Owners that one call may be asked of, one after the other."""

MOVE_PAUSE_S: Final = 0.5
MOVE_S: Final = 30.0
"""How long the next owner is looked for: its process may have to be started anew."""

MOVE_LEAST_S: Final = 5.0
"""So long it is looked for by a call, too, that is to take less."""

OPENING_S: Final = 120.0
"""How long one that is there may take to open or to close: executors that come up, a messenger on a node that is slow."""

OWNER_ANSWER_S: Final = 30.0
"""How long a call that waits for nothing may take through another process."""

FINAL: Final = frozenset(("other_store", "other_actor"))
"""What no further try changes."""

UNREACHABLE: Final = "store_unreachable"
"""The server can't be reached, and nothing was sent."""


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


class Owners:
    """Who serves the store now, and who is next. All belongs on the loop but what any thread may read: ``serving``, ``failure``,
    ``url``, and ``closed``, which is set by whoever begins to close. ``told_of_loss`` are called when this process's host is lost
    and nobody looks for a next one.

    There is one search at a time, for however many wait for it. After each try it is seen whether it has taken ``MOVE_S``, or
    ``OPENING_S`` if an owner is there and opens; then all who wait are told why. A call with a bound waits no longer than that, or
    ``MOVE_LEAST_S`` if that is more; each is asked of ``MOVES_MAX`` owners at most. Beside the calls a search begins anew,
    ``MOVE_PAUSE_S`` after the last, until there is an owner, no further try helps, or this Runtime closes: runs may wait for one
    that nobody asks about.

    A call may have reached an owner that went before it answered, and is made again: only what is idempotent is asked so. Nothing
    here is stored: if the process dies, amid a search too, what it held of the store is free, or expires, for whoever looks next."""

    def __init__(self, parts: Parts, cluster: Callable[[], StoreUse] | None) -> None:
        self.url = ""
        self.closed = False
        self.told_of_loss: list[Callable[[], None]] = []
        self._parts = parts
        self._join = cluster
        self._use: StoreUse | None = None
        self._serving: Serving | None = None
        self._search: asyncio.Task[None] | None = None
        self._mover: asyncio.Task[None] | None = None
        self._clock: Callable[[], int] | None = None
        self._finding: asyncio.Future[Serving] | None = None
        self._bug: StoreError | None = None
        self._loss_told: Serving | None = None

    @property
    def address(self) -> str:
        """Of the cluster in use; empty without one."""
        return "" if self._use is None else self._use.address

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

    # --- the first --------------------------------------------------------------------------------------------------

    async def open(
        self, store: str | EventStore, *, take_over: bool, clock: Callable[[], int] | None
    ) -> None:
        """Open the store and begin to host, or attach to whoever does."""
        self._clock = clock
        if isinstance(store, str):
            self.url = store
            if self._join is not None:
                self._use = self._join()
            elif parse_url(store).kind == "postgres":
                self._use = ServerUse()
        try:
            self._serving = await self._found(store, take_over, clock)
        except BaseException:
            await self.leave()
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
                self._parts, store, take_over=take_over, clock=clock, lost=self._owner_lost
            )
        return await Owning.open(self._parts, store, take_over=take_over, clock=clock, lost=self._owner_lost)

    # --- from owner to owner ---------------------------------------------------------------------------------------

    async def ask(
        self,
        call: Callable[[Serving], Awaitable[T]],
        *,
        within_s: float | None = OWNER_ANSWER_S,
        end_s: float | None = None,
    ) -> T:
        """Make a call that may be made again with the next owner. ``within_s``: how long one may take through another
        process; ``end_s``: until when a next owner is waited for, on the loop's clock, and for ``MOVE_LEAST_S`` at least. Raises
        what the call raises, and ``StoreError`` (``owner_gone``, ``owner_silent``, and what kept the next owner away)."""
        if end_s is not None:
            end_s = max(end_s, asyncio.get_running_loop().time() + MOVE_LEAST_S)
        for _ in range(MOVES_MAX):
            serving = self.serving
            try:
                if serving.attached and within_s is not None:
                    return await self._answered(call(serving), within_s)
                return await call(serving)
            except StoreError as error:
                if error.code not in GONE or not self._may_move(serving) or self.closed:
                    raise
                if serving is self._serving:
                    self._owner_lost()  # whatever becomes of this call, somebody goes on looking
                try:
                    async with asyncio.timeout_at(end_s):
                        await self._move_on(serving)
                except TimeoutError:
                    raise error from None
        raise StoreError("owner_gone", "owners keep going away", path=shown_url(self.url))

    async def follow(self, call: Callable[[Serving], Awaitable[T]], *, within_s: float | None = None) -> T:
        """As ``ask``, for whoever only looks on: a server that is away is waited for as a wait does it, until this process's host has
        to stop, ``MOVE_S`` at most, and then for the next host."""
        return await self.ask(lambda serving: self._through(serving, call), within_s=within_s)

    async def _through(self, serving: Serving, call: Callable[[Serving], Awaitable[T]]) -> T:
        """The call, again and again while the server is away. Raises what the call raises, and ``host_lost`` once that is so."""
        time = asyncio.get_running_loop().time
        away_at: float | None = None
        while True:
            if self.closed:
                raise closed()
            failed = serving.failed if isinstance(serving, Owning) and self._may_move(serving) else None
            if failed is not None:
                raise failed
            try:
                return await call(serving)
            except StoreError as error:
                if (
                    error.code != UNREACHABLE
                    or not isinstance(serving, Owning)
                    or not self._may_move(serving)
                ):
                    raise
                if away_at is None:
                    away_at = time()
                if time() - away_at >= MOVE_S:
                    raise
            await asyncio.sleep(MOVE_PAUSE_S)

    async def _answered(self, call: Awaitable[T], within_s: float) -> T:
        time = asyncio.timeout(within_s)
        try:
            async with time:
                return await call
        except TimeoutError as error:
            if not time.expired():
                raise
            raise StoreError(
                "owner_silent", "the store's owner does not answer", path=shown_url(self.url)
            ) from error

    def _may_move(self, serving: Serving) -> bool:
        if self._bug is not None:
            return False
        return serving.attached or (self._use is not None and not serving.broken)

    def _owner_lost(self) -> None:
        """Found out without a call: the next owner is looked for at once, so that runs don't wait for one. Where there is
        none, whoever only serves is told."""
        self._log_loss()
        if self._serving is not None and not self._may_move(self._serving):
            self._tell_of_loss()
        elif not self.closed and (self._mover is None or self._mover.done()):
            self._mover = asyncio.create_task(self._move_quietly())

    def _log_loss(self) -> None:
        serving = self._serving
        if self.closed or not isinstance(serving, Owning) or serving is self._loss_told:
            return
        if serving.failed is None:
            return
        self._loss_told = serving
        why = " ".join(serving.failed.message.split())
        LOGGER.warning("%s is lost to this Runtime: %s", self._shown, why)

    @property
    def _shown(self) -> str:
        return f"the store {shown_url(self.url)}" if self.url else "the store"

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
                self._serving = await self._found_now(self.url, False, self._clock)
            except StoreError as error:
                last = error
            except Exception as error:  # whatever Ray raises while the cluster is not itself
                if self._use is not None and not self._use.foreign_errors:
                    self._bug = StoreError("host_lost", f"no next host: unexpected {type(error).__name__}")
                    self._bug.__cause__ = error
                    self._tell_of_loss()
                    raise self._bug from error
                last = StoreError("owner_gone", f"no next owner: {error}"[:300], path=shown_url(self.url))
            else:
                if self._loss_told is from_:
                    LOGGER.warning("%s is back: this Runtime's next host serves", self._shown)
                return
            if self._is_final(last, time() - began):
                raise last
            await asyncio.sleep(MOVE_PAUSE_S)

    # --- the last ---------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End the search, stop hosting, and answer whoever still waits."""
        if self._mover is not None:
            self._mover.cancel()
        if self._finding is not None:
            self._finding.cancel()
        if self._search is not None:
            self._search.cancel()
            await asyncio.gather(self._search, return_exceptions=True)
        ends = [serving.close() for serving in self._open_ones()]
        failures = [error for error in await asyncio.gather(*ends, return_exceptions=True) if error]
        if failures:
            raise failures[0]

    def _open_ones(self) -> list[Serving]:
        """What is in use, and what was found just as the search for it was ended."""
        found = self._finding
        late = found is not None and found.done() and not found.cancelled() and found.exception() is None
        both = [self._serving, found.result() if found is not None and late else None]
        return list({id(one): one for one in both if one is not None}.values())

    async def leave(self) -> None:
        """Give up what outlives each owner."""
        if self._use is not None:
            await self._use.leave()


def _unless_ended_by_closing() -> BaseException:
    """What is raised for a cancellation: itself if the caller was cancelled, or that ``close`` put an end to what it waited for."""
    task = asyncio.current_task()
    return asyncio.CancelledError() if task is not None and task.cancelling() else closed()


def _looked_at(done: asyncio.Task[None]) -> None:
    """Whoever waited for it may have gone away meanwhile: its error is no complaint of the loop's."""
    if not done.cancelled():
        done.exception()
