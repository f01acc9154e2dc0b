"""What is derived from the logs is written anew from them: on every store, whatever became of the index rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.command_line import CommandLine
from tests.postgres_server import Server
from tests.written_runs import WrittenRun, asking, finished, unknown

from boundloop.eventstore.location import open_store
from boundloop.eventstore.memory import MemoryStore
from boundloop.eventstore.migrate import migrate
from boundloop.eventstore.port import EventStore, RunFilter, RunRow
from boundloop.eventstore.postgres import PostgresStore
from boundloop.eventstore.rebuild import rebuild_index
from boundloop.eventstore.verify import verify_store
from boundloop.runtime.errors import StoreError

DAMAGE = (
    "UPDATE runs SET tenant = 'x', agent = 'x', operation_id = 'x', parent_id = 'x', root_id = 'x', created_at_ms = 1, "
    "updated_at_ms = 2, status = 'executing', outcome = 'failed', reason = 'x', waiting_for = 'timer', wake_at_ms = 5"
)


async def filled(store: EventStore) -> dict[str, RunRow]:
    """Runs of every kind, parked or ended, and their rows."""
    await finished(store, "r1", tenant="t1")
    await asking(store, "r2", operation_id="op2")
    await unknown(store, "r3")
    await WrittenRun.start(store, "r4")
    return await rows_of(store)


async def rows_of(store: EventStore) -> dict[str, RunRow]:
    """All but whether they are ready, which isn't derived."""
    rows = await store.runs(RunFilter(limit=100))
    return {row.run_id: msgspec.structs.replace(row, ready=False) for row in rows}


async def goes(store: EventStore, damage: Callable[[], Awaitable[None]], before: dict[str, RunRow]) -> None:
    await damage()
    assert await rows_of(store) != before
    assert (await store.runs(RunFilter(outcome="completed"))) == []
    found = await rebuild_index(store)
    assert (found.runs, sorted(found.rewritten), found.left) == (4, sorted(before), ())
    assert await rows_of(store) == before
    assert [row.run_id for row in await store.runs(RunFilter(outcome="completed"))] == ["r1"]
    assert (await verify_store(store)).ok
    assert (await rebuild_index(store)).rewritten == ()


@pytest.mark.asyncio
async def test_damaged_index_rows_of_memory_are_rebuilt() -> None:
    store = MemoryStore()
    before = await filled(store)

    async def damage() -> None:
        for run in store._runs.values():  # pyright: ignore[reportPrivateUsage]  # the rows are damaged from behind
            index = msgspec.structs.replace(run.row.index, outcome="failed", waiting_for="timer")
            run.row = msgspec.structs.replace(run.row, tenant="x", root_id="x", created_at_ms=1, index=index)

    await goes(store, damage, before)


