"""Who is ready, and when: settlements, ends of children, timers, damage."""

from __future__ import annotations

import msgspec

from ...runtime.errors import RunNotFound
from ...runtime.ledger import RunIndex
from ..port import Acquired, Appended, ClaimTaken
from .log_writer import ENDED, claim, settlement, waiting
from .world import KEY, World, each, refused

PARKED = RunIndex(status="suspended", waiting_for="approval:a1")


class WakingCases:
    """See ``contract.Contract``."""

    async def test_a_settlement_wakes_who_waits_for_the_key(self, world: World) -> None:
        holder = world.writer("holder")
        await holder.write("intent", claim=claim(KEY))
        await world.writer("waiter").write("waits", index=waiting(KEY), release=True)
        await world.writer("stranger", tenant="other").write("waits", index=waiting(KEY), release=True)
        await world.writer("elsewhere").write("waits", index=waiting(b"e" * 32), release=True)
        await world.settled()
        world.woken.clear()
        before = await world.store.ready_runs()
        await holder.write("done", settlements=(settlement(KEY, "succeeded"),))
        assert [run for run in await world.store.ready_runs() if run not in before] == ["waiter"]
        await world.settled()
        assert world.woken == ["waiter"]

    @each("to", "succeeded", "unknown")
    async def test_who_begins_to_wait_for_a_settled_key_is_ready_at_once(self, world: World, to: str) -> None:
        holder = world.writer("holder")
        await holder.write("intent", claim=claim(KEY))
        late = world.writer("late")
        await late.write("start")
        assert isinstance(await late.append("intent", claim=claim(KEY)), ClaimTaken)
        await holder.write("done", settlements=(settlement(KEY, to),))
        await late.write("waits", index=waiting(KEY), release=True)
        assert await world.store.ready_runs() == ["late"]
        await world.settled()
        assert world.woken == ["late"]

    async def test_a_wake_between_decision_and_release_is_kept(self, world: World) -> None:
        await world.store.register_host(world.host("h1"))
        parent = world.writer("parent", host_id="h1")
        await parent.write("one")
        release = parent.request("parks", index=PARKED, release=True)
        await world.writer("child").write("ends", index=ENDED, release=True, wake_runs=("parent",))
        assert await world.store.ready_runs() == []
        await world.store.append(release)
        assert await world.store.ready_runs() == ["parent"]

    async def test_an_owner_that_goes_on_has_seen_its_wake(self, world: World) -> None:
        await world.store.register_host(world.host("h1"))
        parent = world.writer("parent", host_id="h1")
        await parent.write("one")
        await world.writer("child").write("ends", index=ENDED, wake_runs=("parent",))
        await parent.write("handled")
        await parent.write("parks", index=PARKED, release=True)
        assert await world.store.ready_runs() == []

    async def test_an_ended_run_is_never_ready(self, world: World) -> None:
        log = world.writer("parent")
        await log.write("ends", index=ENDED, ready=True, release=True)
        await world.writer("child").write("ends", index=ENDED, wake_runs=("parent", "nobody"))
        assert await world.store.ready_runs() == []
        assert world.woken == []

    async def test_a_new_run_without_host_is_ready(self, world: World) -> None:
        await world.writer("second").write("start", ready=True)
        world.clock.advance(1)
        await world.writer("third").write("start", ready=True)
        await world.settled()
        assert world.woken == ["second", "third"]
        assert await world.store.ready_runs() == ["second", "third"]
        assert await world.store.ready_runs(limit=1) == ["second"]
        row = await world.store.run("second")
        assert row is not None
        assert row.ready

    async def test_a_due_timer_makes_ready_and_not_early(self, world: World) -> None:
        at_ms = world.clock() + 100
        timer = RunIndex(status="suspended", waiting_for="timer", wake_at_ms=at_ms)
        await world.writer().write("sleeps", index=timer, release=True)
        assert await world.store.next_wake_ms() == at_ms
        world.clock.advance(99)
        assert await world.store.ready_runs() == []
        world.clock.advance(1)
        assert await world.store.ready_runs() == ["r1"]
        assert isinstance(await world.store.acquire("r1", "h1"), Acquired)
        assert await world.store.next_wake_ms() is None

    async def test_a_timer_of_a_hosted_run_is_its_hosts(self, world: World) -> None:
        await world.store.register_host(world.host("h1"))
        index = RunIndex(status="open_calls", wake_at_ms=world.clock())
        await world.writer(host_id="h1").write("works", index=index)
        assert await world.store.next_wake_ms() is None
        assert await world.store.ready_runs() == []

    @each("way", "let_go", "appended_without_owner")
    async def test_the_timer_of_a_run_that_lost_its_owner_is_the_stores(self, world: World, way: str) -> None:
        """Whoever wrote the timer, and whenever."""
        await world.store.register_host(world.host("h1"))
        at_ms = world.clock() + 100
        log = world.writer(host_id="h1")
        await log.write("one", release=way == "appended_without_owner")
        await log.write("waits for a deadline", index=RunIndex(status="open_calls", wake_at_ms=at_ms))
        if way == "let_go":
            await world.store.release("r1", "h1", 1, ready=False)
        assert await world.store.next_wake_ms() == at_ms
        assert await world.store.ready_runs() == []
        world.clock.advance(100)
        assert await world.store.ready_runs() == ["r1"]

    async def test_the_timer_of_a_run_whose_host_stopped_is_the_stores(self, world: World) -> None:
        await world.store.register_host(world.host("h1"))
        at_ms = world.clock() + 100
        index = RunIndex(status="open_calls", wake_at_ms=at_ms)
        await world.writer(host_id="h1").write("waits", index=index)
        await world.store.drop_host("h1")
        assert await world.store.next_wake_ms() == at_ms

    async def test_who_waits_for_a_key_no_more_is_not_woken_by_it(self, world: World) -> None:
        await world.store.register_host(world.host("h1"))
        holder, waiter = world.writer("holder", host_id="h1"), world.writer("waiter", host_id="h1")
        await holder.write("intent", claim=claim(KEY))
        await waiter.write("waits", index=waiting(KEY))
        await waiter.write("goes on")
        await holder.write("done", settlements=(settlement(KEY, "succeeded"),))
        row = await world.store.run("waiter")
        assert row is not None
        assert (row.ready, row.index.waiting_keys, row.index.waiting_for) == (False, (), "")

    async def test_a_damaged_run_is_not_handed_out(self, world: World) -> None:
        await world.writer().write("start", ready=True)
        await world.store.mark_damaged("r1", "hash of seq 1")
        assert await world.store.ready_runs() == []
        row = await world.store.run("r1")
        assert row is not None
        assert row.damaged == "hash of seq 1"
        with refused(RunNotFound):
            await world.store.mark_damaged("nobody", "x")

    async def test_who_takes_the_ready_mark_away_is_told(self, world: World) -> None:
        """So a wake whose signal comes late, or never, isn't lost with the mark."""
        await world.store.register_host(world.host("h1"))
        log, other = world.writer(host_id="h1"), world.writer("other")
        await log.write("one")
        await other.write("one")
        plain = log.request("nobody woke it")
        assert await world.store.append(plain) == Appended(2, world.clock())
        log.follow(plain)
        await other.write("wakes", wake_runs=("r1",))
        goes_on = log.request("goes on")
        assert await world.store.append(goes_on) == Appended(3, world.clock(), woken=True)
        log.follow(goes_on)
        await other.write("wakes again", wake_runs=("r1",))
        parks = log.request("parks", release=True)
        assert await world.store.append(parks) == Appended(4, world.clock())
        acquired = await world.store.acquire("r1", "h1")
        assert isinstance(acquired, Acquired)
        assert acquired.woken
        acquired = await world.store.acquire("r1", "h1")
        assert isinstance(acquired, Acquired)
        assert not acquired.woken

    async def test_who_marks_a_run_as_damaged_wakes_the_run_above_it(self, world: World) -> None:
        """Nobody writes into a damaged log, so its last append never comes to wake who waits for it."""
        await world.writer("parent").write("waits")
        child = world.writer("child")
        request = child.request("works")
        assert request.create is not None
        create = msgspec.structs.replace(request.create, parent_id="parent", root_id="parent")
        await world.store.append(msgspec.structs.replace(request, create=create))
        assert world.woken == []
        await world.store.mark_damaged("child", "hash of seq 1")
        assert world.woken == ["parent"]
        assert await world.store.ready_runs() == ["parent"]
        ended = world.writer("ended")
        await ended.write("done", index=ENDED)
        orphan = world.writer("orphan")
        request = orphan.request("works")
        assert request.create is not None
        create = msgspec.structs.replace(request.create, parent_id="ended", root_id="ended")
        await world.store.append(msgspec.structs.replace(request, create=create))
        await world.store.mark_damaged("orphan", "hash of seq 1")
        assert world.woken == ["parent"]
