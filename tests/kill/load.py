"""The load: many short runs, each with a plan of its own that is written into its system text."""

from __future__ import annotations

import random
from typing import Any, Final

from examples.far_side import FarSide
from tests.crash.scenario import tools_at

from boundloop.actors.client import Runtime
from boundloop.adapters.script import ScriptedTurn, call, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.runtime.limits import Limits
from boundloop.runtime.model import ModelInput

TIMEOUT_MS: Final = 2_000
TOOLS: Final = ("look_up", "book", "ship", "set_state", "refund", "post_letter")
CALLS_MAX: Final = 6
LIMITS: Final = Limits(cost=0, deadline_s=36_000)


def plan_of(seed: int, run_id: str) -> str:
    """Which tools the run calls, one a turn."""
    chance = random.Random(f"{seed} {run_id}")
    return " ".join(chance.choices(TOOLS, k=chance.randint(2, CALLS_MAX)))


def _answer(request: ModelInput) -> ScriptedTurn:
    plan = request.system.split()
    if request.turn > len(plan):
        return say("Done.")
    return call(plan[request.turn - 1], {"order_id": f"{request.run_id}-{request.turn}"})


def runtime_on(path: str, far: FarSide, *, timeout_ms: int = TIMEOUT_MS, **options: Any) -> Runtime:
    """A Runtime that has everything the runs of the load need. ``timeout_ms``: of each tool."""
    return Runtime(
        store=f"sqlite:///{path}",
        model=ScriptedModel(_answer),
        tools=tools_at(far, timeout_ms=timeout_ms),
        **options,
    )
