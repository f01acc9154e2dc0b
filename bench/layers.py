"""layers: where the time of a step goes, by taking layers away rather than by instrumenting them.

One run of quick reads, in turns so that a change of the machine's load meets every layer: the pure core alone, with
and without its rungs over the raw arguments; the encoding and the chain over the rows that a real run wrote; and whole
runs over a store that keeps nothing, over the memory store, and over SQLite.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import time
from itertools import pairwise
from typing import Final

from bench.core import CoreRun, played
from bench.measure import Facts, Figures, Stopwatch, bare_commits_per_s, repeated
from bench.workload import insist_completed, model_for, run_all, store_of, tool_for

from boundloop.actors import Runtime
from boundloop.eventstore.chain import append_hash
from boundloop.eventstore.codec import decode_events, encode_events
from boundloop.eventstore.port import StoredAppend
from boundloop.eventstore.sqlite import SqliteStore

COUNTED_STEPS: Final = 20
HASHED_BYTES: Final = 256
"""About what one digest in the core covers: a request's new part, arguments, a result."""


def step_layers(folder: str, *, steps: int, repeat: int) -> Facts:
    """Microseconds a step. Names that end in ``cpu_us`` are CPU of the process; the others are wall time.

    ``driver_cpu_us`` is what is left of a run over the null store: the driver's own work, policy and other checks of
    the application, calling the model and the tool, and the event loop's hops.
    """
    digests = _digests_per_step()
    rows = asyncio.run(_rows(folder, steps))
    figures = repeated(lambda number: _measured(folder, number, steps, rows, digests), repeat)
    return {"workload": "layers", "lane": "inline", "tool": "read", "runs": 1, "steps": steps, **figures}


def _measured(folder: str, number: int, steps: int, rows: list[StoredAppend], digests: float) -> Figures:
    whole = played(steps)
    core_us, bare_us = whole.cpu_us, played(steps, whole.admitted).cpu_us
    encode_us, chain_us = _encoded_us(rows, steps)
    null, memory, sqlite = (_run(folder, kind, number, steps) for kind in ("null", "memory", "sqlite"))
    commit_us = 1e6 / bare_commits_per_s(folder, 0.3)
    appends = len(rows) / steps
    return {
        "decide_fold_cpu_us": bare_us,
        "parse_schema_cpu_us": core_us - bare_us,
        "digests_in_core_per_step": digests,
        "digests_in_core_cpu_us": digests * _digest_us(),
        "encode_cpu_us": encode_us,
        "chain_cpu_us": chain_us,
        "driver_cpu_us": null.cpu_s / steps * 1e6 - core_us - encode_us - chain_us,
        "memory_store_cpu_us": (memory.cpu_s - null.cpu_s) / steps * 1e6,
        "sqlite_store_cpu_us": (sqlite.cpu_s - null.cpu_s) / steps * 1e6,
        "appends_per_step": appends,
        "bare_commit_us": commit_us,
        "commits_us": appends * commit_us,
        "null_cpu_us": null.cpu_s / steps * 1e6,
        "null_us": null.wall_s / steps * 1e6,
        "memory_us": memory.wall_s / steps * 1e6,
        "sqlite_cpu_us": sqlite.cpu_s / steps * 1e6,
        "sqlite_us": sqlite.wall_s / steps * 1e6,
    }


def _encoded_us(rows: list[StoredAppend], steps: int) -> tuple[float, float]:
    """Encoding the events of these rows, and chaining the rows: as a driver and a store do (each checks the hash)."""
    events = [decode_events(row.body) for row in rows]
    start = time.process_time()
    for batch in events:
        encode_events(batch)
    encoded = time.process_time()
    for before, row in pairwise(rows):
        append_hash(
            before.hash,
            row.run_id,
            row.first_seq,
            row.event_count,
            row.epoch,
            row.at_ms,
            row.append_id,
            row.causation,
            row.schema_version,
            row.body,
        )
    chained = time.process_time()
    return (encoded - start) / steps * 1e6, (chained - encoded) / steps * 1e6


async def _rows(folder: str, steps: int) -> list[StoredAppend]:
    """The rows of a real run, bodies in the row."""
    where, path = store_of("sqlite", folder, "layers_rows")
    with Runtime(store=where, model=model_for(steps), tools=[tool_for("read", "inline")]) as runtime:
        results = await run_all(runtime, 1)
    insist_completed(results)
    store = await SqliteStore.open(path)
    try:
        rows: list[StoredAppend] = []
        while page := await store.read(
            results[0].run_id, after_seq=0 if not rows else rows[-1].first_seq + rows[-1].event_count - 1
        ):
            rows += page
        return rows
    finally:
        await store.close()


def _run(folder: str, kind: str, number: int, steps: int) -> Stopwatch:
    where, path = store_of(kind, folder, f"layers_{kind}_{number}")
    with Runtime(store=where, model=model_for(steps), tools=[tool_for("read", "inline")]) as runtime:
        with Stopwatch() as watch:
            results = asyncio.run(run_all(runtime, 1))
        insist_completed(results)
    if path:
        os.unlink(path)
    return watch


def _digests_per_step() -> float:
    """How often the core calls sha256, counted, not timed."""
    count = 0

    def seen(_frame: object, event: str, called: object) -> None:
        nonlocal count
        if event == "c_call" and getattr(called, "__name__", "") == "openssl_sha256":
            count += 1

    run = CoreRun()
    run.advance()
    sys.setprofile(seen)
    try:
        for number in range(COUNTED_STEPS):
            run.step(number)
    finally:
        sys.setprofile(None)
    return count / COUNTED_STEPS


def _digest_us() -> float:
    data = bytes(HASHED_BYTES)
    start = time.process_time()
    for _ in range(10_000):
        hashlib.sha256(data).digest()
    return (time.process_time() - start) / 10_000 * 1e6
