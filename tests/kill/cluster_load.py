"""The load on a cluster: single runs and trees, each with a plan that its first message names; models over HTTP.

A message is ``NAME plan-K;``: the script of plan K answers it, and the order ids of its calls are made of NAME, so every
effect of every run has a key of its own. A clerk is a run of its own, with a name made of its parent's and a plan of the
level below: the first plans have none, further ones have clerks, the last ones clerks that have clerks.
"""

from __future__ import annotations

import random
from typing import Final

from examples.far_side import FarSide
from tests.crash.scenario import tools_at
from tests.kill.told import tell_in_files

from boundloop.actors.client import Runtime
from boundloop.adapters.loopback_script import ServedScript, ServerScript
from boundloop.adapters.openai_chat import OpenAIChat
from boundloop.adapters.script import ScriptedTurn, call, calls, say
from boundloop.runtime.agent_spec import agent
from boundloop.runtime.limits import Limits
from boundloop.runtime.prices import Price

MODEL: Final = "plans"
TIMEOUT_MS: Final = 2_000
TOOLS: Final = ("look_up", "book", "ship", "set_state", "refund", "post_letter")
CALLS_MAX: Final = 5
CLERK: Final = "clerk"
CLERKS_MAX: Final = 3
LEVELS: Final = (16, 6, 2)
"""Plans of each level."""

PLANS: Final = sum(LEVELS)
MODEL_LATENCY_MS: Final = 60
LIMITS: Final = Limits(
    cost="50.00",
    deadline_s=36_000,
    turns=400,
    model_attempts=2_000,
    tool_calls=400,
    call_attempts=2_000,
    input_tokens=100_000_000,
    output_tokens=10_000_000,
    total_tokens=110_000_000,
    output_tokens_per_request=512,
)
"""Wide enough that shares of shares of them end no run: what a limit does is tested elsewhere, that leases add up is
judged here."""
PRICE: Final = Price(input=1_000_000, output=2_000_000)

RUN_ACTORS: Final = 4
RUN_ACTORS_EACH: Final = 2
"""Where each Runtime has run actors of its own."""

WARM_ACTORS: Final = 1


def script(seed: int) -> ServerScript:
    """What the model server plays: a plan is one to five calls, one a turn or several at once, then an answer."""
    chance = random.Random(seed)
    plans: list[tuple[ScriptedTurn, ...]] = []
    below = range(0)
    for count in LEVELS:
        first = len(plans)
        plans += [_turns(chance, below) for _ in range(count)]
        below = range(first, len(plans))
    return ServerScript(
        scripts=tuple(
            ServedScript(user=f"plan-{number};", turns=turns, substitute=True)
            for number, turns in enumerate(plans)
        ),
        latency_ms=MODEL_LATENCY_MS,
        jitter=0.5,
        seed=seed,
    )


def _turns(chance: random.Random, clerks: range) -> tuple[ScriptedTurn, ...]:
    tools = chance.choices(TOOLS, k=chance.randint(2, CALLS_MAX))
    turns: list[ScriptedTurn] = []
    while tools:
        together = [tools.pop() for _ in range(min(len(tools), chance.choice((1, 1, 2))))]
        turns.append(_turn([(name, _order(len(turns), place)) for place, name in enumerate(together)]))
    if clerks:
        count = chance.randint(2, CLERKS_MAX)
        asked = [(CLERK, _errand(place, chance.choice(clerks))) for place in range(count)]
        turns.insert(chance.randint(0, len(turns)), _turn(asked))
    return (*turns, say("Done."))


def _turn(asked: list[tuple[str, dict[str, str]]]) -> ScriptedTurn:
    made = [call(name, arguments) for name, arguments in asked]
    return made[0] if len(made) == 1 else calls(*made)


def _order(turn: int, place: int) -> dict[str, str]:
    return {"order_id": f"{{{{user.1}}}}-{turn}-{place}"}


def _errand(place: int, plan: int) -> dict[str, str]:
    return {"input": f"{{{{user.1}}}}-c{place} plan-{plan};"}


def message(seed: int, run_id: str) -> str:
    """The input of one run."""
    return f"{run_id} plan-{random.Random(f'{seed} {run_id}').randrange(PLANS)};"


def permissions(tenant: str, principal: str) -> frozenset[str]:
    """None are needed; but who has this has this module, so that a run actor imports it and tells."""
    return frozenset()


def runtime_on(store: str, far_port: int, model_url: str, address: str) -> Runtime:
    """A Runtime that has everything the load needs: the owner of the store, attached to it, or beside others."""
    clerk = agent(name=CLERK, description="Runs an errand.", tools=(*TOOLS, CLERK))
    return Runtime(
        store=store,
        model=OpenAIChat(model=MODEL, base_url=model_url, price=PRICE),
        tools=[*tools_at(FarSide(far_port), timeout_ms=TIMEOUT_MS), clerk],
        application="tests.kill.cluster_load",
        permissions=permissions,
        ray=address or None,
        run_actors=RUN_ACTORS if store.startswith("sqlite") else RUN_ACTORS_EACH,
        warm_actors=WARM_ACTORS,
    )


# Run actors import this module for its tools; theirs is the process that asks the store then.
tell_in_files()
