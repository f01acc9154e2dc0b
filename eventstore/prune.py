"""Old runs make room: their logs go, and what others need of them stays.

A pruned run keeps its index row, the tombstone: who it was, how and when it ended, its last seq and the head of its chain. It keeps
every ledger row, so a business intent of old is still done once. Only whole trees go, ended before a time, intact, and
without an effect of which nobody knows: for that one a person may still be asked, and the log says what was sent.

Blobs are swept by what all logs name. So if one of them can't be read, or isn't any run's, no blob goes: it may be what that one names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from ..runtime.errors import BoundloopError, LogDamaged, RunPruned, StoreError
from .codec import full_body, resolve
from .forensics import unknown_effects
from .history import PinsCache, fold_records
from .ledger_audit import RunClaims
from .port import EventStore, RunFilter, RunRow
from .upkeep import Upkeep
from .verify import intact_pages, intact_rows

PAGE_RUNS: Final = 1_000
PAGE_ROWS: Final = 500

PUT_GRACE_MS: Final = 24 * 3_600_000
"""A blob that was put since stays, named or not: the append that names it may be still to come."""

NAMES_AT_ONCE: Final = 200_000
"""Blobs whose names are looked for in one walk over all logs; so memory is bounded."""

_NAMES: Final = re.compile(rb"(?=\xc4\x20(.{32})|([0-9a-f]{64}))", re.DOTALL)
"""Where a digest may stand in encoded events: as 32 bytes of msgpack, or as hex in a text or in JSON."""


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """``runs``: pruned now, or those that would be. ``kept``: old enough runs that stay, with why: the top of a tree that stays as
    a whole, or the run at which the store refused to go on. ``rows``: of logs that went. ``blobs``: that went because nobody names
    them. ``unswept``: why other blobs stay that may be nobody's; empty if there is no reason, or no sweep (``dry_run``)."""

    runs: tuple[str, ...]
    kept: tuple[tuple[str, str], ...]
    rows: int
    blobs: int
    unswept: str = ""


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """``blobs``: how many were removed. ``unswept``: why no further one was, named or not; empty if nothing stood against it."""

    blobs: int
    unswept: str = ""


class _Unread(Exception):
    """What some log names isn't known."""


async def prune_store(store: EventStore, *, ended_before_ms: int, dry_run: bool = False) -> Pruned:
    """Prune all trees of runs whose last event of all is before then, and remove blobs that nobody names any more. The
    store may be in use. Each run goes in a transaction of its own: after a crash the rest is pruned the next time.
    ``dry_run`` changes nothing. Raises ``StoreError``."""
    if not isinstance(store, Upkeep):
        raise StoreError("no_upkeep", "this store can't be pruned")
    runs: list[str] = []
    kept: list[tuple[str, str]] = []
    rows, after = 0, ""
    behind = await _runs_behind_keys(store)
    seen: set[str] = set()
    where = RunFilter(status="terminated", updated_until_ms=ended_before_ms, limit=PAGE_RUNS)
    while page := await store.runs(msgspec.structs.replace(where, after=after)):
        after = page[-1].run_id
        for row in page:
            top = row.root_id or row.run_id
            if row.pruned_at_ms or top in seen:
                continue
            seen.add(top)
            tree = await _tree(store, row, top)
            if any(one.updated_at_ms >= ended_before_ms for one in tree if one.index.status == "terminated"):
                continue  # not all of it is old enough
            try:
                counted = await _insist(store, top, tree, behind)
            except BoundloopError as error:
                kept.append((top, error.message or error.code))
                continue
            for one in tree:
                if one.pruned_at_ms:
                    continue
                if not dry_run and not await store.prune(one.run_id, one.seq, one.head):
                    now = await store.run(one.run_id)
                    if now is not None and now.pruned_at_ms:
                        continue  # somebody else did
                    kept.append((one.run_id, "the store refused: its row or the ledger changed meanwhile"))
                    break  # those above it stay with it
                runs.append(one.run_id)
                rows += counted[one.run_id]
    swept = Swept(blobs=0) if dry_run else await sweep_blobs(store)
    return Pruned(runs=tuple(runs), kept=tuple(kept), rows=rows, blobs=swept.blobs, unswept=swept.unswept)


async def sweep_blobs(store: EventStore) -> Swept:
    """Remove the blobs that no log and no ledger row names, but those put lately, and pinned definitions, which hosts count on
    without putting them again. None is removed by a walk over the logs that couldn't read one of them to its end, or found one
    that has lost its row. Reads all logs once for each ``NAMES_AT_ONCE`` blobs. Raises ``StoreError``."""
    if not isinstance(store, Upkeep):
        raise StoreError("no_upkeep", "this store's blobs can't be swept")
    put_before_ms = store.now_ms() - PUT_GRACE_MS
    removed, after = 0, b""
    while names := await _names(store, after):
        after = names[-1]
        try:
            left = await _unnamed(store, set(names))
        except _Unread as unread:
            return Swept(blobs=removed, unswept=str(unread))
        loose = [name for name in sorted(left) if not await _is_pins(store, name)]
        for start in range(0, len(loose), PAGE_ROWS):
            removed += await store.drop_blobs(loose[start : start + PAGE_ROWS], put_before_ms=put_before_ms)
    return Swept(blobs=removed)


async def _tree(store: EventStore, row: RunRow, top: str) -> list[RunRow]:
    """All runs of it, those below first."""
    found = {row.run_id: row}
    after = ""
    while page := await store.runs(RunFilter(root_id=top, after=after, limit=PAGE_RUNS)):
        found |= {one.run_id: one for one in page}
        after = page[-1].run_id
    above = await store.run(top)
    if above is not None:
        found.pop(top, None)
        found[top] = above
    return list(found.values())


