"""The token-level data of a turn, read back: what the log names, and the bytes as the backend wrote them."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

import msgspec

from ..runtime.errors import LogDamaged
from ..runtime.events import ModelResponded
from .codec import Recorded
from .history import read_records
from .port import EventStore


class KeptTokens(msgspec.Struct, frozen=True, kw_only=True):
    """What ``model_responded`` at ``seq`` says of its turn. ``sha256`` None: it wasn't kept."""

    run_id: str
    seq: int
    turn: int
    attempt: int
    sha256: bytes | None
    size: int


def tokens_named(run_id: str, records: Iterable[Recorded], turn: int) -> KeptTokens | None:
    """What the log names for this turn; None for nothing."""
    for record in records:
        event = record.event
        if isinstance(event, ModelResponded) and event.turn == turn and event.tokens is not None:
            tokens = event.tokens
            return KeptTokens(
                run_id=run_id,
                seq=record.seq,
                turn=turn,
                attempt=event.attempt,
                sha256=tokens.sha256,
                size=tokens.size,
            )
    return None


async def token_bytes(store: EventStore, named: KeptTokens) -> bytes | None:
    """The bytes; None if they weren't kept. Raises ``LogDamaged`` if they are gone, or aren't those that were stored."""
    if named.sha256 is None:
        return None
    data = await store.get_blob(named.sha256)
    if data is None:
        raise LogDamaged(named.run_id, named.seq, named.seq, "its token data is missing")
    if len(data) != named.size or sha256(data).digest() != named.sha256:
        raise LogDamaged(named.run_id, named.seq, named.seq, "its token data was changed")
    return data


async def token_data_of(store: EventStore, run_id: str, turn: int) -> bytes | None:
    """The bytes of this turn; None if there are none. Raises ``RunNotFound``, ``LogDamaged``, ``StoreError``."""
    named = tokens_named(run_id, await read_records(store, run_id), turn)
    return None if named is None else await token_bytes(store, named)
