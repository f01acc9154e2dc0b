"""The reference store, in this process's memory: what every other store must answer.

It is shipped: for tests, simulation and runs that nobody needs tomorrow. Each method runs to its end without giving
up the event loop, so each is a transaction. Nothing survives the process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from secrets import token_hex

import msgspec

from ..runtime.errors import RunNotFound, StoreError
from ..runtime.ledger import Claim, LedgerRow, RunIndex, Settlement
from .chain import check_append, check_blob, check_follows
from .clock import NeverFalling, StoreClock
from .memory_upkeep import MemoryRun, MemoryUpkeep
from .port import (
    APPEND_SCHEMA_VERSION,
    HOST_VALID_MS,
    AcquireAnswer,
    Acquired,
    AlreadyDone,
    Append,
    AppendAnswer,
    Appended,
    ClaimTaken,
    Conflict,
    Fenced,
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
from .rules import (
    KeyRows,
    accepts_claim,
    claimed,
    is_at_rest,
    is_ended,
    new_waits,
    rows_to_claim,
    settled,
)


class MemoryStore(MemoryUpkeep):
    """``memory://``. ``clock`` gives Unix milliseconds; the default one never falls."""

    def __init__(
        self,
        *,
        clock: Callable[[], int] | None = None,
        on_submit: SubmitHandler | None = None,
        on_ready: ReadyListener | None = None,
    ) -> None:
        super().__init__()
        self.on_submit = on_submit
        self.on_ready = on_ready
        self._now_ms = StoreClock().now_ms if clock is None else NeverFalling(clock)
        self._identity = token_hex(16)

    async def identity(self) -> str:
        return self._identity

    def now_ms(self) -> int:
        return self._now_ms()

    # --- the log ---------------------------------------------------------------------------------------------------

    async def append(self, request: Append) -> AppendAnswer:
        check_append(request)
        now_ms = self.now_ms()
        run = self._runs.get(request.run_id)
        refusal = self._refusal(request, run, now_ms)
        if refusal is not None:
            return refusal
        if run is not None:
            check_follows(request, run.row.tenant, run.row.updated_at_ms)
        if request.claim is not None:
            place = request.claim.tenant, request.claim.key
            rows = rows_to_claim(self._key_rows(place), request, request.claim, now_ms)
            if rows.held is not None and not accepts_claim(rows, request.run_id, request.claim):
                return ClaimTaken(rows.held)
        self._blobs.update(request.blobs)
        self._put_at_ms.update((digest, now_ms) for digest, _ in request.blobs)
        if run is None:
            run = self._runs[request.run_id] = MemoryRun(_new_row(request), len(self._runs))
        marked = run.ready_at_ms is not None
        woken = self._write(request, run, now_ms)
        self._notify(woken)
        return Appended(run.row.seq, now_ms, marked and run.ready_at_ms is None)

    def _refusal(self, request: Append, run: MemoryRun | None, now_ms: int) -> AppendAnswer | None:
        if run is None:
            return None if request.create is not None else Conflict(0)
        row = run.row
        if request.epoch < row.epoch:
            return Fenced(row.epoch)
        if request.epoch == row.epoch and request.expected_seq == row.seq and request.prev_hash == row.head:
            return None
        for stored in run.log:
            if stored.first_seq == request.expected_seq + 1 and stored.hash == request.hash:
                return AlreadyDone(request.expected_seq + stored.event_count, now_ms)
        return Conflict(row.seq)

    def _write(self, request: Append, run: MemoryRun, now_ms: int) -> list[str]:
        before = run.row.index
        seq = request.expected_seq + request.event_count
        run.log.append(
            StoredAppend(
                run_id=request.run_id,
                first_seq=request.expected_seq + 1,
                event_count=request.event_count,
                epoch=request.epoch,
                append_id=request.append_id,
                at_ms=request.at_ms,
                causation=request.causation,
                schema_version=APPEND_SCHEMA_VERSION,
                body=request.body,
                hash=request.hash,
            )
        )
        run.row = msgspec.structs.replace(
            run.row,
            seq=seq,
            epoch=request.epoch,
            head=request.hash,
            updated_at_ms=request.at_ms,
            index=request.index,
            owner="" if request.release else run.row.owner,
        )
        if is_ended(request.index) or not (request.release or request.ready):
            run.ready_at_ms = None
        woken: dict[str, None] = {}
        for settlement in request.settlements[: request.settled_first]:
            woken.update(dict.fromkeys(self._settle(request, settlement, now_ms)))
        if request.claim is not None:
            self._claim(request, request.claim, now_ms)
        for settlement in request.settlements[request.settled_first :]:
            woken.update(dict.fromkeys(self._settle(request, settlement, now_ms)))
        woken.update(dict.fromkeys(request.wake_runs))
        if request.ready or self._misses_a_wake(run.row.tenant, request.run_id, before, request.index):
            woken[request.run_id] = None
        return [run_id for run_id in woken if self._wake(run_id, now_ms)]

    def _key_rows(self, place: tuple[str, bytes]) -> KeyRows:
        return KeyRows(self._ledger.get(place), self._earlier.get(place, ()))

    def _put_key(self, place: tuple[str, bytes], rows: KeyRows) -> None:
        self._ledger.pop(place, None)
        self._earlier.pop(place, None)
        if rows.held is not None:
            self._ledger[place] = rows.held
        if rows.earlier:
            self._earlier[place] = rows.earlier

    def _claim(self, request: Append, claim: Claim, now_ms: int) -> None:
        place = claim.tenant, claim.key
        self._put_key(place, claimed(self._key_rows(place), request.run_id, request.epoch, claim, now_ms))

    def _settle(self, request: Append, settlement: Settlement, now_ms: int) -> list[str]:
        place = settlement.tenant, settlement.key
        before = self._key_rows(place)
        after = settled(before, request.run_id, request.epoch, settlement, now_ms)
        if after is before:
            return []
        self._put_key(place, after)
        return [
            other
            for other, run in self._runs.items()
            if run.row.tenant == settlement.tenant and settlement.key in run.row.index.waiting_keys
        ]

    def _misses_a_wake(self, tenant: str, run_id: str, before: RunIndex, after: RunIndex) -> bool:
        begun = new_waits(before.waiting_keys, after.waiting_keys)
        return any(is_at_rest(self._ledger.get((tenant, key))) for key in begun)

    def _notify(self, run_ids: list[str]) -> None:
        if run_ids and self.on_ready is not None:
            self.on_ready(run_ids)

    async def read(self, run_id: str, *, after_seq: int = 0, rows_max: int = 1_000) -> list[StoredAppend]:
        run = self._runs.get(run_id)
        if run is None:
            return []
        return [row for row in run.log if row.first_seq > after_seq][:rows_max]

    # --- rows of runs ----------------------------------------------------------------------------------------------

    async def run(self, run_id: str) -> RunRow | None:
        run = self._runs.get(run_id)
        return None if run is None else run.shown()

    async def runs(self, where: RunFilter) -> list[RunRow]:
        after = self._runs.get(where.after)
        if where.after and after is None:
            raise RunNotFound(where.after)
        found: list[RunRow] = []
        for run in reversed(self._runs.values()):
            if len(found) >= where.limit:
                break
            if (after is None or run.place < after.place) and _matches(run.row, where):
                found.append(run.shown())
        return found

    async def mark_damaged(self, run_id: str, reason: str) -> None:
        run = self._runs.get(run_id)
        if run is None:
            raise RunNotFound(run_id)
        run.row = msgspec.structs.replace(run.row, damaged=reason)
        parent_id = run.row.parent_id
        if parent_id and self._wake(parent_id, self.now_ms()):
            self._notify([parent_id])

    # --- blobs and the ledger --------------------------------------------------------------------------------------

    async def put_blob(self, data: bytes) -> bytes:
        check_blob(data)
        digest = sha256(data).digest()
        self._blobs[digest] = data
        self._put_at_ms[digest] = self.now_ms()
        return digest

    async def get_blob(self, sha256: bytes) -> bytes | None:
        return self._blobs.get(sha256)

    async def ledger_row(self, tenant: str, key: bytes) -> LedgerRow | None:
        return self._ledger.get((tenant, key))

    async def ledger_rows(self, after: tuple[str, bytes] | None = None, limit: int = 100) -> list[LedgerRow]:
        places = sorted(place for place in self._ledger if after is None or place > after)
        return [self._ledger[place] for place in places[:limit]]

    async def unknown_effects(self, tenant: str | None = None, limit: int = 100) -> list[LedgerRow]:
        rows = [
            row for row in self._ledger.values() if row.status == "unknown" and tenant in (None, row.tenant)
        ]
        return sorted(rows, key=lambda row: (row.at_ms, row.tenant, row.key))[:limit]

    # --- hosts and ownership ---------------------------------------------------------------------------------------

    async def register_host(self, host: HostRow) -> None:
        self._hosts[host.host_id] = msgspec.structs.replace(host, expires_at_ms=self.now_ms() + HOST_VALID_MS)

    async def renew_host(self, host_id: str) -> bool:
        host = self._hosts.get(host_id)
        if host is None:
            return False
        self._hosts[host_id] = msgspec.structs.replace(host, expires_at_ms=self.now_ms() + HOST_VALID_MS)
        return True

    async def drop_host(self, host_id: str, *, died: bool = False) -> None:
        self._hosts.pop(host_id, None)
        now_ms = self.now_ms()
        woken: list[str] = []
        for run_id, run in self._runs.items():
            if run.row.owner == host_id:
                # An owner without a row is how acquire knows of a death.
                run.row = msgspec.structs.replace(run.row, owner=host_id if died else "")
                if self._wake(run_id, now_ms):
                    woken.append(run_id)
        self._notify(woken)

    async def hosts(self) -> list[HostRow]:
        return sorted(self._hosts.values(), key=lambda host: host.host_id)

    async def acquire(self, run_id: str, host_id: str, *, dead_hosts: Sequence[str] = ()) -> AcquireAnswer:
        run = self._runs.get(run_id)
        if run is None:
            return NotFound()
        holder = self._live_owner(run.row.owner)
        if holder is not None and holder.host_id != host_id and holder.host_id not in dead_hosts:
            return Owned(holder)
        if self._live_owner(host_id) is None:
            await self.renew_host(host_id)
        died = run.row.owner not in ("", host_id)
        marked = run.ready_at_ms is not None
        run.row = msgspec.structs.replace(run.row, epoch=run.row.epoch + 1, owner=host_id)
        run.ready_at_ms = None
        return Acquired(run.row.epoch, run.row.seq, run.row.head, died, marked)

    def _live_owner(self, host_id: str) -> HostRow | None:
        host = self._hosts.get(host_id)
        return host if host is not None and host.expires_at_ms > self.now_ms() else None

    async def release(self, run_id: str, host_id: str, epoch: int, *, ready: bool) -> None:
        run = self._runs.get(run_id)
        if run is None or host_id == "" or (run.row.owner, run.row.epoch) != (host_id, epoch):
            return
        run.row = msgspec.structs.replace(run.row, owner="")
        if ready and self._wake(run_id, self.now_ms()):
            self._notify([run_id])

    async def ready_runs(self, limit: int = 100) -> list[str]:
        now_ms = self.now_ms()
        found: list[tuple[int, int, str]] = []
        for run_id, run in self._runs.items():
            row = run.row
            if row.damaged or self._live_owner(row.owner) is not None:
                continue
            wake_at_ms = row.index.wake_at_ms
            if run.ready_at_ms is not None:
                found.append((run.ready_at_ms, run.place, run_id))
            elif wake_at_ms is not None and wake_at_ms <= now_ms:
                found.append((wake_at_ms, run.place, run_id))
            elif row.owner:
                found.append((row.updated_at_ms, run.place, run_id))
        return [run_id for _, _, run_id in sorted(found)[:limit]]

    async def next_wake_ms(self) -> int | None:
        wakes = [
            run.row.index.wake_at_ms
            for run in self._runs.values()
            if run.row.index.wake_at_ms is not None and run.row.owner == "" and not run.row.damaged
        ]
        return min(wakes, default=None)

    # --- switches and outside commands -----------------------------------------------------------------------------

    async def switches(self) -> list[Switch]:
        return list(self.switches_known())

    def switches_known(self) -> tuple[Switch, ...]:
        return tuple(self._switches[place] for place in sorted(self._switches))

    async def set_switch(self, switch: Switch, *, on: bool) -> None:
        if on:
            self._switches[switch.scope, switch.target] = switch
        else:
            self._switches.pop((switch.scope, switch.target), None)

    async def submit(self, run_id: str, command_id: str, command: bytes) -> bytes:
        if self.on_submit is None:
            raise StoreError("no_submit_handler", "the owner of this store takes no outside commands")
        return await self.on_submit(run_id, command_id, command)

    async def close(self) -> None:
        """Nothing to give back; the data goes with the object."""


