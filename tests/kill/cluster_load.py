"""The load on a cluster: single runs and trees, each with a plan that its first message names; models over HTTP.

A message is ``NAME plan-K;``: the script of plan K answers it, and the order ids of its calls are made of NAME, so every
effect of every run has a key of its own.
"""

from __future__ import annotations

import random
from typing import Final

from examples.far_side import FarSide
from tests.crash.scenario import tools_at

from boundloop.actors.client import Runtime
from boundloop.adapters.loopback_script import ServedScript, ServerScript
from boundloop.adapters.openai_chat import OpenAIChat
from boundloop.adapters.script import ScriptedTurn, call, calls, say
from boundloop.runtime.limits import Limits
from boundloop.runtime.prices import Price

MODEL: Final = "plans"
TIMEOUT_MS: Final = 2_000
TOOLS: Final = ("look_up", "book", "ship", "set_state", "refund", "post_letter")
CALLS_MAX: Final = 5
PLANS: Final = 24
MODEL_LATENCY_MS: Final = 60
LIMITS: Final = Limits(cost="5.00", deadline_s=36_000)
PRICE: Final = Price(input=1_000_000, output=2_000_000)

RUN_ACTORS: Final = 4
WARM_ACTORS: Final = 1


def script(seed: int) -> ServerScript:
    """What the model server plays: a plan is one to five calls, one a turn or two at once, then an answer."""
    chance = random.Random(seed)
    return ServerScript(
        scripts=tuple(
            ServedScript(user=f"plan-{number};", turns=_turns(chance), substitute=True)
            for number in range(PLANS)
        ),
        latency_ms=MODEL_LATENCY_MS,
        jitter=0.5,
        seed=seed,
    )


def _turns(chance: random.Random) -> tuple[ScriptedTurn, ...]:
    tools = chance.choices(TOOLS, k=chance.randint(2, CALLS_MAX))
    turns: list[ScriptedTurn] = []
    while tools:
        together = [tools.pop() for _ in range(min(len(tools), chance.choice((1, 1, 2))))]
        asked = [
            call(name, {"order_id": f"{{{{user.1}}}}-{len(turns)}-{place}"})
            for place, name in enumerate(together)
        ]
        turns.append(asked[0] if len(asked) == 1 else calls(*asked))
    return (*turns, say("Done."))


def message(seed: int, run_id: str) -> str:
    """The input of one run."""
    return f"{run_id} plan-{random.Random(f'{seed} {run_id}').randrange(PLANS)};"


def runtime_on(path: str, far_port: int, model_url: str, address: str) -> Runtime:
    """A Runtime that has everything the load needs: the owner of the store, or attached to it."""
    return Runtime(
        store=f"sqlite:///{path}",
        model=OpenAIChat(model=MODEL, base_url=model_url, price=PRICE),
        tools=tools_at(FarSide(far_port), timeout_ms=TIMEOUT_MS),
        application="tests.kill.cluster_load",
        ray=address or None,
        run_actors=RUN_ACTORS,
        warm_actors=WARM_ACTORS,
    )
