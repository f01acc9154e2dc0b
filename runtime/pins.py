"""What is fixed for a run from its start, kept once per content and named by hash in ``run_started``.

Runs of one application share their pins, so a parked run costs its own few hundred bytes and not its toolbox again.
The log stays self-contained: the blob is content-addressed and covered by the chain through its hash.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from .errors import HistoryRefused
from .goal import Goal
from .limits import LimitValues
from .prices import Price
from .tool_definition import ToolDefinition


class Pins(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Definitions and revisions that every decision of the run is made from."""

    producer: str
    model: str
    api_family: str
    adapter_revision: str
    template_revision: str
    system: str
    tools: tuple[ToolDefinition, ...]
    permissions: tuple[str, ...]
    policy_revision: str
    separate_approver: bool
    limits: LimitValues
    goal: Goal | None
    price: Price | None
    price_revision: str

    def tools_offered(self) -> tuple[ToolDefinition, ...]:
        """What the run's own model may call; the others are there for its agents."""
        if all(tool.offered for tool in self.tools):
            return self.tools
        return tuple(tool for tool in self.tools if tool.offered)


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(Pins)


def encode_pins(pins: Pins) -> bytes:
    """Deterministic JSON: equal pins give equal bytes, so they share one blob."""
    return _encoder.encode(pins)


def read_pins(digest: bytes, data: bytes | None) -> Pins:
    """The pins that a log names. Raises ``HistoryRefused`` if the blob is missing, altered or no ``Pins``."""
    if data is None or sha256(data).digest() != digest:
        raise HistoryRefused("pins_missing", "the run's pinned definitions are missing or altered")
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise HistoryRefused("pins_decode", f"the run's pinned definitions can't be read: {error}") from error
