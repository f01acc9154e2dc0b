"""Taking over: one append closes every intent of an older epoch, and the ordinary path goes on from there."""

from __future__ import annotations

import pytest

from boundloop.runtime.commands import Resume, TakeOver
from boundloop.runtime.orders import Execute, RequestModel, RunChecks

from .shop import limits, pins
from .spec import Run, call, given, tags


def test_lost_model_request_is_spent_and_sent_again() -> None:
    run = Run()
    reserved = run.state.meters.total_tokens.reserved
    events = run.crash()
    assert tags(events) == ["run_resumed", "model_failed", "model_requested"]
    assert run.state.meters.total_tokens.spent == reserved
    assert run.orders() == [RequestModel(1, 2)]


def test_lost_model_requests_come_to_an_end() -> None:
    run = Run(pins(bounds=limits(model_attempts_per_turn=2)))
    run.crash("woken")
    run.crash("woken")
    assert run.stop() == ("suspended", "failed", "model_failed")
    assert run.state.detail == "lost"


def test_lost_read_failed_and_runs_again() -> None:
    run = Run()
    run.reply(call("get_order", order_id="A"))
    run.check("c1.0")
    events = run.crash()
    assert tags(events) == ["run_resumed", "call_executed", "call_started"]
    assert run.orders() == [Execute("c1.0", 2)]


def test_lost_reads_come_to_an_end() -> None:
    run = Run()
    run.reply(call("get_order", order_id="A"))
    run.check("c1.0")
    for _ in range(3):
        run.crash("woken")
    assert run.bound("c1.0") == ("error", "lost")
    assert run.started("c1.0") == 3


def test_lost_effect_is_unknown_then_sent_again_under_its_key() -> None:
    run = Run()
    run.reply(call("refund", order_id="A", amount=5))
    run.check("c1.0")
    events = run.crash()
    assert tags(events) == ["run_resumed", "call_executed"]
    assert run.phase("c1.0") == "reconciling"
    assert [row.status for row in run.ledger.rows.values()] == ["unknown"]
    run.tick_to_wake()
    run.check("c1.0")
    assert run.started("c1.0") == 2


def test_lost_effect_without_help_waits_for_a_person() -> None:
    run = Run()
    run.reply(call("pay", order_id="A", amount=5))
    run.check("c1.0")
    run.crash()
    assert run.stop() == ("suspended", "incomplete", "outcome_unknown")
    assert run.started("c1.0") == 1


def test_intent_of_an_older_epoch_is_never_ordered() -> None:
    """Even in the moment before the same append closes it."""
    run = Run()
    run.reply(call("refund", order_id="A", amount=5))
    run.check("c1.0")
    run.state.epoch += 1
    assert not run.orders()
    waiting = Run()
    waiting.state.epoch += 1
    assert not waiting.orders()


def test_epoch_is_opened_once() -> None:
    run = Run()
    run.reply(call("refund", order_id="A", amount=5))
    run.crash("woken")
    run.check("c1.0")
    for epoch in (run.state.epoch, run.state.epoch - 1):
        given(run).when(TakeOver(epoch=epoch, host="h", cause="command"), run.now).then_nothing()


def test_third_death_is_a_crash_loop_and_a_resume_counts_anew() -> None:
    run = Run()
    run.reply(call("get_order", order_id="A"))
    run.crash()
    run.crash()
    assert run.state.phase == "open_calls"
    run.crash()
    assert run.stop() == ("suspended", "failed", "crash_loop")
    run.outside(Resume)
    assert run.stop() == ("open_calls", "", "")
    run.check("c1.0")
    run.report("c1.0")
    run.final()
    assert run.stop()[1] == "completed"


def test_third_death_during_a_model_request() -> None:
    run = Run(pins(bounds=limits(model_attempts_per_turn=10)))
    for _ in range(3):
        run.crash()
    assert run.stop() == ("suspended", "failed", "crash_loop")


def test_crash_loop_that_ends_binds_every_call_first() -> None:
    run = Run(on_stop="end")
    run.reply(
        call("get_order", order_id="A"),
        call("pay", order_id="A", amount=1),
        call("refund", order_id="B", amount=1),
        call("ship", order_id="C"),
    )
    run.check("c1.0")
    run.report("c1.0")
    run.check("c1.1")
    run.ask("c1.2")
    for _ in range(3):
        run.crash()
    assert run.stop() == ("terminated", "failed", "crash_loop")
    assert [run.bound(f"c1.{n}")[1] for n in range(4)] == ["", "unknown", "cancelled", "cancelled"]
    assert [row.status for row in run.ledger.rows.values()] == ["unknown"]


def test_other_causes_are_no_deaths() -> None:
    run = Run(pins(bounds=limits(model_attempts_per_turn=20, model_attempts=50)))
    for _ in range(5):
        run.crash("woken")
        run.crash("woken")
    assert run.state.phase == "model_requested"


def test_ended_run_is_not_taken_over() -> None:
    run = Run()
    run.final()
    given(run).when(TakeOver(epoch=9, host="h", cause="woken"), run.now).then_nothing()


def test_stopped_run_is_taken_over_without_moving() -> None:
    run = Run()
    run.reply(finish="truncated")
    assert tags(run.crash("command")) == ["run_resumed"]
    assert run.stop() == ("suspended", "incomplete", "truncated")


@pytest.mark.parametrize("steps", range(14))
def test_crash_at_every_point_loses_and_doubles_nothing(steps: int) -> None:
    """One program, cut after each append in turn: the far side sees each key once more at most, and never two keys."""
    run = Run()
    left = steps
    refunds = 0
    for _ in range(60):
        if left == 0:
            run.crash("woken")
        left -= 1
        orders = run.orders()
        if run.state.phase == "terminated":
            break
        if not orders:
            run.tick_to_wake()
            continue
        order = orders[0]
        if isinstance(order, RequestModel):
            if order.turn == 1:
                run.reply(call("get_order", order_id="A"), call("refund", order_id="A", amount=5))
            else:
                run.final()
        elif isinstance(order, Execute):
            refunds += run.call(order.call).tool == "refund"
            run.report(order.call)
        else:
            assert isinstance(order, RunChecks)
            run.check(order.call)
    assert run.stop() == ("terminated", "completed", "final")
    assert run.bound("c1.1")[0] == "ok"
    assert refunds == 1
    assert len(run.ledger.rows) == 1
