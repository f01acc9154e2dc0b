"""One store under load on a Ray cluster of three nodes while its parts are killed: run actors, executors, the owner of
the store, the process that starts the runs, raylets; and run actors that are stopped until others have their runs."""

from __future__ import annotations

import os
import queue
import random
import signal
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from examples.far_side import FarSide
from tests.crash.proof import Acknowledged
from tests.kill.recovery import Placement, Recovery
from tests.kill.talk import ROOT, Committed, Heard, HostDropped, HostSeen, Looked, Note, Speaker, TurnedAway
from tests.kill.told import TOLD_FOLDER, Telling
from tests.kill.victims import OURS, RECOVER_S, TICK_S, Killer, Zombie
from tests.postgres_server import Server
from tests.ray.cluster import LocalCluster
from tests.ray.process_table import alive, send

ALIVE_S: Final = (0.2, 1.0)
"""How long the load goes on between the first append after a kill and the next kill."""

ZOMBIE_S_MAX: Final = 20.0
"""A host is given up after 10 s; whoever is stopped goes on no later than this."""

ENDED_BY_THEMSELVES_MAX: Final = 3
END_S: Final = 180.0
LEAK_S: Final = 20.0
NOTES_KEPT: Final = 30


@dataclass
class Counts:
    """What was done and heard."""

    kills: Counter[str] = field(default_factory=Counter[str])
    turned_away: Counter[str] = field(default_factory=Counter[str])
    zombies: int = 0
    zombies_that_went_on: int = 0
    stopped_nodes: int = 0
    turned_away_from_stopped_nodes: int = 0
    actors_on_killed_nodes: int = 0
    pss_bytes: int = 0
    opened_ms: list[int] = field(default_factory=list[int])
    left: int = -1
    desk: dict[str, int] = field(default_factory=dict[str, int])
    open_runs: list[str] = field(default_factory=list[str])
    leaked: list[str] = field(default_factory=list[str])
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=NOTES_KEPT))


