"""What happened, from the log alone: one line an event, why a run stopped or waits, what it spent, what a person can do.

Pure functions over records and folded states; they return data, and whoever shows it escapes it. Text from models and
far sides is bounded here and is never made safe to print here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from ..runtime.budget import UNLIMITED
from ..runtime.effects import needs_person
from ..runtime.orders import shown_phase, wake_at_ms
from ..runtime.state import METERED, CallState, State
from ..runtime.stops import REASONS
from .codec import Recorded
from .deviation import Deviation, deviations
from .event_line import event_line

TEXT_CHARS_MAX = 160


class TimelineLine(msgspec.Struct, frozen=True, kw_only=True):
    """One event. ``after_ms`` counts from the run's start; ``text`` is bounded and unescaped."""

    seq: int
    at_ms: int
    after_ms: int
    epoch: int
    tag: str
    call: str
    text: str


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the run waits for. ``until_ms`` 0 means that no time is set."""

    on: Literal["person", "key", "timer", "executor", "model", "host"]
    what: str
    call: str = ""
    since_ms: int = 0
    until_ms: int = 0


class UnknownEffect(msgspec.Struct, frozen=True, kw_only=True):
    """An effect of which nobody knows whether it happened. ``for_person``: nothing here can settle it any more."""

    call: str
    tool: str
    key: bytes
    attempt: int
    started_at_ms: int
    for_person: bool


class Spend(msgspec.Struct, frozen=True, kw_only=True):
    """One limit. ``limit`` None means waived. ``spent + reserved`` is above ``limit`` only by ``overrun``."""

    name: str
    limit: int | None
    spent: int
    reserved: int = 0
    overrun: int = 0


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """How a run stopped, or on whom it waits. ``deviations`` holds the first of each class, oldest first."""

    run_id: str
    status: str
    outcome: str
    reason: str
    detail: str
    resumable: bool
    unfinished: tuple[str, ...]
    waits: tuple[Wait, ...]
    deviations: tuple[Deviation, ...]
    unknown_effects: tuple[UnknownEffect, ...]
    spend: tuple[Spend, ...]
    next_commands: tuple[str, ...]


def timeline(records: Iterable[Recorded], *, text_chars_max: int = TEXT_CHARS_MAX) -> Iterator[TimelineLine]:
    """One line an event, in order."""
    start_ms = -1
    for record in records:
        if start_ms < 0:
            start_ms = record.at_ms
        call, text = event_line(record.event, text_chars_max)
        yield TimelineLine(
            seq=record.seq,
            at_ms=record.at_ms,
            after_ms=record.at_ms - start_ms,
            epoch=record.epoch,
            tag=record.tag,
            call=call,
            text=text,
        )


def why(state: State, records: Sequence[Recorded]) -> Why:
    """The answer to "what is the matter with this run?". ``records`` are those that ``state`` was folded from."""
    stopped = state.phase in ("suspended", "terminated")
    waits = () if stopped else tuple(_waits(state))
    unknown = unknown_effects(state)
    return Why(
        run_id=state.run_id,
        status=shown_phase(state),
        outcome=state.outcome,
        reason=state.reason,
        detail=state.detail,
        resumable=state.phase == "suspended",
        unfinished=state.unfinished,
        waits=waits,
        deviations=deviations(records),
        unknown_effects=unknown,
        spend=spend(state),
        next_commands=tuple(_next_commands(state, waits, unknown)),
    )


# --- waiting -----------------------------------------------------------------------------------------------------


def _waits(state: State) -> Iterator[Wait]:
    match state.phase:
        case "model_requested":
            yield Wait(on="model", what=state.pins.model, since_ms=state.requested_at_ms)
        case "model_retry":
            yield Wait(
                on="timer",
                what=f"the model again after {state.model_code}",
                since_ms=state.at_ms,
                until_ms=state.model_retry_at_ms,
            )
        case "open_calls":
            for call in state.calls.values():
                wait = _call_wait(state, call)
                if wait is not None:
                    yield wait
        case _:
            yield Wait(on="host", what="a host to go on with the run", since_ms=state.at_ms)


def _call_wait(state: State, call: CallState) -> Wait | None:
    match call.phase:
        case "waiting_approval" if call.approval is not None:
            return Wait(
                on="person",
                what=f"approval {call.approval.approval_id} of {call.tool}",
                call=call.call,
                since_ms=call.approval.requested_at_ms,
                until_ms=call.approval.expires_at_ms,
            )
        case "waiting_key":
            return Wait(
                on="key",
                what=f"call {call.holder_call} of run {call.holder_run} ({call.holder_why})",
                call=call.call,
            )
        case "started":
            return Wait(
                on="executor",
                what=f"{call.tool}, attempt {call.attempt}",
                call=call.call,
                since_ms=call.started_at_ms,
                until_ms=call.valid_until_ms,
            )
        case "reconciling":
            if needs_person(state, call):
                return Wait(
                    on="person",
                    what=f"the unknown effect of {call.tool}",
                    call=call.call,
                    since_ms=call.observed_at_ms,
                )
            return Wait(
                on="timer",
                what=f"finding out what became of {call.tool}",
                call=call.call,
                since_ms=call.observed_at_ms,
                until_ms=wake_at_ms(state) or 0,
            )
        case "executed" if call.retry_at_ms:
            return Wait(
                on="timer",
                what=f"{call.tool} again after {call.code}",
                call=call.call,
                until_ms=call.retry_at_ms,
            )
        case "proposed" | "checking" | "executed" | "rejected":
            return Wait(on="host", what=f"a host to go on with {call.tool}", call=call.call)
        case _:
            return None


# --- unknown effects and spend -----------------------------------------------------------------------------------


def unknown_effects(state: State) -> tuple[UnknownEffect, ...]:
    """Effects without a known outcome: of the open turn, and those that were bound as unknown."""
    calls = {name: call for name, call in state.calls.items() if call.phase == "reconciling"}
    calls |= state.unknown_calls
    return tuple(
        UnknownEffect(
            call=call.call,
            tool=call.tool,
            key=call.key or b"",
            attempt=call.attempt,
            started_at_ms=call.started_at_ms,
            for_person=call.phase == "bound" or state.phase == "suspended" or needs_person(state, call),
        )
        for call in calls.values()
    )


def spend(state: State) -> tuple[Spend, ...]:
    """Every metered limit and the two clocks, as of the last event."""
    rows = [
        Spend(
            name=name,
            limit=None if meter.granted == UNLIMITED else meter.granted,
            spent=meter.spent,
            reserved=meter.reserved,
            overrun=meter.overrun,
        )
        for name in METERED
        for meter in (getattr(state.meters, name),)
    ]
    rows.append(Spend(name="active_ms", limit=state.limits.active_ms, spent=state.counters.active_ms))
    passed = state.at_ms - state.started_at_ms
    rows.append(Spend(name="deadline_ms", limit=state.limits.deadline_ms, spent=passed))
    return tuple(rows)


# --- what to type next -------------------------------------------------------------------------------------------

_RAISE: dict[str, tuple[str, ...]] = {
    "max_turns": ("turns", "model_attempts"),
    "max_tool_calls": ("tool_calls", "call_attempts"),
    "budget_tokens": ("input_tokens", "output_tokens", "total_tokens"),
    "budget_cost": ("cost_micros",),
    "deadline": ("deadline_ms",),
    "context_exhausted": ("context_tokens",),
}


def _next_commands(state: State, waits: Sequence[Wait], unknown: Sequence[UnknownEffect]) -> Iterator[str]:
    run = state.run_id
    for call in state.calls.values():
        if call.phase == "waiting_approval" and call.approval is not None:
            yield f"boundloop approve {call.approval.approval_id}"
            yield f"boundloop reject {call.approval.approval_id} --reason TEXT"
    for effect in unknown:
        if effect.for_person:
            yield f"boundloop call resolve {run} {effect.call} --applied JSON"
            yield f"boundloop call resolve {run} {effect.call} --absent"
    if state.phase == "suspended":
        yield from _lift(state, any(effect.for_person for effect in unknown))
    elif any(wait.on == "key" for wait in waits):
        for call in state.calls.values():
            if call.phase == "waiting_key":
                yield f"boundloop why {call.holder_run}"


def _lift(state: State, unknown: bool) -> Iterator[str]:
    run = state.run_id
    names = [name for name in _RAISE.get(state.reason, ()) if _used_up(state, name)]
    if names:
        raised = " ".join(f"{name}=N" for name in names)
        yield f"boundloop limits raise {run} {raised}"
    if state.reason in REASONS and not unknown:
        yield f"boundloop resume {run}"
    yield f"boundloop close {run}"


def _used_up(state: State, name: str) -> bool:
    """Whether raising this limit is needed, as far as the state tells."""
    if name in METERED:
        meter = getattr(state.meters, name)
        # What a request would need isn't known here, so a token limit counts as used up from nine tenths on.
        if name.endswith("tokens"):
            return int(meter.free) * 10 < int(meter.granted)
        return int(meter.free) < 1 or state.reason == "budget_cost"
    return True
