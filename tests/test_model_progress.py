"""What is shown while a model writes: deltas that add up, one reset for a failed attempt, never unfinished arguments."""

from __future__ import annotations

from typing import Any

import pytest

from boundloop.actors import Runtime
from boundloop.adapters.port import AttemptReset, CallPreparing, Progress, TextDelta
from boundloop.adapters.script import ScriptedTurn, attempts, call, calls, cut, failed, lost, refused, say
from boundloop.adapters.scripted import Entry, ScriptedModel
from boundloop.runtime import Limits, tool


@tool(risk="read")
async def look(where: str) -> dict[str, Any]:
    """Look somewhere."""
    return {"seen": where}


def shown(turns: list[Entry]) -> tuple[str, list[Progress]]:
    """The run's outcome, and everything that was shown on the way."""
    seen: list[Progress] = []
    with Runtime(store="memory://", model=ScriptedModel(turns, delta_chars=5), tools=[look]) as rt:
        rt.watch_progress(lambda run_id, item: seen.append(item))
        result = rt.run_sync("Look", limits=Limits(cost="0.01"))
    return result.outcome, seen


def test_a_lost_attempt_is_reset_once_and_shown_anew() -> None:
    outcome, seen = shown([attempts(lost(say("It is here"), after_chars=7), say("It is there"))])
    assert outcome == "completed"
    assert seen == [
        TextDelta(1, 1, 0, "It is"),
        TextDelta(1, 1, 5, " h"),
        AttemptReset(1, 1),
        TextDelta(1, 2, 0, "It is"),
        TextDelta(1, 2, 5, " ther"),
        TextDelta(1, 2, 10, "e"),
    ]


def test_calls_are_announced_by_name_and_never_with_arguments() -> None:
    outcome, seen = shown(
        [calls(call("look", {"where": "SECRET"}), call("look", {"where": "x"}), text="Hm"), say("Done")]
    )
    assert outcome == "completed"
    assert seen == [
        TextDelta(1, 1, 0, "Hm"),
        CallPreparing(1, 1, 0, "look"),
        CallPreparing(1, 1, 1, "look"),
        TextDelta(2, 1, 0, "Done"),
    ]


@pytest.mark.parametrize("turn", [cut("half an ans"), refused("No."), failed(retryable=False)])
def test_what_is_no_answer_is_taken_back(turn: ScriptedTurn) -> None:
    _, seen = shown([turn])
    assert [step for step in seen if isinstance(step, AttemptReset)] == [AttemptReset(1, 1)]
    assert isinstance(seen[-1], AttemptReset)
