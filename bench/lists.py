"""lists: how long ``runs list`` takes with each filter, in a store of many runs, on SQLite and PostgreSQL.

The store is filled through its own appends, with ended, stopped, waiting and working runs of few large and many small tenants.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

from bench.measure import Facts, rounded
from bench.postgres import server_in

from boundloop.eventstore.location import open_store
from boundloop.eventstore.port import EventStore, RunFilter
from boundloop.eventstore.testkit import LogWriter
from boundloop.runtime.ledger import RunIndex

BEGAN_MS: Final = 1_700_000_000_000
AT_ONCE: Final = 1_000
PAGE: Final = 51
"""What ``runs list`` asks for: 50, and whether there are more."""

CALLS: Final = 15
COMMANDS: Final = 5

_STATES: Final = (
    # (of a thousand runs, index row)
    (850, RunIndex(status="terminated", outcome="completed", reason="final")),
    (50, RunIndex(status="terminated", outcome="failed", reason="tool_failed")),
    (40, RunIndex(status="suspended", outcome="incomplete", reason="max_turns")),
    (39, RunIndex(status="waiting_approval", waiting_for="approval:ap_0")),
    (10, RunIndex(status="waiting_child", waiting_for="child:r0")),
    (10, RunIndex(status="executing")),
    (1, RunIndex(status="terminated", outcome="refused", reason="model_refusal")),
)


def filters(runs: int) -> dict[str, dict[str, Any]]:
    """By the option that is meant. A run a millisecond."""
    hour = max(1, runs // 100)
    old = {"created_since_ms": BEGAN_MS, "created_until_ms": BEGAN_MS + hour}
    return {
        "": {},
        "--status terminated": {"status": "terminated"},
        "--status waiting_approval": {"status": "waiting_approval"},
        "--status executing": {"status": "executing"},
        "--status waiting_key": {"status": "waiting_key"},
        "--outcome completed": {"outcome": "completed"},
        "--outcome refused": {"outcome": "refused"},
        "--tenant large": {"tenant": "large"},
        "--tenant t7": {"tenant": "t7"},
        "--tenant nobody": {"tenant": "nobody"},
        "--agent a7": {"agent": "a7"},
        "--operation op0": {"operation_id": "op0"},
        "--waiting-for approval": {"waiting_for_prefix": "approval"},
        "--created (the oldest hundredth)": old,
        "--created-since (all)": {"created_since_ms": BEGAN_MS},
        "--updated (the oldest hundredth)": {
            "updated_since_ms": BEGAN_MS,
            "updated_until_ms": BEGAN_MS + hour,
        },
        "--updated-since (all)": {"updated_since_ms": BEGAN_MS},
        "--tenant large --status suspended": {"tenant": "large", "status": "suspended"},
        "--tenant t7 --outcome failed": {"tenant": "t7", "outcome": "failed"},
        "--tenant large --agent rare (none)": {"tenant": "large", "agent": "rare"},
        "--tenant large --created (the oldest hundredth)": {"tenant": "large", **old},
        "--status terminated --updated (the oldest hundredth)": {
            "status": "terminated",
            "updated_since_ms": BEGAN_MS,
            "updated_until_ms": BEGAN_MS + hour,
        },
    }


def lists_of_runs(folder: str, *, runs: int) -> Iterator[Facts]:
    """Both stores. ``ms`` is the median time of the store's answer by filter, first page; ``deep_ms`` of the page behind the
    middle run. ``command_ms`` is a whole ``boundloop runs list`` process, ``start_ms`` one that opens no store."""
    path = os.path.join(folder, "lists.db")
    yield asyncio.run(_measured("sqlite", f"sqlite:///{path}", runs))
    yield asyncio.run(_measured("postgres", server_in(folder).url(), runs))


async def _measured(kind: str, url: str, runs: int) -> Facts:
    store = await open_store(url)
    start = time.perf_counter()
    for first in range(0, runs, AT_ONCE):
        await asyncio.gather(*(_make(store, number) for number in range(first, min(runs, first + AT_ONCE))))
    made_s = time.perf_counter() - start
    # Opened anew: what is measured is no cache of the writer's.
    await store.close()
    store = await open_store(url)
    ms: dict[str, float] = {}
    deep_ms: dict[str, float] = {}
    for name, given in filters(runs).items():
        ms[name] = await _median_ms(store, RunFilter(limit=PAGE, **given))
        deep_ms[name] = await _median_ms(store, RunFilter(limit=PAGE, after=f"r{runs // 2}", **given))
    await store.close()
    command = await asyncio.to_thread(_command_ms, "runs", "list", "--tenant", "t7", "--store", url)
    started = await asyncio.to_thread(_command_ms, "store", "path", "--store", url)
    return {
        "workload": "lists",
        "store": kind,
        "runs": runs,
        "made_per_s": rounded(runs / made_s),
        "ms_max": rounded(max(*ms.values(), *deep_ms.values())),
        "ms": {name: rounded(one) for name, one in ms.items()},
        "deep_ms": {name: rounded(one) for name, one in deep_ms.items()},
        "command_ms": rounded(command),
        "start_ms": rounded(started),
    }


async def _make(store: EventStore, number: int) -> None:
    # 617 is prime to 1,000, so that states and tenants lie mixed.
    place, index = (number * 617) % 1_000, _STATES[0][1]
    for share, state in _STATES:
        index = state
        place -= share
        if place < 0:
            break
    log = LogWriter(store, f"r{number}", tenant="large" if number % 2 else f"t{number % 200 // 2}")
    log.agent, log.operation_id, log.root_id = f"a{number // 7 % 20}", f"op{number}", f"r{number // 10 * 10}"
    log.at_ms = BEGAN_MS + number
    await log.write(index=index)


async def _median_ms(store: EventStore, where: RunFilter) -> float:
    taken: list[float] = []
    for _ in range(CALLS):
        start = time.perf_counter()
        await store.runs(where)
        taken.append((time.perf_counter() - start) * 1_000)
    return statistics.median(taken)


def _command_ms(*arguments: str) -> float:
    taken: list[float] = []
    for _ in range(COMMANDS):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "boundloop", *arguments], stdout=subprocess.DEVNULL, check=True)
        taken.append((time.perf_counter() - start) * 1_000)
    return statistics.median(taken)
