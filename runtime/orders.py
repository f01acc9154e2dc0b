"""Orders: what a driver is to do next, as a pure function of the state.

Recovery is fold plus ``pending_orders``; there is no second path. An order's id is derived from its call or turn and
its attempt, so a driver starts exactly those that aren't in its in-flight set, and forgets those that vanish.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .effects import may_resend, queries_left, resend_at, resend_due
from .guarded import answer_guarded, result_due
from .limits import MARGIN_MS
from .order import may_start
from .state import CallState, State
from .stops import child_overdue_at, ending, ends_children, may_query
from .tool_cost import opens_at
from .top_ups import Short, calls_held, calls_short, may_ask
from .turns import answer_due, next_request_short


class RequestModel(msgspec.Struct, frozen=True, gc=False):
    """Send the open model request."""

    turn: int
    attempt: int


class RunChecks(msgspec.Struct, frozen=True, gc=False):
    """Run the application's rungs over a call; ``recheck`` right before a dispatch."""

    call: str
    attempt: int
    recheck: bool


class Execute(msgspec.Struct, frozen=True, gc=False):
    """Dispatch an attempt whose intent is durable."""

    call: str
    attempt: int


class Query(msgspec.Struct, frozen=True, gc=False):
    """Ask the far side about an unknown effect."""

    call: str
    number: int


class GuardResult(msgspec.Struct, frozen=True, gc=False):
    """Have the result of an execution judged before the model sees it."""

    call: str


class GuardAnswer(msgspec.Struct, frozen=True, gc=False):
    """Have the final text of this turn judged before the run completes."""

    turn: int


class StartChild(msgspec.Struct, frozen=True, gc=False):
    """Create the child run whose lease is durable, or find that it is there."""

    call: str


class SettleChild(msgspec.Struct, frozen=True, gc=False):
    """Look whether the child run has ended. A driver does so when it began to wait and whenever the store says that the
    run was woken, by a signal or in its answer to an append, not in a loop."""

    call: str


class CancelChild(msgspec.Struct, frozen=True, gc=False):
    """Cancel the child run of a call that is closed."""

    call: str


class AskParent(msgspec.Struct, frozen=True, gc=False):
    """The run is short of this: ask the runs above it for more before it stops."""

    asked: tuple[tuple[str, int], ...]


Order = (
    RequestModel
    | RunChecks
    | Execute
    | Query
    | GuardResult
    | GuardAnswer
    | StartChild
    | SettleChild
    | CancelChild
    | AskParent
)


def pending_orders(state: State, now_ms: int) -> list[Order]:
    """Everything that is to be under way at this time. Intents of an older epoch are never among them."""
    phase = state.phase
    if phase == "model_requested":
        if state.model_epoch != state.epoch:
            return []
        return [RequestModel(state.turn, state.model_attempt)]
    if phase == "deciding" and answer_guarded(state) and answer_due(state, now_ms):
        return [GuardAnswer(state.turn)]
    orders: list[Order] = []
    if phase == "suspended":
        for call in state.calls.values():
            if call.phase == "waiting_child":
                orders += _child_orders(state, call, now_ms)
            elif call.phase == "reconciling" and state.cancel_reason:
                # A stopped run that is cancelled still asks the far side about what is unknown, and starts nothing.
                order = _reconciling_order(state, call, now_ms, True)
                orders += [order] if order is not None else []
    elif phase == "open_calls":
        closing = bool(state.cancel_reason or ending(state))
        late = now_ms >= state.deadline_at_ms
        held = calls_held(state) and not closing and not late
        if held:
            orders.append(_ask(calls_short(state)))
        for call in state.calls.values():
            if call.phase == "waiting_child":
                orders += _child_orders(state, call, now_ms)
                continue
            if held and call.phase in ("proposed", "checking"):
                continue
            order = _order(state, call, now_ms, closing or late)
            if order is not None:
                orders.append(order)
    elif state.parent_run and phase != "terminated" and not state.cancel_reason:
        short = next_request_short(state, now_ms)
        if may_ask(state, short):
            orders.append(_ask(short))
    return orders


def _ask(short: Short) -> AskParent:
    return AskParent(tuple(sorted(short.items())))


