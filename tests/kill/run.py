"""Kill the host again and again under load: ``python tests/kill/run.py --kills N [--seed S]``.

One SQLite file, one host process with a long load of runs, SIGKILL at random moments; each time another process opens
the file and goes on. Approvals and the settling of unknown effects come from a second shell. A far side in a process of
its own counts. At the end every run must have ended. Prints the counts; exit 1 if anything that was promised is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import select
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from examples.far_side import FarSide
from tests.crash.proof import Acknowledged
from tests.kill.desk import Desk, Report
from tests.kill.host import host

from boundloop.eventstore.history import load_run
from boundloop.eventstore.location import open_store
from boundloop.eventstore.port import EventStore, RunFilter, RunRow
from boundloop.eventstore.verify import verify_store
from boundloop.runtime import events as e
from boundloop.runtime.invariants import check_state

ALIVE_S: Final = (0.1, 1.0)
"""How long a host lives after its first append, at least and at most."""

FIRST_APPEND_S: Final = 20.0
END_S: Final = 120.0
PAGE_RUNS: Final = 1_000


class Child:
    """A forked process that writes messages, one a line."""

    def __init__(self, live: Callable[[Callable[[object], None]], None]) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            try:
                live(lambda message: _write_all(writing, msgspec.json.encode(message) + b"\n"))
            finally:
                os._exit(1)
        os.close(writing)
        self._reading = reading
        self._rest = b""
        self.ended = False

    def said(self, timeout_s: float) -> list[bytes]:
        """The lines that came, waiting for the first; none if it ended or said nothing in time."""
        if self.ended or not select.select([self._reading], [], [], max(0.0, timeout_s))[0]:
            return []
        part = os.read(self._reading, 1 << 20)
        self.ended = not part
        *lines, self._rest = (self._rest + part).split(b"\n")
        return lines

    def kill(self) -> list[bytes]:
        """SIGKILL, and what it had said by then."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        lines: list[bytes] = []
        while not self.ended:
            lines += self.said(1.0)
        os.close(self._reading)
        return lines


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


class Trial:
    """One file, one far side, one desk, one host after the other."""

    def __init__(self, path: str, far: FarSide, seed: int) -> None:
        self.path = path
        self.far = far
        self.seed = seed
        self.acknowledged: list[Acknowledged] = []
        self.recovery_ms: list[int] = []
        self.last = Report(left=-1, counts={})

    def hear(self, lines: list[bytes]) -> int:
        """Note what a host heard acknowledged."""
        self.acknowledged += [msgspec.json.decode(line, type=Acknowledged) for line in lines if line]
        return len(lines)

    def host(self, number: int) -> Child:
        return Child(lambda say: host(self.path, self.far.port, self.seed, number, say))

    def live_and_die(self, number: int, alive_s: float, killed_at: float) -> float:
        """One host's life. Raises ``RuntimeError`` if it never got to an append, or ended by itself."""
        child = self.host(number)
        deadline = time.monotonic() + FIRST_APPEND_S
        while not self.hear(child.said(deadline - time.monotonic())):
            if child.ended or time.monotonic() > deadline:
                child.kill()
                raise RuntimeError(f"host {number} did nothing")
        if killed_at:
            self.recovery_ms.append(int((time.monotonic() - killed_at) * 1_000))
        until = time.monotonic() + alive_s
        while time.monotonic() < until and not child.ended:
            self.hear(child.said(until - time.monotonic()))
        if child.ended:
            raise RuntimeError(f"host {number} ended by itself")
        self.hear(child.kill())
        return time.monotonic()

    def finish(self, desk: Child) -> None:
        """The last host takes no new runs; until none is left, or the time is over."""
        child = self.host(0)
        deadline = time.monotonic() + END_S
        started = len(self.acknowledged)
        while time.monotonic() < deadline and not child.ended and self.last.left != 0:
            self.hear(child.said(0.02))
            self.note(desk.said(0.02))
            if len(self.acknowledged) == started:
                self.last = Report(left=-1, counts=self.last.counts)
        self.hear(child.kill())

    def note(self, lines: list[bytes]) -> None:
        for line in lines:
            if line:
                self.last = msgspec.json.decode(line, type=Report)


