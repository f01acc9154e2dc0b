"""The upkeep of the reference store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from ..runtime.errors import ConflictError, RunNotFound
from ..runtime.ledger import LedgerRow
from .archive import (
    AppendRecord,
    BlobRecord,
    EarlierRecord,
    LedgerRecord,
    PartRecord,
    Record,
    RunRecord,
    SwitchRecord,
)
from .port import HostRow, RunRow, StoredAppend, Switch
from .rules import is_ended
from .upkeep import EarlierRow


class MemoryRun:
    """One run's row and its log. ``ready_at_ms`` is None when the run has nothing to do."""

    __slots__ = ("log", "place", "ready_at_ms", "row")

    def __init__(self, row: RunRow, place: int) -> None:
        self.row = row
        self.place = place
        self.log: list[StoredAppend] = []
        self.ready_at_ms: int | None = None

    def shown(self) -> RunRow:
        """As the port gives it."""
        return msgspec.structs.replace(self.row, ready=self.ready_at_ms is not None)


class MemoryUpkeep:
    """What a ``MemoryStore`` holds, and its upkeep."""

    def __init__(self) -> None:
        self._runs: dict[str, MemoryRun] = {}
        self._ledger: dict[tuple[str, bytes], LedgerRow] = {}
        self._earlier: dict[tuple[str, bytes], tuple[LedgerRow, ...]] = {}
        self._blobs: dict[bytes, bytes] = {}
        self._put_at_ms: dict[bytes, int] = {}
        self._hosts: dict[str, HostRow] = {}
        self._switches: dict[tuple[str, str], Switch] = {}

    def now_ms(self) -> int:
        raise NotImplementedError

    def _notify(self, run_ids: list[str]) -> None:
        raise NotImplementedError

    def _wake(self, run_id: str, now_ms: int) -> bool:
        run = self._runs.get(run_id)
        if run is None or is_ended(run.row.index):
            return False
        if run.ready_at_ms is None:
            run.ready_at_ms = now_ms
        return True

    async def reindex(self, row: RunRow) -> bool:
        """See ``Upkeep``."""
        run = self._runs.get(row.run_id)
        if run is None or (run.row.seq, run.row.head) != (row.seq, row.head):
            return False
        kept = {name: getattr(run.row, name) for name in ("owner", "ready", "damaged")}
        run.row = msgspec.structs.replace(row, **kept, epoch=max(run.row.epoch, row.epoch))
        if self._wake(row.run_id, self.now_ms()):
            self._notify([row.run_id])
        return True

    async def lost_logs(self, after: int = 0, limit: int = 100) -> list[tuple[int, StoredAppend]]:
        """See ``Upkeep``."""
        return []  # a log and its row are one object here

    async def adopt(self, number: int, run_id: str) -> bool:
        """See ``Upkeep``."""
        return False

    async def astray(self, after: str = "", limit: int = 100) -> list[str]:
        """See ``Upkeep``."""
        return []  # all is found by the rows themselves

    async def runs_in_order(self, after: str = "", limit: int = 100) -> list[RunRow]:
        """See ``Upkeep``."""
        last = self._runs.get(after)
        if after and last is None:
            raise RunNotFound(after)
        place = -1 if last is None else last.place
        return [run.shown() for run in self._runs.values() if run.place > place][:limit]

    async def blob_names(self, after: bytes = b"", limit: int = 100) -> list[bytes]:
        """See ``Upkeep``."""
        return sorted(name for name in self._blobs if name > after)[:limit]

    async def earlier_rows(
        self, after: tuple[str, bytes, int] | None = None, limit: int = 100
    ) -> list[EarlierRow]:
        """See ``Upkeep``."""
        found = [(*key, place, row) for key, rows in self._earlier.items() for place, row in enumerate(rows)]
        found = sorted(one for one in found if after is None or one[:3] > after)
        return [EarlierRow(place, row) for *_, place, row in found[:limit]]

    async def prune(self, run_id: str, seq: int, head: bytes) -> bool:
        """See ``Upkeep``."""
        run = self._runs.get(run_id)
        if (
            run is None
            or (run.row.seq, run.row.head) != (seq, head)
            or run.row.damaged
            or run.row.pruned_at_ms
        ):
            return False
        top = run.row.root_id or run_id
        tree = [one.row for one in self._runs.values() if top in (one.row.root_id, one.row.run_id)]
        behind = (row for rows in self._earlier.values() for row in rows)
        if (
            top not in self._runs
            or not all(is_ended(one.index) for one in (run.row, *tree))
            or any(row.run_id == run_id and row.status == "unknown" for row in self._ledger.values())
            or any(row.run_id == run_id for row in behind)
        ):
            return False
        now_ms = max(1, self.now_ms())
        run.row = msgspec.structs.replace(run.row, pruned_at_ms=now_ms, epoch=run.row.epoch + 1, owner="")
        run.log.clear()
        return True

    async def drop_blobs(self, names: Sequence[bytes], *, put_before_ms: int) -> int:
        """See ``Upkeep``."""
        old = [name for name in names if name in self._blobs and self._put_at_ms.get(name, 0) < put_before_ms]
        for name in old:
            del self._blobs[name]
            self._put_at_ms.pop(name, None)
        return len(old)

    async def take_in(self, records: Callable[[], Iterator[Record]]) -> None:
        """See ``TakesIn``."""
        if self._runs or self._ledger or self._earlier or self._switches:
            raise ConflictError("store_not_empty", "the store holds something else")
        now_ms = self.now_ms()
        if any(host.expires_at_ms > now_ms for host in self._hosts.values()):
            raise ConflictError("store_in_use", "a live host is registered")
        taken = MemoryUpkeep()
        parts: dict[bytes, list[bytes]] = {}
        run_id, name = "", b""
        for record in records():
            match record:
                case RunRecord(row):
                    run = MemoryRun(msgspec.structs.replace(row, ready=False), len(taken._runs))
                    run.ready_at_ms = now_ms if row.ready else None
                    run_id = row.run_id
                    taken._runs[run_id] = run
                case AppendRecord(row):
                    taken._runs[run_id].log.append(row)
                case BlobRecord(digest, _):
                    name = digest
                    parts[name] = []
                case PartRecord(data):
                    parts[name].append(data)
                case LedgerRecord(row):
                    taken._ledger[row.tenant, row.key] = row
                case EarlierRecord(_, row):
                    key = row.tenant, row.key
                    taken._earlier[key] = (*taken._earlier.get(key, ()), row)
                case SwitchRecord(switch):
                    taken._switches[switch.scope, switch.target] = switch
                case _:
                    pass
        self._blobs |= {name: b"".join(data) for name, data in parts.items()}
        self._put_at_ms |= dict.fromkeys(parts, now_ms)
        self._runs |= taken._runs
        self._ledger |= taken._ledger
        self._earlier |= taken._earlier
        self._switches |= taken._switches
