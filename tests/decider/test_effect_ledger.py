"""The ledger, row by row: what each state of a key means for the call that wants it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from boundloop.runtime import events as e
from boundloop.runtime.canonical import canonical_bytes
from boundloop.runtime.commands import (
    ChecksDone,
    ClaimLost,
    Close,
    Queried,
    RaiseLimits,
    ResolveCall,
    Resume,
)
from boundloop.runtime.events import RungVerdict
from boundloop.runtime.ledger import LedgerRow
from boundloop.runtime.limits import MARGIN_MS, QUERIES_MAX
from boundloop.runtime.model import ResultItem
from boundloop.runtime.orders import Query, shown_phase

from .shop import BY_NAME, changed, pins
from .spec import Ledger, Run, call, given, ledger_drift

REFUND: dict[str, Any] = {"order_id": "A", "amount": 5}


def two(tool: str = "refund", **arguments: Any) -> tuple[Run, Run]:
    """Two runs of one operation that share a ledger; each has proposed the same effect."""
    ledger = Ledger()
    first, second = Run(ledger=ledger), Run(ledger=ledger, run_id="r2")
    for run in (first, second):
        run.reply(call(tool, **(arguments or REFUND)))
    return first, second


def content(run: Run) -> Any:
    last = run.state.items[-1]
    assert isinstance(last, ResultItem)
    return msgspec.json.decode(last.content)


def unknown(tool: str, **arguments: Any) -> Run:
    """A run whose one effect was sent and is now unknown."""
    run = Run()
    run.reply(call(tool, **arguments))
    run.check("c1.0")
    run.report("c1.0", "unknown", code="timeout", retryable=True)
    return run


def status(run: Run) -> list[str]:
    return [row.status for row in run.ledger.rows.values()]


def test_new_key_executes_with_an_intent_before() -> None:
    run = Run()
    run.reply(call("refund", **REFUND))
    run.check("c1.0")
    assert run.tags()[-2:] == ["call_validated", "call_started"]
    assert status(run) == ["in_flight"]
    run.report("c1.0", result={"refunded": 5})
    assert status(run) == ["succeeded"]
    assert run.bound("c1.0") == ("ok", "")


@pytest.mark.parametrize("held", ["succeeded", "in_flight", "waiting_approval", "unknown"])
def test_conflict_comes_first(held: str) -> None:
    first, _ = two()
    if held == "waiting_approval":
        first.ask("c1.0")
    else:
        first.check("c1.0")
    if held in ("succeeded", "unknown"):
        first.report("c1.0", held)  # type: ignore[arg-type]  # the two are outcomes
    assert status(first) == [held]
    other = Run(ledger=first.ledger, run_id="r3")
    other.reply(call("refund", order_id="A", amount=6))
    other.check("c1.0")
    assert other.bound("c1.0") == ("error", "idempotency_conflict")
    assert other.started("c1.0") == 0
    assert status(first) == [held]


def test_succeeded_is_replayed_and_the_model_is_told() -> None:
    first, second = two()
    first.check("c1.0")
    first.report("c1.0", result={"refunded": 5})
    second.check("c1.0")
    assert second.started("c1.0") == 0
    assert second.bound("c1.0") == ("ok", "replayed")
    shown = content(second)
    assert shown["replayed"] is True
    assert shown["data"] == {"refunded": 5}
    assert "nothing ran now" in shown["message"]
    assert shown["observed_at"] == first.now
    assert second.state.meters.tool_calls.spent == 0


def test_replay_asks_nobody() -> None:
    first, second = two()
    first.check("c1.0")
    first.report("c1.0")
    second.ask("c1.0")
    assert second.bound("c1.0") == ("ok", "replayed")
    assert "approval_requested" not in second.tags()


def test_incidental_arguments_differ_and_that_is_said() -> None:
    first, _ = two()
    first.check("c1.0")
    first.report("c1.0")
    other = Run(ledger=first.ledger, run_id="r3")
    other.reply(call("refund", **REFUND, reason="in other words"))
    other.check("c1.0")
    assert other.bound("c1.0") == ("ok", "replayed")
    assert "incidental arguments differed" in content(other)["message"]


def test_changed_description_makes_no_second_refund() -> None:
    first, _ = two()
    first.check("c1.0")
    first.report("c1.0")
    later = Run(pins(tools=changed("refund", description="Another text.")), ledger=first.ledger, run_id="r3")
    later.reply(call("refund", **REFUND))
    later.check("c1.0")
    assert later.bound("c1.0") == ("ok", "replayed")


def test_replay_of_an_effect_without_a_usable_result_says_so() -> None:
    first, second = two()
    first.check("c1.0")
    first.report("c1.0", code="output_invalid")
    assert first.bound("c1.0") == ("error", "output_invalid")
    assert status(first) == ["succeeded"]
    second.check("c1.0")
    assert second.bound("c1.0") == ("error", "output_invalid")
    assert "nothing ran now" in content(second)["message"]
    assert second.started("c1.0") == 0


def test_waiting_approval_elsewhere_then_rejected_there() -> None:
    first, second = two()
    first.ask("c1.0")
    second.ask("c1.0")
    assert second.phase("c1.0") == "waiting_key"
    assert second.call("c1.0").holder_why == "approval"
    first.reject("c1.0")
    second.ask("c1.0")
    assert second.bound("c1.0") == ("error", "approval_rejected")
    # Somebody who didn't wait for that decision finds the key free.
    third = Run(ledger=first.ledger, run_id="r3")
    third.reply(call("refund", **REFUND))
    third.check("c1.0")
    assert third.started("c1.0") == 1


@pytest.mark.parametrize("end", ["lapse", "cancel"])
def test_waiting_approval_elsewhere_then_lapsed_or_cancelled_there(end: str) -> None:
    first, second = two()
    first.ask("c1.0")
    second.ask("c1.0")
    if end == "lapse":
        first.tick_to_wake()
        second.now = first.now
    else:
        first.cancel()
    assert status(first) == []
    second.ask("c1.0")
    assert second.phase("c1.0") == "waiting_approval"
    second.approve("c1.0")
    second.check("c1.0", resource_version="v1")
    assert second.started("c1.0") == 1


def test_in_flight_elsewhere_waits_then_replays() -> None:
    first, second = two()
    first.check("c1.0")
    second.check("c1.0")
    assert second.phase("c1.0") == "waiting_key"
    # Looked up again without news: nothing is written.
    given(second).when(second.checks("c1.0"), second.now).then_nothing()
    first.report("c1.0", result={"refunded": 5})
    second.check("c1.0")
    assert second.bound("c1.0") == ("ok", "replayed")


def test_in_flight_elsewhere_then_unknown_there_waits_on() -> None:
    first, second = two("pay", order_id="A", amount=1)
    first.check("c1.0")
    second.check("c1.0")
    first.report("c1.0", "unknown")
    assert first.stop() == ("suspended", "incomplete", "outcome_unknown")
    second.check("c1.0")
    assert second.call("c1.0").holder_why == "unknown"


def test_lost_claim_is_an_answer() -> None:
    first, second = two()
    # Both look before either claims.
    seen = second.checks("c1.0")
    first.check("c1.0")
    second.send(seen)
    assert second.phase("c1.0") == "waiting_key"
    assert second.started("c1.0") == 0


def test_lost_claim_of_an_approval_is_an_answer() -> None:
    first, second = two()
    seen = second.checks("c1.0", ask=True)
    first.ask("c1.0")
    # Nothing of the refused append happened, so the call is proposed still and its row is read again.
    second.decide(seen)
    assert second.phase("c1.0") == "proposed"
    second.ask("c1.0")
    assert second.phase("c1.0") == "waiting_key"


def test_same_holder_goes_on() -> None:
    run = Run()
    run.reply(call("refund", **REFUND))
    run.ask("c1.0")
    assert status(run) == ["waiting_approval"]
    run.approve("c1.0")
    run.check("c1.0", resource_version="v1")
    assert run.started("c1.0") == 1


def test_failed_with_proof_frees_the_key_and_may_be_tried_again() -> None:
    run = Run()
    run.reply(call("refund", **REFUND))
    run.check("c1.0")
    run.report("c1.0", "failed", code="refused", retryable=True, no_effect=True)
    assert status(run) == []
    run.tick_to_wake()
    assert run.started("c1.0") == 1  # checked again first
    run.check("c1.0")
    assert run.started("c1.0") == 2


def test_failed_with_proof_and_not_retryable_is_bound() -> None:
    run = Run()
    run.reply(call("refund", **REFUND))
    run.check("c1.0")
    run.report("c1.0", "failed", code="closed_account", no_effect=True)
    assert run.bound("c1.0") == ("error", "closed_account")
    assert status(run) == []


def test_failed_without_proof_is_unknown() -> None:
    run = Run()
    run.reply(call("pay", order_id="A", amount=1))
    run.check("c1.0")
    run.report("c1.0", "failed", code="http_500", retryable=True)
    assert run.phase("c1.0") == "reconciling"
    assert status(run) == ["unknown"]
    assert run.stop() == ("suspended", "incomplete", "outcome_unknown")


def test_free_key_taken_by_another_while_a_retry_waits() -> None:
    first, second = two()
    first.check("c1.0")
    first.report("c1.0", "failed", code="refused", retryable=True, no_effect=True)
    second.check("c1.0")
    first.tick_to_wake()
    first.check("c1.0")
    assert first.bound("c1.0") == ("error", "refused")
    assert first.started("c1.0") == 1


def test_free_key_succeeded_elsewhere_while_a_retry_waits() -> None:
    first, second = two()
    first.check("c1.0")
    first.report("c1.0", "failed", code="refused", retryable=True, no_effect=True)
    second.check("c1.0")
    second.report("c1.0", result={"refunded": 5})
    first.tick_to_wake()
    first.check("c1.0")
    assert first.bound("c1.0") == ("ok", "replayed")


@pytest.mark.parametrize(
    ("tool", "arguments"), [("refund", REFUND), ("set_state", {"order_id": "A", "state": "x"})]
)
def test_unknown_keyed_or_natural_is_sent_again_under_the_same_key(
    tool: str, arguments: dict[str, Any]
) -> None:
    run = unknown(tool, **arguments)
    key = run.call("c1.0").key
    assert not run.orders()
    run.tick_to_wake()
    assert run.started("c1.0") == 1
    run.check("c1.0")
    assert run.started("c1.0") == 2
    assert run.call("c1.0").key == key
    assert status(run) == ["in_flight"]
    run.report("c1.0")
    assert run.bound("c1.0") == ("ok", "")


def test_unknown_keyed_waits_for_a_person_when_its_attempts_are_used_up() -> None:
    run = unknown("refund", **REFUND)
    for _ in range(BY_NAME["refund"].max_attempts - 1):
        run.tick_to_wake()
        run.check("c1.0")
        run.report("c1.0", "unknown", code="timeout")
    assert run.started("c1.0") == 3
    assert run.stop() == ("suspended", "incomplete", "outcome_unknown")


def test_verdicts_before_their_time_start_nothing() -> None:
    """A resend has its back-off, and so has a retry: verdicts that nobody ordered yet don't cut it short."""
    resend = unknown("refund", **REFUND)
    early = ChecksDone(call="c1.0", recheck=True)
    given(resend).when(early, resend.now).then_nothing()
    retry = Run()
    retry.reply(call("refund", **REFUND))
    retry.check("c1.0")
    given(retry).when(early, retry.now).then_nothing()
    retry.report("c1.0", "failed", code="busy", retryable=True, no_effect=True)
    given(retry).when(early, retry.now).then_nothing()


