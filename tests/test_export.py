"""A store's content goes to a file and into a store of another kind, with equal heads; a file that is cut or changed doesn't."""

from __future__ import annotations

import asyncio
import random
import sys
import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.contract.log_writer import LogWriter, claim, settlement, waiting
from tests.postgres_server import Server
from tests.random_examples import examples
from tests.written_runs import asking, finished, unknown

from boundloop.eventstore import archive
from boundloop.eventstore.archive import ArchiveWriter, check_archive, read_archive
from boundloop.eventstore.export import export_store, import_store
from boundloop.eventstore.location import connect_store, open_store
from boundloop.eventstore.memory import MemoryStore
from boundloop.eventstore.port import EventStore, HostRow, RunFilter, Switch
from boundloop.eventstore.upkeep import Upkeep
from boundloop.eventstore.verify import verify_store
from boundloop.runtime.errors import CallerError, ConflictError, DamagedFile, NewerSchema, StoreError
from boundloop.runtime.ledger import RunIndex

pytestmark = pytest.mark.asyncio

KEY = b"k" * 32
HOST = HostRow(host_id="h1", node="n", pid=1, pid_start=1, boot_id="b")


async def fill(store: EventStore) -> None:
    """Runs of every kind with blobs of every size, ledger rows before and behind, switches, texts with U+0000."""
    await finished(store, "r1", tenant="t1")
    await asking(store, "r2", operation_id="op2")
    await unknown(store, "r3")
    for number, size in enumerate((0, 10, archive.PART_BYTES, 700_000)):
        await store.put_blob(random.Random(number).randbytes(size))
    first, second = LogWriter(store, "w1"), LogWriter(store, "w2\x1a")
    await first.write("x" * 40_000, claim=claim(KEY))
    await first.write("lost", settlements=(settlement(KEY, "unknown"),))
    over = msgspec.structs.replace(claim(KEY, "c2.0"), over=("w1", "c1.0"))
    await second.write("again", claim=over)
    await LogWriter(store, "w3").write("waits", index=waiting(KEY))
    await LogWriter(store, "w4").write("ready", ready=True, index=RunIndex(status="open_calls", wake_at_ms=7))
    await LogWriter(store, "w5", "gone").write("had a host")
    for tenant in ("a\0", "a\x01"):  # in another order in PostgreSQL's columns
        await LogWriter(store, f"w{tenant}", tenant=tenant).write("one", claim=claim(KEY, tenant=tenant))
    await store.mark_damaged("w4", "hash of seq 1")
    await store.set_switch(Switch(scope="tool", target="re\0fund", by="me", reason="drill", at_ms=1), on=True)


async def everything(store: EventStore) -> list[Any]:
    assert isinstance(store, Upkeep)
    rows = await store.runs(RunFilter(limit=100))
    found: list[Any] = [rows, [await store.read(row.run_id) for row in rows]]
    found += [await store.ledger_rows(limit=100), await store.earlier_rows(limit=100), await store.switches()]
    names = await store.blob_names(limit=1_000)
    found += [names, [await store.get_blob(name) for name in names]]
    found += [await store.runs(RunFilter(status="waiting_approval")), await store.unknown_effects()]
    return found


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[EventStore]:
    store = await open_store(url)
    try:
        yield store
    finally:
        await store.close()


async def test_content_goes_from_kind_to_kind_and_back_with_equal_heads(
    tmp_path: Path, postgres: Server
) -> None:
    urls = [f"sqlite:///{tmp_path}/a.db", postgres.url(), f"sqlite:///{tmp_path}/b.db", "memory://"]
    files = [str(tmp_path / f"{number}.export") for number in range(4)]
    async with opened(urls[0]) as store:
        await fill(store)
        before = await everything(store)
        verdict = await verify_store(store)
        contents = await export_store(store, files[0])
    for number, url in enumerate(urls[1:], 1):
        async with opened(url) as store:
            done = await import_store(store, files[number - 1])
            assert (done.contents, done.was_there) == (contents, False)
            # The order of rows by text is the database's own where a text holds U+0000.
            assert [_sorted(one) for one in await everything(store)] == [_sorted(one) for one in before]
            assert (await verify_store(store)).runs == verdict.runs
            assert store.switches_known() == tuple(before[4])
            assert (await import_store(store, files[number - 1])).was_there
            assert await export_store(store, files[number]) == contents
            # It goes on there: a run that had a host is one whose host died, and what was claimed is held.
            await store.register_host(HOST)
            answer = await store.acquire("w5", "h1")
            assert getattr(answer, "died", None) is True
            made = LogWriter(store, "new")
            assert type(await made.append("late", claim=claim(KEY))).__name__ == "ClaimTaken"
            await made.write("one")
    assert (await verify_store_of_file(urls[2])).ok == verdict.ok


