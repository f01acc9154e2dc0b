"""Where a run rests together with the runs below it: a tree waits for a person when all that is open in it does."""

from __future__ import annotations

from typing import Final

import msgspec

from ..eventstore.family import asked_below
from ..eventstore.history import load_run
from ..eventstore.port import EventStore
from ..eventstore.unknown_below import still_unknown
from ..runtime.state import State
from .result import Approval, Question, Result, result_of, unknown_names

ASKED_MAX: Final = 100
"""Approvals, and questions, of one tree that a result names; the inbox has them all."""


async def rested_result(store: EventStore, state: State) -> Result:
    """The picture of this state; of a run that waits for nothing but child runs also whom those wait for, if none of them
    goes on before a person acts. Raises ``StoreError``."""
    result = await _as_settled(store, state, result_of(state))
    if result.status != "running" or not result.waiting_for.startswith("child:"):
        return result
    asked = await asked_below(store, state)
    if not asked:
        return result
    approvals: list[Approval] = list(result.approvals)
    questions: list[Question] = list(result.questions)
    for row in asked:
        room = max(len(approvals), len(questions)) < ASKED_MAX
        if room and row.index.waiting_for.startswith(("approval:", "answer:")):
            below = result_of((await load_run(store, row.run_id))[0])
            approvals += below.approvals
            questions += below.questions
    unknown = list(result.unknown_effects)
    for row in asked:
        if row.index.waiting_for.startswith("person:") and len(unknown) < ASKED_MAX:
            below = result_of((await load_run(store, row.run_id))[0])
            unknown += [name if "/" in name else f"{row.run_id}/{name}" for name in below.unknown_effects]
    first = asked[0]
    return msgspec.structs.replace(
        result,
        status="waiting",
        waiting_for=first.index.waiting_for or f"child:{first.run_id}",
        approvals=tuple(approvals[:ASKED_MAX]),
        questions=tuple(questions[:ASKED_MAX]),
        unknown_effects=tuple(unknown),
    )


async def _as_settled(store: EventStore, state: State, result: Result) -> Result:
    """Without the unknown effects of ended runs below that a person has settled since."""
    if not state.unknown_below:
        return result
    own = result.unknown_effects[: len(result.unknown_effects) - len(state.unknown_below)]
    left = await still_unknown(store, state)
    return msgspec.structs.replace(result, unknown_effects=(*own, *unknown_names(left)))
