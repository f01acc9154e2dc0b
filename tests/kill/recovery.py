"""How long runs stood still after a kill: from the kill to the next append of a run that the victim hosted."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

from tests.kill.talk import Committed

PERCENTS: Final = (50, 95, 99)


class Placement:
    """Which host committed each run's last append, and whether the run has rested since."""

    def __init__(self) -> None:
        self._hosts: dict[str, str] = {}
        self._pids: dict[int, set[str]] = defaultdict(set)

    def registered(self, host_id: str, pid: int) -> None:
        self._pids[pid].add(host_id)

    def committed(self, message: Committed) -> None:
        if message.rests or not message.host_id:
            self._hosts.pop(message.run_id, None)
        else:
            self._hosts[message.run_id] = message.host_id

    def hosts_of(self, pid: int) -> frozenset[str]:
        return frozenset(self._pids.get(pid, ()))

    def all_hosts(self) -> frozenset[str]:
        return frozenset(host for hosts in self._pids.values() for host in hosts)

    def runs_of(self, hosts: frozenset[str]) -> frozenset[str]:
        """The runs that these hosts had in hand."""
        return frozenset(run for run, host in self._hosts.items() if host in hosts)


class Recovery:
    """Waits for the runs of each victim; ``ms`` by kind of victim."""

    def __init__(self) -> None:
        self.ms: dict[str, list[int]] = defaultdict(list)
        self._open: dict[str, tuple[str, frozenset[str], float]] = {}

    def killed(self, kind: str, runs: frozenset[str], hosts: frozenset[str], at: float) -> None:
        for run in runs:
            self._open.setdefault(run, (kind, hosts, at))

    def committed(self, run_id: str, host_id: str, at: float) -> None:
        waited = self._open.get(run_id)
        if waited is not None and host_id not in waited[1]:
            del self._open[run_id]
            self.ms[waited[0]].append(int((at - waited[2]) * 1_000))

    @property
    def open_runs(self) -> Counter[str]:
        """Runs that have not moved since, by kind of victim."""
        return Counter(kind for kind, _, _ in self._open.values())

    def lines(self) -> list[str]:
        """For people."""
        rows = [(kind, sorted(found)) for kind, found in sorted(self.ms.items())]
        rows.append(("all", sorted(value for found in self.ms.values() for value in found)))
        return [
            f"recovery ms, {kind}: "
            + (", ".join(f"p{percent} {_rank(found, percent)}" for percent in PERCENTS) if found else "none")
            + f" of {len(found)} runs"
            for kind, found in rows
        ]


def _rank(found: list[int], percent: int) -> int:
    return found[min(len(found) - 1, len(found) * percent // 100)]
