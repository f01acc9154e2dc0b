"""Both tables, arrow by arrow: each one is walked by some test of this folder, and nothing else moves a phase.

The tests are run again here, so that the answer doesn't depend on which of them were selected or in which order.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast, get_args

import pytest

from boundloop.runtime import events as e
from boundloop.runtime.diagram import SHOWN, state_machine_document
from boundloop.runtime.digest import DIGEST_REVISION
from boundloop.runtime.fold import begin, evolve
from boundloop.runtime.model import Usage
from boundloop.runtime.state import State, state_digest
from boundloop.runtime.transitions import (
    CALL,
    RUN,
    CallPhase,
    IllegalTransition,
    RunPhase,
    next_call_phase,
    next_run_phase,
)

from .spec import CALL_ARROWS, RUN_ARROWS, SHOWN_ARROWS, Arrow, Run, call

HERE = Path(__file__)
RANDOM = {"test_random_walk", "test_far_side_walk", "test_context_laws", HERE.stem}
"""Not counted: what a random walk walked today it may not walk tomorrow."""


def programs() -> Iterator[Callable[[], None]]:
    """Every test of this folder with its parameters filled in."""
    for path in sorted(HERE.parent.glob("test_*.py")):
        if path.stem in RANDOM:
            continue
        module = importlib.import_module(f"tests.decider.{path.stem}")
        for name, function in vars(module).items():
            if name.startswith("test_") and callable(function):
                yield from filled(function)


def filled(function: Callable[..., object]) -> Iterator[Callable[[], None]]:
    marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
    choices: list[list[dict[str, Any]]] = []
    for mark in marks:
        names, values = mark.args
        keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        choices.append(
            [dict(zip(keys, [value] if len(keys) == 1 else value, strict=True)) for value in values]
        )
    for chosen in itertools.product(*choices):
        arguments = {key: value for part in chosen for key, value in part.items()}

        def program(arguments: dict[str, Any] = arguments) -> None:
            function(**arguments)

        yield program


@pytest.fixture(scope="module")
def walked() -> tuple[set[Arrow], set[Arrow]]:
    RUN_ARROWS.clear()
    CALL_ARROWS.clear()
    SHOWN_ARROWS.clear()
    for program in programs():
        program()
    return set(RUN_ARROWS), set(CALL_ARROWS)


def listed(table: Any) -> set[Arrow]:
    return {(phase, tag, after) for (phase, tag), targets in table.items() for after in targets}


def test_every_arrow_of_a_run_is_walked(walked: tuple[set[Arrow], set[Arrow]]) -> None:
    assert sorted(listed(RUN) - walked[0]) == []


def test_every_arrow_of_a_call_is_walked(walked: tuple[set[Arrow], set[Arrow]]) -> None:
    assert sorted(listed(CALL) - walked[1]) == []


def test_no_arrow_is_walked_that_is_not_listed(walked: tuple[set[Arrow], set[Arrow]]) -> None:
    assert sorted(walked[0] - listed(RUN)) == []
    assert sorted(walked[1] - listed(CALL)) == []


def test_shown_phases_change_as_documented(walked: tuple[set[Arrow], set[Arrow]]) -> None:
    assert walked[0]
    assert sorted(SHOWN_ARROWS) == sorted(SHOWN)


def test_document_of_the_tables_is_fresh() -> None:
    written = (HERE.parents[2] / "docs" / "state-machine.md").read_text()
    assert written == state_machine_document(), "run python docs/make_state_machine.py"


def test_every_phase_is_a_row_and_every_tag_an_event() -> None:
    assert {phase for phase, _ in RUN} | {after for row in RUN.values() for after in row} == set(
        get_args(RunPhase)
    )
    assert {phase for phase, _ in CALL} | {after for row in CALL.values() for after in row} == set(
        get_args(CallPhase)
    )
    tags = {tag for _, tag in RUN}
    assert tags == set(e.EVENTS_BY_TAG)
    assert {tag for _, tag in CALL} <= tags


def test_tables_refuse_what_they_do_not_list() -> None:
    for phase, tag in itertools.product(get_args(RunPhase), e.EVENTS_BY_TAG):
        if (phase, tag) not in RUN:
            with pytest.raises(IllegalTransition):
                next_run_phase(phase, tag)
    for phase, tag in itertools.product(get_args(CallPhase), e.EVENTS_BY_TAG):
        if (phase, tag) not in CALL:
            with pytest.raises(IllegalTransition):
                next_call_phase(phase, tag)
    with pytest.raises(IllegalTransition):
        next_run_phase("created", "model_requested", "terminated")
    with pytest.raises(IllegalTransition):
        next_call_phase("proposed", "call_validated", "bound")


def one_of_each() -> list[e.AnyEvent]:
    """An event of each tag about the call ``c1.0``; only ``run_started`` can't be folded into a state."""
    zero = bytes(32)
    return [
        e.RunResumed(2, "woken"),
        e.DefinitionAdopted("get_order", zero),
        e.MessageReceived("runtime", "x"),
        e.LimitsRaised({"turns": 99}, "u"),
        e.CancelRequested("by_user", "u"),
        e.CloseRequested("u"),
        e.RunSuspended("incomplete", "max_turns"),
        e.RunTerminated("incomplete", "max_turns"),
        e.ModelRequested(2, 1, zero, 1, 1, 1, 0),
        e.ModelResponded(1, 1, "final", "", "x", 0, Usage(1, 1), 1, 1, 0),
        e.ModelFailed(1, 1, "x", True, 0, 1, 1, 0),
        e.CallProposed("c1.9", "get_order", b"{}"),
        e.CallValidated("c1.0", None, zero),
        e.CallRejected("c1.0", "policy", "x", "x"),
        e.CallsRejected(1, 1, "x", ()),
        e.ApprovalRequested("c1.0", "ap", 1, b"{}", zero, zero, zero, "p", "", 5),
        e.ApprovalDecided("c1.0", "ap", "approve", "u"),
        e.ApprovalLapsed("c1.0", "ap", "expired"),
        e.QuestionAsked("c1.0", "q", "x?", (), 5, zero),
        e.QuestionAnswered("c1.0", "q", b"{}", "u"),
        e.CallWaiting("c1.0", zero, "r", "c", "in_flight"),
        e.CallStarted("c1.0", 1, 5, zero),
        e.CallExecuted("c1.0", 1, "succeeded", b"{}", zero),
        e.CallReconciled("c1.0", "applied", "u"),
        e.ResultBound("c1.0", "ok", "", zero),
        e.ResultGuarded("c1.0", "allow", "", "g1", zero),
        e.AnswerGuarded(1, "allow", "", "g1", zero),
        e.ChildReserved("c1.0", "r2", "helper", {}, 5),
        e.ChildStarted("c1.0", "r2"),
        e.ChildToppedUp("c1.0", {}, "run:r2"),
        e.ChildSettled("c1.0", "r2", {}, "completed", "final"),
        e.LeaseDenied("run:r0", ("turns",)),
        e.StageEntered("draft", "enquire", ("c1.0",)),
        e.ContextCompacted(1, 2, False, 1, 1, zero, DIGEST_REVISION),
        e.FactRecorded("state", b"1", by="u"),
    ]


