"""Orders: what a driver is to do next, as a pure function of the state.

Recovery is fold plus ``pending_orders``; there is no second path. An order's id is derived from its call or turn and
its attempt, so a driver starts exactly those that aren't in its in-flight set, and forgets those that vanish.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .effects import queries_left, resend_at, resend_due
from .limits import MARGIN_MS
from .order import may_start
from .state import CallState, State
from .stops import may_query


class RequestModel(msgspec.Struct, frozen=True):
    """Send the open model request."""

    turn: int
    attempt: int


class RunChecks(msgspec.Struct, frozen=True):
    """Run the application's rungs over a call; ``recheck`` right before a dispatch."""

    call: str
    attempt: int
    recheck: bool


class Execute(msgspec.Struct, frozen=True):
    """Dispatch an attempt whose intent is durable."""

    call: str
    attempt: int


class Query(msgspec.Struct, frozen=True):
    """Ask the far side about an unknown effect."""

    call: str
    number: int


Order = RequestModel | RunChecks | Execute | Query


def pending_orders(state: State, now_ms: int) -> list[Order]:
    """Everything that is to be under way at this time. Intents of an older epoch are never among them."""
    phase = state.phase
    if phase == "model_requested":
        if state.model_epoch != state.epoch:
            return []
        return [RequestModel(state.turn, state.model_attempt)]
    orders: list[Order] = []
    if phase == "open_calls":
        closing = bool(state.cancel_reason or state.close_requested)
        late = now_ms >= state.deadline_at_ms
        for call in state.calls.values():
            order = _order(state, call, now_ms, closing or late)
            if order is not None:
                orders.append(order)
    return orders


def _order(state: State, call: CallState, now_ms: int, closing: bool) -> Order | None:
    match call.phase:
        case "started":
            if call.attempt_epoch == state.epoch:
                return Execute(call.call, call.attempt)
        case "proposed":
            if not closing:
                return RunChecks(call.call, 0, False)
        case "checking":
            if not closing and call.key is not None and may_start(state, call):
                return RunChecks(call.call, call.attempt, True)
        case "executed":
            due = call.outcome == "failed" and 0 < call.retry_at_ms <= now_ms
            if not closing and due and call.key is not None:
                return RunChecks(call.call, call.attempt, True)
        case "reconciling":
            return _reconciling_order(state, call, now_ms, closing)
        case "waiting_key":
            # The checks read the key's row again. A driver runs them when the call began to wait and whenever the
            # store says that the row changed, not in a loop.
            if not closing and may_start(state, call):
                return RunChecks(call.call, call.attempt, True)
        case _:
            pass
    return None


def _reconciling_order(state: State, call: CallState, now_ms: int, closing: bool) -> Order | None:
    if queries_left(state, call):
        asks = not closing or (bool(state.cancel_reason) and may_query(state, call, state.cancel_reason))
        if asks and now_ms >= call.next_query_at_ms:
            return Query(call.call, call.queries + 1)
        return None
    if not closing and resend_due(state, call, now_ms):
        return RunChecks(call.call, call.attempt, True)
    return None


def wake_at_ms(state: State) -> int | None:
    """The earliest store time at which ``advance`` or ``pending_orders`` may answer differently; None for never."""
    phase = state.phase
    if phase == "terminated":
        return None
    if phase == "suspended":
        return state.deadline_at_ms if state.on_stop == "end" and state.reason == "outcome_unknown" else None
    due = state.deadline_at_ms
    if phase == "model_retry" and state.model_retry_at_ms:
        due = min(due, state.model_retry_at_ms)
    elif phase == "open_calls":
        for call in state.calls.values():
            at = _call_wakes_at(state, call)
            if at is not None:
                due = min(due, at)
    return due


def _call_wakes_at(state: State, call: CallState) -> int | None:
    approval = call.approval
    if (
        approval is not None
        and call.phase in ("waiting_approval", "checking")
        and approval.decision in ("", "approve")
    ):
        return approval.expires_at_ms
    if call.phase == "executed" and call.retry_at_ms:
        return call.retry_at_ms
    if call.phase == "started":
        return call.valid_until_ms + MARGIN_MS + 1
    if call.phase == "reconciling":
        if queries_left(state, call):
            return call.next_query_at_ms
        return resend_at(call)
    return None


ShownPhase = Literal[
    "created",
    "requesting_model",
    "waiting_retry",
    "validating",
    "executing",
    "waiting_approval",
    "waiting_key",
    "waiting_child",
    "reconciling",
    "results_ready",
    "suspended",
    "terminated",
]


def shown_phase(state: State) -> ShownPhase:
    """What a person is shown: for open calls a pure function of the calls (the machine of a single loop)."""
    match state.phase:
        case "model_requested":
            return "requesting_model"
        case "model_retry":
            return "waiting_retry"
        case "deciding":
            return "validating"
        case "open_calls":
            return _shown_calls(state)
        case "suspended":
            return "suspended"
        case "terminated":
            return "terminated"
        case "results_ready":
            return "results_ready"
        case _:
            return "created"


def _shown_calls(state: State) -> ShownPhase:
    phases = {call.phase for call in state.calls.values()}
    if "started" in phases:
        return "executing"
    if phases & {"proposed", "checking"}:
        return "validating"
    if "waiting_approval" in phases:
        return "waiting_approval"
    if "waiting_key" in phases:
        return "waiting_key"
    if "reconciling" in phases:
        return "reconciling"
    return "executing" if "executed" in phases else "results_ready"