def _child_orders(state: State, call: CallState, now_ms: int) -> list[Order]:
    """The child is created even if its run ends by now, and cancelled then: so no late host can start it unseen."""
    child = call.child
    if child is None or not child.started:
        return [StartChild(call.call)]
    orders: list[Order] = [SettleChild(call.call)]
    overdue = state.phase == "open_calls" and now_ms > child_overdue_at(state)
    if ends_children(state) or overdue:
        orders.append(CancelChild(call.call))
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
            if not closing and call.rechecked and may_start(state, call) and opens_at(state, call) <= now_ms:
                return RunChecks(call.call, call.attempt, True)
        case "executed":
            due = call.outcome == "failed" and 0 < call.retry_at_ms <= now_ms
            if not closing and result_due(state, call, now_ms):
                return GuardResult(call.call)
            due = due and opens_at(state, call) <= now_ms
            if not closing and due and call.rechecked:
                return RunChecks(call.call, call.attempt, True)
        case "reconciling":
            return _reconciling_order(state, call, now_ms, closing)
        case "waiting_key":
            # The checks read the key's row again. A driver runs them when the call began to wait and whenever the
            # store says that the row changed, not in a loop.
            if not closing and may_start(state, call) and opens_at(state, call) <= now_ms:
                return RunChecks(call.call, call.attempt, True)
        case _:
            pass
    return None


def _reconciling_order(state: State, call: CallState, now_ms: int, closing: bool) -> Order | None:
    if queries_left(state, call):
        why = state.cancel_reason or ending(state)
        asks = not closing or (bool(why) and may_query(state, call, why))
        if asks and now_ms >= call.next_query_at_ms:
            return Query(call.call, call.queries + 1)
        return None
    if not closing and resend_due(state, call, now_ms):
        return RunChecks(call.call, call.attempt, True)
    return None


def wake_at_ms(state: State, after_ms: int = -1) -> int | None:
    """The earliest store time at which ``advance`` or ``pending_orders`` may answer differently; None for never.

    A driver that has just asked both at ``after_ms`` passes it: what was due by then is under way, and a timer of the
    past would only make it ask again at once.
    """
    earliest: int | None = None
    for at in _timers(state):
        if at > after_ms and (earliest is None or at < earliest):
            earliest = at
    return earliest


def _timers(state: State) -> list[int]:
    phase = state.phase
    if phase == "terminated":
        return []
    closed = bool(state.cancel_reason or state.close_requested)
    if phase == "suspended" and not closed:
        ends = state.on_stop == "end" and state.reason == "outcome_unknown"
        return [state.deadline_at_ms] if ends else []
    timers: list[int] = []
    if phase == "model_retry" and state.model_retry_at_ms:
        timers.append(state.model_retry_at_ms)
    waits = phase != "open_calls"
    child_out = False
    for call in state.calls.values():
        if call.phase == "bound":
            continue
        if call.phase == "waiting_child":
            child_out = child_out or (call.child is not None and call.child.started)
            continue
        # The deadline closes every call but one that is out: that one ends by its own validity, a child by its own timer.
        waits = waits or call.phase != "started"
        at = _call_wakes_at(state, call)
        if at is not None:
            timers.append(at)
    if closed:
        return timers
    if waits:
        timers.append(state.deadline_at_ms)
    if child_out and not ending(state) and state.at_ms <= child_overdue_at(state):
        # Once a child was found overdue and cancelled, only its end is waited for.
        timers.append(child_overdue_at(state) + 1)
    return timers


def held_by_rate_until(state: State, call: CallState) -> int:
    """Until when nothing but its tool's rate keeps this call from starting; 0 if that isn't what it waits for."""
    if not state.starts or call.phase not in ("checking", "waiting_key") or not may_start(state, call):
        return 0
    opens = opens_at(state, call)
    return opens if opens > state.at_ms else 0


def _call_wakes_at(state: State, call: CallState) -> int | None:
    opens = held_by_rate_until(state, call) if state.starts else 0
    approval = call.approval
    if opens:
        approved = approval is not None and approval.decision == "approve" and call.phase == "checking"
        return min(opens, approval.expires_at_ms) if approval is not None and approved else opens
    if (
        approval is not None
        and call.phase in ("waiting_approval", "checking")
        and approval.decision in ("", "approve")
    ):
        return approval.expires_at_ms
    if call.phase == "waiting_answer" and call.question is not None:
        return call.question.expires_at_ms
    if call.phase == "executed" and call.retry_at_ms:
        return max(call.retry_at_ms, opens_at(state, call))
    if call.phase == "started":
        return call.valid_until_ms + MARGIN_MS + 1
    if call.phase == "reconciling":
        if queries_left(state, call):
            return call.next_query_at_ms
        return resend_at(state, call) if may_resend(state, call) else None
    return None


ShownPhase = Literal[
    "created",
    "requesting_model",
    "waiting_retry",
    "validating",
    "executing",
    "waiting_approval",
    "waiting_answer",
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
    if "waiting_child" in phases and not phases & {"proposed", "waiting_approval", "waiting_answer"}:
        return "waiting_child"
    if phases & {"proposed", "checking"}:
        return "validating"
    if "waiting_approval" in phases:
        return "waiting_approval"
    if "waiting_answer" in phases:
        return "waiting_answer"
    if "waiting_key" in phases:
        return "waiting_key"
    if "reconciling" in phases:
        return "reconciling"
    return "executing" if "executed" in phases else "results_ready"
