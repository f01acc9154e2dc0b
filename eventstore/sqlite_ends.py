"""What was written last, checked when a file is opened: a crash or a failing disk damages that before anything else."""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from .chain import GENESIS, append_hash

ROWS_MAX: Final = 1_000
"""Rows of the log that are looked at, the latest ones."""

BYTES_MAX: Final = 2 * 1024 * 1024
"""Of their bodies; a few milliseconds of hashing. Older rows are checked by whoever reads them, and by ``verify``."""

_LATEST: Final = (
    "SELECT a.run_key, r.run_id, a.first_seq, a.event_count, a.epoch, a.at_ms, a.append_id, a.causation, "
    "a.schema_version, a.body, a.hash, r.seq, r.head, r.damaged FROM appends a JOIN runs r USING (run_key) "
    "ORDER BY a.rowid DESC LIMIT ?"
)
_BEFORE: Final = (
    "SELECT hash FROM appends WHERE run_key = ? AND first_seq < ? ORDER BY first_seq DESC LIMIT 1"
)


def damaged_ends(connection: sqlite3.Connection) -> dict[str, str]:
    """The runs whose latest rows aren't as written, or don't end where the run's row says, each with what is wrong. A part
    of the file that can't be read at all ends the look: reading a run says that of that run."""
    found: dict[str, str] = {}
    seen: set[int] = set()
    left = BYTES_MAX
    try:
        for row in connection.execute(_LATEST, (ROWS_MAX,)):
            run_key, run_id, body, damaged = row[0], row[1], row[9], row[13]
            left -= len(body)
            if left < 0:
                break
            problem = _problem(connection, row, last=run_key not in seen)
            seen.add(run_key)
            if problem and not damaged:
                found[run_id] = problem
    except (sqlite3.Error, UnicodeDecodeError):
        pass
    return found


def _problem(connection: sqlite3.Connection, row: Any, *, last: bool) -> str:
    run_key, run_id, first_seq, count, epoch, at_ms, append_id, causation, version, body, hash_ = row[:11]
    seq, head = row[11:13]
    before = connection.execute(_BEFORE, (run_key, first_seq)).fetchone()
    prev_hash = GENESIS if before is None else before[0]
    made = append_hash(prev_hash, run_id, first_seq, count, epoch, at_ms, append_id, causation, version, body)
    if made != hash_:
        return f"the append from seq {first_seq} isn't as it was written"
    if last and (first_seq + count - 1, hash_) != (seq, head):
        return f"the log ends at seq {first_seq + count - 1}, the run's row says {seq}"
    return ""
