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

_SENT = frozenset(("in_flight", "unknown", "succeeded"))

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
    settled_late_epoch: int = 0
    """Set if it turned out to have happened: its row may have been written anew then, as of this epoch."""

    def claim(self, status: str, record: Recorded, attempt: int, valid_until_ms: int) -> None:
        self.status, self.attempt, self.valid_until_ms = status, attempt, valid_until_ms
        self.epoch, self.claimed_at_ms = record.epoch, record.at_ms
        self.result = self.result_sha256 = None
        self.claims += 1

    def settle(self, status: str, result: bytes | None = None) -> None:
        if self.status:
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
            if call.status in ("", "waiting_approval", "rejected") and call.sent_attempt:
                # Found out after the key had been given back: written as it was sent.
                call.claim("in_flight", record, call.sent_attempt, call.sent_until_ms)
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
    rows: Iterable[LedgerRow],
    runs: Iterable[RunClaims],
    unread: frozenset[str] = frozenset(),
    pruned: frozenset[str] = frozenset(),
) -> list[str]:
    """What the rows have otherwise than the logs. ``unread``: runs whose log can't be trusted, or doesn't begin as runs
    do; nothing is said of rows that may be theirs. ``pruned``: runs that have ended without an effect of which nobody knows;
    nothing is said of their rows, nor of keys that they may have had after a question."""
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
        elif problem and row.run_id not in unread and row.run_id not in pruned:
            faults.append(f"{_name(place)}: {problem}")
    for place, calls in claims.items():
        problem = _problem(None, calls, complete=not unread, whole=not pruned)
        if problem:
            faults.append(f"{_name(place)} is missing: {problem}")
    return faults


def _name(place: tuple[object, object]) -> str:
    tenant, key = place
    named = key.hex() if isinstance(key, bytes) else repr(key)
    return f"the ledger's row of key {named} of tenant {tenant!r}"


def _problem(row: LedgerRow | None, claims: list[Holding], *, complete: bool, whole: bool = True) -> str:
    if row is None:
        # What may have happened isn't forgotten: a key is free only once nobody is left who has sent, or sent in vain.
        left = next((call for call in claims if call.status in _SENT), None)
        if left is None and whole:
            left = _asked(claims)
        if left is None or not complete:
            return ""
        return f"by the log of run {left.run_id}, call {left.call_id} has it as {left.status}"
    own = next((call for call in claims if (call.run_id, call.call_id) == (row.run_id, row.call_id)), None)
    if own is None:
        return f"no log has that call {row.call_id} of run {row.run_id} claimed it"
    name = own.differs_from(row)
    if name:
        return f"its {name} isn't what the log of run {row.run_id} says"
    other = next((call for call in claims if call is not own and _in_front(call, own)), None)
    if complete and other is not None:
        return f"call {other.call_id} of run {other.run_id} has it as {other.status}"
    return ""


def _asked(claims: list[Holding]) -> Holding | None:
    """Whose question has the key, if anybody's: the latest one's, unless an effect was sent before, behind whose row a question
    takes none."""
    latest = max(call.claimed_at_ms for call in claims)
    near = [call for call in claims if latest - call.claimed_at_ms <= SAME_TIME_MS]
    if any(call.sent_attempt for call in claims if call not in near) or not all(call.status for call in near):
        return None
    return near[0]


def _in_front(other: Holding, own: Holding) -> bool:
    """Whether the key's row must be this other call's, not one's own."""
    if other.status not in _SENT:
        return False
    if own.status in ("waiting_approval", "rejected"):
        return True  # a question takes no row of an effect that was sent
    if other.claimed_at_ms - own.claimed_at_ms <= SAME_TIME_MS:
        return False
    late = own.status == "succeeded" and own.settled_late_epoch
    return other.status == "in_flight" or not (
        late and (other.status == "unknown" or other.settled_late_epoch)
    )
