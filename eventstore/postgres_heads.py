"""What this process was told is durable, so that a server that comes back without it is found out.

A standby that is promoted before it had everything, or a backup that is restored, answers as if nothing had happened.
Effects whose intent it lost may have taken place: their run must not go on as if they hadn't.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ..runtime.errors import HistoryRefused
from .text_columns import to_column

HEADS_MAX: Final = 100_000
"""Runs whose last append is remembered; beyond, those that were touched least lately are forgotten."""

LOST_HEADS: Final = (
    "SELECT told.run_id, coalesce(runs.seq, 0) AS seq "
    "FROM unnest($1::text[], $2::bigint[], $3::bytea[]) AS told (run_id, first_seq, hash) "
    "LEFT JOIN runs USING (run_id) "
    "WHERE NOT EXISTS (SELECT FROM appends WHERE appends.run_key = runs.run_key "
    "AND appends.first_seq = told.first_seq AND appends.hash = told.hash)"
)
"""Those of the told heads that the server doesn't have, and how far its log of the run goes."""


class Head(msgspec.Struct, frozen=True, gc=False):
    """An append that was acknowledged: where it begins, where it ends, its hash."""

    first_seq: int
    seq: int
    hash: bytes


class Heads:
    """By run. ``regressed``: runs whose acknowledged appends the server lost. ``marked``: those of them whose row says so."""

    def __init__(self) -> None:
        self._heads: dict[str, Head] = {}
        self.regressed: dict[str, HistoryRefused] = {}
        self.marked: set[str] = set()

    def acknowledged(self, run_id: str, expected_seq: int, seq: int, hash_: bytes) -> None:
        """An append was answered with yes."""
        heads = self._heads
        heads.pop(run_id, None)
        heads[run_id] = Head(expected_seq + 1, seq, hash_)
        if len(heads) > HEADS_MAX:
            del heads[next(iter(heads))]

    def falls_short(self, run_id: str, seq: int) -> HistoryRefused | None:
        """The error if a log that ends at ``seq`` lacks what was acknowledged. It is remembered."""
        head = self._heads.get(run_id)
        if head is None or seq >= head.seq:
            return None
        return self.lose(run_id, seq)

    def lose(self, run_id: str, seq: int) -> HistoryRefused:
        """Remember that the server's log of the run ends at ``seq``, or goes on with other appends, though more was
        acknowledged."""
        head = self._heads[run_id]
        error = HistoryRefused(
            "log_regressed",
            f"seq {head.first_seq} to {head.seq} was acknowledged and is gone: the server's log ends at seq {seq} or goes "
            "another way. A failover lost commits, or a backup was restored",
            path=run_id,
        )
        self.regressed[run_id] = error
        return error

    def pages(self, rows_max: int = 5_000) -> list[tuple[list[str], list[str], list[int], list[bytes]]]:
        """All heads for ``LOST_HEADS``: the runs' ids, and its three arguments."""
        found: list[tuple[list[str], list[str], list[int], list[bytes]]] = []
        items = list(self._heads.items())
        for at in range(0, len(items), rows_max):
            page = items[at : at + rows_max]
            ids = [run_id for run_id, _ in page]
            found.append(
                (
                    ids,
                    [to_column(run_id) for run_id in ids],
                    [head.first_seq for _, head in page],
                    [head.hash for _, head in page],
                )
            )
        return found
