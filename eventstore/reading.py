"""One run, read for people: what is as written, apart from what isn't.

The chain is recomputed before anything is believed. Of a damaged log the state is that of the last event before the
damage, so a reader still learns what happened until then.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..runtime.errors import HistoryRefused, LogDamaged, RunNotFound
from ..runtime.state import State
from .codec import Recorded, full_body, recorded
from .history import PAGE_ROWS, PinsCache, fold_records
from .port import EventStore, RunRow, StoredAppend
from .verify import intact_rows, refuse_pruned


@dataclass
class Reading:
    """``records`` are as written, ``state`` is their fold; ``doubtful`` were read from the damaged append on. ``damage``
    is empty if all is well. ``state`` is None if nothing can be folded: the pins are gone or altered, or seq 1 is bad."""

    row: RunRow
    records: list[Recorded] = field(default_factory=list[Recorded])
    doubtful: list[Recorded] = field(default_factory=list[Recorded])
    state: State | None = None
    damage: str = ""
    first_bad_seq: int = 0
    last_bad_seq: int = 0

    def whole(self) -> State:
        """The state, for commands that have nothing to show without one. Raises ``HistoryRefused``."""
        if self.state is None:
            raise HistoryRefused("log_damaged", self.damage, path=self.row.run_id)
        return self.state


async def read_run(store: EventStore, run_id: str, pins: PinsCache | None = None) -> Reading:
    """Everything of one run, each row checked against the chain. Raises ``RunNotFound`` and ``StoreError``. ``pins`` are
    read anew unless a cache is handed in: a process that knows them from before wouldn't see that they were altered."""
    row = await store.run(run_id)
    if row is None:
        raise RunNotFound(run_id)
    found = Reading(row)
    await _read_rows(store, found)
    if found.damage:
        refuse_pruned(await store.run(run_id) or row)  # it may have been while it was read
    if row.damaged and not found.damage:
        found.damage = row.damaged
    try:
        found.state = await fold_records(store, found.records, pins or PinsCache()) if found.records else None
    except (HistoryRefused, LogDamaged) as error:
        found.damage = found.damage or error.message
    return found


async def _read_rows(store: EventStore, found: Reading) -> None:
    run_id = found.row.run_id
    try:
        rows = await intact_rows(store, run_id)
    except LogDamaged as error:
        _mark(found, error.first_bad_seq, error.last_bad_seq, error.message)
        rows = await _all_rows(store, run_id)
    for row in rows:
        bad = found.first_bad_seq
        try:
            read = recorded(row, await full_body(row, store.get_blob))
        except LogDamaged as error:
            if not bad or row.first_seq < bad:
                _mark(found, error.first_bad_seq, error.last_bad_seq, error.message)
            continue
        except (TypeError, ValueError):
            continue  # a damaged row may hold anything; that it is bad was found above
        if bad and row.first_seq + row.event_count > bad:
            found.doubtful += read
        else:
            found.records += read
    if not found.first_bad_seq:
        await _check_end(store, found, rows)


async def _all_rows(store: EventStore, run_id: str) -> list[StoredAppend]:
    """As they are stored; a row without a usable seq ends the walk."""
    rows: list[StoredAppend] = []
    seq = 0
    while page := await store.read(run_id, after_seq=seq, rows_max=PAGE_ROWS):
        rows += page
        last = page[-1].first_seq
        if type(last) is not int or last <= seq:
            break
        seq = last
    return rows


async def _check_end(store: EventStore, found: Reading, rows: list[StoredAppend]) -> None:
    """The log must reach what the run's row said before it was read, and not pass what it says now: in between the run
    may have moved on."""
    before, after = found.row, await store.run(found.row.run_id)
    ends = {row.first_seq + row.event_count - 1: row.hash for row in rows}
    last = max(ends, default=0)
    if last < before.seq:
        _mark(found, last + 1, before.seq, f"the log ends at seq {last}, the run's row says {before.seq}")
    elif before.seq and ends.get(before.seq) != before.head:
        _mark(found, before.seq, before.seq, "the log's last hash isn't the head in the run's row")
    elif after is not None and last > after.seq:
        _mark(found, after.seq + 1, last, f"the log goes on to seq {last}, the run's row says {after.seq}")


def _mark(found: Reading, first_seq: int, last_seq: int, problem: str) -> None:
    found.damage, found.first_bad_seq, found.last_bad_seq = problem, first_seq, last_seq