class ClusterTrial:
    """Starts its cluster and processes when made; ``work`` does it all, ``close`` ends them."""

    def __init__(
        self,
        folder: Path,
        store: str,
        server: Server | None,
        far: FarSide,
        model_url: str,
        seed: int,
        victims: list[str],
    ) -> None:
        self.folder = folder
        self.store = store
        self.server = server
        self._told = folder / "told"
        self._told.mkdir()
        os.environ[TOLD_FOLDER] = (
            str(self._told) if store.startswith("postgres") else ""
        )  # for Ray's processes too
        self.acknowledged: list[Acknowledged] = []
        self.recovery = Recovery()
        self.counts = Counts()
        self.cluster = LocalCluster()
        self._chance = random.Random(seed)
        self._victims = victims
        self._heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        self.placement = Placement()
        self.zombies: list[Zombie] = []
        self._appends = 0
        self._drivers = 0
        self._ended_by_themselves = 0
        self._began = time.monotonic()
        self._seed = seed
        self._places = [str(folder), store, str(far.port), model_url]
        self._errors = folder / "errors.txt"
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "PYTHONUNBUFFERED": "1",
        }
        self._telling = Telling(
            self._told, lambda message: self._heard.put(Heard(None, message, time.monotonic()))
        )
        self._desk = self._speaker("person", [store, str(far.port)])
        self.service = self._member("service")
        self.driver = self._member("driver")

    def _speaker(self, name: str, arguments: list[str]) -> Speaker:
        return Speaker(name, arguments, self._heard, self._environment, self._errors)

    def _member(self, role: str) -> Speaker:
        self._drivers += role == "driver"
        arguments = [role, *self._places, self.cluster.address, str(self._seed), str(self._drivers)]
        return self._speaker("member", arguments)

    def begin_anew(self) -> None:
        """Kill whatever is left of the cluster and who uses it, and start another."""
        self.service.kill()
        self.driver.kill()
        self.cluster.close()
        self.cluster = LocalCluster()
        self.service = self._member("service")
        self.driver = self._member("driver")

    # --- listening -------------------------------------------------------------------------------------------------

    def hear(self, seconds: float) -> None:
        """Note everything that comes within the time, and what time does to zombies and to who ended by itself."""
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            try:
                self._note(self._heard.get(timeout=max(0.001, min(left, TICK_S))))
            except queue.Empty:
                self.look_after()
            if time.monotonic() >= until:
                return

    def _note(self, heard: Heard) -> None:
        match heard.message:
            case Committed() as message:
                self._appends += 1
                self.acknowledged.append(message.acknowledged())
                self.placement.committed(message)
                self.recovery.committed(message.run_id, message.host_id, heard.at)
            case TurnedAway(what=what):
                self.counts.turned_away[what] += 1
            case HostSeen(host_id=host_id, pid=pid):
                self.placement.registered(host_id, pid)
            case HostDropped(host_id=host_id):
                for zombie in self.zombies:
                    zombie.given_up |= host_id in zombie.hosts
                self._wake_zombies()
            case Looked(left=left, counts=counts, open_runs=open_runs):
                self.counts.left, self.counts.desk, self.counts.open_runs = left, counts, open_runs
            case Note(text=text) if heard.speaker is not None:
                if text == "open":
                    self.counts.opened_ms.append(int((heard.at - heard.speaker.started_at) * 1_000))
                self.remark(f"{heard.speaker.name} {heard.speaker.pid}: {text}")
            case Note():
                pass

    def _wake_zombies(self) -> None:
        """Whose runs are others' now: at once, since its supervisor ends it a second later."""
        for zombie in self.zombies[:]:
            if zombie.given_up or time.monotonic() - zombie.at > ZOMBIE_S_MAX:
                self.counts.zombies += 1
                self.counts.zombies_that_went_on += bool(send([zombie.process], signal.SIGCONT))
                self.zombies.remove(zombie)

    def look_after(self) -> None:
        self._wake_zombies()
        if self.service.ended:
            self._replaced(self.service)
            self.service = self._member("service")
        if self.driver.ended:
            self._replaced(self.driver)
            self.driver = self._member("driver")

    def _replaced(self, gone: Speaker) -> None:
        """A raylet's death ends whoever was attached through it; others end when they are killed, and by nothing else.
        Raises ``RuntimeError`` if too many do."""
        gone.reap()
        if gone.killed:
            return
        self.remark(f"{gone.name} {gone.pid} ended by itself with {gone.process.returncode}")
        self._ended_by_themselves += 1
        if self._ended_by_themselves > ENDED_BY_THEMSELVES_MAX + self.counts.kills["raylet"]:
            raise RuntimeError(f"{self._ended_by_themselves} processes ended by themselves")

    def _await(self, what: str, appends: int) -> None:
        """Until that many more appends came. Raises ``RuntimeError`` if they don't."""
        wanted = self._appends + appends
        deadline = time.monotonic() + RECOVER_S
        while self._appends < wanted:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no append for {RECOVER_S:.0f} s after {what}")
            self.hear(TICK_S)

    def remark(self, text: str) -> None:
        line = f"{time.monotonic() - self._began:6.1f} s  {text}"
        self.counts.notes.append(line)
        print(line, file=sys.stderr, flush=True)

    # --- killing ---------------------------------------------------------------------------------------------------

    def work(self, kills: int) -> None:
        """All kills, then the end. Raises ``RuntimeError`` if nothing goes on after a kill."""
        killer = Killer(self, self._chance)
        self._await("the start", 20)
        order = [self._victims[number % len(self._victims)] for number in range(kills)]
        self._chance.shuffle(order)
        if "run-actor" in order:  # stopped ones need their time
            order.insert(0, order.pop(order.index("run-actor")))
        for number, kind in enumerate(order):
            self.hear(self._chance.uniform(*ALIVE_S))
            killer.kill(kind)
            self.counts.kills[kind] += 1
            self.remark(f"kill {number + 1}: {kind}")
            self._await(f"kill {number + 1}, {kind}", 1)
        self._finish()

    def _forget_look(self) -> None:
        self.counts.left = -1

    def nobody_left(self) -> bool:
        """Whether the desk has looked since, and found every run at its end."""
        return self.counts.left == 0

    # --- the end ---------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Nothing more is started; until no run is left, or the time is over. Then everybody ends in good order."""
        deadline = time.monotonic() + END_S
        self.driver.tell("stop")
        quiet_from = self._appends
        looks = 0
        while time.monotonic() < deadline and looks < 3:
            self._forget_look()
            self.hear(0.5)
            # Three looks in a row at a store in which nothing moves and nobody is left.
            looks = looks + 1 if self.nobody_left() and quiet_from == self._appends else 0
            quiet_from = self._appends
        self._end_processes()
        self.counts.pss_bytes = self.cluster.pss_bytes()
        actors = self.cluster.actors(*OURS)
        left = self.cluster.left_after(actors, LEAK_S)
        self.counts.leaked = [f"{process.actor} {process.pid} ({process.state})" for process in left]

    def close(self) -> None:
        """End the processes of the trial, and the cluster."""
        self._end_processes()
        self.cluster.close()
        self._telling.close()

    def _end_processes(self) -> None:
        for zombie in self.zombies:
            send(alive([zombie.process]), signal.SIGCONT)
        self.zombies.clear()
        for speaker in (self._desk, self.driver, self.service):
            if not speaker.ended and not speaker.ask_to_end():
                self.remark(f"{speaker.name} {speaker.pid} did not end in good order")
        self._drain()

    def kill_database(self) -> None:
        """The server with all its backends; it comes back with what it had flushed."""
        assert self.server is not None
        self.server.kill()
        self.server.start()

    def _drain(self) -> None:
        while not self._heard.empty():
            self._note(self._heard.get())
