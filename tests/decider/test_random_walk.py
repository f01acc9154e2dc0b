"""Random histories: whatever is observed in whatever order, the laws hold, nothing is stranded and a replay is equal.

Each walk makes observations that fit, observations that don't (late, doubled, of other calls, with absurd values), crashes,
outside commands and jumps of time. Then everything that is still asked for is answered until the run ends, is stopped,
or waits for a person.
"""

from __future__ import annotations

from typing import Any, Literal

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.random_examples import examples

from boundloop.runtime import events as e
from boundloop.runtime.commands import (
    Answer,
    Approve,
    Cancel,
    ChecksDone,
    Close,
    Executed,
    ModelReplied,
    Queried,
    RaiseLimits,
    Reject,
    ResolveCall,
    Resume,
    Send,
)
from boundloop.runtime.goal import Goal
from boundloop.runtime.limits import CEILING
from boundloop.runtime.model import (
    FINISH,
    AssistantItem,
    FinishKind,
    ModelTurn,
    ProposedCall,
    ResultItem,
    Usage,
    UserItem,
)
from boundloop.runtime.orders import Execute, Query, RequestModel, RunChecks
from boundloop.runtime.question_tool import ask_user

from .shop import BY_NAME, TOOLS, limits, pins
from .spec import Ledger, Run, call

BY_NAME[ask_user.name] = ask_user.definition
WALK_STEPS_MAX = 40
FINISHES: list[FinishKind] = ["calls", "calls", "calls", *FINISH]
VERDICTS: list[e.Verdict] = ["allow", "allow", "allow", "deny", "unknown"]
OUTCOMES: list[Literal["succeeded", "failed", "unknown"]] = ["succeeded", "succeeded", "failed", "unknown"]
ANSWERS: list[Literal["applied", "absent", "unknown"]] = ["applied", "absent", "unknown"]
TAIL_STEPS_MAX = 400


def proposals(data: st.DataObject) -> tuple[ProposedCall, ...]:
    """Up to four calls: mostly well formed, over two orders, so that keys meet."""
    made: list[ProposedCall] = []
    for _ in range(data.draw(st.integers(1, 4))):
        name = data.draw(st.sampled_from([*BY_NAME, "nobody"]))
        order = data.draw(st.sampled_from(["A", "B"]))
        arguments: dict[str, Any] = {"order_id": order}
        if name == ask_user.name:
            arguments = {"question": order, **data.draw(st.sampled_from([{}, {"choices": ["x", "y"]}]))}
        if name in ("refund", "pay"):
            arguments["amount"] = data.draw(st.integers(1, 2))
        elif name == "set_state":
            arguments["state"] = "x"
        raw = data.draw(st.sampled_from([None, None, None, b"{", b"[]", b"\xff"]))
        label = data.draw(st.sampled_from(["", "p", "q"]))
        made.append(call(name, label, **arguments) if raw is None else ProposedCall(name, raw, label))
    return tuple(made)


def turn(data: st.DataObject) -> ModelTurn:
    finish = data.draw(st.sampled_from(FINISHES))
    count = st.one_of(st.none(), st.integers(-5, 50), st.just(2**70))
    return ModelTurn(
        finish=finish,
        calls=proposals(data) if finish == "calls" or data.draw(st.booleans()) else (),
        text=data.draw(st.sampled_from(["", "done", "\ud800"])),
        usage=data.draw(st.one_of(st.none(), st.builds(Usage, count, count))),
        retry_after_ms=data.draw(st.sampled_from([0, 500, 2**50])),
        hosted=("search",) if data.draw(st.integers(0, 20)) == 0 else (),
    )


def verdicts(data: st.DataObject, run: Run, order: RunChecks) -> ChecksDone:
    verdict = data.draw(st.sampled_from(VERDICTS))
    return run.checks(
        order.call,
        ask=data.draw(st.integers(0, 3)) == 0,
        preview=b"{}",
        resource_version=data.draw(st.sampled_from(["v1", "v1", "v2"])),
        verdicts=(e.RungVerdict("policy", verdict),),
        terminal=data.draw(st.integers(0, 5)) == 0,
        contract_kept=data.draw(st.integers(0, 30)) != 0,
    )


def report(data: st.DataObject, name: str, attempt: int) -> Executed:
    outcome = data.draw(st.sampled_from(OUTCOMES))
    return Executed(
        call=name,
        attempt=attempt,
        outcome=outcome,
        result=b"{}" if outcome == "succeeded" else None,
        code=data.draw(st.sampled_from(["", "", "output_invalid"])) if outcome == "succeeded" else "broken",
        retryable=data.draw(st.booleans()),
        no_effect=data.draw(st.booleans()),
    )


