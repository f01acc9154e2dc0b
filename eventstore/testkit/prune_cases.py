"""Runs whose logs make room."""

from __future__ import annotations

import msgspec

from ...runtime.ledger import RunIndex
from ..port import ClaimTaken, Fenced, RunFilter, RunRow
from .log_writer import ENDED, OPEN, LogWriter, claim, settlement
from .upkeep_cases import upkeep_of
from .world import KEY, World

HOUR_MS = 3_600_000


async def _row(world: World, run_id: str) -> RunRow:
    row = await world.store.run(run_id)
    assert row is not None
    return row


async def _ended(world: World, run_id: str, root_id: str = "") -> LogWriter:
    log = world.writer(run_id)
    log.root_id = root_id
    await log.write("one", "two")
    await log.write("end", index=ENDED)
    return log


class PruneCases:
    """See ``contract.Contract``."""

    async def test_of_a_pruned_run_the_row_stays_and_the_log_goes(self, world: World) -> None:
        log = await _ended(world, "r1")
        other = await _ended(world, "r2")
        before = await _row(world, "r1")
        assert before.pruned_at_ms == 0
        assert await upkeep_of(world).prune("r1", log.seq, log.head)
        after = await _row(world, "r1")
        assert after.pruned_at_ms >= before.updated_at_ms > 0
        assert after == msgspec.structs.replace(
            before, pruned_at_ms=after.pruned_at_ms, epoch=before.epoch + 1
        )
        assert await world.store.read("r1") == []
        assert len(await world.store.read("r2")) == 2
        assert [row.run_id for row in await world.store.runs(RunFilter(outcome="completed"))] == ["r2", "r1"]
        assert [row.run_id for row in await world.store.runs(RunFilter(after="r1"))] == []
        # Once and for all, and its writer has nothing to follow.
        assert not await upkeep_of(world).prune("r1", log.seq, log.head)
        assert await log.append("late", index=ENDED) == Fenced(before.epoch + 1)
        assert await other.append("late", index=ENDED) != Fenced(before.epoch + 1)

    async def test_a_key_is_found_when_the_run_that_had_it_is_pruned(self, world: World) -> None:
        log = world.writer("r1")
        await log.write("sent", claim=claim(KEY))
        await log.write("done", settlements=(settlement(KEY, "succeeded"),), index=ENDED)
        row = await world.store.ledger_row("acme", KEY)
        assert await upkeep_of(world).prune("r1", log.seq, log.head)
        assert await world.store.ledger_row("acme", KEY) == row
        late = world.writer("r2")
        answer = await late.append("again", claim=claim(KEY))
        assert isinstance(answer, ClaimTaken)
        assert answer.row == row

    async def test_only_what_has_ended_as_it_was_seen_is_pruned(self, world: World) -> None:
        prune = upkeep_of(world).prune
        log = world.writer("r1")
        await log.write("one", index=OPEN)
        assert not await prune("r1", log.seq, log.head)
        await log.write("stops", index=RunIndex(status="suspended", outcome="incomplete"))
        assert not await prune("r1", log.seq, log.head)
        await log.write("end", index=ENDED)
        assert not await prune("r1", log.seq - 1, log.head)
        assert not await prune("r1", log.seq, b"x" * 32)
        assert not await prune("nobody", log.seq, log.head)
        await world.store.mark_damaged("r1", "hash of seq 1")
        assert not await prune("r1", log.seq, log.head)
        assert len(await world.store.read("r1")) == 3

    async def test_no_run_of_a_tree_is_pruned_before_the_last_has_ended(self, world: World) -> None:
        prune = upkeep_of(world).prune
        top = world.writer("top")
        top.root_id = "top"
        await top.write("one")
        below = await _ended(world, "below", "top")
        beside = world.writer("beside")
        beside.root_id = "top"
        await beside.write("one")
        assert not await prune("below", below.seq, below.head)
        await top.write("end", index=ENDED)
        assert not await prune("below", below.seq, below.head)
        assert not await prune("top", top.seq, top.head)
        await beside.write("end", index=ENDED)
        for log in (below, top, beside):
            assert await prune(log.run_id, log.seq, log.head)

    async def test_a_run_under_a_top_that_names_no_root_waits_for_it_too(self, world: World) -> None:
        top = world.writer("top")
        await top.write("one")
        below = await _ended(world, "below", "top")
        assert not await upkeep_of(world).prune("below", below.seq, below.head)
        await top.write("end", index=ENDED)
        assert await upkeep_of(world).prune("below", below.seq, below.head)

    async def test_a_run_whose_top_has_no_row_is_never_pruned(self, world: World) -> None:
        # The row can be restored from its log, and may be that of a run that goes on.
        below = await _ended(world, "below", "top")
        assert not await upkeep_of(world).prune("below", below.seq, below.head)
        assert len(await world.store.read("below")) == 2
        # A top that was pruned before is there.
        top = await _ended(world, "top", "top")
        for log in (top, below):
            assert await upkeep_of(world).prune(log.run_id, log.seq, log.head)

    async def test_a_run_with_an_effect_of_which_nobody_knows_is_never_pruned(self, world: World) -> None:
        prune = upkeep_of(world).prune
        log = world.writer("r1")
        await log.write("sent", claim=claim(KEY))
        await log.write("lost", settlements=(settlement(KEY, "unknown"),), index=ENDED)
        assert not await prune("r1", log.seq, log.head)
        # Nor while its row stands behind another's.
        over = world.writer("r2")
        await over.write("over", claim=msgspec.structs.replace(claim(KEY), over=("r1", "c1.0")))
        assert not await prune("r1", log.seq, log.head)
        await over.write("done", settlements=(settlement(KEY, "succeeded"),), index=ENDED)
        assert await prune("r1", log.seq, log.head)
        assert await prune("r2", over.seq, over.head)

    async def test_blobs_go_but_for_those_put_lately(self, world: World) -> None:
        store, drop = world.store, upkeep_of(world).drop_blobs
        old = await store.put_blob(b"old")
        again = await store.put_blob(b"again" * 100_000)
        world.clock.advance(3 * HOUR_MS)
        since = world.clock.at_ms - HOUR_MS
        assert await store.put_blob(b"again" * 100_000) == again
        log = world.writer("r1")
        log.at_ms = world.clock.at_ms
        await log.write("x" * 20_000)
        new = [name for name in await upkeep_of(world).blob_names() if name not in (old, again)]
        assert len(new) == 1
        assert await drop([old, again, *new, b"n" * 32], put_before_ms=since) == 1
        assert await upkeep_of(world).blob_names() == sorted([again, *new])
        assert await store.get_blob(old) is None
        assert await store.get_blob(again) == b"again" * 100_000
        # What was removed can be put again.
        assert await store.put_blob(b"old") == old
        assert await store.get_blob(old) == b"old"
        assert await drop([again], put_before_ms=world.clock.at_ms + 1) == 1
        assert await store.put_blob(b"again" * 100_000) == again
        assert await store.get_blob(again) == b"again" * 100_000

    async def test_a_blob_put_with_an_append_counts_as_put(self, world: World) -> None:
        log = world.writer("r1")
        await log.write("x" * 20_000)
        [name] = await upkeep_of(world).blob_names()
        world.clock.advance(5 * HOUR_MS)
        other = world.writer("r2")
        other.at_ms = log.at_ms
        request = log.request("y")
        data = await world.store.get_blob(name)
        assert data is not None
        assert type(
            await world.store.append(msgspec.structs.replace(request, blobs=((name, data),)))
        ).__name__
        since = world.clock.at_ms - HOUR_MS
        assert await upkeep_of(world).drop_blobs([name], put_before_ms=since) == 0
