"""blobs: what large payloads cost to keep and to get back, and how much smaller a store keeps them, by kind of content."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import time
from typing import Final

from bench.measure import Facts, Figures, repeated
from bench.postgres import server_in

from boundloop.eventstore.port import EventStore
from boundloop.eventstore.postgres import PostgresStore
from boundloop.eventstore.sqlite import SqliteStore
from boundloop.eventstore.sqlite_file import connect

BLOB_BYTES: Final = 200_000
BLOBS: Final = 40
WORDS: Final = 4_000


def _rows(chance: random.Random) -> bytes:
    rows: list[object] = []
    while len(rows) < 1_700:
        lines = [{"sku": f"S{chance.randrange(10**6)}", "qty": chance.randrange(9)} for _ in range(3)]
        rows.append(
            {"order": f"A{chance.randrange(10**5)}", "city": chance.choice(("Bonn", "Graz")), "lines": lines}
        )
    return json.dumps(rows).encode()[:BLOB_BYTES]


def _prose(chance: random.Random) -> bytes:
    words = [
        "".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randrange(2, 9))) for _ in range(WORDS)
    ]
    often = [1 / (place + 1) for place in range(WORDS)]
    return " ".join(chance.choices(words, often, k=BLOB_BYTES // 3)).encode()[:BLOB_BYTES]


def _image(chance: random.Random) -> bytes:
    return base64.b64encode(chance.randbytes(BLOB_BYTES))[:BLOB_BYTES]


KINDS: Final = {"rows": _rows, "prose": _prose, "base64": _image}


def blobs_kept(folder: str, *, store: str, repeat: int) -> list[Facts]:
    """One line a kind of content: megabytes a second into the store and out of it, bytes kept over bytes given."""
    found: list[Facts] = []
    for kind, make in KINDS.items():
        chance = random.Random(kind)
        contents = [make(chance) for _ in range(BLOBS)]

        def once(number: int, kind: str = kind, contents: list[bytes] = contents) -> Figures:
            return asyncio.run(_measured(folder, f"blobs_{kind}_{number}", store, contents))

        found.append({"workload": "blobs", "store": store, "content": kind, **repeated(once, repeat)})
    return found


async def _measured(folder: str, name: str, store: str, contents: list[bytes]) -> Figures:
    path = os.path.join(folder, f"{name}.db")
    opened: SqliteStore | PostgresStore
    if store == "postgres":
        opened = await PostgresStore.open(server_in(folder).url(schema=name))
    else:
        opened = await SqliteStore.open(path)
    try:
        put_s, got_s = await _carried(opened, contents)
        kept = await _kept_in(opened) if isinstance(opened, PostgresStore) else 0
    finally:
        await opened.close()
    if store != "postgres":
        kept = _kept_at(path)
        os.unlink(path)
    given = sum(map(len, contents))
    return {
        "put_mb_per_s": given / put_s / 1e6,
        "get_mb_per_s": given / got_s / 1e6,
        "kept_over_given": kept / given,
    }


async def _carried(store: EventStore, contents: list[bytes]) -> tuple[float, float]:
    """Seconds in, seconds out."""
    begun = time.perf_counter()
    digests = [await store.put_blob(data) for data in contents]
    put_s = time.perf_counter() - begun
    begun = time.perf_counter()
    for digest, data in zip(digests, contents, strict=True):
        if await store.get_blob(digest) != data:
            raise SystemExit("a blob came back as another one")
    return put_s, time.perf_counter() - begun


async def _kept_in(store: PostgresStore) -> int:
    """What the values take, without what pages leave empty."""
    text = "SELECT sum(pg_column_size(data)) FROM blob_parts"
    return int(await store.read_with(lambda connection: connection.fetchval(text)))


def _kept_at(path: str) -> int:
    connection = connect(path)
    try:
        kept: int = connection.execute("SELECT sum(length(data)) FROM blob_parts").fetchone()[0]
    finally:
        connection.close()
    return kept