def test_denied_before_a_resend_stays_unknown() -> None:
    run = unknown("refund", **REFUND)
    run.tick_to_wake()
    run.check("c1.0", verdicts=(RungVerdict("switch", "deny", "off"),))
    assert run.started("c1.0") == 1
    assert run.stop() == ("suspended", "incomplete", "outcome_unknown")
    assert status(run) == ["unknown"]


def test_unknown_without_help_waits_for_a_person() -> None:
    run = unknown("pay", order_id="A", amount=1)
    assert run.stop() == ("suspended", "incomplete", "outcome_unknown")
    assert run.state.detail == "c1.0"
    run.outside(ResolveCall, call="c1.0", outcome="applied", result='{"paid":1}', by="boss")
    assert run.bound("c1.0") == ("ok", "")
    assert run.state.phase == "model_requested"
    assert status(run) == ["succeeded"]


def test_person_says_absent_and_the_effect_may_be_sent_within_its_attempts() -> None:
    run = unknown("pay", order_id="A", amount=1)
    run.outside(ResolveCall, call="c1.0", outcome="absent", by="boss")
    assert status(run) == []
    run.check("c1.0")
    assert run.started("c1.0") == 2


def test_same_key_twice_in_one_turn_does_not_wait_for_itself_for_ever() -> None:
    run = Run()
    run.reply(call("pay", order_id="A", amount=1), call("pay", order_id="A", amount=1))
    run.check("c1.0")
    run.check("c1.1")
    run.report("c1.0", "unknown")
    assert run.stop() == ("suspended", "incomplete", "outcome_unknown")
    run.outside(ResolveCall, call="c1.0", outcome="applied", by="boss")
    run.check("c1.1")
    assert run.bound("c1.1") == ("ok", "replayed")
    assert run.started("c1.1") == 0


