"""The store of another process: the same methods, carried to its owner by whatever reaches it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from ..runtime.ledger import LedgerRow
from .port import (
    AcquireAnswer,
    Append,
    AppendAnswer,
    HostRow,
    RunFilter,
    RunRow,
    StoredAppend,
    Switch,
)
from .socket_protocol import ROWS_MAX, Answer
from .upkeep import EarlierRow


class RemoteStore(ABC):
    """Every call is one request to the owner. The time is the owner's as of its last answer, carried on by this
    process's monotonic clock; so are the kill switches, and an answer that tells of a change is given only once they
    have been read anew: whatever is dispatched after an append has seen them."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._now_ms = 0
        self._told_ms = 0
        self._now_at_ns = time.monotonic_ns()
        self._switches: tuple[Switch, ...] = ()
        self._switches_seen = 0
        self._switches_told = 0

    @abstractmethod
    async def _exchange(self, op: str, *args: object) -> Any:
        """One request and its decoded answer. Raises the owner's error, or ``StoreError`` (``owner_gone``)."""

    @abstractmethod
    async def close(self) -> None:
        """Hang up. Harmless when done before."""

    def _note(self, answer: Answer) -> None:
        """What every answer tells besides its value."""
        self.now_ms()  # what was told so far stands, also where this process's clock was the faster one
        self._now_ms = answer.now_ms
        self._now_at_ns = time.monotonic_ns()
        if answer.failure is None:
            self._switches_told = max(self._switches_told, answer.switches)

    async def _asked(self, op: str, *args: object) -> Any:
        value = await self._exchange(op, *args)
        if self._switches_told != self._switches_seen and op != "switches":
            await self.switches()
        return value

    async def identity(self) -> str:
        found: str = await self._asked("identity")
        return found

    def now_ms(self) -> int:
        """The owner's time as of its last answer, carried on by this process's monotonic clock. It never falls: where that
        clock was ahead, it stands still until the owner's has caught up."""
        passed_ms = (time.monotonic_ns() - self._now_at_ns) // 1_000_000
        self._told_ms = max(self._told_ms, self._now_ms + passed_ms)
        return self._told_ms

    async def append(self, request: Append) -> AppendAnswer:
        answer: AppendAnswer = await self._asked("append", request)
        return answer

    async def read(self, run_id: str, *, after_seq: int = 0, rows_max: int = 1_000) -> list[StoredAppend]:
        rows: list[StoredAppend] = []
        while len(rows) < rows_max:
            wanted = min(ROWS_MAX, rows_max - len(rows))
            page: list[StoredAppend] = await self._asked("read", run_id, after_seq, wanted)
            rows += page
            if len(page) < wanted:
                break
            after_seq = page[-1].first_seq
        return rows

    async def run(self, run_id: str) -> RunRow | None:
        row: RunRow | None = await self._asked("run", run_id)
        return row

    async def runs(self, where: RunFilter) -> list[RunRow]:
        rows: list[RunRow] = []
        while len(rows) < where.limit:
            wanted = min(ROWS_MAX, where.limit - len(rows))
            page: list[RunRow] = await self._asked("runs", msgspec.structs.replace(where, limit=wanted))
            rows += page
            if len(page) < wanted:
                break
            where = msgspec.structs.replace(where, after=page[-1].run_id)
        return rows

    async def put_blob(self, data: bytes) -> bytes:
        digest: bytes = await self._asked("put_blob", data)
        return digest

    async def get_blob(self, sha256: bytes) -> bytes | None:
        data: bytes | None = await self._asked("get_blob", sha256)
        return data

    async def ledger_row(self, tenant: str, key: bytes) -> LedgerRow | None:
        row: LedgerRow | None = await self._asked("ledger_row", tenant, key)
        return row

    async def ledger_rows(self, after: tuple[str, bytes] | None = None, limit: int = 100) -> list[LedgerRow]:
        rows: list[LedgerRow] = await self._asked("ledger_rows", after, limit)
        return rows

    async def unknown_effects(self, tenant: str | None = None, limit: int = 100) -> list[LedgerRow]:
        rows: list[LedgerRow] = await self._asked("unknown_effects", tenant, limit)
        return rows

    async def register_host(self, host: HostRow) -> None:
        await self._asked("register_host", host)

    async def renew_host(self, host_id: str) -> bool:
        renewed: bool = await self._asked("renew_host", host_id)
        return renewed

    async def drop_host(self, host_id: str, *, died: bool = False) -> None:
        await self._asked("drop_host", host_id, died)

    async def hosts(self) -> list[HostRow]:
        rows: list[HostRow] = await self._asked("hosts")
        return rows

    async def acquire(self, run_id: str, host_id: str, *, dead_hosts: Sequence[str] = ()) -> AcquireAnswer:
        answer: AcquireAnswer = await self._asked("acquire", run_id, host_id, list(dead_hosts))
        return answer

    async def release(self, run_id: str, host_id: str, epoch: int, *, ready: bool) -> None:
        await self._asked("release", run_id, host_id, epoch, ready)

    async def ready_runs(self, limit: int = 100) -> list[str]:
        run_ids: list[str] = await self._asked("ready_runs", limit)
        return run_ids

    async def next_wake_ms(self) -> int | None:
        at_ms: int | None = await self._asked("next_wake_ms")
        return at_ms

    async def mark_damaged(self, run_id: str, reason: str) -> None:
        await self._asked("mark_damaged", run_id, reason)

    async def reindex(self, row: RunRow) -> bool:
        """See ``Upkeep``."""
        written: bool = await self._asked("reindex", row)
        return written

    async def lost_logs(self, after: int = 0, limit: int = 100) -> list[tuple[int, StoredAppend]]:
        """See ``Upkeep``."""
        rows: list[tuple[int, StoredAppend]] = await self._asked("lost_logs", after, limit)
        return rows

    async def adopt(self, number: int, run_id: str) -> bool:
        """See ``Upkeep``."""
        made: bool = await self._asked("adopt", number, run_id)
        return made

    async def astray(self, after: str = "", limit: int = 100) -> list[str]:
        """See ``Upkeep``."""
        run_ids: list[str] = await self._asked("astray", after, limit)
        return run_ids

    async def runs_in_order(self, after: str = "", limit: int = 100) -> list[RunRow]:
        """See ``Upkeep``."""
        rows: list[RunRow] = await self._asked("runs_in_order", after, limit)
        return rows

    async def blob_names(self, after: bytes = b"", limit: int = 100) -> list[bytes]:
        """See ``Upkeep``."""
        names: list[bytes] = await self._asked("blob_names", after, limit)
        return names

    async def earlier_rows(
        self, after: tuple[str, bytes, int] | None = None, limit: int = 100
    ) -> list[EarlierRow]:
        """See ``Upkeep``."""
        rows: list[EarlierRow] = await self._asked("earlier_rows", after, limit)
        return rows

    async def prune(self, run_id: str, seq: int, head: bytes) -> bool:
        """See ``Upkeep``."""
        pruned: bool = await self._asked("prune", run_id, seq, head)
        return pruned

    async def drop_blobs(self, names: Sequence[bytes], *, put_before_ms: int) -> int:
        """See ``Upkeep``."""
        count: int = await self._asked("drop_blobs", list(names), put_before_ms)
        return count

    async def back_up(self, path: str) -> None:
        """As ``SqliteStore.back_up``, by the owner: where the path is on its machine."""
        await self._asked("back_up", path)

    async def faults(self) -> list[str]:
        """What ``SqliteStore.faults`` finds, in the owner."""
        found: list[str] = await self._asked("faults")
        return found

    async def switches(self) -> list[Switch]:
        told = self._switches_told
        rows: list[Switch] = await self._asked("switches")
        self._switches = tuple(rows)
        # A change between the question and its answer may or may not be in it: then it is asked again.
        self._switches_seen = told
        return rows

    def switches_known(self) -> tuple[Switch, ...]:
        return self._switches

    async def set_switch(self, switch: Switch, *, on: bool) -> None:
        await self._asked("set_switch", switch, on)
        await self.switches()

    async def submit(self, run_id: str, command_id: str, command: bytes) -> bytes:
        answer: bytes = await self._asked("submit", run_id, command_id, command)
        return answer

    async def ask(self, kind: str, question: bytes) -> bytes:
        """Put a question to the owner's application: see ``SqliteStore.ask``."""
        answer: bytes = await self._asked("ask", kind, question)
        return answer

    async def tell(self, kind: str, word: bytes) -> bytes:
        """As ``ask``, for what is answered at once: no number of open questions keeps it back."""
        answer: bytes = await self._asked("tell", kind, word)
        return answer
