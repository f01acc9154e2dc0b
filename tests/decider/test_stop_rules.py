"""How a run stops: every finish of a model, every limit, and what lifting a stop does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from boundloop.eventstore.next_commands import next_commands
from boundloop.runtime import events as e
from boundloop.runtime.commands import Cancel, Close, RaiseLimits, ResolveCall, Resume
from boundloop.runtime.decide import decide
from boundloop.runtime.goal import Evidence, Goal, predicates_met
from boundloop.runtime.model import FINISH, FinishKind, ProposedCall, ResultItem, Usage
from boundloop.runtime.prices import Price
from boundloop.runtime.state import state_digest
from boundloop.runtime.stops import REASONS

from .shop import TOOLS, limits, pins
from .spec import Run, call, given

READ = call("get_order", order_id="A")
RETRIED = ("open", "", "")

# (finish, with calls) -> phase, outcome, reason. With a goal whose evidence is missing only "final" differs.
ENDS: dict[tuple[FinishKind, bool], tuple[str, str, str]] = {
    ("calls", True): RETRIED,
    ("calls", False): RETRIED,
    ("final", False): ("terminated", "completed", "final"),
    ("final", True): RETRIED,
    ("truncated", False): ("suspended", "incomplete", "truncated"),
    ("truncated", True): ("suspended", "incomplete", "truncated"),
    ("refused", False): ("terminated", "refused", "model_refusal"),
    ("refused", True): ("terminated", "refused", "model_refusal"),
    ("filtered", False): ("terminated", "refused", "content_filtered"),
    ("filtered", True): ("terminated", "refused", "content_filtered"),
    ("paused", False): RETRIED,
    ("paused", True): RETRIED,
    ("context_exceeded", False): ("suspended", "incomplete", "context_exhausted"),
    ("context_exceeded", True): ("suspended", "incomplete", "context_exhausted"),
    ("model_error", False): RETRIED,
    ("model_error", True): RETRIED,
    ("provider_error", False): RETRIED,
    ("provider_error", True): RETRIED,
    ("transport_broken", False): RETRIED,
    ("transport_broken", True): RETRIED,
    ("unknown_finish", False): RETRIED,
    ("unknown_finish", True): RETRIED,
}


def test_table_has_every_finish() -> None:
    assert set(ENDS) == {(finish, calls) for finish in FINISH for calls in (False, True)}


@pytest.mark.parametrize("goal", [None, Goal.of("refund")], ids=["no-goal", "goal"])
@pytest.mark.parametrize(("finish", "calls"), list(ENDS))
def test_finish(finish: FinishKind, calls: bool, goal: Goal | None) -> None:
    run = Run(pins(goal=goal))
    run.reply(*((READ,) if calls else ()), finish=finish, text="said so")
    expected = ENDS[finish, calls]
    if (finish, calls) == ("final", False) and goal is not None:
        # One corrective turn, then the evidence is missing.
        assert run.state.phase == "model_requested"
        run.final()
        expected = ("suspended", "incomplete", "evidence_missing")
    if expected is RETRIED:
        assert run.state.live
    else:
        assert run.stop() == expected
    # A call is only ever proposed by a finish that may run calls.
    assert ("call_proposed" in run.tags()) is (finish == "calls" and calls)


@pytest.mark.parametrize("finish", [kind for kind, rule in FINISH.items() if rule.retry])
def test_broken_turns_are_asked_again_within_bounds_then_fail(finish: FinishKind) -> None:
    run = Run()
    for attempt in (1, 2, 3):
        assert run.state.model_attempt == attempt
        run.reply(finish=finish, text="half a")
        if attempt < 3:
            assert run.state.phase == "model_retry"
            run.tick_to_wake()
    assert run.stop() == ("suspended", "failed", "model_failed")
    assert run.state.turn == 1


def test_broken_turn_that_may_not_be_retried_fails_at_once() -> None:
    run = Run()
    run.reply(finish="provider_error", retryable=False, error_code="bad_key")
    assert run.stop() == ("suspended", "failed", "model_failed")
    assert run.state.detail == "bad_key"


def test_wait_asked_for_by_the_provider_is_kept() -> None:
    run = Run()
    run.reply(finish="provider_error", retry_after_ms=30_000)
    before = run.now
    run.tick_to_wake()
    assert run.now - before == 30_000


def test_wait_past_the_deadline_is_no_retry() -> None:
    run = Run()
    run.reply(finish="provider_error", retry_after_ms=2**40)
    assert run.stop() == ("suspended", "failed", "model_failed")


def test_late_answer_to_an_attempt_before_the_stop_is_not_taken_for_the_new_one() -> None:
    run = Run()
    for _ in range(3):
        run.reply(finish="transport_broken")
        if run.state.live:
            run.tick_to_wake()
    run.outside(Resume)
    assert run.state.phase == "model_requested"
    assert (run.state.turn, run.state.model_attempt) == (1, 4)
    for _ in range(2):
        run.reply(finish="transport_broken")
        run.tick_to_wake()
    run.reply(finish="transport_broken")
    assert run.stop() == ("suspended", "failed", "model_failed")
    assert run.state.model_attempt == 6


def test_undeclared_hosted_blocks_are_a_policy_error() -> None:
    run = Run()
    run.reply(text="found it", hosted=("web_search",))
    assert run.stop() == ("terminated", "failed", "policy_denied")


@pytest.mark.parametrize("text", ["", "  \n"])
def test_empty_text_is_no_answer(text: str) -> None:
    run = Run()
    run.final(text)
    assert run.stop() == ("suspended", "incomplete", "empty_response")


def test_paused_goes_on_and_is_bounded_by_turns() -> None:
    run = Run(pins(bounds=limits(turns=3)))
    for _ in range(3):
        run.reply(finish="paused", text="", continuation=b"x")
    assert run.stop() == ("suspended", "incomplete", "max_turns")


# --- limits --------------------------------------------------------------------------------------------------------


def reads(run: Run, turns: int) -> None:
    """Turns with one read each, all different, until the run stops."""
    for number in range(turns):
        if not run.state.live:
            return
        run.reply(call("get_order", order_id=f"A{number}"))
        name = f"c{run.state.turn}.0"
        run.check(name)
        if run.started(name):
            run.report(name, result={"n": number})


def denied(run: Run, turns: int) -> None:
    for number in range(turns):
        if not run.state.live:
            return
        run.reply(call("get_order", order_id=f"A{number}"))
        run.check(f"c{run.state.turn}.0", verdicts=(e.RungVerdict("policy", "deny", f"no{number}"),))


def failing(run: Run, turns: int) -> None:
    for number in range(turns):
        if not run.state.live:
            return
        run.reply(call("get_order", order_id=f"A{number}"))
        name = f"c{run.state.turn}.0"
        run.check(name)
        run.report(name, "failed", code=f"e{number}")


def invalid(run: Run, turns: int) -> None:
    for number in range(turns):
        if not run.state.live:
            return
        run.reply(ProposedCall("get_order", b"{%d" % number))
        run.check(f"c{run.state.turn}.0")


def dear(run: Run, turns: int) -> None:
    run.reply(READ, usage=Usage(1_000, 1_000))
    run.check("c1.0")
    run.report("c1.0")


PRICE = Price(input=1_000_000, output=1_000_000)
Program = Callable[[Run, int], None]
COUNTED_TURNS = {
    "turns": 2,
    "model_attempts": 2,
    "tool_calls": 3,
    "call_attempts": 3,
    "denials": 3,
    "failures": 3,
    "invalid_streak": 3,
    "turns_without_progress": 3,
}
"""The turn at which a count stops the run: the last that it admits, or the first whose calls pass it."""
BY_LIMIT: list[tuple[dict[str, Any], Program, tuple[str, str, str]]] = [
    ({"turns": 2}, reads, ("suspended", "incomplete", "max_turns")),
    ({"model_attempts": 2}, reads, ("suspended", "incomplete", "max_turns")),
    ({"tool_calls": 2}, reads, ("suspended", "incomplete", "max_tool_calls")),
    ({"call_attempts": 2}, reads, ("suspended", "incomplete", "max_tool_calls")),
    ({"denials": 2}, denied, ("terminated", "failed", "policy_denied")),
    ({"failures": 2}, failing, ("terminated", "failed", "tool_failed")),
    ({"invalid_streak": 3}, invalid, ("suspended", "incomplete", "no_progress")),
    ({"input_tokens": 1_700}, reads, ("suspended", "incomplete", "budget_tokens")),
    ({"output_tokens": 110}, dear, ("suspended", "incomplete", "budget_tokens")),
    ({"total_tokens": 1_800}, dear, ("suspended", "incomplete", "budget_tokens")),
    ({"cost_micros": 2_500}, dear, ("suspended", "incomplete", "budget_cost")),
    ({"context_tokens": 1_800}, reads, ("suspended", "incomplete", "context_exhausted")),
    ({"history_bytes": 300}, reads, ("suspended", "incomplete", "context_exhausted")),
    ({"turns_without_progress": 2}, denied, ("suspended", "incomplete", "no_progress")),
]


@pytest.mark.parametrize("row", range(len(BY_LIMIT)), ids=[next(iter(row[0])) for row in BY_LIMIT])
def test_limit(row: int) -> None:
    bounds, program, expected = BY_LIMIT[row]
    run = Run(
        pins(bounds=limits(**bounds), price=PRICE if "cost_micros" in bounds else Price(input=0, output=0))
    )
    if bounds.get("turns_without_progress"):
        # The first denial is news; the same one again isn't.
        for _ in range(3):
            run.reply(READ)
            run.check(f"c{run.state.turn}.0", verdicts=(e.RungVerdict("policy", "deny", "no"),))
    else:
        program(run, 10)
    assert run.stop() == expected
    assert run.state.turn == COUNTED_TURNS.get(next(iter(bounds)), run.state.turn)
    assert run.state.turn >= 1, "stopped before the limit could be reached"


@pytest.mark.parametrize("reason", [name for name, (_, liftable) in REASONS.items() if not liftable])
def test_reasons_that_end_are_never_suspended(reason: str) -> None:
    assert REASONS[reason][0] in ("completed", "refused", "failed", "cancelled")


@pytest.mark.parametrize(
    ("bounds", "raised"),
    [
        ({"turns": 2}, {"turns": 10}),
        ({"tool_calls": 2}, {"tool_calls": 10}),
        ({"call_attempts": 2}, {"call_attempts": 10}),
        ({"model_attempts": 2}, {"model_attempts": 10}),
    ],
)
def test_suspended_then_raised_then_resumed(bounds: dict[str, int], raised: dict[str, int]) -> None:
    run = Run(pins(bounds=limits(**bounds)))
    reads(run, 10)
    assert run.state.phase == "suspended"
    name = next(iter(bounds))
    run.outside(Resume)
    assert run.refusal == run.state.reason
    run.outside(RaiseLimits, raised=raised)
    assert getattr(run.state.limits, name) == 10
    run.outside(Resume)
    assert run.stop() == ("model_requested", "", "")
    run.final()
    assert run.stop() == ("terminated", "completed", "final")


@pytest.mark.parametrize("first_fails", [1, 2], ids=["without a wait", "after a wait"])
def test_the_last_turns_own_request_needs_no_further_turn(first_fails: int) -> None:
    run = Run(pins(bounds=limits(turns=1, model_attempts=first_fails, model_attempts_per_turn=first_fails)))
    for number in range(first_fails):
        run.reply(finish="provider_error", retryable=True, error_code="overloaded")
        if number + 1 < first_fails:
            run.tick_to_wake()
    assert run.state.reason == "model_failed"
    run.outside(Resume)  # it asks for the same turn again, and has no attempt left for it
    assert run.stop() == ("suspended", "incomplete", "max_turns")
    refused = decide(run.state, Resume(command_id="again", by="user"), run.now).refusal
    assert refused is not None
    assert (refused.code, refused.message.rpartition(" ")[2]) == ("max_turns", "model_attempts")
    assert list(next_commands(run.state, [], run.now)) == [
        "boundloop limits raise r1 model_attempts=N",
        "boundloop resume r1",
        "boundloop close r1",
    ]
    run.outside(RaiseLimits, raised={"model_attempts": 5})
    assert next(iter(next_commands(run.state, [], run.now))) == "boundloop resume r1"
    run.outside(Resume)
    assert run.stop() == ("model_requested", "", "")
    assert (run.state.turn, run.state.model_attempt) == (1, first_fails + 1)
    run.final()
    assert run.stop() == ("terminated", "completed", "final")


def test_budget_stop_is_lifted_by_a_higher_budget() -> None:
    run = Run(pins(bounds=limits(cost_micros=2_500), price=PRICE))
    dear(run, 1)
    assert run.state.reason == "budget_cost"
    run.outside(RaiseLimits, raised={"cost_micros": 100_000})
    run.outside(Resume)
    assert run.state.phase == "model_requested"


def test_overrun_is_recorded_and_nothing_further_is_sent() -> None:
    run = Run(pins(bounds=limits(cost_micros=2_500), price=PRICE))
    run.reply(READ, usage=Usage(5_000, 5_000))
    run.check("c1.0")
    run.report("c1.0")
    assert run.stop() == ("suspended", "incomplete", "budget_cost")
    assert run.state.meters.cost_micros.overrun == 7_500


def test_unknown_usage_leaves_the_reservation_spent() -> None:
    run = Run(pins(price=PRICE))
    reserved = run.state.meters.total_tokens.reserved
    cost = run.state.reserved_cost
    run.reply(READ, usage=None)
    assert run.state.meters.total_tokens.spent == reserved
    assert run.state.meters.cost_micros.spent == cost
    half = Run(pins(price=PRICE))
    half.reply(READ, usage=Usage(7, None))
    assert half.state.meters.input_tokens.spent == 7
    assert half.state.meters.output_tokens.spent == 100


def test_limits_are_never_lowered_and_only_named_ones_raised() -> None:
    run = Run()
    cases: list[tuple[dict[str, int], str]] = [
        ({}, "nothing_raised"),
        ({"turns": 12}, "not_higher"),
        ({"turns": 1}, "not_higher"),
        ({"turns": 2**53 + 1}, "not_higher"),
        ({"depth": 9}, "unknown_limit"),
        ({"no_such": 9}, "unknown_limit"),
        ({"output_tokens_per_request": 200_000}, "limit_conflict"),
    ]
    for number, (raised, code) in enumerate(cases):
        command = RaiseLimits(command_id=f"c{number}", by="u", raised=raised)
        given(run).when(command, run.now).then_refused(code)
    waived = Run(pins(bounds=limits(cost_micros=None)))
    given(waived).when(RaiseLimits(command_id="c", by="u", raised={"cost_micros": 5}), run.now).then_refused(
        "limit_waived"
    )


def test_close_ends_as_it_stopped() -> None:
    run = Run()
    run.reply(finish="truncated")
    run.outside(Close)
    assert run.stop() == ("terminated", "incomplete", "truncated")


def test_close_binds_what_is_open() -> None:
    run = Run()
    run.reply(call("pay", order_id="A", amount=1), call("ship", order_id="B"))
    run.check("c1.0")
    run.report("c1.0", "unknown")
    run.check("c1.1")
    run.outside(Close)
    assert run.stop() == ("terminated", "incomplete", "outcome_unknown")
    assert [run.bound(f"c1.{n}")[1] for n in range(2)] == ["unknown", "cancelled"]
    assert [row.status for row in run.ledger.rows.values()] == ["unknown"]


def test_on_stop_end_ends_at_once_except_for_what_a_person_must_settle() -> None:
    run = Run(on_stop="end")
    run.reply(finish="truncated")
    assert run.stop() == ("terminated", "incomplete", "truncated")
    waits = Run(on_stop="end")
    waits.reply(call("pay", order_id="A", amount=1))
    waits.check("c1.0")
    waits.report("c1.0", "unknown")
    assert waits.stop() == ("suspended", "incomplete", "outcome_unknown")
    waits.tick_to_wake()
    assert waits.now == waits.state.deadline_at_ms
    assert waits.stop() == ("terminated", "incomplete", "outcome_unknown")


def test_changed_definition_with_on_stop_end_binds_every_call_first() -> None:
    run = Run(on_stop="end")
    run.reply(call("refund", order_id="A", amount=1), READ)
    run.ask("c1.0")
    run.approve("c1.0")
    run.check("c1.0", contract_kept=False)
    assert run.stop() == ("terminated", "failed", "definition_changed")
    assert [run.bound(f"c1.{n}")[0] for n in range(2)] == ["error", "error"]
    assert not run.ledger.rows


def test_other_reasons_earned_in_the_turn_outlive_a_lifted_stop() -> None:
    """A terminal denial before the third death of a host: lifting the crash loop doesn't wash the denial away."""
    run = Run()
    run.reply(READ, call("pay", order_id="A", amount=1))
    run.crash()
    run.crash()
    run.check("c1.0")
    deny_for_good(run, "c1.1")
    run.crash()
    assert run.stop() == ("suspended", "failed", "crash_loop")
    run.outside(Resume)
    assert run.stop() == ("terminated", "failed", "policy_denied")
    assert run.started("c1.0") == 1


