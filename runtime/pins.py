"""What is fixed for a run from its start, kept once per content and named by hash in ``run_started``.

Runs of one application share their pins, so a parked run costs its own few hundred bytes and not its toolbox again.
The log stays self-contained: the blob is content-addressed and covered by the chain through its hash.
"""

from __future__ import annotations

from functools import cached_property
from hashlib import sha256

import msgspec

from .errors import HistoryRefused
from .goal import Evidence, Goal
from .limits import LimitValues
from .prices import Price
from .provenance import Watched, joined_digests, watched_by
from .side_bounds import SideBounds
from .stage_definition import StageDefinition
from .tool_definition import ToolDefinition


class Pins(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, dict=True
):
    """Definitions and revisions that every decision of the run is made from. What a run doesn't use takes no bytes."""

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
    stages: tuple[StageDefinition, ...] = ()
    hosted: tuple[str, ...] = ()
    """Tools that the provider runs itself and whose blocks are accepted; none unless declared."""
    guarded: tuple[str, ...] = ()
    """What of the run is judged by a guardrail before it counts: ``result``, ``answer``."""
    guardrail_revision: str = ""
    redaction: str = ""
    side: SideBounds | None = None
    """What each request may ask other models beside its own; None where the adapter declares none."""

    @property
    def priced(self) -> bool:
        """Whether every request of the run has a known price, so that a cost limit can be kept."""
        return self.price is not None and (self.side is None or self.side.price is not None)

    @cached_property
    def watched(self) -> Watched | None:
        """Which values of the run's results are indexed; None where nothing asks for any."""
        return watched_by(self.tools, {} if self.goal is None else self.goal.watched) or None

    def values_of(self, tool: str, whole: bytes) -> bytes | None:
        """Of a result too large for the log, what is watched in the whole of it; None where nothing is."""
        watched = self.watched
        return (
            None if watched is None else joined_digests(*watched.digests(tool, is_agent=False, result=whole))
        )

    def tools_offered(self, stage: int) -> tuple[ToolDefinition, ...]:
        """What the run's own model may call in this stage (0 without stages); the others are there for its agents, or for
        other stages."""
        if self.stages:
            return tuple(
                tool for tool in self.tools if tool.offered and tool.name in self.stages[stage].tools
            )
        if all(tool.offered for tool in self.tools):
            return self.tools
        return tuple(tool for tool in self.tools if tool.offered)


def predicates(pins: Pins) -> tuple[Evidence, ...]:
    """All predicates of the run by number: the goal's, then those of each stage in order."""
    own = () if pins.goal is None else pins.goal.evidence
    return (*own, *(predicate for stage in pins.stages for predicate in stage.leave))


def number_of_leave(pins: Pins, stage: int) -> int:
    """The number of the stage's first predicate among them."""
    own = 0 if pins.goal is None else len(pins.goal.evidence)
    return own + sum(len(earlier.leave) for earlier in pins.stages[:stage])


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
