"""Which results of a guarded run its model may see, from the state alone."""

from __future__ import annotations

from .guardrails import WITHHELD
from .state import CallState, State


def guards_results(state: State) -> bool:
    """Whether the model of this run sees judged results alone."""
    return "result" in state.pins.guarded


def says_something(call: CallState) -> bool:
    """Whether there is anything of the tool's that a model would be shown."""
    return call.outcome == "succeeded" or call.result is not None or bool(call.safe_message)


def unjudged(state: State, call: CallState) -> bool:
    """Whether an executed result waits for its verdict before it is bound. A failure without a word of its tool has nothing to
    judge."""
    return guards_results(state) and call.phase == "executed" and not call.guarded and says_something(call)


def is_withheld(state: State, call: CallState) -> bool:
    """Whether a bound call's result was kept from the model."""
    return (
        call.code == WITHHELD and call.status == "error" and guards_results(state) and call.guarded != "allow"
    )
