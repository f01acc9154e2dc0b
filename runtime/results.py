"""Results: the events that bind the one result of a call."""

from __future__ import annotations

from typing import Final

from . import events as e
from .binding import binding_sha256
from .decision import Decision
from .facts import facts_of
from .guardrails import UNJUDGED_TEXT, WITHHELD, WITHHELD_TEXT
from .state import CallState, State
from .withheld import guards_results, says_something


def bind_error(state: State, call: CallState, code: str, message: str) -> e.ResultBound:
    """The one bound result of a call without success."""
    digest = binding_sha256(
        call.request_sha256, state.response_id, call.call, "error", code, call.result_sha256
    )
    return e.ResultBound(call.call, "error", code, digest, message)


def bind_executed(state: State, call: CallState) -> Decision:
    """Bind the result of an execution that is over (no further attempt is due). Of what a guardrail didn't allow the model
    is told that it was withheld."""
    if guards_results(state) and call.guarded != "allow" and says_something(call):
        text = WITHHELD_TEXT if call.guarded == "deny" else UNJUDGED_TEXT
        return Decision((bind_error(state, call, WITHHELD, text),))
    if call.outcome == "succeeded" and not call.code:
        digest = binding_sha256(
            call.request_sha256, state.response_id, call.call, "ok", "", call.result_sha256
        )
        return Decision((*facts_of(state, call), e.ResultBound(call.call, "ok", "", digest)))
    return Decision((bind_error(state, call, call.code or "failed", call.safe_message),))


RESULT_VIEW_BYTES_LEAST: Final = 256
RESULT_FRAME_BYTES: Final = 128
"""What the model's view of a result has around the result itself."""


def room_for_result(state: State) -> int:
    """How many bytes of its result a call may show: its share of what the turn's results have left, so that all of them
    together stay within the run's bound whatever runs side by side. Something is always shown."""
    unbound = sum(1 for call in state.calls.values() if call.phase != "bound")
    share = (state.limits.result_bytes - state.turn_result_bytes) // max(1, unbound)
    return max(RESULT_VIEW_BYTES_LEAST, share - RESULT_FRAME_BYTES)
