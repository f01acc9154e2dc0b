"""Admitting a run that no host has yet: ``run_started`` is durable, and whichever host comes first takes the run up.

The created runs without an owner are the admission queue itself; nothing beside them remembers who waits to begin. A child
run joins it by its parent's ``child_started`` and in that append, so what is in the parent's log by then comes first: a child
that is made while its parent is being cancelled never begins.
"""

from __future__ import annotations

from hashlib import sha256

from ..runtime.errors import BugError, ConflictError, StoreError
from ..runtime.events import RunStarted
from ..runtime.fold import begin
from ..runtime.index import run_index
from .chain import GENESIS, append_hash
from .codec import encode_events, resolve, spill
from .history import pins_from
from .port import APPEND_SCHEMA_VERSION, AlreadyDone, Append, Appended, EventStore, NewRun

FIRST_EPOCH = 1
CAUSATION = "admission"


async def create_unhosted(store: EventStore, event: RunStarted, encoded_pins: bytes, *, root_id: str) -> bool:
    """Create a run that has no owner, and is ready unless it is a child. ``encoded_pins`` are the bytes that ``event.pins_sha256`` names;
    ``root_id`` is the run at the top of its tree, itself if it has no parent.

    True if it was created now, False if it is there already with this very first event: so a creation whose answer was
    lost is simply asked for again. Raises ``ConflictError`` (``run_exists``) if the id belongs to another run, and
    ``StoreError``: nothing is known then, ask again.
    """
    answer = await store.append(_first_append(event, encoded_pins, root_id, store.now_ms()))
    if isinstance(answer, Appended | AlreadyDone):
        return isinstance(answer, Appended)
    rows = await store.read(event.run_id, rows_max=1)
    records = await resolve(rows, store.get_blob)
    if not records:
        raise StoreError("run_unreadable", "the run was neither created nor found", path=event.run_id)
    if records[0].event != event:
        raise ConflictError("run_exists", "a run with this id exists", path=event.run_id)
    return False


def _first_append(event: RunStarted, encoded_pins: bytes, root_id: str, now_ms: int) -> Append:
    if sha256(encoded_pins).digest() != event.pins_sha256:
        raise BugError("pins_mismatch", "these aren't the pins that the event names", path=event.run_id)
    state = begin(event, pins_from(event.pins_sha256, encoded_pins), now_ms)
    body, spilled = spill(encode_events((event,)))
    append_id = sha256(f"{CAUSATION}/{event.run_id}".encode()).digest()[:16]
    return Append(
        run_id=event.run_id,
        expected_seq=0,
        epoch=FIRST_EPOCH,
        append_id=append_id,
        at_ms=now_ms,
        causation=CAUSATION,
        body=body,
        event_count=1,
        prev_hash=GENESIS,
        hash=append_hash(
            GENESIS,
            event.run_id,
            1,
            1,
            FIRST_EPOCH,
            now_ms,
            append_id,
            CAUSATION,
            APPEND_SCHEMA_VERSION,
            body,
        ),
        index=run_index(state),
        create=NewRun(
            tenant=event.tenant,
            agent=event.agent,
            operation_id=event.operation_id,
            parent_id=event.parent_run,
            root_id=root_id,
        ),
        ready=not event.parent_run,
        blobs=((event.pins_sha256, encoded_pins), *spilled),
    )