def test_query_applied_reconciles() -> None:
    run = unknown("ship", order_id="A")
    run.query("c1.0", "applied", {"shipped": "A"})
    assert run.bound("c1.0") == ("ok", "")
    assert status(run) == ["succeeded"]


def test_query_applied_with_an_invalid_result_never_runs_again() -> None:
    run = unknown("ship", order_id="A")
    run.query("c1.0", "applied", code="output_invalid")
    assert run.bound("c1.0") == ("error", "output_invalid")
    assert status(run) == ["succeeded"]
    assert run.started("c1.0") == 1


def test_five_queries_with_back_off_then_a_person() -> None:
    run = unknown("ship", order_id="A")
    delays: list[int] = []
    for number in range(QUERIES_MAX):
        run.query("c1.0", "unknown")
        if number + 1 < QUERIES_MAX:
            before = run.now
            run.tick_to_wake()
            delays.append(run.now - before)
    assert delays == sorted(delays)
    assert delays[0] > 0
    assert run.stop() == ("suspended", "incomplete", "outcome_unknown")


def test_absent_counts_only_after_validity_and_margin() -> None:
    run = unknown("ship", order_id="A")
    over = run.call("c1.0").valid_until_ms + MARGIN_MS
    run.query("c1.0", "absent")
    assert run.phase("c1.0") == "reconciling"
    run.tick_to_wake()
    assert run.now == over + 1
    run.query("c1.0", "absent")
    assert run.phase("c1.0") == "checking"
    assert status(run) == []
    run.check("c1.0")
    assert run.started("c1.0") == 2


