"""The file that a store is exported to: every row as it is stored, with checksums and an end that a cut file lacks.

``boundloop store export 1`` and a newline, then records. A record is its length and its CRC-32, four bytes each
(big-endian), and its body: one msgpack map whose ``type`` is ``begin``, ``switch``, ``hold``, ``blob``, ``part``, ``run``, ``append``, ``ledger``,
``earlier`` or ``end``. They come in that order; the parts of a blob follow it, and so do the rows of a run's log. The end says
how many there are of each, and the SHA-256 of what they say of the store's content: of two stores with one content it is the
same, whatever their kinds.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from types import TracebackType
from typing import IO, Final, Self

import msgspec

from ..runtime.errors import CallerError, DamagedFile, DiskFull, NewerSchema, StoreError
from ..runtime.ledger import LedgerRow
from .port import APPEND_SCHEMA_VERSION, BLOB_BYTES_MAX, RunRow, StoredAppend, Switch
from .whole_file import begin_file, name_over

MAGIC: Final = b"boundloop store export "
FORMAT: Final = 1
PART_BYTES: Final = 256 * 1024
"""A blob's part; the last may be shorter. An empty blob has one, empty."""

RECORD_BYTES_MAX: Final = BLOB_BYTES_MAX + 1024 * 1024
"""A longer record is none of ours."""

_HEAD_BYTES: Final = 8
_LINE_BYTES_MAX: Final = 64


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag="begin"):
    """Where the file is from: not a part of the content. ``append_version``: of the log's rows."""

    append_version: int
    kind: str
    store_id: str
    at_ms: int


class SwitchRecord(msgspec.Struct, frozen=True, tag="switch"):
    """A kill switch that is on."""

    switch: Switch


class HoldRecord(msgspec.Struct, frozen=True, tag="hold"):
    """Places of a limited group that may be in use at a far side until then. Not a part of the content: it passes."""

    name: str
    places: int
    until_ms: int


class BlobRecord(msgspec.Struct, frozen=True, tag="blob"):
    """Its parts follow."""

    sha256: bytes
    size_bytes: int


class PartRecord(msgspec.Struct, frozen=True, tag="part"):
    """The next part of the blob before."""

    data: bytes


class RunRecord(msgspec.Struct, frozen=True, tag="run"):
    """A run's index row, in the order in which runs were made. Its log follows."""

    row: RunRow


class AppendRecord(msgspec.Struct, frozen=True, tag="append"):
    """A row of the log of the run before."""

    row: StoredAppend


class LedgerRecord(msgspec.Struct, frozen=True, tag="ledger"):
    """A key's row."""

    row: LedgerRow


class EarlierRecord(msgspec.Struct, frozen=True, tag="earlier"):
    """What stands behind a key's row; places count from the oldest."""

    place: int
    row: LedgerRow


class End(msgspec.Struct, frozen=True, tag="end"):
    """How many records of each type there were, and the digest of the content."""

    counts: dict[str, int]
    sha256: bytes