# --- a turn that ends the run --------------------------------------------------------------------------------------


def deny_for_good(run: Run, name: str, rung: e.Rung = "policy") -> None:
    run.check(name, verdicts=(e.RungVerdict(rung, "deny", "fraud"),), terminal=True)


PAY = call("pay", order_id="A", amount=1)


@pytest.mark.parametrize(
    ("rung", "end"), [("policy", ("failed", "policy_denied")), ("switch", ("cancelled", "kill_switch"))]
)
def test_nothing_starts_after_a_denial_that_ends_the_run(rung: e.Rung, end: tuple[str, str]) -> None:
    run = Run()
    run.reply(READ, PAY, call("refund", order_id="A", amount=1), call("get_order", order_id="B"))
    run.check("c1.2")
    deny_for_good(run, "c1.0", rung)
    assert run.stop() == ("terminated", *end)
    assert run.state.detail == "fraud"
    assert [run.bound(f"c1.{number}")[1] for number in (1, 2, 3)] == ["run_stopping"] * 3
    assert "call_started" not in run.tags()
    assert not run.ledger.rows
    assert run.state.counters.denials == 1


def test_verdicts_that_come_after_the_denial_start_nothing() -> None:
    run = Run()
    run.reply(READ, PAY)
    verdicts = run.checks("c1.1")
    run.decide(run.checks("c1.0", verdicts=(e.RungVerdict("policy", "deny", "fraud"),), terminal=True))
    run.send(verdicts)
    assert run.started("c1.1") == 0
    assert run.stop() == ("terminated", "failed", "policy_denied")


