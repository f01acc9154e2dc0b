"""Results: the events that bind the one result of a call."""

from __future__ import annotations

from . import events as e
from .binding import binding_sha256
from .decision import Decision
from .state import CallState, State


def bind_error(state: State, call: CallState, code: str, message: str) -> e.ResultBound:
    """The one bound result of a call without success."""
    digest = binding_sha256(
        call.request_sha256, state.response_id, call.call, "error", code, call.result_sha256
    )
    return e.ResultBound(call.call, "error", code, digest, message)


def bind_executed(state: State, call: CallState) -> Decision:
    """Bind the result of an execution that is over (no further attempt is due)."""
    if call.outcome == "succeeded" and not call.code:
        digest = binding_sha256(
            call.request_sha256, state.response_id, call.call, "ok", "", call.result_sha256
        )
        return Decision((e.ResultBound(call.call, "ok", "", digest),))
    return Decision((bind_error(state, call, call.code or "failed", call.safe_message),))
