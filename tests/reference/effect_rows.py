"""What becomes of a key, by the contract's table alone: facts move its row, and the row says what a call that wants it gets.

Written from the table of effects and not from ``key_rows`` or a store's rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from boundloop.runtime import events as e

Holder = tuple[str, str]
Verdict = Literal["go", "conflict", "replay", "wait", "rejected", "left_unknown"]
SENT_AGAIN = ("keyed", "natural")
"""Far sides at which sending a lost effect again makes no second one."""


@dataclass(frozen=True)
class Row:
    status: str
    intent: bytes
    holder: Holder

    @property
    def at_rest(self) -> bool:
        """Nobody is at work on it: who waits for it has something to look at."""
        return self.status in ("succeeded", "rejected", "unknown")


@dataclass(frozen=True)
class Want:
    """A call that wants a key. ``waits_for``: whose decision it has been waiting for."""

    holder: Holder
    intent: bytes
    far_side: str
    waits_for: Holder | None = None


def verdict(row: Row | None, want: Want, *, abandoned: bool) -> Verdict:
    """``abandoned``: the row is unknown, and whoever sent it will neither send nor ask any more."""
    if row is None:
        return "go"
    if row.status == "rejected":
        return "rejected" if want.waits_for == row.holder else "go"
    if row.intent != want.intent:
        return "conflict"
    if row.status == "succeeded":
        return "replay"
    if row.holder == want.holder:
        return "go"
    if row.status == "unknown" and abandoned:
        return "go" if want.far_side in SENT_AGAIN else "left_unknown"
    return "wait"


@dataclass
class Rows:
    """All keys of one tenant. ``changes`` counts the changes of each."""

    rows: dict[bytes, Row] = field(default_factory=dict[bytes, Row])
    changes: dict[bytes, int] = field(default_factory=dict[bytes, int])

    def put(self, key: bytes, row: Row | None) -> None:
        if self.rows.get(key) != row:
            self.changes[key] = self.changes.get(key, 0) + 1
        if row is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = row

    def fact(self, run: str, event: e.AnyEvent, key: bytes, intent: bytes) -> None:
        """What one fact of one call does to the key's row."""
        me = (run, getattr(event, "call", ""))
        held = self.rows.get(key)
        mine = held is not None and held.holder == me
        match event:
            case e.ApprovalRequested():
                # Nobody's "no" may make a lost effect look as if it hadn't been sent, whatever became of it meanwhile.
                if held is None or held.status == "rejected" or mine:
                    self.put(key, Row("waiting_approval", intent, me))
            case e.ApprovalDecided(decision="reject") if mine:
                self.put(key, Row("rejected", intent, me))
            case e.CallStarted():
                self.put(key, Row("in_flight", intent, me))
            case e.CallExecuted() if mine:
                to = {"succeeded": "succeeded", "unknown": "unknown"}.get(event.outcome)
                self.put(key, None if to is None else Row(to, intent, me))
            case e.CallReconciled(outcome="applied") if mine or held is None or held.status == "rejected":
                self.put(key, Row("succeeded", intent, me))
            case e.CallReconciled(outcome="absent") if mine:
                self.put(key, None)
            case e.CallRejected() if mine and held is not None and held.status == "waiting_approval":
                self.put(key, None)
            case _:
                pass
