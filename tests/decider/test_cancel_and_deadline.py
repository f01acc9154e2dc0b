"""Cancel and deadline in every phase: no new intent, everything bound, and an end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from boundloop.runtime import events as e
from boundloop.runtime.commands import Cancel, Close, ModelReplied, RaiseLimits, ResolveCall, Resume
from boundloop.runtime.limits import MARGIN_MS
from boundloop.runtime.model import ModelTurn
from boundloop.runtime.orders import Query
from boundloop.runtime.state import state_digest

from .shop import limits, pins
from .spec import Run, call, given

REFUND = call("refund", order_id="A", amount=5)


def requested(run: Run) -> None:
    assert run.state.phase == "model_requested"


def retry(run: Run) -> None:
    run.reply(finish="transport_broken")


def proposed(run: Run) -> None:
    run.reply(REFUND, call("get_order", order_id="A"))


def checking(run: Run) -> None:
    run.reply(call("set_state", order_id="A", state="x"), REFUND)
    run.check("c1.0")
    run.check("c1.1")
    run.now += 1
    run.report("c1.0")


def approval(run: Run) -> None:
    run.reply(REFUND)
    run.ask("c1.0")


def approved(run: Run) -> None:
    approval(run)
    run.approve("c1.0")


def key(run: Run) -> None:
    other = Run(ledger=run.ledger, run_id="other")
    other.reply(REFUND)
    other.check("c1.0")
    run.reply(REFUND)
    run.check("c1.0")


def read(run: Run) -> None:
    run.reply(call("get_order", order_id="A"))
    run.check("c1.0")


def effect(run: Run) -> None:
    run.reply(REFUND)
    run.check("c1.0")


def failed(run: Run) -> None:
    effect(run)
    run.report("c1.0", "failed", code="busy", retryable=True, no_effect=True)


def keyed(run: Run) -> None:
    effect(run)
    run.report("c1.0", "unknown")


def queryable(run: Run) -> None:
    run.reply(call("ship", order_id="A"))
    run.check("c1.0")
    run.report("c1.0", "unknown")


def mixed(run: Run) -> None:
    """A read that is out, beside a retry and two calls that wait for their turn."""
    run.reply(
        call("get_order", order_id="A"),
        call("get_order", order_id="B"),
        REFUND,
        call("get_order", order_id="C"),
    )
    run.check("c1.0")
    run.check("c1.1")
    run.check("c1.3")
    run.report("c1.0", "failed", code="busy", retryable=True)


PHASES: list[Callable[[Run], None]] = [
    requested,
    retry,
    proposed,
    checking,
    approval,
    approved,
    key,
    read,
    effect,
    failed,
    keyed,
    queryable,
    mixed,
]


def finish(run: Run) -> None:
    """What is out never reports; queries are answered with "can't say"."""
    for _ in range(20):
        if not run.state.live or not any(call.open for call in run.state.calls.values()):
            return
        orders = [order for order in run.orders() if isinstance(order, Query)]
        if orders:
            run.query(orders[0].call, "unknown")
        else:
            run.tick_to_wake()


def intents(run: Run, since: int) -> list[str]:
    return [
        tag
        for tag in run.tags(since)
        if tag in ("call_started", "model_requested", "approval_requested", "call_validated")
    ]


@pytest.mark.parametrize("prepare", PHASES)
def test_cancel(prepare: Callable[[Run], None]) -> None:
    run = Run()
    prepare(run)
    since = len(run.log)
    run.cancel()
    finish(run)
    assert run.stop() == ("terminated", "cancelled", "by_user")
    assert intents(run, since) == []
    proposals = [event.call for event, _ in run.log if isinstance(event, e.CallProposed)]
    for name in proposals:
        run.bound(name)
    assert run.tags()[-1] == "run_terminated"
    mine = [row for row in run.ledger.rows.values() if row.run_id == "r1"]
    assert all(row.status in ("unknown", "succeeded") for row in mine), mine


@pytest.mark.parametrize("prepare", PHASES)
def test_deadline(prepare: Callable[[Run], None]) -> None:
    run = Run(pins(bounds=limits(deadline_ms=9_000)))
    prepare(run)
    since = len(run.log)
    run.tick(run.state.deadline_at_ms - run.now)
    finish(run)
    assert run.stop() == ("suspended", "incomplete", "deadline")
    assert intents(run, since) == []
    assert not any(call.open for call in run.state.calls.values())
    # Lifted, it goes on from there.
    run.outside(Resume)
    assert run.refusal == "deadline"
    run.outside(RaiseLimits, raised={"deadline_ms": 3_600_000})
    run.outside(Resume)
    assert run.state.live
    run.final()
    assert run.stop() == ("terminated", "completed", "final")


@pytest.mark.parametrize("prepare", PHASES)
def test_deadline_that_ends(prepare: Callable[[Run], None]) -> None:
    run = Run(pins(bounds=limits(deadline_ms=9_000)), on_stop="end")
    prepare(run)
    run.tick(run.state.deadline_at_ms - run.now)
    finish(run)
    assert run.stop() == ("terminated", "incomplete", "deadline")


@pytest.mark.parametrize("prepare", PHASES)
def test_cancel_after_a_crash_loop(prepare: Callable[[Run], None]) -> None:
    """A stopped run with calls open is cancelled: nothing is out, so only the far side is still asked."""
    run = Run()
    prepare(run)
    for _ in range(3):
        run.crash()
    assert run.state.phase == "suspended"
    since = len(run.log)
    run.cancel()
    for _ in range(10):
        if run.stop()[0] == "terminated":
            break
        orders = run.orders()
        if orders:
            assert isinstance(orders[0], Query)
            run.query(orders[0].call, "unknown")
        else:
            run.tick_to_wake()
    assert run.stop() == ("terminated", "cancelled", "by_user")
    assert intents(run, since) == []


@pytest.mark.parametrize("prepare", PHASES)
def test_close_after_a_crash_loop(prepare: Callable[[Run], None]) -> None:
    run = Run()
    prepare(run)
    for _ in range(3):
        run.crash()
    reason = run.state.reason
    run.outside(Close)
    assert run.stop()[0] == "terminated"
    assert run.state.reason == reason


def test_cancelled_run_asks_the_far_side_and_believes_it() -> None:
    run = Run()
    queryable(run)
    run.cancel()
    run.query("c1.0", "applied", {"shipped": "A"})
    assert run.bound("c1.0") == ("ok", "")
    assert run.stop() == ("terminated", "cancelled", "by_user")


def test_absent_while_cancelled_frees_the_key_and_sends_nothing() -> None:
    run = Run()
    queryable(run)
    run.cancel()
    run.now = run.call("c1.0").valid_until_ms + MARGIN_MS + 1
    run.settle()
    run.query("c1.0", "absent")
    assert run.bound("c1.0") == ("error", "cancelled")
    assert not run.ledger.rows
    assert run.stop()[0] == "terminated"


def test_report_after_cancel_counts() -> None:
    run = Run()
    effect(run)
    run.cancel()
    run.report("c1.0", result={"refunded": 5})
    assert run.bound("c1.0") == ("ok", "")
    assert run.stop() == ("terminated", "cancelled", "by_user")


def test_unknown_at_the_end_is_settled_by_a_late_report_or_a_person() -> None:
    for late in (True, False):
        run = Run()
        keyed(run)
        run.cancel()
        assert run.bound("c1.0") == ("error", "unknown")
        assert run.stop()[0] == "terminated"
        if late:
            run.send(run.executed("c1.0", result={"refunded": 5}))
        else:
            run.outside(ResolveCall, call="c1.0", outcome="applied", by="boss")
        assert run.tags()[-1] == "call_reconciled"
        assert [row.status for row in run.ledger.rows.values()] == ["succeeded"]
        given(run).when(
            ResolveCall(command_id="z", by="boss", call="c1.0", outcome="absent"), run.now
        ).then_refused("not_unknown")


def test_unknown_of_an_earlier_turn_is_settled_while_the_run_goes_on() -> None:
    for move in ("model_requested", "model_retry", "open_calls", "suspended"):
        run = Run(pins(bounds=limits(deadline_ms=9_000)))
        keyed(run)
        run.tick(run.state.deadline_at_ms - run.now)
        run.outside(RaiseLimits, raised={"deadline_ms": 3_600_000})
        run.outside(Resume)
        if move == "model_retry":
            run.reply(finish="transport_broken")
        elif move == "open_calls":
            run.reply(call("get_order", order_id="A"))
        elif move == "suspended":
            run.reply(finish="truncated")
        assert run.state.phase == move
        outcome = "absent" if move == "open_calls" else "applied"
        run.outside(ResolveCall, call="c1.0", outcome=outcome, by="boss")
        assert run.refusal == ""
        assert run.state.phase == move
        assert not run.state.unknown_calls


@pytest.mark.parametrize("reason", ["by_user", "by_parent", "kill_switch"])
def test_cancel_reasons(reason: str) -> None:
    run = Run()
    run.cancel(reason=reason)
    assert run.stop() == ("terminated", "cancelled", reason)


def test_second_cancel_and_commands_after_the_end_are_refused() -> None:
    run = Run()
    effect(run)
    run.cancel()
    run.cancel()
    assert run.refusal == "already_cancelled"
    run.report("c1.0")
    for kind in (Cancel, Resume, Close):
        run.outside(kind)
        assert run.refusal == "run_ended"
    run.outside(RaiseLimits, raised={"turns": 99})
    assert run.refusal == "run_ended"


def test_close_needs_a_stop_and_nothing_lifts_what_is_ending() -> None:
    run = Run()
    run.outside(Close)
    assert run.refusal == "not_stopped"
    stopped = Run()
    queryable(stopped)
    for _ in range(3):
        stopped.crash()
    stopped.cancel()
    stopped.outside(Resume)
    assert stopped.refusal == "run_ending"
    closing = Run()
    closing.reply(finish="truncated")
    closing.decide(Close(command_id="c", by="u"))
    closing.decide(Close(command_id="d", by="u"))
    assert closing.refusal == "already_closing"
    closing.decide(Resume(command_id="e", by="u"))
    assert closing.refusal == "run_ending"
    closing.settle()
    assert closing.stop()[0] == "terminated"


def test_cancel_of_a_stopped_run() -> None:
    run = Run()
    run.reply(finish="truncated")
    run.cancel()
    assert run.stop() == ("terminated", "cancelled", "by_user")


def test_late_model_answer_after_cancel_changes_nothing() -> None:
    run = Run()
    run.cancel()
    before = state_digest(run.state)
    run.send(ModelReplied(turn=1, attempt=1, reply=ModelTurn(finish="final", text="done")))
    assert state_digest(run.state) == before


@pytest.mark.parametrize("tool", ["get_order", "pay"])
def test_what_is_due_together_with_a_cancel_does_not_start(tool: str) -> None:
    """The call was admitted in the same step, before the cancel; its turn to start comes only after it."""
    run = Run()
    arguments: dict[str, Any] = {"order_id": "A"} | ({"amount": 1} if tool == "pay" else {})
    run.reply(call(tool, **arguments))
    run.decide(run.checks("c1.0"))
    assert run.phase("c1.0") == "checking"
    run.decide(Cancel(command_id="c", by="user"))
    run.settle()
    assert run.started("c1.0") == 0
    assert run.stop() == ("terminated", "cancelled", "by_user")
    assert not run.ledger.rows


@pytest.mark.parametrize("tool", ["get_order", "pay"])
def test_an_intent_that_was_never_dispatched_because_of_a_cancel_is_no_unknown_effect(tool: str) -> None:
    run = Run()
    arguments: dict[str, Any] = {"order_id": "A"} | ({"amount": 1} if tool == "pay" else {})
    run.reply(call(tool, **arguments))
    run.check("c1.0")
    run.cancel()
    run.report("c1.0", "failed", code="cancelled", retryable=True, no_effect=True)
    assert run.bound("c1.0") == ("error", "cancelled")
    assert run.started("c1.0") == 1
    assert run.stop() == ("terminated", "cancelled", "by_user")
    assert not run.ledger.rows
    assert not run.state.unknown_calls


def test_a_run_that_is_being_closed_starts_nothing() -> None:
    run = Run()
    run.reply(call("pay", order_id="A", amount=1), call("set_state", order_id="A", state="x"))
    run.check("c1.0")
    run.check("c1.1")
    run.report("c1.0", "unknown")
    assert run.stop() == ("suspended", "incomplete", "outcome_unknown")
    run.decide(Close(command_id="c", by="user"))
    run.decide(ResolveCall(command_id="r", by="boss", call="c1.0", outcome="applied"))
    run.settle()
    assert run.started("c1.1") == 0
    assert run.stop()[0] == "terminated"
