"""Who is killed, and how: run actors, executors, the owner of the store, the process that starts runs, raylets, the database."""

from __future__ import annotations

import random
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.kill.talk import Speaker
from tests.ray.cluster import LocalNode
from tests.ray.process_table import Process, eventually, send

from boundloop.eventstore.owner import live_owner

if TYPE_CHECKING:
    from tests.kill.cluster_trial import ClusterTrial

VICTIMS: Final = ("run-actor", "executor", "owner", "driver", "raylet", "cluster", "database")
RUN_ACTORS: Final = ("RunActor",)
EXECUTORS: Final = ("SyncExecutor", "AsyncExecutor", "QuickExecutor")
OURS: Final = (*RUN_ACTORS, *EXECUTORS, "StoreMessenger")
RECOVER_S: Final = 90.0
"""Without any append for so long after a kill the trial is given up."""

ZOMBIE_EVERY: Final = 4
"""Of so many run actors that are victims the first is stopped instead of killed."""

BUSY_S: Final = 5.0
"""How long a node is waited for that has a run in hand: they may all be on the owner's."""

NODE_ZOMBIE_S: Final = 2.0
"""How long the actors of a node that Ray takes for dead are watched."""
TICK_S: Final = 0.1


@dataclass
class Zombie:
    """A run actor that is stopped. ``hosts``: its host ids."""

    process: Process
    hosts: frozenset[str]
    at: float
    given_up: bool = False


class Killer:
    """Kills one victim at a time out of a trial."""

    def __init__(self, trial: ClusterTrial, chance: random.Random) -> None:
        self._trial = trial
        self._chance = chance

    def kill(self, kind: str) -> None:
        match kind:
            case "run-actor":
                self._kill_run_actor()
            case "executor":
                self._kill_executor()
            case "owner":
                self._kill_owner()
            case "driver":
                self._kill_driver()
            case "raylet":
                self._kill_raylet()
            case "database":
                self._kill_database()
            case _:
                self._kill_cluster()

    def _kill_run_actor(self) -> None:
        def busy() -> list[Process]:
            self._trial.hear(0.0)
            return [
                actor
                for actor in self._trial.cluster.actors(*RUN_ACTORS)
                if self._trial.placement.runs_of(self._trial.placement.hosts_of(actor.pid))
            ]

        eventually(lambda: bool(busy()), RECOVER_S)
        victim = self._chance.choice(busy() or self._trial.cluster.actors(*RUN_ACTORS))
        hosts = self._trial.placement.hosts_of(victim.pid)
        runs = self._trial.placement.runs_of(hosts)
        as_zombie = self._trial.counts.kills["run-actor"] % ZOMBIE_EVERY == 0
        at = time.monotonic()
        send([victim], signal.SIGSTOP if as_zombie else signal.SIGKILL)
        self._trial.recovery.killed("run-actor, stopped" if as_zombie else "run-actor", runs, hosts, at)
        if as_zombie:
            self._trial.zombies.append(Zombie(victim, hosts, at))
            while self._trial.zombies:  # nobody else is killed meanwhile: it would be given up for that
                self._trial.hear(TICK_S)

    def _kill_executor(self) -> None:
        eventually(lambda: bool(self._trial.cluster.actors(*EXECUTORS)), RECOVER_S)
        send([self._chance.choice(self._trial.cluster.actors(*EXECUTORS))], signal.SIGKILL)

    def _kill_owner(self) -> None:
        """Whichever process holds the file: the service, or a driver that found nobody there. Where nobody owns the store: the
        service, with its run actors."""

        def who() -> Speaker | None:
            self._trial.hear(0.0)
            if not self._trial.store.startswith("sqlite"):
                return self._trial.service
            owner = live_owner(f"{self._trial.store.removeprefix('sqlite:///')}.lock")
            pid = 0 if owner is None else owner.process.pid
            return next((one for one in (self._trial.service, self._trial.driver) if one.pid == pid), None)

        eventually(lambda: who() is not None, RECOVER_S)
        owner = who() or self._trial.service
        hosts = self._trial.placement.all_hosts()
        self._trial.recovery.killed("owner", self._trial.placement.runs_of(hosts), hosts, time.monotonic())
        owner.kill()
        self._trial.look_after()

    def _kill_driver(self) -> None:
        self._trial.driver.kill()
        self._trial.look_after()

    def _kill_raylet(self) -> None:
        """One that isn't the head, of those with most of our actors; another node takes its place."""

        def ours(node: LocalNode) -> list[Process]:
            return [one for one in self._trial.cluster.actors(*OURS) if one.node == str(node.index)]

        def hosts_on(node: LocalNode) -> frozenset[str]:
            return frozenset[str]().union(*(self._trial.placement.hosts_of(one.pid) for one in ours(node)))

        def busiest() -> LocalNode:
            self._trial.hear(0.0)
            nodes = self._trial.cluster.nodes[1:]
            return max(
                nodes, key=lambda one: (len(self._trial.placement.runs_of(hosts_on(one))), len(ours(one)))
            )

        eventually(lambda: bool(self._trial.placement.runs_of(hosts_on(busiest()))), BUSY_S)
        node = busiest()
        hosts = hosts_on(node)
        self._trial.counts.actors_on_killed_nodes += len(ours(node))
        as_zombie = self._trial.counts.kills["raylet"] % ZOMBIE_EVERY == 0
        kind = "raylet, stopped" if as_zombie else "raylet"
        self._trial.recovery.killed(kind, self._trial.placement.runs_of(hosts), hosts, time.monotonic())
        if as_zombie:
            self._stop_node(node)
        else:
            self._trial.cluster.kill_raylet(node)
        self._trial.cluster.add_node()

    def _stop_node(self, node: LocalNode) -> None:
        """Its actors go on as if nothing were, while Ray takes the node for dead; then it goes on and ends itself."""
        turned_away = self._trial.counts.turned_away.total()
        stopped = self._trial.cluster.stop_node(node)
        deadline = time.monotonic() + self._trial.cluster.health.stopped_s_max
        while self._trial.cluster.is_alive(node) and time.monotonic() < deadline:
            self._trial.hear(TICK_S)
        self._trial.hear(NODE_ZOMBIE_S)
        self._trial.counts.stopped_nodes += 1
        self._trial.counts.turned_away_from_stopped_nodes += (
            self._trial.counts.turned_away.total() - turned_away
        )
        self._trial.cluster.go_on(stopped)

    def _kill_database(self) -> None:
        """Nobody of ours dies; every write that was under way is one of which nobody knows."""
        hosts = self._trial.placement.all_hosts()
        self._trial.recovery.killed(
            "database", self._trial.placement.runs_of(hosts), frozenset(), time.monotonic()
        )
        self._trial.kill_database()

    def _kill_cluster(self) -> None:
        """Everything of Ray and both processes that use it: what the store holds is all that is left."""
        hosts = self._trial.placement.all_hosts()
        runs = self._trial.placement.runs_of(hosts)
        self._trial.recovery.killed("cluster", runs, hosts, time.monotonic())
        self._trial.cluster.kill_gcs()
        self._trial.begin_anew()
