"""What a person can type next about a run. Each command is put to ``decide`` first, so none is named that would be
refused; one that only works after another stands after it. Pure: texts, unescaped and quoted for a shell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from shlex import quote
from typing import Final

from ..runtime.commands import (
    Advance,
    Answer,
    Approve,
    Close,
    OutsideCommand,
    RaiseLimits,
    Reject,
    ResolveCall,
    Resume,
)
from ..runtime.decide import decide
from ..runtime.state import METERED, QuestionState, State
from ..runtime.turns import request_after_resume, request_short

_RAISE: Final[dict[str, tuple[str, ...]]] = {
    "max_turns": ("turns", "model_attempts"),
    "max_tool_calls": ("tool_calls", "call_attempts"),
    "budget_tokens": ("input_tokens", "output_tokens", "total_tokens"),
    "budget_cost": ("cost_micros",),
    "context_exhausted": ("context_tokens",),
}
_TRIAL: Final = "trial"
_SOMEBODY: Final = "somebody who did not ask"


def goes_on_by_itself(state: State, now_ms: int) -> bool:
    """Whether the next host finds something to do at once that isn't an order: the rules alone lead on."""
    return bool(decide(state, Advance(), now_ms).events)


def next_commands(state: State, unknown: Iterable[str], now_ms: int) -> Iterator[str]:
    """``unknown``: calls of which a person has to say what became of them."""
    run = quote(state.run_id)
    for call in state.calls.values():
        if call.approval is None:
            continue
        name = call.approval.approval_id
        if _accepted(state, Approve(command_id=_TRIAL, by=_SOMEBODY, approval_id=name), now_ms):
            yield f"boundloop approve {name}"
        if _accepted(state, Reject(command_id=_TRIAL, by=_SOMEBODY, approval_id=name), now_ms):
            yield f"boundloop reject {name} --reason TEXT"
    for call in state.calls.values():
        if call.question is not None:
            yield from _answers(state, call.question, now_ms)
    for name in unknown:
        settle = ResolveCall(command_id=_TRIAL, by=_SOMEBODY, call=name, outcome="absent")
        if _accepted(state, settle, now_ms):
            yield f"boundloop call resolve {run} {quote(name)} --applied JSON"
            yield f"boundloop call resolve {run} {quote(name)} --absent"
    if state.phase == "suspended":
        if not goes_on_by_itself(state, now_ms):
            yield from _lift(state, run, now_ms)
    else:
        for call in state.calls.values():
            if call.phase == "waiting_key" and call.holder_run != state.run_id:
                yield f"boundloop why {quote(call.holder_run)}"
            elif call.phase == "waiting_child" and call.child is not None and call.child.started:
                yield f"boundloop why {quote(call.child.run_id)}"


def _answers(state: State, question: QuestionState, now_ms: int) -> Iterator[str]:
    name = question.question_id
    text = question.choices[0] if question.choices else _TRIAL
    if _accepted(state, Answer(command_id=_TRIAL, by=_SOMEBODY, question_id=name, text=text), now_ms):
        yield f"boundloop answer {name} {'--choice N' if question.choices else 'TEXT'}"
        yield f"boundloop answer {name} --cannot"


def _lift(state: State, run: str, now_ms: int) -> Iterator[str]:
    names = [name for name in _short(state, now_ms) if _raisable(state, name, now_ms)]
    if names:
        yield f"boundloop limits raise {run} {' '.join(f'{name}=N' for name in names)}"
    if names or _accepted(state, Resume(command_id=_TRIAL, by=_SOMEBODY), now_ms):
        yield f"boundloop resume {run}"
    if _accepted(state, Close(command_id=_TRIAL, by=_SOMEBODY), now_ms):
        yield f"boundloop close {run}"


def _short(state: State, now_ms: int) -> Iterator[str]:
    """Limits that stand in the way of going on, as far as the state tells."""
    if state.reason == "outcome_unknown":
        return
    yield from (name for name in _RAISE.get(state.reason, ()) if _used_up(state, name))
    if now_ms >= state.deadline_at_ms:
        yield "deadline_ms"
    if state.reason == "deadline" and state.counters.active_ms >= state.limits.active_ms:
        yield "active_ms"


def _used_up(state: State, name: str) -> bool:
    if name not in METERED:
        return True
    if name in ("tool_calls", "call_attempts"):
        return int(getattr(state.meters, name).free) < 1
    # What the price of a call was short of isn't in the state.
    turn, _ = request_after_resume(state)
    return state.reason == "budget_cost" or name in request_short(state, turn)


def _raisable(state: State, name: str, now_ms: int) -> bool:
    present: int | None = getattr(state.limits, name)
    if present is None:
        return False
    return _accepted(state, RaiseLimits(command_id=_TRIAL, by=_SOMEBODY, raised={name: present + 1}), now_ms)


def _accepted(state: State, command: OutsideCommand, now_ms: int) -> bool:
    decision = decide(state, command, now_ms)
    return decision.refusal is None and bool(decision.events)
