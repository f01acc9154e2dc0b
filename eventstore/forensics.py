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
from ..runtime.events import UnknownBelow
from ..runtime.orders import held_by_rate_until, shown_phase, wake_at_ms
from ..runtime.questions import answerable_until_ms
from ..runtime.state import METERED, CallState, State
from .codec import Recorded
from .deviation import Deviation, deviations
from .event_line import event_line
from .next_commands import next_commands

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

    on: Literal["person", "key", "child", "timer", "executor", "model", "host"]
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
    """How a run stopped, or on whom it waits. ``deviations`` holds the first of each class, oldest first. ``unknown_below``:
    of ended runs below, as of their end."""

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
    unknown_below: tuple[UnknownBelow, ...]
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


def why(state: State, records: Sequence[Recorded], now_ms: int | None = None) -> Why:
    """The answer to "what is the matter with this run?". ``records`` are those that ``state`` was folded from; what can
    be typed next is as of ``now_ms``, else as of the last event."""
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
        unknown_below=state.unknown_below,
        spend=spend(state),
        next_commands=tuple(
            next_commands(
                state,
                [effect.call for effect in unknown if effect.for_person],
                state.at_ms if now_ms is None else now_ms,
            )
        ),
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
        case "waiting_answer" if call.question is not None:
            return Wait(
                on="person",
                what=f"an answer to {call.question.question_id}: {call.question.question[:TEXT_CHARS_MAX]}",
                call=call.call,
                since_ms=call.question.asked_at_ms,
                until_ms=answerable_until_ms(state, call.question),
            )
        case "waiting_key":
            return Wait(
                on="key",
                what=f"call {call.holder_call} of run {call.holder_run} ({call.holder_why})",
                call=call.call,
            )
        case "waiting_child" if call.child is not None:
            return Wait(
                on="child",
                what=f"run {call.child.run_id} of agent {call.child.agent}",
                call=call.call,
                since_ms=call.started_at_ms,
                until_ms=call.child.deadline_at_ms,
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
        case "checking" if held_by_rate_until(state, call):
            return Wait(
                on="timer",
                what=f"the rate of {call.tool}",
                call=call.call,
                until_ms=held_by_rate_until(state, call),
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
