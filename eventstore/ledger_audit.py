"""Does the effect ledger say what the logs say? Its rows, worked out again from the events, and compared.

The ledger is written in the transactions of the log, so each row follows from the events of the runs that claimed its
key. What is compared is everything but the time of the last change. Not found: a row that was taken out together with
every event that claimed its key; and among claims of one key in the same second, which of them came last.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

import msgspec

from ..runtime import events as e
from ..runtime.ledger import LedgerRow
from .codec import Recorded
from .rules import is_sound

SAME_TIME_MS = 1_000
"""Claims of one key within this time may have been committed in another order than their events' times say."""

Place = tuple[str, bytes]
"""(tenant, key)"""


class Holding(msgspec.Struct):
    """What one call has made of its key's row. ``status`` is empty if it holds nothing (any more)."""

    run_id: str
    call_id: str
    tool: str
    key: bytes
    intent_sha256: bytes
    args_sha256: bytes
    status: str = ""
    attempt: int = 0
    epoch: int = 0
    valid_until_ms: int = 0
    result: bytes | None = None
    result_sha256: bytes | None = None
    claimed_at_ms: int = 0
    claims: int = 0
    sent_attempt: int = 0
    sent_until_ms: int = 0
    asked_only: bool = False
    """Claimed for an approval, which leaves an abandoned unknown row as it is."""
    was_unknown: bool = False
    """Left unknown once, since its last claim; whatever it came to later, others may have asked about it or taken it over."""
    settled_late_epoch: int = 0
    """When it was unknown and turned out to have happened: if the key had been freed by then, the row was written anew, as
    of this epoch."""

    def claim(self, status: str, record: Recorded, attempt: int, valid_until_ms: int) -> None:
        self.status, self.attempt, self.valid_until_ms = status, attempt, valid_until_ms
        self.epoch, self.claimed_at_ms = record.epoch, record.at_ms
        self.result = self.result_sha256 = None
        self.claims += 1
        self.asked_only = status == "waiting_approval"
        self.was_unknown = False

    def settle(self, status: str, result: bytes | None = None) -> None:
        if self.status:
            self.was_unknown = self.was_unknown or status == "unknown"
            self.status, self.result = status, result
            self.result_sha256 = None if result is None else sha256(result).digest()

    def differs_from(self, row: LedgerRow) -> str:
        """The name of the first field that the row has otherwise; empty if none."""
        for name in _COMPARED:
            if getattr(self, name) != getattr(row, name):
                if name == "epoch" and row.epoch == self.settled_late_epoch:
                    continue
                return name
        return ""


_COMPARED = (
    "run_id",
    "call_id",
    "status",
    "tool",
    "intent_sha256",
    "args_sha256",
    "attempt",
    "epoch",
    "valid_until_ms",
    "result",
    "result_sha256",
)


