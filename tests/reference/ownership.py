"""Who has a run, by the contract alone: owner rows that expire, epochs that only rise, one place in the log at a time.

Written from the rules and not from a store; a machine compares each answer of the stores with what is expected here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

VALID_MS = 10_000
"""How long an owner row holds after its last renewal."""


@dataclass
class Accepted:
    """One committed append."""

    epoch: int
    after_seq: int
    events: int
    digest: bytes


@dataclass
class RunHeld:
    owner: str = ""
    epoch: int = 1
    log: list[Accepted] = field(default_factory=list[Accepted])

    @property
    def seq(self) -> int:
        return sum(row.events for row in self.log)

    @property
    def head(self) -> bytes:
        return self.log[-1].digest


@dataclass
class Ownership:
    """All hosts and runs. Times are of the store."""

    now_ms: int
    hosts: dict[str, int] = field(default_factory=dict[str, int])
    runs: dict[str, RunHeld] = field(default_factory=dict[str, RunHeld])

    def alive(self, host: str) -> bool:
        return self.hosts.get(host, 0) > self.now_ms

    def renew(self, host: str, *, new: bool) -> bool:
        if not new and host not in self.hosts:
            return False
        self.hosts[host] = self.now_ms + VALID_MS
        return True

    def drop(self, host: str, *, died: bool) -> None:
        """Its runs have no owner; of one that died it is remembered whose they were."""
        self.hosts.pop(host, None)
        for run in self.runs.values():
            if run.owner == host and not died:
                run.owner = ""

    def acquire(self, name: str, host: str, proven_dead: tuple[str, ...]) -> tuple[int, bool] | str:
        """(epoch, whether the one before died), or the name of the live owner."""
        run = self.runs[name]
        before = run.owner
        if self.alive(before) and before != host and before not in proven_dead:
            return before
        if not self.alive(host):
            self.renew(host, new=False)
        run.owner, run.epoch = host, run.epoch + 1
        return run.epoch, before not in ("", host)

    def append(self, name: str, row: Accepted, prev: bytes) -> str:
        """appended, already_done, conflict or fenced; only the first changes anything."""
        run = self.runs[name]
        if row.epoch < run.epoch:
            return "fenced"
        if row.epoch == run.epoch and row.after_seq == run.seq and prev == run.head:
            run.log.append(row)
            return "appended"
        return "already_done" if row in run.log else "conflict"

    def release(self, name: str, host: str, epoch: int) -> None:
        run = self.runs[name]
        if (run.owner, run.epoch) == (host, epoch):
            run.owner = ""
