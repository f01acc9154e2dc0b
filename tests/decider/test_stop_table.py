"""The page on stops, row by row: what a finish leads to, what lifts a stop, and no name without its reason here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from boundloop.runtime.commands import Close, RaiseLimits, ResolveCall, Resume
from boundloop.runtime.goal import Goal
from boundloop.runtime.model import FINISH, FinishKind, Usage
from boundloop.runtime.orders import ShownPhase
from boundloop.runtime.prices import FREE, Price
from boundloop.runtime.stop_document import (
    ENDS_ELSEWHERE,
    FINISH_LEADS_TO,
    LIFTED_BY,
    PHASES_ELSEWHERE,
    stops_document,
)
from boundloop.runtime.stops import REASONS

from .shop import TOOLS, limits, pins
from .spec import Run, call

PAGE = Path(__file__).parents[2] / "docs" / "stops.md"
READ = call("get_order", order_id="A")
REFUND = call("refund", order_id="A", amount=5)
PRICE = Price(input=1_000_000, output=1_000_000)

ENDS_IN_THE_FIELD = (
    *("COMPLETED", "REFUSED", "INCOMPLETE", "FAILED", "RETRY", "NO_PROGRESS"),
    *(
        "final",
        "max_steps",
        "deadline",
        "budget",
        "cancelled",
        "policy_denied",
        "tool_failed",
        "model_failed",
    ),
    *("unknown_tool", "budget_exceeded", "FINAL_TEXT", "REFUSAL", "TRUNCATED", "API_FAILURE"),
)
"""What texts on such loops call an end, or a step that looks like one."""
PHASES_IN_THE_FIELD = (
    *("MODEL_REQUESTED", "TOOL_PROPOSALS", "VALIDATING", "WAITING_APPROVAL", "EXECUTING", "RESULTS_READY"),
)


def test_page_is_fresh() -> None:
    assert PAGE.read_text() == stops_document(), "run python docs/make_state_machine.py"


@pytest.mark.parametrize("script", ["docs/make_state_machine.py", "tests/planted/page.py"])
@pytest.mark.parametrize(("asked", "code"), [("--help", 0), ("--other", 2)])
def test_what_writes_pages_writes_none_when_it_is_asked_for_help(script: str, asked: str, code: int) -> None:
    def written() -> dict[str, int]:
        return {page.name: page.stat().st_mtime_ns for page in PAGE.parent.glob("*.md")}

    before = written()
    done = subprocess.run(
        [sys.executable, script, asked], cwd=PAGE.parents[1], capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert "usage" in done.stdout + done.stderr
    assert written() == before


def test_each_reason_that_can_be_lifted_says_how_and_no_other_does() -> None:
    assert set(LIFTED_BY) == {reason for reason, (_, liftable) in REASONS.items() if liftable}


def test_outcomes_and_what_can_be_lifted_are_as_published() -> None:
    """The contract's own table, written down a second time."""
    ends = {
        "completed": {"final"},
        "refused": {"model_refusal", "content_filtered"},
        "failed": {"tool_failed", "policy_denied", "approval_denied"},
        "cancelled": {"by_user", "by_parent", "kill_switch"},
    }
    liftable = {
        "incomplete": {
            *("max_turns", "max_tool_calls", "budget_tokens", "budget_cost", "deadline", "no_progress"),
            *("context_exhausted", "evidence_missing", "truncated", "empty_response", "approval_expired"),
            *("outcome_unknown", "blocked"),
        },
        "failed": {"model_failed", "definition_changed", "crash_loop"},
    }
    found: dict[bool, dict[str, set[str]]] = {False: {}, True: {}}
    for reason, (outcome, lifted) in REASONS.items():
        found[lifted].setdefault(outcome, set()).add(reason)
    assert found == {False: ends, True: liftable}


