"""The whole product: how a model can finish, what became of its calls, what the goal asks. Only one corner is success.

A run has one call of each outcome that a call can have, then the model finishes in each way that there is. What must come of
it is said here by a small rule of its own: a run completes if and only if the finish is explicit and everything that the goal
asks for is on record.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any, Final, Literal, get_args

import msgspec
import pytest

from boundloop.runtime.commands import ModelReplied, ResolveCall
from boundloop.runtime.events import RungVerdict
from boundloop.runtime.goal import Citations, Evidence, Goal
from boundloop.runtime.model import FINISH, FinishKind, ModelTurn, ProposedCall
from boundloop.runtime.orders import RequestModel
from boundloop.runtime.stage_spec import Stage, stages_from

from .shop import limits, pins
from .spec import USAGE, Ledger, Run, call

FINISHES: Final = get_args(FinishKind)

CallCame = Literal[
    "none",
    "succeeded",
    "replayed",
    "failed",
    "output_invalid",
    "unknown_tool",
    "bad_json",
    "bad_arguments",
    "denied",
    "rejected_by_a_person",
    "approval_expired",
    "settled_as_applied",
    "settled_as_absent",
]
CALLS: Final = get_args(CallCame)

SUCCESSES: Final = {"succeeded", "replayed", "settled_as_applied"}

OUTPUT: Final = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
TEXTS: Final = {
    "plain": "done",
    "cited": "done [source:R1]",
    "typed": '{"id":"R1"}',
    "invented": '{"id":"R9"}',
    "blank": " ",
}

GOALS: Final[dict[str, Goal | None]] = {
    "none": None,
    "of_the_call": Goal.of("pay"),
    "of_another_result": Goal.of(Evidence("pay", result={"id": "other"})),
    "of_another_tool": Goal.of("get_order"),
    "cited": Goal.of(citations=Citations(("pay.id",))),
    "typed": Goal.of(output=OUTPUT),
    "typed_from_results": Goal.of(output=OUTPUT, from_results={"id": "pay.id"}),
    "of_the_call_and_typed": Goal.of("pay", output=OUTPUT),
}
STAGES: Final = stages_from((Stage("first", ("pay",), "pay"), Stage("last", ("pay", "get_order"))))


def met(goal: str, came: str, text: str) -> bool:
    """Whether all that the goal asks for is there, by the words of its name."""
    success = came in SUCCESSES
    match goal:
        case "none":
            return True
        case "of_the_call":
            return success
        case "of_another_result" | "of_another_tool":
            return False
        case "cited":
            return success and text == "cited"
        case "typed":
            return text in ("typed", "invented")
        case "typed_from_results":
            return success and text == "typed"
        case _:
            return success and text in ("typed", "invented")


def after_a_call(came: CallCame, goal: Goal | None, *, staged: bool = False) -> Run:
    """A run whose one call came to this, and that waits for its model now, unless it has stopped."""
    pinned = pins(goal=goal, bounds=limits(corrective_turns=0, denials=5, failures=5))
    if staged:
        pinned = msgspec.structs.replace(pinned, stages=STAGES)
    ledger = Ledger()
    if came == "replayed":
        first = Run(ledger=ledger, fold_every_append=False)
        first.reply(call("pay", order_id="A", amount=5))
        first.check("c1.0")
        first.report("c1.0", result={"id": "R1"})
    run = Run(pinned, ledger=ledger, run_id="r2", fold_every_append=False)
    if came == "none":
        return run
    proposal = {
        "unknown_tool": call("no_such_tool"),
        "bad_json": ProposedCall("pay", b'{"order_id":'),
        "bad_arguments": call("pay", order_id="A", amount="5"),
    }.get(came, call("pay", order_id="A", amount=5))
    run.reply(proposal)
    match came:
        case "denied":
            run.check("c1.0", verdicts=(RungVerdict("policy", "deny", "no"),))
        case "rejected_by_a_person":
            run.ask("c1.0")
            run.reject("c1.0")
        case "approval_expired":
            run.ask("c1.0")
            run.tick(10 * 60_000)
        case _:
            run.check("c1.0")
    match came:
        case "succeeded":
            run.report("c1.0", result={"id": "R1"})
        case "failed":
            run.report("c1.0", "failed", code="later", no_effect=True, retryable=True)
            for _ in range(2):
                run.tick_to_wake()
                run.check("c1.0")
                run.report("c1.0", "failed", code="later", no_effect=True, retryable=True)
        case "output_invalid":
            run.report("c1.0", code="output_invalid")
        case "settled_as_applied" | "settled_as_absent":
            run.report("c1.0", "unknown")
            applied = came == "settled_as_applied"
            run.outside(
                ResolveCall,
                by="boss",
                call="c1.0",
                outcome="applied" if applied else "absent",
                result='{"id":"R1"}' if applied else "",
            )
            if not applied:
                run.check("c1.0")
                run.report("c1.0", "failed", code="no", no_effect=True, retryable=True)
                run.tick_to_wake()
                run.check("c1.0")
                run.report("c1.0", "failed", code="no", no_effect=True, retryable=False)
        case _:
            pass
    return run


def finish(run: Run, kind: FinishKind, text: str) -> None:
    """The model finishes so, until the run asks no more."""
    for _ in range(40):
        order = next((one for one in run.orders() if isinstance(one, RequestModel)), None)
        if order is None and run.state.phase == "model_retry":
            run.tick_to_wake()
            continue
        if order is None:
            return
        calls = (call("get_order", order_id=str(run.state.turn)),) if kind == "calls" else ()
        turn = ModelTurn(finish=kind, text=text, calls=calls, usage=USAGE, response_id="r")
        run.send(ModelReplied(turn=order.turn, attempt=order.attempt, reply=turn))
        for name in [name for name, one in run.state.calls.items() if one.phase == "proposed"]:
            run.check(name)
            if name in run.state.calls and run.phase(name) == "started":
                run.report(name, result={"turn": run.state.turn})
    raise AssertionError("the run asks for ever")


EXPECTED: Final[dict[FinishKind, tuple[str, str] | None]] = {
    "final": None,
    "calls": ("incomplete", "max_turns"),
    "truncated": ("incomplete", "truncated"),
    "refused": ("refused", "model_refusal"),
    "filtered": ("refused", "content_filtered"),
    "paused": ("incomplete", "max_turns"),
    "context_exceeded": ("incomplete", "context_exhausted"),
    "model_error": ("failed", "model_failed"),
    "provider_error": ("failed", "model_failed"),
    "transport_broken": ("failed", "model_failed"),
    "unknown_finish": ("failed", "model_failed"),
}
"""What each way to finish comes to, whatever is on record; None: the record decides."""


def test_every_way_to_finish_is_in_the_table() -> None:
    assert set(EXPECTED) == set(FINISHES) == set(FINISH)
    assert {kind for kind in FINISHES if FINISH[kind].final} == {"final"}


@pytest.mark.parametrize("kind", FINISHES)
def test_only_an_explicit_answer_with_all_its_evidence_completes(kind: FinishKind) -> None:
    outcomes: Counter[str] = Counter()
    for came, (name, goal) in itertools.product(CALLS, GOALS.items()):
        for text_name, text in TEXTS.items():
            if kind != "final" and text_name not in ("plain", "typed"):
                continue  # no text of theirs is ever judged; two are enough to see that
            run = after_a_call(came, goal)
            stopped = run.stop() if run.state.outcome else None
            finish(run, kind, text)
            _, outcome, reason = run.stop()
            where = (kind, came, name, text_name, outcome, reason)
            outcomes[f"{outcome}/{reason}"] += 1
            should = kind == "final" and text_name != "blank" and met(name, came, text_name) and not stopped
            assert (outcome == "completed") is should, where
            assert (reason == "final") is should, where
            if stopped is not None:
                assert (outcome, reason) == stopped[1:], where
            elif EXPECTED[kind] is not None and kind not in ("calls", "paused"):
                assert (outcome, reason) == EXPECTED[kind], where
            elif kind == "final" and not should:
                assert reason == ("empty_response" if text_name == "blank" else "evidence_missing"), where
            else:
                assert outcome in ("incomplete", "completed"), where
            assert (run.state.final_text == text) is should, where
            if not should and goal is not None and kind == "final" and text_name != "blank":
                assert run.state.unfinished, where
    assert sum(outcomes.values()) >= 200
    assert (kind == "final") == any(one.startswith("completed") for one in outcomes)


@pytest.mark.parametrize("kind", FINISHES)
def test_a_staged_run_completes_in_its_last_stage_alone(kind: FinishKind) -> None:
    for came in CALLS:
        run = after_a_call(came, None, staged=True)
        stopped = bool(run.state.outcome)
        finish(run, kind, "done")
        should = kind == "final" and came in SUCCESSES and not stopped
        assert (run.state.outcome == "completed") is should, (kind, came, run.stop())


@pytest.mark.parametrize(
    "phase", ["proposed", "checking", "waiting_approval", "started", "executed", "reconciling", "bound"]
)
def test_no_answer_is_taken_while_a_call_is_open(phase: str) -> None:
    """A model is never asked then, so whatever answers is late or forged, and changes nothing."""
    run = Run(pins(goal=None), fold_every_append=False)
    run.reply(call("pay", order_id="A", amount=5), call("get_order", order_id="A"))
    run.check("c1.1")
    if phase not in ("proposed",):
        if phase == "waiting_approval":
            run.ask("c1.0")
        else:
            run.check("c1.0")
    if phase == "reconciling":
        run.report("c1.0", "unknown")
    if phase in ("executed", "bound"):
        run.report("c1.0", result={"id": "R1"})
    answer = ModelTurn(finish="final", text="done", usage=USAGE, response_id="r")
    assert run.send(ModelReplied(turn=1, attempt=1, reply=answer)) == ()
    assert run.state.outcome != "completed"


def test_calls_with_a_final_finish_and_a_call_finish_without_calls_complete_nothing() -> None:
    for kind, calls in (("final", (call("pay", order_id="A", amount=5),)), ("calls", ())):
        run = Run(pins(goal=None), fold_every_append=False)
        wrong: Any = kind
        for _ in range(4):
            order = next((one for one in run.orders() if isinstance(one, RequestModel)), None)
            if order is None:
                if run.state.outcome:
                    break
                run.tick_to_wake()
                continue
            turn = ModelTurn(finish=wrong, text="done", calls=calls, usage=USAGE, response_id="r")
            run.send(ModelReplied(turn=order.turn, attempt=order.attempt, reply=turn))
        assert run.state.outcome != "completed"
        assert not run.state.calls
