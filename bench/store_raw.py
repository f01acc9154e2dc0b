"""What an append costs beyond the commit: round trips through the store against bare one-row commits, in one run.

`python bench/store_raw.py [--seconds N]` prints one JSON line a result. The bare writer uses the store's own settings
(WAL, synchronous FULL), one UPDATE and one INSERT a commit, on the calling thread; so its figure is the floor.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
import tempfile
import time

from boundloop.eventstore.chain import GENESIS, append_hash
from boundloop.eventstore.port import APPEND_SCHEMA_VERSION, Append, Appended, NewRun
from boundloop.eventstore.sqlite import SqliteStore
from boundloop.eventstore.sqlite_file import connect
from boundloop.runtime.ledger import RunIndex

BODY = os.urandom(350)
INDEX = RunIndex(status="open_calls")


def bare(folder: str, seconds: float) -> dict[str, object]:
    """One-row commits on this thread."""
    connection: sqlite3.Connection = connect(os.path.join(folder, "bare.db"))
    connection.execute("CREATE TABLE heads (run_key INTEGER PRIMARY KEY, seq INTEGER, head BLOB) STRICT")
    connection.execute(
        "CREATE TABLE rows (run_key INTEGER, seq INTEGER, body BLOB, hash BLOB, UNIQUE (run_key, seq)) STRICT"
    )
    connection.execute("INSERT INTO heads VALUES (1, 0, x'00')")
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            "UPDATE heads SET seq = ?, head = ? WHERE run_key = 1 AND seq = ?", (count + 1, GENESIS, count)
        )
        connection.execute("INSERT INTO rows VALUES (1, ?, ?, ?)", (count, BODY, GENESIS))
        connection.execute("COMMIT")
        count += 1
    passed = time.perf_counter() - start
    connection.close()
    return {
        "bench": "bare_commit",
        "runs": 1,
        "per_second": round(count / passed),
        "us": round(passed / count * 1e6, 1),
    }


async def writer(store: SqliteStore, run_id: str, deadline: float) -> int:
    """Append one after another until the deadline; returns how many."""
    seq, head = 0, GENESIS
    while time.perf_counter() < deadline:
        append_id, at_ms = seq.to_bytes(8, "big"), store.now_ms()
        digest = append_hash(
            head, run_id, seq + 1, 1, 1, at_ms, append_id, "tick", APPEND_SCHEMA_VERSION, BODY
        )
        answer = await store.append(
            Append(
                run_id=run_id,
                expected_seq=seq,
                epoch=1,
                append_id=append_id,
                at_ms=at_ms,
                causation="tick",
                body=BODY,
                event_count=1,
                prev_hash=head,
                hash=digest,
                index=INDEX,
                host_id="h",
                create=NewRun(tenant="t", agent="a", operation_id="o") if seq == 0 else None,
            )
        )
        assert isinstance(answer, Appended), answer
        seq, head = answer.seq, digest
    return seq


async def through_the_store(folder: str, runs: int, seconds: float) -> dict[str, object]:
    path = os.path.join(folder, f"store{runs}.db")
    store = await SqliteStore.open(path)
    start, cpu = time.perf_counter(), time.process_time()
    counts = await asyncio.gather(
        *(writer(store, f"run-{number:06}", start + seconds) for number in range(runs))
    )
    passed, cpu = time.perf_counter() - start, time.process_time() - cpu
    count = sum(counts)
    await store.close()
    size = sum(os.path.getsize(path + tail) for tail in ("", "-wal") if os.path.exists(path + tail))
    return {
        "bench": "append",
        "runs": runs,
        "per_second": round(count / passed),
        "us": round(passed / count * 1e6, 1),
        "cpu_us": round(cpu / count * 1e6, 1),
        "bytes_beyond_body_and_hash": round(size / count - len(BODY) - 32),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=2.0)
    options.add_argument("--folder", default=None, help="where the files go; its disk is what is measured")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        print(json.dumps(bare(folder, given.seconds)))
        for runs in (1, 32, 1_000):
            print(json.dumps(asyncio.run(through_the_store(folder, runs, given.seconds))))


if __name__ == "__main__":
    main()
