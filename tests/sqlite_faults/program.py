"""A fixed program of everything that a store is asked to write, carried through against faults, and judged at its end.

After an error the program reads before it acts, as a host does. What it reads must be all of an append or nothing of it
(row, run, ledger, blobs), and final: the same append again is ``already done`` exactly if it was read. At the end the
file holds what the same program leaves behind where nothing fails.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar

from tests.contract.log_writer import ENDED, LogWriter, an_event, claim, settlement, waiting
from tests.contract.one_commit import in_one_commit

from boundloop.eventstore.port import Acquired, AlreadyDone, Append, Appended, HostRow, RunFilter, Switch
from boundloop.eventstore.sqlite import SqliteStore
from boundloop.eventstore.verify import verify_store
from boundloop.runtime.errors import RunNotFound, StoreError

T = TypeVar("T")

FORBIDDEN: Final = (
    "lost",
    "duplicated",
    "half-committed",
    "took effect after it was read as absent",
    "a wake was not told",
    "does not verify",
    "ended as something else",
    "lock not given up once",
    "file left open",
)
TRIES_MAX: Final = 8
HOST: Final = "h1"
LARGE: Final = "x" * 40_000
"""Too much for a row: its body goes to a blob."""

K1, K2, K3 = (sha256(name).digest() for name in (b"k1", b"k2", b"k3"))


class Lost(Exception):
    """An append could not follow what was acknowledged before it."""


class Program:
    """``heal`` makes an end of faults that would last. ``counts`` says what was met, and what must never be."""

    def __init__(self, path: Path, heal: Callable[[], None]) -> None:
        self.counts: Counter[str] = Counter()
        self._path = str(path)
        self._heal = heal
        self._opened = 0
        self._given_up = 0
        self._woken: set[str] = set()
        self._written: dict[str, list[Append]] = {}
        self._blobs: list[bytes] = []
        self._now_ms = 1_800_000_000_000
        self._reopening = asyncio.Lock()
        self._store: SqliteStore | None = None

    async def run(self) -> dict[str, Any]:
        """To its end; what the file holds then."""
        await self._open()
        with contextlib.suppress(Lost):  # it was counted, and what is left is judged
            await self._play()
        await self._close()
        self._heal()
        await self._open()
        held = await self._judge()
        await self._close()
        self.counts["lock not given up once"] += self._given_up != self._opened
        return held

    # --- the program -----------------------------------------------------------------------------------------------

    async def _play(self) -> None:
        await self._do(lambda store: store.register_host(_HOST_ROW))
        self._blobs.append(await self._do(lambda store: store.put_blob(b"pins" * 10_000)))
        one, two, three, four, five = (self._log(f"r{number}") for number in range(1, 6))
        await self._send(one, one.request("begin", claim=claim(K1)))
        await self._send(two, two.request("wait", index=waiting(K1), release=True))
        await self._together(
            (three, three.request("begin", claim=claim(K2))),
            (four, four.request("begin", claim=claim(K3))),
            (five, five.request("begin", release=True)),
        )
        self._woken.clear()
        await self._send(one, one.request(LARGE, settlements=(settlement(K1, "succeeded"),)))
        await self._settle_wakes()
        self.counts["a wake was not told"] += "r2" not in self._woken
        acquired = await self._do(lambda store: store.acquire("r2", HOST))
        assert isinstance(acquired, Acquired)
        two.epoch, two.host_id = acquired.epoch, HOST
        await self._send(two, two.request(events=[an_event("two"), an_event("events")]))
        await self._idle()
        self._woken.clear()
        await self._together(
            (three, three.request("lost", settlements=(settlement(K2, "unknown"),))),
            (four, four.request("done", settlements=(settlement(K3, "succeeded"),), wake_runs=("r5",))),
            (two, two.request("parked", release=True, ready=True)),
            beside=self._damage("nobody"),
        )
        await self._settle_wakes()
        self.counts["a wake was not told"] += not {"r2", "r5"} <= self._woken
        await self._do(lambda store: store.set_switch(_SWITCH, on=True))
        await self._do(lambda store: store.hold_groups({"mail": (2, self._now_ms + 60_000)}))
        await self._do(lambda store: store.renew_host(HOST))
        await self._do(lambda store: store.mark_damaged("r3", "for the look of it"))
        for number in range(3):
            await self._send(five, five.request(f"on {number} " + "y" * 4_000))
        await self._send(one, one.request("end", index=ENDED, release=True, wake_runs=("r2",)))
        await self._do(lambda store: store.drop_host(HOST))

    def _log(self, run_id: str) -> LogWriter:
        assert self._store is not None
        self._written[run_id] = []
        return LogWriter(self._store, run_id)

    async def _damage(self, run_id: str) -> None:
        try:
            await self._do(lambda store: store.mark_damaged(run_id, "no such run"))
        except RunNotFound:
            self.counts["refused its own mistake"] += 1

    async def _settle_wakes(self) -> None:
        """What commits made ready is told on this loop; a read behind it comes after it."""
        await self._do(lambda store: store.hosts())
        await asyncio.sleep(0)

    async def _idle(self) -> None:
        """What the store's thread does when all is quiet."""
        thread = self._the_store()._thread
        await thread.submit(thread.checkpoint, writes=False, light=False)

    # --- one call, whatever comes in between -----------------------------------------------------------------------

    async def _do(self, call: Callable[[SqliteStore], Awaitable[T]]) -> T:
        for attempt in range(TRIES_MAX):
            async with self._reopening:
                store = self._the_store()
            try:
                return await call(store)
            except StoreError as error:
                await self._after(error, store, attempt)
        raise AssertionError("it never came about")

    async def _together(
        self, *sends: tuple[LogWriter, Append], beside: Awaitable[None] | None = None
    ) -> None:
        async def other() -> None:
            if beside is not None:
                await beside

        await self._do(lambda store: store.hosts())  # a broken store takes nothing that holds it up
        calls = [self._send(log, request) for log, request in sends]
        if beside is not None:
            calls.append(other())
        await in_one_commit(self._the_store(), *calls)

    async def _send(self, log: LogWriter, request: Append) -> None:
        read: bool | None = None
        for attempt in range(TRIES_MAX):
            async with self._reopening:
                store = self._the_store()
            try:
                answer = await store.append(request)
            except StoreError as error:
                await self._after(error, store, attempt)
                read = await self._do(lambda there: self._look(there, request))
                continue
            match answer:
                case Appended():
                    self.counts["lost"] += read is True
                    self.counts["appended after all" if read is False else "appended"] += 1
                case AlreadyDone():
                    self.counts["took effect after it was read as absent"] += read is False
                    self.counts["found done"] += 1
                case _:
                    # What this append follows isn't there any more.
                    self.counts["lost"] += 1
                    raise Lost(answer)
            log.follow(request)
            self._written[log.run_id].append(request)
            self._blobs += [digest for digest, _ in request.blobs]
            return
        raise AssertionError("it was never appended")

    async def _look(self, store: SqliteStore, request: Append) -> bool:
        rows = await store.read(request.run_id, after_seq=request.expected_seq)
        run = await store.run(request.run_id)
        there = [row.hash for row in rows] == [request.hash]
        self.counts["duplicated"] += len(rows) > 1
        whole = [(run is not None and run.head == request.hash) == there]
        for digest, _ in request.blobs:
            whole.append((await store.get_blob(digest) is not None) == there)
        if request.claim is not None:
            held = await store.ledger_row("acme", request.claim.key)
            whole.append((held is not None) == there)
        for settled in request.settlements:
            held = await store.ledger_row("acme", settled.key)
            whole.append((held is not None and held.status == settled.to) == there)
        self.counts["half-committed"] += not all(whole)
        return there

    async def _after(self, error: StoreError, store: SqliteStore, attempt: int) -> None:
        """Once more on the same store; if that is no use, as somebody does who restarts the process."""
        self.counts[f"told {error.code}"] += 1
        if attempt == 0:
            return
        async with self._reopening:
            if self._store is store:
                self.counts["opened anew"] += 1
                await self._close()
                self._heal()
                await self._open()
                await self._verify()
                # Whoever opens a store looks at what is ready, and isn't told.
                self._woken.update(await self._the_store().ready_runs())

    # --- opening and closing ---------------------------------------------------------------------------------------

    def _the_store(self) -> SqliteStore:
        assert self._store is not None
        return self._store

    async def _open(self) -> None:
        for attempt in range(TRIES_MAX):
            self._opened += 1
            try:
                self._store = await SqliteStore.open(
                    self._path, clock=self._tick, on_ready=self._woken.update, on_closed=self._closed
                )
                return
            except StoreError as error:
                self.counts[f"not opened: {error.code}"] += 1
                if attempt:
                    self._heal()
        raise AssertionError("it was never opened")

    def _tick(self) -> int:
        return self._now_ms

    def _closed(self) -> None:
        self._given_up += 1

    async def _close(self) -> None:
        store, self._store = self._store, None
        assert store is not None
        await store.close()

    # --- the end ---------------------------------------------------------------------------------------------------

    async def _verify(self) -> None:
        verdict = await verify_store(self._the_store())
        self.counts["does not verify"] += not verdict.ok

    async def _judge(self) -> dict[str, Any]:
        store = self._the_store()
        await self._verify()
        for run_id, written in self._written.items():
            stored = [row.hash for row in await store.read(run_id)]
            wanted = [request.hash for request in written]
            self.counts["lost"] += len(set(wanted) - set(stored))
            self.counts["duplicated"] += len(stored) - len(set(stored))
            self.counts["half-committed"] += stored != wanted
            self.counts["acknowledged"] += len(wanted)
        for digest in self._blobs:
            self.counts["lost"] += await store.get_blob(digest) is None
        runs = await store.runs(RunFilter())
        ledger = await store.ledger_rows()
        return {
            "runs": [
                (run.run_id, run.seq, run.index, run.owner, run.ready, run.damaged)
                for run in sorted(runs, key=lambda run: run.run_id)
            ],
            "ledger": [(row.key, row.status, row.run_id, row.result) for row in ledger],
            "switches": await store.switches(),
            "holds": await store.group_holds(),
            "hosts": await store.hosts(),
            "ready": sorted(await store.ready_runs()),
        }


_HOST_ROW: Final = HostRow(host_id=HOST, node="n", pid=1, pid_start=1, boot_id="b")
_SWITCH: Final = Switch(scope="tool", target="refund", by="os:ann@desk", reason="", at_ms=1)
