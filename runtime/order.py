"""Which calls of a turn may run side by side: a synchronous answer over plain data.

Reads and child runs go on together up to ``parallel``; an effect waits for every earlier call of the turn to be closed, and nothing
later starts before it is. So writes happen in call order, and a failing sibling never discards the others. A call
that waits for a person or a key holds back later effects and reads alike: they may depend on it.
"""

from __future__ import annotations

from typing import Final

from .state import CallState, State
from .transitions import CallPhase

OUT: Final[tuple[CallPhase, ...]] = ("started", "waiting_child")
"""Where a call counts as running: dispatched, or a child run that goes on."""


def may_start(state: State, call: CallState) -> bool:
    """Whether this call's turn to start has come, by call order and by the run's parallelism."""
    running = 0
    for other in state.calls.values():
        if other is call:
            if call.key is None:
                continue
            return running == 0
        if other.phase == "bound":
            continue
        if other.index < call.index:
            # An earlier effect that is still open holds everything behind it; an earlier read only holds effects.
            if call.key is not None or other.key is not None or _may_be_effect(state, other):
                return False
            if other.phase in OUT:
                running += 1
        elif other.phase in OUT:
            running += 1
    return running < state.limits.parallel


def _may_be_effect(state: State, call: CallState) -> bool:
    """An unchecked proposal has no key yet; its definition tells."""
    definition = state.tools.get(call.tool)
    return call.phase == "proposed" and definition is not None and definition.is_effect