def test_a_retry_is_a_start_too() -> None:
    run = Run()
    run.reply(READ, PAY)
    run.check("c1.0")
    run.report("c1.0", "failed", code="busy", retryable=True)
    deny_for_good(run, "c1.1")
    assert run.bound("c1.0") == ("error", "busy")
    assert run.stop() == ("terminated", "failed", "policy_denied")


@pytest.mark.parametrize("tool", ["pay", "refund"])
def test_an_unknown_effect_of_a_turn_that_ends_the_run_is_not_sent_again(tool: str) -> None:
    run = Run()
    run.reply(call(tool, order_id="A", amount=1), READ)
    run.check("c1.0")
    deny_for_good(run, "c1.1")
    assert run.stop()[0] == "open_calls"
    run.report("c1.0", "unknown", code="timeout", retryable=True)
    assert run.stop() == ("terminated", "failed", "policy_denied")
    assert run.bound("c1.0") == ("error", "unknown")
    run.outside(ResolveCall, call="c1.0", outcome="applied", by="boss")
    assert [row.status for row in run.ledger.rows.values()] == ["succeeded"]


def test_a_queryable_effect_is_asked_about_before_a_denial_ends_the_run() -> None:
    run = Run()
    run.reply(call("ship", order_id="A"), READ)
    run.check("c1.0")
    deny_for_good(run, "c1.1")
    run.report("c1.0", "unknown")
    run.query("c1.0", "applied", {"shipped": "A"})
    assert run.bound("c1.0") == ("ok", "")
    assert run.stop() == ("terminated", "failed", "policy_denied")


