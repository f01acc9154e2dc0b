"""Trees of agents under their root's limits while run actors are killed, and under a cancel of the root."""

from __future__ import annotations

import asyncio
import random
import signal
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.ray.process_table import eventually, send
from tests.scale import tree_load
from tests.scale.gauge import Gauge
from tests.scale.ground import Ground, nodes, say
from tests.scale.verdicts import Verdicts
from tests.tree_play import Tree, check_sums, read_tree, total_use

from boundloop.actors import Result, Runtime
from boundloop.actors.mapping import Row
from boundloop.adapters.loopback_process import LoopbackProcess
from boundloop.adapters.openai_chat import OpenAIChat
from boundloop.eventstore.location import connect_store
from boundloop.runtime.errors import BoundloopError
from boundloop.runtime.limits import Limits

CANCEL_S_MAX: Final = 15.0
"""5 s down the tree, and 10 s for sync tools that don't listen."""

LEFT_S_MAX: Final = 60.0
DEADLINE_S: Final = 6
SEED: Final = 11


@dataclass(frozen=True)
class Size:
    nodes: int
    latency_ms: int
    roots: tuple[str, ...]
    kills: int
    kill_every_s: float
    within_s: float
    cancel: bool


KINDS: Final[dict[str, Limits]] = {
    "issue": tree_load.limits(tool_calls=20, turns=40, cost="0.50", deadline_s=200),
    "calls": tree_load.limits(tool_calls=150),
    "turns": tree_load.limits(turns=40),
    "cost": tree_load.limits(cost="0.20"),
    "deadline": tree_load.limits(deadline_s=DEADLINE_S),
}
FULL: Final = Size(
    nodes=3, latency_ms=300, roots=tuple(KINDS), kills=2, kill_every_s=3.0, within_s=240.0, cancel=True
)
SHORT: Final = Size(
    nodes=1, latency_ms=30, roots=("issue",), kills=1, kill_every_s=0.5, within_s=40.0, cancel=False
)


def check(size: Size, verdicts: Verdicts) -> None:
    """All roots side by side under kills; then one that is cancelled."""
    with (
        Gauge() as gauge,
        LoopbackProcess(tree_load.script(size.latency_ms)) as model,
        tempfile.TemporaryDirectory(prefix="scale-") as folder,
        nodes(size.nodes) as cluster,
    ):
        path = str(Path(folder) / "runs.db")
        with Runtime(
            store=f"sqlite:///{path}",
            model=OpenAIChat(
                model="m", base_url=model.base_url, price=tree_load.PRICE, connections_max=1_000
            ),
            tools=tree_load.tools_at(gauge.port),
            ray=cluster.address if size.nodes > 1 else "require",
            warm_actors=0,
            dense_actors=2,
        ) as runtime:
            results = _under_kills(size, runtime, cluster)
            trees = {name: asyncio.run(_tree(path, name)) for name in size.roots}
            for name in size.roots:
                _judge(
                    verdicts,
                    name,
                    results[name],
                    trees[name],
                    model.counts()["by_run"],
                    gauge.counts()["calls"],
                )
            if size.cancel:
                _cancelled(verdicts, runtime, path)
            _nothing_left(verdicts, runtime)


def _under_kills(size: Size, runtime: Runtime, cluster: Ground) -> dict[str, Result]:
    results: dict[str, Result] = {}
    rows = [Row(f"{name} root;", {"run_id": name, "limits": KINDS[name]}) for name in size.roots]

    async def all_rows() -> None:
        async for row in runtime.aio.map(rows, limits=KINDS["issue"]):
            if row.result is None:
                raise RuntimeError(f"row {row.index}") from row.error
            results[row.run_id] = row.result

    worker = threading.Thread(target=lambda: asyncio.run(all_rows()), daemon=True)
    worker.start()
    chance = random.Random(SEED)
    for number in range(size.kills):
        worker.join(size.kill_every_s)
        eventually(lambda: _seated(runtime) > 0 or not worker.is_alive(), 30.0)
        if not cluster.actors("RunActor"):
            continue
        victim = chance.choice(cluster.actors("RunActor"))
        say(
            f"kill {number + 1}: {send([victim], signal.SIGKILL)} run actor, {'still at work' if worker.is_alive() else 'too late'}"
        )
    worker.join(size.within_s)
    return results


async def _tree(path: str, root: str) -> Tree:
    store = await connect_store(f"sqlite:///{path}")
    try:
        return await read_tree(store, root)
    finally:
        await store.close()