async def _runs_behind_keys(store: EventStore) -> set[str]:
    """Runs whose rows stand behind keys' rows: their logs are needed when a key goes back. A few, as a person has let each
    other run go ahead."""
    assert isinstance(store, Upkeep)
    found: set[str] = set()
    behind: tuple[str, bytes, int] | None = None
    while page := await store.earlier_rows(behind, PAGE_ROWS):
        found |= {one.row.run_id for one in page}
        behind = page[-1].row.tenant, page[-1].row.key, page[-1].place
    return found


async def _insist(store: EventStore, top: str, tree: list[RunRow], behind: set[str]) -> dict[str, int]:
    """How many rows each run's log has. Raises ``BoundloopError`` if the tree must stay."""
    counted: dict[str, int] = {}
    pins = PinsCache()
    if tree[-1].run_id != top:
        raise StoreError(
            "no_top", f"the row of run {top}, at the top of its tree, is gone: nobody knows whether it ended"
        )
    for run in tree:
        if run.index.status != "terminated":
            raise StoreError("not_ended", f"run {run.run_id} of its tree hasn't ended")
    for run in tree:
        if run.pruned_at_ms:
            continue
        if run.damaged:
            raise StoreError("log_damaged", f"run {run.run_id} is damaged: {run.damaged}")
        if run.run_id in behind:
            raise StoreError("key_held", f"a row of run {run.run_id} stands behind a key's")
        stored = await intact_rows(store, run.run_id)
        if not stored or stored[-1].hash != run.head:
            raise StoreError("log_end", f"the log of run {run.run_id} doesn't end where its row says")
        records = await resolve(stored, store.get_blob)
        if unknown_effects(await fold_records(store, records, pins)):
            raise StoreError("unknown_effect", f"nobody knows what became of an effect of run {run.run_id}")
        claims = RunClaims(run.run_id)
        claims.take(records)
        for call in claims.calls.values():
            held = await store.ledger_row(run.tenant, call.key)
            if (
                held is not None
                and held.run_id == run.run_id
                and held.status not in ("succeeded", "rejected")
            ):
                raise StoreError("key_held", f"run {run.run_id} holds a key as {held.status}")
        counted[run.run_id] = len(stored)
    return counted


async def _names(store: EventStore, after: bytes) -> list[bytes]:
    assert isinstance(store, Upkeep)
    names: list[bytes] = []
    while len(names) < NAMES_AT_ONCE:
        page = await store.blob_names(after, PAGE_ROWS)
        if not page:
            break
        names += page
        after = page[-1]
    return names


async def _leave_named(store: EventStore, run: RunRow, names: set[bytes]) -> None:
    """Take from ``names`` what the run's log names. Raises ``StoreError`` unless all of it was read, as it was written; of a pruned
    run there is nothing, and what it named went with it."""
    seq = 0
    try:
        async for page in intact_pages(store, run):
            for row in page:
                names.difference_update(named_in(row.body))  # a spilled one's own name
                names.difference_update(named_in(await full_body(row, store.get_blob)))
                seq = row.first_seq + row.event_count - 1
    except RunPruned:
        return
    if seq < run.seq:
        raise LogDamaged(run.run_id, seq + 1, run.seq, f"the log ends at seq {seq}, its row says {run.seq}")


async def _unnamed(store: EventStore, names: set[bytes]) -> set[bytes]:
    """Those that nothing names. Raises ``_Unread``."""
    assert isinstance(store, Upkeep)
    after = ""
    while page := await store.runs_in_order(after, PAGE_RUNS):
        after = page[-1].run_id
        for run in page:
            try:
                await _leave_named(store, run, names)
            except StoreError as error:
                why = f"run {run.run_id} can't be read to its end, and what it names isn't known: "
                raise _Unread(why + (error.message or error.code)) from error
    # Behind the walk, so that a log whose row is lost on the way is found too.
    for number, _ in await store.lost_logs(0, 1):
        raise _Unread(f"log {number} has lost its run's row, and wasn't read (store rebuild restores it)")
    place: tuple[str, bytes] | None = None
    while held := await store.ledger_rows(place, PAGE_ROWS):
        names -= named_in(*(row.result or b"" for row in held))
        place = held[-1].tenant, held[-1].key
    behind: tuple[str, bytes, int] | None = None
    while earlier := await store.earlier_rows(behind, PAGE_ROWS):
        names -= named_in(*(one.row.result or b"" for one in earlier))
        behind = earlier[-1].row.tenant, earlier[-1].row.key, earlier[-1].place
    return names


def named_in(*texts: bytes) -> set[bytes]:
    """Everything in these bytes that may be a blob's name: too many rather than too few."""
    return set(_found(texts))


def _found(texts: Iterable[bytes]) -> Iterable[bytes]:
    for text in texts:
        for match in _NAMES.finditer(text):
            yield match[1] if match[1] is not None else bytes.fromhex(match[2].decode())


class _PinsOfAny(msgspec.Struct):
    """What pinned definitions of all versions have. A newer program's are no ``Pins`` of this one's, and are counted on all the
    same."""

    producer: str
    model: str
    adapter_revision: str
    policy_revision: str
    tools: list[msgspec.Raw]


async def _is_pins(store: EventStore, name: bytes) -> bool:
    data = await store.get_blob(name)
    try:
        msgspec.json.decode(data or b"", type=_PinsOfAny)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
