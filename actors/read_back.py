"""What ``read_result`` asks for, read from the run's own log and blobs by the host that has the run.

Where a guardrail judges results, that is what it judged: of a large result its view, and nothing behind it.

Only what was bound as a result is there to be read: what was executed and then refused, withheld or found invalid is not. A
run's handle finds nothing in another run's log, whoever's that is, and the answer is that of a handle that never was.
"""

from __future__ import annotations

from hashlib import sha256

from ..eventstore.codec import resolve
from ..eventstore.port import EventStore
from ..runtime import events as e
from ..runtime.canonical import decode_canonical
from ..runtime.commands import Executed
from ..runtime.guardrails import WITHHELD
from ..runtime.read_result import (
    READ_LIMIT_DEFAULT,
    READ_RESULT,
    UNKNOWN_HANDLE,
    UNKNOWN_HANDLE_TEXT,
    part_of,
)
from ..runtime.results import room_for_result
from ..runtime.state import CallState, State
from ..runtime.withheld import guards_results

PAGE_ROWS = 200


async def read_back(store: EventStore, state: State, call: CallState) -> Executed:
    """The report of one attempt of ``read_result``. Raises ``StoreError`` and ``LogDamaged``: nothing was read then."""
    arguments = decode_canonical(call.arguments or b"{}")
    given = arguments if isinstance(arguments, dict) else {}
    handle = str(given.get("handle", ""))
    whole = await whole_result(store, state.run_id, handle, views=guards_results(state))
    if whole is None:
        return failed(call, UNKNOWN_HANDLE, UNKNOWN_HANDLE_TEXT)
    room = min(READ_RESULT.result_bytes_max, room_for_result(state))
    offset, limit = _count(given.get("offset"), 0), _count(given.get("limit"), READ_LIMIT_DEFAULT)
    part = part_of(whole, handle, offset, limit, room)
    return Executed(call=call.call, attempt=call.attempt, outcome="succeeded", result=part)


def failed(call: CallState, code: str, message: str, *, retryable: bool = False) -> Executed:
    """The report of an attempt that read nothing."""
    return Executed(
        call=call.call,
        attempt=call.attempt,
        outcome="failed",
        code=code,
        safe_message=message,
        retryable=retryable,
        no_effect=True,
    )


def _count(value: object, default: int) -> int:
    return value if type(value) is int else default


async def whole_result(store: EventStore, run_id: str, handle: str, *, views: bool = False) -> bytes | None:
    """The bound result of this run whose hash begins so, whole; None if there is none, or more than one. One pass over the
    log, page by page. ``views``: a large result is there as the view that was judged and shown, and by the hash of that."""
    results = _Results(handle, views)
    seq = 0
    while rows := await store.read(run_id, after_seq=seq, rows_max=PAGE_ROWS):
        for record in await resolve(rows, store.get_blob):
            results.take(record.event)
            seq = record.seq
    if len(results.found) != 1:
        return None
    ((digest, inline),) = results.found.items()
    if inline is not None:
        return inline
    whole = await store.get_blob(digest)
    return whole if whole is not None and sha256(whole).digest() == digest else None


class _Results:
    """The bound results that a handle names: by hash, with the bytes where the log itself holds them."""

    def __init__(self, handle: str, views: bool) -> None:
        self._handle = handle
        self._views = views
        self._unbound: dict[str, tuple[bytes, bytes | None]] = {}
        self._settled: set[str] = set()
        self.found: dict[bytes, bytes | None] = {}

    def take(self, event: e.AnyEvent) -> None:
        match event:
            case e.CallExecuted() | e.CallReconciled():
                if event.result is not None and event.result_sha256 is not None:
                    large = event.artifact if isinstance(event, e.CallExecuted) else None
                    whole = None if self._views else large
                    inline = event.result if whole is None else None
                    self._unbound[event.call] = (whole or event.result_sha256, inline)
            case e.ChildSettled():
                self._settled.add(event.call)
            case e.ResultBound():
                if event.result is not None:
                    self._add(sha256(event.result).digest(), event.result)
                elif event.call in self._unbound and self._shown(event):
                    self._add(*self._unbound[event.call])
                self._unbound.pop(event.call, None)
            case _:
                pass

    def _shown(self, event: e.ResultBound) -> bool:
        """Whether the model saw it: a success, or what an agent that failed had done, unless it was withheld."""
        return event.status == "ok" or (event.call in self._settled and event.code != WITHHELD)

    def _add(self, digest: bytes, inline: bytes | None) -> None:
        if self._handle and digest.hex().startswith(self._handle):
            self.found[digest] = inline
