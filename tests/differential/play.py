"""One store's side of a program: what it answered at each step, and all that can be read of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from hashlib import sha256
from typing import Any

import msgspec
from tests.contract.log_writer import LogWriter, claim, settlement
from tests.differential.programs import HOSTS, KEYS, RUNS, TENANTS, Step

from boundloop.eventstore.clock import FixedClock
from boundloop.eventstore.port import Acquired, Append, Appended, EventStore, HostRow, RunFilter, Switch
from boundloop.eventstore.upkeep import Upkeep
from boundloop.runtime.errors import BoundloopError, ConflictError
from boundloop.runtime.ledger import Claim, RunIndex, Settlement


class Player:
    """Plays on one open store whose clock it moves."""

    def __init__(self, clock: FixedClock) -> None:
        self.clock = clock
        self.store: EventStore
        self._writers: dict[int, LogWriter] = {}
        self._last: dict[int, Append] = {}
        self._blobs: set[bytes] = set()
        self._refuses = False

    async def on_submit(self, run_id: str, command_id: str, command: bytes) -> bytes:
        if self._refuses:
            raise ConflictError("too_late", "it was decided before", path=run_id)
        return f"{run_id} {command_id} ".encode() + command

    async def play(self, steps: list[Step]) -> list[str]:
        """A line for each step, and lines for what can be read at the end."""
        self.store.now_ms()  # from here on no store's time falls
        lines = [await self._told(getattr(self, f"_{step.what}")(**step.with_)) for step in steps]
        return [*lines, *await self._all()]

    async def _told(self, work: Awaitable[object]) -> str:
        try:
            return _text(await work)
        except BoundloopError as error:
            return f"{type(error).__name__} {error.code} {error.path}"

    # --- appends ---------------------------------------------------------------------------------------------------

    def _writer(self, run: int) -> LogWriter:
        writer = self._writers.get(run)
        if writer is None:
            tenant = TENANTS[run % len(TENANTS)]
            writer = LogWriter(self.store, f"r{run}", tenant=tenant, at_ms=self.clock.at_ms)
            self._writers[run] = writer
        return writer

    async def _append(self, append: dict[str, Any]) -> object:
        return await self._send(self._request(append))

    async def _together(self, appends: list[dict[str, Any]]) -> object:
        """As the appends of several runs in one turn of the loop; of one run's the first has the best right."""
        requests = [self._request(append) for append in appends]
        return await asyncio.gather(*(self._told(self._send(request)) for request in requests))

    async def _send(self, request: Append) -> object:
        run = int(request.run_id[1:])
        answer = await self.store.append(request)
        if isinstance(answer, Appended):
            writer = self._writers[run]
            writer.follow(request)
            writer.epoch, writer.at_ms = request.epoch, request.at_ms
            self._last[run] = request
        return answer

    def _request(self, append: dict[str, Any]) -> Append:
        run, how = append["run"], append["how"]
        writer = self._writer(run)
        last = self._last.get(run)
        if how == "again" and last is not None:
            return last
        draft = writer.fork()
        draft.host_id = f"h{append['host']}"
        draft.at_ms = max(writer.at_ms, self.clock.at_ms) + append["later_ms"]
        if how in ("rival", "stale") and last is not None:
            draft.seq, draft.head = last.expected_seq, last.prev_hash
        match how:
            case "old_epoch":
                draft.epoch = max(1, draft.epoch - 1)
            case "new_epoch":
                draft.epoch += 1
            case "other_history" if draft.seq:
                draft.head = b"x" * 32
            case "gap":
                draft.seq, draft.head = draft.seq + 1, b"y" * 32
            case _:
                pass
        wake_in_ms = append["wake_in_ms"]
        keys = tuple(_key(number) for number in append["waiting_keys"])
        index = RunIndex(
            status=append["status"],
            outcome="completed" if append["status"] == "terminated" else "",
            waiting_for=append["waiting_for"],
            waiting_keys=keys,
            wake_at_ms=None if wake_in_ms is None else self.clock.at_ms + wake_in_ms,
        )
        size = append["blob"]
        blobs: dict[str, Any] = {}
        if size is not None:
            data = bytes([run]) * size
            self._blobs.add(sha256(data).digest())
            blobs["blobs"] = ((sha256(data).digest(), data),)
        request = draft.request(
            *(f"{append['text']}{number}" for number in range(append["events"])),
            append_id=b"rival" if how == "rival" else b"",
            index=index,
            claim=None if append["claim"] is None else self._claim(draft, append["claim"]),
            settlements=tuple(self._settlement(draft, one) for one in append["settlements"]),
            settled_first=append["settled_first"],
            release=append["release"],
            ready=append["ready"],
            wake_runs=tuple(f"r{number}" for number in append["wakes"]),
        )
        if size is None:
            return request
        return msgspec.structs.replace(request, blobs=(*request.blobs, *blobs["blobs"]))

    def _claim(self, writer: LogWriter, given: dict[str, Any]) -> Claim:
        tenant = "stranger" if given["foreign"] else writer.tenant
        made = claim(_key(given["key"]), f"c{given['call']}", kind=given["kind"], tenant=tenant)
        over = given["over"]
        return msgspec.structs.replace(
            made,
            intent_sha256=bytes([given["intent"]]) * 32,
            attempt=given["attempt"],
            over=None if over is None else (f"r{over[0]}", f"c{over[1]}"),
        )

    def _settlement(self, writer: LogWriter, given: dict[str, Any]) -> Settlement:
        tenant = "stranger" if given["foreign"] else writer.tenant
        call_id = f"c{given['call']}"
        made = settlement(_key(given["key"]), given["to"], call_id, tenant=tenant)
        if not given["sent"]:
            return made
        return msgspec.structs.replace(made, sent=claim(_key(given["key"]), call_id, tenant=tenant))

    # --- the rest --------------------------------------------------------------------------------------------------

    async def _acquire(self, run: int, host: int, dead: list[int]) -> object:
        answer = await self.store.acquire(f"r{run}", f"h{host}", dead_hosts=[f"h{number}" for number in dead])
        if isinstance(answer, Acquired):
            writer = self._writer(run)
            writer.epoch, writer.seq, writer.head = answer.epoch, answer.seq, answer.head
        return answer

    async def _release(self, run: int, host: int, off: int, ready: bool) -> None:
        writer = self._writers.get(run)
        epoch = 1 if writer is None else writer.epoch
        await self.store.release(f"r{run}", f"h{host}", epoch + off, ready=ready)

    async def _register(self, host: int, pid: int) -> None:
        return await self.store.register_host(
            HostRow(host_id=f"h{host}", node="n\0", pid=pid, pid_start=pid * 10, boot_id="b")
        )

    async def _renew(self, host: int) -> object:
        return await self.store.renew_host(f"h{host}")

    async def _drop(self, host: int, died: bool) -> None:
        return await self.store.drop_host(f"h{host}", died=died)

    async def _advance(self, by_ms: int) -> object:
        self.clock.advance(by_ms)
        return self.store.now_ms()

    async def _look(
        self,
        limit: int,
        status: str | None,
        tenant: str | None,
        prefix: str | None,
        outcome: str | None,
        since_ms: int | None,
        of: str,
        after: int | None,
        after_seq: int,
    ) -> object:
        store = self.store
        where = RunFilter(
            status=status,
            outcome=outcome,
            tenant=tenant,
            waiting_for_prefix=prefix,
            limit=limit,
            after="" if after is None else f"r{after}",
        )
        if since_ms is not None:
            since = self.clock.at_ms - since_ms
            times = {f"{of}_since_ms": since, f"{of}_until_ms": since + 5_000}
            where = msgspec.structs.replace(where, **times)
        return [
            await store.ready_runs(limit),
            await store.next_wake_ms(),
            await store.unknown_effects(tenant, limit),
            await store.ledger_rows(("acme", _key(1)), limit),
            await store.read("r0", after_seq=after_seq, rows_max=limit),
            await store.hosts(),
            [row.run_id for row in await store.runs(where)],
        ]

    async def _switch(self, scope: Any, target: str, on: bool) -> object:
        switch = Switch(
            scope=scope, target=target, by="me", reason=f"at {self.clock.at_ms}", at_ms=self.clock.at_ms
        )
        await self.store.set_switch(switch, on=on)
        return self.store.switches_known()

    async def _blob(self, size: int, fill: int) -> object:
        digest = await self.store.put_blob(bytes([fill]) * size)
        self._blobs.add(digest)
        return digest

    async def _damage(self, run: int) -> None:
        await self.store.mark_damaged(f"r{run}", "hash of seq 1")

    async def _prune(self, run: int) -> object:
        assert isinstance(self.store, Upkeep)
        row = await self.store.run(f"r{run}")
        if row is None:
            return None
        return await self.store.prune(row.run_id, row.seq, row.head)

    async def _submit(self, run: int, refused: bool) -> object:
        self._refuses = refused
        return await self.store.submit(f"r{run}", "k1", b"cancel")

    async def _hold(self, places: int, for_ms: int) -> object:
        store: Any = self.store
        if not hasattr(store, "hold_groups"):
            return None
        await store.hold_groups({"bank": (places, self.clock.at_ms + for_ms)})
        return None

    async def _all(self) -> list[str]:
        """Everything that the port gives to read."""
        store = self.store
        rows = await store.runs(RunFilter(limit=RUNS + 10))
        found: list[object] = [await store.run(f"r{run}") for run in range(RUNS + 1)]
        found += [[row.run_id for row in rows], rows]
        found += [await store.read(f"r{run}") for run in range(RUNS)]
        found += [await store.ledger_row(tenant, _key(key)) for tenant in TENANTS for key in range(KEYS)]
        found += [await store.ledger_rows(limit=100), await store.unknown_effects(limit=100)]
        found += [await store.hosts(), await store.switches(), store.switches_known()]
        found += [await store.ready_runs(100), await store.next_wake_ms()]
        assert isinstance(store, Upkeep)
        found += [await store.earlier_rows(), await store.blob_names()]
        found += [[row.run_id for row in await store.runs_in_order()]]
        for digest in sorted(self._blobs):
            data = await store.get_blob(digest)
            found.append([digest, None if data is None else sha256(data).digest()])
        self.clock.advance(60_000)
        found += [await store.ready_runs(100)]
        found += [await store.renew_host(f"h{host}") for host in range(HOSTS)]
        found += [await store.ready_runs(100)]
        return [_text(one) for one in found]


def _key(number: int) -> bytes:
    return bytes([number]) * 32


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
