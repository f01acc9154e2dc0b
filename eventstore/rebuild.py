"""Index rows, written anew from the logs: what lists, inboxes and timers read holds nothing that a log doesn't say.

Where a log ends is the one thing that its index row knows better: a cut tail shows by the row's seq and head alone. So a run
whose log doesn't reach them, or isn't as written, is left as it is and named.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from ..runtime.errors import BoundloopError, RunNotFound, RunPruned, StoreError
from ..runtime.events import RunStarted
from ..runtime.index import run_index
from .codec import full_body, recorded
from .history import PinsCache, fold_records
from .port import EventStore, RunFilter, RunRow, StoredAppend
from .upkeep import Upkeep
from .verify import intact_rows

PAGE_RUNS: Final = 200
LOOKS: Final = 3
"""How often a run that goes on meanwhile is looked at."""

GENERATIONS_MAX: Final = 1_000


class Rebuilt(msgspec.Struct, frozen=True, kw_only=True):
    """``runs``: how many were looked at. ``rewritten``: those whose row said something else than the log. ``restored``: those that
    had no row any more; that such a log ends where it ends is known by nothing else. ``left``: those that were left alone,
    with why."""

    runs: int
    rewritten: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    left: tuple[tuple[str, str], ...] = ()


async def rebuild_index(store: EventStore) -> Rebuilt:
    """Compare each run's index row with its log, and write it anew where they differ. The store may be in use; the outcome of
    a crash in the middle is that some rows are still to be written. Raises ``StoreError``, also for a store without upkeep
    (``no_upkeep``)."""
    if not isinstance(store, Upkeep):
        raise StoreError("no_upkeep", "this store can't write index rows by themselves")
    work = _Work(store)
    runs, after = 0, ""
    astray = await _astray(store)
    rewritten: list[str] = []
    restored, left = await _adopt_lost(store)
    while page := await store.runs(RunFilter(after=after, limit=PAGE_RUNS)):
        for row in page:
            runs += 1
            try:
                if await work.mend(row, astray) and row.run_id not in restored:
                    rewritten.append(row.run_id)
            except RunPruned:
                pass  # meanwhile; its row is all there is
            except BoundloopError as error:
                left.append((row.run_id, error.message or error.code))
        after = page[-1].run_id
    return Rebuilt(runs=runs, rewritten=tuple(rewritten), restored=tuple(restored), left=tuple(left))


async def _astray(store: Upkeep) -> frozenset[str]:
    found: set[str] = set()
    after = ""
    while page := await store.astray(after, PAGE_RUNS):
        found.update(page)
        after = page[-1]
    return frozenset(found)


async def _adopt_lost(store: EventStore) -> tuple[list[str], list[tuple[str, str]]]:
    """Rows for logs that lost theirs, still to be mended; and the logs that can't have one."""
    restored: list[str] = []
    left: list[tuple[str, str]] = []
    number = 0
    assert isinstance(store, Upkeep)
    while page := await store.lost_logs(number, PAGE_RUNS):
        for number, first in page:
            name = f"log {number}"
            try:
                run_id = await _run_of(store, first)
            except StoreError as error:
                left.append(
                    (
                        name,
                        f"it has no row, and its first append can't be read: {error.message or error.code}",
                    )
                )
                continue
            if run_id is None:
                left.append((name, "it has no row, and doesn't begin as runs do"))
            elif await store.adopt(number, run_id):
                restored.append(run_id)
            else:
                left.append((name, f"it has no row, and another log is that of run {run_id}"))
    return restored, left


async def _run_of(store: EventStore, first: StoredAppend) -> str | None:
    """Whose log begins so. Raises ``StoreError`` if that can't be read, now or at all."""
    event = recorded(first, await full_body(first, store.get_blob))[0].event
    return event.run_id if isinstance(event, RunStarted) and first.first_seq == 1 else None


class _Work:
    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._pins = PinsCache()
        self._roots: dict[str, str] = {}

    async def mend(self, row: RunRow, astray: Collection[str]) -> bool:
        """Whether the row was another, or is one of those that are ``astray``. Raises ``BoundloopError`` for a run that is to be left
        alone."""
        store = self._store
        assert isinstance(store, Upkeep)
        for _ in range(LOOKS):
            # Of a pruned run the row is all there is.
            told = row if row.pruned_at_ms else await self._told(row)
            if told == row and row.run_id not in astray:
                return False
            if await store.reindex(told):
                return True
            now = await store.run(row.run_id)
            if now is None:
                raise RunNotFound(row.run_id)
            row = now
        raise StoreError("run_contended", "it goes on while it is looked at")

    async def _told(self, row: RunRow) -> RunRow:
        """The row as the log has it."""
        store = self._store
        rows = await intact_rows(store, row.run_id)
        if not rows or (_last_seq(rows[-1]), rows[-1].hash) != (row.seq, row.head):
            now = await store.run(row.run_id)
            if now is not None and (now.seq, now.head) != (row.seq, row.head):
                return row  # it went on; the next look sees it
            raise StoreError("log_end", "its log doesn't end where its row says")
        records = [
            record for stored in rows for record in recorded(stored, await full_body(stored, store.get_blob))
        ]
        state = await fold_records(store, records, self._pins)
        started = records[0].event
        assert isinstance(started, RunStarted)  # or it would not fold
        return msgspec.structs.replace(
            row,
            tenant=started.tenant,
            agent=started.agent,
            operation_id=started.operation_id,
            parent_id=started.parent_run,
            root_id=await self._root_of(started),
            created_at_ms=rows[0].at_ms,
            updated_at_ms=rows[-1].at_ms,
            epoch=max(row.epoch, rows[-1].epoch),
            index=run_index(state),
        )

    async def _root_of(self, started: RunStarted) -> str:
        """The run at the top, by the first events of the runs above."""
        below: list[str] = []
        run_id, parent = started.run_id, started.parent_run
        for _ in range(GENERATIONS_MAX):
            if not parent or run_id in self._roots:
                break
            below.append(run_id)
            row = await self._store.run(parent)
            if row is not None and row.pruned_at_ms:
                run_id, parent = row.root_id or row.run_id, ""
                break
            above = await self._first_event(parent)
            run_id, parent = above.run_id, above.parent_run
        root = self._roots.get(run_id, run_id)
        self._roots.update(dict.fromkeys((*below, run_id), root))
        return root

    async def _first_event(self, run_id: str) -> RunStarted:
        found = await self._store.read(run_id, rows_max=1)
        if found:
            event = recorded(found[0], await full_body(found[0], self._store.get_blob))[0].event
            if isinstance(event, RunStarted):
                return event
        raise RunNotFound(run_id)


def _last_seq(row: StoredAppend) -> int:
    return row.first_seq + row.event_count - 1