def answer(data: st.DataObject, run: Run) -> None:
    """Do one of the orders that are pending."""
    order = data.draw(st.sampled_from(run.orders()))
    match order:
        case RequestModel():
            run.send(ModelReplied(turn=order.turn, attempt=order.attempt, reply=turn(data)))
        case RunChecks():
            run.send(verdicts(data, run, order))
        case Execute():
            run.send(report(data, order.call, order.attempt))
        case Query():
            outcome = data.draw(st.sampled_from(ANSWERS))
            run.send(Queried(call=order.call, number=order.number, asked_at_ms=run.now, outcome=outcome))
        case _:
            raise AssertionError(f"no run here has children: {order}")


def nonsense(data: st.DataObject, run: Run) -> None:
    """An observation that nobody asked for: of any call that ever was, of any attempt."""
    names = [event.call for event, _ in run.log if isinstance(event, e.CallProposed)] or ["c1.0"]
    name = data.draw(st.sampled_from([*names[-6:], "c9.9"]))
    number = data.draw(st.integers(0, 3))
    match data.draw(st.integers(0, 4)):
        case 0:
            run.send(ModelReplied(turn=run.state.turn - number, attempt=number, reply=turn(data)))
        case 1:
            run.send(ChecksDone(call=name, recheck=number > 0, ask=number > 1, contract_kept=number < 3))
        case 2:
            run.send(report(data, name, number))
        case 3:
            outcome = data.draw(st.sampled_from(ANSWERS))
            run.send(Queried(call=name, number=number, asked_at_ms=run.now, outcome=outcome))
        case _:
            run.outside(
                ResolveCall, call=name, outcome=data.draw(st.sampled_from(["applied", "absent"])), by="boss"
            )


def person(data: st.DataObject, run: Run) -> None:
    """Somebody outside wants something."""
    approvals = [held.approval.approval_id for held in run.state.calls.values() if held.approval] or ["ap"]
    chosen = data.draw(st.sampled_from(approvals))
    questions = [held.question.question_id for held in run.state.calls.values() if held.question] or ["q"]
    match data.draw(st.integers(0, 13)):
        case 10:
            run.outside(Send, text=data.draw(st.sampled_from(["hm", " ", "x" * 70_000])))
        case 11 | 12:
            text = data.draw(st.sampled_from(["x", "x", "z", ""]))
            run.outside(Answer, question_id=data.draw(st.sampled_from(questions)), text=text)
        case 13:
            stop, chosen = data.draw(st.booleans()), data.draw(st.sampled_from(questions))
            run.outside(Answer, question_id=chosen, cannot=True, stop=stop)
        case 0 | 1 | 2 | 3:
            run.outside(Approve, approval_id=chosen, by="boss")
        case 4:
            mode = data.draw(st.sampled_from(["continue", "stop"]))
            run.outside(Reject, approval_id=chosen, on_reject=mode, by="boss")
        case 5 | 6:
            run.outside(Resume)
        case 7:
            name = data.draw(
                st.sampled_from(["turns", "tool_calls", "deadline_ms", "cost_micros", "nothing"])
            )
            run.outside(RaiseLimits, raised={name: data.draw(st.sampled_from([1, 50, 5_000_000, CEILING]))})
        case 8:
            run.outside(Close)
        case _:
            run.outside(Cancel)


def rival(data: st.DataObject, ledger: Ledger, number: int) -> None:
    """Another run of the same operation takes, holds or settles a key."""
    run = Run(ledger=ledger, run_id=f"rival{number}", fold_every_append=False)
    run.reply(*proposals(data))
    for name in list(run.state.calls):
        if any(isinstance(order, RunChecks) and order.call == name for order in run.orders()):
            run.check(name, ask=data.draw(st.integers(0, 4)) == 0)
        if name in run.state.calls and run.phase(name) == "started" and data.draw(st.booleans()):
            run.send(report(data, name, 1))


def walk(data: st.DataObject, run: Run) -> None:
    for number in range(data.draw(st.integers(0, WALK_STEPS_MAX))):
        match data.draw(st.integers(0, 19)):
            case 0:
                run.crash(data.draw(st.sampled_from(["host_died", "woken", "command"])))
            case 1 | 2:
                nonsense(data, run)
            case 3 | 4:
                person(data, run)
            case 5:
                run.tick(data.draw(st.sampled_from([1, 100, 5_000, 600_000])))
            case 6:
                rival(data, run.ledger, number)
            case 7 if run.wake() is not None:
                run.tick_to_wake()
            case _ if run.orders():
                answer(data, run)
            case _:
                pass


def carry_to_rest(run: Run) -> None:
    """Answer whatever is asked for, in the plainest way, until there is nothing left but a person to wait for."""
    for _ in range(TAIL_STEPS_MAX):
        looked = [order for order in run.orders() if not waits_for_key(run, order)]
        if looked:
            order = looked[0]
            match order:
                case RequestModel():
                    reply = ModelTurn(finish="final", text="done", usage=Usage(1, 1))
                    run.send(ModelReplied(turn=order.turn, attempt=order.attempt, reply=reply))
                case RunChecks():
                    run.check(order.call)
                case Execute():
                    run.report(order.call)
                case Query():
                    run.query(order.call, "unknown")
                case _:
                    raise AssertionError(f"no run here has children: {order}")
        elif run.wake() is not None:
            run.tick_to_wake()
        else:
            return
    raise AssertionError(f"does not come to rest: {run.stop()} {run.tags()[-12:]}")