def test_the_deadline_does_not_make_a_final_end_liftable() -> None:
    run = Run()
    run.reply(call("ship", order_id="A"), READ)
    run.check("c1.0")
    deny_for_good(run, "c1.1")
    run.report("c1.0", "unknown")
    run.tick(run.state.deadline_at_ms - run.now)
    assert run.stop() == ("terminated", "failed", "policy_denied")


def test_a_reason_that_can_be_lifted_refuses_its_own_call_alone() -> None:
    run = Run(pins(bounds=limits(tool_calls=1)))
    run.reply(READ, call("get_order", order_id="B"))
    run.check("c1.0")
    run.check("c1.1")
    assert run.bound("c1.1") == ("error", "max_tool_calls")
    run.report("c1.0")
    assert run.bound("c1.0") == ("ok", "")
    assert run.stop() == ("suspended", "incomplete", "max_tool_calls")


# --- goals ---------------------------------------------------------------------------------------------------------


def test_only_evidence_completes() -> None:
    goal = Goal.of(Evidence("refund", arguments={"order_id": "A"}, result={"refunded": 5}))
    run = Run(pins(goal=goal))
    run.reply(call("refund", order_id="A", amount=5))
    run.check("c1.0")
    run.report("c1.0", result={"refunded": 5})
    run.final()
    assert run.stop() == ("terminated", "completed", "final")
    assert run.state.unfinished == ()


