"""The half of a Runtime that goes through another process's: the owner of the store hosts, this one asks.

Every question may be asked again: starts and commands are idempotent by their ids, waits change nothing. If the owner goes
away, ``lost`` is called once and every call raises ``StoreError`` (``owner_gone``) until the Runtime has found, or become, the
next one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import msgspec

from ..eventstore.admission import create_unhosted
from ..eventstore.history import load_run
from ..eventstore.port import EventStore
from ..eventstore.remote import RemoteStore
from ..eventstore.submit import decode_answer
from ..runtime.commands import CommandAnswer, OutsideCommand, encode_command
from ..runtime.errors import ConflictError, StoreError
from ..runtime.events import RunStarted
from ..runtime.state import State
from .fit import other_application
from .owning import ASKED_WAIT_S_MAX, FitQuestion, NewsQuestion, WaitQuestion
from .provisional import Mark
from .result import Result, result_of
from .streaming import News
from .waiting import StillRunning, Until

PING_S: Final = 2.0
"""How often an idle connection says something. It keeps it open, and tells soon that the owner is gone."""

ANSWER_S: Final = 20.0
"""How long the owner may take over a question beyond what it was asked to wait: one that is stopped never answers."""

WAITS_MAX: Final = 900
"""Waits that are held open at the owner at once; further ones come next."""

FITS_MAX: Final = 1_000
"""Pins that are remembered to fit the owner's application, so that they aren't sent again."""

NOT_SERVING: Final = "owner_not_serving"
"""An owner is there: it is about to serve, or to make room for the next."""

GONE: Final = frozenset(("owner_gone", NOT_SERVING, "store_closed", "host_lost"))


class Attached:
    """Made by ``open``. ``lost`` hears once that the owner is gone."""

    attached = True
    broken = False

    def __init__(self, store: RemoteStore, lost: Callable[[], None]) -> None:
        self._store = store
        self._lost = lost
        self._fits: set[tuple[str, bytes]] = set()
        self._waits = asyncio.Semaphore(WAITS_MAX)
        self._pinging = asyncio.create_task(self._ping())

    @classmethod
    async def open(cls, store: RemoteStore, lost: Callable[[], None]) -> Attached:
        """Take the connection over. Raises ``StoreError``: ``owner_not_serving`` if its owner is about to open or to close,
        ``owner_gone`` if it doesn't answer, or is there for one command. The connection is closed then."""
        try:
            async with asyncio.timeout(ANSWER_S):
                await store.ask("attach", b"")
        except (StoreError, TimeoutError) as error:
            await store.close()
            code = (
                NOT_SERVING if isinstance(error, StoreError) and error.code == NOT_SERVING else "owner_gone"
            )
            raise StoreError(code, f"the owner serves nobody now: {error}"[:300], path=store.path) from error
        return cls(store, lost)

    @property
    def store(self) -> EventStore:
        """The store, through its owner."""
        return self._store

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_S)
            try:
                await self._store.next_wake_ms()
            except StoreError as error:
                if error.code in GONE:
                    self._lost()
                    return

    async def close(self) -> None:
        """Hang up; runs go on where they are."""
        self._pinging.cancel()
        await self._store.close()

    async def begin_run(
        self, event: RunStarted, encoded_pins: bytes, *, given_run_id: bool, again: bool
    ) -> None:
        """Leave a run for the owner to host; returns when ``run_started`` is durable. Raises ``ConflictError`` also if
        the owner's application can't carry it, ``Overloaded``; nothing is written then."""
        fitting = (event.application, event.pins_sha256)
        question = FitQuestion(*fitting, b"" if fitting in self._fits else encoded_pins)
        why_not = (await self._ask("fit", question)).decode()
        if why_not:
            raise other_application(event.run_id, why_not)
        if len(self._fits) < FITS_MAX:
            self._fits.add(fitting)
        created = await create_unhosted(self._store, event, encoded_pins, root_id=event.run_id)
        if not created and given_run_id and not again:
            raise ConflictError("run_exists", "a run with this id exists", path=event.run_id)

    async def submit(self, run_id: str, command: OutsideCommand) -> CommandAnswer:
        """Hand in a command; a refusal is an answer."""
        return decode_answer(await self._store.submit(run_id, command.command_id, encode_command(command)))

    def hosted(self, run_id: str) -> State | None:
        """Nothing is hosted here."""
        return None

    async def result(self, run_id: str, timeout_s: float | None, until: Until) -> Result:
        """Wait for a run; raises as ``Runtime.result``."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = ASKED_WAIT_S_MAX if end is None else min(ASKED_WAIT_S_MAX, end - time.monotonic())
            answer = await self._wait(WaitQuestion(run_id, until, 0, max(left, 0.0)))
            if answer:
                return msgspec.msgpack.decode(answer, type=Result)
            if end is not None and time.monotonic() >= end:
                state, _ = await load_run(self._store, run_id)
                raise StillRunning(result_of(state), timeout_s)

    async def committed_after(self, run_id: str, after_seq: int, timeout_s: float) -> bool:
        """Wait until the run has more than ``after_seq`` events; False if the time was over first."""
        return bool(await self._wait(WaitQuestion(run_id, "commit", after_seq, timeout_s)))

    async def news(
        self, run_id: str, after_seq: int, mark: Mark, timeout_s: float, elsewhere: str = ""
    ) -> News:
        """As ``Owning.news``, asked of the owner."""
        async with self._waits:
            question = NewsQuestion(run_id, after_seq, mark, timeout_s, elsewhere)
            return msgspec.msgpack.decode(await self._ask("news", question, timeout_s), type=News)

    async def _wait(self, question: WaitQuestion) -> bytes:
        async with self._waits:
            return await self._ask("wait", question, question.timeout_s)

    async def _ask(
        self, kind: str, question: FitQuestion | WaitQuestion | NewsQuestion, wait_s: float = 0.0
    ) -> bytes:
        try:
            async with asyncio.timeout(wait_s + ANSWER_S):
                return await self._store.ask(kind, msgspec.msgpack.encode(question))
        except TimeoutError as error:
            raise StoreError(
                "owner_silent", "the store's owner does not answer", path=self._store.path
            ) from error
