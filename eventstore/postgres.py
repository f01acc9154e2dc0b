"""The store of clusters: a PostgreSQL database that every host uses directly. Nobody owns it.

At most two connections a process: one writes (``postgres_writer``), one reads and listens. Whoever hosts runs proves that
it lives by its owner row, by the server's clock; a writer that lost its run is fenced by the run's epoch, under the lock of
the run's row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar

import msgspec

from ..runtime.errors import BugError, ConflictError, DamagedFile, OwnedError, RunNotFound, StoreError
from ..runtime.ledger import LedgerRow
from . import postgres_rows as sql
from .chain import check_append, check_blob
from .port import (
    HOST_VALID_MS,
    AcquireAnswer,
    Acquired,
    Append,
    AppendAnswer,
    HostRow,
    NotFound,
    Owned,
    ReadyListener,
    RunFilter,
    RunRow,
    StoredAppend,
    SubmitHandler,
    Switch,
)
from .postgres_append import BLOB_PART_BYTES, blob_parts, ledger_row
from .postgres_clock import ServerClock
from .postgres_link import ANSWER_S, LONG_ANSWER_S, Connection, Cut, Link, WrongSettings, answered, connect
from .postgres_migrate import MIGRATION_S, MigrationCut, migrate, state_of
from .postgres_upkeep import PostgresUpkeep
from .postgres_url import PostgresPlace, parse_postgres_url
from .postgres_watch import PostgresWatch
from .postgres_writer import PostgresWriter, Search, Woken, hang_up, woken_of
from .rules import is_sound
from .text_columns import from_column, to_column

T = TypeVar("T")

TOGETHER_BYTES_MAX = 1024 * 1024
"""Blobs up to this sum go with their append or in one statement; of larger ones each part is a write of its own, so that
appends of other runs go between."""

READ_TRIES = 3
"""How often a read is tried whose connection ends under it or can't be made."""

SUBMIT_TRIES = 8
"""How often a command follows a run that hosts take up and give up meanwhile."""


