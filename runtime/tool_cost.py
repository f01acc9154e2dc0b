"""What calls of tools cost, and how often they may start: both set aside or waited for before an attempt, from data alone.

A tool has a fixed ``cost_micros`` or a ``price(arguments)``, which is asked with the checks. The cost of an attempt is
reserved with its intent and settled by what the tool says it spent (``ctx.spent``); where it says nothing, or nobody knows how
the attempt ended, the reservation stays spent.
"""

from __future__ import annotations

from typing import Final

from . import events as e
from .commands import ChecksDone, Executed
from .state import CallState, State

PRICE_MICROS_MAX: Final = 2**53
_MAY_GO_ON: Final = frozenset(("timeout", "lost", "cancelled"))


def cost_of_attempt(state: State, call: CallState) -> int:
    """What one more attempt of this call costs, as far as it is known now."""
    if call.price_micros is not None:
        return call.price_micros
    definition = state.tools.get(call.tool)
    return 0 if definition is None else definition.cost_micros


def price_refusal(state: State, call: CallState, command: ChecksDone) -> e.CallRejected | None:
    """A tool that is priced by its arguments and has no price for these can't be held to a cost limit."""
    if not state.tools[call.tool].has_price or command.price_micros is not None:
        return None
    if state.limits.cost_micros is None:
        return None
    return e.CallRejected(
        call.call,
        "price",
        "price_unknown",
        "nobody can say what this would cost; the action was not run",
        retryable=True,
        verdicts=command.verdicts,
    )


def cost_short(state: State, cost_micros: int) -> bool:
    """Whether the cost limit stands in the way: this much isn't free, or the limit was passed before."""
    meter = state.meters.cost_micros
    return meter.free < cost_micros or meter.overrun > 0


def spent_of(call: CallState, command: Executed, outcome: str) -> int | None:
    """What settles the reservation; None for all of it, as it was. What a tool says by the way of an attempt whose end nobody
    saw is the least that it was."""
    said = command.spent_micros
    if said is None:
        return None
    said = min(max(said, 0), PRICE_MICROS_MAX)
    if outcome == "unknown" or (command.code in _MAY_GO_ON and not command.no_effect):
        return max(said, call.reserved_micros)
    return said


def opens_at(state: State, call: CallState) -> int:
    """From when on the rate of its tool lets this call start one more attempt; 0 for now."""
    starts = state.starts.get(call.tool)
    if not starts:
        return 0
    rate = state.tools[call.tool].rate
    if rate is None or len(starts) < rate[0]:
        return 0
    return starts[-rate[0]] + rate[1]