VIEW = {"bytes": 99_999, "refunded": 5, "truncated": True}


@pytest.mark.parametrize(
    ("met", "outcome"),
    [((), "evidence_missing"), ((0,), "evidence_missing"), ((1,), "evidence_missing"), ((0, 1), "final")],
)
def test_a_view_of_a_large_result_is_no_evidence_and_the_whole_one_is(
    met: tuple[int, ...], outcome: str
) -> None:
    """What the whole result meets is on record beside its view; the view itself is never judged."""
    goal = Goal.of(Evidence("refund", result={"refunded": 5}), Evidence("refund", result={"truncated": True}))
    run = Run(pins(goal=goal, bounds=limits(corrective_turns=0)))
    run.reply(call("refund", order_id="A", amount=5))
    run.check("c1.0")
    run.report("c1.0", result=VIEW, artifact=bytes(32), size=99_999, met=met)
    run.final()
    assert run.state.reason == outcome


def test_a_large_result_that_a_query_found_is_judged_as_a_whole() -> None:
    run = Run(pins(goal=Goal.of(Evidence("ship", result={"shipped": "A"}))))
    run.reply(call("ship", order_id="A"))
    run.check("c1.0")
    run.report("c1.0", "unknown")
    run.query("c1.0", "applied", {"bytes": 99_999, "truncated": True}, met=(0,))
    shown = run.state.items[-1]
    assert isinstance(shown, ResultItem)
    assert b'"truncated":true' in shown.content.rpartition(b"}")[0]
    run.final()
    assert run.stop() == ("terminated", "completed", "final")


