"""What is read of a run while its log is pruned: all of it, or ``run_pruned``; never a part, for ever, or as damage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import pytest
from tests.contract.log_writer import ENDED, LogWriter, begin, effect
from tests.postgres_server import Server
from tests.written_runs import finished

from boundloop.actors import Runtime, streaming
from boundloop.adapters.script import say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.eventstore import history, verify
from boundloop.eventstore.history import load_intact, load_run, read_records
from boundloop.eventstore.location import connect_store, open_store
from boundloop.eventstore.prune import prune_store
from boundloop.eventstore.reading import read_run
from boundloop.eventstore.rebuild import rebuild_index
from boundloop.eventstore.verify import verify_run, verify_store
from boundloop.runtime.errors import RunPruned
from boundloop.runtime.limits import WAIVED, Limits

WITHIN_S: Final = 30.0
FAR_AHEAD_MS: Final = 1 << 42


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/runs.db"
    server: Server = request.getfixturevalue("postgres")
    return server.url()


async def prune_all(url: str) -> None:
    store = await connect_store(url)
    try:
        assert (await prune_store(store, ended_before_ms=FAR_AHEAD_MS)).runs == ("r1",)
    finally:
        await store.close()


async def read_on(items: AsyncIterator[Any], seen: list[Any]) -> None:
    async for item in items:
        seen.append(item)  # noqa: PERF401  what was seen before it was refused counts


async def pruned_before(store: Any, run_id: str, call: int) -> None:
    """Before this read of its log the run is pruned by another."""
    row, read, calls = await store.run(run_id), store.read, 0

    async def pruned_first(of: str, **more: Any) -> Any:
        nonlocal calls
        calls += of == run_id
        if calls == call:
            store.read = read
            assert await store.prune(run_id, row.seq, row.head)
        return await read(of, **more)

    store.read = pruned_first


@pytest.mark.parametrize("how", ["stream", "follow"])
@pytest.mark.asyncio
async def test_a_stream_of_a_pruned_run_is_refused(url: str, how: str) -> None:
    with Runtime(store=url, model=ScriptedModel([say("done")])) as runtime:
        assert (await runtime.aio.run("go", limits=Limits(cost=WAIVED), run_id="r1")).completed
        await prune_all(url)
        with pytest.raises(RunPruned) as caught:
            await asyncio.wait_for(read_on(getattr(runtime.aio, how)("r1"), []), WITHIN_S)
        assert caught.value.outcome == "completed"


@pytest.mark.parametrize("how", ["stream", "follow"])
@pytest.mark.asyncio
async def test_a_run_that_is_pruned_while_it_is_streamed_is_refused_then(
    url: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "PAGE_ROWS", 1)
    with Runtime(store=url, model=ScriptedModel([say("done")])) as runtime:
        assert (await runtime.aio.run("go", limits=Limits(cost=WAIVED), run_id="r1")).completed
        items = getattr(runtime.aio, how)("r1")
        seen = [await anext(items)]
        await prune_all(url)
        with pytest.raises(RunPruned):
            await asyncio.wait_for(read_on(items, seen), WITHIN_S)
        assert [one.seq for one in seen] == list(range(1, len(seen) + 1))


@pytest.mark.asyncio
async def test_who_has_read_all_of_a_run_is_not_told_that_it_was_pruned() -> None:
    store: Any = await open_store("memory://")
    await LogWriter(store, "r1").write("end", index=ENDED)
    row = await store.run("r1")
    assert await store.prune("r1", row.seq, row.head)
    page = await streaming.committed_from(store, "r1", row.seq, row.seq, "stop")
    assert (page.items, page.over) == ((), True)


@pytest.mark.parametrize("reading", [load_run, load_intact, read_run, read_records])
@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.asyncio
async def test_a_log_that_is_pruned_between_two_pages_is_refused(
    url: str, reading: Callable[..., Any], call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (history, verify):
        monkeypatch.setattr(module, "PAGE_ROWS", 1)
    store: Any = await open_store(url)
    try:
        await finished(store, "r1")
        await pruned_before(store, "r1", call)
        with pytest.raises(RunPruned):
            await reading(store, "r1")
    finally:
        await store.close()


@pytest.mark.asyncio
async def test_a_log_whose_bodies_were_swept_meanwhile_is_pruned_and_not_damaged(url: str) -> None:
    for reading in (read_records, read_run, verify_run):
        store: Any = await open_store(url)
        try:
            run_id = reading.__name__
            run = LogWriter(store, run_id)
            await run.write("x" * 40_000 + run_id)
            await run.write("end", index=ENDED)
            row, get_blob = await store.run(run_id), store.get_blob

            async def swept(
                digest: bytes, store: Any = store, row: Any = row, get_blob: Any = get_blob
            ) -> bytes | None:
                if not (await store.run(row.run_id)).pruned_at_ms:
                    assert await store.prune(row.run_id, row.seq, row.head)
                    assert await store.drop_blobs([digest], put_before_ms=FAR_AHEAD_MS)
                found: bytes | None = await get_blob(digest)
                return found

            store.get_blob = swept
            if reading is verify_run:
                verdict = await verify_run(store, run_id)
                assert (verdict.ok, verdict.pruned) == (True, True)
            else:
                with pytest.raises(RunPruned):
                    await reading(store, run_id)
        finally:
            await store.close()


@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.asyncio
async def test_a_run_that_is_pruned_while_it_is_verified_is_pruned_and_not_damaged(
    url: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read of it before is no word against the ledger either: that an effect was sent, say, and not how it ended."""
    monkeypatch.setattr(verify, "PAGE_ROWS", 1)
    store: Any = await open_store(url)
    try:
        for run_id in ("r1", "r2"):
            run = LogWriter(store, run_id, root_id=run_id)
            await begin(run)
            await effect(run, run_id.encode() * 16, 1)
            await run.write("end", index=ENDED)
        await pruned_before(store, "r1", call)
        verdict = await verify_run(store, "r1")
        assert (verdict.ok, verdict.pruned, verdict.rows) == (True, True, 0)
        await pruned_before(store, "r2", call)
        whole = await verify_store(store)
        assert whole.ok, whole
        assert [one.pruned for one in whole.runs] == [True, True]
    finally:
        await store.close()


@pytest.mark.asyncio
async def test_an_index_leaves_a_run_alone_that_is_pruned_meanwhile(url: str) -> None:
    store: Any = await open_store(url)
    try:
        await finished(store, "r1")
        await pruned_before(store, "r1", 1)
        rebuilt = await rebuild_index(store)
        assert (rebuilt.left, rebuilt.rewritten) == ((), ())
    finally:
        await store.close()
