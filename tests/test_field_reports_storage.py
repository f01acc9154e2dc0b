"""What people report about storage: logs that grow by the square, and files that eight processes open at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from boundloop.actors.client import Runtime
from boundloop.adapters.script import call, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.runtime.limits import Limits
from boundloop.runtime.prices import FREE
from boundloop.runtime.tool_spec import tool

TURNS = 200


@tool(risk="read", inline=True)
async def look(at: int) -> dict[str, Any]:
    """Look at something."""
    return {"at": at, "seen": "x" * 200}


def bytes_after(folder: Path, turns: int) -> int:
    """The size of all files of a store that holds one run of that many turns."""
    folder.mkdir()
    model = ScriptedModel(
        lambda request: say("done") if request.turn == turns else call("look", {"at": request.turn}),
        price=FREE,
    )
    limits = Limits(
        cost="1",
        turns=turns,
        model_attempts=turns,
        tool_calls=turns,
        call_attempts=turns,
        input_tokens=2**40,
        output_tokens=2**40,
        total_tokens=2**40,
        context_tokens=2**30,
    )
    with Runtime(store=f"sqlite:///{folder / 'runs.db'}", model=model, tools=[look]) as rt:
        result = rt.run_sync("go", limits=limits)
        assert (result.completed, result.spent["turns"]) == (True, turns)
    return sum(file.stat().st_size for file in folder.iterdir())


# F58
def test_a_run_of_twice_as_many_steps_takes_twice_the_bytes(tmp_path: Path) -> None:
    empty = bytes_after(tmp_path / "empty", 1)
    once = bytes_after(tmp_path / "once", TURNS) - empty
    twice = bytes_after(tmp_path / "twice", 2 * TURNS) - empty
    assert twice / once <= 2.1


# F33, F62
@pytest.mark.parametrize("restarts", [3])
def test_a_run_goes_on_from_process_to_process_with_one_effect(tmp_path: Path, restarts: int) -> None:
    paid: list[str] = []

    @tool(risk="irreversible", key=("order",), far_side="keyed")
    async def pay(order: str) -> dict[str, Any]:
        """Pay an order out; a person is asked."""
        paid.append(order)
        return {"paid": order}

    store = f"sqlite:///{tmp_path / 'runs.db'}"
    script = [*(call("pay", {"order": str(number)}) for number in range(restarts)), say("done")]
    with Runtime(store=store, model=ScriptedModel(script), tools=[pay]) as rt:
        result = rt.run_sync("go", limits=Limits(cost="1"))
        run_id = result.run_id
    for number in range(restarts):
        with Runtime(store=store, model=ScriptedModel(script), tools=[pay]) as rt:
            (waiting,) = rt.result(run_id, 30.0).approvals
            rt.approve(run_id, waiting.approval_id, by="bob")
            result = rt.result(run_id, 30.0)
            assert len(paid) == number + 1
    assert result.completed
    assert paid == [str(number) for number in range(restarts)]
