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

    The store must be at rest: a live host is refused (``ConflictError``, ``store_in_use``), and so is whatever was written
    meanwhile, by whomever (``store_changed``): all that stands in the store is read again behind the last record. What an import
    couldn't take as it was is refused too: a log whose index row is gone (``StoreError``, ``lost_log``), and a blob that isn't
    what its name says (``blob_damaged``). No file is left then, nor after a crash, but a part (``whole_file``). A damaged run goes
    along as it is.
    """
    if not isinstance(store, Upkeep):
        raise StoreError("no_upkeep", "this store can't be exported")
    await _insist_on_rest(store)
    await _insist_on_rows(store)
    with ArchiveWriter(path) as archive:
        archive.put(
            Begin(
                append_version=APPEND_SCHEMA_VERSION,
                kind=type(store).__name__,
                store_id=await store.identity(),
                at_ms=store.now_ms(),
            )
        )
        written = await _pass(store, _Pass(archive))
        # What changed and changed back between the two is in the file as it stands when the second begins: all else that is
        # compared only goes up.
        again = await _pass(store, _Pass(None))
        if written.stands() != again.stands() or not written.holds_as(again, store.now_ms()):
            raise ConflictError("store_changed", "it was written to meanwhile; nothing was exported")
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


async def _insist_on_rows(store: EventStore) -> None:
    """Runs are found by their index rows: a log without one would be left out."""
    assert isinstance(store, Upkeep)
    lost = await store.lost_logs(limit=1)
    if lost:
        what = "a log has lost its row, and would be left out: `boundloop store rebuild` restores it"
        raise StoreError("lost_log", what, path=f"log {lost[0][0]}")


class _Pass:
    """One pass over all that a store holds: it goes to the archive, if there is one, and what stands is remembered."""

    def __init__(self, archive: ArchiveWriter | None) -> None:
        self.archive = archive
        self._stands = sha256()
        self._holds: set[HoldRecord] = set()

    def put(self, record: SwitchRecord | HoldRecord | RunRecord | LedgerRecord | EarlierRecord) -> None:
        """What is read in both passes."""
        if isinstance(record, HoldRecord):
            self._holds.add(record)
        else:
            self.see(record)
        if self.archive is not None:
            self.archive.put(record)

    def see(self, what: object) -> None:
        """It stands in the store, here in the order."""
        body = msgspec.msgpack.encode(what)
        self._stands.update(len(body).to_bytes(4, "big") + body)

    def stands(self) -> bytes:
        return self._stands.digest()

    def holds_as(self, later: _Pass, now_ms: int) -> bool:
        """Whether the holds that haven't passed by now are the same. They pass by themselves."""
        mine, others = ({one for one in some._holds if one.until_ms > now_ms} for some in (self, later))
        return mine == others


async def _pass(store: EventStore, one: _Pass) -> _Pass:
    for switch in await store.switches():
        one.put(SwitchRecord(switch))
    await _put_holds(store, one)
    await _put_blobs(store, one)
    await _put_runs(store, one)
    await _put_ledger(store, one)
    return one


async def _put_holds(store: EventStore, one: _Pass) -> None:
    group_holds = getattr(store, "group_holds", None)  # not of the port: stores whose owners change have it
    if group_holds is not None:
        for name, (places, until_ms) in sorted((await group_holds()).items()):
            one.put(HoldRecord(name, places, until_ms))


async def _put_blobs(store: EventStore, one: _Pass) -> None:
    assert isinstance(store, Upkeep)
    after = b""
    while names := await store.blob_names(after, PAGE_ROWS):
        for name in names:
            one.see(name)
            if one.archive is not None:
                await _put_blob(store, name, one.archive)
        after = names[-1]


async def _put_blob(store: EventStore, name: bytes, archive: ArchiveWriter) -> None:
    assert isinstance(store, Upkeep)
    data = await store.get_blob(name)
    if data is None and name not in await store.blob_names(_just_below(name), 1):
        raise ConflictError("store_changed", "a blob went meanwhile; nothing was exported", path=name.hex())
    if data is None or sha256(data).digest() != name:
        what = "the blob isn't what its name says, and no store would take it in"
        raise StoreError("blob_damaged", what, path=name.hex())
    archive.put(BlobRecord(name, len(data)))
    for start in range(0, max(len(data), 1), PART_BYTES):
        archive.put(PartRecord(data[start : start + PART_BYTES]))


def _just_below(name: bytes) -> bytes:
    """The greatest name of this length below it, which ``blob_names`` then gives first."""
    number = int.from_bytes(name, "big")
    return (number - 1).to_bytes(len(name), "big") if number else b""


async def _put_runs(store: EventStore, one: _Pass) -> None:
    """The runs and their logs. Of a log its row says how far it goes."""
    assert isinstance(store, Upkeep)
    after = ""
    while page := await store.runs_in_order(after, PAGE_ROWS):
        for row in page:
            one.put(RunRecord(row))
            if one.archive is not None:
                await _put_log(store, row, one.archive)
        after = page[-1].run_id


async def _put_log(store: EventStore, run: RunRow, archive: ArchiveWriter) -> None:
    seq = 0
    while rows := await store.read(run.run_id, after_seq=seq, rows_max=PAGE_ROWS):
        for row in rows:
            archive.put(AppendRecord(row))
        if rows[-1].first_seq <= seq:
            break  # a damaged log; it goes no further
        seq = rows[-1].first_seq


async def _put_ledger(store: EventStore, one: _Pass) -> None:
    assert isinstance(store, Upkeep)
    place: tuple[str, bytes] | None = None
    while rows := await store.ledger_rows(place, PAGE_ROWS):
        for row in rows:
            one.put(LedgerRecord(row))
        place = rows[-1].tenant, rows[-1].key
    behind: tuple[str, bytes, int] | None = None
    while earlier := await store.earlier_rows(behind, PAGE_ROWS):
        for each in earlier:
            one.put(EarlierRecord(each.place, each.row))
        behind = earlier[-1].row.tenant, earlier[-1].row.key, earlier[-1].place
