"""The places of pools and groups as plain data: who holds one, who waits, what was lost. No clock, no wait, no process.

The broker tells what happened (``ask``, ``give_back``, ``lost``, ``executor_up``, …), each with its monotonic time, and then
does what ``assign`` says. Rules:

* an executor of a ``sync`` pool holds one call; of other kinds, as many as its pool's ``places``;
* a call of a limited group holds a place of the group too, and they are given together or not at all;
* the place in a limited group of a call that was lost, or ended with its time or without an outcome, returns only when the
  call's validity and ``LOST_EXTRA_MS`` are over, because it may be at its far side until then. The executor of a lost one
  returns as soon as a new one is up, that of the other at once;
* an executor that others use too isn't ended on one host's word: it is *doubted*. Asked by the broker, it confirms that
  nothing of that lease goes on, or is ended with all that it has;
* waiters are served in order of arrival. One whose group is full lets others of its pool pass, and is passed by none of
  its group; one that has room in its group but no executor keeps both in line.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from .group_places import GroupPlaces
from .places import Grant, LossCause, RefusalCode, Want
from .pool_places import CONTENDED_MS, FAILING_AFTER, Executor, PoolPlaces
from .slot_reports import (
    Assigned,
    Doubt,
    GroupStatistics,
    PoolKey,
    PoolShape,
    PoolStatistics,
    SlotStatistics,
)

LOST_EXTRA_MS: Final = 2_000
"""Beyond a lost lease's validity. Less than the margin, in which a lost attempt may still arrive."""

QUEUE_MAX: Final = 10_000
"""Calls that may wait for a place."""

DOUBT_MS: Final = 3_000
OVERDUE_DOUBT_MS: Final = 1_000
"""How long a doubted executor may take to say that nothing of a lease goes on. A call is told to be overdue a second after its
validity: with this, and the time to end a process, it is over before the margin."""


@dataclass(slots=True)
class _Lease:
    want: Want
    group: str
    executor: str
    until_ms: int
    lost: bool = False
    doubted: bool = False


@dataclass(slots=True)
class _Waiter:
    want: Want
    lane: _Lane
    order: int
    until_ms: int


@dataclass(slots=True)
class _Lane:
    """Waiters that want the same: if the first can't be served, none can."""

    key: PoolKey
    group: str
    queue: deque[str] = field(default_factory=deque[str])
    waiting: int = 0


_Timer = Literal["lease", "waiter", "group"]