def test_which_predicates_a_whole_result_meets() -> None:
    goal = Goal.of(
        "refund",
        Evidence("refund", result={"refunded": 5}),
        Evidence("refund", arguments={"order_id": "Z"}, result={"refunded": 6}),
        "pay",
    )
    assert predicates_met(goal.evidence, "refund", b'{"refunded":5}') == (0, 1)
    assert predicates_met(goal.evidence, "refund", b"[]") == (0,)
    # Arguments are judged where the call is; here only the result is.
    assert predicates_met(goal.evidence, "refund", b'{"refunded":6}') == (0, 2)
    assert predicates_met(goal.evidence, "get_order", b"{}") == ()
    assert predicates_met((), "refund", b"{}") == ()


@pytest.mark.parametrize(
    ("arguments", "result"),
    [({"order_id": "B", "amount": 5}, {"refunded": 5}), ({"order_id": "A", "amount": 5}, {"refunded": True})],
)
def test_other_arguments_or_results_are_no_evidence(
    arguments: dict[str, Any], result: dict[str, Any]
) -> None:
    goal = Goal.of(Evidence("refund", arguments={"order_id": "A"}, result={"refunded": 1}))
    run = Run(pins(goal=goal))
    run.reply(call("refund", **arguments))
    run.check("c1.0")
    run.report("c1.0", result=result)
    run.final()
    run.final()
    assert run.stop() == ("suspended", "incomplete", "evidence_missing")


