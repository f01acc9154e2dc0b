"""Past model requests, rebuilt from the log alone: what was sent, item for item, and whether it is what its hash says.

A request is a function of the pins, the number of items in it and the compactions before it, so the fold up to its
``model_requested`` has it. Nothing is asked of the application, of a model or of a tool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ..runtime.context import model_input, request_sha256, rolled
from ..runtime.errors import CallerError, HistoryRefused
from ..runtime.events import ModelRequested, RunStarted
from ..runtime.fold import begin, evolve
from ..runtime.model import ModelInput
from ..runtime.pins import Pins
from .codec import Recorded


class PastRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request. ``intact``: the hash over what was rebuilt is the one in the log. ``compactions``: how many had been
    made before it."""

    seq: int
    at_ms: int
    family: str
    adapter_revision: str
    compactions: int
    intact: bool
    request: ModelInput


def past_request(
    records: Sequence[Recorded], pins: Mapping[bytes, Pins], turn: int, attempt: int = 0
) -> PastRequest:
    """The request of this turn and attempt (0: the last attempt of the turn). Linear in the records before it.

    Raises ``CallerError`` (``no_request``) if the log has none, ``HistoryRefused`` for a log that starts no run.
    """
    wanted = 0
    for record in records:
        event = record.event
        if isinstance(event, ModelRequested) and event.turn == turn and attempt in (0, event.attempt):
            wanted = record.seq
    if not wanted:
        raise CallerError("no_request", "the log has no such request", path=f"turn {turn}")
    started = records[0].event
    if not isinstance(started, RunStarted) or started.pins_sha256 not in pins:
        raise HistoryRefused("log_start", "the log does not begin with run_started, or its pins are missing")
    state = begin(started, pins[started.pins_sha256], records[0].at_ms)
    for record in records[1:wanted]:
        evolve(state, record.event, record.at_ms)
    event = records[wanted - 1].event
    request = model_input(state)
    request = msgspec.structs.replace(request, items=tuple(request.items))
    rolling, _ = rolled(request.items)
    digest = request_sha256(
        state.request_head_sha256, rolling, turn, len(request.items), request.output_tokens_max
    )
    return PastRequest(
        seq=wanted,
        at_ms=records[wanted - 1].at_ms,
        family=state.pins.api_family,
        adapter_revision=state.pins.adapter_revision,
        compactions=state.compactions,
        intact=isinstance(event, ModelRequested) and digest == event.request_sha256,
        request=request,
    )
