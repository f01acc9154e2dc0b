"""store: events a second through the stores, against their raw databases: sqlite3 and asyncpg, on one disk in one run.

Raw is what a program would do that keeps rows and nothing else: a row an event, one commit for those that belong together, by one
prepared statement on one connection, with the store's own durability. A store keeps besides, in the same commit: the chain, the fence, the run's
index row, the answer to a repetition.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Final

from bench.measure import Facts, Figures, repeated, store_bytes
from bench.postgres import server_in

from boundloop.eventstore.chain import GENESIS, append_hash
from boundloop.eventstore.port import APPEND_SCHEMA_VERSION, Append, Appended, EventStore, NewRun
from boundloop.eventstore.postgres import PostgresStore
from boundloop.eventstore.postgres_url import parse_postgres_url
from boundloop.eventstore.sqlite import SqliteStore
from boundloop.eventstore.sqlite_file import connect
from boundloop.runtime.ledger import RunIndex

EVENT_BYTES: Final = 150
"""A hundred of them fit a row."""

EVENTS: Final = (1, 100)
POSTGRES_RUNS: Final = (1, 32, 1_000)
LINEAR_APPENDS: Final = 2_000
INDEX: Final = RunIndex(status="open_calls")

_RAW_TABLE: Final = (
    "CREATE TABLE {name} (run_key {integer}, seq {integer}, body {bytes}, PRIMARY KEY (run_key, seq))"
)


def against_raw(folder: str, *, seconds: float, repeat: int) -> Iterator[Facts]:
    """Both databases, with one event an append and with a hundred; more runs at once on PostgreSQL; bytes of twice as
    much."""
    for events in EVENTS:
        figures = repeated(partial(_sqlite, folder, events, seconds), repeat)
        yield _facts("sqlite", events, 1, figures)
    yield {"workload": "store", "store": "sqlite", **_sqlite_growth(folder)}
    server = server_in(folder)
    for events in EVENTS:
        for runs in POSTGRES_RUNS if events == 1 else (1,):
            figures = repeated(partial(_postgres, server.url, events, runs, seconds), repeat)
            yield _facts("postgres", events, runs, figures)
    yield {"workload": "store", "store": "postgres", **asyncio.run(_postgres_growth(server.url))}


def _facts(store: str, events: int, runs: int, figures: Facts) -> Facts:
    about = {"store": store, "events_per_append": events, "runs": runs, "event_bytes": EVENT_BYTES}
    return {"workload": "store", **about, **figures}


def _compared(raw: float, ours: float) -> Figures:
    return {"raw_events_per_s": raw, "events_per_s": ours, "events_per_raw_event": ours / raw}


# --- SQLite ----------------------------------------------------------------------------------------------------------


def _sqlite(folder: str, events: int, seconds: float, number: int) -> Figures:
    path = os.path.join(folder, f"raw_{events}_{number}.db")
    connection = connect(path)
    connection.execute(_RAW_TABLE.format(name="raw", integer="INTEGER", bytes="BLOB"))
    body, seq, began = os.urandom(EVENT_BYTES), 0, time.perf_counter()
    while seq == 0 or time.perf_counter() - began < seconds:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "INSERT INTO raw VALUES (1, ?, ?)", [(at, body) for at in range(seq, seq + events)]
        )
        connection.execute("COMMIT")
        seq += events
    raw = seq / (time.perf_counter() - began)
    connection.close()
    ours = asyncio.run(_sqlite_store(os.path.join(folder, f"ours_{events}_{number}.db"), events, seconds))
    return _compared(raw, ours)


async def _sqlite_store(path: str, events: int, seconds: float) -> float:
    store = await SqliteStore.open(path)
    try:
        return await _rate(store, 1, events, seconds)
    finally:
        await store.close()


def _sqlite_growth(folder: str) -> Facts:
    async def size(name: str, appends: int) -> int:
        path = os.path.join(folder, name)
        store = await SqliteStore.open(path)
        await _write(store, "r", 1, lambda seq: seq < appends)
        await store.close()
        return store_bytes(path)

    sizes = [asyncio.run(size(f"grows_{number}.db", number * LINEAR_APPENDS)) for number in (1, 2)]
    return {"bytes_of_2n_over_n": sizes[1] / sizes[0], "appends_n": LINEAR_APPENDS}


# --- PostgreSQL ------------------------------------------------------------------------------------------------------


def _postgres(new_url: Callable[[], str], events: int, runs: int, seconds: float, number: int) -> Figures:
    url = new_url()
    raw = asyncio.run(_raw_postgres(url, events, seconds))
    return _compared(raw, asyncio.run(_postgres_store(url, events, runs, seconds)))


async def _postgres_store(url: str, events: int, runs: int, seconds: float) -> float:
    store = await PostgresStore.open(url)
    try:
        return await _rate(store, runs, events, seconds)
    finally:
        await store.close()


async def _raw_postgres(url: str, events: int, seconds: float) -> float:
    asyncpg: Any = importlib.import_module("asyncpg")
    connection = await asyncpg.connect(parse_postgres_url(url).dsn)
    await connection.execute("DROP TABLE IF EXISTS raw")
    await connection.execute(_RAW_TABLE.format(name="raw", integer="bigint", bytes="bytea"))
    insert = await connection.prepare(
        "INSERT INTO raw VALUES (1, $1, $2)"
        if events == 1
        else "INSERT INTO raw SELECT 1, * FROM unnest($1::bigint[], $2::bytea[])"
    )
    body, seq, began = os.urandom(EVENT_BYTES), 0, time.perf_counter()
    while seq == 0 or time.perf_counter() - began < seconds:
        if events == 1:
            await insert.fetch(seq, body)
        else:
            await insert.fetch(list(range(seq, seq + events)), [body] * events)
        seq += events
    raw = seq / (time.perf_counter() - began)
    await connection.close()
    return raw


async def _postgres_growth(new_url: Callable[[], str]) -> Facts:
    asyncpg: Any = importlib.import_module("asyncpg")

    async def size(appends: int) -> int:
        place = parse_postgres_url(url := new_url())
        store = await PostgresStore.open(url)
        await _write(store, "r", 1, lambda seq: seq < appends)
        await store.close()
        connection = await asyncpg.connect(place.dsn)
        found: int = await connection.fetchval(
            "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class "
            "WHERE relkind = 'r' AND relnamespace = to_regnamespace($1)",
            place.schema,
        )
        await connection.close()
        return found

    sizes = [await size(number * LINEAR_APPENDS) for number in (1, 2)]
    return {"bytes_of_2n_over_n": sizes[1] / sizes[0], "appends_n": LINEAR_APPENDS}


# --- through a store -------------------------------------------------------------------------------------------------


async def _rate(store: EventStore, runs: int, events: int, seconds: float) -> float:
    """Events a second of so many runs at once, each one append after another."""
    began = time.perf_counter()
    counts = await asyncio.gather(
        *(
            _write(store, f"run-{number:06}", events, lambda _: time.perf_counter() - began < seconds)
            for number in range(runs)
        )
    )
    return sum(counts) / (time.perf_counter() - began)


async def _write(store: EventStore, run_id: str, events: int, goes_on: Callable[[int], bool]) -> int:
    """At least one append; how many events were written."""
    header = bytes([0x90 | events]) if events < 16 else b"\xdc" + events.to_bytes(2, "big")
    body = header + os.urandom(EVENT_BYTES * events - len(header))
    seq, head = 0, GENESIS
    append: Callable[[Append], Awaitable[object]] = store.append
    while seq == 0 or goes_on(seq):
        append_id, at_ms = seq.to_bytes(8, "big"), store.now_ms()
        digest = append_hash(
            head, run_id, seq + 1, events, 1, at_ms, append_id, "tick", APPEND_SCHEMA_VERSION, body
        )
        answer = await append(
            Append(
                run_id=run_id,
                expected_seq=seq,
                epoch=1,
                append_id=append_id,
                at_ms=at_ms,
                causation="tick",
                body=body,
                event_count=events,
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