def in_phase(phase: CallPhase) -> Run:
    """A run whose one call is in this phase."""
    run = Run(fold_every_append=False)
    run.reply(call("refund", order_id="A", amount=5), call("get_order", order_id="A"))
    run.state.calls["c1.0"].phase = phase
    return run


def illegal(state: State, event: e.AnyEvent) -> None:
    before = state_digest(state)
    with pytest.raises(IllegalTransition):
        evolve(state, event, state.at_ms)
    assert state_digest(state) == before


def test_events_that_the_phase_of_the_run_does_not_admit_change_nothing() -> None:
    assert {e.tag_of(event) for event in one_of_each()} == set(e.EVENTS_BY_TAG) - {"run_started"}
    tried = 0
    for phase in get_args(RunPhase):
        for event in one_of_each():
            if (phase, e.tag_of(event)) in RUN:
                continue
            run = in_phase("proposed")
            run.state.phase = phase
            if isinstance(event, e.CallReconciled):
                continue  # judged by its call first; the next test has it
            illegal(run.state, event)
            tried += 1
    assert tried > 80


def test_events_that_the_phase_of_the_call_does_not_admit_change_nothing() -> None:
    tried = 0
    for phase in get_args(CallPhase):
        for event in one_of_each():
            tag = e.tag_of(event)
            if phase == "" or (phase, tag) in CALL or getattr(event, "call", "") != "c1.0":
                continue
            run = in_phase(phase)
            if isinstance(event, e.ApprovalDecided | e.ApprovalLapsed | e.QuestionAnswered):
                continue  # refused for its unknown approval or question before; the next test has them
            illegal(run.state, event)
            tried += 1
    assert tried >= 50


def test_decision_on_a_call_that_is_past_its_approval_changes_nothing() -> None:
    run = Run(fold_every_append=False)
    run.reply(call("refund", order_id="A", amount=5))
    run.ask("c1.0")
    run.approve("c1.0")
    run.check("c1.0", resource_version="v1")
    approval = run.approval("c1.0")
    illegal(run.state, e.ApprovalDecided("c1.0", approval, "approve", "u"))
    illegal(run.state, e.ApprovalLapsed("c1.0", approval, "expired"))


def test_run_starts_once() -> None:
    run = Run()
    started = cast(e.RunStarted, run.log[0][0])
    state = begin(started, run.pins, 1)
    before = state_digest(state)
    with pytest.raises(Exception, match="event_unknown"):
        evolve(state, started, 2)
    assert state_digest(state) == before
