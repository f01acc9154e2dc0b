"""Is the log what was written? The chains, recomputed over the stored bytes; and what is derived from the logs.

A changed, removed or reordered row is found at that row, by arithmetic alone and without keys. Who a run belongs to is
compared with its first event, and the effect ledger with what all the logs say of it (``ledger_audit``). What this can't
show is a run whose tail or whole log was cut off together with all that was derived from it, somebody who wrote new
rows with right hashes, or an older copy of the file: that takes heads that were kept elsewhere. Kill switches, hosts,
readiness and timers aren't in any log; ``store check`` compares what a run waits for.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol, runtime_checkable

import msgspec

from ..runtime.errors import LogDamaged, RunNotFound, RunPruned, StoreError
from ..runtime.events import RunStarted
from ..runtime.ledger import LedgerRow
from .chain import GENESIS, append_hash
from .codec import full_body, recorded
from .ledger_audit import RunClaims, ledger_faults
from .port import EventStore, RunFilter, RunRow, StoredAppend

PAGE_ROWS = 500

LOOKS = 3
"""How often something that looks amiss in a store that is in use is looked at."""

FAULTS_MAX = 100
"""Faults of the ledger that one look reports."""


class RunVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """``problem`` is empty if the run's log verifies. Else ``first_bad_seq`` to ``last_bad_seq`` is the first append
    that can't be trusted; everything before it is as written. ``rows`` and ``events`` count what was read and good. Of a ``pruned`` run
    there is nothing to read, and ``head`` is what its row says."""

    run_id: str
    rows: int
    events: int
    head: bytes
    problem: str = ""
    first_bad_seq: int = 0
    last_bad_seq: int = 0
    pruned: bool = False

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
    return await _verify(store, row, RunClaims(run_id))


async def intact_rows(store: EventStore, run_id: str) -> list[StoredAppend]:
    """All rows of one run's log, each checked against the chain, for who is about to act on them. Raises ``RunNotFound``,
    and ``LogDamaged`` for the first row that isn't as written. Whether the tail is there is the caller's to check: the
    last row's hash is the head."""
    run = await store.run(run_id)
    if run is None:
        raise RunNotFound(run_id)
    refuse_pruned(run)
    return [row async for page in intact_pages(store, run) for row in page]


async def intact_pages(store: EventStore, run: RunRow) -> AsyncGenerator[list[StoredAppend]]:
    """As ``intact_rows``, page by page. Raises ``RunPruned`` behind the last one, for one that is pruned meanwhile too."""
    walk = _Walk(run)
    while page := await store.read(run.run_id, after_seq=walk.seq, rows_max=PAGE_ROWS):
        for row in page:
            problem = walk.problem_of(row)
            if problem:
                last_bad_seq = _last_seq(walk.seq, row)
                raise LogDamaged(run.run_id, walk.seq + 1, max(walk.seq + 1, last_bad_seq), problem)
            walk.step(row)
        yield page
    if walk.seq < run.seq:
        refuse_pruned(await store.run(run.run_id) or run)  # it may have been meanwhile


def refuse_pruned(run: RunRow) -> None:
    """For who needs the log. Raises ``RunPruned``."""
    if run.pruned_at_ms:
        raise RunPruned(run.run_id, run.index.outcome, run.index.reason)


async def verify_store(store: EventStore) -> StoreVerdict:
    """Every run, the ledger, and the file. A file too damaged to list its runs raises ``StoreError``. The store may be in
    use: what is found amiss is looked at again, and reported if it is found each time."""
    verdicts, ledger = await _verify_runs(store)
    for _ in range(LOOKS - 1):
        if not ledger:
            break
        verdicts, again = await _verify_runs(store)
        ledger = [fault for fault in ledger if fault in again]
    faults = await store.faults() if isinstance(store, HasFaults) else []
    return StoreVerdict(runs=tuple(verdicts), faults=(*faults, *ledger[:FAULTS_MAX]))


