"""A store's own upkeep."""

from __future__ import annotations

import msgspec

from ...runtime.errors import RunNotFound
from ...runtime.ledger import RunIndex
from ..port import RunFilter
from ..upkeep import EarlierRow, Upkeep
from .log_writer import ENDED, OPEN, claim, settlement, waiting
from .world import KEY, World, refused


def upkeep_of(world: World) -> Upkeep:
    """The store, which must have it."""
    assert isinstance(world.store, Upkeep)
    return world.store


def _place(rows: list[EarlierRow]) -> tuple[str, bytes, int] | None:
    return (rows[-1].row.tenant, rows[-1].row.key, rows[-1].place) if rows else None


class UpkeepCases:
    """See ``contract.Contract``."""

    async def test_an_index_row_is_written_anew(self, world: World) -> None:
        log = world.writer("r1", host_id="h1")
        await log.write("one", index=waiting(KEY))
        await world.writer("r2").write("one")
        row = await world.store.run("r1")
        assert row is not None
        for index in (
            RunIndex(status="suspended", outcome="incomplete", waiting_for="person:c1"),
            OPEN,
            ENDED,
        ):
            told = msgspec.structs.replace(
                row,
                tenant="other",
                agent="clerk",
                operation_id="op2",
                parent_id="r0",
                root_id="r0",
                created_at_ms=5,
                updated_at_ms=row.updated_at_ms + 7,
                epoch=3,
                index=index,
                damaged="not this",
                owner="nor this",
            )
            assert await upkeep_of(world).reindex(told)
            found = await world.store.run("r1")
            assert found is not None
            kept = msgspec.structs.replace(told, damaged="", owner="h1", ready=found.ready)
            assert found == kept
            where = RunFilter(tenant="other", status=index.status, updated_since_ms=told.updated_at_ms)
            assert [one.run_id for one in await world.store.runs(where)] == ["r1"]
            assert await upkeep_of(world).astray() == []
        assert [one.run_id for one in await world.store.runs(RunFilter(tenant="acme"))] == ["r2"]

    async def test_no_log_is_lost_while_each_has_its_row(self, world: World) -> None:
        await world.writer("r1").write("one")
        assert await upkeep_of(world).lost_logs() == []
        assert not await upkeep_of(world).adopt(1, "r1")
        assert not await upkeep_of(world).adopt(1, "r2")
        assert not await upkeep_of(world).adopt(99, "r2")
        assert await world.store.run("r2") is None

    async def test_runs_are_given_in_the_order_in_which_they_were_made(self, world: World) -> None:
        names = ["r3", "r1", "r2", "r0"]
        for name in names:
            await world.writer(name).write("one")
        found: list[str] = []
        while page := await upkeep_of(world).runs_in_order(found[-1] if found else "", 3):
            found += [row.run_id for row in page]
        assert found == names
        assert await upkeep_of(world).runs_in_order(limit=1) == [await world.store.run("r3")]
        with refused(RunNotFound):
            await upkeep_of(world).runs_in_order("nobody")

    async def test_blobs_and_what_stands_behind_a_key_are_listed_in_order(self, world: World) -> None:
        made = sorted([await world.store.put_blob(bytes([number])) for number in range(5)])
        names: list[bytes] = []
        while page := await upkeep_of(world).blob_names(names[-1] if names else b"", 2):
            names += page
        assert names == made
        for key in (b"a" * 32, b"b" * 32):
            over: tuple[str, str] | None = None
            for number in range(3):
                log = world.writer(f"{key[:1].decode()}{number}")
                await log.write("sent", claim=msgspec.structs.replace(claim(key), over=over))
                await log.write("lost", settlements=(settlement(key, "unknown"),))
                over = log.run_id, "c1.0"
        behind: list[EarlierRow] = []
        while rows := await upkeep_of(world).earlier_rows(_place(behind), 2):
            behind += rows
        assert [(one.place, one.row.run_id) for one in behind] == [(0, "a0"), (1, "a1"), (0, "b0"), (1, "b1")]
        assert {one.row.status for one in behind} == {"unknown"}

    async def test_nothing_stands_behind_an_effect_that_has_happened(self, world: World) -> None:
        first, second = world.writer("r1"), world.writer("r2")
        await first.write("sent", claim=claim(KEY))
        await first.write("lost", settlements=(settlement(KEY, "unknown"),))
        await second.write("over", claim=msgspec.structs.replace(claim(KEY), over=("r1", "c1.0")))
        assert len(await upkeep_of(world).earlier_rows()) == 1
        await second.write("done", settlements=(settlement(KEY, "succeeded"),))
        assert await upkeep_of(world).earlier_rows() == []

    async def test_an_index_row_is_of_the_seq_and_head_that_it_was_made_from(self, world: World) -> None:
        log = world.writer("r1")
        await log.write("one")
        row = await world.store.run("r1")
        assert row is not None
        await log.write("two")
        assert not await upkeep_of(world).reindex(msgspec.structs.replace(row, tenant="other"))
        now = await world.store.run("r1")
        assert now is not None
        assert now.tenant == "acme"
        assert not await upkeep_of(world).reindex(msgspec.structs.replace(now, head=b"x" * 32))
        assert not await upkeep_of(world).reindex(msgspec.structs.replace(now, run_id="nobody"))

    async def test_a_run_whose_index_row_is_written_is_ready_and_goes_on(self, world: World) -> None:
        log = world.writer("r1")
        await log.write("one", index=RunIndex(status="suspended", outcome="incomplete"))
        ended = world.writer("r2")
        await ended.write("one", index=ENDED)
        for run_id in ("r1", "r2"):
            row = await world.store.run(run_id)
            assert row is not None
            assert await upkeep_of(world).reindex(row)
        assert await world.store.ready_runs() == ["r1"]
        assert world.woken == ["r1"]
        # Neither a newer epoch that the run has, nor its writer's place is lost.
        await world.store.register_host(world.host("h1"))
        await world.store.acquire("r1", "h1")
        row = await world.store.run("r1")
        assert row is not None
        assert await upkeep_of(world).reindex(msgspec.structs.replace(row, epoch=1))
        log.epoch = 2
        await log.write("two")