async def verify_store_of_file(url: str) -> Any:
    async with opened(url) as store:
        return await verify_store(store)


def _sorted(one: Any) -> Any:
    return sorted(one, key=repr)


async def test_a_cut_or_changed_file_is_refused_and_leaves_nothing(tmp_path: Path, postgres: Server) -> None:
    source = MemoryStore()
    await fill(source)
    path = tmp_path / "whole.export"
    await export_store(source, str(path))
    whole = path.read_bytes()
    draw = random.Random(5)
    cuts = [0, 1, len(archive.MAGIC), len(archive.MAGIC) + 2, len(whole) - 1]
    cuts += [draw.randrange(len(whole)) for _ in range(examples(40))]
    bad = tmp_path / "bad.export"
    async with opened(f"sqlite:///{tmp_path}/a.db") as file, opened(postgres.url()) as server:
        stores: tuple[EventStore, ...] = (file, server, MemoryStore())
        for number, cut in enumerate(cuts):
            bad.write_bytes(whole[:cut])
            await _is_refused(str(bad), stores[number % 3], "cut off" if cut > 30 else "")
            changed = bytearray(whole)
            changed[cut] ^= 1 << draw.randrange(8)
            bad.write_bytes(bytes(changed))
            await _is_refused(str(bad), stores[number % 3], "")
        bad.write_bytes(whole + b"x")
        await _is_refused(str(bad), file, "more behind its end")
        for store in stores:
            await import_store(store, str(path))


async def _is_refused(path: str, store: EventStore, text: str) -> None:
    with pytest.raises((DamagedFile, NewerSchema, CallerError)) as caught:
        await import_store(store, path)
    assert caught.value.path == path
    assert text in caught.value.message
    assert await store.runs(RunFilter()) == []


async def test_records_out_of_place_are_refused(tmp_path: Path) -> None:
    store = MemoryStore()
    await fill(store)
    path = str(tmp_path / "a.export")
    await export_store(store, path)
    records = list(read_archive(path))
    for _ in range(examples(20)):
        number = random.Random(_).randrange(len(records) - 1)
        for wrong in (
            [*records[:number], records[number + 1], records[number], *records[number + 2 :]],
            [*records[:number], *records[number + 1 :]],
        ):
            if [type(one) for one in wrong] == [type(one) for one in records]:
                continue  # two of a kind
            made = str(tmp_path / "b.export")
            with ArchiveWriter(made) as file:
                for record in wrong:
                    file.put(record)
                file.finish()
            try:
                found = check_archive(made)
            except DamagedFile:
                continue
            assert found != check_archive(path)  # what is missing by itself is another content


async def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.export"
    path.write_bytes(archive.MAGIC + b"2\nwhatever")
    with pytest.raises(NewerSchema):
        await import_store(MemoryStore(), str(path))
    with pytest.raises(CallerError, match="file_unreadable"):
        await import_store(MemoryStore(), str(tmp_path / "nowhere"))


