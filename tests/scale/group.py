"""A limited group under many runs and kills of executors and of the owner: what its far side saw."""

from __future__ import annotations

import json
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from tests.ray.process_table import Process, eventually, send
from tests.scale import group_load
from tests.scale.gauge import Gauge
from tests.scale.ground import Ground, nodes, say
from tests.scale.verdicts import Verdicts

from boundloop.adapters.loopback_process import LoopbackProcess

EXECUTORS: Final = ("SyncExecutor", "AsyncExecutor")
BACK_EXTRA_S: Final = 5.0
OPEN_S: Final = 90.0
END_S: Final = 420.0
SEED: Final = 7


@dataclass(frozen=True)
class Size:
    nodes: int
    runs: int
    calls_each: int
    timeout_ms: int
    kills: int
    owner_restarts: int
    back_extra_s: float = BACK_EXTRA_S


FULL: Final = Size(nodes=3, runs=300, calls_each=8, timeout_ms=10_000, kills=5, owner_restarts=1)
SHORT: Final = Size(
    nodes=1, runs=40, calls_each=20, timeout_ms=1_500, kills=1, owner_restarts=0, back_extra_s=30.0
)
"""Beside other tests a new executor's process may take long to come up: in small, that it comes back is what counts.
There are calls enough that the group can be full again when it has."""


class Owner:
    """The process that owns the store."""

    def __init__(self, arguments: list[str], errors: Path) -> None:
        self._heard: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        with errors.open("a") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.scale.group_load", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._heard.put(json.loads(line))
        self._heard.put({"over": True})

    def hear(self, name: str, seconds: float) -> Any:
        """What it says under this name. Raises ``RuntimeError`` if it doesn't in time."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                heard = self._heard.get(timeout=left)
            except queue.Empty:
                break
            if name in heard:
                return heard[name]
            if "over" in heard:
                break
        raise RuntimeError(f"the owner did not tell {name!r}")

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()


def check(size: Size, verdicts: Verdicts) -> None:
    """Start the runs, kill and measure, end."""
    with (
        Gauge() as gauge,
        LoopbackProcess(group_load.script(size.calls_each)) as model,
        tempfile.TemporaryDirectory(prefix="scale-") as folder,
        nodes(size.nodes) as cluster,
    ):
        errors = Path(folder) / "errors.txt"
        arguments = [
            str(Path(folder) / "runs.db"),
            model.base_url,
            str(gauge.port),
            str(size.timeout_ms),
            cluster.address,
            str(size.runs),
        ]
        try:
            outcomes = _under_kills(size, verdicts, cluster, gauge, arguments, errors)
        except RuntimeError:
            say(errors.read_text()[-4_000:])
            raise
        counts = gauge.counts()
        verdicts.figure("runs", size.runs)
        verdicts.at_most("requests at the far side at once", counts["most"], group_load.LIMIT)
        verdicts.figure("requests at the far side", counts["requests"])
        verdicts.figure("calls that it saw", f"{len(counts['calls'])} of {size.runs * size.calls_each}")
        verdicts.figure("outcomes", outcomes)
        verdicts.equal("runs ended", sum(outcomes.values()), size.runs)


def _under_kills(
    size: Size, verdicts: Verdicts, cluster: Ground, gauge: Gauge, arguments: list[str], errors: Path
) -> dict[str, int]:
    chance = random.Random(SEED)
    began = time.monotonic()
    owner = Owner(arguments, errors)
    try:
        owner.hear("started", OPEN_S)
        if not eventually(lambda: "4" in gauge.counts()["reached"], OPEN_S):
            raise RuntimeError("the group was never full")
        back_s: list[float] = []
        for number in range(size.kills):
            back_s.append(_kill(size, cluster, gauge, chance))
            say(f"kill {number + 1}: full again after {back_s[-1]:.1f} s")
        verdicts.figure(
            "executors killed", f"{size.kills} times, full again after {[round(s, 1) for s in back_s]} s"
        )
        verdicts.at_most("capacity back, s", max(back_s), size.timeout_ms / 1_000 + size.back_extra_s)
        for _ in range(size.owner_restarts):
            owner.kill()
            killed_ns = time.monotonic_ns()
            owner = Owner(arguments, errors)
            owner.hear("open", OPEN_S)
            opened_s = (time.monotonic_ns() - killed_ns) / 1e9
            # What the dead one's executors had asked for is long over by then.
            full_s = _full_again(gauge, killed_ns, killed_ns + 1_000_000_000, OPEN_S)
            verdicts.figure(
                "owner killed", f"another open after {opened_s:.1f} s, full again after {full_s:.1f} s"
            )
        outcomes: dict[str, int] = owner.hear("ended", END_S)
        verdicts.figure("all runs ended after, s", time.monotonic() - began)
        return outcomes
    finally:
        owner.__exit__()


def _kill(size: Size, cluster: Ground, gauge: Gauge, chance: random.Random) -> float:
    """Kill some executors, one at least; seconds until the far side has its fill again."""
    living = [one for one in cluster.actors(*EXECUTORS) if _at_work(one)]
    victims = chance.sample(living, chance.randint(1, len(living)))
    at_ns = time.monotonic_ns()
    send(victims, signal.SIGKILL)
    # What the killed had asked for goes on at the far side for a moment; after that only others can fill it.
    since_ns = at_ns + 2 * group_load.WORK_MS * 1_000_000
    return _full_again(gauge, at_ns, since_ns, size.timeout_ms / 1_000 + 3 * size.back_extra_s)


def _full_again(gauge: Gauge, from_ns: int, since_ns: int, bound_s: float) -> float:
    """Seconds from one time until the far side, after the other, has its fill again; the bound if it hasn't by then."""
    full = str(group_load.LIMIT)
    if not eventually(lambda: full in gauge.counts(since_ns)["reached"], bound_s):
        return bound_s
    return (int(gauge.counts(since_ns)["reached"][full]) - from_ns) / 1e9


def _at_work(process: Process) -> bool:
    return process.state not in ("Z", "T")
