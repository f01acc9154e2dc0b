"""What other processes did in the store, found by looking: runs made ready, switches turned, commands for our hosts.

A notification only makes the next look come sooner. One that is lost, or never sent, costs ``LOOK_S`` at most; appends
send none, because each NOTIFY takes a lock of the whole server at its commit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from secrets import token_bytes
from typing import Any, Final, Protocol

import msgspec

from ..runtime.errors import BoundloopError, StoreError
from . import postgres_rows as sql
from .port import SubmitHandler
from .postgres_link import Connection
from .socket_protocol import Failure, error_of, failure_of
from .text_columns import from_column, to_column

LOOK_S: Final = 0.25
"""From one look to the next while there is something to look for."""

GOING: Final = frozenset(("host_lost", "closed"))
"""Codes of a host that decides nothing any more."""

ANSWER_WAIT_S: Final = 30.0
"""How long a live host may take to answer a command of another process."""

LOOK_READY_MAX: Final = 1_000

OLD_COMMAND_MS: Final = 600_000
"""An answer that nobody has fetched for so long is removed."""

_STATE: Final = (
    "SELECT server_ms() AS now_ms, (SELECT switches_version FROM identity) AS switches_version, "
    "EXISTS (SELECT FROM commands WHERE host_id = ANY ($1) AND answer IS NULL) AS asked"
)
_MARKED: Final = (
    "SELECT run_id, ready_at_ms AS place FROM runs WHERE ready_at_ms IS NOT NULL AND damaged = '' "
    "AND owner = ANY ($1) ORDER BY ready_at_ms LIMIT $2"
)
_ASKED: Final = (
    "SELECT host_id, ask_id, run_id, command_id, command FROM commands "
    "WHERE host_id = ANY ($1) AND answer IS NULL ORDER BY asked_at_ms LIMIT 100"
)
_ASK: Final = (
    "WITH told AS (SELECT pg_notify($7, '')), "
    "old AS (DELETE FROM commands WHERE asked_at_ms < coalesce($6, server_ms()) - $8) "
    "INSERT INTO commands SELECT $1, $2, $3, $4, $5, coalesce($6, server_ms()) FROM told"
)
_OWNER: Final = (
    "SELECT runs.owner, hosts.host_id IS NOT NULL AS lives FROM runs LEFT JOIN hosts "
    "ON host_id = owner AND expires_at_ms > coalesce($2, server_ms()) WHERE run_id = $1"
)
_ANSWER: Final = (
    "WITH told AS (SELECT pg_notify($4, '')) "
    "UPDATE commands SET answer = $3 FROM told WHERE host_id = $1 AND ask_id = $2"
)
_ANSWERED: Final = "SELECT answer FROM commands WHERE host_id = $1 AND ask_id = $2"
_FORGET: Final = "DELETE FROM commands WHERE host_id = $1 AND ask_id = $2"


class _Told(msgspec.Struct, frozen=True, array_like=True):
    """A host's answer to a command as it is stored."""

    answer: bytes
    failure: Failure | None = None


class Watched(Protocol):
    """The store, as far as it is looked at here."""

    on_submit: SubmitHandler | None

    async def read_with(self, call: Callable[[Connection], Awaitable[Any]], seconds: float = ...) -> Any: ...

    async def write_with(self, call: Callable[[Connection], Awaitable[Any]]) -> Any: ...

    def given_ms(self) -> int | None: ...

    def told_ready(self, run_ids: list[str]) -> None: ...

    async def told_switches(self, version: int) -> None: ...


