"""Top-ups: a child that is short of something asks its parent for more before it stops.

What is given is on record in the parent's log first (``child_topped_up``), then in the child's (``limits_raised`` by the
parent); both are idempotent by derived command ids, so a crash in between is made good by asking again. A parent that
hasn't enough says so, and the child asks further up; ``lease_denied`` on record means that it needn't ask again.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from . import events as e
from .agent_definition import AgentDefinition
from .budget import child_shares, top_up
from .commands import NothingLeft, RaiseLease, TopUpChild
from .decision import NOTHING, Decision, refuse
from .leases import needed_to_start, to_give
from .limits import CEILING
from .state import METERED, CallState, State, run_name

COUNTS: Final = frozenset({"turns", "model_attempts", "tool_calls", "call_attempts", "children"})
"""Quantities of which a part of what was asked for helps too."""

Short = dict[str, int]
"""How much is missing, by the name of the limit."""


# --- running out -------------------------------------------------------------------------------------------------


def may_ask(state: State, short: Short) -> bool:
    """Whether a run that is short of this asks its parent instead of stopping."""
    return bool(
        state.parent_run
        and short
        and not (state.cancel_reason or state.close_requested)
        and not any(name in state.lease_denied for name in short)
    )


def calls_short(state: State) -> Short:
    """What the open turn's calls that haven't started need and a child's lease doesn't have. Empty for a run without a
    parent, and for what was denied."""
    if not state.parent_run or state.phase != "open_calls":
        return {}
    needed = needed_to_start(state, ("proposed", "checking"))
    if state.depth >= state.limits.depth:
        needed["children"] = 0
    needs = ((name, amount - getattr(state.meters, name).free) for name, amount in needed.items())
    return {name: missing for name, missing in needs if missing > 0 and name not in state.lease_denied}


def calls_held(state: State) -> bool:
    """Whether the open turn's calls wait for what the parent gives: nothing is checked or started meanwhile."""
    return bool(state.parent_run) and may_ask(state, calls_short(state))


def nothing_left(state: State, command: NothingLeft, now_ms: int) -> Decision:
    """No run above has more: from here on the run's own limits stand."""
    new = tuple(name for name in command.limits if name in METERED and name not in state.lease_denied)
    if not state.parent_run or not state.live or state.phase == "model_requested" or not new:
        return NOTHING
    return Decision((e.LeaseDenied(run_name(state.parent_run), new),))


# --- giving more -------------------------------------------------------------------------------------------------


def top_up_id(child: State, asked: Short) -> str:
    """The command id of one question, the same whenever it is asked again for the same reason."""
    words = ",".join(f"{name}={amount}" for name, amount in sorted(asked.items()))
    return "topup_" + sha256(f"{child.run_id}/{child.lease_raises}/{words}".encode()).hexdigest()[:32]


def top_up_child(state: State, command: TopUpChild, now_ms: int) -> Decision:
    """Set more aside for a child, on record before the child hears of it: what it asks for, or an equal part of half of
    what is left if that is more. Refused with ``nothing_left`` if that isn't free here: the child asks further up."""
    call = state.calls.get(command.call)
    child = None if call is None else call.child
    if call is None or child is None or call.phase != "waiting_child" or child.run_id != command.child_run:
        return refuse("no_such_child", "no open call has that child run")
    if command.by != run_name(command.child_run):
        return refuse("not_the_child", "only the child itself asks for more")
    if state.phase != "open_calls" or state.cancel_reason or now_ms >= state.deadline_at_ms:
        return refuse("run_ending", "the parent is stopped or ending")
    siblings = sum(1 for other in state.calls.values() if other.phase == "waiting_child")
    granted: dict[str, int] = {}
    for name, asked in command.asked.items():
        if name not in METERED or name not in child.granted or not 0 < asked <= CEILING:
            return refuse("not_leased", "only what the lease names can be asked for")
        least = 1 if name in COUNTS else asked
        room = _room(state, call, name)
        if room < least:
            return refuse("own_limit", f"its agent declares no more {name}")
        free = to_give(state, name)
        if free < least:
            return refuse("nothing_left", f"{name} has {free} free")
        granted[name] = min(room, top_up(free, max(asked, child_shares(free, siblings)[0])))
    if not granted:
        return refuse("nothing_asked", "name at least one limit")
    return Decision((e.ChildToppedUp(call.call, granted, command.by, command.command_id),))


def agent_of_call(state: State, call: CallState) -> AgentDefinition | None:
    """The agent whose run the call waits for, as it was pinned."""
    definition, child = state.tools.get(call.tool), call.child
    if definition is None or child is None:
        return None
    return next((agent for agent in definition.agents if agent.name == child.agent), None)


def _room(state: State, call: CallState, name: str) -> int:
    """How much more of this the child may have by what its agent declares."""
    agent = agent_of_call(state, call)
    declared = CEILING if agent is None else agent.limits.get(name, CEILING)
    return declared - (0 if call.child is None else call.child.granted[name])


def short_of(state: State, asked: Short) -> Short:
    """What a run itself has to ask for, to give this on."""
    missing: Short = {}
    for name, amount in asked.items():
        free = to_give(state, name) if name in METERED else 0
        if free < (1 if name in COUNTS else amount):
            missing[name] = amount - free
    return missing


def lease_of(call: CallState) -> dict[str, int]:
    """The limits that the child of this call has by now, by the parent's log."""
    return (
        {} if call.child is None else {name: n for name, n in call.child.granted.items() if name in METERED}
    )


def lease_raise(child: State, lease: dict[str, int]) -> RaiseLease | None:
    """The command that tells a child what its parent's log grants it beyond its own limits; None if nothing."""
    raised = {
        name: granted
        for name, granted in sorted(lease.items())
        if getattr(child.limits, name) is not None and granted > getattr(child.limits, name)
    }
    if not raised:
        return None
    words = ",".join(f"{name}={amount}" for name, amount in raised.items())
    name = "lease_" + sha256(f"{child.run_id}/{words}".encode()).hexdigest()[:32]
    return RaiseLease(command_id=name, by=run_name(child.parent_run), raised=raised)


def raise_lease(state: State, command: RaiseLease, now_ms: int) -> Decision:
    """New limits out of the parent's lease. What isn't higher than it is by now changes nothing."""
    if not state.parent_run or command.by != run_name(state.parent_run):
        return refuse("not_the_parent", "only the parent gives a lease")
    if state.phase == "terminated":
        return refuse("run_ended", "the run has ended")
    raised: dict[str, int] = {}
    for name, value in command.raised.items():
        present = getattr(state.limits, name) if name in METERED else None
        if present is None or not value <= CEILING:
            return refuse("not_leased", f"{name} is no part of a lease")
        if value > present:
            raised[name] = value
    return Decision((e.LimitsRaised(raised, command.by, command.command_id),)) if raised else NOTHING
