"""Everything that a store holds, to a file and into another store of any kind, with equal heads."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Final

import msgspec

from ..runtime.errors import ConflictError, StoreError
from .archive import (
    PART_BYTES,
    AppendRecord,
    ArchiveWriter,
    Begin,
    BlobRecord,
    Contents,
    EarlierRecord,
    HoldRecord,
    LedgerRecord,
    PartRecord,
    RunRecord,
    SwitchRecord,
    check_archive,
    read_archive,
)
from .port import APPEND_SCHEMA_VERSION, EventStore, RunRow
from .upkeep import TakesIn, Upkeep

PAGE_ROWS: Final = 500


class Imported(msgspec.Struct, frozen=True):
    """``was_there``: the store had this very content already, and nothing was written."""

    contents: Contents
    was_there: bool


async def export_store(store: EventStore, path: str | None) -> Contents:
    """Write all runs with their logs byte for byte, blobs, the ledger and what stands behind it, and switches. Without a path
    only the content's digest is made. Memory is bounded by the largest blob.

    The store must be at rest: a live host is refused (``ConflictError``, ``store_in_use``), and so is a run that went on
    meanwhile (``store_changed``); no file is left then, nor after a crash, but ``PATH.part``. A damaged run goes along as it is.
    """
    if not isinstance(store, Upkeep):
        raise StoreError("no_upkeep", "this store can't be exported")
    await _insist_on_rest(store)
    with ArchiveWriter(path) as archive:
        archive.put(
            Begin(
                append_version=APPEND_SCHEMA_VERSION,
                kind=type(store).__name__,
                store_id=await store.identity(),
                at_ms=store.now_ms(),
            )
        )
        for switch in await store.switches():
            archive.put(SwitchRecord(switch))
        await _put_holds(store, archive)
        await _put_blobs(store, archive)
        seen = await _put_runs(store, archive)
        await _put_ledger(store, archive)
        if seen != await _put_runs(store, None):
            raise ConflictError("store_changed", "runs went on meanwhile; nothing was exported")
        return archive.finish()


async def import_store(store: EventStore, path: str) -> Imported:
    """Take an export in, whole or not at all. The file is read twice: nothing is written before all of it was found as
    written. A store that has this very content is left as it is, so an import whose outcome isn't known is made again.
    Raises as ``read_archive`` and ``TakesIn.take_in``."""
    if not isinstance(store, TakesIn):
        raise StoreError("no_upkeep", "this store can't take an export in")
    contents = await asyncio.to_thread(check_archive, path)
    try:
        await store.take_in(lambda: read_archive(path))
    except ConflictError as error:
        if error.code != "store_not_empty" or (await export_store(store, None)).sha256 != contents.sha256:
            raise
        return Imported(contents, True)
    return Imported(contents, False)


async def _insist_on_rest(store: EventStore) -> None:
    now_ms = store.now_ms()
    for host in await store.hosts():
        if host.expires_at_ms > now_ms:
            who = f"process {host.pid} on {host.node} hosts runs in it"
            raise ConflictError("store_in_use", who, path=host.host_id)


async def _put_holds(store: EventStore, archive: ArchiveWriter) -> None:
    group_holds = getattr(store, "group_holds", None)  # not of the port: stores whose owners change have it
    if group_holds is not None:
        for name, (places, until_ms) in sorted((await group_holds()).items()):
            archive.put(HoldRecord(name, places, until_ms))


async def _put_blobs(store: EventStore, archive: ArchiveWriter) -> None:
    assert isinstance(store, Upkeep)
    after = b""
    while names := await store.blob_names(after, PAGE_ROWS):
        for name in names:
            data = await store.get_blob(name)
            if data is None:
                continue  # taken away since
            archive.put(BlobRecord(name, len(data)))
            for start in range(0, max(len(data), 1), PART_BYTES):
                archive.put(PartRecord(data[start : start + PART_BYTES]))
        after = names[-1]


async def _put_runs(store: EventStore, archive: ArchiveWriter | None) -> bytes:
    """The runs and their logs; a digest of where they stand, and without an archive only that."""
    assert isinstance(store, Upkeep)
    stands = sha256()
    after = ""
    while page := await store.runs_in_order(after, PAGE_ROWS):
        for row in page:
            stands.update(msgspec.msgpack.encode((row.run_id, row.seq, row.head, row.index, row.damaged)))
            if archive is not None:
                archive.put(RunRecord(row))
                await _put_log(store, row, archive)
        after = page[-1].run_id
    return stands.digest()


async def _put_log(store: EventStore, run: RunRow, archive: ArchiveWriter) -> None:
    seq = 0
    while rows := await store.read(run.run_id, after_seq=seq, rows_max=PAGE_ROWS):
        for row in rows:
            archive.put(AppendRecord(row))
        if rows[-1].first_seq <= seq:
            break  # a damaged log; it goes no further
        seq = rows[-1].first_seq


async def _put_ledger(store: EventStore, archive: ArchiveWriter) -> None:
    assert isinstance(store, Upkeep)
    place: tuple[str, bytes] | None = None
    while rows := await store.ledger_rows(place, PAGE_ROWS):
        for row in rows:
            archive.put(LedgerRecord(row))
        place = rows[-1].tenant, rows[-1].key
    behind: tuple[str, bytes, int] | None = None
    while earlier := await store.earlier_rows(behind, PAGE_ROWS):
        for one in earlier:
            archive.put(EarlierRecord(one.place, one.row))
        behind = earlier[-1].row.tenant, earlier[-1].row.key, earlier[-1].place