def _new_row(request: Append) -> RunRow:
    create = request.create
    assert create is not None
    return RunRow(
        run_id=request.run_id,
        tenant=create.tenant,
        agent=create.agent,
        operation_id=create.operation_id,
        parent_id=create.parent_id,
        root_id=create.root_id,
        created_at_ms=request.at_ms,
        updated_at_ms=request.at_ms,
        seq=0,
        epoch=request.epoch,
        head=request.prev_hash,
        index=RunIndex(status=""),
        owner=request.host_id,
        ready=False,
    )


def _matches(row: RunRow, where: RunFilter) -> bool:
    return (
        where.tenant in (None, row.tenant)
        and where.status in (None, row.index.status)
        and where.outcome in (None, row.index.outcome)
        and where.agent in (None, row.agent)
        and where.operation_id in (None, row.operation_id)
        and where.root_id in (None, row.root_id)
        and (where.waiting_for_prefix is None or row.index.waiting_for.startswith(where.waiting_for_prefix))
        and _is_between(row.created_at_ms, where.created_since_ms, where.created_until_ms)
        and _is_between(row.updated_at_ms, where.updated_since_ms, where.updated_until_ms)
    )


def _is_between(at_ms: int, since_ms: int | None, until_ms: int | None) -> bool:
    return (since_ms is None or at_ms >= since_ms) and (until_ms is None or at_ms < until_ms)