def test_absent_counts_by_when_it_was_asked_not_by_when_it_was_answered() -> None:
    run = unknown("ship", order_id="A")
    asked = run.now
    run.now = run.call("c1.0").valid_until_ms + MARGIN_MS + 10
    run.query("c1.0", "absent", asked_at_ms=asked)
    assert run.phase("c1.0") == "reconciling"
    assert status(run) == ["unknown"]


def test_absent_from_a_lagging_list_never_counts() -> None:
    run = unknown("book", order_id="A")
    run.now = run.call("c1.0").valid_until_ms + MARGIN_MS + 10
    for _ in range(QUERIES_MAX):
        run.query("c1.0", "absent")
        if run.state.phase == "open_calls":
            run.tick_to_wake()
    assert run.stop() == ("suspended", "incomplete", "outcome_unknown")
    assert run.started("c1.0") == 1


def test_doubled_and_old_answers_of_queries_change_nothing() -> None:
    run = unknown("ship", order_id="A")
    answer = Queried(call="c1.0", number=1, asked_at_ms=run.now, outcome="unknown")
    run.send(answer)
    given(run).when(answer, run.now).then_nothing()
    given(run).when(
        msgspec.structs.replace(answer, outcome="absent", asked_at_ms=2**40), run.now
    ).then_nothing()


def test_output_invalid_is_a_success_that_never_runs_again() -> None:
    run = Run()
    run.reply(call("refund", **REFUND))
    run.check("c1.0")
    run.report(
        "c1.0", code="output_invalid", safe_message="the result is not what it should be", retryable=True
    )
    assert run.bound("c1.0") == ("error", "output_invalid")
    assert status(run) == ["succeeded"]


def test_late_success_settles_an_unknown_and_a_doubled_one_changes_nothing() -> None:
    run = unknown("refund", **REFUND)
    late = run.executed("c1.0", result={"refunded": 5})
    run.send(late)
    assert run.bound("c1.0") == ("ok", "")
    given(run).when(late, run.now).then_nothing()


def called_absent() -> tuple[Run, Any]:
    """A run whose lost attempt the far side doesn't know, with the report that the attempt makes after all."""
    run = unknown("ship", order_id="A")
    late = run.executed("c1.0", result={"shipped": "A"})
    while run.phase("c1.0") == "reconciling":
        if any(isinstance(order, Query) for order in run.orders()):
            run.query("c1.0", "absent")
        else:
            run.tick_to_wake()
    assert run.phase("c1.0") == "checking"
    assert not run.ledger.rows
    return run, late


def test_late_success_after_absent_settles_the_effect_and_nothing_is_sent_again() -> None:
    run, late = called_absent()
    verdicts = run.checks("c1.0")
    run.send(late)
    assert run.bound("c1.0") == ("ok", "")
    assert status(run) == ["succeeded"]
    run.send(verdicts)
    assert run.started("c1.0") == 1
    assert not ledger_drift([run])
    again = Run(ledger=run.ledger, run_id="r2")
    again.reply(call("ship", order_id="A"))
    again.check("c1.0")
    assert again.bound("c1.0") == ("ok", "replayed")


def test_late_success_after_absent_makes_the_question_to_a_person_pointless() -> None:
    run, late = called_absent()
    run.ask("c1.0")
    assert run.phase("c1.0") == "waiting_approval"
    run.send(late)
    assert [event.why for event, _ in run.log if isinstance(event, e.ApprovalLapsed)] == ["settled_elsewhere"]
    assert not ledger_drift([run])
    assert run.bound("c1.0") == ("ok", "")
    assert status(run) == ["succeeded"]