class PostgresStore(PostgresUpkeep):
    """``postgresql://…``. Made by ``PostgresStore.open``.

    May be used from any event loop of this process; everything is done on the one that opened it, where ``on_ready`` is
    called too. Cancelling a caller doesn't cancel its write. A write whose connection ended before its answer raises
    ``StoreError`` (``commit_unknown``), and one that could not be sent ``store_unreachable``. ``clock`` (Unix milliseconds) is
    for tests; without, all time is the server's.
    """

    def __init__(
        self,
        place: PostgresPlace,
        *,
        clock: Callable[[], int] | None,
        on_submit: SubmitHandler | None,
        on_ready: ReadyListener | None,
    ) -> None:
        self.path = place.shown
        self.on_submit = on_submit
        self._place = place
        self._on_ready = on_ready
        self._clock = ServerClock(clock)
        self._loop = asyncio.get_running_loop()
        self._writer = PostgresWriter(place, self._clock, self._announce)
        self._watch = PostgresWatch(self, place.channel)
        self._reader: Link | None = None
        self._search = Search()
        self._reading = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        clock: Callable[[], int] | None = None,
        on_submit: SubmitHandler | None = None,
        on_ready: ReadyListener | None = None,
        must_exist: bool = False,
    ) -> PostgresStore:
        """Connect, and make the schema if it isn't there (unless it ``must_exist``). With a listener or a handler the store
        looks for what other processes did. Raises ``StoreUrlError``, ``WrongSettings``, ``NewerSchema``, ``DamagedFile`` or
        another ``StoreError``."""
        store = cls(parse_postgres_url(url), clock=clock, on_submit=on_submit, on_ready=on_ready)
        try:
            await store._open(must_exist)
        except BaseException:
            await store.close()
            raise
        return store

    async def _open(self, must_exist: bool) -> None:
        writer = self._writer
        try:
            connection = await self._migrated(must_exist)
            found: bytes = await answered(connection, connection.fetchval(sql.IDENTITY), self._place)
            await answered(connection, writer.read_switches(connection), self._place)
        except Cut as cut:
            raise StoreError("store_unreachable", str(cut), path=self.path) from cut
        writer.store_id = found
        writer.start()
        if self._on_ready is not None:
            self._watch.start()

    async def _migrated(self, must_exist: bool) -> Connection:
        """A connection to a schema of this version."""
        link = await self._writer.linked()
        try:
            await migrate(link.connection, self._place, must_exist=must_exist)
        except MigrationCut as cut:
            try:
                link = await self._writer.linked_after(link)
            except StoreError as error:
                raise StoreError(
                    "commit_unknown",
                    f"the connection ended while the schema was migrated ({cut}), and the server may be at it still: {error.message}"[
                        :500
                    ],
                    path=self.path,
                ) from cut
            if await state_of(link.connection, self._place) != "current":
                raise StoreError(
                    "migration_cut",
                    f"the connection ended while the schema was migrated, which may take {MIGRATION_S:.0f} s ({cut}). "
                    "The server's statement was ended: nothing was changed"[:500],
                    path=self.path,
                ) from cut
        return link.connection

    # --- how it is done --------------------------------------------------------------------------------------------

    async def _at_home(self, work: Callable[[], Awaitable[T]]) -> T:
        self._refuse_if_closing()
        if asyncio.get_running_loop() is self._loop:
            return await work()
        if self._loop.is_closed():
            raise StoreError("store_closed", "the loop of this store has ended", path=self.path)

        async def there() -> T:
            return await work()

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), self._loop))

    def _refuse_if_closing(self) -> None:
        if self._closing is not None:
            raise StoreError("store_closed", "the store is closed", path=self.path)

    async def read_with(self, call: Callable[[Connection], Awaitable[T]], seconds: float = ANSWER_S) -> T:
        """A read on the connection that reads. It sees everything that this process was told is committed. A caller that is
        cancelled stops waiting; the driver would have to make a third connection to cancel the statement."""
        return await self._at_home(lambda: self._read_through(call, seconds))

    async def _read_through(self, call: Callable[[Connection], Awaitable[T]], seconds: float) -> T:
        reading = self._loop.create_task(self._read(call, seconds, self._loop.time()))
        reading.add_done_callback(_heard)
        return await asyncio.shield(reading)

    async def _read(self, call: Callable[[Connection], Awaitable[T]], seconds: float, asked_s: float) -> T:
        async with self._reading:
            for attempt in range(READ_TRIES):
                self._refuse_if_closing()
                held = self._reader
                link: Link | None = None
                try:
                    link = await self._reading_link(asked_s)
                    self._refuse_if_closing()  # closing waits for what was begun, however long it takes
                    return await answered(link.connection, call(link.connection), self._place, seconds)
                except (Cut, WrongSettings) as cut:
                    now_s = self._loop.time()
                    # That an earlier connection is gone says nothing of the server: another one is tried in any case.
                    is_over = (link is None or link is not held) and now_s >= self._search.give_up_at(asked_s)
                    if is_over or attempt == READ_TRIES - 1:
                        if link is None:
                            self._search.miss(now_s, str(cut))
                        raise self._unreachable(str(cut)) from cut
            raise AssertionError

    def _unreachable(self, why: str) -> StoreError:
        return StoreError("store_unreachable", why[:300], path=self.path)

    async def _reading_link(self, asked_s: float) -> Link:
        if self._reader is not None and self._reader.connection.is_closed():
            self._reader, self._search.lost_s = None, self._loop.time()
        await self._writer.settled(asked_s)
        link = self._reader
        if link is None or link.connection.is_closed():
            if self._search.in_vain(asked_s):
                raise self._unreachable(self._search.missed)
            # The server may have gone and come back without what it had: the writer finds out. And where it is away, all who
            # read are told by when all are told.
            await self._writer.linked(asked_s)
            link = await connect(self._place, "boundloop reads")
            listening = link.connection.add_listener(self._place.channel, self._watch.hint)
            try:
                await answered(link.connection, listening, self._place)
            except BaseException:
                link.connection.terminate()
                raise
            self._reader = link
        return link

    async def write_with(self, call: Callable[[Connection], Awaitable[T]]) -> T:
        """A write of one statement."""
        return await self._at_home(lambda: self._writer.run(call))

    async def _waking(self, call: Callable[[Connection], Awaitable[Any]]) -> bool:
        """A write that answers with the runs it made ready; False if it answered with nothing."""
        text: str | None = await self.write_with(call)
        woken = woken_of(text)
        if woken:
            if asyncio.get_running_loop() is self._loop:
                self._announce(woken)
            else:
                self._loop.call_soon_threadsafe(self._announce, woken)
        return text is not None

    def _announce(self, woken: Woken) -> None:
        self._watch.announced(woken)
        self.told_ready([run_id for run_id, _ in woken])

    def told_ready(self, run_ids: list[str]) -> None:
        """For the watch."""
        if self._on_ready is not None:
            self._on_ready(list(dict.fromkeys(run_ids)))

    async def told_switches(self, version: int) -> None:
        """For the watch."""
        if version != self._writer.switches_version:
            await self.write_with(self._writer.read_switches)

    @property
    def on_ready(self) -> ReadyListener | None:
        """Who is told of runs made ready; may be set at any time, on the store's loop."""
        return self._on_ready

    @on_ready.setter
    def on_ready(self, listener: ReadyListener | None) -> None:
        self._on_ready = listener
        if listener is not None:
            self._watch.start()

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def given_ms(self) -> int | None:
        """For the watch."""
        return self._clock.given_ms()

    async def identity(self) -> str:
        return self._writer.store_id.hex()

    async def group_holds(self) -> dict[str, tuple[int, int]]:
        """As ``SqliteStore.group_holds``."""
        given_ms = self._clock.given_ms()
        rows = await self.read_with(lambda connection: connection.fetch(sql.GROUP_HOLDS, given_ms))
        return {from_column(row["name"]): (row["places"], row["until_ms"]) for row in rows}

    async def hold_groups(self, holds: Mapping[str, tuple[int, int]]) -> None:
        """As ``SqliteStore.hold_groups``."""
        names = [to_column(name) for name in holds]
        places, untils = [places for places, _ in holds.values()], [until for _, until in holds.values()]
        await self.write_with(lambda connection: connection.execute(sql.HOLD_GROUPS, names, places, untils))

    # --- the log ---------------------------------------------------------------------------------------------------

    async def append(self, request: Append) -> AppendAnswer:
        check_append(request)
        regressed = self._writer.heads.regressed.get(request.run_id)
        if regressed is not None:
            raise regressed
        uploaded = sum(len(data) for _, data in request.blobs) > TOGETHER_BYTES_MAX
        if uploaded:
            for digest, data in request.blobs:
                await self._upload(digest, data)
        if asyncio.get_running_loop() is self._loop and self._closing is None:
            answer: AppendAnswer = await self._writer.append(request, uploaded=uploaded)
            return answer
        return await self._at_home(lambda: self._writer.append(request, uploaded=uploaded))

    async def read(self, run_id: str, *, after_seq: int = 0, rows_max: int = 1_000) -> list[StoredAppend]:
        rows = await self.read_with(
            lambda connection: connection.fetch(sql.READ, to_column(run_id), after_seq, rows_max)
        )
        return [sql.stored_append(run_id, row) for row in rows]

    # --- rows of runs ----------------------------------------------------------------------------------------------

    async def run(self, run_id: str) -> RunRow | None:
        row = await self.read_with(lambda connection: connection.fetchrow(sql.RUN, to_column(run_id)))
        return None if row is None else sql.run_row(row)

    async def runs(self, where: RunFilter) -> list[RunRow]:
        after_key: int | None = None
        if where.after:
            after_key = await self.read_with(
                lambda connection: connection.fetchval(sql.RUN_KEY, to_column(where.after))
            )
            if after_key is None:
                raise RunNotFound(where.after)
        query, values = sql.runs_query(where, after_key)
        rows = await self.read_with(lambda connection: connection.fetch(query, *values))
        return [sql.run_row(row) for row in rows]

    async def mark_damaged(self, run_id: str, reason: str) -> None:
        given_ms = self._clock.given_ms()
        found = await self._waking(
            lambda connection: connection.fetchval(
                sql.MARK_DAMAGED, given_ms, to_column(run_id), to_column(reason)
            )
        )
        if not found:
            raise RunNotFound(run_id)

    # --- blobs and the ledger --------------------------------------------------------------------------------------

    async def put_blob(self, data: bytes) -> bytes:
        check_blob(data)
        digest = sha256(data).digest()
        await self._upload(digest, data)
        given_ms = self._clock.given_ms()
        parts = max(1, -(-len(data) // BLOB_PART_BYTES))
        await self.write_with(
            lambda connection: connection.execute(sql.PUT_BLOB, digest, len(data), parts, given_ms)
        )
        return digest

    async def _upload(self, digest: bytes, data: bytes) -> None:
        """The parts alone: without its row the blob isn't there. One that is there by now is kept for a day from now on, so that
        no sweep takes its parts away before the row is put again."""
        given_ms = self._clock.given_ms()
        if await self.write_with(lambda connection: connection.fetchval(sql.NOTE_PUT, digest, given_ms)):
            return
        for number, part in enumerate(blob_parts(data)):
            await self.write_with(
                lambda connection, number=number, part=part: connection.execute(  # type: ignore[misc]  # mypy infers no type for a lambda with defaults
                    sql.PUT_PART, digest, number, part
                )
            )

    async def get_blob(self, sha256: bytes) -> bytes | None:
        rows = await self.read_with(lambda connection: connection.fetch(sql.GET_BLOB, sha256), LONG_ANSWER_S)
        return b"".join(row["data"] for row in rows) if rows else None

    async def ledger_row(self, tenant: str, key: bytes) -> LedgerRow | None:
        found = await self.read_with(
            lambda connection: connection.fetchrow(sql.LEDGER_ROW, to_column(tenant), key)
        )
        if found is None:
            return None
        row = ledger_row(found)
        if not is_sound(row):
            raise DamagedFile(self.path, f"the ledger's row of key {key.hex()} was changed")
        return row

    async def ledger_rows(self, after: tuple[str, bytes] | None = None, limit: int = 100) -> list[LedgerRow]:
        tenant, key = (None, None) if after is None else (to_column(after[0]), after[1])
        rows = await self.read_with(lambda connection: connection.fetch(sql.LEDGER_ROWS, tenant, key, limit))
        return [ledger_row(row) for row in rows]

    async def unknown_effects(self, tenant: str | None = None, limit: int = 100) -> list[LedgerRow]:
        wanted = None if tenant is None else to_column(tenant)
        rows = await self.read_with(lambda connection: connection.fetch(sql.UNKNOWN_EFFECTS, wanted, limit))
        return [ledger_row(row) for row in rows]

    # --- hosts and ownership ---------------------------------------------------------------------------------------

    async def register_host(self, host: HostRow) -> None:
        given_ms = self._clock.given_ms()
        await self.write_with(
            lambda connection: connection.execute(
                sql.REGISTER_HOST,
                given_ms,
                to_column(host.host_id),
                to_column(host.node),
                host.pid,
                host.pid_start,
                to_column(host.boot_id),
                HOST_VALID_MS,
            )
        )
        self._watch.hosts.add(to_column(host.host_id))

    async def renew_host(self, host_id: str) -> bool:
        given_ms = self._clock.given_ms()
        kept = await self.write_with(
            lambda connection: connection.fetchval(
                sql.RENEW_HOST, given_ms, to_column(host_id), HOST_VALID_MS
            )
        )
        return kept is True

    async def drop_host(self, host_id: str, *, died: bool = False) -> None:
        given_ms = self._clock.given_ms()
        self._watch.hosts.discard(to_column(host_id))
        await self._waking(
            lambda connection: connection.fetchval(sql.DROP_HOST, given_ms, to_column(host_id), died)
        )

    async def hosts(self) -> list[HostRow]:
        return [
            sql.host_row(row) for row in await self.read_with(lambda connection: connection.fetch(sql.HOSTS))
        ]

    async def acquire(self, run_id: str, host_id: str, *, dead_hosts: Sequence[str] = ()) -> AcquireAnswer:
        given_ms, dead = self._clock.given_ms(), [to_column(host) for host in dead_hosts]
        row = await self.write_with(
            lambda connection: connection.fetchrow(
                sql.ACQUIRE, given_ms, HOST_VALID_MS, to_column(run_id), to_column(host_id), dead
            )
        )
        match row["kind"]:
            case "not_found":
                return NotFound()
            case "owned":
                return Owned(sql.host_row(msgspec.json.decode(row["by"])))
            case "acquired":
                regressed = self._writer.heads.falls_short(run_id, row["seq"])
                if regressed is not None:
                    await self.mark_damaged(run_id, f"{regressed.code}: {regressed.message}"[:500])
                    raise regressed
                return Acquired(row["epoch"], row["seq"], row["head"], row["died"], row["was_woken"])
            case _:
                raise BugError("store_bug", "the server's answer to acquire is unknown", path=run_id)

    async def release(self, run_id: str, host_id: str, epoch: int, *, ready: bool) -> None:
        given_ms = self._clock.given_ms()
        await self._waking(
            lambda connection: connection.fetchval(
                sql.RELEASE, given_ms, to_column(run_id), to_column(host_id), epoch, ready
            )
        )

    async def ready_runs(self, limit: int = 100) -> list[str]:
        given_ms = self._clock.given_ms()
        rows = await self.read_with(lambda connection: connection.fetch(sql.READY, given_ms, limit))
        return [from_column(row["run_id"]) for row in rows]

    async def next_wake_ms(self) -> int | None:
        found: int | None = await self.read_with(lambda connection: connection.fetchval(sql.NEXT_WAKE))
        return found

    # --- switches and outside commands -----------------------------------------------------------------------------

    async def switches(self) -> list[Switch]:
        return [
            sql.switch_row(row)
            for row in await self.read_with(lambda connection: connection.fetch(sql.SWITCHES))
        ]

    def switches_known(self) -> tuple[Switch, ...]:
        return self._writer.switches_known

    async def set_switch(self, switch: Switch, *, on: bool) -> None:
        await self.write_with(
            lambda connection: connection.fetchval(
                sql.TURN_SWITCH,
                on,
                switch.scope,
                to_column(switch.target),
                to_column(switch.by),
                to_column(switch.reason),
                switch.at_ms,
            )
        )
        await self.write_with(self._writer.read_switches)

    async def submit(self, run_id: str, command_id: str, command: bytes) -> bytes:
        """A live host of another process that has the run decides; if none has, this process's handler does."""
        for _ in range(SUBMIT_TRIES):
            answer = await self.submit_elsewhere(run_id, command_id, command)
            if answer is not None:
                return answer
            decide = self.on_submit
            if decide is None:
                raise StoreError(
                    "no_submit_handler",
                    "nobody hosts the run, and this process decides nothing",
                    path=self.path,
                )
            try:
                return await self._at_home(partial(decide, run_id, command_id, command))
            except OwnedError:
                continue  # a host took it up in between: it decides
        raise ConflictError("run_contended", "hosts keep taking the run; submit again", path=run_id)

    async def submit_elsewhere(self, run_id: str, command_id: str, command: bytes) -> bytes | None:
        """The answer of a live host in another process; None if none has the run. Raises what it raised, and ``StoreError``
        (``host_silent``)."""
        return await self._at_home(lambda: self._watch.submit(run_id, command_id, command))

    async def close(self) -> None:
        """Finish what was handed in and hang up. Later calls raise; closing twice is harmless. It goes on to its end if the
        caller is cancelled."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._watch.close()
        await self._writer.close()
        await self._hang_up_reader()
        async with (
            self._reading
        ):  # what still reads, or is about to connect for that, ends without its answer
            await self._hang_up_reader()

    async def _hang_up_reader(self) -> None:
        link, self._reader = self._reader, None
        if link is not None:
            await hang_up(link.connection)


def _heard(reading: asyncio.Task[Any]) -> None:
    """Whoever asked may have gone away: an error is no complaint of the loop's then."""
    if not reading.cancelled():
        reading.exception()
