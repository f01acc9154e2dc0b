"""The load on a limited group, and the process that owns its store: ``python -m tests.scale.group_load …``.

Tools of both kinds, sync and async, are in the group ``desk``; what they do is a request to the gauge. The owner starts all
runs that there aren't yet, tells ``started N`` when they are in the store, waits for each, and tells ``ended`` with counts
of how they ended. Then it lives until its standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from typing import Any, Final

from tests.scale.gauge import ask, ask_async

from boundloop.actors import Runtime
from boundloop.actors.mapping import Row
from boundloop.actors.pool_spec import Pool
from boundloop.adapters.loopback_script import ServedScript, ServerScript
from boundloop.adapters.openai_chat import OpenAIChat
from boundloop.adapters.script import call, say
from boundloop.runtime import Limits, tool
from boundloop.runtime.errors import BoundloopError
from boundloop.runtime.prices import Price

GROUP: Final = "desk"
LIMIT: Final = 4
WORK_MS: Final = 60
LIMITS: Final = Limits(
    cost="1.00",
    turns=100,
    tool_calls=100,
    call_attempts=400,
    model_attempts=400,
    failures=400,
    deadline_s=1_800,
)
PRICE: Final = Price(input=1_000_000, output=2_000_000)
WAIT_S: Final = 600.0
LOOK_S: Final = 0.1


def script(calls_each: int) -> ServerScript:
    """Sync and async calls in turn, then an answer."""
    turns = [
        call(("ask_desk", "ask_desk_async")[number % 2], {"name": f"{{{{user}}}}-{number}"})
        for number in range(calls_each)
    ]
    return ServerScript(scripts=(ServedScript(turns=(*turns, say("Done.")), substitute=True),))


def tools_at(port: int, timeout_ms: int) -> list[Any]:
    """Both tools, reads that may be tried again."""

    @tool(risk="read", group=GROUP, timeout_ms=timeout_ms, max_attempts=5)
    def ask_desk(name: str, ctx: Any) -> dict[str, bool]:
        """Ask the desk."""
        ask(port, f"/work?call={name}&ms={WORK_MS}", ctx.remaining_s)
        return {"asked": True}

    @tool(risk="read", group=GROUP, timeout_ms=timeout_ms, max_attempts=5)
    async def ask_desk_async(name: str) -> dict[str, bool]:
        """Ask the desk."""
        await ask_async(port, f"/work?call={name}&ms={WORK_MS}")
        return {"asked": True}

    return [ask_desk, ask_desk_async]


def runtime_on(path: str, model_url: str, port: int, timeout_ms: int, address: str) -> Runtime:
    """The owner's Runtime, its actors spread over the nodes."""
    spread = {"scheduling_strategy": "SPREAD"}
    return Runtime(
        store=f"sqlite:///{path}",
        model=OpenAIChat(model="m", base_url=model_url, price=PRICE),
        tools=tools_at(port, timeout_ms),
        application="tests.scale.group_load",
        groups={GROUP: LIMIT},
        ray=address,
        warm_actors=0,
        dense_actors=3,
        pools={"default": Pool(executors=LIMIT, async_executors=2, ray_options=spread)},
    )


async def work(runtime: Runtime, runs: int) -> None:
    """Start what isn't there, wait for all, tell."""
    names = [f"g{number}" for number in range(runs)]
    outcomes: Counter[str] = Counter()
    rows = runtime.aio.map([Row(name, {"run_id": name}) for name in names], parallel=runs, limits=LIMITS)
    mapping = asyncio.ensure_future(_drained(rows))
    while not mapping.done():
        try:
            await asyncio.gather(*(runtime.aio.state(name) for name in names))
        except BoundloopError:
            await asyncio.wait([mapping], timeout=LOOK_S)
        else:
            break
    print(json.dumps({"started": runs}), flush=True)
    await mapping
    for result in await asyncio.gather(*(runtime.aio.wait(name, WAIT_S) for name in names)):
        outcomes[f"{result.outcome}: {result.reason}"] += 1
    print(json.dumps({"ended": outcomes}), flush=True)


async def _drained(rows: Any) -> None:
    async for _ in rows:
        pass


def main() -> None:
    path, model_url, port, timeout_ms, address, runs = sys.argv[1:]
    with runtime_on(path, model_url, int(port), int(timeout_ms), address) as runtime:
        print(json.dumps({"open": True}), flush=True)
        asyncio.run(work(runtime, int(runs)))
        sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