def test_names_elsewhere_have_their_reason_here() -> None:
    named = {name for names, _, _ in ENDS_ELSEWHERE for name in names.replace("`", "").split(", ")}
    assert set(ENDS_IN_THE_FIELD) - named == set()
    assert {reason for _, reasons, _ in ENDS_ELSEWHERE for reason in reasons} <= set(REASONS)
    phases = {name for names, _ in PHASES_ELSEWHERE for name in names.replace("`", "").split(", ")}
    assert set(PHASES_IN_THE_FIELD) - phases == set()
    assert {phase for _, phase in PHASES_ELSEWHERE} <= set(get_args(ShownPhase))


# --- finishes ------------------------------------------------------------------------------------------------------


def stopped_after(finish: FinishKind, text: str, goal: Goal | None) -> str:
    """Why a run stops whose every answer ends so; empty if it would go on."""
    run = Run(pins(goal=goal, bounds=limits(turns=3)))
    for _ in range(6):
        if not run.state.live:
            break
        if run.state.phase == "model_retry":
            run.tick_to_wake()
        else:
            run.reply(*((READ,) if finish == "calls" else ()), finish=finish, text=text)
            if finish == "calls":
                break
    return run.state.reason


@pytest.mark.parametrize("finish", list(FINISH))
def test_a_finish_leads_where_the_table_says_and_nowhere_else(finish: FinishKind) -> None:
    found = {
        stopped_after(finish, text, goal)
        for text in ("done", "", " \n")
        for goal in (None, Goal.of("refund"))
    }
    goes_on = {"max_turns"} if finish == "paused" else {""} if finish == "calls" else set[str]()
    assert found == set(FINISH_LEADS_TO[finish][0]) | goes_on


def test_only_an_explicit_final_answer_leads_to_completed() -> None:
    completed = {reason for reason, (outcome, _) in REASONS.items() if outcome == "completed"}
    assert {finish for finish, (reasons, _) in FINISH_LEADS_TO.items() if completed & set(reasons)} == {
        "final"
    }


# --- what lifts a stop -----------------------------------------------------------------------------------------------


def read(run: Run, result: object = None) -> None:
    run.reply(READ)
    name = f"c{run.state.turn}.0"
    run.check(name)
    if run.started(name):
        run.report(name, result=result)


def out_of(name: str) -> Callable[[], Run]:
    """A run that read once and has no more of this; in the bounds nothing else runs out."""

    def played() -> Run:
        values = {
            "turns": 1,
            "model_attempts": 1,
            "tool_calls": 0,
            "call_attempts": 1,
            "input_tokens": 1_700,
            "output_tokens": 100,
            "total_tokens": 1_800,
            "cost_micros": 2_500,
            "context_tokens": 1_800,
            "history_bytes": 300,
        }
        price = PRICE if name == "cost_micros" else FREE
        run = Run(pins(bounds=limits(**{name: values[name]}), price=price))
        for number in range(20):
            if not run.state.live:
                break
            run.reply(call("get_order", order_id=f"A{number}"), usage=Usage(500, 50))
            run.check(f"c{run.state.turn}.0")
            if run.started(f"c{run.state.turn}.0"):
                run.report(f"c{run.state.turn}.0", result={"n": number})
        return run

    return played


def searched_too_often() -> Run:
    bounds = limits(hosted_calls=1)
    run = Run(msgspec.structs.replace(pins(bounds=bounds), hosted=("web_search",)))
    run.reply(READ, hosted=("web_search", "web_search"))
    run.check("c1.0")
    if run.started("c1.0"):
        run.report("c1.0")
    return run


def past_the_deadline() -> Run:
    run = Run(pins(bounds=limits(deadline_ms=1_000)))
    run.tick(1_000)
    return run


def active_too_long() -> Run:
    run = Run(pins(bounds=limits(active_ms=1_000)))
    run.reply(READ)
    run.check("c1.0")
    run.now += 1_000
    run.report("c1.0")
    return run


def without_progress() -> Run:
    run = Run(pins(bounds=limits(equal_results=2)))
    read(run)
    read(run)
    return run