async def _verify_runs(store: EventStore) -> tuple[list[RunVerdict], list[str]]:
    """The verdicts on all logs, and what the ledger has otherwise than they."""
    verdicts: list[RunVerdict] = []
    runs: list[RunClaims] = []
    after = ""
    while page := await store.runs(RunFilter(after=after, limit=PAGE_ROWS)):
        for row in page:
            claims = RunClaims(row.run_id)
            try:
                verdict = await _verify(store, row, claims)
            except StoreError as error:
                verdict = _Walk(row).verdict(f"the log can't be read: {error}")
            verdicts.append(verdict)
            # Pruned while it was read, a log was told of in part.
            runs.append(RunClaims(row.run_id) if verdict.pruned else claims)
        after = page[-1].run_id
    unread = {verdict.run_id for verdict in verdicts if not verdict.ok}
    pruned = frozenset(verdict.run_id for verdict in verdicts if verdict.pruned)
    unread |= {claims.run_id for claims in runs if claims.started is None and claims.run_id not in pruned}
    try:
        rows = await _ledger(store)
    except StoreError as error:
        return verdicts, [f"the ledger can't be read: {error}"]
    trusted = [claims for claims in runs if claims.run_id not in unread]
    return verdicts, ledger_faults(rows, trusted, frozenset(unread), pruned)


async def _ledger(store: EventStore) -> list[LedgerRow]:
    rows: list[LedgerRow] = []
    pages: set[tuple[str, bytes]] = set()
    place: tuple[str, bytes] | None = None
    while page := await store.ledger_rows(place, PAGE_ROWS):
        rows += page
        place = page[-1].tenant, page[-1].key
        if place in pages:
            raise StoreError("ledger_out_of_order", "its rows aren't in the order of their keys")
        pages.add(place)
    return rows


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


async def _verify(store: EventStore, run: RunRow, claims: RunClaims) -> RunVerdict:
    """``claims`` is told of the log's events."""
    if run.pruned_at_ms:
        return await _verify_pruned(store, run)
    walk = _Walk(run)
    bad: RunVerdict | None = None
    for _ in range(LOOKS):
        bad = await _walk_on(store, walk, claims)
        if bad is None and not walk.problem_at_end():
            break
        now = await store.run(run.run_id)  # it may have gone on, or been pruned, while its log was read
        if now is not None and now.pruned_at_ms:
            return await _verify_pruned(store, now)
        if bad is not None or now is None or now == walk.run:
            break
        walk.run = now
    return bad or walk.verdict(walk.problem_at_end() or _problem_of_origin(run, claims.started))


async def _verify_pruned(store: EventStore, run: RunRow) -> RunVerdict:
    rows = await store.read(run.run_id, rows_max=1)
    problem = "it was pruned, and there are rows of its log" if rows else ""
    return msgspec.structs.replace(_Walk(run).verdict(problem), pruned=True, head=run.head)


async def _walk_on(store: EventStore, walk: _Walk, claims: RunClaims) -> RunVerdict | None:
    """Read to the log's end; a verdict if there is a bad row."""
    while page := await store.read(walk.run.run_id, after_seq=walk.seq, rows_max=PAGE_ROWS):
        for row in page:
            problem = walk.problem_of(row)
            if problem:
                return walk.verdict(problem, last_seq=_last_seq(walk.seq, row))
            try:
                claims.take(recorded(row, await full_body(row, store.get_blob)))
            except LogDamaged as error:
                return walk.verdict(error.message, last_seq=_last_seq(walk.seq, row))
            walk.step(row)
    return None


def _problem_of_origin(run: RunRow, started: RunStarted | None) -> str:
    """Whether the run's row says of its origin what its first event says."""
    if started is None:
        return ""
    told = {
        "run_id": started.run_id,
        "tenant": started.tenant,
        "agent": started.agent,
        "operation_id": started.operation_id,
        "parent_id": started.parent_run,
    }
    if not started.parent_run:
        told["root_id"] = started.run_id
    for name, value in told.items():
        if getattr(run, name) != value:
            return f"its {name} in the run's row isn't the one that the log begins with"
    return ""


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