@pytest.mark.asyncio
async def test_damaged_index_rows_of_sqlite_are_rebuilt(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = await open_store(f"sqlite:///{path}")
    before = await filled(store)
    await store.close()
    raw = sqlite3.connect(path)
    raw.execute(DAMAGE)
    raw.execute("UPDATE runs SET rest = '', rested_at_ms = NULL")
    raw.execute("INSERT INTO key_waits SELECT run_key, x'00' FROM runs")
    raw.commit()
    raw.close()
    store = await open_store(f"sqlite:///{path}")
    assert not (await verify_store(store)).ok

    async def done() -> None: ...

    await goes(store, done, before)
    await store.close()


@pytest.mark.asyncio
async def test_damaged_index_rows_of_postgresql_are_rebuilt(postgres: Server) -> None:
    store = await PostgresStore.open(postgres.url())
    before = await filled(store)

    async def damage() -> None:
        await store.write_with(lambda connection: connection.execute(DAMAGE))
        await store.write_with(
            lambda connection: connection.execute("INSERT INTO key_waits SELECT 'k', run_key FROM runs")
        )
        assert len([one for one in (await verify_store(store)).faults if "don't find it" in one]) == 4

    await goes(store, damage, before)
    await store.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_what_lists_and_timers_go_by_is_found_out_and_written_anew(
    tmp_path: Path, postgres: Server, kind: str
) -> None:
    """Nothing that a row shows is another: only how it is found."""
    path = tmp_path / "runs.db"
    url = f"sqlite:///{path}" if kind == "sqlite" else postgres.url()
    store = await open_store(url)
    before = await filled(store)
    await store.close()
    damage = "UPDATE runs SET rest = 'executing', rested_at_ms = NULL WHERE run_id IN ('r1', 'r2')"
    wanted = ["r1", "r2"]
    if kind == "sqlite":
        raw = sqlite3.connect(path)
        raw.execute(damage)
        raw.commit()
        raw.close()
        store = await open_store(url)
    else:
        wanted.append("r4")
        store = await PostgresStore.open(url)
        await store.write_with(lambda connection: connection.execute(damage))
        await store.write_with(
            lambda connection: connection.execute("UPDATE runs SET due_at_ms = 7 WHERE run_id = 'r4'")
        )
    assert await rows_of(store) == before
    assert await store.runs(RunFilter(status="terminated")) == []
    faults = (await verify_store(store)).faults
    assert [fault.partition(":")[0] for fault in faults] == [f"run {run_id}" for run_id in wanted]
    assert "boundloop store rebuild" in faults[0]
    found = await rebuild_index(store)
    assert (sorted(found.rewritten), found.left) == (wanted, ())
    assert [row.run_id for row in await store.runs(RunFilter(status="terminated"))] == ["r1"]
    assert (await verify_store(store)).ok
    assert await rows_of(store) == before
    assert (await rebuild_index(store)).rewritten == ()
    await store.close()


@pytest.mark.asyncio
async def test_a_log_that_does_not_end_where_its_row_says_is_left_alone(tmp_path: Path) -> None:
    """Else a rebuild would be the way to hide a cut tail."""
    path = tmp_path / "runs.db"
    store = await open_store(f"sqlite:///{path}")
    await filled(store)
    await store.close()
    raw = sqlite3.connect(path)
    raw.execute("DROP TRIGGER appends_remain")
    raw.execute("DROP TRIGGER appends_stay")
    key = "(SELECT run_key FROM runs WHERE run_id = ?)"
    raw.execute(f"DELETE FROM appends WHERE run_key = {key} AND first_seq > 3", ("r1",))
    raw.execute(f"UPDATE appends SET body = x'90' WHERE run_key = {key} AND first_seq = 1", ("r2",))
    raw.execute("UPDATE runs SET tenant = 'x'")
    raw.commit()
    before = raw.execute("SELECT run_id, seq, head, tenant FROM runs WHERE run_id IN ('r1', 'r2')").fetchall()
    for trigger in _triggers():
        raw.execute(trigger)
    raw.commit()
    raw.close()
    store = await open_store(f"sqlite:///{path}")
    found = await rebuild_index(store)
    await store.close()
    assert sorted(run_id for run_id, _ in found.left) == ["r1", "r2"]
    assert sorted(found.rewritten) == ["r3", "r4"]
    raw = sqlite3.connect(path)
    assert (
        raw.execute("SELECT run_id, seq, head, tenant FROM runs WHERE run_id IN ('r1', 'r2')").fetchall()
        == before
    )
    raw.close()


@pytest.mark.asyncio
async def test_index_rows_that_are_gone_are_restored_from_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = await open_store(f"sqlite:///{path}")
    before = await filled(store)
    await store.close()
    raw = sqlite3.connect(path)
    raw.execute("DELETE FROM runs WHERE run_id IN ('r1', 'r3')")
    raw.commit()
    raw.close()
    store = await open_store(f"sqlite:///{path}")
    await restored(store, before)
    await store.close()


@pytest.mark.asyncio
async def test_index_rows_that_are_gone_are_restored_from_postgresql(postgres: Server) -> None:
    store = await PostgresStore.open(postgres.url())
    before = await filled(store)
    await store.write_with(
        lambda connection: connection.execute("DELETE FROM runs WHERE run_id IN ('r1', 'r3')")
    )
    await restored(store, before)
    await WrittenRun.start(store, "new")  # the next number is nobody's
    await store.close()


async def restored(store: EventStore, before: dict[str, RunRow]) -> None:
    assert not (await verify_store(store)).ok
    found = await rebuild_index(store)
    assert (sorted(found.restored), found.rewritten, found.left) == (["r1", "r3"], (), ())
    assert await rows_of(store) == before
    assert list(await rows_of(store)) == list(before), "in their old places"
    assert (await verify_store(store)).ok
    assert (await rebuild_index(store)).restored == ()


@pytest.mark.asyncio
async def test_a_lost_log_whose_run_has_another_one_is_left(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = await open_store(f"sqlite:///{path}")
    await finished(store, "r1")
    await finished(store, "r2")
    await store.close()
    raw = sqlite3.connect(path)
    raw.execute("DELETE FROM runs WHERE run_id = 'r1'")
    raw.commit()
    raw.close()
    store = await open_store(f"sqlite:///{path}")
    await finished(store, "r1")
    found = await rebuild_index(store)
    assert (found.restored, found.rewritten) == ((), ())
    assert [name for name, why in found.left if "another log" in why] == ["log 1"]
    await store.close()


@pytest.mark.asyncio
async def test_a_lost_log_that_cant_be_read_just_then_is_left_with_that(postgres: Server) -> None:
    store = await PostgresStore.open(postgres.url())
    await finished(store, "r1", text="A long question. " * 4_000)
    await store.write_with(lambda connection: connection.execute("DELETE FROM runs WHERE run_id = 'r1'"))
    inside: Any = store
    read = store.get_blob

    async def unreachable(digest: bytes) -> bytes | None:
        raise StoreError("store_unreachable", "the connection was cut")

    inside.get_blob = unreachable
    [(name, why)] = (await rebuild_index(store)).left
    assert (name, why.endswith("can't be read: the connection was cut")) == ("log 1", True)
    inside.get_blob = read
    assert (await rebuild_index(store)).restored == ("r1",)
    await store.close()


def _triggers() -> list[str]:
    """As the migrations leave them."""
    made = sqlite3.connect(":memory:", isolation_level=None)
    migrate(made)
    found = made.execute("SELECT sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    made.close()
    return [text for (text,) in found]


@pytest.mark.asyncio
async def test_a_store_without_upkeep_says_so() -> None:
    class Bare:
        """Only what a host needs."""

    bare: Any = Bare()
    with pytest.raises(StoreError, match="no_upkeep"):
        await rebuild_index(bare)


def test_the_command_says_what_it_rewrote_and_what_it_left(cli: CommandLine) -> None:
    cli.build(filled)
    raw = sqlite3.connect(cli.path)
    raw.execute("UPDATE runs SET tenant = 'x' WHERE run_id = 'r1'")
    raw.execute("UPDATE runs SET head = x'00' WHERE run_id = 'r2'")
    raw.commit()
    raw.close()
    done = cli("store", "rebuild")
    assert done.code == 6
    assert done.out.splitlines() == [
        "LEFT r2: its log doesn't end where its row says",
        "rewritten r1",
        "4 runs, 1 rewritten, 1 left alone.",
    ]
    assert cli("store", "rebuild", "-o", "json").value["rewritten"] == []
    raw = sqlite3.connect(cli.path)
    raw.execute("DELETE FROM runs WHERE run_id = 'r3'")
    raw.commit()
    raw.close()
    assert (
        "restored r3: its row was gone, and nothing else knows where its log ended"
        in cli("store", "rebuild").out
    )