def _judge(
    verdicts: Verdicts,
    name: str,
    result: Result,
    tree: Tree,
    by_run: dict[str, list[int]],
    calls: dict[str, int],
) -> None:
    """What the tree's logs, the model server and the tool's far side say, against the root's limits."""
    values = KINDS[name].values
    verdicts.figure(f"{name}: root", f"{result.outcome}: {result.reason}; {len(tree)} runs")
    try:
        check_sums(tree)
        laws = "hold"
    except (BoundloopError, AssertionError) as error:
        laws = f"{type(error).__name__}: {error}"
    verdicts.equal(f"{name}: laws of the tree", laws, "hold")
    used = total_use(tree)
    # The server counts a request before the log knows that it was answered, so its count is never the smaller one.
    turns = sum(by_run.get(run_id, [0, 0])[1] for run_id in tree)
    requests = sum(by_run.get(run_id, [0, 0])[0] for run_id in tree)
    seen = [count for call, count in calls.items() if call.startswith(f"{name}-")]
    verdicts.at_most(f"{name}: turns at the model server", turns, values.turns)
    verdicts.at_most(f"{name}: requests at the model server", requests, values.model_attempts)
    verdicts.at_most(
        f"{name}: cost of those, micro-units", requests * tree_load.TURN_MICROS, values.cost_micros or 0
    )
    verdicts.at_most(
        f"{name}: calls that started, agents included", used.get("tool_calls", 0), values.tool_calls
    )
    verdicts.at_most(f"{name}: calls at the tool's far side", len(seen), values.tool_calls)
    verdicts.at_most(f"{name}: requests at the tool's far side", sum(seen), values.call_attempts)
    started = min(state.started_at_ms for state, _ in tree.values())
    ended = max(state.at_ms for state, _ in tree.values())
    verdicts.at_most(
        f"{name}: its last event, s after its start",
        (ended - started) / 1e3,
        values.deadline_ms / 1e3 + CANCEL_S_MAX,
    )
    open_runs = [run_id for run_id, (state, _) in tree.items() if state.phase != "terminated"]
    verdicts.equal(f"{name}: runs that didn't end", len(open_runs), 0)


def _cancelled(verdicts: Verdicts, runtime: Runtime, path: str) -> None:
    """A root over scouts whose sync tools spin: cancelled when those are at work."""
    handle = runtime.start("cancelled busy;", run_id="cancelled", limits=tree_load.limits())

    def at_work() -> bool:
        return bool(_statistics(runtime).pools["default", "sync"].leased)

    reached = eventually(at_work, 60.0)
    asked = time.monotonic()
    handle.cancel()
    result = handle.wait(60.0)
    root_s = time.monotonic() - asked

    def all_over() -> bool:
        tree = asyncio.run(_tree(path, "cancelled"))
        return {state.phase for state, _ in tree.values()} == {"terminated"}

    eventually(all_over, LEFT_S_MAX)
    took_s = time.monotonic() - asked
    tree = asyncio.run(_tree(path, "cancelled"))
    check_sums(tree)
    verdicts.holds("cancel: tools at work before", reached, holds=reached)
    verdicts.equal("cancel: the root's end", f"{result.outcome}: {result.reason}", "cancelled: by_user")
    verdicts.figure("cancel: runs of the tree", len(tree))
    verdicts.figure("cancel: root ended after, s", root_s)
    verdicts.at_most("cancel: all runs of the tree ended after, s", took_s, CANCEL_S_MAX)


def _nothing_left(verdicts: Verdicts, runtime: Runtime) -> None:
    """No place leased, none asked for, no run in a run actor."""

    def quiet() -> bool:
        places = _statistics(runtime)
        leased = sum(pool.leased for pool in places.pools.values())
        return bool(leased == 0 and places.waiting == 0 and _seated(runtime) == 0)

    clean = eventually(quiet, LEFT_S_MAX)
    verdicts.holds(
        "left: places leased, calls waiting, runs seated", "none" if clean else "some", holds=clean
    )


def _hosting(runtime: Runtime) -> Any:
    inner: Any = runtime
    return inner._embedded.serving._cluster


def _statistics(runtime: Runtime) -> Any:
    return _hosting(runtime)._pools.statistics()


def _seated(runtime: Runtime) -> int:
    return len(_hosting(runtime).supervisor.seating.seat_of)
