"""What a PostgreSQL store does when its connection, its server or its history is gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from tests.cutting_proxy import MOMENTS, Moment, cutting
from tests.postgres_server import Server, running

from boundloop.eventstore.port import Acquired, AlreadyDone, Appended, Fenced, HostRow
from boundloop.eventstore.postgres import PostgresStore
from boundloop.eventstore.verify import verify_store
from boundloop.runtime.errors import HistoryRefused, StoreError

from .log_writer import LogWriter, claim

KEY = b"k" * 32


@pytest.fixture
def own_server() -> Generator[Server]:
    """One that a test may kill."""
    with running() as server:
        yield server


@pytest.mark.asyncio
@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_connection_that_is_cut_around_the_commit_leaves_all_of_an_append_or_nothing(
    tmp_path: Path, postgres: Server, moment: Moment
) -> None:
    async with cutting(tmp_path, postgres.socket) as proxy:
        store = await PostgresStore.open(postgres.url(host=str(tmp_path)))
        log = LogWriter(store, "r1")
        await log.write("start")
        request = log.request("intent", claim=claim(KEY), wake_runs=("r1",))
        proxy.arm(moment)
        if moment == "after its answer":
            assert isinstance(await store.append(request), Appended)
        else:
            with pytest.raises(StoreError) as caught:
                await store.append(request)
            assert caught.value.code == "commit_unknown"
        assert proxy.cuts == 1
        # What is read now is so for good: the cut statement can't take effect any more.
        rows = await store.read("r1")
        row = await store.ledger_row("acme", KEY)
        there = moment not in ("before it is sent", "within it")
        assert (len(rows) == 2, row is not None) == (there, there)
        again = await store.append(request)
        assert isinstance(again, AlreadyDone if there else Appended)
        assert len(await store.read("r1")) == 2
        log.follow(request)
        await log.write("goes on")
        assert (await verify_store(store)).ok
        await store.close()


@pytest.mark.asyncio
async def test_appends_that_share_a_cut_statement_are_all_told_so(tmp_path: Path, postgres: Server) -> None:
    async with cutting(tmp_path, postgres.socket) as proxy:
        store = await PostgresStore.open(postgres.url(host=str(tmp_path)))
        await LogWriter(store, "r0").write("start")
        logs = [LogWriter(store, f"r{number}") for number in range(1, 9)]
        requests = [log.request("one") for log in logs]
        proxy.arm("before its answer")
        answers = await asyncio.gather(*map(store.append, requests), return_exceptions=True)
        assert {getattr(answer, "code", "") for answer in answers} == {"commit_unknown"}
        for request in requests:
            assert isinstance(await store.append(request), AlreadyDone)
        await store.close()


@pytest.mark.asyncio
async def test_a_read_is_made_again_on_another_connection(tmp_path: Path, postgres: Server) -> None:
    async with cutting(tmp_path, postgres.socket) as proxy:
        store = await PostgresStore.open(postgres.url(host=str(tmp_path)))
        await LogWriter(store, "r1").write("start")
        proxy.arm("before its answer", "FROM appends")
        assert len(await store.read("r1")) == 1
        assert proxy.cuts == 1
        await store.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_reader_that_is_cut_off_while_it_begins_to_listen_reads_all_the_same(
    moment: Moment, tmp_path: Path, postgres: Server
) -> None:
    async with cutting(tmp_path, postgres.socket) as proxy:
        store = await PostgresStore.open(postgres.url(host=str(tmp_path)))
        await LogWriter(store, "r1").write("one")
        await proxy.end()  # it has to connect anew
        proxy.arm(moment, "LISTEN")
        assert len(await store.read("r1")) == 1
        assert proxy.cuts == 1
        await store.close()


@pytest.mark.asyncio
async def test_a_server_that_cannot_be_reached_is_named_and_nothing_was_sent(
    tmp_path: Path, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("boundloop.eventstore.postgres_writer.REACH_S", 0.2)
    async with cutting(tmp_path, postgres.socket) as proxy:
        store = await PostgresStore.open(postgres.url(host=str(tmp_path)))
        log = LogWriter(store, "r1")
        await log.write("start")
        proxy.refusing = True
        await proxy.end()
        request = log.request("two")
        codes: list[str] = []
        for _ in range(2):  # the first may have been on its way when the connection ended
            with pytest.raises(StoreError) as caught:
                await store.append(request)
            codes.append(caught.value.code)
        assert codes[-1] == "store_unreachable"
        with pytest.raises(StoreError) as caught:
            await store.read("r1")
        assert caught.value.code == "store_unreachable"
        proxy.refusing = False
        assert isinstance(await store.append(request), Appended)
        assert len(await store.read("r1")) == 2
        await store.close()


@pytest.mark.asyncio
async def test_what_was_acknowledged_outlives_a_killed_server(own_server: Server) -> None:
    store = await PostgresStore.open(own_server.url())
    logs = [LogWriter(store, f"r{number}") for number in range(8)]

    async def write(log: LogWriter) -> None:
        """Until the server dies under an append; that one is told from the others by asking again."""
        while True:
            request = log.request(
                f"seq {log.seq}", claim=claim(bytes([log.seq % 256, int(log.run_id[1:])]) * 16)
            )
            try:
                assert isinstance(await store.append(request), Appended | AlreadyDone)
            except StoreError:
                return
            log.follow(request)

    writing = [asyncio.ensure_future(write(log)) for log in logs]
    while min(log.seq for log in logs) < 5:  # noqa: ASYNC110  they have to run
        await asyncio.sleep(0)
    own_server.kill()
    await asyncio.gather(*writing)
    own_server.start()
    for log in logs:
        last = log.request("after")
        rows = await store.read(log.run_id)
        assert log.seq <= len(rows) <= log.seq + 1
        assert [row.hash for row in rows][log.seq - 1] == log.head
        assert isinstance(await store.append(last), Appended) == (len(rows) == log.seq)
    assert (await verify_store(store)).ok
    await store.close()


@pytest.mark.asyncio
async def test_a_server_that_comes_back_without_what_it_acknowledged_is_found_out(own_server: Server) -> None:
    """As after a failover to a standby that had not heard of the last commits."""
    url = own_server.url()
    store = await PostgresStore.open(url)
    log, bystander, late = LogWriter(store, "r1"), LogWriter(store, "whole"), LogWriter(store, "late")
    await log.write("start")
    await bystander.write("start")
    own_server.stop()
    before = own_server.copied()
    own_server.start()
    await _insist(log, "intent", claim=claim(KEY))
    await late.write("start")
    own_server.kill()
    own_server.put_back(before)
    own_server.start()

    with pytest.raises(StoreError) as caught:
        await bystander.append("meets the end of the connection")
    assert caught.value.code == "commit_unknown"
    for lost in (log, late):
        with pytest.raises(HistoryRefused) as caught:
            await lost.append("goes on as if nothing had happened")
        assert (caught.value.code, caught.value.path) == ("log_regressed", lost.run_id)
    row = await store.run("r1")
    assert row is not None
    assert row.damaged.startswith("log_regressed: seq 2 to 2 was acknowledged and is gone")
    assert await store.ready_runs() == []
    await _insist(bystander, "goes on")
    await store.close()


async def _insist(log: LogWriter, text: str, **fields: Any) -> None:
    """The same append until it is known to be done."""
    request = log.request(text, **fields)
    answer = None
    while answer is None:
        with contextlib.suppress(StoreError):
            answer = await log.store.append(request)
    assert isinstance(answer, Appended | AlreadyDone)
    log.follow(request)


@pytest.mark.asyncio
async def test_two_processes_share_the_ledger_and_fence_each_other(postgres: Server) -> None:
    """Here two stores of one process, with connections of their own: the server tells no difference."""
    url = postgres.url()
    one, two = await PostgresStore.open(url), await PostgresStore.open(url)
    for store, host in ((one, "h1"), (two, "h2")):
        await store.register_host(HostRow(host_id=host, node="n", pid=1, pid_start=1, boot_id="b"))
    first, second = LogWriter(one, "r1", "h1"), LogWriter(two, "r2", "h2")
    await asyncio.gather(first.write("start"), second.write("start"))
    taken = await asyncio.gather(
        first.append("intent", claim=claim(KEY)), second.append("intent", claim=claim(KEY))
    )
    assert sorted(type(answer).__name__ for answer in taken) == ["Appended", "ClaimTaken"]
    answer = await two.acquire("r1", "h2", dead_hosts=["h1"])
    assert isinstance(answer, Acquired)
    assert await first.append("late") == Fenced(answer.epoch)
    await one.close()
    await two.close()


@pytest.mark.asyncio
async def test_a_hundred_claims_of_one_key_from_four_processes_give_one(postgres: Server) -> None:
    url = postgres.url()
    stores = [await PostgresStore.open(url) for _ in range(4)]
    logs = [LogWriter(stores[number % 4], f"r{number}") for number in range(100)]
    answers = await asyncio.gather(*(log.append("intent", claim=claim(KEY)) for log in logs))
    assert sorted({type(answer).__name__ for answer in answers}) == ["Appended", "ClaimTaken"]
    assert sum(isinstance(answer, Appended) for answer in answers) == 1
    assert (await verify_store(stores[0])).ok
    for store in stores:
        await store.close()


@pytest.mark.asyncio
async def test_hosts_that_wake_each_others_runs_never_wait_in_a_circle(postgres: Server) -> None:
    url = postgres.url()
    stores = [await PostgresStore.open(url) for _ in range(2)]
    names = [f"r{number}" for number in range(10)]
    logs = [LogWriter(stores[number % 2], name) for number, name in enumerate(names)]
    for log in logs:
        await log.write("start")

    async def write(log: LogWriter, order: list[str]) -> None:
        for _ in range(20):
            await log.write("wakes all", wake_runs=tuple(order))

    await asyncio.gather(
        *(write(log, names if number % 2 else names[::-1]) for number, log in enumerate(logs))
    )
    assert (await verify_store(stores[0])).ok
    for store in stores:
        await store.close()
