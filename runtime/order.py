"""Which calls of a turn may run side by side: a synchronous answer over plain data.

Reads and child runs go on together up to ``parallel``; an effect waits for every earlier call of the turn to be closed, and nothing
later starts before it is. So writes happen in call order, and a failing sibling never discards the others. An effect
that waits for a person or a key holds back later effects and reads alike: they may depend on it. A read that waits for a
person, and a question, hold back later effects alone. Questions are put to people up to ``parallel`` at a time, counted by themselves.
"""

from __future__ import annotations

from typing import Final

from .state import CallState, State
from .transitions import CallPhase

OUT: Final[tuple[CallPhase, ...]] = ("started", "waiting_child")
"""Where a call counts as running: dispatched, or a child run that goes on."""
ASKED: Final[tuple[CallPhase, ...]] = ("waiting_answer",)
"""Where a question is put to people."""


def may_start(state: State, call: CallState) -> bool:
    """Whether this call's turn to start has come, by call order and by the run's parallelism."""
    running = 0
    out = ASKED if _is_question(state, call) else OUT
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
            if other.phase in out:
                running += 1
        elif other.phase in out:
            running += 1
    return running < state.limits.parallel


def _may_be_effect(state: State, call: CallState) -> bool:
    """An unchecked proposal has no key yet; its definition tells."""
    definition = state.tools.get(call.tool)
    return call.phase == "proposed" and definition is not None and definition.is_effect


def _is_question(state: State, call: CallState) -> bool:
    definition = state.tools.get(call.tool)
    return definition is not None and definition.kind == "question"
