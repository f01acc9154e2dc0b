"""Unknown effects of the runs below one, as they stand now: a person settles them in the log of the run that owns them."""

from __future__ import annotations

from ..runtime.errors import StoreError
from ..runtime.events import UnknownBelow
from ..runtime.state import State
from .history import PinsCache, load_run
from .port import EventStore


async def still_unknown(
    store: EventStore, state: State, pins: PinsCache | None = None
) -> tuple[UnknownBelow, ...]:
    """Of the unknown effects of ended runs below that the run's log names, those that nobody has settled since. Of a run
    that can't be read all are left as they are. Reads at most one log for each of them (``UNKNOWN_BELOW_MAX``)."""
    known: dict[str, frozenset[str] | None] = {}
    for run_id in {one.run for one in state.unknown_below if one.call}:
        try:
            below, _ = await load_run(store, run_id, pins)
        except StoreError:
            known[run_id] = None
        else:
            known[run_id] = frozenset(below.unknown_calls)
    left: list[UnknownBelow] = []
    for one in state.unknown_below:
        calls = known.get(one.run)
        if calls is None or one.call in calls:
            left.append(one)
    return tuple(left)
