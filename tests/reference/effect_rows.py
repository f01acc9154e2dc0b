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
class Matter:
    """What is known of one key. ``sent``: effects that aren't known to have come to nothing, in the order of their last
    start. ``happened``: those known to have happened, in the order in which that was learnt."""

    sent: dict[Holder, Row] = field(default_factory=dict[Holder, Row])
    happened: list[Row] = field(default_factory=list[Row])
    question: Row | None = None

    def row(self) -> Row | None:
        """Something under way comes first, then what happened, then what may have happened, then what a person is asked.
        Another intent of which nobody knows what became isn't hidden by one that happened."""
        latest = next(reversed(self.sent.values()), None)
        if latest is not None and latest.status == "in_flight":
            return latest
        done = self.happened[0] if self.happened else None
        if done is not None and (latest is None or latest.intent == done.intent):
            return done
        return latest if latest is not None else self.question

    def start(self, row: Row) -> None:
        self.question = None
        self.sent.pop(row.holder, None)
        self.sent[row.holder] = row

    def know(self, row: Row) -> None:
        """It happened. If it is what stands for the key, nothing else does any more."""
        front = self.row()
        self.sent.pop(row.holder, None)
        if front is not None and front.holder == row.holder:
            self.sent.clear()
            self.happened.clear()
        self.happened.append(row)
        if self.row() is row:
            self.sent.clear()
        self.question = None


@dataclass
class Rows:
    """All keys of one tenant. ``changes`` counts the changes of each row."""

    matters: dict[bytes, Matter] = field(default_factory=dict[bytes, Matter])
    changes: dict[bytes, int] = field(default_factory=dict[bytes, int])

    @property
    def rows(self) -> dict[bytes, Row]:
        shown = {key: matter.row() for key, matter in self.matters.items()}
        return {key: row for key, row in shown.items() if row is not None}

    def fact(self, run: str, event: e.AnyEvent, key: bytes, intent: bytes) -> None:
        """What one fact of one call does to what is known of its key."""
        matter = self.matters.setdefault(key, Matter())
        before = matter.row()
        self._learn(matter, event, (run, getattr(event, "call", "")), intent)
        if matter.row() != before:
            self.changes[key] = self.changes.get(key, 0) + 1

    def _learn(self, matter: Matter, event: e.AnyEvent, me: Holder, intent: bytes) -> None:
        asks = matter.question is not None and matter.question.holder == me
        match event:
            case e.ApprovalRequested():
                # Nobody's "no" may make an effect look as if it hadn't been sent.
                if matter.row() in (None, matter.question):
                    matter.question = Row("waiting_approval", intent, me)
            case e.ApprovalDecided(decision="reject") if asks:
                matter.question = Row("rejected", intent, me)
            case e.CallStarted():
                matter.start(Row("in_flight", intent, me))
            case e.CallExecuted(outcome="succeeded"):
                matter.know(Row("succeeded", intent, me))
            case e.CallExecuted(outcome="unknown"):
                matter.sent[me] = Row("unknown", intent, me)
            case e.CallReconciled(outcome="applied"):
                if me not in [row.holder for row in matter.happened]:
                    matter.know(Row("succeeded", intent, me))
            case e.CallExecuted() | e.CallReconciled(outcome="absent"):
                matter.sent.pop(me, None)
            case e.CallRejected() if asks and matter.question is not None:
                if matter.question.status == "waiting_approval":
                    matter.question = None
            case _:
                pass