@contextmanager
def at_the_desk(path: str, far: FarSide) -> Generator[Child]:
    """The second shell, from the first moment to the last."""
    stopped, stop = os.pipe()

    def live(say: Callable[[object], None]) -> None:
        os.close(stop)
        Desk(path, FarSide(far.port), say).work(stopped)
        os._exit(0)

    child = Child(live)
    os.close(stopped)
    try:
        yield child
    finally:
        os.close(stop)
        while not child.ended:
            child.said(1.0)
        os.waitpid(child.pid, 0)


# --- what must hold --------------------------------------------------------------------------------------------------


async def judge(trial: Trial) -> Counter[str]:
    """The violations by name, and how much was looked at."""
    store = await open_store(f"sqlite:///{trial.path}")
    try:
        found: Counter[str] = Counter()
        found["damaged logs"] = 0 if (await verify_store(store)).ok else 1
        requests, effects = (trial.far.counts()[what] for what in ("requests", "effects"))
        intents: Counter[str] = Counter()
        hashes: dict[tuple[str, int, int], bytes] = {}
        after = ""
        while page := await store.runs(RunFilter(after=after, limit=PAGE_RUNS)):
            for row in page:
                await _judge_run(store, row, found, intents, hashes)
            after = page[-1].run_id
    finally:
        await store.close()
    for append in trial.acknowledged:
        key = (append.run_id, append.first_seq, append.event_count)
        found["acknowledged events"] += append.event_count
        if hashes.get(key) != append.hash:
            found["lost or changed events"] += append.event_count
    for name, count in requests.items():
        kind, _, key_hex = name.partition(":")
        found["requests without an intent"] += max(0, count - intents[key_hex])
        if kind in ("none", "queryable"):
            found[f"{kind} effects asked for twice"] += count > 1
    found["effects"] = sum(effects.values())
    found["duplicate effects"] = sum(count - 1 for count in effects.values())
    return found


async def _judge_run(
    store: EventStore,
    row: RunRow,
    found: Counter[str],
    intents: Counter[str],
    hashes: dict[tuple[str, int, int], bytes],
) -> None:
    found["runs"] += 1
    for stored in await store.read(row.run_id):
        hashes[row.run_id, stored.first_seq, stored.event_count] = stored.hash
    state, records = await load_run(store, row.run_id)
    check_state(state)
    if state.phase != "terminated" and not row.index.waiting_for and state.phase != "suspended":
        found["stranded runs"] += 1
    if state.phase == "terminated":
        found[f"ended {state.outcome}"] += 1
    keys: dict[str, str] = {}
    bound: Counter[str] = Counter()
    proposed = 0
    for record in records:
        match record.event:
            case e.CallProposed():
                proposed += 1
            case e.CallValidated(call=call, key=bytes(key)):
                keys[call] = key.hex()
            case e.CallStarted(call=call) if call in keys:
                intents[keys[call]] += 1
            case e.ResultBound(call=call):
                bound[call] += 1
            case _:
                pass
    if state.phase == "terminated" and (len(bound) != proposed or set(bound.values()) - {1}):
        found["calls without exactly one result"] += 1


FORBIDDEN: Final = (
    "damaged logs",
    "lost or changed events",
    "requests without an intent",
    "duplicate effects",
    "none effects asked for twice",
    "queryable effects asked for twice",
    "calls without exactly one result",
    "stranded runs",
    "zombies let in",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, FarSide.start(in_order=True) as far:
        trial = Trial(str(Path(folder) / "runs.db"), far, asked.seed)
        with at_the_desk(trial.path, far) as desk:
            killed_at = 0.0
            for number in range(1, asked.kills + 1):
                killed_at = trial.live_and_die(number, chance.uniform(*ALIVE_S), killed_at)
                trial.note(desk.said(0.0))
            trial.finish(desk)
        found = asyncio.run(judge(trial))
    found.update(trial.last.counts)
    found["kills"] = asked.kills
    found["runs left"] = max(0, trial.last.left)
    for name in sorted({*found, *FORBIDDEN}):
        print(f"{name}: {found[name]}")
    ranked = sorted(trial.recovery_ms) or [0]
    print(f"recovery ms: p50 {ranked[len(ranked) // 2]}, p95 {ranked[len(ranked) * 95 // 100]}")
    print(f"seconds: {time.monotonic() - started:.0f}, seed {asked.seed}")
    broken = [name for name in (*FORBIDDEN, "runs left") if found[name]]
    for name in broken:
        print(f"VIOLATION: {name}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
