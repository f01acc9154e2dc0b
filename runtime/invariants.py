"""Named laws of a state. The same functions serve the fold in tests, simulation and forensics on real logs."""

from __future__ import annotations

from collections.abc import Mapping

from .budget import law_holds
from .errors import BugError
from .guarded import answer_guarded
from .state import EACH, METERED, CallState, ChildState, State
from .stops import REASONS
from .withheld import guards_results


def check_state(state: State) -> None:
    """Raise ``BugError`` naming the first law that doesn't hold; all hold after every event."""
    for name in METERED:
        if not law_holds(getattr(state.meters, name)):
            raise BugError("law_broken", f"{name}: {getattr(state.meters, name)!r}", path=name)
    for name in ("turns", "model_attempts", "tool_calls", "call_attempts", "children"):
        # No request is sent beyond its limit; what an adapter makes beyond its declaration can only be recorded.
        if getattr(state.meters, name).overrun > (
            state.counters.side_overrun if name == "model_attempts" else 0
        ):
            raise BugError("count_overrun", f"{name} passed its limit", path=name)
    if state.phase == "terminated" and any(call.open for call in state.calls.values()):
        raise BugError("unbound_at_end", "a call has no result at the end")
    if state.phase in ("model_requested", "results_ready") and any(
        call.open for call in state.calls.values()
    ):
        raise BugError("unbound_before_request", "a call has no result before the next request")
    if (state.outcome == "completed") != (state.reason == "final"):
        raise BugError("completion", f"{state.outcome}/{state.reason}")
    if state.outcome and (state.reason not in REASONS or REASONS[state.reason][0] != state.outcome):
        raise BugError("reason_unknown", f"{state.outcome}/{state.reason}")
    _check_judged(state)
    _check_reservations(state)


def _check_judged(state: State) -> None:
    """Where a guardrail judges, a model sees allowed results alone, and only an allowed answer completes."""
    if not state.pins.guarded:
        return
    if answer_guarded(state) and state.outcome == "completed" and state.answer_verdict != "allow":
        raise BugError("answer_unjudged", "the run completed with an answer that no guardrail allowed")
    for call in state.calls.values() if guards_results(state) else ():
        if call.status == "ok" and call.guarded != "allow":
            raise BugError("result_unjudged", f"the model sees what no guardrail allowed of {call.call}")


def _check_reservations(state: State) -> None:
    """What is reserved is the open request's, the admitted calls' and the leases', and nothing else."""
    requested = state.phase == "model_requested"
    tokens = state.reserved_input + state.reserved_output
    held = {
        "input_tokens": state.reserved_input,
        "output_tokens": state.reserved_output,
        "total_tokens": tokens,
        "cost_micros": state.reserved_cost + sum(call.reserved_micros for call in state.calls.values()),
        "model_attempts": 0 if state.reserved_side is None else state.reserved_side.attempts,
        "tool_calls": sum(_is_admitted(call) for call in state.calls.values()),
    }
    if (tokens or state.reserved_side) and not requested:
        raise BugError("reservation", "tokens are reserved without an open request")
    leases = [
        call.child.granted for call in state.calls.values() if call.child and call.phase == "waiting_child"
    ]
    for name in METERED:
        wanted = held.get(name, 0) + sum(lease.get(name, 0) for lease in leases)
        reserved = getattr(state.meters, name).reserved
        if reserved != wanted:
            raise BugError("reservation", f"{name}: {reserved} reserved, {wanted} held", path=name)
    for tool, most in state.limits.tool_calls_each.items():
        if state.calls_each.get(tool, 0) > most:
            raise BugError("count_overrun", f"calls of {tool} passed their limit", path=tool)
    for call in state.calls.values():
        if call.child is not None and call.child.deadline_at_ms > state.deadline_at_ms:
            raise BugError("deadline", f"the child of {call.call} has a later deadline than its parent")


def _is_admitted(call: CallState) -> bool:
    return call.open and bool(call.args_sha256) and not call.attempt and call.phase != "rejected"


def check_tree(runs: Mapping[str, State]) -> None:
    """Raise ``BugError`` for the first law that runs of one tree break together: a child has never more than its parent
    set aside for it, nor a later deadline, and what was settled for it is what its own log says."""
    for state in runs.values():
        for call in state.calls.values():
            lease = call.child
            child = None if lease is None else runs.get(lease.run_id)
            if lease is None or child is None:
                continue
            _check_lease(call, lease, child)
            if child.depth != state.depth + 1 or child.limits.depth > state.limits.depth:
                raise BugError("depth", f"{child.run_id} is at depth {child.depth}", path=child.run_id)


def _check_lease(call: CallState, lease: ChildState, child: State) -> None:
    for name in METERED:
        limit = getattr(child.limits, name)
        if limit is not None and limit > lease.granted.get(name, 0):
            raise BugError(
                "lease_passed", f"{name}: {limit} of {lease.granted.get(name, 0)}", path=child.run_id
            )
    for tool, count in child.limits.tool_calls_each.items():
        if count > lease.granted.get(EACH + tool, 0):
            raise BugError("lease_passed", f"calls of {tool}: {count}", path=child.run_id)
    if child.deadline_at_ms > lease.deadline_at_ms:
        raise BugError("deadline", "a child's deadline is after its lease's", path=child.run_id)
    if call.phase != "waiting_child" and child.phase != "terminated":
        raise BugError("child_left", f"{call.call} is settled and its child goes on", path=child.run_id)
