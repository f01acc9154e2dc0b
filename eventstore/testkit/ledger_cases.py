"""The effect ledger: claims, settlements, and who holds a key."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec

from ...runtime.errors import BugError
from ...runtime.ledger import Settlement
from ..chain import append_hash
from ..port import APPEND_SCHEMA_VERSION, Append, ClaimTaken, Conflict, Fenced
from .log_writer import claim, settlement
from .world import KEY, World, refused


def _hashed(request: Append, **changed: Any) -> Append:
    """The request with other fields and the hash that fits them."""
    request = msgspec.structs.replace(request, **changed)
    digest = append_hash(
        request.prev_hash,
        request.run_id,
        request.expected_seq + 1,
        request.event_count,
        request.epoch,
        request.at_ms,
        request.append_id,
        request.causation,
        APPEND_SCHEMA_VERSION,
        request.body,
    )
    return msgspec.structs.replace(request, hash=digest)


def taken_back(key: bytes, call_id: str, *, tenant: str = "acme") -> Settlement:
    """A settlement of ``KEY`` that would take this one back."""
    sent = claim(key, call_id, tenant=tenant)
    return msgspec.structs.replace(settlement(KEY, "succeeded"), sent=sent)


class LedgerCases:
    """See ``contract.Contract``."""

    async def test_a_claim_takes_a_free_key(self, world: World) -> None:
        await world.writer().write("intent", claim=claim(KEY))
        row = await world.store.ledger_row("acme", KEY)
        assert row is not None
        assert (row.status, row.run_id, row.call_id, row.tool, row.epoch) == (
            "in_flight",
            "r1",
            "c1.0",
            "refund",
            1,
        )
        assert (row.attempt, row.valid_until_ms, row.at_ms) == (1, 99, world.clock())
        assert await world.store.ledger_row("other", KEY) is None

    async def test_a_held_key_refuses_the_whole_append(self, world: World) -> None:
        await world.writer("r1").write("intent", claim=claim(KEY))
        held = await world.store.ledger_row("acme", KEY)
        assert held is not None
        second = world.writer("r2")
        await second.write("start")
        assert await second.append("intent", claim=claim(KEY)) == ClaimTaken(held)
        assert await second.append("intent", claim=claim(KEY, "c2.0")) == ClaimTaken(held)
        assert len(await world.store.read("r2")) == 1
        await second.write("waits instead")
        stranger = world.writer("r3", tenant="other")
        await stranger.write("another tenant's", claim=claim(KEY, tenant="other"))

    async def test_a_claim_stands_among_the_settlements_where_its_event_does(self, world: World) -> None:
        """An effect that was found absent is sent again: freed, then taken. One that was asked for and closed in the
        same append: taken, then freed. And one call of a run may free what another takes."""
        log = world.writer()
        freed = (settlement(KEY, "free"),)
        await log.write("intent", claim=claim(KEY))
        await log.write("absent, again", claim=claim(KEY), settlements=freed, settled_first=1)
        row = await world.store.ledger_row("acme", KEY)
        assert row is not None
        assert row.status == "in_flight"
        await log.write("absent, another", claim=claim(KEY, "c2.0"), settlements=freed, settled_first=1)
        row = await world.store.ledger_row("acme", KEY)
        assert row is not None
        assert row.call_id == "c2.0"
        second = world.writer("r2")
        await second.write("start")
        asked = await second.append("again", claim=claim(KEY), settlements=freed, settled_first=1)
        assert asked == ClaimTaken(row)  # it isn't its own to free
        gone = (settlement(KEY, "free", "c2.0"),)
        await log.write("asked and closed", claim=claim(KEY, "c2.0", kind="approval"), settlements=gone)
        assert await world.store.ledger_row("acme", KEY) is None

    async def test_a_run_may_claim_and_settle_keys_of_its_own_tenant_only(self, world: World) -> None:
        log = world.writer()
        for fields in (
            {"claim": claim(KEY, tenant="other")},
            {"settlements": (settlement(KEY, "free", tenant="other"),)},
            {"settlements": (taken_back(KEY, "c1.0", tenant="other"),)},
            {"settlements": (taken_back(b"o" * 32, "c1.0"),)},
            {"settlements": (taken_back(KEY, "c2.0"),)},
        ):
            for _ in range(2):  # as the run's first append and as a later one
                with refused(BugError):
                    await log.append("one", **fields)
                if log.seq == 0:
                    await log.write("start")
        assert await world.store.ledger_row("other", KEY) is None

    async def test_time_does_not_fall_within_a_run(self, world: World) -> None:
        log = world.writer()
        await log.write("one")
        ghost = log.fork()
        ghost.at_ms -= 1
        with refused(BugError):
            await ghost.append("two")
        await log.write("two")
        assert isinstance(
            await ghost.append("two, late"), Conflict
        )  # not its run any more: no bug of the caller's
        assert [row.at_ms for row in await world.store.read("r1")] == [log.at_ms] * 2

    async def test_the_first_row_follows_nothing_and_a_row_holds_what_it_says(self, world: World) -> None:
        request = world.writer().request("one")
        for wrong in (
            _hashed(request, prev_hash=b"p" * 32),
            _hashed(request, event_count=2),
            _hashed(request, body=b"\xa3abc"),
            _hashed(request, body=b""),
        ):
            with refused(BugError):
                await world.store.append(wrong)
        many = world.writer("r2")
        await many.write(*("x" * number for number in range(20)))
        assert await world.store.read("r1") == []

    async def test_the_ledger_is_listed_in_pages(self, world: World) -> None:
        for number in range(5):
            tenant = "acme" if number % 2 else "other"
            log = world.writer(f"r{number}", tenant=tenant)
            await log.write("intent", claim=claim(bytes([number]) * 32, tenant=tenant))
        rows = await world.store.ledger_rows()
        assert [(row.tenant, row.key[0]) for row in rows] == [
            ("acme", 1),
            ("acme", 3),
            ("other", 0),
            ("other", 2),
            ("other", 4),
        ]
        assert await world.store.ledger_rows(("acme", b"\x03" * 32), 2) == rows[2:4]

    async def test_the_holder_may_claim_again_until_it_succeeded(self, world: World) -> None:
        log = world.writer()
        await log.write("asks", claim=claim(KEY, kind="approval"))
        row = await world.store.ledger_row("acme", KEY)
        assert row is not None
        assert row.status == "waiting_approval"
        await log.write("intent", claim=claim(KEY))
        await log.write("lost", settlements=(settlement(KEY, "unknown"),))
        await log.write("again", claim=claim(KEY))
        await log.write("done", settlements=(settlement(KEY, "succeeded"),))
        done = await world.store.ledger_row("acme", KEY)
        assert done is not None
        assert await log.append("once more", claim=claim(KEY)) == ClaimTaken(done)
        assert (done.status, done.result, done.result_sha256) == (
            "succeeded",
            b'{"refunded":true}',
            sha256(b'{"refunded":true}').digest(),
        )

    async def test_an_unknown_effect_is_taken_over_from_its_named_holder_alone(self, world: World) -> None:
        holder = world.writer("r1")
        await holder.write("intent", claim=claim(KEY))
        over = msgspec.structs.replace(claim(KEY), over=("r1", "c1.0"))
        second = world.writer("r2")
        await second.write("start")
        assert isinstance(await second.append("in flight", claim=over), ClaimTaken)
        await holder.write("lost", settlements=(settlement(KEY, "unknown"),))
        held = await world.store.ledger_row("acme", KEY)
        assert held is not None
        for other in (
            claim(KEY),
            msgspec.structs.replace(over, over=("r0", "c1.0")),
            msgspec.structs.replace(over, over=("r1", "c1.1")),
            msgspec.structs.replace(over, intent_sha256=b"o" * 32),
        ):
            assert await second.append("intent", claim=other) == ClaimTaken(held)
        await second.write("intent", claim=over)
        taken = await world.store.ledger_row("acme", KEY)
        assert taken is not None
        assert (taken.run_id, taken.status) == ("r2", "in_flight")
        await holder.write("late word", settlements=(settlement(KEY, "succeeded"),))
        assert await world.store.ledger_row("acme", KEY) == taken

    async def test_fencing_comes_before_a_taken_claim(self, world: World) -> None:
        await world.writer("r1").write("intent", claim=claim(KEY))
        log = world.writer("r2")
        await log.write("one")
        ghost = log.fork()
        await world.store.acquire("r2", "h2")
        assert await ghost.append("intent", claim=claim(KEY)) == Fenced(2)

    async def test_a_free_settlement_frees_the_key(self, world: World) -> None:
        log = world.writer()
        await log.write("intent", claim=claim(KEY))
        await log.write("refused by the far side", settlements=(settlement(KEY, "free"),))
        assert await world.store.ledger_row("acme", KEY) is None
        await world.writer("r2").write("intent", claim=claim(KEY))

    async def test_only_the_holder_settles(self, world: World) -> None:
        await world.writer("r1").write("intent", claim=claim(KEY))
        other = world.writer("r2")
        await other.write("not mine", settlements=(settlement(KEY, "free"),))
        same_run = world.writer("r3")
        await same_run.write("no row", settlements=(settlement(b"z" * 32, "succeeded"),))
        row = await world.store.ledger_row("acme", KEY)
        assert row is not None
        assert row.status == "in_flight"
        assert await world.store.ledger_row("acme", b"z" * 32) is None

    async def test_a_refused_append_changes_nothing(self, world: World) -> None:
        log = world.writer()
        await log.write("one")
        rival = log.fork()
        await log.write("two")
        answer = await rival.append(
            "other",
            append_id=b"rival",
            claim=claim(KEY),
            wake_runs=("r1",),
            blobs=((sha256(b"data").digest(), b"data"),),
        )
        assert answer == Conflict(2)
        assert await world.store.ledger_row("acme", KEY) is None
        assert await world.store.get_blob(sha256(b"data").digest()) is None
        assert await world.store.ready_runs() == []
        assert world.woken == []

    async def test_unknown_effects_are_listed_oldest_first(self, world: World) -> None:
        for number, tenant in enumerate(("acme", "other", "acme")):
            log = world.writer(f"r{number}", tenant=tenant)
            key = bytes([number]) * 32
            await log.write("intent", claim=claim(key, tenant=tenant))
            world.clock.advance(1)
            await log.write("lost", settlements=(settlement(key, "unknown", tenant=tenant),))
        assert [row.run_id for row in await world.store.unknown_effects()] == ["r0", "r1", "r2"]
        assert [row.run_id for row in await world.store.unknown_effects("acme")] == ["r0", "r2"]
        assert [row.run_id for row in await world.store.unknown_effects(limit=1)] == ["r0"]