class Slots:
    """``groups`` are the limited ones, by name, with their limits; any other group has none. ``closed_until_ms``: a
    group grants nothing before (calls of an owner that died may be at its far side). ``name_of`` makes the name of an
    executor that has never been used before, from its pool and a number."""

    def __init__(
        self,
        pools: Mapping[PoolKey, PoolShape],
        groups: Mapping[str, int],
        *,
        closed_until_ms: Mapping[str, int] | None = None,
        queue_max: int = QUEUE_MAX,
        name_of: Callable[[PoolKey, int], str] = lambda key, number: f"{key[0]}-{key[1]}-{number}",
    ) -> None:
        closed = closed_until_ms or {}
        self._pools = {key: PoolPlaces(key, shape) for key, shape in pools.items()}
        self._groups = {name: GroupPlaces(limit, closed.get(name, 0)) for name, limit in groups.items()}
        self._queue_max = queue_max
        self._name_of = name_of
        self._number = 0
        self._order = 0
        self._executors: dict[str, Executor] = {}
        self._leases: dict[str, _Lease] = {}
        self._waiters: dict[str, _Waiter] = {}
        self._lanes: dict[tuple[PoolKey, str], _Lane] = {}
        self._timers: list[tuple[int, _Timer, str]] = [
            (group.closed_until_ms, "group", name)
            for name, group in self._groups.items()
            if group.closed_until_ms
        ]
        heapq.heapify(self._timers)
        self._to_end: list[str] = []
        self._doubts: dict[str, Doubt] = {}
        self._granted = self._refused = self._lost = 0

    # --- what happened -------------------------------------------------------------------------------------------

    def ask(self, want: Want, now_ms: int) -> RefusalCode | None:
        """Queue a want; a later ``assign`` grants or refuses it. A refusal at once if it can't even wait. One that is
        waiting or granted already changes nothing."""
        if want.want_id in self._waiters or want.want_id in self._leases:
            return None
        key = (want.pool, want.kind)
        if key not in self._pools:
            self._refused += 1
            return "no_pool"
        if self._pools[key].failing and now_ms < self._pools[key].start_at_ms:
            self._refused += 1
            return "executors_failing"
        if len(self._waiters) >= self._queue_max:
            self._refused += 1
            return "overloaded"
        group = want.group if want.group in self._groups else ""
        lane = self._lanes.get((key, group))
        if lane is None:
            lane = self._lanes[key, group] = _Lane(key, group)
        self._order += 1
        until_ms = now_ms + want.valid_ms
        self._waiters[want.want_id] = _Waiter(want, lane, self._order, until_ms)
        lane.queue.append(want.want_id)
        lane.waiting += 1
        self._set_timer(until_ms, "waiter", want.want_id)
        return None

    def held(self, grant_id: str) -> str | None:
        """The executor that this lease is for; None if there is no such lease."""
        lease = self._leases.get(grant_id)
        return None if lease is None else lease.executor

    def waits(self, want_id: str) -> bool:
        return want_id in self._waiters

    def give_back(self, grant_id: str, now_ms: int) -> None:
        """The call has ended, or is wanted no more."""
        if self._forget_waiter(grant_id) is not None:
            return
        lease = self._leases.pop(grant_id, None)
        if lease is None:
            return
        if lease.group:
            self._groups[lease.group].held -= 1
        executor = self._executors.get(lease.executor)
        if executor is not None:
            executor.leases.discard(grant_id)
            executor.idle_since_ms = now_ms
            pool = self._pools[executor.key]
            pool.failures = pool.failed_starts = 0

    def lost(self, grant_id: str, why: LossCause, now_ms: int) -> None:
        """The call hasn't ended as far as anybody knows. A want that still waits is dropped."""
        if self._forget_waiter(grant_id) is not None:
            return
        lease = self._leases.get(grant_id)
        if lease is None:
            return
        executor = self._executors[lease.executor]
        if why == "unreached":
            # Nothing was sent, which is proof for the group too.
            self._let_go(lease, now_ms)
        else:
            self._lost += 0 if lease.lost or why == "late" else 1
            self._drop_group(lease)
        known, lease.lost = lease.lost, True
        kind = lease.want.kind
        if why == "late":
            self._let_go(lease, now_ms)
        elif kind == "sync" or (kind == "quick" and why == "overdue"):
            # Nothing but its end frees it.
            self._to_end.append(executor.name)
            self._remove(executor, now_ms, crashed=why in ("died", "unreached"))
        elif kind == "quick":
            # Reads: what goes on of them harms nobody.
            self._let_go(lease, now_ms)
            if why in ("died", "unreached"):
                self._doubt(executor, grant_id, DOUBT_MS)
        elif why == "unreached":
            self._doubt(executor, grant_id, DOUBT_MS)
        elif why == "not_given_back" and known:
            if not lease.doubted:
                self._let_go(lease, now_ms)  # a deaf one whose time is over
        elif why != "deaf":
            lease.doubted = True
            self._doubt(executor, grant_id, OVERDUE_DOUBT_MS if why == "overdue" else DOUBT_MS)
        # Else it is a read among many on a loop: its place there is taken until the timer.

    def settled(self, doubt: Doubt, now_ms: int, *, ended: bool) -> None:
        """What a doubted executor said: whether nothing of those leases goes on. One that doesn't say so is ended."""
        executor = self._executors.get(doubt.executor)
        if executor is None:
            return
        if not ended:
            self._to_end.append(executor.name)
            self._remove(executor, now_ms, crashed=False)
            return
        for grant_id in doubt.grant_ids:
            if (lease := self._leases.get(grant_id)) is not None:
                self._let_go(lease, now_ms)

    def hold(self, group: str, places: int, until_ms: int, now_ms: int) -> None:
        """So many places of a limited group are taken until then, by calls of an owner before this one."""
        if until_ms > now_ms:
            self._groups[group].lost += [until_ms] * places
            self._set_timer(until_ms, "group", group)

    def holds(self, now_ms: int) -> dict[str, tuple[int, int]]:
        """How many places of each limited group may be in use at a far side if this is the end, and until when."""
        ends = {name: it.taken_until_ms(now_ms) for name, it in self._groups.items()}
        for lease in self._leases.values():
            if lease.group:
                ends[lease.group].append(lease.until_ms + LOST_EXTRA_MS)
        return {name: (len(found), max(found)) for name, found in ends.items() if found}

    def host_gone(self, host_id: str, now_ms: int) -> None:
        """A host died or let go: nothing that it had asked for is wanted, what it held is lost."""
        for want_id in [it.want.want_id for it in self._waiters.values() if it.want.host_id == host_id]:
            self._forget_waiter(want_id)
        for grant_id in [key for key, it in self._leases.items() if it.want.host_id == host_id]:
            self.lost(grant_id, "host", now_ms)

    def executor_up(self, name: str, now_ms: int) -> None:
        """One that ``assign`` said to start takes calls."""
        executor = self._executors.get(name)
        if executor is not None:
            executor.up = True
            executor.idle_since_ms = now_ms
            self._pools[executor.key].failed_starts = 0

    def executor_gone(self, name: str, now_ms: int) -> None:
        """Its process has ended, or never came up. One that ``assign`` said to end is forgotten already."""
        executor = self._executors.get(name)
        if executor is not None:
            self._remove(executor, now_ms, crashed=True)

    # --- what is to be done --------------------------------------------------------------------------------------

    def assign(self, now_ms: int) -> Assigned:
        """Everything that is due. Each thing is said once."""
        refused = self._expire(now_ms) + self._failing(now_ms)
        granted = self._grant(now_ms)
        waiting = self._waiting_by_pool(now_ms)
        end = self._ends(now_ms, waiting)
        doubts, self._doubts = tuple(self._doubts.values()), {}
        start = self._starts(now_ms, waiting)
        grants = tuple(
            Grant(grant_id=lease.want.want_id, actor=lease.executor, contended=self._contended(lease, now_ms))
            for lease in granted
        )
        self._granted += len(grants)
        self._refused += len(refused)
        return Assigned(grants, tuple(refused), tuple(start), tuple(end), doubts)

    def next_ms(self, now_ms: int) -> int | None:
        """When, later than now, ``assign`` may say something new although nothing happened; None for never."""
        due = [self._timers[0][0]] if self._timers else []
        waiting = self._waiting_by_pool(now_ms)
        for key, pool in self._pools.items():
            alive, shape = len(pool.executors), pool.shape
            if alive < shape.least or (waiting.get(key) and alive < shape.most):
                due.append(pool.start_at_ms)
            if alive > shape.least:
                due += [
                    it.idle_since_ms + shape.idle_ms
                    for it in pool.executors.values()
                    if it.up and not it.leases
                ]
        return min((at for at in due if at > now_ms), default=None)

    def statistics(self) -> SlotStatistics:
        waiting = self._waiting_by_pool(None)
        pools = {
            key: PoolStatistics(
                up=sum(it.up for it in pool.executors.values()),
                starting=sum(not it.up for it in pool.executors.values()),
                leased=sum(len(it.leases) for it in pool.executors.values()),
                waiting=waiting.get(key, 0),
                failures=pool.failures,
            )
            for key, pool in self._pools.items()
        }
        groups = {
            name: GroupStatistics(it.limit, it.held, len(it.lost), closed=it.closed_until_ms > 0)
            for name, it in self._groups.items()
        }
        return SlotStatistics(pools, groups, len(self._waiters), self._granted, self._refused, self._lost)

    # --- inside --------------------------------------------------------------------------------------------------

    def _expire(self, now_ms: int) -> list[tuple[str, RefusalCode]]:
        refused: list[tuple[str, RefusalCode]] = []
        while self._timers and self._timers[0][0] <= now_ms:
            _, what, name = heapq.heappop(self._timers)
            if what == "waiter":
                waiter = self._forget_waiter(name)
                if waiter is not None:
                    failing = self._pools[waiter.lane.key].failed_starts >= FAILING_AFTER
                    refused.append((name, "executors_failing" if failing else "expired"))
            elif what == "lease":
                self.lost(name, "not_given_back", now_ms)
            else:
                self._groups[name].pass_time(now_ms)
        return refused

    def _failing(self, now_ms: int) -> list[tuple[str, RefusalCode]]:
        """Who waits for a pool whose executors don't come up. Whoever comes when the next start is due has it made."""
        failing = {key for key, it in self._pools.items() if it.failing and now_ms < it.start_at_ms}
        waiting = [name for name, it in self._waiters.items() if it.lane.key in failing] if failing else []
        for name in waiting:
            self._forget_waiter(name)
        return [(name, "executors_failing") for name in waiting]

    def _grant(self, now_ms: int) -> list[_Lease]:
        """Serve the lanes' first ones in order of arrival, until each lane is empty or blocked."""
        full_pools: set[PoolKey] = set()
        full_groups: set[str] = set()
        granted: list[_Lease] = []
        firsts = [(self._waiters[it.queue[0]].order, it.key, it.group) for it in self._open_lanes()]
        heapq.heapify(firsts)
        while firsts:
            _, key, group = heapq.heappop(firsts)
            if group in full_groups:
                continue
            if group and self._groups[group].room(now_ms) <= 0:
                full_groups.add(group)
                continue
            executor = None if key in full_pools else self._pools[key].free_executor()
            if executor is None:
                full_pools.add(key)
                pool = self._pools[key]
                if sum(it.up for it in pool.executors.values()) >= pool.shape.most:
                    pool.waited_ms = now_ms
                if group:
                    full_groups.add(group)
                continue
            lane = self._lanes[key, group]
            granted.append(self._lease(lane, executor, now_ms))
            self._trim(lane)
            if lane.queue:
                heapq.heappush(firsts, (self._waiters[lane.queue[0]].order, key, group))
        return granted

    def _lease(self, lane: _Lane, executor: Executor, now_ms: int) -> _Lease:
        waiter = self._waiters.pop(lane.queue.popleft())
        lane.waiting -= 1
        want = waiter.want
        # Counted from the arrival: what was waited for is gone from the call's validity too.
        lease = _Lease(want, lane.group, executor.name, waiter.until_ms)
        self._leases[want.want_id] = lease
        executor.leases.add(want.want_id)
        if lane.group:
            self._groups[lane.group].held += 1
        self._set_timer(waiter.until_ms + LOST_EXTRA_MS, "lease", want.want_id)
        return lease

    def _open_lanes(self) -> Iterable[_Lane]:
        for lane in self._lanes.values():
            self._trim(lane)
            if lane.queue:
                yield lane

    def _trim(self, lane: _Lane) -> None:
        while lane.queue and lane.queue[0] not in self._waiters:
            lane.queue.popleft()

    def _forget_waiter(self, want_id: str) -> _Waiter | None:
        waiter = self._waiters.pop(want_id, None)
        if waiter is not None:
            lane = waiter.lane
            lane.waiting -= 1
            if len(lane.queue) > 2 * lane.waiting + 64:
                lane.queue = deque(name for name in lane.queue if name in self._waiters)
        return waiter

    def _let_go(self, lease: _Lease, now_ms: int) -> None:
        """Its executor's place is free, and its group's if that is still with it."""
        self._leases.pop(lease.want.want_id, None)
        if lease.group:
            self._groups[lease.group].held -= 1
            lease.group = ""
        executor = self._executors[lease.executor]
        executor.leases.discard(lease.want.want_id)
        executor.idle_since_ms = now_ms

    def _doubt(self, executor: Executor, grant_id: str, within_ms: int) -> None:
        before = self._doubts.get(executor.name, Doubt(executor.name, (), within_ms))
        within_ms = min(before.within_ms, within_ms)
        self._doubts[executor.name] = Doubt(executor.name, (*before.grant_ids, grant_id), within_ms)

    def _drop_group(self, lease: _Lease) -> None:
        """A lost lease's place of its group: taken until its call must be over."""
        if not lease.group:
            return
        until_ms = lease.until_ms + LOST_EXTRA_MS
        self._groups[lease.group].lose(until_ms)
        self._set_timer(until_ms, "group", lease.group)
        lease.group = ""

    def _set_timer(self, at_ms: int, what: _Timer, name: str) -> None:
        """Timers of what has ended meanwhile are thrown away from time to time."""
        live = len(self._leases) + len(self._waiters) + sum(len(it.lost) + 1 for it in self._groups.values())
        if len(self._timers) > 4 * live + 1_024:
            known: dict[_Timer, Container[str]] = {
                "lease": self._leases,
                "waiter": self._waiters,
                "group": self._groups,
            }
            self._timers = [timer for timer in self._timers if timer[2] in known[timer[1]]]
            heapq.heapify(self._timers)
        heapq.heappush(self._timers, (at_ms, what, name))

    def _waiting_by_pool(self, now_ms: int | None) -> dict[PoolKey, int]:
        """Who waits for each pool; with a time, only as many of a limited group as it has room for then."""
        waiting: dict[PoolKey, int] = {}
        for lane in self._lanes.values():
            count = lane.waiting
            if lane.group and now_ms is not None:
                count = min(count, max(0, self._groups[lane.group].room(now_ms)))
            if count:
                waiting[lane.key] = waiting.get(lane.key, 0) + count
        return waiting

    def _contended(self, lease: _Lease, now_ms: int) -> bool:
        pool = self._pools[lease.want.pool, lease.want.kind]
        return bool(lease.group) or now_ms - pool.waited_ms < CONTENDED_MS

    def _remove(self, executor: Executor, now_ms: int, *, crashed: bool) -> None:
        """It is none of ours from now on, whenever its process is gone; what it had at work is lost."""
        del self._executors[executor.name]
        pool = self._pools[executor.key]
        del pool.executors[executor.name]
        if crashed:
            pool.crashed(executor, now_ms)
        for grant_id in executor.leases:
            lease = self._leases.pop(grant_id)
            self._lost += 0 if lease.lost else 1
            self._drop_group(lease)

    def _ends(self, now_ms: int, waiting: Mapping[PoolKey, int]) -> list[str]:
        """Executors to end: those that can't be freed, and those beyond the least that had no call for long."""
        end, self._to_end = self._to_end, []
        for key, pool in self._pools.items():
            spare = len(pool.executors) - pool.shape.least
            if spare <= 0 or waiting.get(key):
                continue
            idle = [
                it
                for it in pool.executors.values()
                if it.up and not it.leases and it.idle_since_ms + pool.shape.idle_ms <= now_ms
            ]
            for executor in sorted(idle, key=lambda it: it.idle_since_ms)[:spare]:
                end.append(executor.name)
                self._remove(executor, now_ms, crashed=False)
        return end

    def _starts(self, now_ms: int, waiting: Mapping[PoolKey, int]) -> list[tuple[str, PoolKey]]:
        start: list[tuple[str, PoolKey]] = []
        for key, pool in self._pools.items():
            if now_ms < pool.start_at_ms:
                continue
            alive = len(pool.executors)
            starting = sum(not it.up for it in pool.executors.values())
            needed = -(-waiting.get(key, 0) // pool.shape.places) - starting
            wanted = max(needed, pool.shape.least - alive)
            for _ in range(max(0, min(wanted, pool.shape.most - alive))):
                self._number += 1
                name = self._name_of(key, self._number)
                executor = Executor(name, key, pool.shape.places, idle_since_ms=now_ms)
                pool.executors[name] = self._executors[name] = executor
                start.append((name, key))
        return start
