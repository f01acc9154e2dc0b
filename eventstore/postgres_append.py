"""Appends as the server's function takes them, and its answers as the port gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ..runtime.errors import BugError
from ..runtime.ledger import Claim, LedgerRow, Settlement
from .chain import check_follows
from .port import (
    APPEND_SCHEMA_VERSION,
    AlreadyDone,
    Append,
    AppendAnswer,
    Appended,
    ClaimTaken,
    Conflict,
    Fenced,
)
from .rules import EARLIER_MAX
from .run_pages import rest_of
from .text_columns import from_column, to_column

APPEND: Final = "SELECT * FROM append_batch($1, $2, $3)"

BLOB_PART_BYTES: Final = 256 * 1024
"""A blob is stored in parts of this size."""


class _NewRun(msgspec.Struct):
    tenant: str
    agent: str
    operation_id: str
    parent_id: str
    root_id: str


class _Claim(msgspec.Struct):
    tenant: str
    key: str
    tool: str
    call_id: str
    status: str
    intent_sha256: str
    args_sha256: str
    attempt: int
    valid_until_ms: int
    over_run: str | None
    over_call: str | None


class _Settlement(msgspec.Struct):
    tenant: str
    key: str
    call_id: str
    goes_to: str
    result: str | None
    result_sha256: str | None
    sent: _Claim | None


class _Blob(msgspec.Struct):
    sha256: str
    size_bytes: int
    part_count: int
    parts: list[str]


class AppendItem(msgspec.Struct):
    """An append as the server's type ``append_item`` in JSON; bytes are hex as PostgreSQL writes them."""

    run_id: str
    expected_seq: int
    event_count: int
    epoch: int
    schema_version: int
    at_ms: int
    append_id: str
    causation: str
    body: str
    prev_hash: str
    hash: str
    status: str
    outcome: str
    reason: str
    waiting_for: str
    waiting_keys: list[str]
    wake_at_ms: int | None
    host_id: str
    created: _NewRun | None
    claim: _Claim | None
    settlements: list[_Settlement]
    settled_first: int
    earlier_max: int
    is_released: bool
    is_ready: bool
    wakes: list[str]
    blobs: list[_Blob]
    is_plain: bool


encode_items = msgspec.json.Encoder().encode


def lock_order(requests: Sequence[Append]) -> list[str] | None:
    """The runs that a batch touches, if it is more than one."""
    if len(requests) == 1 and not requests[0].wake_runs:
        return None
    touched = {to_column(request.run_id) for request in requests}
    for request in requests:
        touched.update(map(to_column, request.wake_runs))
    return sorted(touched)


def _hex(data: bytes) -> str:
    return "\\x" + data.hex()


def append_item(request: Append, *, uploaded: bool) -> AppendItem:
    """``uploaded``: the parts of its blobs are in the store already."""
    index, create, claim = request.index, request.create, request.claim
    return AppendItem(
        to_column(request.run_id),
        request.expected_seq,
        request.event_count,
        request.epoch,
        APPEND_SCHEMA_VERSION,
        request.at_ms,
        _hex(request.append_id),
        to_column(request.causation),
        _hex(request.body),
        _hex(request.prev_hash),
        _hex(request.hash),
        to_column(index.status),
        to_column(index.outcome),
        to_column(index.reason),
        to_column(index.waiting_for),
        [_hex(key) for key in index.waiting_keys],
        index.wake_at_ms,
        to_column(request.host_id),
        None
        if create is None
        else _NewRun(
            to_column(create.tenant),
            to_column(create.agent),
            to_column(create.operation_id),
            to_column(create.parent_id),
            to_column(create.root_id),
        ),
        None if claim is None else _claim(claim),
        [_settlement(one) for one in request.settlements],
        request.settled_first,
        EARLIER_MAX,
        request.release,
        request.ready,
        [to_column(run_id) for run_id in request.wake_runs],
        [_blob(digest, data, uploaded=uploaded) for digest, data in request.blobs],
        _is_plain(request),
    )


def _is_plain(request: Append) -> bool:
    """It does nothing but go on: its run stays owned and isn't at rest after it, and no key, blob nor other run has to do with it."""
    index = request.index
    return not (
        request.create is not None
        or request.claim is not None
        or request.settlements
        or request.release
        or request.ready
        or request.wake_runs
        or request.blobs
        or index.waiting_keys
        or index.waiting_for
        or rest_of(index)
    )


def _claim(claim: Claim) -> _Claim:
    over_run, over_call = claim.over or (None, None)
    return _Claim(
        to_column(claim.tenant),
        _hex(claim.key),
        to_column(claim.tool),
        to_column(claim.call_id),
        "waiting_approval" if claim.kind == "approval" else "in_flight",
        _hex(claim.intent_sha256),
        _hex(claim.args_sha256),
        claim.attempt,
        claim.valid_until_ms,
        None if over_run is None else to_column(over_run),
        None if over_call is None else to_column(over_call),
    )


def _settlement(settlement: Settlement) -> _Settlement:
    result, digest = settlement.result, settlement.result_sha256
    return _Settlement(
        to_column(settlement.tenant),
        _hex(settlement.key),
        to_column(settlement.call_id),
        settlement.to,
        None if result is None else _hex(result),
        None if digest is None else _hex(digest),
        None if settlement.sent is None else _claim(settlement.sent),
    )


def _blob(digest: bytes, data: bytes, *, uploaded: bool) -> _Blob:
    parts = blob_parts(data)
    return _Blob(_hex(digest), len(data), len(parts), [] if uploaded else [_hex(part) for part in parts])


def blob_parts(data: bytes) -> list[bytes]:
    """At least one, so that an empty blob is one too."""
    return [data[at : at + BLOB_PART_BYTES] for at in range(0, max(len(data), 1), BLOB_PART_BYTES)]


def answer_of(row: Any, request: Append, now_ms: int) -> AppendAnswer | BugError:
    """One row of the function's result. A ``BugError`` is for the caller of this append alone."""
    match row["kind"]:
        case "appended":
            return Appended(row["seq"], now_ms, row["was_woken"])
        case "already_done":
            return AlreadyDone(row["seq"], now_ms)
        case "conflict":
            return Conflict(row["seq"])
        case "fenced":
            return Fenced(row["number"])
        case "claim_taken":
            return ClaimTaken(ledger_row(_row_from_json(row["held"])))
        case _:
            try:
                check_follows(request, from_column(row["tenant"]), row["number"])
            except BugError as error:
                return error
            return BugError("store_bug", "the server refused an append that follows", path=request.run_id)


_BYTES_OF_LEDGER: Final = ("key", "intent_sha256", "args_sha256", "result", "result_sha256")


def _row_from_json(text: str) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.json.decode(text)
    for name in _BYTES_OF_LEDGER:
        if row[name] is not None:
            row[name] = bytes.fromhex(row[name][2:])
    return row


def ledger_row(row: Any) -> LedgerRow:
    """A row of the ledger, unchecked."""
    return LedgerRow(
        tenant=from_column(row["tenant"]),
        key=row["key"],
        tool=from_column(row["tool"]),
        status=row["status"],
        intent_sha256=row["intent_sha256"],
        args_sha256=row["args_sha256"],
        run_id=from_column(row["run_id"]),
        call_id=from_column(row["call_id"]),
        attempt=row["attempt"],
        epoch=row["epoch"],
        valid_until_ms=row["valid_until_ms"],
        at_ms=row["at_ms"],
        result=row["result"],
        result_sha256=row["result_sha256"],
    )