class PostgresWatch:
    """``hosts``: the owner rows that this process stands for, as they are in the store."""

    def __init__(self, store: Watched, channel: str) -> None:
        self.hosts: set[str] = set()
        self._store = store
        self._channel = channel
        self._known: set[tuple[str, int]] = set()
        self._told_since: set[tuple[str, int]] = set()
        self._hint = asyncio.Event()
        self._answering: dict[bytes, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._look_on())

    def hint(self, *_: object) -> None:
        """There may be something to see."""
        self._hint.set()

    def announced(self, woken: list[tuple[str, int]]) -> None:
        """Whoever listens here has heard of these."""
        self._known.update(woken)
        self._told_since.update(woken)

    async def close(self) -> None:
        """Look no more. Commands that are being decided are waited for: they may be done already."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._answering:
            await asyncio.wait(self._answering.values(), timeout=ANSWER_WAIT_S)

    # --- looking ---------------------------------------------------------------------------------------------------

    async def _look_on(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._hint.wait()
            self._hint.clear()
            with contextlib.suppress(BoundloopError):  # whoever needs the store hears of it; looking goes on
                await self._look()

    async def _look(self) -> None:
        hosts = sorted(self.hosts)
        state = await self._store.read_with(lambda connection: connection.fetchrow(_STATE, hosts))
        await self._store.told_switches(state["switches_version"])
        if state["asked"] and self._store.on_submit is not None:
            for row in await self._store.read_with(lambda connection: connection.fetch(_ASKED, hosts)):
                if row["ask_id"] not in self._answering:
                    self._answer(row)
        self._told_since.clear()
        given_ms = self._store.given_ms()
        rows = await self._store.read_with(
            lambda connection: connection.fetch(sql.READY, given_ms, LOOK_READY_MAX)
        )
        rows += await self._store.read_with(
            lambda connection: connection.fetch(_MARKED, hosts, LOOK_READY_MAX)
        )
        found = {(from_column(row["run_id"]), row["place"]) for row in rows}
        new = sorted(found - self._known - self._told_since, key=lambda one: one[1])
        self._known = found
        if new:
            self._store.told_ready([run_id for run_id, _ in new])

    # --- commands of other processes -----------------------------------------------------------------------------------

    def _answer(self, row: Any) -> None:
        ask_id: bytes = row["ask_id"]
        task = asyncio.get_running_loop().create_task(self._decide(row))
        self._answering[ask_id] = task
        task.add_done_callback(lambda _: self._answering.pop(ask_id, None))

    async def _decide(self, row: Any) -> None:
        handler = self._store.on_submit
        if handler is None:
            return
        try:
            told = _Told(
                await handler(from_column(row["run_id"]), from_column(row["command_id"]), row["command"])
            )
        except Exception as error:  # noqa: BLE001  it travels to whoever asked
            if isinstance(error, StoreError) and error.code in GOING:
                return  # whoever asked finds out who has the run next
            told = _Told(b"", failure_of(error))
        with contextlib.suppress(StoreError):  # it is asked again: the command is told apart by its id
            await self._store.write_with(
                lambda connection: connection.execute(
                    _ANSWER, row["host_id"], row["ask_id"], msgspec.msgpack.encode(told), self._channel
                )
            )

    async def submit(self, run_id: str, command_id: str, command: bytes) -> bytes | None:
        """The answer of the live host of another process that has the run; None if none has it. Raises what the host
        raised, and ``StoreError`` (``host_silent``) if a live host doesn't answer: submit it again under the same id."""
        give_up_at = asyncio.get_running_loop().time() + ANSWER_WAIT_S
        while (host := await self._other_host(run_id)) is not None:
            ask_id = token_bytes(16)
            try:
                await self._store.write_with(
                    lambda connection, host=host, ask_id=ask_id: connection.execute(  # type: ignore[misc]  # mypy infers no type for a lambda with defaults
                        _ASK,
                        host,
                        ask_id,
                        to_column(run_id),
                        to_column(command_id),
                        command,
                        self._store.given_ms(),
                        self._channel,
                        OLD_COMMAND_MS,
                    )
                )
                told = await self._told(run_id, host, ask_id, give_up_at)
            finally:
                with contextlib.suppress(StoreError):
                    await asyncio.shield(self._forget(host, ask_id))
            if told is not None:
                if told.failure is not None:
                    raise error_of(told.failure)
                return told.answer
        return None

    async def _forget(self, host: str, ask_id: bytes) -> None:
        await self._store.write_with(lambda connection: connection.execute(_FORGET, host, ask_id))

    async def _other_host(self, run_id: str) -> str | None:
        """The live host that has the run, as it is in the store, if it is none of ours."""
        found = await self._store.read_with(
            lambda connection: connection.fetchrow(_OWNER, to_column(run_id), self._store.given_ms())
        )
        if found is None or not found["lives"] or found["owner"] in self.hosts:
            return None
        owner: str = found["owner"]
        return owner

    async def _told(self, run_id: str, host: str, ask_id: bytes, give_up_at: float) -> _Told | None:
        """None: the host has the run no more, or has forgotten the question with its row."""
        loop = asyncio.get_running_loop()
        while True:
            self._hint.clear()
            answer = await self._store.read_with(
                lambda connection: connection.fetchrow(_ANSWERED, host, ask_id)
            )
            if answer is None:
                return None
            if answer["answer"] is not None:
                return msgspec.msgpack.decode(answer["answer"], type=_Told)
            if await self._other_host(run_id) != host:
                return None
            if loop.time() >= give_up_at:
                raise StoreError("host_silent", "the run's host lives and doesn't answer", path=run_id)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._hint.wait()
