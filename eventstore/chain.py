"""The hash chain of a run: each row's hash covers the row before it, its envelope and its stored bytes.

``hash = sha256(previous hash ‖ envelope ‖ body)``. The envelope is the msgpack array
``[run_id, first_seq, event_count, epoch, at_ms, append_id, causation, schema_version]``; it says its own length, so no
two different rows have one preimage. A changed, removed or reordered row breaks the chain at that row. A cut tail
doesn't: heads kept elsewhere show it.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from ..runtime.errors import BugError, CallerError
from .port import APPEND_SCHEMA_VERSION, BLOB_BYTES_MAX, BODY_INLINE_BYTES_MAX, Append

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
    if not 0 <= request.settled_first <= len(request.settlements):
        raise BugError("append_invalid", "more settlements come first than there are")
    if len(request.body) > BODY_INLINE_BYTES_MAX:
        raise BugError("append_invalid", f"a body of {len(request.body)} bytes must be spilled first")
    if (request.create is not None) != (request.expected_seq == 0):
        raise BugError("append_invalid", "the first append of a run, and no other, creates it")
    if request.create is not None and request.prev_hash != GENESIS:
        raise BugError("append_invalid", "the first append of a run follows nothing")
    if request.create is not None:
        _check_tenant(request, request.create.tenant)
    count = _events_in(request.body)
    if count is not None and count != request.event_count:
        raise BugError("append_invalid", f"the body holds {count} events, not {request.event_count}")
    for digest, data in request.blobs:
        check_blob(data)
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


def check_follows(request: Append, tenant: str, at_ms: int) -> None:
    """Refuse, with ``BugError``, an append that would follow in its place but not in its run: a time before the run's
    last one, or another tenant's ledger rows."""
    if request.at_ms < at_ms:
        raise BugError("append_invalid", f"time falls from {at_ms} to {request.at_ms}")
    _check_tenant(request, tenant)


def check_blob(data: bytes) -> None:
    """Raises ``CallerError``."""
    if len(data) > BLOB_BYTES_MAX:
        raise CallerError("blob_too_large", f"a blob of {len(data)} bytes is over {BLOB_BYTES_MAX}")


def _check_tenant(request: Append, tenant: str) -> None:
    if (request.claim is not None and request.claim.tenant != tenant) or any(
        settlement.tenant != tenant for settlement in request.settlements
    ):
        raise BugError("append_invalid", "a run claims and settles keys of its own tenant only")
    for settlement in request.settlements:
        sent = settlement.sent
        if sent is not None and (sent.tenant, sent.key, sent.call_id) != (
            settlement.tenant,
            settlement.key,
            settlement.call_id,
        ):
            raise BugError("append_invalid", "a settlement takes back no key but its own")


def _events_in(body: bytes) -> int | None:
    """How many events an inline body says it holds, by its first bytes; None if they are elsewhere."""
    first = body[0] if body else 0
    if 0x90 <= first <= 0x9F:
        return first & 0x0F
    if first == 0xDC:
        return int.from_bytes(body[1:3], "big")
    if 0xC7 <= first <= 0xC9 or 0xD4 <= first <= 0xD8:  # an extension value: the marker of a spilled body
        return None
    return -1
