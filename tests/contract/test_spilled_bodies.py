"""A body too long for its row is believed only if it is the very one that was appended."""

from __future__ import annotations

import asyncio

import pytest

from boundloop.eventstore.codec import encode_events, full_body, spill
from boundloop.eventstore.port import StoredAppend
from boundloop.runtime.errors import LogDamaged
from boundloop.runtime.events import MessageReceived

LONG = encode_events((MessageReceived("user", "pay 10 " * 5_000),))


def read_back(stored: bytes | None) -> bytes:
    """What a reader gets of a long body when the store holds this under its name."""
    body, blobs = spill(LONG)
    assert len(blobs) == 1
    row = StoredAppend(
        run_id="r1",
        first_seq=2,
        event_count=1,
        epoch=1,
        append_id=b"1",
        at_ms=1,
        causation="",
        schema_version=1,
        body=body,
        hash=bytes(32),
    )

    async def get_blob(sha256: bytes) -> bytes | None:
        return stored

    return asyncio.run(full_body(row, get_blob))


def test_a_long_body_is_read_back_whole() -> None:
    assert read_back(LONG) == LONG


@pytest.mark.parametrize(
    "stored",
    [LONG.replace(b"pay 10", b"pay 99", 1), LONG[:-1], LONG + b"x", b"", None],
    ids=["equal length", "shorter", "longer", "empty", "missing"],
)
def test_a_long_body_that_was_altered_is_never_believed(stored: bytes | None) -> None:
    with pytest.raises(LogDamaged):
        read_back(stored)
