"""Events to stored bytes and back.

A row's body is one msgpack array of tagged event arrays. A body over ``BODY_INLINE_BYTES_MAX`` goes to a blob, and the
row holds a marker in its place: a msgpack extension value, which no array of events can be mistaken for, with the
blob's sha256 and size. The chain covers the marker, the marker covers the blob.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from hashlib import sha256

import msgspec

from ..runtime.errors import LogDamaged
from ..runtime.events import EVENT_VERSION, EVENTS_BY_TAG, AnyEvent, Event
from .port import APPEND_SCHEMA_VERSION, BODY_INLINE_BYTES_MAX, StoredAppend

GetBlob = Callable[[bytes], Awaitable[bytes | None]]

SPILL_EXT = 1
"""Code of the msgpack extension value that stands for a spilled body."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[AnyEvent, ...]).decode
_TAG_OF: dict[type[Event], str] = {kind: tag for tag, kind in EVENTS_BY_TAG.items()}


class Recorded(msgspec.Struct, frozen=True, gc=False):
    """One event with what its row says about it. ``at_ms`` is store time; ``version`` is that of the event's tag."""

    seq: int
    tag: str
    version: int
    at_ms: int
    epoch: int
    event: AnyEvent


class Spilled(msgspec.Struct, frozen=True, array_like=True):
    """What a row holds in place of a long body."""

    sha256: bytes
    size_bytes: int


def encode_events(events: Sequence[AnyEvent]) -> bytes:
    """The events of one append as the bytes that are stored and hashed."""
    return _encode(tuple(events))


def decode_events(body: bytes) -> tuple[AnyEvent, ...]:
    """Strict: an unknown tag, a surplus field or a wrong type raises ``msgspec.ValidationError``, bytes that are no
    msgpack ``msgspec.DecodeError`` (its base)."""
    return _decode(body)


def spill(body: bytes) -> tuple[bytes, tuple[tuple[bytes, bytes], ...]]:
    """What the row holds, and the blobs that go with it: ``Append(body=…, blobs=…)``."""
    if len(body) <= BODY_INLINE_BYTES_MAX:
        return body, ()
    digest = sha256(body).digest()
    marker = msgspec.msgpack.Ext(SPILL_EXT, _encode(Spilled(digest, len(body))))
    return _encode(marker), ((digest, body),)


def spilled(body: bytes) -> Spilled | None:
    """The marker that this stored body is, or None if it is the events themselves."""
    if not body or not (0xC7 <= body[0] <= 0xC9 or 0xD4 <= body[0] <= 0xD8):  # msgpack's extension formats
        return None
    marker = msgspec.msgpack.decode(body, type=msgspec.msgpack.Ext)
    if marker.code != SPILL_EXT:
        raise msgspec.ValidationError(f"extension code {marker.code} is no spill marker")
    return msgspec.msgpack.decode(marker.data, type=Spilled)


async def full_body(row: StoredAppend, get_blob: GetBlob) -> bytes:
    """The encoded events of a row, fetched and checked if they were spilled. Raises ``LogDamaged``."""
    try:
        marker = spilled(row.body)
    except msgspec.DecodeError as error:
        raise damage(row, "the spill marker can't be read") from error
    if marker is None:
        return row.body
    body = await get_blob(marker.sha256)
    if body is None:
        raise damage(row, "its spilled body is missing")
    if len(body) != marker.size_bytes or sha256(body).digest() != marker.sha256:
        raise damage(row, "its spilled body was changed")
    return body


async def resolve(rows: Iterable[StoredAppend], get_blob: GetBlob) -> list[Recorded]:
    """The events of these rows in order. Raises ``LogDamaged`` for a row that can't be read; the chain isn't checked
    here (``verify``)."""
    records: list[Recorded] = []
    for row in rows:
        records += recorded(row, await full_body(row, get_blob))
    return records


def recorded(row: StoredAppend, body: bytes) -> list[Recorded]:
    """The events of one row whose full body is at hand. Raises ``LogDamaged``."""
    if row.schema_version != APPEND_SCHEMA_VERSION:
        raise damage(row, f"envelope version {row.schema_version} is unknown")
    try:
        events = decode_events(body)
    except msgspec.DecodeError as error:
        raise damage(row, f"its events can't be read: {error}") from error
    if len(events) != row.event_count:
        raise damage(row, f"it holds {len(events)} events, its envelope says {row.event_count}")
    at_ms, epoch = row.at_ms, row.epoch
    tags = [_TAG_OF[type(event)] for event in events]
    return [
        Recorded(seq, tag, EVENT_VERSION[tag], at_ms, epoch, event)
        for seq, (tag, event) in enumerate(zip(tags, events, strict=True), row.first_seq)
    ]


def damage(row: StoredAppend, what: str) -> LogDamaged:
    """The error that names this row as the first that can't be trusted."""
    last_seq = row.first_seq + max(row.event_count, 1) - 1
    return LogDamaged(
        row.run_id, row.first_seq, last_seq, f"the append of seq {row.first_seq} to {last_seq}: {what}"
    )
