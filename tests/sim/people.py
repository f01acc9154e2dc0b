"""The people of the simulated world: they see approvals and stopped runs, and answer, or don't, in their own time.

They are honest: what they say of an unknown effect is what its far side knows, once nothing of it is under way any more.
What they said yes to is on their own record, which the judge believes and not the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from boundloop.runtime import events as e
from boundloop.runtime.canonical import JSON, canonical_bytes, decode_canonical
from boundloop.runtime.commands import (
    Answer,
    Approve,
    Close,
    OutsideCommand,
    RaiseLimits,
    RecordFact,
    Reject,
    ResolveCall,
    Resume,
    Send,
)
from boundloop.runtime.limits import MARGIN_MS

from .shop import declared_limits

if TYPE_CHECKING:
    from .world import World

_DEFAULTS: Final[dict[str, Any]] = {"reason": ""}
LOOKS_AT_A_RUN_MAX: Final = 6
"""How often somebody does something about one stopped run."""

_MORE: Final[dict[str, dict[str, int]]] = {
    "max_turns": {"turns": 14, "model_attempts": 40},
    "max_tool_calls": {"tool_calls": 40, "call_attempts": 80},
    "budget_cost": {"cost_micros": 1_000_000},
    "budget_tokens": {"total_tokens": 2_000_000},
    "deadline": {"deadline_ms": 240_000},
    "context_exhausted": {"context_tokens": 200_000},
}


def same_arguments(given: JSON, received: Mapping[str, Any]) -> bool:
    """Equal as JSON, but for defaults that the tool's own signature adds."""
    if not isinstance(given, dict):
        return False
    without = {
        name: value
        for name, value in received.items()
        if name in given or value != _DEFAULTS.get(name, object())
    }
    return canonical_bytes(without) == canonical_bytes(given)


