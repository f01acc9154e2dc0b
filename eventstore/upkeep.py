"""What a store offers for its own upkeep, besides the port that runs are hosted through."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol, runtime_checkable

import msgspec

from ..runtime.ledger import LedgerRow
from .archive import Record
from .port import RunRow, StoredAppend

ASTRAY: Final = (
    "lists, timers or keys don't find it by what its row says; boundloop store rebuild writes that anew"
)
"""What ``faults`` says of an ``astray`` run."""


class EarlierRow(msgspec.Struct, frozen=True, gc=False):
    """A row behind a key's, and its place: 0 is the oldest."""

    place: int
    row: LedgerRow


@runtime_checkable
class Upkeep(Protocol):
    """The shipped stores have all of it. Each call is one transaction, and may raise ``StoreError``."""

    async def reindex(self, row: RunRow) -> bool:
        """Write what a run's index row says beside its log: all but its key, ``seq``, ``head``, owner, readiness and damage.
        The epoch is raised to the row's, never lowered. False, and nothing is written, if the run's seq or head are others:
        it went on. A run that hasn't ended is made ready: whoever takes it up sees what it has to do."""
        ...

    async def lost_logs(self, after: int = 0, limit: int = 100) -> list[tuple[int, StoredAppend]]:
        """Logs whose index row is gone: the store's own number of each, in order above ``after``, and its first row, whose ``run_id``
        is empty. Reads the index of all logs."""
        ...

    async def adopt(self, number: int, run_id: str) -> bool:
        """Make an index row for a lost log, as its last row has it and else empty, for ``reindex``. False, and nothing is written,
        if the log isn't lost or the run id is taken."""
        ...

    async def astray(self, after: str = "", limit: int = 100) -> list[str]:
        """Runs that lists, timers or settlements of keys don't find by what their index row says, in the order of their ids, above
        ``after``. ``reindex`` with the same row mends them. Reads all index rows."""
        ...

    async def runs_in_order(self, after: str = "", limit: int = 100) -> list[RunRow]:
        """Runs in the order in which they were made, from behind the run ``after``. Raises ``RunNotFound`` for one that isn't
        there."""
        ...

    async def blob_names(self, after: bytes = b"", limit: int = 100) -> list[bytes]:
        """The names of the blobs that are there, in order, above ``after``."""
        ...

    async def earlier_rows(
        self, after: tuple[str, bytes, int] | None = None, limit: int = 100
    ) -> list[EarlierRow]:
        """What stands behind keys' rows, as stored and unchecked, by (tenant, key, place) above ``after``."""
        ...

    async def prune(self, run_id: str, seq: int, head: bytes) -> bool:
        """Remove an ended run's log, and mark its row; its ledger rows stay. The epoch is raised: a writer that is late is fenced.
        False, and nothing is changed, if its seq or head are others, it or any run of its tree hasn't ended, the row at the top of its tree is
        gone, it is damaged or pruned already, or has an effect of which nobody knows, or a row behind a key's."""
        ...

    async def drop_blobs(self, names: Sequence[bytes], *, put_before_ms: int) -> int:
        """Remove those of these blobs that were last put before then, by the store's time, within an hour. How many there were.
        Whether anything names them is the caller's to know."""
        ...


@runtime_checkable
class TakesIn(Protocol):
    """A store that can take another's content in. Not through an owner's socket: whoever does it owns the file."""

    async def take_in(self, records: Callable[[], Iterator[Record]]) -> None:
        """Write all of an export in one transaction: after a crash there is nothing of it. ``records`` gives them from the
        first one on, and may be asked again. Owners, readiness and damage come with the runs; hosts don't, so a run that one
        had is taken up as one whose host died. Others are held up meanwhile. Raises ``ConflictError``: ``store_not_empty`` if there
        is any run, key or switch, ``store_in_use`` if a live host is registered."""
        ...
