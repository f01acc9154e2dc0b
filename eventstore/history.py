"""A run's history as decisions and people read it: rows decoded, pins resolved, folded.

Everything here reads only the store. ``load_run`` is also the whole of recovery: what a new host knows of a run is the
fold of its log.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from ..runtime.errors import HistoryRefused
from ..runtime.events import RunStarted
from ..runtime.fold import fold
from ..runtime.pins import Pins, read_pins
from ..runtime.state import State
from .codec import Recorded, resolve
from .port import EventStore

PAGE_ROWS: Final = 2_000
PINS_KEPT_MAX: Final = 256


class PinsCache:
    """Decoded pins by hash. Runs of one application share them, and their compiled schemas with them."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._kept: OrderedDict[bytes, Pins] = OrderedDict()

    def put(self, digest: bytes, pins: Pins) -> None:
        """Remember pins that this process made itself."""
        self._kept[digest] = pins
        while len(self._kept) > PINS_KEPT_MAX:
            self._kept.popitem(last=False)

    def known(self, digest: bytes) -> Pins | None:
        """The pins if they are in memory."""
        return self._kept.get(digest)

    async def get(self, digest: bytes) -> Pins:
        """From memory or the store. Raises ``HistoryRefused`` if the blob is missing or altered."""
        pins = self._kept.get(digest)
        if pins is None:
            pins = read_pins(digest, await self._store.get_blob(digest))
            self.put(digest, pins)
        return pins


async def read_records(store: EventStore, run_id: str, *, up_to_seq: int | None = None) -> list[Recorded]:
    """All events of a run in order, read in pages; with ``up_to_seq`` those up to and including it."""
    records: list[Recorded] = []
    after = 0
    while True:
        rows = await store.read(run_id, after_seq=after, rows_max=PAGE_ROWS)
        records += await resolve(rows, store.get_blob)
        if len(rows) < PAGE_ROWS:
            break
        after = rows[-1].first_seq + rows[-1].event_count - 1
        if up_to_seq is not None and after >= up_to_seq:
            break
    if up_to_seq is not None:
        records = [record for record in records if record.seq <= up_to_seq]
    return records


async def load_run(
    store: EventStore, run_id: str, cache: PinsCache, *, up_to_seq: int | None = None
) -> tuple[State, list[Recorded]]:
    """The folded state and the events it was folded from. Raises ``HistoryRefused`` or ``LogDamaged``."""
    records = await read_records(store, run_id, up_to_seq=up_to_seq)
    if not records or not isinstance(records[0].event, RunStarted):
        raise HistoryRefused("log_start", "the log does not begin with run_started", path=run_id)
    digest = records[0].event.pins_sha256
    pins = await cache.get(digest)
    state = fold(((record.event, record.at_ms) for record in records), {digest: pins})
    return state, records