class People:
    """``pending`` counts who is about to do something."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._shown: dict[str, bytes] = {}
        self._yes: set[str] = set()
        self._looks: dict[str, int] = {}
        self._answers: dict[str, set[str]] = {}
        self._commands = 0

    def said_yes(self, approval_id: str, arguments: Mapping[str, Any]) -> bool:
        """Whether a person approved exactly this. The preview shows the arguments."""
        shown = self._shown.get(approval_id)
        if shown is None or approval_id not in self._yes:
            return False
        asked = decode_canonical(shown)
        assert isinstance(asked, dict)
        return same_arguments(asked.get("arguments"), arguments)

    def notices(self, run_id: str, event: e.AnyEvent) -> None:
        """Somebody reads the log."""
        match event:
            case e.ApprovalRequested():
                self._shown[event.approval_id] = event.preview
                self._asked(run_id, event.approval_id)
            case e.QuestionAsked():
                self._wondered(run_id, event)
            case e.ChildReserved():
                self._lent(run_id, event)
            case e.RunSuspended():
                self._stopped(run_id, event)
            case _:
                pass

    def _lent(self, run_id: str, event: e.ChildReserved) -> None:
        """Somebody sees that a child has less than its agent might have, and gives the run at the top more."""
        most = declared_limits(event.agent).get("turns", 0)
        if event.granted.get("turns", 0) < most:
            root = self._world.judge.runs[run_id].root_id
            after_ms = self._world.dice("lent", run_id, event.call).randint(20, 400)
            raised = {"turns": 40, "tool_calls": 80, "model_attempts": 90}
            self._submit(root, RaiseLimits(command_id=self._id(), by="boss", raised=raised), after_ms)

    # --- approvals ---------------------------------------------------------------------------------------------------

    def _asked(self, run_id: str, approval_id: str) -> None:
        world = self._world
        chance = world.dice("person", approval_id)
        strike = world.struck("person")
        kind = "" if strike is None else strike.kind
        if strike is not None:
            world.triples.at_run(kind, run_id)
        drawn = chance.random()
        after_ms = chance.randint(20, 3_000)
        yes = Approve(command_id=self._id(), by="boss", approval_id=approval_id)
        no = Reject(
            command_id=self._id(),
            by="boss",
            approval_id=approval_id,
            on_reject="stop" if chance.random() < 0.1 else "continue",
        )
        if kind == "approval_expiry" or (not kind and drawn < 0.04):
            return
        if kind == "approval_race":
            first, second = (yes, no) if drawn < 0.5 else (no, yes)
            self._submit(run_id, first, after_ms)
            self._submit(run_id, second, after_ms)
        elif kind == "order_changed":
            self._change(approval_id)
            self._submit(run_id, yes, after_ms)
            late = msgspec.structs.replace(yes if drawn < 0.7 else no, command_id=self._id())
            self._submit(run_id, late, after_ms + chance.choice((40, 300, 900, 2_000)))
        elif not kind and drawn < 0.12:
            self._submit(run_id, no, after_ms)
        else:
            self._submit(run_id, yes, after_ms)
            if kind == "decided_twice":
                self._submit(run_id, yes, after_ms + chance.choice((0, 1, 700)))
                self._submit(run_id, no, after_ms + 900)

    def _change(self, approval_id: str) -> None:
        """What is shown isn't what is there any more."""
        shown = decode_canonical(self._shown[approval_id])
        arguments = shown.get("arguments") if isinstance(shown, dict) else None
        if isinstance(arguments, dict):
            self._world.far_side.moves(str(arguments.get("order_id")))

    # --- questions and messages --------------------------------------------------------------------------------------

    def answered(self, question_id: str, result: JSON) -> bool:
        """Whether a person said exactly this."""
        given = self._answers.get(question_id, set())
        return isinstance(result, dict) and result.get("answer") in given

    def _wondered(self, run_id: str, event: e.QuestionAsked) -> None:
        world = self._world
        chance = world.dice("person", event.question_id)
        strike = world.struck("person")
        kind = "" if strike is None else strike.kind
        drawn = chance.random()
        if kind == "approval_expiry" or (not kind and drawn < 0.04):
            return
        after_ms = chance.randint(20, 3_000)
        answer = Answer(
            command_id=self._id(),
            by="boss",
            question_id=event.question_id,
            text=chance.choice(event.choices or ("it is fine", "\u00fcber")),
        )
        cannot = Answer(
            command_id=self._id(), by="boss", question_id=event.question_id, cannot=True, stop=drawn > 0.9
        )
        first = cannot if not kind and drawn < 0.15 else answer
        self._submit(run_id, first, after_ms)
        if kind == "approval_race":
            self._submit(run_id, cannot, after_ms)
        elif kind == "decided_twice":
            self._submit(run_id, first, after_ms + 1)

    def speak(self, run_id: str, size: int) -> None:
        """Somebody says something to a run, or puts a fact on record."""
        if size % 4 == 0:
            fact = RecordFact(command_id=self._id(), by="boss", name="mood", value=str(size))
            self._submit(run_id, fact, 0)
        else:
            self._submit(run_id, Send(command_id=self._id(), by="boss", text=f"and mind {size}"), 0)

    # --- stopped runs ------------------------------------------------------------------------------------------------

    def _stopped(self, run_id: str, event: e.RunSuspended) -> None:
        looks = self._looks[run_id] = self._looks.get(run_id, 0) + 1
        chance = self._world.dice("stopped", run_id, looks)
        if looks > LOOKS_AT_A_RUN_MAX:
            return
        after_ms = chance.randint(50, 3_000)
        if event.reason == "outcome_unknown":
            self._world.later(after_ms, lambda: self._resolve(run_id, event.detail))
            return
        drawn = chance.random()
        if drawn < 0.2:
            self._submit(run_id, Close(command_id=self._id(), by="boss"), after_ms)
        elif drawn < 0.9:
            more = _MORE.get(event.reason)
            if more is not None:
                self._submit(run_id, RaiseLimits(command_id=self._id(), by="boss", raised=more), after_ms)
            self._submit(run_id, Resume(command_id=self._id(), by="boss"), after_ms + 400)

    async def _resolve(self, run_id: str, call: str) -> None:
        """Look at the far side once nothing of this effect can arrive any more, and say what is there."""
        world = self._world
        watch = world.judge.runs[run_id]
        held = watch.state.calls.get(call) or watch.state.unknown_calls.get(call)
        if held is None or held.key is None:
            return
        for _ in range(40):
            if world.now_ms() > held.valid_until_ms + MARGIN_MS and not world.in_flight:
                break
            await world.sleep(1_000)
        happened = world.far_side.happened(held.key.hex())
        await world.ask(
            run_id,
            ResolveCall(
                command_id=self._id(),
                by="boss",
                call=call,
                outcome="absent" if happened is None else "applied",
                result="" if happened is None else canonical_bytes(happened).decode(),
            ),
        )

    # --- how they say it ---------------------------------------------------------------------------------------------

    def _id(self) -> str:
        self._commands += 1
        return f"cmd_{self._commands}"

    def raise_limits(self, run_id: str) -> None:
        """Somebody is generous while the run goes on."""
        raised = {"turns": 40, "tool_calls": 80, "model_attempts": 90}
        self._submit(run_id, RaiseLimits(command_id=self._id(), by="boss", raised=raised), 0)

    def command_id(self) -> str:
        """A fresh one, for whoever else asks for something."""
        return self._id()

    def _submit(self, run_id: str, command: OutsideCommand, after_ms: int) -> None:
        async def say() -> None:
            if isinstance(command, Approve):
                # Their own record: from the moment that they ask for it, it may be done.
                self._yes.add(command.approval_id)
            elif isinstance(command, Answer):
                self._answers.setdefault(command.question_id, set()).add(command.text)
            await self._world.ask(run_id, command)

        self._world.later(after_ms, say)
