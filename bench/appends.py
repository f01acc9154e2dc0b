"""store: append round trips a second through the store, against the two things that bound them from below.

The floor of a durable append is a bare one-row commit of SQLite with the store's own settings (WAL, synchronous FULL)
on the calling thread; the floor of a chained one is sha256. All are taken in one run, so their ratios hold even where
the machine's own speed changes from day to day.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Final

from bench.measure import Facts, Figures, Stopwatch, bare_commits_per_s, repeated, sha256_1k_per_cpu_s

from boundloop.eventstore.chain import GENESIS, append_hash
from boundloop.eventstore.port import APPEND_SCHEMA_VERSION, Append, Appended, NewRun
from boundloop.eventstore.sqlite import SqliteStore
from boundloop.runtime.ledger import RunIndex

BODY_BYTES: Final = 350
BODY: Final = b"\x91" + os.urandom(BODY_BYTES - 1)  # says that it is one event
INDEX: Final = RunIndex(status="open_calls")
RUNS: Final = (1, 32, 1_000)


def appends_per_second(folder: str, *, runs: int, seconds: float, repeat: int) -> Facts:
    """One-event appends of ``runs`` concurrent runs for ``seconds``, and both floors just before."""

    def once(number: int) -> Figures:
        commits = bare_commits_per_s(folder, seconds)
        hashes = sha256_1k_per_cpu_s(seconds / 4)
        figures = asyncio.run(_through_the_store(folder, f"store_{runs}_{number}", runs, seconds))
        return {
            **figures,
            "bare_commits_per_s": commits,
            "sha256_1k_per_cpu_s": hashes,
            "appends_per_bare_commit": figures["appends_per_s"] / commits,
            "append_cpu_in_sha256_1k": figures["cpu_s_per_1000"] / 1_000 * hashes,
        }

    return {"workload": "store", "runs": runs, "body_bytes": BODY_BYTES, **repeated(once, repeat)}


async def _through_the_store(folder: str, name: str, runs: int, seconds: float) -> Figures:
    path = os.path.join(folder, f"{name}.db")
    store = await SqliteStore.open(path)
    with Stopwatch() as watch:
        deadline = time.perf_counter() + seconds
        counts = await asyncio.gather(
            *(_append_until(store, f"run-{number:06}", deadline) for number in range(runs))
        )
    count = sum(counts)
    await store.close()
    size = sum(os.path.getsize(path + tail) for tail in ("", "-wal") if os.path.exists(path + tail))
    return {
        "appends_per_s": count / watch.wall_s,
        "us_per_append": watch.wall_s / count * 1e6,
        "cpu_s_per_1000": watch.cpu_s / count * 1_000,
        "bytes_beyond_body_and_hash": size / count - BODY_BYTES - 32,
    }


async def _append_until(store: SqliteStore, run_id: str, deadline: float) -> int:
    """Append one after another, at least once; returns how many."""
    seq, head = 0, GENESIS
    while seq == 0 or time.perf_counter() < deadline:
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
        assert type(answer) is Appended, answer
        seq, head = answer.seq, digest
    return seq
