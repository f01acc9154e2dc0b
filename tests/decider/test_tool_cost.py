"""Money of tools and the rate of their calls: reserved before, settled by what they say, waited for without a process."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from boundloop.runtime import events as e
from boundloop.runtime.commands import RaiseLimits, Resume
from boundloop.runtime.index import waiting_for
from boundloop.runtime.orders import Execute, RunChecks

from .shop import TOOLS, limits, pins
from .spec import Run, call


def declared(name: str, **fields: Any) -> Run:
    """The shop with one tool declared otherwise."""
    bounds = fields.pop("bounds", None)
    tools = tuple(msgspec.structs.replace(it, **fields) if it.name == name else it for it in TOOLS)
    return Run(pins(tools=tools, bounds=bounds))


def cost(run: Run) -> tuple[int, int, int]:
    """Spent, reserved, overrun."""
    meter = run.state.meters.cost_micros
    return meter.spent, meter.reserved, meter.overrun


def read(run: Run, **fields: Any) -> None:
    turn = run.state.turn
    run.reply(call("credit_check", order_id=f"A{turn}"))
    run.check(f"c{turn}.0", **fields)


# --- settle ---------------------------------------------------------------------------------------------------------


def test_a_fixed_cost_is_set_aside_at_the_start_and_spent_at_the_end() -> None:
    run = Run()
    read(run)
    assert cost(run) == (0, 40, 0)
    run.report("c1.0")
    assert cost(run) == (40, 0, 0)


@pytest.mark.parametrize(("said", "spent"), [(0, 0), (7, 7), (40, 40), (500, 500), (None, 40)])
def test_what_the_tool_says_settles_the_reservation(said: int | None, spent: int) -> None:
    run = Run()
    read(run)
    run.report("c1.0", spent_micros=said)
    assert cost(run) == (spent, 0, 0)


def test_a_tool_that_is_free_by_its_declaration_may_still_say_that_it_cost_something() -> None:
    run = Run()
    run.reply(call("get_order", order_id="A"))
    run.check("c1.0")
    run.report("c1.0", spent_micros=12)
    assert cost(run) == (12, 0, 0)


def test_spending_beyond_the_limit_is_overrun_and_nothing_further_is_sent() -> None:
    run = declared("credit_check", bounds=limits(cost_micros=100))
    read(run)
    run.report("c1.0", spent_micros=150)
    assert cost(run) == (150, 0, 50)
    assert run.stop() == ("suspended", "incomplete", "budget_cost")
    run.outside(RaiseLimits, raised={"cost_micros": 200})
    run.outside(Resume)
    assert cost(run) == (150, 0, 0)
    assert run.state.phase == "model_requested"


def test_siblings_of_an_overrun_that_have_not_started_are_refused() -> None:
    run = declared("credit_check", bounds=limits(cost_micros=100, parallel=1))
    run.reply(call("credit_check", order_id="A"), call("get_order", order_id="B"))
    run.check("c1.0")
    run.check("c1.1")
    run.report("c1.0", spent_micros=150)
    assert run.bound("c1.1") == ("error", "budget_cost")


def test_an_absurd_amount_is_written_as_the_most_that_there_is() -> None:
    run = Run()
    read(run)
    run.report("c1.0", spent_micros=2**80)
    assert run.state.meters.cost_micros.spent == 2**53


@pytest.mark.parametrize(("said", "spent"), [(None, 60), (5, 60), (90, 90)])
def test_an_effect_of_unknown_outcome_keeps_its_reservation_spent(said: int | None, spent: int) -> None:
    run = Run()
    run.reply(call("send_letter", order_id="A"))
    run.check("c1.0")
    run.report("c1.0", "unknown", spent_micros=said)
    assert cost(run) == (spent, 0, 0)


def test_a_read_that_timed_out_may_have_cost_all_of_it() -> None:
    run = Run()
    read(run)
    run.report("c1.0", "failed", code="timeout", spent_micros=5)
    assert cost(run) == (40, 0, 0)


def test_a_read_that_raised_cost_what_it_says() -> None:
    run = Run()
    read(run)
    run.report("c1.0", "failed", code="tool_error", spent_micros=5)
    assert cost(run) == (5, 0, 0)


def test_a_dispatch_that_never_happened_cost_nothing() -> None:
    run = Run()
    read(run)
    run.report("c1.0", "failed", code="expired", no_effect=True, spent_micros=0)
    assert cost(run) == (0, 0, 0)


def test_a_lost_host_leaves_the_reservation_spent() -> None:
    run = Run()
    read(run)
    run.crash()
    assert cost(run) == (40, 40, 0)  # the lost attempt's, and that of the next one


def test_a_replay_costs_nothing() -> None:
    run = declared("refund", cost_micros=100)
    for _ in range(2):
        turn = run.state.turn
        run.reply(call("refund", order_id="A", amount=5))
        run.check(f"c{turn}.0")
        if turn == 1:
            run.report(f"c{turn}.0")
    assert run.bound("c2.0") == ("ok", "replayed")
    assert cost(run) == (100, 0, 0)


# --- price ----------------------------------------------------------------------------------------------------------


def priced(**fields: Any) -> Run:
    return declared("credit_check", has_price=True, cost_micros=0, **fields)


def test_a_price_by_the_arguments_is_what_is_set_aside() -> None:
    run = priced()
    read(run, price_micros=700)
    assert cost(run) == (0, 700, 0)
    started = next(event for event, _ in run.log if isinstance(event, e.CallStarted))
    assert started.price_micros == 700
    run.report("c1.0", spent_micros=650)
    assert cost(run) == (650, 0, 0)


def test_a_price_that_does_not_fit_refuses_the_call_before_it_starts() -> None:
    run = priced(bounds=limits(cost_micros=600))
    read(run, price_micros=700)
    assert run.bound("c1.0") == ("error", "budget_cost")
    assert run.started("c1.0") == 0


def test_an_unknown_price_is_refused_under_a_cost_limit_and_may_be_tried_again() -> None:
    run = priced()
    read(run, price_micros=None)
    assert run.bound("c1.0") == ("error", "price_unknown")
    refused = next(event for event, _ in run.log if isinstance(event, e.CallRejected))
    assert (refused.rung, refused.retryable) == ("price", True)


def test_an_unknown_price_is_taken_where_the_cost_limit_was_waived() -> None:
    run = priced(bounds=limits(cost_micros=None))
    read(run, price_micros=None)
    run.report("c1.0", spent_micros=9)
    assert cost(run) == (9, 0, 0)


def test_a_retry_of_a_read_costs_its_price_again() -> None:
    run = priced()
    read(run, price_micros=700)
    run.report("c1.0", "failed", code="busy", retryable=True)
    run.tick_to_wake()
    assert cost(run) == (700, 700, 0)


def test_an_effect_is_priced_again_right_before_it_is_sent() -> None:
    run = declared("pay", has_price=True, bounds=limits(cost_micros=1_000))
    run.reply(call("pay", order_id="A", amount=5))
    run.ask("c1.0", price_micros=400)
    run.approve("c1.0")
    run.check("c1.0", resource_version="v1", price_micros=1_200)
    assert run.bound("c1.0") == ("error", "budget_cost")


def test_prices_of_calls_that_run_side_by_side_never_pass_the_limit_together() -> None:
    run = priced(bounds=limits(cost_micros=1_000))
    run.reply(*(call("credit_check", order_id=str(n)) for n in range(3)))
    for n in range(3):
        run.check(f"c1.{n}", price_micros=400)
    assert cost(run) == (0, 800, 0)
    assert run.bound("c1.2") == ("error", "budget_cost")


# --- rate -----------------------------------------------------------------------------------------------------------


def rated(name: str = "get_order", calls: int = 2, **fields: Any) -> Run:
    return declared(name, rate=(calls, 60_000), **fields)


def three(run: Run, name: str = "get_order", **arguments: Any) -> None:
    run.reply(*(call(name, order_id=str(n), **arguments) for n in range(3)))
    for n in range(3):
        if f"c1.{n}" in run.state.calls and run.phase(f"c1.{n}") == "proposed":
            run.check(f"c1.{n}")


def executing(run: Run) -> list[str]:
    return [order.call for order in run.orders() if isinstance(order, Execute)]


def test_calls_beyond_the_rate_wait_for_their_time_by_a_timer() -> None:
    run = rated()
    three(run)
    assert executing(run) == ["c1.0", "c1.1"]
    run.report("c1.0")
    run.report("c1.1")
    assert executing(run) == []
    assert waiting_for(run.state) == "timer"
    assert run.wake() == run.now + 60_000
    run.tick(59_999)
    assert executing(run) == []
    run.tick(1)
    assert executing(run) == ["c1.2"]


def test_the_window_slides_with_each_start() -> None:
    run = rated(calls=1)
    three(run)
    for n in range(3):
        assert executing(run) == [f"c1.{n}"]
        run.report(f"c1.{n}")
        run.tick(60_000)
    assert run.state.phase == "model_requested"


def test_calls_of_another_tool_go_on_meanwhile() -> None:
    run = rated(calls=1)
    run.reply(
        call("get_order", order_id="1"), call("get_order", order_id="2"), call("credit_check", order_id="3")
    )
    for n in range(3):
        run.check(f"c1.{n}")
    assert executing(run) == ["c1.0", "c1.2"]


def test_the_rate_holds_over_turns_and_take_overs() -> None:
    run = rated(calls=1)
    run.reply(call("get_order", order_id="1"))
    run.check("c1.0")
    run.report("c1.0")
    run.reply(call("get_order", order_id="2"))
    run.check("c2.0")
    assert executing(run) == []
    run.crash()
    assert executing(run) == []
    run.tick(60_000)
    assert executing(run) == ["c2.0"]


def test_effects_wait_for_their_rate_and_are_checked_again_when_it_is_time() -> None:
    run = rated("pay", calls=1)
    run.reply(call("pay", order_id="A", amount=1), call("pay", order_id="B", amount=2))
    run.check("c1.0")
    run.check("c1.1")
    run.report("c1.0")
    assert run.orders() == []
    assert waiting_for(run.state) == "timer"
    run.tick(60_000)
    assert run.orders() == [RunChecks("c1.1", 0, True)]
    run.check("c1.1")
    assert executing(run) == ["c1.1"]


def test_a_retry_counts_and_waits_like_any_other_start() -> None:
    run = rated(calls=1)
    run.reply(call("get_order", order_id="1"))
    run.check("c1.0")
    run.report("c1.0", "failed", code="busy", retryable=True)
    assert run.wake() == run.now + 60_000
    run.tick_to_wake()
    assert executing(run) == ["c1.0"]


def test_a_lost_effect_is_sent_again_no_sooner_than_the_rate_lets_it() -> None:
    run = rated("refund", calls=1)
    run.reply(call("refund", order_id="A", amount=1))
    run.check("c1.0")
    run.report("c1.0", "unknown")
    assert run.wake() == run.now + 60_000
    run.tick_to_wake()
    assert run.orders() == [RunChecks("c1.0", 1, True)]


def test_a_call_whose_time_comes_after_the_deadline_is_refused() -> None:
    run = rated(calls=1, bounds=limits(deadline_ms=30_000))
    three(run)
    run.report("c1.0")
    assert run.bound("c1.1") == ("error", "rate")
    assert run.bound("c1.2") == ("error", "rate")


def test_an_approval_runs_out_while_its_call_waits_for_the_rate() -> None:
    run = rated("pay", calls=1, bounds=limits(approval_ms=10_000))
    run.reply(call("pay", order_id="A", amount=1), call("pay", order_id="B", amount=2))
    run.check("c1.0")
    run.ask("c1.1")
    run.report("c1.0")
    run.approve("c1.1")
    run.tick(10_000)
    assert run.bound("c1.1") == ("error", "approval_expired")
