"""The derived index row of a run: what lists, inboxes and timers read."""

from __future__ import annotations

from collections.abc import Iterable

from .events import AnyEvent, ChildStarted
from .ledger import RunIndex
from .orders import held_by_rate_until, shown_phase, wake_at_ms
from .state import State
from .stops import ends_children


def run_index(state: State) -> RunIndex:
    """The row for this state; equal states give equal rows."""
    return RunIndex(
        status=shown_phase(state),
        outcome=state.outcome,
        reason=state.reason,
        waiting_for=waiting_for(state),
        wake_at_ms=wake_at_ms(state),
        waiting_keys=waiting_keys(state),
    )


def runs_to_wake(state: State) -> tuple[str, ...]:
    """Who looks at this run once it is in this state: the parent of one that has ended or stopped."""
    if state.parent_run and state.phase in ("terminated", "suspended"):
        return (state.parent_run,)
    return ()


def children_to_begin(state: State, events: Iterable[AnyEvent]) -> tuple[str, ...]:
    """The child runs that an append of these events, which led to this state, lets begin. One that a run on its way to an
    end has made has nothing to do but to be cancelled."""
    children = [event.child_run for event in events if type(event) is ChildStarted]
    return () if not children or ends_children(state) else tuple(children)


def waiting_keys(state: State) -> tuple[bytes, ...]:
    """The keys of all calls that wait for another holder, each once, in order."""
    if state.phase != "open_calls":
        return ()
    keys = {call.key for call in state.calls.values() if call.phase == "waiting_key" and call.key is not None}
    return tuple(sorted(keys))


def waiting_for(state: State) -> str:
    """Whom or what the run waits for: a person's approval or answer, an unknown effect, a key, a child run, a timer (of a retry,
    a query or a tool's rate); empty if for nobody."""
    if state.phase == "suspended":
        return f"person:{state.detail}" if state.reason == "outcome_unknown" else ""
    if state.phase == "model_retry":
        return "timer"
    if state.phase != "open_calls":
        return ""
    waits: list[tuple[int, str]] = []
    for call in state.calls.values():
        if call.phase == "waiting_approval" and call.approval is not None:
            waits.append((0, f"approval:{call.approval.approval_id}"))
        elif call.phase == "waiting_answer" and call.question is not None:
            waits.append((1, f"answer:{call.question.question_id}"))
        elif call.phase == "waiting_key" and call.key is not None:
            waits.append((2, f"key:{call.key.hex()}"))
        elif call.phase == "waiting_child" and call.child is not None:
            waits.append((3, f"child:{call.child.run_id}"))
        elif call.phase in ("reconciling", "executed") or held_by_rate_until(state, call):
            waits.append((4, "timer"))
    return min(waits)[1] if waits else ""
