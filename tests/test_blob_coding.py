"""How blobs are kept in a file: smaller where that helps, the same bytes back, and damage is damage."""

from __future__ import annotations

import json
import os
import sqlite3
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boundloop.eventstore.blob_coding import (
    AS_IT_IS,
    LEAST_BYTES,
    PART_BYTES,
    ZLIB,
    packed,
    packed_parts,
    unpacked,
)
from boundloop.eventstore.sqlite import SqliteStore

ROWS = json.dumps([{"order": f"A{number}", "paid": number % 3 == 0} for number in range(20_000)]).encode()


@given(st.binary(max_size=4_000), st.integers(0, 2_000))
def test_what_goes_in_comes_out(noise: bytes, zeros: int) -> None:
    data = noise + bytes(zeros)
    parts = packed_parts(data)
    assert b"".join(unpacked(*part) for part in parts) == data
    assert sum(len(kept) for _, kept in parts) <= len(data)


def test_only_what_saves_an_eighth_is_compressed() -> None:
    assert packed(ROWS[:PART_BYTES])[0] == ZLIB
    assert packed(os.urandom(PART_BYTES))[0] == AS_IT_IS
    assert packed(b"a" * (LEAST_BYTES - 1)) == (AS_IT_IS, b"a" * (LEAST_BYTES - 1))
    assert packed(b"a" * LEAST_BYTES)[0] == ZLIB
    assert packed_parts(b"") == ((AS_IT_IS, b""),)


@pytest.mark.parametrize("damage", ["cut", "altered", "more", "not zlib", "bomb"])
def test_damage_is_given_as_it_is_and_within_bounds(damage: str) -> None:
    _, small = packed(ROWS[:PART_BYTES])
    kept = {
        "cut": small[:-1],
        "altered": small[:50] + bytes([small[50] ^ 255]) + small[51:],
        "more": packed(bytes(PART_BYTES + 1))[1],
        "not zlib": b"\0" * 100,
        "bomb": packed(bytes(50_000_000))[1],
    }[damage]
    assert unpacked(ZLIB, kept) == kept
    assert unpacked(7, kept) == kept  # of a coding that this program doesn't know


@pytest.mark.asyncio
async def test_a_file_holds_less_and_gives_the_same(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = await SqliteStore.open(str(path))
    try:
        digest = await store.put_blob(ROWS)
        assert digest == sha256(ROWS).digest()
        assert await store.get_blob(digest) == ROWS
        assert await store.faults() == []
    finally:
        await store.close()
    connection = sqlite3.connect(path)
    kept, codings = connection.execute("SELECT sum(length(data)), max(coding) FROM blob_parts").fetchone()
    connection.close()
    assert (kept < len(ROWS) // 4, codings) == (True, ZLIB)


@pytest.mark.asyncio
async def test_a_file_from_before_is_read_on(tmp_path: Path) -> None:
    """Parts without a coding are as they are."""
    path = tmp_path / "runs.db"
    store = await SqliteStore.open(str(path))
    digest = await store.put_blob(ROWS)
    await store.close()
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM blob_parts")
    for part, at in enumerate(range(0, len(ROWS), PART_BYTES)):
        values = (digest, part, ROWS[at : at + PART_BYTES])
        connection.execute("INSERT INTO blob_parts (sha256, part, data) VALUES (?, ?, ?)", values)
    connection.commit()
    connection.close()
    store = await SqliteStore.open(str(path))
    try:
        assert await store.get_blob(digest) == ROWS
    finally:
        await store.close()


@pytest.mark.asyncio
async def test_a_damaged_part_is_a_fault_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = await SqliteStore.open(str(path))
    digest = await store.put_blob(ROWS)
    await store.close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE blob_parts SET data = substr(data, 1, 1000) WHERE part = 0")
    connection.commit()
    connection.close()
    store = await SqliteStore.open(str(path))
    try:
        assert await store.faults() == [f"blob {digest.hex()} isn't what its name says"]
    finally:
        await store.close()
