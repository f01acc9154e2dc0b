"""The SQL of a store's own upkeep. Each method is one job, as in ``sqlite_rows``."""

from __future__ import annotations

from .port import RunRow
from .run_pages import rest_of
from .sqlite_rows import FAULTS_MAX, SqliteRows


class SqliteUpkeep(SqliteRows):
    """Everything that a ``SqliteStore`` does with its connection."""

    def reindex(self, row: RunRow) -> bool:
        """See ``Upkeep.reindex``."""
        index = row.index
        rest = rest_of(index)
        changed = self._connection().execute(
            "UPDATE runs SET tenant = ?, agent = ?, operation_id = ?, parent_id = ?, root_id = ?, created_at_ms = ?, "
            "updated_at_ms = ?, epoch = max(epoch, ?), status = ?, outcome = ?, reason = ?, waiting_for = ?, rest = ?, "
            "rested_at_ms = ?, wake_at_ms = ? WHERE run_id = ? AND seq = ? AND head = ?",
            (
                row.tenant,
                row.agent,
                row.operation_id,
                row.parent_id,
                row.root_id,
                row.created_at_ms,
                row.updated_at_ms,
                row.epoch,
                index.status,
                index.outcome,
                index.reason,
                index.waiting_for,
                rest,
                row.updated_at_ms if rest else None,
                index.wake_at_ms,
                row.run_id,
                row.seq,
                row.head,
            ),
        )
        if not changed.rowcount:
            return False
        self._known.pop(row.run_id, None)
        known = self._look_up(row.run_id)
        assert known is not None
        self._wait_for(known, index.waiting_keys)
        self._wake(row.run_id, self._now_ms())
        self._known.pop(row.run_id, None)
        return True

    def faults(self) -> list[str]:
        """See ``SqliteStore.faults``."""
        found = super().faults()
        astray = self._all(
            "SELECT run_id FROM runs WHERE rest <> CASE WHEN waiting_for <> '' OR status IN ('suspended', 'terminated') "
            "THEN status ELSE '' END OR rested_at_ms IS NOT CASE WHEN rest <> '' THEN updated_at_ms END LIMIT ?",
            (FAULTS_MAX,),
        )
        found += [f"run {run_id}: lists don't find it by what its row says" for (run_id,) in astray]
        return found[:FAULTS_MAX]
