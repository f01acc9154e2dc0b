"""Taking over a run: ``run_resumed`` first, and in the same append the facts about every intent of an older epoch.

An older epoch's intent is never dispatched by the new host. What it came to is not known here, so a read failed and
may be tried again, an effect is unknown and goes through reconciliation, and a model request is lost with its
reservation spent. After this append recovery is the ordinary path: fold, ``advance``, ``pending_orders``.
"""

from __future__ import annotations

from . import events as e
from .commands import TakeOver
from .decision import Decision, settle
from .effects import attempts_left
from .ledger import Settlement
from .results import lost
from .state import State


def take_over(state: State, command: TakeOver, now_ms: int) -> Decision:
    """The one append that opens a new epoch."""
    group: list[e.AnyEvent] = [e.RunResumed(command.epoch, command.cause, command.host)]
    settlements: list[Settlement] = []
    if state.phase == "model_requested" and state.model_epoch < command.epoch:
        again = (
            state.model_attempt < state.limits.model_attempts_per_turn
            and state.meters.model_attempts.free >= 1
        )
        group.append(
            e.ModelFailed(
                state.turn,
                state.model_attempt,
                "lost",
                True,
                now_ms if again else 0,
                state.reserved_input,
                state.reserved_output,
                state.reserved_cost,
            )
        )
    for call in state.calls.values():
        if call.phase == "started" and call.attempt_epoch < command.epoch:
            event = lost(state, call)
            if call.key is None:
                event = e.CallExecuted(
                    call.call,
                    call.attempt,
                    "failed",
                    code="lost",
                    safe_message="the attempt was lost",
                    retryable=True,
                    retry_at_ms=now_ms if attempts_left(state, call) else 0,
                )
            else:
                settlements += settle(state, call, "unknown")
            group.append(event)
    return Decision(tuple(group), settlements=tuple(settlements))