class RunClaims:
    """One run's log as far as the ledger goes. ``started`` is None for a log that doesn't begin as runs do."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.started: e.RunStarted | None = None
        self.calls: dict[str, Holding] = {}
        self._tools: dict[str, str] = {}

    def take(self, records: Iterable[Recorded]) -> None:
        """The next events, in order."""
        for record in records:
            event = record.event
            if isinstance(event, e.RunStarted) and record.seq == 1:
                self.started = event
            elif isinstance(event, e.CallProposed):
                self._tools[event.call] = event.tool
            elif isinstance(event, e.CallValidated):
                self._validated(event)
            else:
                call = self.calls.get(getattr(event, "call", ""))
                if call is not None:
                    _follow(call, record)

    def _validated(self, event: e.CallValidated) -> None:
        if event.key is not None and event.intent_sha256 is not None:
            self.calls[event.call] = Holding(
                self.run_id,
                event.call,
                self._tools.get(event.call, ""),
                event.key,
                event.intent_sha256,
                event.args_sha256,
            )


def _follow(call: Holding, record: Recorded) -> None:
    """What an event about this call does to its row."""
    match record.event:
        case e.ApprovalRequested() as asked:
            call.claim("waiting_approval", record, 0, asked.expires_at_ms)
        case e.CallStarted() as started:
            call.sent_attempt, call.sent_until_ms = started.attempt, started.valid_until_ms
            call.claim("in_flight", record, started.attempt, started.valid_until_ms)
        case e.ApprovalDecided(decision="reject"):
            call.settle("rejected")
        case e.CallExecuted(outcome="succeeded") as done:
            call.settle("succeeded", done.result)
        case e.CallExecuted(outcome="unknown"):
            call.settle("unknown")
        case e.CallReconciled(outcome="applied") as done:
            if not call.status and call.sent_attempt:
                # Reported by the lost attempt itself after the key had been freed: taken again for it.
                call.claim("in_flight", record, call.sent_attempt, call.sent_until_ms)
            elif call.status == "unknown":
                call.settled_late_epoch = record.epoch
            call.settle("succeeded", done.result)
        case e.CallExecuted() | e.CallReconciled(outcome="absent") | e.ApprovalLapsed() | e.CallWaiting():
            call.settle("")
        case e.CallRejected() | e.ResultBound():
            if call.status in ("waiting_approval", "in_flight"):
                call.settle("")
        case _:
            pass


def ledger_faults(
    rows: Iterable[LedgerRow], runs: Iterable[RunClaims], unread: frozenset[str] = frozenset()
) -> list[str]:
    """What the rows have otherwise than the logs. ``unread``: runs whose log can't be trusted, or doesn't begin as runs
    do; nothing is said of rows that may be theirs."""
    claims: dict[Place, list[Holding]] = {}
    for run in runs:
        if run.started is not None:
            for call in run.calls.values():
                if call.claims:
                    claims.setdefault((run.started.tenant, call.key), []).append(call)
    faults: list[str] = []
    for row in rows:
        place = row.tenant, row.key
        problem = _problem(row, claims.pop(place, []), complete=not unread)
        if not is_sound(row):
            faults.append(f"{_name(place)} was changed")
        elif problem and row.run_id not in unread:
            faults.append(f"{_name(place)}: {problem}")
    for place, calls in claims.items():
        problem = _problem(None, calls, complete=not unread)
        if problem:
            faults.append(f"{_name(place)} is missing: {problem}")
    return faults


def _name(place: tuple[object, object]) -> str:
    tenant, key = place
    named = key.hex() if isinstance(key, bytes) else repr(key)
    return f"the ledger's row of key {named} of tenant {tenant!r}"


def _problem(row: LedgerRow | None, claims: list[Holding], *, complete: bool) -> str:
    possible = _possible(claims)
    if row is None:
        missing = [call for call in possible if call.status]
        if not complete or not missing or len(missing) < len(possible):
            return ""
        call = missing[0]
        return f"by the log of run {call.run_id}, call {call.call_id} has it as {call.status}"
    own = [call for call in claims if (call.run_id, call.call_id) == (row.run_id, row.call_id)]
    if not own:
        return f"no log has that call {row.call_id} of run {row.run_id} claimed it"
    name = own[0].differs_from(row)
    if name:
        return f"its {name} isn't what the log of run {row.run_id} says"
    if complete and own[0] not in possible:
        return f"call {possible[0].call_id} of run {possible[0].run_id} claimed it later"
    return ""


def _possible(claims: list[Holding]) -> list[Holding]:
    """The calls one of which has the row now, or has freed it: the latest to claim it, those at about the same time,
    behind one that only asked for an approval, who had left the effect unknown, and behind those who freed the key, whose
    effect turned out to have happened."""
    ordered = sorted(claims, key=lambda call: -call.claimed_at_ms)
    possible: list[Holding] = []
    for call in ordered:
        near = not possible or possible[0].claimed_at_ms - call.claimed_at_ms <= SAME_TIME_MS
        behind = possible and all(other.asked_only for other in possible) and call.was_unknown
        after_all = call.settled_late_epoch and all(other.status in ("", "rejected") for other in possible)
        if near or behind or after_all:
            possible.append(call)
    return possible
