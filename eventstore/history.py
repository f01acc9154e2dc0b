"""A run's history, read back: its records in order and the state they fold to. No I/O beyond the store.

Rows are read in pages, spilled bodies and the pinned definitions are fetched by content, and the fold is the one that
hosts use. What can't be folded is refused by seq, never guessed. Who goes on with a run checks its chain first
(``load_intact``); who only reads doesn't (``verify`` does).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from ..runtime.errors import BugError, CallerError, HistoryRefused, LogDamaged, RunNotFound
from ..runtime.events import RunStarted
from ..runtime.fold import begin, evolve
from ..runtime.pins import Pins, read_pins
from ..runtime.state import State
from .chain import GENESIS
from .codec import Recorded, resolve
from .port import EventStore
from .verify import intact_rows, refuse_pruned

PAGE_ROWS = 500
PINS_CACHED_MAX = 64


class PinsCache:
    """Decoded pins by hash, the latest ``PINS_CACHED_MAX``: runs of one application share theirs."""

    def __init__(self) -> None:
        self._pins: OrderedDict[bytes, Pins] = OrderedDict()

    def get(self, digest: bytes) -> Pins | None:
        pins = self._pins.get(digest)
        if pins is not None:
            self._pins.move_to_end(digest)
        return pins

    def put(self, digest: bytes, pins: Pins) -> None:
        self._pins[digest] = pins
        if len(self._pins) > PINS_CACHED_MAX:
            self._pins.popitem(last=False)


_shared = PinsCache()


def pins_from(digest: bytes, encoded: bytes) -> Pins:
    """Pins that this process is about to store, as every later reader will have them: decoded from their bytes, so that a
    live run and its fold work from one and the same order of keys."""
    pins = _shared.get(digest)
    if pins is None:
        pins = read_pins(digest, encoded)
        _shared.put(digest, pins)
    return pins


async def load_run(
    store: EventStore, run_id: str, pins: PinsCache | None = None
) -> tuple[State, list[Recorded]]:
    """The whole history as stored now. Raises ``RunNotFound``, ``LogDamaged``, ``HistoryRefused``, ``StoreError``."""
    records = await read_records(store, run_id)
    return await fold_records(store, records, pins), records


async def load_intact(store: EventStore, run_id: str) -> tuple[State, bytes]:
    """The state to go on from, and the chain head that it stands on. Every row is checked against the chain before it is
    believed, so an altered log is read, shown and reported, but never acted on. Raises as ``load_run``."""
    rows = await intact_rows(store, run_id)
    records = await resolve(rows, store.get_blob)
    return await fold_records(store, records), rows[-1].hash if rows else GENESIS


async def fold_to(store: EventStore, run_id: str, seq: int) -> tuple[State, list[Recorded]]:
    """The history up to and including ``seq``, which may stand in the middle of an append.

    Raises ``CallerError`` (``seq_range``) for a seq that the log doesn't have, else as ``load_run``.
    """
    records = await read_records(store, run_id, to_seq=seq)
    if not 1 <= seq <= len(records):
        raise CallerError("seq_range", f"the log has seq 1 to {len(records)}", path=f"{run_id}@{seq}")
    return await fold_records(store, records[:seq]), records[:seq]


async def read_records(store: EventStore, run_id: str, *, to_seq: int | None = None) -> list[Recorded]:
    """The events in order, from seq 1; rows after the one that holds ``to_seq`` aren't read. Raises ``RunPruned`` too if the
    log was pruned while it was read, unless all of it was read before."""
    records: list[Recorded] = []
    asked = False
    while to_seq is None or len(records) < to_seq:
        rows = await store.read(run_id, after_seq=len(records), rows_max=PAGE_ROWS)
        if not rows:
            await _insist_on_end(store, run_id, len(records))
            break
        try:
            found = await resolve(rows, store.get_blob)
        except LogDamaged:
            await _insist_on_end(
                store, run_id, len(records)
            )  # pruned meanwhile, and its spilled bodies swept
            raise
        for number, record in enumerate(found, len(records) + 1):
            if record.seq != number:
                raise HistoryRefused("log_gap", f"seq {number} is missing", path=run_id)
        records += found
        if to_seq is None and len(rows) < PAGE_ROWS and not asked:
            # An empty page would say the same of the end, and the run's row would be asked for all the same.
            asked = True
            if await _ends_at(store, run_id, len(records)):
                break
    return records


async def _ends_at(store: EventStore, run_id: str, seq: int) -> bool:
    row = await store.run(run_id)
    return row is not None and row.seq == seq


async def _insist_on_end(store: EventStore, run_id: str, seq: int) -> None:
    """Nothing can be read above ``seq``: not because the rest was pruned meanwhile."""
    row = await store.run(run_id)
    if row is None:
        raise RunNotFound(run_id)
    if seq < row.seq:
        refuse_pruned(row)


async def fold_records(
    store: EventStore, records: Sequence[Recorded], pins: PinsCache | None = None
) -> State:
    """The state after these records, which start at seq 1. Raises ``HistoryRefused`` with the seq that can't follow."""
    started = records[0].event if records else None
    if not isinstance(started, RunStarted):
        raise HistoryRefused("log_start", "the log does not begin with run_started")
    state = begin(started, await pins_of(store, started.pins_sha256, pins), records[0].at_ms)
    for record in records[1:]:
        try:
            evolve(state, record.event, record.at_ms)
        except BugError as error:
            raise HistoryRefused(
                "log_illegal", f"seq {record.seq} can't follow: {error.message}", path=started.run_id
            ) from error
    return state


async def pins_of(store: EventStore, digest: bytes, cache: PinsCache | None = None) -> Pins:
    """The pinned definitions of that hash, read at most once while the cache holds them."""
    cache = _shared if cache is None else cache
    pins = cache.get(digest)
    if pins is None:
        pins = read_pins(digest, await store.get_blob(digest))
        cache.put(digest, pins)
    return pins
