"""What a caller gets of a run: a frozen picture taken when it stopped, ended or began to wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from ..runtime.answer import Citation, answer_of
from ..runtime.canonical import JSON
from ..runtime.events import UnknownBelow
from ..runtime.index import waiting_for
from ..runtime.orders import shown_phase
from ..runtime.questions import answerable_until_ms
from ..runtime.state import METERED, State
from ..runtime.stops import unfinished
from ..runtime.strict_json import parse_value


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """An open approval: what is to be decided, in which run. ``preview`` is canonical JSON."""

    run_id: str
    approval_id: str
    call: str
    tool: str
    preview: str
    expires_at_ms: int


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """An open question to people, in which run. ``choices`` is empty where any text answers it."""

    run_id: str
    question_id: str
    call: str
    question: str
    choices: tuple[str, ...]
    expires_at_ms: int


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One run at one moment.

    ``status`` is ``ended``, ``stopped`` (someone can lift it: ``resumable``), ``waiting`` (for what ``waiting_for``
    names) or ``running``; a run that waits for nothing but child runs is running, by them. Where all of those rest until a
    person acts, whoever waits for the run is told ``waiting``, with the approvals and questions below (``resting.rested_result``). ``outcome`` and ``reason`` are empty unless it ended or stopped. ``text`` is the final answer
    of a completed run. ``citations``: what a completed run's answer refers to, where its goal asks for citations, each with when its
    source was read and in which version. ``typed``: the answer is the JSON that the goal asks for (``output``). ``spent`` and ``limits`` are per metered quantity; ``overrun`` only where usage passed a limit.
    ``unknown_effects`` names calls of this run, and ``RUN/CALL`` of ended runs below it; ``unknown_effects_more`` counts more below.
    """

    run_id: str
    operation_id: str
    status: str
    phase: str
    outcome: str
    reason: str
    detail: str
    text: str
    resumable: bool
    waiting_for: str
    unfinished: tuple[str, ...]
    approvals: tuple[Approval, ...]
    unknown_effects: tuple[str, ...]
    spent: dict[str, int]
    overrun: dict[str, int]
    seq: int
    unknown_effects_more: int = 0
    citations: tuple[Citation, ...] = ()
    typed: bool = False

    @property
    def output(self) -> JSON:
        """The answer of a completed run whose goal asks for a typed one, as JSON values; else None."""
        return parse_value(self.text.encode()) if self.typed else None

    questions: tuple[Question, ...] = ()

    @property
    def completed(self) -> bool:
        """Whether the run ended in success: an explicit final answer, with the evidence that its goal asks for."""
        return self.outcome == "completed"


def unknown_names(below: Iterable[UnknownBelow]) -> Iterator[str]:
    """How a result names unknown effects of runs below: ``RUN/CALL``, and the run alone where its log can't be read."""
    return (f"{one.run}/{one.call}" if one.call else one.run for one in below)


def result_of(state: State) -> Result:
    """The picture of this state."""
    waits = waiting_for(state)
    if state.phase == "terminated":
        status = "ended"
    elif state.phase == "suspended":
        status = "stopped"
    else:
        status = "waiting" if waits and not waits.startswith("child:") else "running"
    approvals = tuple(
        Approval(
            run_id=state.run_id,
            approval_id=call.approval.approval_id,
            call=call.call,
            tool=call.tool,
            preview=call.approval.preview.decode(),
            expires_at_ms=call.approval.expires_at_ms,
        )
        for call in state.calls.values()
        if call.phase == "waiting_approval" and call.approval is not None
    )
    goal = state.pins.goal
    cites = goal is not None and goal.citations is not None and state.outcome == "completed"
    meters = {name: getattr(state.meters, name) for name in METERED}
    open_unknown = [call.call for call in state.calls.values() if call.phase == "reconciling"]
    return Result(
        run_id=state.run_id,
        operation_id=state.operation_id,
        status=status,
        phase=shown_phase(state),
        outcome=state.outcome,
        reason=state.reason,
        detail=state.detail,
        text=state.final_text,
        resumable=state.phase == "suspended",
        waiting_for=waits,
        unfinished=state.unfinished if state.outcome else unfinished(state),
        approvals=approvals,
        unknown_effects=(*open_unknown, *state.unknown_calls, *unknown_names(state.unknown_below)),
        unknown_effects_more=state.unknown_more,
        spent={name: meter.spent for name, meter in meters.items()},
        overrun={name: meter.overrun for name, meter in meters.items() if meter.overrun},
        seq=state.seq,
        citations=answer_of(state, state.final_text).citations if cites else (),
        typed=goal is not None and goal.output is not None and state.outcome == "completed",
        questions=tuple(
            Question(
                run_id=state.run_id,
                question_id=call.question.question_id,
                call=call.call,
                question=call.question.question,
                choices=call.question.choices,
                expires_at_ms=answerable_until_ms(state, call.question),
            )
            for call in state.calls.values()
            if call.phase == "waiting_answer" and call.question is not None
        ),
    )
