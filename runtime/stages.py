"""Staged runs: what is offered now, and when a run goes on to its next stage: by evidence on record, never by prose.

A run without stages is in stage 0 of none and pays nothing. The stage of a call is that in which it was proposed: what the
next stage offers is refused in the turn that earned it, and what was admitted goes on when the stage is left.
"""

from __future__ import annotations

from . import events as e
from .decision import NOTHING, Decision
from .stage_definition import StageDefinition
from .state import State


def stage_now(state: State) -> StageDefinition | None:
    """The stage that the run is in; None for one without stages."""
    stages = state.pins.stages
    return stages[state.stage] if stages else None


def enter_next(state: State) -> Decision:
    """``stage_entered`` if the evidence for it is on record, else nothing. It is asked right after each result, so the fact is
    in the append of the result that earned it."""
    stage = stage_now(state)
    if stage is None or not stage.leave:
        return NOTHING
    if any(met < asked.count for asked, met in zip(stage.leave, state.stage_evidence, strict=True)):
        return NOTHING
    following = state.pins.stages[state.stage + 1]
    return Decision((e.StageEntered(following.name, stage.name, tuple(state.stage_calls)),))


def still_to_leave(state: State) -> tuple[str, ...]:
    """What is missing for the last stage: the open predicates of this one, then the stages behind it by name."""
    stage = stage_now(state)
    if stage is None or not stage.leave:
        return ()
    missing = [
        f"stage {stage.name}: {asked.name()}"
        for asked, met in zip(stage.leave, state.stage_evidence, strict=True)
        if met < asked.count
    ]
    return (*missing, *(f"stage {later.name}" for later in state.pins.stages[state.stage + 1 :]))


def tools_to_leave(state: State) -> set[str]:
    """The tools that this stage's open predicates name."""
    stage = stage_now(state)
    if stage is None:
        return set()
    return {
        asked.tool for asked, met in zip(stage.leave, state.stage_evidence, strict=True) if met < asked.count
    }


def never_offered(state: State, needed: set[str]) -> str:
    """One of the tools that the rest of the run can't do without and is never offered, neither now nor later; empty if there
    is none. ``needed``: what the goal still asks for."""
    stages = state.pins.stages
    ahead = stages[state.stage :]
    wanted = set(needed)
    for stage in ahead[1:]:
        wanted.update(asked.tool for asked in stage.leave)
    wanted |= tools_to_leave(state)
    offered = {name for name, tool in state.tools.items() if tool.offered}
    reach = {name for stage in ahead for name in stage.tools} & offered
    return min(wanted - reach, default="")
