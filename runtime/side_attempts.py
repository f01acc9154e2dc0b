"""Side attempts of a request: what is set aside for them, and what an answer makes of that.

They are model attempts of the run: counted, and their tokens and cost spent, by the events of the request that they were
made for. What goes beyond the declaration is spent all the same, drawing on what is free, and the rest is overrun; either
way nothing further is sent until somebody resumes the run.
"""

from __future__ import annotations

from typing import Final

import msgspec

from .events import SideReserved, SideSpent
from .limits import CEILING
from .model import ModelTurn, SideAttempt
from .prices import cost_of
from .reported import SPENT_MAX, sound_label, sound_usage
from .side_bounds import SIDE_ATTEMPTS_MAX
from .state import State

PURPOSE_CHARS_MAX: Final = 64
NONE: Final = SideReserved(0, 0, 0, 0)


def side_reserved(state: State) -> SideReserved:
    """What the next request sets aside for side attempts."""
    side = state.pins.side
    return NONE if side is None else side.reserved


def own_reservation(state: State) -> tuple[int, int, int]:
    """Input and output tokens and cost that the open request has for itself alone."""
    side = state.reserved_side
    if side is None:
        return state.reserved_input, state.reserved_output, state.reserved_cost
    return (
        state.reserved_input - side.input_tokens,
        state.reserved_output - side.output_tokens,
        state.reserved_cost - side.cost_micros,
    )


def side_lost(state: State) -> SideSpent | None:
    """Nobody knows how many there were: all that was set aside for them stays spent, the attempts too."""
    side = state.reserved_side
    if side is None:
        return None
    return SideSpent(side.attempts, side.input_tokens, side.output_tokens, side.cost_micros)


def side_spent(state: State, reply: ModelTurn) -> SideSpent | None:
    """What settles them: each by what is reported of it, and by its bound where that is unknown. None: there was none."""
    if reply.side_attempts is None:
        return side_lost(state)
    if not reply.side_attempts:
        return None
    input_tokens = output_tokens = cost = 0
    for made in reply.side_attempts:
        of_input, of_output, of_cost = _spent_by(state, made)
        input_tokens += of_input
        output_tokens += of_output
        cost += of_cost
    return SideSpent(
        len(reply.side_attempts),
        min(input_tokens, CEILING),
        min(output_tokens, CEILING),
        min(cost, SPENT_MAX),
        tuple(_sound(made) for made in reply.side_attempts[:SIDE_ATTEMPTS_MAX]),
    )


def _spent_by(state: State, made: SideAttempt) -> tuple[int, int, int]:
    """One of them. Where none was declared there is no bound to fall back on but the request's own."""
    side = state.pins.side
    if side is None:
        input_bound, output_bound, cost_bound = own_reservation(state)
    else:
        input_bound, output_bound = side.input_tokens_max, side.output_tokens_max
        cost_bound = side.cost_each_micros
    usage, price = sound_usage(made.usage), None if side is None else side.price
    cost = made.cost_micros
    if cost is None or cost < 0:
        cost = None if price is None or usage is None else cost_of(price, usage)
    if usage is not None:
        input_bound = input_bound if usage.input_tokens is None else usage.input_tokens
        output_bound = output_bound if usage.output_tokens is None else usage.output_tokens
    return input_bound, output_bound, cost_bound if cost is None else min(cost, SPENT_MAX)


def _sound(made: SideAttempt) -> SideAttempt:
    cost = made.cost_micros
    return msgspec.structs.replace(
        made,
        model=sound_label(made.model),
        usage=sound_usage(made.usage),
        cost_micros=None if cost is None or cost < 0 else min(cost, SPENT_MAX),
        purpose=sound_label(made.purpose, PURPOSE_CHARS_MAX),
    )
