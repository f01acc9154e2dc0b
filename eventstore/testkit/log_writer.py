"""A small honest writer of one run's log, for tests of stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from ...runtime.events import (
    AnyEvent,
    CallExecuted,
    CallProposed,
    CallStarted,
    CallValidated,
    CancelRequested,
    RunStarted,
)
from ...runtime.ledger import Claim, RunIndex, Settlement
from ..chain import GENESIS, append_hash
from ..codec import encode_events, spill
from ..port import (
    APPEND_SCHEMA_VERSION,
    Append,
    AppendAnswer,
    Appended,
    EventStore,
    NewRun,
)

OPEN = RunIndex(status="open_calls")
ENDED = RunIndex(status="terminated", outcome="completed", reason="final")


def an_event(text: str = "enough") -> AnyEvent:
    """Some event with room for a text."""
    return CancelRequested(reason="by_user", by=text, command_id="k")


def waiting(key: bytes) -> RunIndex:
    return RunIndex(status="open_calls", waiting_for=f"key:{key.hex()}", waiting_keys=(key,))


def claim(key: bytes, call_id: str = "c1.0", *, kind: Any = "intent", tenant: str = "acme") -> Claim:
    return Claim(
        tenant=tenant,
        key=key,
        tool="refund",
        call_id=call_id,
        kind=kind,
        intent_sha256=b"i" * 32,
        args_sha256=b"a" * 32,
        attempt=1,
        valid_until_ms=99,
    )


def settlement(key: bytes, to: Any, call_id: str = "c1.0", *, tenant: str = "acme") -> Settlement:
    result = b'{"refunded":true}' if to == "succeeded" else None
    digest = None if result is None else sha256(result).digest()
    return Settlement(tenant=tenant, key=key, call_id=call_id, to=to, result=result, result_sha256=digest)


@dataclass
class LogWriter:
    """Knows where its run's log stands, and moves on when the store says yes."""

    store: EventStore
    run_id: str
    host_id: str = ""
    tenant: str = "acme"
    epoch: int = 1
    seq: int = 0
    head: bytes = GENESIS
    at_ms: int = 1_700_000_000_000
    root_id: str = ""
    agent: str = "agent"
    operation_id: str = "op"

    def request(
        self,
        *texts: str,
        events: Sequence[AnyEvent] = (),
        append_id: bytes = b"",
        index: RunIndex = OPEN,
        **fields: Any,
    ) -> Append:
        """The next append, with ``events`` or one event a text."""
        events = events or [an_event(text) for text in texts or ("enough",)]
        body, blobs = spill(encode_events(events))
        append_id = append_id or f"{self.run_id}/{self.epoch}/{self.seq}".encode()
        count = len(events)
        first_seq = self.seq + 1
        digest = append_hash(
            self.head,
            self.run_id,
            first_seq,
            count,
            self.epoch,
            self.at_ms,
            append_id,
            "test",
            APPEND_SCHEMA_VERSION,
            body,
        )
        create = None
        if self.seq == 0:
            create = NewRun(
                tenant=self.tenant,
                agent=self.agent,
                operation_id=self.operation_id,
                root_id=self.root_id,
            )
        defaults: dict[str, Any] = {"create": create, "blobs": blobs}
        return Append(
            run_id=self.run_id,
            expected_seq=self.seq,
            epoch=self.epoch,
            append_id=append_id,
            at_ms=self.at_ms,
            causation="test",
            body=body,
            event_count=count,
            prev_hash=self.head,
            hash=digest,
            index=index,
            host_id=self.host_id,
            **(defaults | fields),
        )

    async def append(self, *texts: str, **fields: Any) -> AppendAnswer:
        """Send the next append and follow it if it was committed."""
        request = self.request(*texts, **fields)
        answer = await self.store.append(request)
        if isinstance(answer, Appended):
            self.follow(request)
        return answer

    async def write(self, *texts: str, **fields: Any) -> None:
        """``append`` that must succeed."""
        answer = await self.append(*texts, **fields)
        assert isinstance(answer, Appended), answer

    def follow(self, request: Append) -> None:
        self.seq = request.expected_seq + request.event_count
        self.head = request.hash

    def fork(self) -> LogWriter:
        """A second writer that believes the same: a ghost."""
        return LogWriter(
            self.store, self.run_id, self.host_id, self.tenant, self.epoch, self.seq, self.head, self.at_ms
        )


async def begin(log: LogWriter) -> None:
    """The first append of a real run."""
    started = RunStarted(
        run_id=log.run_id,
        tenant=log.tenant,
        principal="p",
        operation_id="op",
        agent="agent",
        input="",
        pins_sha256=b"p" * 32,
    )
    await log.write(events=[started])


async def effect(log: LogWriter, key: bytes, kind: int) -> None:
    """A call with an intent; by ``kind`` it is left in flight (0), succeeds (1) or is lost (2)."""
    made = claim(key)
    await log.write(
        events=[
            CallProposed(made.call_id, made.tool, b"{}"),
            CallValidated(made.call_id, None, made.args_sha256, (), key, made.intent_sha256),
            CallStarted(made.call_id, made.attempt, made.valid_until_ms, b"q" * 32),
        ],
        claim=made,
    )
    done = settlement(key, "succeeded" if kind == 1 else "unknown")
    if kind == 1:
        event = CallExecuted(made.call_id, 1, "succeeded", done.result, done.result_sha256)
    else:
        event = CallExecuted(made.call_id, 1, "unknown")
    if kind != 0:
        await log.write(events=[event], settlements=(done,))
