"""Writers whose connection is cut around commits, and whose server is killed; every cut is followed up.

After a cut the writer reads before it acts, as a host does. What it reads must be all of its append or nothing (the row, the run's
index row, the ledger, the blob), and must be final: the same append again is ``already done`` exactly if it was read.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from tests.contract.log_writer import LogWriter, claim, settlement
from tests.cutting_proxy import MOMENTS, CuttingProxy, cutting
from tests.postgres_server import Server

from boundloop.eventstore.port import Acquired, AlreadyDone, Append, Appended, Fenced
from boundloop.eventstore.postgres import PostgresStore
from boundloop.eventstore.verify import verify_store
from boundloop.runtime.errors import StoreError
from boundloop.runtime.ledger import LedgerRow

WRITERS: Final = 4
PATIENCE_S: Final = 60
FORBIDDEN: Final = ("lost", "duplicated", "half-committed", "took effect after it was read as absent")
UNKNOWN: Final = frozenset(("commit_unknown", "store_unreachable"))


class Trial:
    """``counts`` are of cuts by their moment, of what the writers were told, and of what must never be."""

    def __init__(self, server: Server, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._server = server
        self._draw = random.Random(seed)
        self._stop = False
        self._acknowledged: dict[str, list[Append]] = {}

    async def run(self, cuts: int, kills: int) -> None:
        """So many of each, then the whole store is looked at from a connection of its own."""
        url = self._server.url("cuts")
        with tempfile.TemporaryDirectory(prefix="cuts-") as folder:
            async with cutting(Path(folder), self._server.socket) as proxy:
                store = await PostgresStore.open(self._server.url("cuts", host=folder))
                logs = [LogWriter(store, f"r{number}", f"h{number}") for number in range(WRITERS)]
                writing = [asyncio.ensure_future(self._write(log)) for log in logs]
                await self._cut(proxy, cuts, kills, writing)
                self._stop = True
                await asyncio.gather(*writing)
                await store.close()
        store = await PostgresStore.open(url)
        for log in logs:
            await self._judge(store, log)
        if not (await verify_store(store)).ok:
            self.counts["half-committed"] += 1
        await store.close()

    async def _cut(
        self, proxy: CuttingProxy, cuts: int, kills: int, writing: Sequence[asyncio.Future[None]]
    ) -> None:
        kill_at = {self._draw.randrange(cuts) for _ in range(kills)}
        for number in range(cuts):
            if number in kill_at:
                self.counts["server killed"] += 1
                await asyncio.to_thread(self._server.kill)
                await asyncio.to_thread(self._server.start)
            moment = self._draw.choice(MOMENTS)
            what = self._draw.choices(("append_batch", "acquire_run"), (9, 1))[0]
            proxy.arm(moment, what, skip=self._draw.randrange(4))
            met = asyncio.ensure_future(proxy.cut.wait())
            waiting: list[asyncio.Future[Any]] = [met, *writing]
            await asyncio.wait(waiting, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
            if not met.done():
                met.cancel()
                for one in writing:
                    if one.done():
                        one.result()
                raise TimeoutError("no write came by to be cut")
            self.counts[f"cut {moment}"] += 1

    # --- one writer ------------------------------------------------------------------------------------------------

    async def _write(self, log: LogWriter) -> None:
        done = self._acknowledged[log.run_id] = []
        number = 0
        while not self._stop:
            if number % 8 == 7:
                await self._take_again(log)
            blob = f"{log.run_id} {number}".encode()
            key = sha256(blob).digest()
            await self._send(log, log.request("intent", claim=claim(key), blobs=((key, blob),)), key, done)
            await self._send(log, log.request("done", settlements=(settlement(key, "succeeded"),)), key, done)
            number += 1

    async def _send(self, log: LogWriter, request: Append, key: bytes, done: list[Append]) -> None:
        read: bool | None = None
        while True:
            try:
                answer = await log.store.append(request)
            except StoreError as error:
                if error.code not in UNKNOWN:
                    raise
                self.counts[f"told {error.code}"] += 1
                read = await self._look(log, request, key)
                continue
            break
        match answer:
            case Appended():
                self.counts["lost"] += read is True
                self.counts["appended after all" if read is False else "appended"] += 1
            case AlreadyDone():
                self.counts["took effect after it was read as absent"] += read is False
                self.counts["found done"] += 1
            case _:
                raise AssertionError(answer)
        log.follow(request)
        done.append(request)

    async def _look(self, log: LogWriter, request: Append, key: bytes) -> bool | None:
        """Whether the append is there; None if the store couldn't say. All that it carries must agree."""
        store = log.store
        try:
            rows = await store.read(log.run_id, after_seq=request.expected_seq)
            run = await store.run(log.run_id)
            row = await store.ledger_row("acme", key)
            blob = await store.get_blob(key)
        except StoreError as error:
            if error.code not in UNKNOWN:
                raise
            return None
        there = [one.hash for one in rows] == [request.hash]
        whole = [
            (run is not None and run.head == request.hash) == there,
            (row is not None and row.status == "in_flight") == there
            if request.claim is not None
            else (row is not None and row.status == "succeeded") == there,
            request.claim is None or (blob is not None) == there,
        ]
        self.counts["half-committed"] += not all(whole)
        self.counts["duplicated"] += len(rows) > 1
        return there

    async def _take_again(self, log: LogWriter) -> None:
        """Its own run anew: a new epoch, under which the old one is fenced."""
        answer = None
        while answer is None:
            try:
                answer = await log.store.acquire(log.run_id, log.host_id)
            except StoreError as error:
                if error.code not in UNKNOWN:
                    raise
                self.counts[f"told {error.code}"] += 1
        assert isinstance(answer, Acquired)
        assert (answer.seq, answer.head) == (log.seq, log.head)
        ghost = log.fork()
        log.epoch = answer.epoch
        try:
            assert await ghost.append("late") == Fenced(answer.epoch)
            self.counts["ghosts fenced"] += 1
        except StoreError as error:
            if error.code not in UNKNOWN:
                raise

    # --- the end ---------------------------------------------------------------------------------------------------

    async def _judge(self, store: PostgresStore, log: LogWriter) -> None:
        done = self._acknowledged[log.run_id]
        stored = [row.hash for row in await store.read(log.run_id, rows_max=1_000_000)]
        wanted = [request.hash for request in done]
        self.counts["lost"] += len(set(wanted) - set(stored))
        self.counts["duplicated"] += len(stored) - len(set(stored)) + len(set(stored) - set(wanted))
        self.counts["half-committed"] += stored != wanted
        keys = {request.claim.key for request in done if request.claim is not None}
        rows: dict[bytes, LedgerRow] = {}
        after: tuple[str, bytes] | None = None
        while page := await store.ledger_rows(after, 1_000):
            rows.update({row.key: row for row in page if row.run_id == log.run_id})
            after = page[-1].tenant, page[-1].key
        self.counts["lost"] += len(keys - rows.keys())
        self.counts["half-committed"] += sum(row.status != "succeeded" for row in rows.values())
        self.counts["half-committed"] += len(rows.keys() - keys)
        self.counts["acknowledged"] += len(done)
