"""What a decision is: events to append, and what the same append does to the effect ledger."""

from __future__ import annotations

from hashlib import sha256
from typing import Literal

import msgspec

from .events import AnyEvent
from .ledger import Claim, Settlement
from .state import CallState, State


class Refusal(msgspec.Struct, frozen=True):
    """Why an outside command was not accepted. ``code`` is stable; nothing changed."""

    code: str
    message: str


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Events in order (empty: nothing to do), with at most one claim, and the settlements that go with them."""

    events: tuple[AnyEvent, ...] = ()
    claim: Claim | None = None
    settlements: tuple[Settlement, ...] = ()
    refusal: Refusal | None = None


NOTHING = Decision()


def refuse(code: str, message: str) -> Decision:
    """A refused outside command."""
    return Decision(refusal=Refusal(code, message))


def settle(
    state: State,
    call: CallState,
    to: Literal["succeeded", "unknown", "in_flight", "rejected", "free"],
    result: bytes | None = None,
    sent: Claim | None = None,
) -> tuple[Settlement, ...]:
    """The settlement of a call's key, none for reads."""
    if call.key is None:
        return ()
    return (
        Settlement(
            tenant=state.tenant,
            key=call.key,
            call_id=call.call,
            to=to,
            result=result,
            result_sha256=None if result is None else sha256(result).digest(),
            sent=sent,
        ),
    )
