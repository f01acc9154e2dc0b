"""Trees of agents three levels deep and eight wide, as a model server plays them, and the tools at their leaves.

A run's input is ``NAME LEVEL;``: eight calls of the next level's agent, named ``NAME-0`` to ``NAME-7``; at the leaves eight
calls of a tool. Names begin with the root's, so whatever a server counts it counts by tree.
"""

from __future__ import annotations

import time
from typing import Any, Final

from tests.scale.gauge import ask_async

from boundloop.adapters.loopback_script import ServedScript, ServerScript
from boundloop.adapters.script import call, calls, say
from boundloop.runtime import Limits, agent, tool
from boundloop.runtime.prices import Price

WIDTH: Final = 8
PRICE: Final = Price(input=1_000_000, output=10_000_000)
TURN_MICROS: Final = 100 * 1 + 20 * 10
"""What the standard turn of 100 + 20 tokens costs."""

WORK_MS: Final = 30
STUBBORN_S: Final = 60.0
ROOM: Final[dict[str, Any]] = {
    "cost": "50",
    "turns": 5_000,
    "model_attempts": 9_000,
    "tool_calls": 5_000,
    "call_attempts": 9_000,
    "deadline_s": 300,
    "children": 700,
    "depth": 3,
    "failures": 1_000,
    "denials": 1_000,
    "output_tokens_per_request": 256,
}
BELOW: Final = {"root": "lead", "lead": "clerk", "clerk": "scout"}


def limits(**given: Any) -> Limits:
    """The root's: what is given, and room enough for all else."""
    return Limits(**{**ROOM, **given})


def script(latency_ms: int) -> ServerScript:
    """What each level says. Roots that are ``busy;`` have scouts which call a tool that never looks up."""
    scripts = [_eight(f" {level};", below, "input", f" {below};") for level, below in BELOW.items()]
    scripts.append(_eight(" scout;", "look", "what", ""))
    scripts.append(_eight(" busy;", "busy_scout", "input", " spins;"))
    scripts.append(_eight(" spins;", "spin", "what", ""))
    return ServerScript(scripts=tuple(scripts), latency_ms=latency_ms, jitter=0.5, seed=3)


def _eight(user: str, name: str, argument: str, rest: str) -> ServedScript:
    asked = [call(name, {argument: f"{{{{user.1}}}}-{n}{rest}"}) for n in range(WIDTH)]
    return ServedScript(user=user, turns=(calls(*asked), say("Done.")), substitute=True)


def tools_at(port: int) -> list[Any]:
    """The toolbox of all agents."""

    @tool(risk="read", timeout_ms=20_000)
    async def look(what: str) -> dict[str, str]:
        """Look something up."""
        await ask_async(port, f"/work?call={what}&ms={WORK_MS}")
        return {"what": what}

    @tool(risk="read", timeout_ms=60_000)
    def spin(what: str) -> dict[str, str]:
        """Compute for long without ever looking up."""
        until = time.monotonic() + STUBBORN_S
        while time.monotonic() < until:
            pass
        return {"what": what}

    scout = agent(name="scout", description="Looks.", system="scout", tools=("look",))
    busy_scout = agent(name="busy_scout", description="Spins.", system="busy", tools=("spin",))
    clerk = agent(name="clerk", description="Sends scouts.", system="clerk", tools=("scout",))
    lead = agent(name="lead", description="Sends clerks.", system="lead", tools=("clerk",))
    return [look, spin, scout, busy_scout, clerk, lead]