Record = (
    Begin
    | SwitchRecord
    | HoldRecord
    | BlobRecord
    | PartRecord
    | RunRecord
    | AppendRecord
    | LedgerRecord
    | EarlierRecord
    | End
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode
_ORDER: Final[dict[type, int]] = {
    kind: place
    for place, kinds in enumerate(
        (
            (Begin,),
            (SwitchRecord,),
            (HoldRecord,),
            (BlobRecord, PartRecord),
            (RunRecord, AppendRecord),
            (LedgerRecord,),
            (EarlierRecord,),
            (End,),
        )
    )
    for kind in kinds
}
_NO_CONTENT: Final = (Begin, HoldRecord, End)
_KEYED: Final = (SwitchRecord, LedgerRecord, EarlierRecord)


class Contents(msgspec.Struct, frozen=True):
    """What an export holds: ``counts`` by record type, and the digest of the content."""

    counts: dict[str, int]
    sha256: bytes

    @property
    def runs(self) -> int:
        """Runs, pruned ones too."""
        return self.counts.get("run", 0)


class Tally:
    """Counts and digests records as they pass."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._content = sha256()
        self._keyed = 0

    def take(self, record: Record, body: bytes) -> None:
        """``body`` is the record as encoded here."""
        tag = str(type(record).__struct_config__.tag)
        self._counts[tag] += 1
        if isinstance(record, _KEYED):
            # Stores of different kinds have these in different orders, where a text holds U+0000.
            self._keyed = (self._keyed + int.from_bytes(sha256(body).digest(), "big")) % (1 << 256)
        elif not isinstance(record, _NO_CONTENT):
            self._content.update(len(body).to_bytes(4, "big") + body)

    def contents(self) -> Contents:
        """Of all that passed."""
        content = self._content.copy()
        content.update(self._keyed.to_bytes(32, "big"))
        return Contents(dict(sorted(self._counts.items())), content.digest())


class ArchiveWriter:
    """A new file beside ``path`` (``whole_file``) that takes its name, over another's, when it is whole and on disk; leaving the block
    before removes it. Without a path the records are only counted and digested. Raises ``DiskFull`` and ``StoreError``."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._part = ""
        self._tally = Tally()
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        if self._path is not None:
            try:
                self._part, descriptor = begin_file(self._path)
                self._file = os.fdopen(descriptor, "wb", buffering=1024 * 1024)
                self._file.write(MAGIC + str(FORMAT).encode() + b"\n")
            except OSError as error:
                raise _of_the_disk(error, self._path) from error
        return self

    def put(self, record: Record) -> None:
        """Write one record."""
        body = _encode(record)
        self._tally.take(record, body)
        self._write(body)

    def _write(self, body: bytes) -> None:
        if self._file is not None:
            try:
                self._file.write(len(body).to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big") + body)
            except OSError as error:
                raise _of_the_disk(error, self._part) from error

    def finish(self) -> Contents:
        """Write the end and give the file its name."""
        contents = self._tally.contents()
        self._write(_encode(End(contents.counts, contents.sha256)))
        if self._file is not None and self._path is not None:
            try:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
                name_over(self._part, self._path)
                self._file = None
            except OSError as error:
                raise _of_the_disk(error, self._path) from error
        return contents

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # a full disk, once more; the file goes anyway
                file.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._part)


def read_archive(path: str) -> Iterator[Record]:
    """The records but for the end, each checked as it comes; after the last one, that the end says what was read. Raises
    ``CallerError`` for a file that isn't there or is no export, ``DamagedFile`` for one that is cut or changed, or holds
    records out of order, ``NewerSchema`` for a newer format or newer rows, ``StoreError``. Bounded: one record is held at a time."""
    try:
        with open(path, "rb") as file:
            yield from _records(file, path)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise CallerError("file_unreadable", error.strerror or "it can't be read", path=path) from error
    except OSError as error:
        raise StoreError("unreadable", str(error), path=path) from error


def check_archive(path: str) -> Contents:
    """Read the whole file, blobs against their names too. Raises as ``read_archive``."""
    tally = Tally()
    blob: BlobRecord | None = None
    content, size = sha256(), 0
    for record in read_archive(path):
        tally.take(record, _encode(record))
        if isinstance(record, PartRecord):
            content.update(record.data)
            size += len(record.data)
            continue
        if blob is not None and (content.digest(), size) != (blob.sha256, blob.size_bytes):
            raise DamagedFile(path, f"blob {blob.sha256.hex()} isn't what its name says")
        blob = record if isinstance(record, BlobRecord) else None
        content, size = sha256(), 0
    if blob is not None and (content.digest(), size) != (blob.sha256, blob.size_bytes):
        raise DamagedFile(path, f"blob {blob.sha256.hex()} isn't what its name says")
    return tally.contents()


def _records(file: IO[bytes], path: str) -> Iterator[Record]:
    place = _begin(file, path)
    tally = Tally()
    before: Record | None = None
    while True:
        record, body, length = _next(file, path, place)
        _check_order(before, record, path, place)
        if isinstance(record, End):
            contents = tally.contents()
            if (record.counts, record.sha256) != (contents.counts, contents.sha256):
                raise DamagedFile(path, "its end tells of other records than it holds")
            if file.read(1):
                raise DamagedFile(path, f"there is more behind its end at byte {place + length}")
            return
        tally.take(record, body)
        yield record
        before = record
        place += length


def _begin(file: IO[bytes], path: str) -> int:
    line = file.readline(_LINE_BYTES_MAX)
    if not line.startswith(MAGIC) or not line.endswith(b"\n"):
        raise CallerError("no_export", "the file is no export of a store", path=path)
    version = line[len(MAGIC) : -1]
    if not version.isdigit():
        raise CallerError("no_export", "the file is no export of a store", path=path)
    if int(version) > FORMAT:
        raise NewerSchema(int(version), FORMAT, path=path)
    return len(line)


def _next(file: IO[bytes], path: str, place: int) -> tuple[Record, bytes, int]:
    head = file.read(_HEAD_BYTES)
    size = int.from_bytes(head[:4], "big")
    if len(head) == _HEAD_BYTES and size > RECORD_BYTES_MAX:
        raise DamagedFile(path, f"the record at byte {place} isn't as written")
    body = file.read(size) if len(head) == _HEAD_BYTES else b""
    if len(head) < _HEAD_BYTES or len(body) < size:
        raise DamagedFile(path, f"it is cut off in the record at byte {place}, before its end")
    try:
        if zlib.crc32(body) != int.from_bytes(head[4:], "big"):
            raise ValueError
        record = _decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise DamagedFile(path, f"the record at byte {place} isn't as written") from error
    return record, body, _HEAD_BYTES + size


def _check_order(before: Record | None, record: Record, path: str, place: int) -> None:
    first = before is None
    fits = isinstance(record, Begin) if first else not isinstance(record, Begin)
    fits = fits and (first or _ORDER[type(before)] <= _ORDER[type(record)])
    if isinstance(record, PartRecord):
        fits = fits and isinstance(before, BlobRecord | PartRecord)
    if isinstance(record, AppendRecord):
        run_id = getattr(getattr(before, "row", None), "run_id", None)
        fits = fits and isinstance(before, RunRecord | AppendRecord) and run_id == record.row.run_id
    if not fits:
        raise DamagedFile(path, f"the record at byte {place} is out of place")
    if isinstance(record, Begin) and record.append_version > APPEND_SCHEMA_VERSION:
        raise NewerSchema(record.append_version, APPEND_SCHEMA_VERSION, path=path)


def _of_the_disk(error: OSError, path: str) -> StoreError:
    import errno

    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(path)
    return StoreError("unwritable", str(error), path=path)
