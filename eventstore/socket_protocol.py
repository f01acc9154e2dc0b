"""What travels on an owner's socket: frames, operations and typed errors.

A frame is four bytes of length (big-endian) and one msgpack value: a ``Request`` one way, an ``Answer`` the other.
Answers may come in another order than requests. Both ends read the argument and answer types from one table.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import msgspec

from ..runtime import errors
from ..runtime.errors import BoundloopError, BugError, StoreError
from ..runtime.ledger import LedgerRow
from .port import (
    BLOB_BYTES_MAX,
    AcquireAnswer,
    Append,
    AppendAnswer,
    HostRow,
    RunFilter,
    RunRow,
    StoredAppend,
    Switch,
)
from .upkeep import EarlierRow

PROTOCOL_VERSION = 11

FRAME_BYTES_MAX = BLOB_BYTES_MAX + 2 * 1024 * 1024
"""The largest blob and what travels with it. A longer frame ends the connection."""

ROWS_MAX = 1_000
"""Rows that one call may ask for: with bodies of at most 16 KiB they fit a frame. A greater wish is cut to this."""

SOCKET_PATH_BYTES_MAX = 107
"""What fits a Unix socket address."""

SOCKET_NAME_BYTES_MAX = 64


class Request(msgspec.Struct, frozen=True, array_like=True):
    """``args`` is the msgpack array of the operation's arguments."""

    number: int
    op: str
    args: msgspec.Raw


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """A typed error by its class name and its fields."""

    kind: str
    fields: dict[str, str | int | bool]


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """``number`` is the request's. ``now_ms`` is the store's time. Without ``failure``, ``value`` is the answer.
    ``switches`` counts the changes of kill switches that the owner knows of: a host elsewhere that sees another number
    reads them before it dispatches."""

    number: int
    now_ms: int
    value: msgspec.Raw
    failure: Failure | None = None
    switches: int = 0


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """Who answers: ``token`` is the one in the lock file."""

    version: int
    token: str
    pid: int


ARGUMENTS: dict[str, Any] = {
    "hello": tuple[int],
    "identity": tuple[()],
    "append": tuple[Append],
    "read": tuple[str, int, int],
    "run": tuple[str],
    "runs": tuple[RunFilter],
    "put_blob": tuple[bytes],
    "get_blob": tuple[bytes],
    "ledger_row": tuple[str, bytes],
    "ledger_rows": tuple[tuple[str, bytes] | None, int],
    "unknown_effects": tuple[str | None, int],
    "register_host": tuple[HostRow],
    "renew_host": tuple[str],
    "drop_host": tuple[str, bool],
    "hosts": tuple[()],
    "acquire": tuple[str, str, list[str]],
    "release": tuple[str, str, int, bool],
    "ready_runs": tuple[int],
    "next_wake_ms": tuple[()],
    "mark_damaged": tuple[str, str],
    "faults": tuple[()],
    "back_up": tuple[str],
    "prune": tuple[str, int, bytes],
    "drop_blobs": tuple[list[bytes], int],
    "reindex": tuple[RunRow],
    "lost_logs": tuple[int, int],
    "adopt": tuple[int, str],
    "astray": tuple[str, int],
    "runs_in_order": tuple[str, int],
    "blob_names": tuple[bytes, int],
    "earlier_rows": tuple[tuple[str, bytes, int] | None, int],
    "switches": tuple[()],
    "set_switch": tuple[Switch, bool],
    "submit": tuple[str, str, bytes],
    "ask": tuple[str, bytes],
    "tell": tuple[str, bytes],
}

ANSWERS: dict[str, Any] = {
    "hello": Hello,
    "identity": str,
    "append": AppendAnswer,
    "read": list[StoredAppend],
    "run": RunRow | None,
    "runs": list[RunRow],
    "put_blob": bytes,
    "get_blob": bytes | None,
    "ledger_row": LedgerRow | None,
    "ledger_rows": list[LedgerRow],
    "unknown_effects": list[LedgerRow],
    "register_host": None,
    "renew_host": bool,
    "drop_host": None,
    "hosts": list[HostRow],
    "acquire": AcquireAnswer,
    "release": None,
    "ready_runs": list[str],
    "next_wake_ms": int | None,
    "mark_damaged": None,
    "faults": list[str],
    "back_up": None,
    "prune": bool,
    "drop_blobs": int,
    "reindex": bool,
    "lost_logs": list[tuple[int, StoredAppend]],
    "adopt": bool,
    "astray": list[str],
    "runs_in_order": list[RunRow],
    "blob_names": list[bytes],
    "earlier_rows": list[EarlierRow],
    "switches": list[Switch],
    "set_switch": None,
    "submit": bytes,
    "ask": bytes,
    "tell": bytes,
}

encode = msgspec.msgpack.Encoder().encode


def frame(value: object) -> bytes:
    """One frame. Raises ``StoreError`` if the value is too large to travel."""
    body = encode(value)
    if len(body) > FRAME_BYTES_MAX:
        raise StoreError("frame_too_large", f"{len(body)} bytes don't fit a frame of {FRAME_BYTES_MAX}")
    return len(body).to_bytes(4, "big") + body


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The next frame's body; None at the end, or after a broken or oversized frame: the connection is of no use."""
    try:
        size = int.from_bytes(await reader.readexactly(4), "big")
        return await reader.readexactly(size) if size <= FRAME_BYTES_MAX else None
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def failure_of(error: BaseException) -> Failure:
    """An error as it travels. What isn't one of ours is a bug of the owner, and says only its type."""
    if not isinstance(error, BoundloopError):
        error = BugError("owner_bug", type(error).__name__)
    fields = {name: value for name, value in vars(error).items() if isinstance(value, str | int | bool)}
    return Failure(type(error).__name__, fields)


def error_of(failure: Failure) -> BoundloopError:
    """The error again, of its own class; of an unknown class, a ``StoreError`` with the same fields."""
    kind = getattr(errors, failure.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, BoundloopError) and kind is not BoundloopError):
        kind = StoreError
    error = kind.__new__(kind)
    vars(error).update({"code": "unknown", "message": "", "path": ""} | failure.fields)
    error.args = (error.code, error.message, error.path)
    return error


def socket_name(path: str) -> str:
    """The socket's name in the folder of the store's file; hashed if the file's name is long."""
    name = os.path.basename(path)
    if len(os.fsencode(name)) + 5 > SOCKET_NAME_BYTES_MAX:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:32]
    return f"{name}.sock"


@contextmanager
def socket_address(folder: str, name: str) -> Generator[str, None, None]:
    """An address of ``folder/name`` that fits, good until the block ends."""
    plain = os.path.join(folder, name)
    if len(os.fsencode(plain)) <= SOCKET_PATH_BYTES_MAX:
        yield plain
        return
    if not os.path.isdir("/proc/self/fd"):
        raise StoreError("path_too_long", "the path leaves no room for a socket address", path=plain)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)