def test_replayed_effect_is_evidence_and_a_failed_one_is_not() -> None:
    first = Run()
    first.reply(call("refund", order_id="A", amount=5))
    first.check("c1.0")
    first.report("c1.0")
    run = Run(pins(goal=Goal.of("refund")), ledger=first.ledger, run_id="r2")
    run.reply(call("refund", order_id="A", amount=5))
    run.check("c1.0")
    run.final()
    assert run.stop()[1] == "completed"


def test_corrective_turn_then_evidence_missing() -> None:
    run = Run(pins(goal=Goal.of("refund", Evidence("get_order", count=2))))
    run.final("all done")
    notes = [event.text for event, _ in run.log if isinstance(event, e.MessageReceived)]
    assert len(notes) == 1
    assert "refund" in notes[0]
    run.final("really")
    assert run.stop() == ("suspended", "incomplete", "evidence_missing")
    assert run.state.unfinished[:2] == ("refund", "get_order x2")


def test_corrective_turn_only_if_limits_allow() -> None:
    for bounds in (limits(turns=1), limits(corrective_turns=0)):
        run = Run(pins(goal=Goal.of("refund"), bounds=bounds))
        run.final("all done")
        assert run.stop() == ("suspended", "incomplete", "evidence_missing")


def test_permanent_failure_of_a_required_tool_ends() -> None:
    run = Run(pins(goal=Goal.of("refund")))
    run.reply(call("refund", order_id="A", amount=5))
    run.check("c1.0")
    run.report("c1.0", "failed", code="closed_account", no_effect=True)
    assert run.stop() == ("terminated", "failed", "tool_failed")


def test_failure_of_a_tool_that_is_not_required_goes_back() -> None:
    run = Run(pins(goal=Goal.of("refund")))
    run.reply(READ)
    run.check("c1.0")
    run.report("c1.0", "failed", code="gone")
    assert run.state.phase == "model_requested"


def test_required_tool_that_is_not_offered_blocks() -> None:
    offered = tuple(tool for tool in TOOLS if tool.name != "refund")
    run = Run(pins(goal=Goal.of("refund"), tools=offered))
    assert run.stop() == ("suspended", "incomplete", "blocked")
    assert "model_requested" not in run.tags()


def test_active_time_stops_and_waits_do_not_count() -> None:
    run = Run(pins(bounds=limits(active_ms=5_000)))
    run.reply(call("refund", order_id="A", amount=5))
    run.ask("c1.0")
    run.tick(60_000)
    run.approve("c1.0")
    run.check("c1.0", resource_version="v1")
    run.now += 5_000
    run.report("c1.0")
    assert run.stop() == ("suspended", "incomplete", "deadline")
    run.outside(Resume)
    assert run.refusal == "deadline"
    run.outside(RaiseLimits, raised={"active_ms": 60_000})
    run.outside(Resume)
    assert run.state.phase == "model_requested"


def test_time_without_a_host_is_not_active() -> None:
    run = Run(pins(bounds=limits(active_ms=5_000)))
    run.reply(READ)
    run.check("c1.0")
    run.now += 1_000
    run.decide(Cancel(command_id="c", by="u"))
    assert run.state.counters.active_ms == 1_000
    for was_active in (False, True):
        away = Run(pins(bounds=limits(active_ms=5_000)))
        if was_active:
            away.reply(READ)
            away.check("c1.0")
            assert away.state.calls["c1.0"].phase == "started"
        away.now += 60_000
        away.crash()
        assert away.state.counters.active_ms == 0
        assert away.state.live


def test_refused_command_changes_nothing() -> None:
    run = Run()
    before = state_digest(run.state)
    run.outside(Resume)
    assert run.refusal == "not_stopped"
    assert state_digest(run.state) == before
