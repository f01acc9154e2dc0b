"""Is the log what was written? The chains, recomputed over the stored bytes.

A changed, removed or reordered row is found at that row, by arithmetic alone and without keys. What the chain can't
show is a run whose tail or whole log was cut off together with its index row, or an older copy of the file: that
takes heads that were kept elsewhere.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec

from ..runtime.errors import LogDamaged, RunNotFound, StoreError
from .chain import GENESIS, append_hash
from .codec import full_body, recorded
from .port import EventStore, RunFilter, RunRow, StoredAppend

PAGE_ROWS = 500


class RunVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """``problem`` is empty if the run's log verifies. Else ``first_bad_seq`` to ``last_bad_seq`` is the first append
    that can't be trusted; everything before it is as written. ``rows`` and ``events`` count what was read and good."""

    run_id: str
    rows: int
    events: int
    head: bytes
    problem: str = ""
    first_bad_seq: int = 0
    last_bad_seq: int = 0

    @property
    def ok(self) -> bool:
        return not self.problem

    def error(self) -> LogDamaged | None:
        """The verdict as an error to raise, None if the log verifies."""
        if self.ok:
            return None
        return LogDamaged(self.run_id, self.first_bad_seq, self.last_bad_seq, self.problem)


class StoreVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Every run's verdict, and what is wrong with the file beyond single logs."""

    runs: tuple[RunVerdict, ...]
    faults: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.faults and all(run.ok for run in self.runs)


@runtime_checkable
class HasFaults(Protocol):
    """A store that can be damaged as a whole."""

    async def faults(self) -> list[str]: ...


async def verify_run(store: EventStore, run_id: str) -> RunVerdict:
    """Read one run's log to its end or its first bad row. Raises ``RunNotFound`` and ``StoreError``."""
    row = await store.run(run_id)
    if row is None:
        raise RunNotFound(run_id)
    return await _verify(store, row)


async def intact_rows(store: EventStore, run_id: str) -> list[StoredAppend]:
    """All rows of one run's log, each checked against the chain, for who is about to act on them. Raises ``RunNotFound``,
    and ``LogDamaged`` for the first row that isn't as written. Whether the tail is there is the caller's to check: the
    last row's hash is the head."""
    run = await store.run(run_id)
    if run is None:
        raise RunNotFound(run_id)
    walk = _Walk(run)
    rows: list[StoredAppend] = []
    while page := await store.read(run_id, after_seq=walk.seq, rows_max=PAGE_ROWS):
        for row in page:
            problem = walk.problem_of(row)
            if problem:
                last_bad_seq = _last_seq(walk.seq, row)
                raise LogDamaged(run_id, walk.seq + 1, max(walk.seq + 1, last_bad_seq), problem)
            walk.step(row)
        rows += page
    return rows


async def verify_store(store: EventStore) -> StoreVerdict:
    """Every run, and the file. A file too damaged to list its runs raises ``StoreError``."""
    verdicts: list[RunVerdict] = []
    after = ""
    while page := await store.runs(RunFilter(after=after, limit=PAGE_ROWS)):
        for row in page:
            try:
                verdicts.append(await _verify(store, row))
            except StoreError as error:
                verdicts.append(_Walk(row).verdict(f"the log can't be read: {error}"))
        after = page[-1].run_id
    faults = await store.faults() if isinstance(store, HasFaults) else []
    return StoreVerdict(runs=tuple(verdicts), faults=tuple(faults))


class _Walk:
    """Where the walk over one log stands."""

    def __init__(self, run: RunRow) -> None:
        self.run = run
        self.rows = self.events = self.seq = self.epoch = self.at_ms = 0
        self.head = GENESIS

    def verdict(self, problem: str = "", first_seq: int = 0, last_seq: int = 0) -> RunVerdict:
        first_seq = first_seq or self.seq + 1
        return RunVerdict(
            run_id=self.run.run_id,
            rows=self.rows,
            events=self.events,
            head=self.head,
            problem=problem,
            first_bad_seq=first_seq if problem else 0,
            last_bad_seq=max(first_seq, last_seq) if problem else 0,
        )

    def problem_of(self, row: StoredAppend) -> str:
        """What is wrong with the row's envelope and bytes; empty if nothing."""
        if not _has_its_types(row):
            return "a field of the row has another type than was written"
        if row.event_count < 1 or row.first_seq != self.seq + 1:
            return f"the append after seq {self.seq} is missing or out of place"
        wanted = append_hash(
            self.head,
            row.run_id,
            row.first_seq,
            row.event_count,
            row.epoch,
            row.at_ms,
            row.append_id,
            row.causation,
            row.schema_version,
            row.body,
        )
        if row.hash != wanted:
            return "the hash doesn't fit the row"
        if row.epoch < self.epoch:
            return f"epoch {row.epoch} comes after epoch {self.epoch}"
        if row.at_ms < self.at_ms:
            return f"time falls from {self.at_ms} to {row.at_ms}"
        return ""

    def step(self, row: StoredAppend) -> None:
        self.rows += 1
        self.events += row.event_count
        self.seq = row.first_seq + row.event_count - 1
        self.epoch, self.at_ms, self.head = row.epoch, row.at_ms, row.hash

    def problem_at_end(self) -> str:
        """Whether the run's index row tells of the same end as its log."""
        run = self.run
        if not _is_a(int, run.epoch):
            return "the epoch in the run's row is no number"
        if run.seq != self.seq:
            return f"the log ends at seq {self.seq}, the run's row says {run.seq}"
        if run.head != self.head:
            return "the log's last hash isn't the head in the run's row"
        if run.epoch < self.epoch:
            return f"the log holds epoch {self.epoch}, the run's row says {run.epoch}"
        return ""


async def _verify(store: EventStore, run: RunRow) -> RunVerdict:
    walk = _Walk(run)
    while page := await store.read(run.run_id, after_seq=walk.seq, rows_max=PAGE_ROWS):
        for row in page:
            problem = walk.problem_of(row)
            if problem:
                return walk.verdict(problem, last_seq=_last_seq(walk.seq, row))
            try:
                recorded(row, await full_body(row, store.get_blob))
            except LogDamaged as error:
                return walk.verdict(error.message, last_seq=_last_seq(walk.seq, row))
            walk.step(row)
    return walk.verdict(walk.problem_at_end())


def _is_a(kind: type, value: object) -> bool:
    return isinstance(value, kind)


def _has_its_types(row: StoredAppend) -> bool:
    """A damaged page may give text for a number; a database's types hold for what it writes, not for what it reads."""
    numbers = (row.first_seq, row.event_count, row.epoch, row.at_ms, row.schema_version)
    return (
        all(_is_a(int, number) for number in numbers)
        and all(_is_a(bytes, data) for data in (row.append_id, row.body, row.hash))
        and all(_is_a(str, text) for text in (row.run_id, row.causation))
    )


def _last_seq(seq: int, row: StoredAppend) -> int:
    """The end of the first bad append: of this row if it is in its place, else of the gap before it."""
    if not _has_its_types(row):
        return seq + 1
    if row.first_seq == seq + 1:
        return row.first_seq + max(row.event_count, 1) - 1
    return max(row.first_seq - 1, seq + 1)