def abandoned() -> tuple[Run, Run]:
    """A run that was cancelled with its effect unknown, and another that has waited for it for a minute."""
    first, second = two()
    first.check("c1.0")
    first.report("c1.0", "unknown", code="lost")
    first.cancel()
    second.check("c1.0")
    assert second.phase("c1.0") == "waiting_key"
    first.now = second.now = first.now + 60_000
    return first, second


def taken_over() -> tuple[Run, Run]:
    """The one that waited took the abandoned effect over, and has sent it again."""
    first, second = abandoned()
    second.send(msgspec.structs.replace(second.checks("c1.0"), holder_ended=True))
    assert second.phase("c1.0") == "started"
    return first, second


def test_what_was_taken_over_in_vain_is_unknown_as_before() -> None:
    """The taker's proof speaks of its own attempt. Nobody else's intent gets the key, and a person is asked about the first."""
    first, second = taken_over()
    second.report("c1.0", "failed", code="refused", no_effect=True)
    [row] = first.ledger.rows.values()
    assert (row.run_id, row.status) == ("r1", "unknown")
    other = Run(ledger=first.ledger, run_id="r3")
    other.reply(call("refund", order_id="A", amount=7))
    other.check("c1.0", holder_ended=True)
    assert other.bound("c1.0") == ("error", "idempotency_conflict")
    assert not ledger_drift([first, second, other])


def test_a_retry_takes_over_again_what_its_failed_attempt_had() -> None:
    first, second = taken_over()
    second.report("c1.0", "failed", code="busy", no_effect=True, retryable=True)
    second.tick_to_wake()
    second.send(msgspec.structs.replace(second.checks("c1.0"), holder_ended=True))
    assert second.started("c1.0") == 2
    second.report("c1.0", "failed", code="refused", no_effect=True)
    assert [(row.run_id, row.status) for row in first.ledger.rows.values()] == [("r1", "unknown")]
    assert not ledger_drift([first, second])


@pytest.mark.parametrize("word", ["before", "while", "after"])
def test_what_happened_after_all_is_on_record_though_another_took_it_over_in_vain(word: str) -> None:
    """Its taker proves that its own attempt did nothing; sooner or later a person finds the first one's effect."""
    first, second = abandoned()
    if word == "before":
        first.outside(ResolveCall, call="c1.0", outcome="applied", by="boss")
        second.send(msgspec.structs.replace(second.checks("c1.0"), holder_ended=True))
        assert second.bound("c1.0") == ("ok", "replayed")
    else:
        second.send(msgspec.structs.replace(second.checks("c1.0"), holder_ended=True))
        if word == "while":
            first.outside(ResolveCall, call="c1.0", outcome="applied", by="boss")
        second.report("c1.0", "failed", code="refused", no_effect=True)
        if word == "after":
            first.outside(ResolveCall, call="c1.0", outcome="applied", by="boss")
    assert status(first) == ["succeeded"]
    assert not ledger_drift([first, second])
    again = Run(ledger=first.ledger, run_id="r3")
    again.reply(call("refund", **REFUND))
    again.check("c1.0")
    assert again.bound("c1.0") == ("ok", "replayed")


def test_two_words_about_one_effect_that_was_taken_over_leave_one_sound_row() -> None:
    first, second = taken_over()
    second.report("c1.0", "unknown", code="lost")
    second.cancel()
    third = Run(ledger=first.ledger, run_id="r3", now=first.now + 60_000)
    third.reply(call("refund", **REFUND))
    third.check("c1.0", holder_ended=True)
    third.send(msgspec.structs.replace(third.checks("c1.0"), holder_ended=True))
    third.report("c1.0", "failed", code="refused", no_effect=True)
    for run in (first, second):
        run.now = third.now
        run.outside(ResolveCall, call="c1.0", outcome="applied", by="boss")
        assert status(run) == ["succeeded"]
        assert not ledger_drift([first, second, third])


def test_who_only_asked_about_an_abandoned_effect_leaves_its_row_to_whoever_settles_it() -> None:
    """Its question was answered with a no, which says nothing of the lost effect; later a person finds that it never was."""
    first, second = abandoned()
    second.send(msgspec.structs.replace(second.checks("c1.0", ask=True, preview=b"{}"), holder_ended=True))
    second.reject("c1.0")
    assert status(first) == ["unknown"]
    assert not ledger_drift([first, second])
    first.outside(ResolveCall, call="c1.0", outcome="absent", by="boss")
    assert not first.ledger.rows
    assert not ledger_drift([first, second])


