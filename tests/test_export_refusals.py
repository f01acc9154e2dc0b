"""An export is what the store held at one moment, or there is none: what was written meanwhile, by whomever, and what no
import could take are refused by name, and no file is left."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.contract.log_writer import ENDED, LogWriter, claim
from tests.postgres_server import Server
from tests.written_runs import finished

from boundloop.eventstore.export import export_store, import_store
from boundloop.eventstore.history import load_run
from boundloop.eventstore.location import open_store
from boundloop.eventstore.memory import MemoryStore
from boundloop.eventstore.port import Switch
from boundloop.eventstore.rebuild import rebuild_index
from boundloop.runtime.errors import ConflictError, StoreError

pytestmark = pytest.mark.asyncio

SWITCH = Switch(scope="global", target="", by="me", reason="stop it all", at_ms=1)


@asynccontextmanager
async def each(tmp_path: Path, postgres: Server) -> AsyncGenerator[list[Any]]:
    stores = [await open_store(url) for url in ("memory://", f"sqlite:///{tmp_path}/a.db", postgres.url())]
    try:
        yield stores
    finally:
        for store in stores:
            await store.close()


def before(store: Any, name: str, change: Callable[[], Awaitable[object]], *, call: int = 1) -> None:
    """Before this call of the method another writer's change is committed; then all is as it was."""
    real, calls = getattr(store, name), 0

    async def changed_first(*args: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            setattr(store, name, real)
            await change()
        return await real(*args, **more)

    setattr(store, name, changed_first)


async def is_refused(store: Any, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir(exist_ok=True)
    with pytest.raises(ConflictError, match="store_changed"):
        await export_store(store, str(folder / "a.export"))
    assert list(folder.iterdir()) == []
    await export_store(store, None)  # at rest again


async def test_an_append_after_the_blobs_were_written_is_refused(tmp_path: Path, postgres: Server) -> None:
    async with each(tmp_path, postgres) as stores:
        for store in stores:
            run = LogWriter(store, "r1")
            await run.write("one")
            before(store, "runs_in_order", partial(run.write, "x" * 40_000))  # with a blob
            await is_refused(store, tmp_path)


async def test_a_run_that_is_pruned_meanwhile_is_refused(tmp_path: Path, postgres: Server) -> None:
    async with each(tmp_path, postgres) as stores:
        for store in stores:
            await LogWriter(store, "r1").write("done", index=ENDED)
            row = await store.run("r1")
            before(store, "read", partial(store.prune, "r1", row.seq, row.head))
            await is_refused(store, tmp_path)


@pytest.mark.parametrize("to", [True, False])
async def test_a_switch_that_is_turned_meanwhile_is_refused(
    to: bool, tmp_path: Path, postgres: Server
) -> None:
    async with each(tmp_path, postgres) as stores:
        for store in stores:
            await LogWriter(store, "r1").write("one")
            await store.set_switch(SWITCH, on=not to)
            before(store, "blob_names", partial(store.set_switch, SWITCH, on=to))
            await is_refused(store, tmp_path)


async def test_what_comes_to_the_ledger_and_to_the_blobs_meanwhile_is_refused(
    tmp_path: Path, postgres: Server
) -> None:
    async with each(tmp_path, postgres) as stores:
        for store in stores:
            run = LogWriter(store, "r1")
            await run.write("one")
            before(store, "earlier_rows", partial(run.write, "two", claim=claim(b"k" * 32)))
            await is_refused(store, tmp_path)
            before(store, "earlier_rows", partial(store.put_blob, b"an upload"))
            await is_refused(store, tmp_path)
            before(store, "ledger_rows", partial(store.mark_damaged, "r1", "seen meanwhile"))
            await is_refused(store, tmp_path)


async def test_holds_that_pass_meanwhile_are_no_change_and_new_ones_are(tmp_path: Path) -> None:
    now = [1_700_000_000_000]
    store: Any = await open_store(f"sqlite:///{tmp_path}/a.db", clock=lambda: now[0])
    try:
        await LogWriter(store, "r1").write("one")
        await store.hold_groups({"bank": (1, now[0] + 1_000)})

        async def later() -> None:
            now[0] += 2_000

        before(store, "ledger_rows", later)
        assert (await export_store(store, None)).counts["hold"] == 1
        before(store, "ledger_rows", lambda: store.hold_groups({"bank": (2, now[0] + 1_000)}))
        await is_refused(store, tmp_path)
    finally:
        await store.close()


async def test_a_log_without_its_row_is_refused_until_it_is_rebuilt(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store: Any = await open_store(f"sqlite:///{path}")
    await finished(store, "r1")
    await store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM runs WHERE run_id = 'r1'")
    connection.close()
    store = await open_store(f"sqlite:///{path}")
    file = tmp_path / "a.export"
    try:
        with pytest.raises(StoreError, match="store rebuild") as caught:
            await export_store(store, str(file))
        assert (caught.value.code, caught.value.path) == ("lost_log", "log 1")
        assert not file.exists()
        assert (await rebuild_index(store)).restored == ("r1",)
        assert (await export_store(store, str(file))).runs == 1
        target = MemoryStore()
        await import_store(target, str(file))
        assert (await load_run(target, "r1"))[0].phase == "terminated"
    finally:
        await store.close()


async def test_a_damaged_blob_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store: Any = await open_store(f"sqlite:///{path}")
    name = await store.put_blob(b"x" * 700 + random.Random(1).randbytes(400))
    await LogWriter(store, "r1").write("good")
    await store.close()
    for damage in (
        "UPDATE blob_parts SET data = CAST('y' || substr(data, 2) AS BLOB), coding = 0",
        "DELETE FROM blob_parts",
    ):
        with sqlite3.connect(path) as connection:
            connection.execute(damage)
        connection.close()
        store = await open_store(f"sqlite:///{path}")
        try:
            with pytest.raises(StoreError) as caught:
                await export_store(store, str(tmp_path / "a.export"))
        finally:
            await store.close()
        assert (caught.value.code, caught.value.path) == ("blob_damaged", name.hex())
        assert [one.name for one in tmp_path.glob("a.export*")] == []  # noqa: ASYNC240  one look


async def test_a_blob_that_goes_meanwhile_is_a_change_and_no_damage(tmp_path: Path, postgres: Server) -> None:
    async with each(tmp_path, postgres) as stores:
        for store in stores:
            await store.put_blob(b"nobody names it")
            await store.put_blob(b"nor this")
            (first, _) = await store.blob_names()
            before(store, "get_blob", partial(store.drop_blobs, [first], put_before_ms=1 << 42))
            await is_refused(store, tmp_path)