async def test_a_file_that_is_no_export_is_the_callers_mistake(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("nothing of ours")
    with pytest.raises(CallerError, match="no_export"):
        await import_store(MemoryStore(), str(path))


async def test_what_is_in_use_or_holds_something_else_is_refused(tmp_path: Path, postgres: Server) -> None:
    source = MemoryStore()
    await fill(source)
    path = str(tmp_path / "a.export")
    await export_store(source, path)
    await source.register_host(HOST)
    with pytest.raises(ConflictError, match="store_in_use"):
        await export_store(source, None)
    for url in (f"sqlite:///{tmp_path}/a.db", postgres.url(), "memory://"):
        async with opened(url) as store:
            await store.register_host(HOST)
            with pytest.raises(ConflictError, match="store_in_use"):
                await import_store(store, path)
            await store.drop_host("h1")
            await LogWriter(store, "other").write("one")
            with pytest.raises(ConflictError, match="store_not_empty"):
                await import_store(store, path)
            assert [row.run_id for row in await store.runs(RunFilter())] == ["other"]


async def test_a_run_that_goes_on_meanwhile_is_no_export(tmp_path: Path) -> None:
    store = MemoryStore()
    log = LogWriter(store, "r1")
    await log.write("one")
    read = store.read

    async def reading(run_id: str, *, after_seq: int = 0, rows_max: int = 1_000) -> Any:
        rows = await read(run_id, after_seq=after_seq, rows_max=rows_max)
        if not after_seq:
            await log.write("meanwhile")
        return rows

    store.read = reading  # type: ignore[method-assign]  # another writer, at this very moment
    path = tmp_path / "a.export"
    with pytest.raises(ConflictError, match="store_changed"):
        await export_store(store, str(path))
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240  a look at an empty folder


async def test_only_the_owner_of_a_file_imports(tmp_path: Path) -> None:
    path = str(tmp_path / "a.export")
    await export_store(MemoryStore(), path)
    url = f"sqlite:///{tmp_path}/a.db"
    async with opened(url):
        peer = await connect_store(url)
        with pytest.raises(ConflictError, match="store_in_use"):
            await import_store(peer, path)
        assert isinstance(peer, Upkeep)
        await peer.close()


async def test_an_import_that_ends_in_the_middle_leaves_nothing(tmp_path: Path, postgres: Server) -> None:
    """The transaction is undone, whatever it was that stopped it; the same import is made again."""
    source = MemoryStore()
    await fill(source)
    path = str(tmp_path / "a.export")
    await export_store(source, path)
    records = list(read_archive(path))
    for url in (f"sqlite:///{tmp_path}/a.db", postgres.url(), "memory://"):
        async with opened(url) as store:
            taking: Any = store
            for stop in (1, len(records) // 2, len(records)):

                def some(stop: int = stop) -> Any:
                    yield from records[:stop]
                    raise StoreError("pulled", "the plug")

                with pytest.raises(StoreError, match="pulled"):
                    await taking.take_in(some)
                assert await store.runs(RunFilter()) == []
                assert await store.ledger_rows() == []
                assert await store.switches() == []
            assert not (await import_store(store, path)).was_there


async def test_neither_side_holds_the_whole(tmp_path: Path) -> None:
    """What is held at a time is a page of rows, however many there are."""
    path = str(tmp_path / "a.export")
    count, size = 900, 12_000
    async with opened(f"sqlite:///{tmp_path}/a.db") as store:
        for number in range(count):
            await LogWriter(store, f"r{number}").write(f"{number:06}" * (size // 6))
        tracemalloc.start()
        try:
            await export_store(store, path)
            exported = tracemalloc.get_traced_memory()[1]
            tracemalloc.reset_peak()
            async with opened(f"sqlite:///{tmp_path}/b.db") as other:
                assert (await import_store(other, path)).contents.runs == count
            imported = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert max(exported, imported) < count * size // 2, (exported, imported)


HALF = """
import asyncio, sys
from boundloop.eventstore.archive import read_archive
from boundloop.eventstore.location import open_store

def half(path):
    records = list(read_archive(path))
    yield from records[: len(records) * 9 // 10]
    print("half", flush=True)
    sys.stdin.read()

async def main(url, path):
    store = await open_store(url)
    await store.take_in(lambda: half(path))

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_process_killed_in_an_import_leaves_nothing_and_the_next_import_is_whole(
    tmp_path: Path, postgres: Server
) -> None:
    path = str(tmp_path / "a.export")
    async with opened(f"sqlite:///{tmp_path}/a.db") as store:
        await fill(store)
        for number in range(300):
            await LogWriter(store, f"x{number}").write("x" * 5_000)
        contents = await export_store(store, path)
    for url in (f"sqlite:///{tmp_path}/b.db", postgres.url()):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            HALF,
            url,
            path,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"half\n"
        process.kill()
        await process.wait()
        async with opened(url) as store:
            assert await store.runs(RunFilter()) == []
            assert await store.switches() == []
            assert (await import_store(store, path)).contents == contents
            assert await export_store(store, None) == contents