def test_what_happened_after_all_leaves_the_key_to_who_took_it_over_and_is_at_work() -> None:
    first, second = taken_over()
    held = next(iter(second.ledger.rows.values()))
    first.outside(ResolveCall, call="c1.0", outcome="applied", by="boss")
    assert list(second.ledger.rows.values()) == [held]
    second.report("c1.0", result={"refunded": 5})
    assert second.bound("c1.0") == ("ok", "")
    assert not ledger_drift([first, second])


@pytest.mark.parametrize("holds", ["nothing", "question", "attempt"])
def test_late_success_after_absent_while_another_has_the_key(holds: str) -> None:
    """That it happened is on record, and is what a question or a failed attempt of the other comes to."""
    run, late = called_absent()
    other = Run(ledger=run.ledger, run_id="r2", now=run.now)
    other.reply(call("ship", order_id="A"))
    if holds == "question":
        other.ask("c1.0")
    else:
        other.check("c1.0")
    run.check("c1.0")
    assert run.phase("c1.0") == "waiting_key"
    if holds == "nothing":
        other.report("c1.0", "failed", code="refused", no_effect=True)
    run.send(late)
    assert run.bound("c1.0") == ("ok", "")
    assert not ledger_drift([run, other])
    if holds == "question":
        other.approve("c1.0")
        other.check("c1.0", ask=True, preview=b"{}", resource_version="v1")
        assert other.bound("c1.0") == ("ok", "replayed")
    if holds == "attempt":
        other.report("c1.0", "failed", code="refused", no_effect=True)
    assert [(row.run_id, row.status) for row in run.ledger.rows.values()] == [("r1", "succeeded")]
    assert not ledger_drift([run, other])


def test_an_attempt_under_way_keeps_its_key_when_an_earlier_one_turns_out_to_have_happened() -> None:
    """Two intents of one key took effect then: nothing here could have known."""
    run, late = called_absent()
    other = Run(ledger=run.ledger, run_id="r2", now=run.now)
    other.reply(call("ship", order_id="A"))
    other.check("c1.0")
    run.send(late)
    other.report("c1.0", result={"shipped": "A"})
    assert other.bound("c1.0") == ("ok", "")
    assert [(row.run_id, row.status) for row in run.ledger.rows.values()] == [("r2", "succeeded")]
    assert not ledger_drift([run, other])


@pytest.mark.parametrize("ended", [False, True])
def test_late_success_after_the_call_was_refused_is_on_record(ended: bool) -> None:
    """Called absent, then denied at the re-check; the attempt had taken effect all the same."""
    run, late = called_absent()
    run.check("c1.0", verdicts=(RungVerdict("policy", "deny", "not_now", "p"),))
    assert not run.state.calls
    if ended:
        run.cancel()
    run.send(late)
    assert status(run) == ["succeeded"]
    assert run.state.effects == {"ship": 1}
    given(run).when(late, run.now).then_nothing()
    assert not ledger_drift([run])
    again = Run(ledger=run.ledger, run_id="r2", now=run.now)
    again.reply(call("ship", order_id="A"))
    again.check("c1.0")
    assert again.bound("c1.0") == ("ok", "replayed")


def test_late_success_of_an_attempt_before_a_new_one_changes_nothing() -> None:
    run, late = called_absent()
    run.check("c1.0")
    assert run.started("c1.0") == 2
    given(run).when(late, run.now).then_nothing()


def test_late_success_with_an_unusable_result_is_no_evidence() -> None:
    run = unknown("refund", **REFUND)
    run.report("c1.0", code="output_invalid")
    assert run.bound("c1.0") == ("error", "output_invalid")
    assert "refund" not in run.state.succeeded_tools


def test_report_of_another_attempt_changes_nothing() -> None:
    run = unknown("refund", **REFUND)
    run.tick_to_wake()
    run.check("c1.0")
    given(run).when(run.executed("c1.0", attempt=1), run.now).then_nothing()
    given(run).when(run.executed("c1.0", attempt=3), run.now).then_nothing()


def test_reads_never_claim_and_never_become_unknown() -> None:
    run = Run()
    run.reply(call("get_order", order_id="A"))
    run.check("c1.0")
    run.report("c1.0", "unknown", code="timeout", retryable=True)
    assert not run.ledger.rows
    assert run.phase("c1.0") == "executed"
    run.tick_to_wake()
    assert run.started("c1.0") == 2


def test_call_keys_make_two_equal_calls_two_effects() -> None:
    run = Run()
    run.reply(call("send_letter", order_id="A"), call("send_letter", order_id="A"))
    for name in ("c1.0", "c1.1"):
        run.now += 1
        if run.phase(name) == "proposed":
            run.check(name)
        if run.phase(name) == "checking":
            run.check(name)
        run.report(name)
    assert [run.bound(name) for name in ("c1.0", "c1.1")] == [("ok", ""), ("ok", "")]
    assert len(run.ledger.rows) == 2


