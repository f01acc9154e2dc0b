"""Appends: what is written, what is refused, and what a refusal leaves behind."""

from __future__ import annotations

import asyncio

import msgspec

from ...runtime.errors import BugError
from ...runtime.ledger import RunIndex
from ..codec import resolve, spilled
from ..port import Acquired, AlreadyDone, Appended, Conflict, Fenced, RunFilter, Switch
from ..verify import verify_run, verify_store
from .log_writer import LogWriter, an_event, claim
from .world import KEY, World, each, refused

PARKED = RunIndex(status="suspended", waiting_for="approval:a1")


class AppendCases:
    """See ``contract.Contract``."""

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

    @each("host", "", "h1")
    async def test_another_append_in_a_taken_place_is_a_conflict(self, world: World, host: str) -> None:
        log = world.writer(host_id=host)
        await log.write("one")
        rival = log.fork()
        await log.write("two", "three")
        assert await rival.append("other", append_id=b"rival") == Conflict(3)
        assert len(await world.store.read("r1")) == 2

    @each("host", "", "h1")
    async def test_an_append_on_another_history_is_a_conflict(self, world: World, host: str) -> None:
        log = world.writer(host_id=host)
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

    @each("host", "", "h1")
    async def test_an_epoch_from_the_future_is_a_conflict(self, world: World, host: str) -> None:
        log = world.writer(host_id=host)
        await log.write("one")
        log.epoch = 9
        assert await log.append("two") == Conflict(1)

    @each("host", "", "h1")
    async def test_an_append_before_the_last_one_in_time_is_a_bug(self, world: World, host: str) -> None:
        log = world.writer(host_id=host)
        await log.write("one")
        log.at_ms -= 1
        with refused(BugError):
            await world.store.append(log.request("two"))
        assert len(await world.store.read("r1")) == 1
        log.at_ms += 1
        await log.write("two")

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
            with refused(BugError):
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
