"""The port of model adapters: one request in, one normalised turn out, progress on the way.

An adapter is transport and translation. It doesn't authorise, repair, call tools or use provider text as state, and it
doesn't retry: each attempt is the runtime's, and an event. It raises nothing for what a provider does wrong: refusals,
cuts, filters and errors are finishes of the ``ModelTurn``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from ..runtime.model import ModelInput, ModelTurn
from ..runtime.prices import Price


class TextDelta(msgspec.Struct, frozen=True, tag="text"):
    """Provisional text of the running attempt, from ``offset`` characters on."""

    turn: int
    attempt: int
    offset: int
    text: str


class CallPreparing(msgspec.Struct, frozen=True, tag="call_preparing"):
    """The model is writing a call; its arguments aren't shown before they are complete."""

    turn: int
    attempt: int
    index: int
    name: str


class AttemptReset(msgspec.Struct, frozen=True, tag="reset"):
    """The attempt failed: what was shown of it is void."""

    turn: int
    attempt: int


Progress = TextDelta | CallPreparing | AttemptReset
ProgressSink = Callable[[Progress], None]


class ModelAdapter(Protocol):
    """One model behind one API. ``revision`` changes whenever the bytes it would send for the same input change.

    ``price`` is the adapter's own declared price (a local or scripted model), else None and the price table decides.
    An adapter that asks other models on the way declares that: ``side_declaration`` has the optional attributes.
    """

    @property
    def family(self) -> str: ...

    @property
    def revision(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def price(self) -> Price | None: ...

    async def request(
        self, request: ModelInput, *, timeout_ms: int, progress: ProgressSink | None = None
    ) -> ModelTurn:
        """Send once and wait for the API's own terminal event, at most ``timeout_ms``. Cancellation closes the
        connection; what was sent may have been served."""
        ...

    async def close(self) -> None:
        """Give back connections. Idempotent."""
        ...
