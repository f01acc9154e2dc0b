"""w4: events a second of a rebuild from the store: rows read, bodies decoded, events folded to the state."""

from __future__ import annotations

import asyncio
import time

from bench.measure import Facts, Figures, repeated
from bench.workload import insist_completed, model_for, run_all, store_of, tool_for

from boundloop.actors import Runtime
from boundloop.eventstore.history import fold_records, load_run, read_records
from boundloop.eventstore.sqlite import SqliteStore
from boundloop.eventstore.verify import verify_run


def events_per_second(folder: str, *, steps: int, repeat: int) -> Facts:
    """``events_per_s`` is reading, decoding and folding alone; ``verified_events_per_s`` adds a check of the whole chain,
    as ``verify`` makes it and as a host does before it goes on. The file is in the page cache."""
    where, path = store_of("sqlite", folder, f"w4_{steps}")
    with Runtime(store=where, model=model_for(steps), tools=[tool_for("read", "inline")]) as runtime:
        results = asyncio.run(run_all(runtime, 1))
        insist_completed(results)
    return asyncio.run(_rebuilt(path, results[0].run_id, steps, repeat))


async def _rebuilt(path: str, run_id: str, steps: int, repeat: int) -> Facts:
    store = await SqliteStore.open(path)
    try:
        await load_run(store, run_id)
        samples = [await _once(store, run_id) for _ in range(repeat)]
    finally:
        await store.close()
    return {"workload": "w4", "runs": 1, "steps": steps, **repeated(samples.__getitem__, repeat)}


async def _once(store: SqliteStore, run_id: str) -> Figures:
    cpu = time.process_time()
    start = time.perf_counter()
    records = await read_records(store, run_id)
    read = time.perf_counter()
    await fold_records(store, records)
    folded = time.perf_counter()
    cpu = time.process_time() - cpu
    verdict = await verify_run(store, run_id)
    verified = time.perf_counter()
    if not verdict.ok:
        raise RuntimeError(f"{run_id}: {verdict.problem}")
    count = len(records)
    return {
        "events": count,
        "ms": (folded - start) * 1e3,
        "events_per_s": count / (folded - start),
        "cpu_s_per_million": cpu / count * 1e6,
        "read_and_decode_events_per_s": count / (read - start),
        "fold_events_per_s": count / (folded - read),
        "verified_events_per_s": count / (verified - start),
    }
