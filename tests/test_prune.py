"""``store prune``: whole trees of old runs go, what others need of them stays, and what is read of them says so."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.command_line import NOON_MS, CommandLine
from tests.contract.log_writer import ENDED, LogWriter
from tests.postgres_server import Server
from tests.written_runs import WrittenRun, asking, finished, unknown

from boundloop.eventstore.export import export_store, import_store
from boundloop.eventstore.history import load_run
from boundloop.eventstore.location import open_store
from boundloop.eventstore.memory import MemoryStore
from boundloop.eventstore.port import EventStore
from boundloop.eventstore.postgres import PostgresStore
from boundloop.eventstore.prune import PUT_GRACE_MS, named_in, prune_store, sweep_blobs
from boundloop.eventstore.reading import read_run
from boundloop.eventstore.rebuild import rebuild_index
from boundloop.eventstore.upkeep import Upkeep
from boundloop.eventstore.verify import verify_run, verify_store
from boundloop.runtime.commands import Cancel, Close
from boundloop.runtime.errors import BoundloopError, RunPruned, StoreError
from boundloop.runtime.ledger import LedgerRow

LATER_MS = NOON_MS + 10 * PUT_GRACE_MS


class Clock:
    def __init__(self) -> None:
        self.at_ms = NOON_MS

    def __call__(self) -> int:
        return self.at_ms


@asynccontextmanager
async def each(tmp_path: Path, postgres: Server) -> AsyncGenerator[list[tuple[EventStore, Clock]]]:
    clocks = [Clock(), Clock(), Clock()]
    urls = ["memory://", f"sqlite:///{tmp_path}/a.db", postgres.url()]
    stores = [await open_store(url, clock=clock) for url, clock in zip(urls, clocks, strict=True)]
    yield list(zip(stores, clocks, strict=True))
    for store in stores:
        await store.close()


async def filled(store: EventStore) -> None:
    await finished(store, "done")
    await asking(store, "asking")
    lost = await unknown(store, "lost")
    lost.put(Close(command_id="k", by="x"))
    lost.advance()
    await lost.append()
    assert lost.state.phase == "terminated"


@pytest.mark.asyncio
async def test_old_runs_go_and_what_is_open_or_unknown_stays(tmp_path: Path, postgres: Server) -> None:
    async with each(tmp_path, postgres) as stores:
        for store, clock in stores:
            await filled(store)
            head = (await load_run(store, "done"))[0].seq
            clock.at_ms = LATER_MS
            assert (await prune_store(store, ended_before_ms=NOON_MS)).runs == ()
            dry = await prune_store(store, ended_before_ms=LATER_MS, dry_run=True)
            assert len(await store.read("done")) == dry.rows
            found = await prune_store(store, ended_before_ms=LATER_MS)
            assert (dry.runs, dry.kept, dry.rows) == (found.runs, found.kept, found.rows)
            assert found.runs == ("done",)
            assert [run_id for run_id, _ in found.kept] == ["lost"]
            row = await store.run("done")
            assert row is not None
            assert (row.seq, row.index.outcome, row.pruned_at_ms) == (head, "completed", LATER_MS)
            again = await prune_store(store, ended_before_ms=LATER_MS)
            assert (again.runs, again.rows, again.blobs) == ((), 0, 0)
            await reads_say_so(store)


async def reads_say_so(store: EventStore) -> None:
    for reading in (read_run, load_run):
        with pytest.raises(RunPruned) as caught:
            await reading(store, "done")
        assert (caught.value.code, caught.value.outcome) == ("run_pruned", "completed")
    verdict = await verify_run(store, "done")
    assert (verdict.ok, verdict.pruned) == (True, True)
    whole = await verify_store(store)
    assert whole.ok, whole
    assert [one.run_id for one in whole.runs if one.pruned] == ["done"]
    assert (await rebuild_index(store)).left == ()


@pytest.mark.asyncio
async def test_a_tombstone_goes_along_in_an_export(tmp_path: Path, postgres: Server) -> None:
    path = str(tmp_path / "a.export")
    async with each(tmp_path, postgres) as stores:
        source, clock = stores[0]
        await filled(source)
        clock.at_ms = LATER_MS
        await prune_store(source, ended_before_ms=LATER_MS)
        contents = await export_store(source, path)
        for store, other in stores[1:]:
            other.at_ms = LATER_MS
            assert (await import_store(store, path)).contents == contents
            assert await store.run("done") == await source.run("done")
            await reads_say_so(store)


@pytest.mark.asyncio
async def test_a_tree_goes_as_a_whole_and_only_when_all_of_it_is_old() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    logs = [LogWriter(store, name, root_id="top") for name in ("top", "b1", "b2")]
    runs = [await WrittenRun.start(store, f"x{number}") for number in range(2)]
    for run in runs:
        run.put(Cancel(command_id="k", by="me"))
        run.advance()
        await run.append()
    for log in logs:
        log.at_ms = NOON_MS
        await log.write("one")
    await logs[1].write("end", index=ENDED)
    clock.at_ms = LATER_MS
    found = await prune_store(store, ended_before_ms=LATER_MS)
    assert sorted(found.runs) == ["x0", "x1"]
    assert [(run_id, "hasn't ended" in why) for run_id, why in found.kept] == [("top", True)]


@pytest.mark.asyncio
async def test_a_tree_stays_whose_top_runs_row_is_gone(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "a.db"
    store = await open_store(f"sqlite:///{path}", clock=clock)
    await LogWriter(store, "top", at_ms=NOON_MS).write("goes on")
    await LogWriter(store, "below", at_ms=NOON_MS, root_id="top").write("ended", index=ENDED)
    await store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM runs WHERE run_id = 'top'")
    connection.close()
    clock.at_ms = LATER_MS
    store = await open_store(f"sqlite:///{path}", clock=clock)
    found = await prune_store(store, ended_before_ms=LATER_MS)
    assert (found.runs, [(run_id, "is gone" in why) for run_id, why in found.kept]) == ((), [("top", True)])
    await store.close()


@pytest.mark.asyncio
async def test_a_run_whose_row_stands_behind_a_keys_is_listed_by_a_dry_run_too(
    tmp_path: Path, postgres: Server
) -> None:
    """Its effect turned out to have happened while another run, that a person let go ahead, had the key."""
    source = MemoryStore(clock=Clock())
    await finished(source, "first")
    row = LedgerRow(
        tenant="default",
        key=b"k" * 32,
        tool="refund",
        status="succeeded",
        intent_sha256=b"i" * 32,
        args_sha256=b"a" * 32,
        run_id="first",
        call_id="c1.0",
        attempt=1,
        epoch=1,
        valid_until_ms=1,
        at_ms=1,
    )
    source._earlier["default", row.key] = (row,)  # pyright: ignore[reportPrivateUsage]  # no short way there
    path = str(tmp_path / "a.export")
    await export_store(source, path)
    async with each(tmp_path, postgres) as stores:
        for store, clock in stores:
            await import_store(store, path)
            clock.at_ms = LATER_MS
            dry = await prune_store(store, ended_before_ms=LATER_MS, dry_run=True)
            found = await prune_store(store, ended_before_ms=LATER_MS)
            assert (dry.runs, dry.kept, dry.rows) == (found.runs, found.kept, found.rows)
            assert found.kept == (("first", "a row of run first stands behind a key's"),)


@pytest.mark.asyncio
async def test_a_run_that_the_store_refuses_to_prune_is_listed(tmp_path: Path, postgres: Server) -> None:
    async with each(tmp_path, postgres) as stores:
        for store, clock in stores:
            for run_id in ("first", "second"):
                await finished(store, run_id)
            clock.at_ms = LATER_MS
            inside: Any = store
            prune = inside.prune

            async def after_damage(
                run_id: str, seq: int, head: bytes, store: Any = store, prune: Any = prune
            ) -> Any:
                if run_id == "first":
                    await store.mark_damaged(run_id, "found by somebody else meanwhile")
                return await prune(run_id, seq, head)

            inside.prune = after_damage
            found = await prune_store(store, ended_before_ms=LATER_MS)
            assert found.runs == ("second",)
            assert [run_id for run_id, _ in found.kept] == ["first"]


@pytest.mark.asyncio
async def test_a_damaged_log_stays(tmp_path: Path) -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    await finished(store, "r1")
    await finished(store, "r2")
    log = store._runs["r1"].log  # pyright: ignore[reportPrivateUsage]  # the log is damaged from behind
    log[1] = msgspec.structs.replace(log[1], causation="forged")
    clock.at_ms = LATER_MS
    found = await prune_store(store, ended_before_ms=LATER_MS)
    assert (found.runs, [run_id for run_id, _ in found.kept]) == (("r2",), ["r1"])


@pytest.mark.asyncio
async def test_a_blob_that_anything_names_stays(tmp_path: Path, postgres: Server) -> None:
    async with each(tmp_path, postgres) as stores:
        for store, clock in stores:
            assert isinstance(store, Upkeep)
            loose = await store.put_blob(b"nobody names this")
            raw = await store.put_blob(b"named as bytes")
            handle = await store.put_blob(b"named as hex")
            await finished(store, "done")  # its pins are a blob
            log = LogWriter(store, "live", at_ms=NOON_MS)
            await log.write("x" * 20_000 + handle.hex())  # itself in a blob
            await log.write("y", append_id=raw)
            body = log.request("z").body
            assert body
            kept = set(await store.blob_names()) - {loose, raw}
            assert (await sweep_blobs(store)).blobs == 0, "put lately"
            clock.at_ms = LATER_MS
            real = store.now_ms
            if isinstance(store, PostgresStore):
                # What came with an append was put by the server's own time.
                await store.write_with(
                    lambda connection: connection.execute("UPDATE blobs SET put_at_ms = 1")
                )
            assert (await sweep_blobs(store)).blobs == 2
            assert set(await store.blob_names()) == kept
            assert real() == store.now_ms()
            # When the runs are gone, so is what only they named; pinned definitions stay.
            await prune_store(store, ended_before_ms=LATER_MS)
            assert len(await store.blob_names()) == len(kept)
            await log.write("end", index=ENDED)


def test_names_are_found_wherever_they_stand() -> None:
    name = bytes(range(32))
    packed = msgspec.msgpack.encode({"a": [b"\xc4\x20" + b"x" * 5, name, "n"]})
    assert name in named_in(packed)
    assert name in named_in(b'{"handle":"' + name.hex().encode() + b'"}')
    assert name in named_in(b"ff" + name.hex().encode() + b"00")
    assert name in named_in(b"\xc4\x20" * 3 + name)
    assert named_in(b"nothing", b"") == set()


def deny_removal(action: int, table: str | None, *_: str | None) -> int:
    return sqlite3.SQLITE_DENY if (action, table) == (sqlite3.SQLITE_DELETE, "appends") else sqlite3.SQLITE_OK


@pytest.mark.asyncio
async def test_a_prune_that_ends_between_mark_and_removal_leaves_the_run_of_sqlite_whole(
    tmp_path: Path,
) -> None:
    clock = Clock()
    store = await open_store(f"sqlite:///{tmp_path}/a.db", clock=clock)
    await finished(store, "r1")
    await finished(store, "r2")
    clock.at_ms = LATER_MS
    inside: Any = store
    connection: sqlite3.Connection = inside._the_connection()
    connection.set_authorizer(deny_removal)
    with pytest.raises(StoreError):
        await prune_store(store, ended_before_ms=LATER_MS)
    connection.set_authorizer(None)
    await is_whole_then_gone(store)
    await store.close()


@pytest.mark.asyncio
async def test_a_prune_that_ends_between_mark_and_removal_leaves_the_run_of_postgresql_whole(
    postgres: Server,
) -> None:
    clock = Clock()
    store = await PostgresStore.open(postgres.url(), clock=clock)
    await finished(store, "r1")
    await finished(store, "r2")
    clock.at_ms = LATER_MS

    async def run(statement: str) -> None:
        await store.write_with(lambda connection: connection.execute(statement))

    with pytest.raises(BoundloopError, match="never removed but with its whole run"):
        await run("DELETE FROM appends")
    await run("CREATE TRIGGER plug BEFORE DELETE ON appends EXECUTE FUNCTION refuse_change()")
    with pytest.raises(BoundloopError, match="never changed nor removed"):
        await prune_store(store, ended_before_ms=LATER_MS)
    await run("DROP TRIGGER plug ON appends")
    await is_whole_then_gone(store)
    await store.close()


async def is_whole_then_gone(store: EventStore) -> None:
    for run_id in ("r1", "r2"):
        verdict = await verify_run(store, run_id)
        assert (verdict.ok, verdict.pruned) == (True, False)
    assert sorted((await prune_store(store, ended_before_ms=LATER_MS)).runs) == ["r1", "r2"]
    assert (await verify_store(store)).ok


def test_the_commands_say_pruned(cli: CommandLine) -> None:
    cli.build(filled, at_ms=NOON_MS)
    dry = cli("store", "prune", "--ended-before", "2023-12-01", "--dry-run")
    assert "1 runs and " in dry.out
    assert "would go" in dry.out
    assert cli("log", "done").code == 0
    done = cli("store", "prune", "--ended-before", "2023-12-01")
    assert done.code == 0, done
    assert done.out.splitlines()[0].startswith("kept lost: nobody knows what became of an effect")
    shown = cli("show", "done", "-o", "json")
    assert (shown.code, shown.value["outcome"]) == (0, "completed")
    assert shown.value["pruned"]
    assert "pruned:" in cli("show", "done").out
    for command in (("log", "done"), ("replay", "done", "--at", "1"), ("why", "done"), ("tree", "done")):
        refused = cli(*command)
        assert (refused.code, "run_pruned at done" in refused.err) == (3, True), command
    verified = cli("verify")
    assert (verified.code, "1 are pruned" in verified.out) == (0, True)
    assert [row["verdict"] for row in cli("verify", "done", "-o", "json").value] == ["pruned"]
    assert cli("store", "check").code == 0
    assert cli("store", "info", "-o", "json").value["by_status"]["pruned"] == 1
    assert cli("resume", "done").code == 3
    again = cli("store", "prune", "--ended-before", "2023-12-01", "-o", "json").value
    assert (again["runs"], again["appends"]) == ([], 0)
    assert cli("store", "prune").code == 2
