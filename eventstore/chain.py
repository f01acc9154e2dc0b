"""The hash chain of a run: each row's hash covers the row before it, its envelope and its stored bytes.

``hash = sha256(previous hash ‖ envelope ‖ body)``. The envelope is the msgpack array
``[run_id, first_seq, event_count, epoch, at_ms, append_id, causation, schema_version]``; it says its own length, so no
two different rows have one preimage. A changed, removed or reordered row breaks the chain at that row. A cut tail
doesn't: heads kept elsewhere show it.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from ..runtime.errors import BugError
from .port import APPEND_SCHEMA_VERSION, BODY_INLINE_BYTES_MAX, Append

GENESIS = bytes(32)
"""The previous hash of a run's first row."""

_encode = msgspec.msgpack.Encoder().encode


def append_hash(
    prev_hash: bytes,
    run_id: str,
    first_seq: int,
    event_count: int,
    epoch: int,
    at_ms: int,
    append_id: bytes,
    causation: str,
    schema_version: int,
    body: bytes,
) -> bytes:
    """The chain head after this row. ``body`` is what the row holds: the encoded events, or a spill marker."""
    envelope = _encode((run_id, first_seq, event_count, epoch, at_ms, append_id, causation, schema_version))
    return sha256(prev_hash + envelope + body).digest()


def check_append(request: Append) -> None:
    """Refuse, before anything is written, an append whose writer is wrong about its own bytes.

    Raises ``BugError``: it is no answer of the store. A store that took such a row would hold a log that its own
    ``verify`` calls damaged.
    """
    if request.event_count < 1 or request.expected_seq < 0 or request.epoch < 1:
        raise BugError("append_invalid", "an append holds at least one event, from seq 0 and epoch 1 up")
    if len(request.body) > BODY_INLINE_BYTES_MAX:
        raise BugError("append_invalid", f"a body of {len(request.body)} bytes must be spilled first")
    if (request.create is not None) != (request.expected_seq == 0):
        raise BugError("append_invalid", "the first append of a run, and no other, creates it")
    for digest, data in request.blobs:
        if sha256(data).digest() != digest:
            raise BugError("append_invalid", "a blob's name isn't its sha256")
    wanted = append_hash(
        request.prev_hash,
        request.run_id,
        request.expected_seq + 1,
        request.event_count,
        request.epoch,
        request.at_ms,
        request.append_id,
        request.causation,
        APPEND_SCHEMA_VERSION,
        request.body,
    )
    if request.hash != wanted:
        raise BugError("append_invalid", "hash isn't the chain hash of this append")
