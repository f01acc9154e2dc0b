"""What a step is about to append: its events, and what goes with them in the same transaction."""

from __future__ import annotations

from ..eventstore.chain import append_hash
from ..eventstore.codec import encode_events, spill
from ..eventstore.port import APPEND_SCHEMA_VERSION, Append, NewRun
from ..runtime.decision import Decision
from ..runtime.events import AnyEvent
from ..runtime.index import children_to_begin, run_index, runs_to_wake
from ..runtime.ledger import Claim, Settlement
from ..runtime.state import State


class Journal:
    """One run's place in its log (``seq``, ``head``) and what is to follow there. Nothing here is durable before
    ``committed``; ``drop`` forgets everything but blobs, which belong to reports that are decided again."""

    __slots__ = (
        "_appends",
        "_carried",
        "blobs",
        "causation",
        "claim",
        "create",
        "epoch",
        "events",
        "head",
        "seq",
        "settled_first",
        "settlements",
    )

    def __init__(
        self,
        *,
        head: bytes,
        seq: int,
        epoch: int,
        create: NewRun | None,
        events: tuple[AnyEvent, ...],
        blobs: tuple[tuple[bytes, bytes], ...],
    ) -> None:
        self.head = head
        self.seq = seq
        self.epoch = epoch
        self.create = create
        self.events: list[AnyEvent] = list(events)
        self.blobs: list[tuple[bytes, bytes]] = list(blobs)
        self.claim: Claim | None = None
        self.settlements: list[Settlement] = []
        self.settled_first = 0
        self.causation = ""
        self._appends = 0
        self._carried = 0

    def add(self, decision: Decision) -> None:
        """Take a decision in. The caller has seen to it that there is no second claim."""
        self.events += decision.events
        if decision.claim is not None:
            self.claim = decision.claim
            self.settled_first = len(self.settlements)
        if decision.settlements:
            self.settlements += decision.settlements

    def request(self, state: State, now_ms: int, host_id: str, *, release: bool) -> Append:
        """The append of all that was added; ``state`` is the one after it."""
        events = tuple(self.events)
        # Together with run, seq and epoch it names one try; a try after an error may carry other events.
        self._appends += 1
        append_id = self._appends.to_bytes(4, "big").lstrip(b"\0")
        self._carried = len(self.blobs)
        body, spilled = spill(encode_events(events))
        digest = append_hash(
            self.head,
            state.run_id,
            self.seq + 1,
            len(events),
            self.epoch,
            now_ms,
            append_id,
            self.causation,
            APPEND_SCHEMA_VERSION,
            body,
        )
        return Append(
            run_id=state.run_id,
            expected_seq=self.seq,
            epoch=self.epoch,
            append_id=append_id,
            at_ms=now_ms,
            causation=self.causation,
            body=body,
            event_count=len(events),
            prev_hash=self.head,
            hash=digest,
            index=run_index(state),
            host_id=host_id,
            create=self.create,
            claim=self.claim,
            settlements=tuple(self.settlements),
            settled_first=self.settled_first,
            release=release,
            wake_runs=(*runs_to_wake(state), *children_to_begin(state, events)),
            blobs=(*self.blobs, *spilled),
        )

    def committed(self, request: Append) -> None:
        """The store said yes: the next append follows this one."""
        self.seq = request.expected_seq + request.event_count
        self.head = request.hash
        self.create = None
        # More may have come while the store was at work; they go with the next one.
        del self.blobs[: self._carried]
        self.drop()

    def drop(self) -> None:
        """Forget what was to be appended."""
        self.events.clear()
        self.settlements.clear()
        self.settled_first = 0
        self.claim = None
        self.causation = ""

    def moved(self, seq: int, head: bytes) -> None:
        """The log was read again: go on from there."""
        self.seq = seq
        self.head = head
