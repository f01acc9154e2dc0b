"""A run as it goes: its committed events, each exactly once and in order, whatever the reader's pace; and, for a reader that
follows, what its model writes meanwhile.

A slow reader reads from the log later; nothing is buffered for it, so it loses nothing and holds up nobody.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from ..adapters.port import AttemptReset, CallPreparing, TextDelta
from ..eventstore.codec import resolve
from ..eventstore.history import load_run
from ..eventstore.port import EventStore, StoredAppend
from ..eventstore.verify import refuse_pruned
from ..runtime.errors import HistoryRefused, RunNotFound
from ..runtime.events import AnyEvent, ModelFailed, ModelResponded, RunSuspended, RunTerminated
from .provisional import DONE, Mark, Shown
from .resting import rested_result
from .waiting import Until, rests

PAGE_ROWS: Final = 200


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a run's log. ``seq`` counts from 1 without gaps; to go on after it, give it as ``after_seq``."""

    run_id: str
    seq: int
    at_ms: int
    event: AnyEvent


class HostedElsewhere(msgspec.Struct, frozen=True, kw_only=True):
    """A host of another process has the run in a shared store: what its model writes isn't shown here, its events are."""

    run_id: str
    host_id: str


FollowItem: TypeAlias = "Committed | TextDelta | CallPreparing | AttemptReset | HostedElsewhere"
"""What a reader that follows gets: a committed event, something provisional of the attempt that is out, or why there is nothing of that."""

ANSWERED: Final = frozenset(("calls", "final", "paused"))
"""The finishes whose text stands; of any other what was shown is void."""


class Follower:
    """One reader's place in what a run shows: which attempt it was shown how much of, and whether that still stands."""

    def __init__(self) -> None:
        self.mark = Mark()
        self._stands = False

    def take(self, shown: Shown, after_seq: int) -> tuple[TextDelta | CallPreparing, ...]:
        """What of it is for this reader, who has read the log up to ``after_seq``: nothing while there is something to be
        read before it."""
        if not shown.items or shown.after_seq > after_seq:
            return ()
        self.mark = shown.mark
        self._stands = True
        return shown.items

    def reset_before(self, event: AnyEvent) -> AttemptReset | None:
        """What is to be said before this event: that what was shown is void, if it is. What became of an attempt closes it: no
        more of it is taken."""
        mark = self.mark
        if isinstance(event, ModelResponded | ModelFailed):
            self.mark = Mark(event.turn, event.attempt, DONE)
            void = isinstance(event, ModelFailed) or event.finish not in ANSWERED
        else:
            void = isinstance(event, RunSuspended | RunTerminated)
            if not void:
                return None
        stood, self._stands = self._stands, False
        return AttemptReset(mark.turn, mark.attempt) if stood and void else None


class News(msgspec.Struct, frozen=True, array_like=True):
    """Of a run that is followed: whether its log has grown, and what was shown meanwhile. ``elsewhere``: the host that
    has it now, where that is another process's in a shared store, can't be asked what it shows, and wasn't known."""

    grown: bool
    shown: Shown
    elsewhere: str = ""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to read now; ``over`` if the run has come to where the reader wants to stop."""

    items: tuple[Committed, ...]
    row_seq: int
    over: bool


async def committed_from(store: EventStore, run_id: str, after_seq: int, row_seq: int, until: Until) -> Page:
    """Events above ``after_seq``. ``row_seq`` is the end of the last row that was read whole, 0 for none: an append is
    read as a whole, and a reader may have stopped in the middle of one. Raises ``RunNotFound``, ``StoreError``,
    ``HistoryRefused`` for a damaged run, once all that is still to be read was read, and ``RunPruned`` if what is still to be
    read was pruned."""
    rows = await store.read(run_id, after_seq=row_seq, rows_max=PAGE_ROWS)
    if rows:
        row_seq = _end(rows[-1])
        records = await resolve([row for row in rows if _end(row) > after_seq], store.get_blob)
        items = tuple(
            Committed(run_id=run_id, seq=record.seq, at_ms=record.at_ms, event=record.event)
            for record in records
            if record.seq > after_seq
        )
        ends = bool(items) and isinstance(items[-1].event, RunTerminated | RunSuspended)
        return Page(items=items, row_seq=row_seq, over=ends and len(rows) < PAGE_ROWS)
    row = await store.run(run_id)
    if row is None:
        raise RunNotFound(run_id)
    if row.seq > row_seq:
        refuse_pruned(row)
        return Page(items=(), row_seq=row_seq, over=False)  # it has grown meanwhile: read on
    if row.damaged:
        raise HistoryRefused("log_damaged", row.damaged, path=run_id)
    if row.index.status == "terminated":
        return Page(items=(), row_seq=row_seq, over=True)
    if row.ready or row.owner:
        return Page(items=(), row_seq=row_seq, over=False)
    state, _ = await load_run(store, run_id)
    return Page(items=(), row_seq=row_seq, over=rests(await rested_result(store, state), until))


def _end(row: StoredAppend) -> int:
    return row.first_seq + row.event_count - 1