def waits_for_key(run: Run, order: object) -> bool:
    return isinstance(order, RunChecks) and run.phase(order.call) == "waiting_key"


@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(st.data())
def test_any_history_keeps_the_laws_and_comes_to_rest(data: st.DataObject) -> None:
    goal = data.draw(
        st.sampled_from([None, Goal.of("refund"), Goal.of("ask_user"), Goal.of("get_order", "pay")])
    )
    bounds = limits(
        turns=data.draw(st.integers(1, 8)),
        tool_calls=data.draw(st.integers(0, 10)),
        call_attempts=data.draw(st.integers(1, 12)),
        calls_per_turn=data.draw(st.integers(1, 4)),
        parallel=data.draw(st.integers(1, 3)),
        repeats=data.draw(st.integers(1, 5)),
        equal_results=data.draw(st.integers(1, 3)),
        denials=data.draw(st.integers(0, 5)),
        cost_micros=data.draw(st.sampled_from([0, 100, 1_000])),
        approval_rounds=data.draw(st.integers(1, 3)),
        deadline_ms=data.draw(st.sampled_from([9_000, 3_600_000])),
        answer_ms=data.draw(st.sampled_from([2_000, 86_400_000])),
        messages=data.draw(st.integers(0, 3)),
    )
    run = Run(
        pins(bounds=bounds, goal=goal, tools=(*TOOLS, ask_user.definition)),
        on_stop=data.draw(st.sampled_from(["suspend", "end"])),
        fold_every_append=False,
    )
    walk(data, run)
    carry_to_rest(run)
    run.check_replay()
    assert run.state.phase in ("suspended", "terminated")
    check_log(run)
    check_history(run)


def check_history(run: Run) -> None:
    """Each result follows the turn that proposed its call, whatever people said meanwhile; and all that they said is there,
    or waits to be."""
    items = run.state.items
    said = sum(isinstance(item, UserItem) for item in items) + len(run.state.unread)
    assert said == 1 + run.state.counters.messages <= 1 + run.state.limits.messages
    for place, item in enumerate(items):
        if isinstance(item, AssistantItem):
            results = items[place + 1 : place + 1 + len(item.calls)]
            assert [getattr(one, "call_id", "") for one in results] == [one.call_id for one in item.calls]
    proposed = sum(len(item.calls) for item in items if isinstance(item, AssistantItem))
    assert sum(isinstance(item, ResultItem) for item in items) == proposed


def check_log(run: Run) -> None:
    """Promises that are read off the log alone."""
    bound: set[str] = set()
    proposed: list[str] = []
    intents: dict[str, int] = {}
    answered: set[str] = set()
    cancelled = ended = False
    for event, _ in run.log:
        assert not ended or isinstance(event, e.CallReconciled), "after the end"
        match event:
            case e.CallProposed():
                proposed.append(event.call)
            case e.ResultBound():
                assert event.call not in bound, "bound twice"
                bound.add(event.call)
            case e.QuestionAsked():
                assert not cancelled, "a question after the cancel"
                assert event.call not in bound
                intents[event.call] = 1
            case e.QuestionAnswered():
                assert not cancelled, "an answer after the cancel"
                assert event.call not in answered, "answered twice"
                answered.add(event.call)
            case e.CallStarted():
                assert not cancelled, "an intent after the cancel"
                assert event.call not in bound, "an intent after the result"
                assert event.attempt == intents.get(event.call, 0) + 1
                intents[event.call] = event.attempt
            case e.CallExecuted():
                assert intents[event.call] == event.attempt, "an execution without its intent"
            case e.ModelRequested():
                assert not cancelled, "a request after the cancel"
                assert set(proposed) == bound, "a request before every result"
            case e.CancelRequested():
                cancelled = True
            case e.RunTerminated():
                ended = True
                assert set(proposed) == bound, "an end before every result"
            case _:
                pass
    if run.state.outcome == "completed":
        assert run.state.finish == "final"
        if run.pins.goal is not None:
            assert all(
                met >= item.count
                for item, met in zip(run.pins.goal.evidence, run.state.evidence, strict=True)
            )
    order = [name for name in intents if BY_NAME[tool_of(run, name)].is_effect]
    assert order == sorted(order, key=proposed.index), "effects out of call order"


def tool_of(run: Run, name: str) -> str:
    return next(
        event.tool for event, _ in run.log if isinstance(event, e.CallProposed) and event.call == name
    )
