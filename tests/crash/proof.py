"""What must hold after a crash, and after the run has been carried to its end by someone else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
from examples.far_side import FarSide

from boundloop.actors.result import Result
from boundloop.eventstore.codec import Recorded
from boundloop.eventstore.history import fold_records, read_records
from boundloop.eventstore.port import EventStore
from boundloop.eventstore.verify import verify_store
from boundloop.runtime import events as e
from boundloop.runtime.invariants import check_state

from .scenario import KEYS_BY_KIND, RUN_ID


class Acknowledged(msgspec.Struct, frozen=True, tag="acknowledged"):
    """An append that the store said yes to, as its host heard it."""

    run_id: str
    first_seq: int
    event_count: int
    hash: bytes


class Counted:
    """What a far side has counted since this was made: cases have keys of their own and share the service."""

    def __init__(self, far: FarSide) -> None:
        self._far = far
        self._before = far.counts()

    def counts(self) -> dict[str, dict[str, int]]:
        """As ``FarSide.counts``, without what was there before."""
        return {
            what: {name: count for name, count in found.items() if name not in self._before[what]}
            for what, found in self._far.counts().items()
        }


async def check_log(store: EventStore, acknowledged: Sequence[Acknowledged]) -> list[Recorded]:
    """Nothing acknowledged is lost or changed, the chain verifies, and every prefix of appends folds lawfully. The
    records; none if the run was never written."""
    verdict = await verify_store(store)
    assert verdict.ok, verdict
    rows = {(row.first_seq, row.event_count): row.hash for row in await store.read(RUN_ID)}
    for append in acknowledged:
        assert rows.get((append.first_seq, append.event_count)) == append.hash, append
    if not rows:
        return []
    records = await read_records(store, RUN_ID)
    for end in sorted(first + count - 1 for first, count in rows):
        check_state(await fold_records(store, records[:end]))
    return records


def check_intents(records: Sequence[Recorded], requests: dict[str, int]) -> None:
    """No effect was asked for without its intent in the log, and none more often than there are intents."""
    keys: dict[str, str] = {}
    intents: Counter[str] = Counter()
    for record in records:
        event = record.event
        if isinstance(event, e.CallValidated) and event.key is not None:
            keys[event.call] = event.key.hex()
        elif isinstance(event, e.CallStarted) and event.call in keys:
            intents[keys[event.call]] += 1
    for name, count in requests.items():
        assert count <= intents[name.partition(":")[2]], f"{name}: {count} requests, intents {intents}"


def check_end(result: Result, records: Sequence[Recorded], counts: dict[str, dict[str, int]]) -> None:
    """The run completed, each call has exactly one result, and each intent is one effect."""
    assert (result.outcome, result.text) == ("completed", "Done."), result
    proposed = [record.event.call for record in records if isinstance(record.event, e.CallProposed)]
    bound = [record.event.call for record in records if isinstance(record.event, e.ResultBound)]
    assert sorted(bound) == sorted(proposed)
    check_intents(records, counts["requests"])
    kinds = Counter(name.partition(":")[0] for name in counts["effects"])
    assert kinds == KEYS_BY_KIND
    assert set(counts["effects"].values()) == {1}
    for name, count in counts["requests"].items():
        if name.startswith(("none:", "queryable:")):
            assert count == 1, f"{name} was asked for {count} times"
