"""Named laws of a state. The same functions serve the fold in tests, simulation and forensics on real logs."""

from __future__ import annotations

from .budget import law_holds
from .errors import BugError
from .state import METERED, State
from .stops import REASONS


def check_state(state: State) -> None:
    """Raise ``BugError`` naming the first law that doesn't hold; all hold after every event."""
    for name in METERED:
        if not law_holds(getattr(state.meters, name)):
            raise BugError("law_broken", f"{name}: {getattr(state.meters, name)!r}", path=name)
    for name in ("turns", "model_attempts", "tool_calls", "call_attempts"):
        if getattr(state.meters, name).overrun:
            raise BugError("count_overrun", f"{name} passed its limit", path=name)
    if state.phase == "terminated" and any(call.open for call in state.calls.values()):
        raise BugError("unbound_at_end", "a call has no result at the end")
    if state.phase in ("model_requested", "results_ready") and any(
        call.open for call in state.calls.values()
    ):
        raise BugError("unbound_before_request", "a call has no result before the next request")
    if (state.outcome == "completed") != (state.reason == "final"):
        raise BugError("completion", f"{state.outcome}/{state.reason}")
    if state.outcome and (state.reason not in REASONS or REASONS[state.reason][0] != state.outcome):
        raise BugError("reason_unknown", f"{state.outcome}/{state.reason}")
    if state.phase == "model_requested" and state.meters.input_tokens.reserved != state.reserved_input:
        raise BugError("reservation", "the open request's reservation is not the reserved one")
    if state.phase != "model_requested" and state.meters.total_tokens.reserved:
        raise BugError("reservation", "tokens are reserved without an open request")
    unstarted = sum(1 for call in state.calls.values() if call.open and call.args_sha256 and not call.attempt)
    admitted = unstarted - sum(
        1
        for call in state.calls.values()
        if call.phase == "rejected" and call.args_sha256 and not call.attempt
    )
    if state.meters.tool_calls.reserved != admitted:
        raise BugError(
            "reservation", f"{state.meters.tool_calls.reserved} calls reserved for {admitted} admitted"
        )