def without_evidence() -> Run:
    run = Run(pins(goal=Goal.of("refund")))
    run.final()
    run.final()
    return run


def finished(finish: FinishKind, text: str = "") -> Callable[[], Run]:
    def played() -> Run:
        run = Run()
        for _ in range(3):
            if run.state.phase == "model_retry":
                run.tick_to_wake()
            if run.state.live:
                run.reply(finish=finish, text=text)
        return run

    return played


def nobody_approved() -> Run:
    run = Run(pins(goal=Goal.of("refund")))
    run.reply(REFUND)
    run.ask("c1.0")
    run.tick_to_wake()
    return run


def nobody_knows() -> Run:
    run = Run()
    run.reply(call("pay", order_id="A", amount=1))
    run.check("c1.0")
    run.report("c1.0", "unknown")
    return run


def not_offered() -> Run:
    return Run(pins(goal=Goal.of("refund"), tools=tuple(tool for tool in TOOLS if tool.name != "refund")))


def redefined() -> Run:
    run = Run()
    run.reply(REFUND)
    run.ask("c1.0")
    run.approve("c1.0")
    run.check("c1.0", contract_kept=False)
    return run


def crashed_three_times() -> Run:
    run = Run()
    run.reply(READ)
    for _ in range(3):
        run.crash()
    return run


STOPPED: dict[str, tuple[Callable[[], Run], ...]] = {
    "max_turns": (out_of("turns"), out_of("model_attempts")),
    "max_tool_calls": (out_of("tool_calls"), out_of("call_attempts"), searched_too_often),
    "budget_tokens": (out_of("input_tokens"), out_of("output_tokens"), out_of("total_tokens")),
    "budget_cost": (out_of("cost_micros"),),
    "deadline": (past_the_deadline, active_too_long),
    "no_progress": (without_progress,),
    "context_exhausted": (out_of("context_tokens"), out_of("history_bytes")),
    "evidence_missing": (without_evidence,),
    "truncated": (finished("truncated", "half a"),),
    "empty_response": (finished("final"),),
    "approval_expired": (nobody_approved,),
    "outcome_unknown": (nobody_knows,),
    "blocked": (not_offered,),
    "model_failed": (finished("provider_error"),),
    "definition_changed": (redefined,),
    "crash_loop": (crashed_three_times,),
}
CASES = [(reason, number) for reason, plays in STOPPED.items() for number in range(len(plays))]


def test_every_way_to_lift_a_stop_is_played() -> None:
    assert set(STOPPED) == set(LIFTED_BY)
    assert all(len(STOPPED[reason]) == max(1, len(lift.raised)) for reason, lift in LIFTED_BY.items())


@pytest.mark.parametrize(("reason", "number"), CASES)
def test_a_stop_is_lifted_as_the_table_says(reason: str, number: int) -> None:
    run = STOPPED[reason][number]()
    assert run.stop() == ("suspended", REASONS[reason][0], reason)
    raised = LIFTED_BY[reason].raised
    if reason == "outcome_unknown":
        run.outside(Resume)
        assert run.refusal == "outcome_unknown"
        run.outside(ResolveCall, call="c1.0", outcome="applied", by="boss")
        assert run.state.live
        return
    if raised:
        run.outside(Resume)
        assert run.refusal == reason, "without a higher limit"
        run.outside(RaiseLimits, raised={raised[number]: 5_000_000})
        assert run.stop()[0] == "suspended", "a higher limit alone lifts nothing"
    run.outside(Resume)
    assert run.refusal == ""
    assert run.state.reason == ("blocked" if reason == "blocked" else "")
    assert run.state.live is (reason != "blocked")


@pytest.mark.parametrize(("reason", "number"), CASES)
def test_closing_a_stop_ends_it_as_it_stopped(reason: str, number: int) -> None:
    run = STOPPED[reason][number]()
    run.outside(Close)
    assert run.stop() == ("terminated", REASONS[reason][0], reason)
    assert all(not held.open for held in run.state.calls.values())
