"""What every store answers. A store's own test file subclasses ``StoreContract`` and says how it is opened."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from boundloop.eventstore import chain
from boundloop.eventstore.chain import append_hash
from boundloop.eventstore.clock import FixedClock
from boundloop.eventstore.codec import resolve, spilled
from boundloop.eventstore.port import (
    APPEND_SCHEMA_VERSION,
    HOST_VALID_MS,
    Acquired,
    AlreadyDone,
    Append,
    Appended,
    ClaimTaken,
    Conflict,
    EventStore,
    Fenced,
    HostRow,
    NotFound,
    Owned,
    RunFilter,
    Switch,
)
from boundloop.eventstore.verify import verify_run, verify_store
from boundloop.runtime.errors import BugError, CallerError, ConflictError, RunNotFound, StoreError
from boundloop.runtime.ledger import RunIndex, Settlement

from .log_writer import ENDED, OPEN, LogWriter, an_event, claim, settlement, waiting

KEY = b"k" * 32


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
    return msgspec.structs.replace(settlement(KEY, "succeeded"), if_free=sent)


PARKED = RunIndex(status="suspended", waiting_for="approval:a1")


@dataclass
class World:
    """A store and what moves it: its clock, who hears of ready runs, who handles outside commands."""

    clock: FixedClock = field(default_factory=FixedClock)
    woken: list[str] = field(default_factory=list[str])
    submitted: list[tuple[str, str, bytes]] = field(default_factory=list[tuple[str, str, bytes]])
    refuse: StoreError | ConflictError | None = None
    store: EventStore = field(init=False)

    def on_ready(self, run_ids: object) -> None:
        assert isinstance(run_ids, list)
        self.woken += run_ids

    async def on_submit(self, run_id: str, command_id: str, command: bytes) -> bytes:
        self.submitted.append((run_id, command_id, command))
        if self.refuse is not None:
            raise self.refuse
        return b"answer to " + command

    def writer(self, run_id: str = "r1", host_id: str = "", tenant: str = "acme") -> LogWriter:
        return LogWriter(self.store, run_id, host_id, tenant)

    def host(self, host_id: str) -> HostRow:
        return HostRow(host_id=host_id, node="n1", pid=7, pid_start=70, boot_id="b")


class StoreContract:
    """Subclasses give ``opening``: a world whose store is open for the time of the block."""

    def opening(self, folder: str) -> AbstractAsyncContextManager[World]:
        raise NotImplementedError

    @pytest_asyncio.fixture
    async def world(self, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
        async with self.opening(str(tmp_path_factory.mktemp("store"))) as world:
            yield world

    # --- append ----------------------------------------------------------------------------------------------------

    async def test_append_then_read_gives_the_same_bytes(self, world: World) -> None:
        log = world.writer()
        first = log.request("one", "two")
        assert await world.store.append(first) == Appended(2, world.clock())
        log.follow(first)
        await log.write("three")
        rows = await world.store.read("r1")
        assert [(row.first_seq, row.event_count, row.epoch) for row in rows] == [(1, 2, 1), (3, 1, 1)]
        assert (rows[0].body, rows[0].hash, rows[0].append_id) == (first.body, first.hash, first.append_id)
        assert (rows[0].at_ms, rows[0].causation, rows[0].schema_version) == (log.at_ms, "test", 1)
        records = await resolve(rows, world.store.get_blob)
        assert [(record.seq, record.event) for record in records] == [
            (1, an_event("one")),
            (2, an_event("two")),
            (3, an_event("three")),
        ]

    async def test_the_run_row_follows_its_log(self, world: World) -> None:
        assert await world.store.run("r1") is None
        log = world.writer(host_id="h1")
        await log.write("one")
        log.at_ms += 5
        await log.write("two", index=PARKED)
        row = await world.store.run("r1")
        assert row is not None
        assert (row.seq, row.epoch, row.head, row.index) == (2, 1, log.head, PARKED)
        assert (row.tenant, row.agent, row.operation_id, row.owner) == ("acme", "agent", "op", "h1")
        assert (row.created_at_ms, row.updated_at_ms, row.ready) == (log.at_ms - 5, log.at_ms, False)

    async def test_texts_come_back_whatever_they_hold(self, world: World) -> None:
        texts = ("", "a\0b", "\x1a", "\x1a0\x1a1\0", "\u202e\U0001f600 '\"\\\n")
        for number, text in enumerate(texts):
            log = world.writer(f"r{number}{text}", host_id=f"h{text}", tenant=text)
            index = RunIndex(status="open_calls", outcome=text, reason=text, waiting_for=f"approval:{text}")
            await log.write(text, index=index, claim=claim(KEY, f"c{text}", tenant=text))
            row = await world.store.run(log.run_id)
            assert row is not None
            assert (row.run_id, row.tenant, row.owner, row.index) == (log.run_id, text, log.host_id, index)
            held = await world.store.ledger_row(text, KEY)
            assert held is not None
            assert (held.tenant, held.run_id, held.call_id) == (text, log.run_id, f"c{text}")
            listed = await world.store.runs(RunFilter(waiting_for_prefix=f"approval:{text}", tenant=text))
            assert [one.run_id for one in listed] == [log.run_id]
            switch = Switch(scope="tenant", target=text, by=text, reason=text, at_ms=1)
            await world.store.set_switch(switch, on=True)
            assert world.store.switches_known() == (switch,)
            await world.store.set_switch(switch, on=False)
            await world.store.mark_damaged(log.run_id, f"hash {text}")
            damaged = await world.store.run(log.run_id)
            assert damaged is not None
            assert damaged.damaged == f"hash {text}"

    async def test_read_takes_ranges(self, world: World) -> None:
        log = world.writer()
        for number in range(5):
            await log.write(f"{number}a", f"{number}b")
        read = world.store.read
        assert [row.first_seq for row in await read("r1", after_seq=4)] == [5, 7, 9]
        assert [row.first_seq for row in await read("r1", after_seq=1, rows_max=2)] == [3, 5]
        assert await read("r1", after_seq=10) == []
        assert await read("nobody") == []

    async def test_the_same_append_again_is_already_done(self, world: World) -> None:
        log = world.writer()
        first = log.request("one", "two")
        await world.store.append(first)
        assert await world.store.append(first) == AlreadyDone(2, world.clock())
        log.follow(first)
        await log.write("three")
        assert isinstance(await world.store.append(first), AlreadyDone)
        assert len(await world.store.read("r1")) == 2

    async def test_another_append_in_a_taken_place_is_a_conflict(self, world: World) -> None:
        log = world.writer()
        await log.write("one")
        rival = log.fork()
        await log.write("two", "three")
        assert await rival.append("other", append_id=b"rival") == Conflict(3)
        assert len(await world.store.read("r1")) == 2

    async def test_an_append_on_another_history_is_a_conflict(self, world: World) -> None:
        log = world.writer()
        await log.write("one")
        liar = log.fork()
        liar.head = b"x" * 32
        assert await liar.append("two") == Conflict(1)

    async def test_an_append_to_no_run_is_a_conflict(self, world: World) -> None:
        log = world.writer()
        log.seq, log.head = 4, b"x" * 32
        assert await log.append("five") == Conflict(0)
        assert await world.store.run("r1") is None

    async def test_creating_a_run_twice_is_a_conflict(self, world: World) -> None:
        await world.writer().write("one")
        assert await world.writer().append("another", append_id=b"another") == Conflict(1)

    async def test_a_late_append_of_an_old_epoch_is_fenced(self, world: World) -> None:
        await world.store.register_host(world.host("h1"))
        log = world.writer(host_id="h1")
        await log.write("one")
        ghost = log.fork()
        taken = await world.store.acquire("r1", "h2", dead_hosts=["h1"])
        assert taken == Acquired(2, 1, log.head, died=True)
        assert await ghost.append("late") == Fenced(2)
        log.epoch = 2
        await log.write("resumed")
        assert await ghost.append("later") == Fenced(2)

    async def test_a_ghost_is_fenced_even_if_its_append_was_committed(self, world: World) -> None:
        log = world.writer(host_id="h1")
        request = log.request("intent")
        await world.store.append(request)
        await world.store.acquire("r1", "h2")
        assert await world.store.append(request) == Fenced(2)

    async def test_an_epoch_from_the_future_is_a_conflict(self, world: World) -> None:
        log = world.writer()
        await log.write("one")
        log.epoch = 9
        assert await log.append("two") == Conflict(1)

    async def test_an_append_that_is_wrong_about_itself_is_a_bug(self, world: World) -> None:
        log = world.writer()
        right = log.request("one")
        for wrong in (
            {"hash": b"x" * 32},
            {"body": right.body + b"\0"},
            {"event_count": 2},
            {"at_ms": right.at_ms + 1},
            {"event_count": 0},
            {"create": None},
            {"body": b"\xc4" + b"x" * 20_000},
            {"blobs": ((b"y" * 32, b"not its name"),)},
        ):
            with pytest.raises(BugError):
                await world.store.append(msgspec.structs.replace(right, **wrong))
        assert await world.store.run("r1") is None
        assert isinstance(await world.store.append(right), Appended)

    async def test_a_long_body_goes_to_a_blob_with_its_row(self, world: World) -> None:
        log = world.writer()
        text = "long " * 200_000
        await log.write("short")
        await log.write(text, "after")
        rows = await world.store.read("r1")
        marker = spilled(rows[1].body)
        assert marker is not None
        assert len(rows[1].body) < 60
        records = await resolve(rows, world.store.get_blob)
        assert [record.event for record in records] == [an_event("short"), an_event(text), an_event("after")]
        assert (await verify_run(world.store, "r1")).ok

    async def test_a_thousand_appends_of_fifty_tasks_keep_every_log_whole(self, world: World) -> None:
        logs = [world.writer(f"r{number}") for number in range(50)]

        async def write(log: LogWriter) -> None:
            for number in range(20):
                await log.write(f"{log.run_id} {number}")

        await asyncio.gather(*(write(log) for log in logs))
        verdict = await verify_store(world.store)
        assert verdict.ok
        assert {run.run_id: (run.rows, run.head) for run in verdict.runs} == {
            log.run_id: (20, log.head) for log in logs
        }

    async def test_of_many_rivals_for_one_place_one_wins(self, world: World) -> None:
        log = world.writer()
        await log.write("one")
        rivals = [log.fork() for _ in range(50)]
        answers = await asyncio.gather(
            *(rival.append("two", append_id=f"{number}".encode()) for number, rival in enumerate(rivals))
        )
        assert sorted(type(answer).__name__ for answer in answers) == ["Appended"] + ["Conflict"] * 49
        assert len(await world.store.read("r1")) == 2

    async def test_a_bad_append_does_not_fail_its_mates(self, world: World) -> None:
        logs = [world.writer(f"r{number}") for number in range(10)]
        stale = world.writer("r3")
        stale.seq, stale.head = 7, b"x" * 32
        bad = stale.request("bad")
        answers = await asyncio.gather(
            *(log.append("one") for log in logs), world.store.append(bad), return_exceptions=True
        )
        assert [type(answer) for answer in answers] == [Appended] * 10 + [Conflict]

    async def test_cancelling_the_caller_leaves_the_store_whole(self, world: World) -> None:
        logs = [world.writer(f"r{number}") for number in range(20)]
        requests = [log.request("one") for log in logs]
        tasks = [asyncio.ensure_future(world.store.append(request)) for request in requests]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for request in requests:  # a cancelled append is unknown: it is done, or it can be done now
            assert isinstance(await world.store.append(request), Appended | AlreadyDone)
        assert (await verify_store(world.store)).ok

    # --- the ledger ------------------------------------------------------------------------------------------------

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
                with pytest.raises(BugError):
                    await log.append("one", **fields)
                if log.seq == 0:
                    await log.write("start")
        assert await world.store.ledger_row("other", KEY) is None

    async def test_time_does_not_fall_within_a_run(self, world: World) -> None:
        log = world.writer()
        await log.write("one")
        ghost = log.fork()
        ghost.at_ms -= 1
        with pytest.raises(BugError):
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
            with pytest.raises(BugError):
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

    async def test_a_blob_over_the_bound_is_the_callers_mistake(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(chain, "BLOB_BYTES_MAX", 10)
        with pytest.raises(CallerError) as caught:
            await world.store.put_blob(b"x" * 11)
        assert caught.value.code == "blob_too_large"
        assert await world.store.get_blob(await world.store.put_blob(b"x" * 10)) == b"x" * 10

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
        for refused in (
            claim(KEY),
            msgspec.structs.replace(over, over=("r0", "c1.0")),
            msgspec.structs.replace(over, over=("r1", "c1.1")),
            msgspec.structs.replace(over, intent_sha256=b"o" * 32),
        ):
            assert await second.append("intent", claim=refused) == ClaimTaken(held)
        await second.write("intent", claim=over)
        taken = await world.store.ledger_row("acme", KEY)
        assert taken is not None
        assert (taken.run_id, taken.status) == ("r2", "in_flight")
        await holder.write("late word", settlements=(settlement(KEY, "succeeded"),))
        assert await world.store.ledger_row("acme", KEY) == taken

    @pytest.mark.parametrize("left", ["free", "rejected", "in_flight"])
    async def test_an_effect_that_happened_after_all_takes_its_key_if_it_is_free(
        self, world: World, left: Any
    ) -> None:
        """Another took the unknown effect over; what became of that one says whether the key is free by now."""
        holder, second, third = world.writer("r1"), world.writer("r2"), world.writer("r3")
        await holder.write("intent", claim=claim(KEY))
        await holder.write("lost", settlements=(settlement(KEY, "unknown"),))
        await second.write("taken over", claim=msgspec.structs.replace(claim(KEY), over=("r1", "c1.0")))
        await second.write("came to nothing", settlements=(settlement(KEY, left),))
        await third.write("waits", index=waiting(KEY))
        await self.settled(world)
        before = await world.store.ledger_row("acme", KEY)
        sent = msgspec.structs.replace(claim(KEY), attempt=2)
        late = msgspec.structs.replace(settlement(KEY, "succeeded"), if_free=sent)
        await holder.write("it happened", settlements=(late,))
        row = await world.store.ledger_row("acme", KEY)
        await self.settled(world)
        if left == "in_flight":
            assert row == before
            return
        assert row is not None
        assert (row.run_id, row.call_id, row.status) == ("r1", "c1.0", "succeeded")
        assert (row.attempt, row.tool, row.intent_sha256) == (2, "refund", sent.intent_sha256)
        assert row.result == late.result
        assert "r3" in await world.store.ready_runs(10)

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

    # --- waking ----------------------------------------------------------------------------------------------------

    async def test_a_settlement_wakes_who_waits_for_the_key(self, world: World) -> None:
        holder = world.writer("holder")
        await holder.write("intent", claim=claim(KEY))
        await world.writer("waiter").write("waits", index=waiting(KEY), release=True)
        await world.writer("stranger", tenant="other").write("waits", index=waiting(KEY), release=True)
        await world.writer("elsewhere").write("waits", index=waiting(b"e" * 32), release=True)
        await self.settled(world)
        world.woken.clear()
        before = await world.store.ready_runs()
        await holder.write("done", settlements=(settlement(KEY, "succeeded"),))
        assert [run for run in await world.store.ready_runs() if run not in before] == ["waiter"]
        await self.settled(world)
        assert world.woken == ["waiter"]

    @pytest.mark.parametrize("to", ["succeeded", "unknown"])
    async def test_who_begins_to_wait_for_a_settled_key_is_ready_at_once(self, world: World, to: str) -> None:
        holder = world.writer("holder")
        await holder.write("intent", claim=claim(KEY))
        late = world.writer("late")
        await late.write("start")
        assert isinstance(await late.append("intent", claim=claim(KEY)), ClaimTaken)
        await holder.write("done", settlements=(settlement(KEY, to),))
        await late.write("waits", index=waiting(KEY), release=True)
        assert await world.store.ready_runs() == ["late"]
        await self.settled(world)
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
        await self.settled(world)
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

    async def test_a_damaged_run_is_not_handed_out(self, world: World) -> None:
        await world.writer().write("start", ready=True)
        await world.store.mark_damaged("r1", "hash of seq 1")
        assert await world.store.ready_runs() == []
        row = await world.store.run("r1")
        assert row is not None
        assert row.damaged == "hash of seq 1"
        with pytest.raises(RunNotFound):
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

    # --- hosts and ownership ---------------------------------------------------------------------------------------

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
        await self.settled(world)
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
        await self.settled(world)
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

    # --- lists, blobs, switches, commands --------------------------------------------------------------------------

    async def test_runs_are_listed_newest_first_and_paged(self, world: World) -> None:
        for number in range(5):
            await world.writer(f"r{number}").write("one", index=PARKED if number % 2 else OPEN)
        await world.writer("r5", tenant="other").write("one")

        async def listed(where: RunFilter) -> list[str]:
            return [row.run_id for row in await world.store.runs(where)]

        assert await listed(RunFilter()) == ["r5", "r4", "r3", "r2", "r1", "r0"]
        assert await listed(RunFilter(limit=2)) == ["r5", "r4"]
        assert await listed(RunFilter(limit=2, after="r4")) == ["r3", "r2"]
        assert await listed(RunFilter(tenant="acme", status="suspended")) == ["r3", "r1"]
        assert await listed(RunFilter(waiting_for_prefix="approval:")) == ["r3", "r1"]
        assert await listed(RunFilter(waiting_for_prefix="appr%")) == []
        assert await listed(RunFilter(agent="agent", operation_id="op", tenant="other")) == ["r5"]
        assert await listed(RunFilter(root_id="")) == ["r5", "r4", "r3", "r2", "r1", "r0"]
        assert await listed(RunFilter(agent="nobody")) == []
        with pytest.raises(RunNotFound):
            await listed(RunFilter(after="nobody"))

    async def test_blobs_are_kept_by_content(self, world: World) -> None:
        data = random.Random(1).randbytes(700_000)
        for blob in (b"", b"small", data):
            digest = await world.store.put_blob(blob)
            assert digest == sha256(blob).digest()
            assert await world.store.put_blob(blob) == digest
            assert await world.store.get_blob(digest) == blob
        assert await world.store.get_blob(b"z" * 32) is None

    async def test_switches_are_on_until_turned_off(self, world: World) -> None:
        one = Switch(scope="global", target="", by="os:me@here", reason="drill", at_ms=1)
        two = Switch(scope="tool", target="refund", by="os:me@here", reason="drill", at_ms=2)
        await world.store.set_switch(two, on=True)
        await world.store.set_switch(one, on=True)
        await world.store.set_switch(msgspec.structs.replace(one, reason="again"), on=True)
        assert [switch.reason for switch in await world.store.switches()] == ["again", "drill"]
        await world.store.set_switch(one, on=False)
        await world.store.set_switch(one, on=False)
        assert await world.store.switches() == [two]

    async def test_switches_are_known_without_a_call(self, world: World) -> None:
        one = Switch(scope="global", target="", by="os:me@here", reason="drill", at_ms=1)
        assert world.store.switches_known() == ()
        await world.store.set_switch(one, on=True)
        assert world.store.switches_known() == (one,)
        await world.store.set_switch(one, on=False)
        assert world.store.switches_known() == ()

    async def test_an_outside_command_reaches_the_handler(self, world: World) -> None:
        assert await world.store.submit("r1", "k1", b"cancel") == b"answer to cancel"
        assert world.submitted == [("r1", "k1", b"cancel")]

    async def test_a_handlers_refusal_comes_back_as_it_is(self, world: World) -> None:
        world.refuse = ConflictError("too_late", "it was decided before", path="a1")
        with pytest.raises(ConflictError) as caught:
            await world.store.submit("r1", "k1", b"approve")
        assert (caught.value.code, caught.value.path) == ("too_late", "a1")

    async def test_time_does_not_fall(self, world: World) -> None:
        before = world.store.now_ms()
        world.clock.advance(-5_000)
        assert world.store.now_ms() >= before

    async def settled(self, world: World) -> None:
        """Return after everything that the store has announced so far was heard: announcements come in order with
        answers."""
        await world.store.hosts()
        await asyncio.sleep(0)
