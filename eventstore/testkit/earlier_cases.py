"""What stands behind a key's row: effects that may have happened, or did, while another has the key."""

from __future__ import annotations

import msgspec

from ..port import ClaimTaken
from ..rules import EARLIER_MAX
from .ledger_cases import taken_back
from .log_writer import LogWriter, claim, settlement, waiting
from .world import KEY, World, each


class EarlierCases:
    """See ``contract.Contract``."""

    async def test_an_effect_taken_over_in_vain_is_back_as_it_was_left(self, world: World) -> None:
        """Who took it over proved that its own attempt did nothing, which says nothing of the first one."""
        first, second, third = await self.taken_over(world)
        await world.settled()
        world.woken.clear()
        await second.write("came to nothing", settlements=(settlement(KEY, "free"),))
        await world.settled()
        row = await world.store.ledger_row("acme", KEY)
        assert row is not None
        assert (row.run_id, row.call_id, row.status, row.epoch) == ("r1", "c1.0", "unknown", first.epoch)
        assert [one.run_id for one in await world.store.unknown_effects(None, 10)] == ["r1"]
        assert "r3" in await world.store.ready_runs(10)
        other = msgspec.structs.replace(claim(KEY), intent_sha256=b"o" * 32, over=("r1", "c1.0"))
        assert await third.append("another intent", claim=other) == ClaimTaken(row)
        await third.write("over again", claim=msgspec.structs.replace(claim(KEY), over=("r1", "c1.0")))

    async def test_of_many_takers_in_vain_each_leaves_the_one_before_it(self, world: World) -> None:
        first, second, third = await self.taken_over(world)
        await second.write("lost too", settlements=(settlement(KEY, "unknown"),))
        await third.write("over", claim=msgspec.structs.replace(claim(KEY), over=("r2", "c1.0")))
        held: list[tuple[str, str] | None] = []
        for log in (third, second, first):
            await log.write("never was", settlements=(settlement(KEY, "free"),))
            row = await world.store.ledger_row("acme", KEY)
            held.append(None if row is None else (row.run_id, row.status))
        assert held == [("r2", "unknown"), ("r1", "unknown"), None]

    async def test_an_earlier_effect_that_never_was_is_not_back(self, world: World) -> None:
        first, second, _ = await self.taken_over(world)
        await first.write("never was", settlements=(settlement(KEY, "free"),))
        row = await world.store.ledger_row("acme", KEY)
        assert row is not None
        assert (row.run_id, row.status) == ("r2", "in_flight")
        await second.write("came to nothing", settlements=(settlement(KEY, "free"),))
        assert await world.store.ledger_row("acme", KEY) is None

    async def test_an_earlier_effect_that_happened_is_back_as_that(self, world: World) -> None:
        """The word comes while another is at work; the key is that one's until it gives it up."""
        first, second, _ = await self.taken_over(world)
        late = taken_back(KEY, "c1.0")
        await first.write("it happened", settlements=(late,))
        row = await world.store.ledger_row("acme", KEY)
        assert row is not None
        assert (row.run_id, row.status) == ("r2", "in_flight")
        await second.write("came to nothing", settlements=(settlement(KEY, "free"),))
        row = await world.store.ledger_row("acme", KEY)
        assert row is not None
        assert (row.run_id, row.status, row.result) == ("r1", "succeeded", late.result)

    async def test_what_happened_is_known_although_the_one_who_took_it_over_is_lost(
        self, world: World
    ) -> None:
        first, second, third = await self.taken_over(world)
        await second.write("lost too", settlements=(settlement(KEY, "unknown"),))
        await first.write("it happened", settlements=(taken_back(KEY, "c1.0"),))
        row = await world.store.ledger_row("acme", KEY)
        assert row is not None
        assert (row.run_id, row.status) == ("r1", "succeeded")
        await second.write("never was", settlements=(settlement(KEY, "free"),))
        assert await world.store.ledger_row("acme", KEY) == row
        again = msgspec.structs.replace(claim(KEY), over=("r2", "c1.0"))
        assert await third.append("over", claim=again) == ClaimTaken(row)

    @each("left", "free", "waiting_approval", "rejected", "in_flight", "unknown", "succeeded")
    async def test_an_effect_that_happened_after_all_is_known_whoever_has_the_key(
        self, world: World, left: str
    ) -> None:
        """Its key had been given back as never used, and another intent has it by now."""
        first, second, third = world.writer("r1"), world.writer("r2"), world.writer("r3")
        await first.write("intent", claim=claim(KEY))
        await first.write("absent", settlements=(settlement(KEY, "free"),))
        kind = "approval" if left in ("waiting_approval", "rejected") else "intent"
        other = msgspec.structs.replace(claim(KEY, kind=kind), intent_sha256=b"o" * 32)
        if left != "free":
            await second.write("another intent", claim=other)
        if left not in ("free", "waiting_approval", "in_flight"):
            await second.write("and then", settlements=(settlement(KEY, left),))
        await third.write("waits", index=waiting(KEY))
        await world.settled()
        before = await world.store.ledger_row("acme", KEY)
        sent = msgspec.structs.replace(claim(KEY), attempt=2)
        late = msgspec.structs.replace(settlement(KEY, "succeeded"), sent=sent)
        await first.write("it happened", settlements=(late,))
        row = await world.store.ledger_row("acme", KEY)
        await world.settled()
        if left in ("in_flight", "unknown"):
            assert row == before
            await second.write("never was", settlements=(settlement(KEY, "free"),))
            row = await world.store.ledger_row("acme", KEY)
        elif left == "succeeded":
            assert row == before
            return
        assert row is not None
        assert (row.run_id, row.call_id, row.status) == ("r1", "c1.0", "succeeded")
        assert (row.attempt, row.tool, row.intent_sha256) == (2, "refund", sent.intent_sha256)
        assert row.result == late.result
        assert "r3" in await world.store.ready_runs(10)

    async def test_a_claim_finds_the_key_as_the_settlements_before_it_left_it(self, world: World) -> None:
        """The word that an effect had happened, and another call's claim of its key, come in one append."""
        log = world.writer()
        await log.write("intent", claim=claim(KEY))
        await log.write("absent", settlements=(settlement(KEY, "free"),))
        late = (taken_back(KEY, "c1.0"),)
        asked = await log.append("it happened", claim=claim(KEY, "c2.0"), settlements=late, settled_first=1)
        assert isinstance(asked, ClaimTaken)
        assert (asked.row.call_id, asked.row.status) == ("c1.0", "succeeded")
        assert await world.store.ledger_row("acme", KEY) is None

    async def test_an_effect_is_taken_over_so_often_and_then_waits_for_a_person(self, world: World) -> None:
        holder = world.writer("r0")
        await holder.write("intent", claim=claim(KEY))
        for number in range(1, EARLIER_MAX + 1):
            await holder.write("lost", settlements=(settlement(KEY, "unknown"),))
            over = msgspec.structs.replace(claim(KEY), over=(holder.run_id, "c1.0"))
            holder = world.writer(f"r{number}")
            await holder.write("over", claim=over)
        await holder.write("lost", settlements=(settlement(KEY, "unknown"),))
        over = msgspec.structs.replace(claim(KEY), over=(holder.run_id, "c1.0"))
        assert isinstance(await world.writer("rx").append("over", claim=over), ClaimTaken)

    async def taken_over(self, world: World) -> tuple[LogWriter, LogWriter, LogWriter]:
        """The first left its effect unknown, the second took it over and is at work, the third waits for the key."""
        first, second, third = world.writer("r1"), world.writer("r2"), world.writer("r3")
        await first.write("intent", claim=claim(KEY))
        await first.write("lost", settlements=(settlement(KEY, "unknown"),))
        await second.write("over", claim=msgspec.structs.replace(claim(KEY), over=("r1", "c1.0")))
        await third.write("waits", index=waiting(KEY))
        return first, second, third
