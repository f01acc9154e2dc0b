"""Hosts, their rows, and the runs that they have."""

from __future__ import annotations

import msgspec

from ...runtime.ledger import RunIndex
from ..port import HOST_VALID_MS, Acquired, Fenced, NotFound, Owned
from .log_writer import LogWriter, claim, settlement, waiting
from .world import World

PARKED = RunIndex(status="suspended", waiting_for="approval:a1")


class OwnershipCases:
    """See ``contract.Contract``."""

    async def test_a_run_that_waits_for_several_keys_is_woken_by_any(self, world: World) -> None:
        """Also where it waits for a person besides, which is all that ``waiting_for`` tells of."""
        keys = tuple(bytes([number]) * 32 for number in range(3))
        holders = [world.writer(f"holder{number}") for number in range(3)]
        for holder, key in zip(holders, keys, strict=True):
            await holder.write("intent", claim=claim(key))
        index = RunIndex(status="open_calls", waiting_for="approval:a1", waiting_keys=keys)
        waiter = world.writer("waiter")
        await waiter.write("waits", index=index, release=True)
        row = await world.store.run("waiter")
        assert row is not None
        assert row.index == index
        await world.store.register_host(world.host("h1"))
        for number in (2, 0):
            assert await world.store.ready_runs() == []
            await holders[number].write("no effect", settlements=(settlement(keys[number], "free"),))
            assert await world.store.ready_runs() == ["waiter"]
            acquired = await world.store.acquire("waiter", "h1")
            assert isinstance(acquired, Acquired)
            left = msgspec.structs.replace(index, waiting_keys=keys[1:2] if number == 0 else keys[:2])
            waiter.epoch = acquired.epoch
            await waiter.write("looked", index=left, release=True)
        await waiter.write("given up", index=msgspec.structs.replace(index, waiting_keys=()))
        await holders[1].write("done", settlements=(settlement(keys[1], "succeeded"),))
        assert await world.store.ready_runs() == []

    async def test_no_wake_is_lost_for_a_second_key(self, world: World) -> None:
        """It was settled between the refused claim and the append that says that the run waits for it."""
        one, two = b"1" * 32, b"2" * 32
        for key, name in ((one, "h1"), (two, "h2")):
            await world.writer(name).write("intent", claim=claim(key))
        waiter = world.writer("waiter")
        await waiter.write("waits", index=waiting(one))
        second = LogWriter(world.store, "h2", seq=1, head=(await world.store.read("h2"))[0].hash)
        await second.write("done", settlements=(settlement(two, "succeeded"),))
        both = msgspec.structs.replace(waiting(one), waiting_keys=(one, two))
        await waiter.write("waits for both", index=both, release=True)
        assert await world.store.ready_runs() == ["waiter"]

    async def test_who_has_the_run_already_gets_it_under_a_new_epoch(self, world: World) -> None:
        """The answer to its first ``acquire`` was lost."""
        await world.store.register_host(world.host("h1"))
        log = world.writer()
        await log.write("one", release=True, ready=True)
        first = await world.store.acquire("r1", "h1")
        second = await world.store.acquire("r1", "h1")
        assert isinstance(first, Acquired)
        assert isinstance(second, Acquired)
        assert (second.epoch, second.died) == (first.epoch + 1, False)
        log.epoch = first.epoch
        assert await log.append("two") == Fenced(second.epoch)
        log.epoch = second.epoch
        await log.write("two")

    async def test_a_live_owner_keeps_its_run(self, world: World) -> None:
        await world.store.register_host(world.host("h1"))
        await world.writer(host_id="h1").write("one")
        answer = await world.store.acquire("r1", "h2")
        assert isinstance(answer, Owned)
        assert (answer.by.host_id, answer.by.expires_at_ms) == ("h1", world.clock() + HOST_VALID_MS)
        assert await world.store.acquire("nobody", "h2") == NotFound()

    async def test_an_expired_owner_loses_its_run(self, world: World) -> None:
        await world.store.register_host(world.host("h1"))
        log = world.writer(host_id="h1")
        await log.write("one")
        world.clock.advance(HOST_VALID_MS - 1)
        assert await world.store.ready_runs() == []
        assert isinstance(await world.store.acquire("r1", "h2"), Owned)
        world.clock.advance(1)
        assert await world.store.ready_runs() == ["r1"]
        assert await world.store.acquire("r1", "h2") == Acquired(2, 1, log.head, died=True)

    async def test_of_two_expired_hosts_the_one_that_takes_a_run_keeps_it(self, world: World) -> None:
        """After a jump of the clock every row has expired, and nobody has had time to renew its own."""
        for host in ("h1", "h2"):
            await world.store.register_host(world.host(host))
        await world.writer(host_id="h1").write("one")
        world.clock.advance(10 * HOST_VALID_MS)
        assert isinstance(await world.store.acquire("r1", "h2"), Acquired)
        assert await world.store.ready_runs() == []
        answer = await world.store.acquire("r1", "h1")
        assert isinstance(answer, Owned)
        assert (answer.by.host_id, answer.by.expires_at_ms) == ("h2", world.clock() + HOST_VALID_MS)

    async def test_taking_a_run_makes_no_row_for_a_host_without_one(self, world: World) -> None:
        await world.writer(host_id="h1").write("one")
        assert isinstance(await world.store.acquire("r1", "h2"), Acquired)
        assert await world.store.hosts() == []

    async def test_renewal_keeps_a_host_alive(self, world: World) -> None:
        await world.store.register_host(world.host("h1"))
        await world.writer(host_id="h1").write("one")
        world.clock.advance(HOST_VALID_MS - 1)
        assert await world.store.renew_host("h1")
        world.clock.advance(HOST_VALID_MS - 1)
        assert isinstance(await world.store.acquire("r1", "h2"), Owned)
        assert not await world.store.renew_host("h2")

    async def test_a_dropped_host_gives_its_runs_back(self, world: World) -> None:
        for host in ("h1", "h2"):
            await world.store.register_host(world.host(host))
        await world.writer("r1", host_id="h1").write("one")
        await world.writer("r2", host_id="h2").write("one")
        await world.store.drop_host("h1")
        assert [host.host_id for host in await world.store.hosts()] == ["h2"]
        assert await world.store.ready_runs() == ["r1"]
        assert not await world.store.renew_host("h1")
        answer = await world.store.acquire("r1", "h2")
        assert isinstance(answer, Acquired)
        assert not answer.died
        await world.settled()
        assert world.woken == ["r1"]

    async def test_who_takes_a_run_of_a_dead_host_is_told_of_the_death(self, world: World) -> None:
        await world.store.register_host(world.host("h1"))
        await world.writer("r1", host_id="h1").write("one")
        await world.store.drop_host("h1", died=True)
        assert await world.store.hosts() == []
        assert await world.store.ready_runs() == ["r1"]
        answer = await world.store.acquire("r1", "h2")
        assert isinstance(answer, Acquired)
        assert answer.died
        await world.settled()
        assert world.woken == ["r1"]

    async def test_release_by_the_owner_only(self, world: World) -> None:
        await world.store.register_host(world.host("h1"))
        await world.writer(host_id="h1").write("one")
        await world.store.release("r1", "h2", 1, ready=True)
        await world.store.release("r1", "h1", 9, ready=True)
        await world.store.release("nobody", "h1", 1, ready=True)
        assert isinstance(await world.store.acquire("r1", "h2"), Owned)
        await world.store.release("r1", "h1", 1, ready=True)
        assert await world.store.ready_runs() == ["r1"]
        answer = await world.store.acquire("r1", "h2")
        assert isinstance(answer, Acquired)
        assert not answer.died
        assert await world.store.ready_runs() == ["r1"]  # h2 has no owner row, so it is no live host
        await world.store.register_host(world.host("h2"))
        assert await world.store.ready_runs() == []
        await world.store.release("r1", "h2", answer.epoch, ready=False)
        assert await world.store.ready_runs() == []

    async def test_a_parked_run_has_no_owner(self, world: World) -> None:
        await world.store.register_host(world.host("h1"))
        await world.writer(host_id="h1").write("parks", index=PARKED, release=True)
        row = await world.store.run("r1")
        assert row is not None
        assert (row.owner, row.ready) == ("", False)
        assert isinstance(await world.store.acquire("r1", "h2"), Acquired)