def test_other_operation_is_another_intent() -> None:
    ledger = Ledger()
    for number in range(2):
        run = Run(ledger=ledger, run_id=f"r{number}", operation_id=f"op{number}")
        run.reply(call("refund", **REFUND))
        run.check("c1.0")
        assert run.started("c1.0") == 1


def test_lost_claim_that_names_our_own_row_is_looked_up_again() -> None:
    run = Run()
    run.reply(call("refund", **REFUND))
    run.ask("c1.0")
    run.approve("c1.0")
    row = next(iter(run.ledger.rows.values()))
    given(run).when(ClaimLost(call="c1.0", row=row), run.now).then_nothing()
    given(run).when(ClaimLost(call="c7.0", row=row), run.now).then_nothing()


def test_retry_after_an_approval_needs_the_approval_to_stand() -> None:
    def retried(**fields: Any) -> Run:
        run = Run()
        run.reply(call("refund", **REFUND))
        run.ask("c1.0")
        run.approve("c1.0")
        run.check("c1.0", resource_version="v1")
        run.report("c1.0", "failed", code="busy", retryable=True, no_effect=True)
        run.tick(fields.pop("wait", 200))
        run.check("c1.0", **{"resource_version": "v1", **fields})
        return run

    assert retried().started("c1.0") == 2
    for stale in ({"resource_version": "v2"}, {"policy_revision": "other"}, {"wait": 600_001}):
        run = retried(**stale)
        assert run.started("c1.0") == 1
        assert run.bound("c1.0") == ("error", "busy")


def test_resend_after_an_approval_needs_the_approval_but_not_the_old_resource_version() -> None:
    def resent(**fields: Any) -> Run:
        run = Run()
        run.reply(call("refund", **REFUND))
        run.ask("c1.0")
        run.approve("c1.0")
        run.check("c1.0", resource_version="v1")
        run.report("c1.0", "unknown")
        run.tick(200)
        run.check("c1.0", **{"resource_version": "v1", **fields})
        return run

    assert resent(resource_version="v2").started("c1.0") == 2
    assert resent(policy_revision="other").stop() == ("suspended", "incomplete", "outcome_unknown")


def test_policy_that_now_wants_a_person_stops_a_retry() -> None:
    run = Run()
    run.reply(call("refund", **REFUND))
    run.check("c1.0")
    run.report("c1.0", "failed", code="busy", retryable=True, no_effect=True)
    run.tick_to_wake()
    run.check("c1.0", ask=True)
    assert run.started("c1.0") == 1
    assert run.bound("c1.0") == ("error", "busy")


def test_rows_of_the_table_are_all_there() -> None:
    run = Run()
    run.reply(call("refund", **REFUND))
    admitted = run.checks("c1.0").admitted
    assert admitted is not None
    assert admitted.key is not None
    assert admitted.intent_sha256 is not None
    expected: dict[str, list[type[e.AnyEvent]]] = {
        "waiting_approval": [e.CallValidated, e.CallWaiting],
        "in_flight": [e.CallValidated, e.CallWaiting],
        "unknown": [e.CallValidated, e.CallWaiting],
        "succeeded": [e.CallValidated, e.ResultBound],
        "rejected": [e.CallValidated],
    }
    for held, events in expected.items():
        row = LedgerRow(
            tenant="default",
            key=admitted.key,
            tool="refund",
            status=held,  # type: ignore[arg-type]  # keys of the table above
            intent_sha256=admitted.intent_sha256,
            args_sha256=admitted.args_sha256,
            run_id="elsewhere",
            call_id="c1.0",
            attempt=1,
            epoch=1,
            valid_until_ms=0,
            at_ms=5,
            result=canonical_bytes({"refunded": 5}) if held == "succeeded" else None,
        )
        command = ChecksDone(call="c1.0", recheck=False, admitted=admitted, row=row)
        given(run).when(command, run.now).then(*events)


def test_what_is_shown_is_what_is_still_open() -> None:
    run = Run()
    run.reply(call("refund", **REFUND), call("get_order", order_id="A"))
    run.check("c1.0")
    run.report("c1.0", "unknown")
    assert shown_phase(run.state) == "validating"
    run.check("c1.1", verdicts=(RungVerdict("policy", "deny", "no"),))
    assert shown_phase(run.state) == "reconciling"
    first, _ = two()
    first.check("c1.0")
    asked = Run(ledger=first.ledger, run_id="r3")
    asked.reply(call("refund", **REFUND), call("pay", order_id="A", amount=1))
    asked.check("c1.0")
    asked.ask("c1.1")
    assert shown_phase(asked.state) == "waiting_approval"
    asked.reject("c1.1")
    assert shown_phase(asked.state) == "waiting_key"


