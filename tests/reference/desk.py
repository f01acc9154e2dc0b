"""What a person's word is good for, by the contract alone: one call, exactly as it was shown, in time, once.

Written from the rules of approvals and not from the interpreter: ``refusal`` says whether a decision counts, ``start`` what
a call may do with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Start = Literal["start", "expired", "ask_again", "given_up", "not_sent"]
REQUESTER = "local"
Wish = tuple[str, str, str]
"""(approve or reject, approval id, who)."""


@dataclass(frozen=True)
class World:
    """What an approval binds beside its call: a change of any of it makes the approval stale."""

    definition: int = 0
    policy: int = 0
    resource: int = 0
    preview: int = 0

    def moved_by_the_effect_alone(self, then: World) -> bool:
        """Whether only that differs which a lost effect may itself have moved on."""
        return (self.definition, self.policy) == (then.definition, then.policy)


@dataclass
class Asked:
    """One preview that a person was shown."""

    approval_id: str
    call: str
    round: int
    shown: World
    expires_at_ms: int
    decided: str = ""
    by: str = ""
    lapsed: bool = False
    served: bool = False


@dataclass
class Desk:
    """All previews of one run, and which of them a call has now."""

    rounds_max: int
    separate: bool
    asked: dict[str, Asked] = field(default_factory=dict[str, Asked])
    current: dict[str, str] = field(default_factory=dict[str, str])
    used_commands: dict[str, Wish] = field(default_factory=dict[str, Wish])

    def show(self, asked: Asked) -> None:
        assert asked.approval_id not in self.asked, "an approval id stands for one preview"
        before = self.current.get(asked.call)
        assert asked.round == (1 if before is None else self.asked[before].round + 1) <= self.rounds_max
        assert before is None or self.asked[before].lapsed, "one preview at a time"
        self.asked[asked.approval_id] = asked
        self.current[asked.call] = asked.approval_id

    def refusal(self, command: Wish, command_id: str, *, now_ms: int, waiting: bool) -> str | None:
        """The code with which a decision is refused, empty if it counts, None if it is the same command again.

        ``waiting``: whether the call is open and waits for a person.
        """
        if command_id in self.used_commands:
            return None if self.used_commands[command_id] == command else "command_id_reused"
        kind, name, by = command
        asked = self.asked.get(name)
        if asked is None or self.current.get(asked.call) != name:
            return "approval_not_found"
        if asked.decided or asked.lapsed or not waiting:
            return "approval_used"
        if self.separate and by == REQUESTER:
            return "same_person"
        if kind == "approve" and now_ms >= asked.expires_at_ms:
            return "approval_expired"
        return ""

    def decide(self, command: Wish, command_id: str) -> None:
        kind, name, by = command
        self.used_commands[command_id] = command
        self.asked[name].decided, self.asked[name].by = kind, by

    def start(self, call: str, world: World, *, now_ms: int, attempt: int, unknown: bool) -> Start:
        """What becomes of an approved call that is about to be sent for the ``attempt``-th time."""
        asked = self.asked[self.current[call]]
        if now_ms >= asked.expires_at_ms:
            return "expired" if attempt == 1 else "not_sent"
        if asked.shown == world or (unknown and world.moved_by_the_effect_alone(asked.shown)):
            return "start"
        if attempt > 1:
            return "not_sent"
        return "ask_again" if asked.round < self.rounds_max else "given_up"