# --- an effect that was left unknown ------------------------------------------------------------------------------


def left_unknown(tool: str, **arguments: Any) -> tuple[Run, Run]:
    """The first run has ended with its effect unknown, and the second wants the same effect."""
    first, second = two(tool, **arguments)
    first.check("c1.0")
    second.check("c1.0")
    first.report("c1.0", "unknown", code="timeout")
    assert second.phase("c1.0") == "waiting_key"
    # While its run lives, the effect is that run's to settle.
    second.check("c1.0")
    assert second.phase("c1.0") == "waiting_key"
    first.tick(first.state.deadline_at_ms - first.now)
    first.outside(Close)
    assert first.stop()[0] == "terminated"
    assert status(first) == ["unknown"]
    return first, second


@pytest.mark.parametrize(
    ("tool", "arguments"), [("refund", REFUND), ("set_state", {"order_id": "A", "state": "x"})]
)
def test_abandoned_effect_is_sent_again_where_that_makes_no_second_one(
    tool: str, arguments: dict[str, Any]
) -> None:
    first, second = left_unknown(tool, **arguments)
    second.check("c1.0", holder_ended=True)
    assert second.call("c1.0").key == first.state.unknown_calls["c1.0"].key
    assert second.started("c1.0") == 1
    second.report("c1.0", result={"done": True})
    assert second.bound("c1.0") == ("ok", "")
    assert status(second) == ["succeeded"]
    # The first run's own record is still open to a person's word; the row is the second's now.
    assert not ledger_drift([first, second])
    first.outside(ResolveCall, call="c1.0", outcome="absent", by="boss")
    assert status(second) == ["succeeded"]
    assert not ledger_drift([first, second])


@pytest.mark.parametrize(
    ("tool", "arguments"), [("pay", {"order_id": "A", "amount": 5}), ("ship", {"order_id": "A"})]
)
def test_abandoned_effect_that_only_a_person_can_settle_is_waited_for_by_nobody(
    tool: str, arguments: dict[str, Any]
) -> None:
    first, second = left_unknown(tool, **arguments)
    second.check("c1.0", holder_ended=True)
    assert second.bound("c1.0") == ("error", "outcome_unknown")
    assert second.started("c1.0") == 0
    assert second.state.phase == "model_requested"
    assert status(first) == ["unknown"]


def test_only_one_of_two_takes_an_abandoned_effect_over() -> None:
    first, second = left_unknown("refund", **REFUND)
    third = Run(ledger=first.ledger, run_id="r3")
    third.reply(call("refund", **REFUND))
    third.check("c1.0")
    late = third.checks("c1.0", holder_ended=True)
    second.check("c1.0", holder_ended=True)
    third.send(late)
    assert third.started("c1.0") == 0
    assert (third.phase("c1.0"), third.call("c1.0").holder_run) == ("waiting_key", "r2")


def test_a_no_to_sending_an_abandoned_effect_again_leaves_it_unknown() -> None:
    first, second = left_unknown("refund", **REFUND)
    second.ask("c1.0", holder_ended=True)
    assert status(first) == ["unknown"]
    second.reject("c1.0")
    assert second.bound("c1.0") == ("error", "approval_rejected")
    assert status(first) == ["unknown"]
    assert not ledger_drift([first, second])


def test_a_yes_to_sending_an_abandoned_effect_again_takes_it_over() -> None:
    first, second = left_unknown("refund", **REFUND)
    second.ask("c1.0", holder_ended=True)
    second.approve("c1.0")
    second.check("c1.0", holder_ended=True, resource_version="v1")
    assert second.started("c1.0") == 1
    assert status(first) == ["in_flight"]
    assert not ledger_drift([first, second])


def test_other_arguments_are_a_conflict_with_an_abandoned_effect_too() -> None:
    first, _ = left_unknown("refund", **REFUND)
    other = Run(ledger=first.ledger, run_id="r3")
    other.reply(call("refund", order_id="A", amount=6))
    other.check("c1.0", holder_ended=True)
    assert other.bound("c1.0") == ("error", "idempotency_conflict")


def test_a_run_takes_up_again_what_it_bound_as_unknown_itself() -> None:
    run = unknown("refund", **REFUND)
    run.tick(run.state.deadline_at_ms - run.now)
    assert run.bound("c1.0") == ("error", "unknown")
    run.outside(RaiseLimits, raised={"deadline_ms": run.state.limits.deadline_ms * 2})
    run.outside(Resume)
    run.reply(call("refund", **REFUND))
    run.check("c2.0")
    assert run.phase("c2.0") == "waiting_key"
    run.check("c2.0")
    assert run.started("c2.0") == 1
