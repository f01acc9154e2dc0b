"""A log may end after any decision. Phases in which a usual driver never rests take outside commands all the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from boundloop.runtime.commands import (
    Advance,
    Cancel,
    Close,
    ModelReplied,
    RaiseLimits,
    ResolveCall,
    Resume,
    TakeOver,
)
from boundloop.runtime.decide import decide
from boundloop.runtime.fold import fold
from boundloop.runtime.goal import Goal
from boundloop.runtime.model import ModelTurn
from boundloop.runtime.orders import Execute

from .shop import TOOLS, limits, pins
from .spec import Ledger, Run, call


def created() -> Run:
    """A run of which only ``run_started`` is in the log."""
    return Run(pins(bounds=limits(deadline_ms=9_000)), settled=False)


def with_unknown() -> Run:
    """A run that was lifted after a stop which bound an unknown effect."""
    run = Run(pins(bounds=limits(deadline_ms=9_000)))
    run.reply(call("refund", order_id="A", amount=5))
    run.check("c1.0")
    run.report("c1.0", "unknown")
    run.tick(run.state.deadline_at_ms - run.now)
    run.outside(RaiseLimits, raised={"deadline_ms": 3_600_000})
    run.outside(Resume)
    return run


def deciding() -> Run:
    run = with_unknown()
    state = run.state
    reply = ModelTurn(finish="truncated", text="half")
    run.decide(ModelReplied(turn=state.turn, attempt=state.model_attempt, reply=reply))
    return run


def results_ready() -> Run:
    run = with_unknown()
    run.reply(call("get_order", order_id="A"))
    run.check("c2.0")
    run.decide(run.executed("c2.0"))
    run.decide(Advance())
    return run


def model_retry() -> Run:
    run = with_unknown()
    run.reply(finish="transport_broken")
    return run


def open_calls() -> Run:
    run = with_unknown()
    run.reply(call("get_order", order_id="A"))
    return run


RESTS: list[Callable[[], Run]] = [created, deciding, results_ready, model_retry, open_calls]


def rest(prepare: Callable[[], Run]) -> Run:
    run = prepare()
    assert run.state.phase == prepare.__name__
    return run


@pytest.mark.parametrize("prepare", RESTS)
def test_cancel(prepare: Callable[[], Run]) -> None:
    run = rest(prepare)
    run.cancel()
    assert run.stop() == ("terminated", "cancelled", "by_user")


@pytest.mark.parametrize("prepare", RESTS)
def test_limits_and_takeover(prepare: Callable[[], Run]) -> None:
    run = rest(prepare)
    run.decide(RaiseLimits(command_id="more", by="u", raised={"turns": 99}))
    assert run.state.limits.turns == 99
    run.decide(TakeOver(epoch=run.state.epoch + 1, host="h", cause="woken"))
    assert run.state.phase == prepare.__name__
    run.settle()
    assert run.state.phase in ("model_requested", "suspended", "model_retry", "open_calls")


@pytest.mark.parametrize("prepare", RESTS[1:])
def test_person_settles_what_an_earlier_turn_left_unknown(prepare: Callable[[], Run]) -> None:
    run = rest(prepare)
    run.decide(ResolveCall(command_id="word", by="boss", call="c1.0", outcome="applied"))
    assert run.refusal == ""
    assert run.state.phase == prepare.__name__
    assert not run.state.unknown_calls


def test_blocked_before_the_first_request_is_lifted_and_stops_again() -> None:
    offered = tuple(tool for tool in TOOLS if tool.name != "refund")
    run = Run(pins(goal=Goal.of("refund"), tools=offered))
    run.decide(Resume(command_id="go", by="u"))
    assert run.state.phase == "created"
    run.settle()
    assert run.stop() == ("suspended", "incomplete", "blocked")
    ends = Run(pins(goal=Goal.of("refund"), tools=offered), on_stop="end")
    assert ends.stop() == ("terminated", "incomplete", "blocked")


def test_key_that_became_free_is_taken_at_once() -> None:
    ledger = Ledger()
    first, second = Run(ledger=ledger), Run(ledger=ledger, run_id="r2")
    for run in (first, second):
        run.reply(call("pay", order_id="A", amount=1))
        run.check("c1.0")
    assert second.phase("c1.0") == "waiting_key"
    first.report("c1.0", "failed", code="closed", no_effect=True)
    second.check("c1.0")
    assert second.started("c1.0") == 1


def stopped_beside_a_read() -> Run:
    """A read that was asked about finds its definition changed while another read is out."""
    run = Run()
    run.reply(call("get_order", order_id="A"), call("get_order", order_id="B"))
    run.ask("c1.0")
    run.check("c1.1")
    run.approve("c1.0")
    run.check("c1.0", contract_kept=False)
    assert run.stop() == ("suspended", "failed", "definition_changed")
    assert run.phase("c1.1") == "started"
    return run


def test_report_to_a_stopped_run_counts() -> None:
    run = stopped_beside_a_read()
    run.report("c1.1")
    run.outside(Resume)
    run.check("c1.0", resource_version="v1")
    run.report("c1.0")
    assert [run.bound(f"c1.{n}") for n in range(2)] == [("ok", ""), ("ok", "")]


def test_read_that_is_out_when_its_turn_stops_is_nobodys_order_until_the_stop_is_lifted() -> None:
    """Nothing is sent in a stopped run, so nobody is told to send it; it holds up neither the stop nor what lifts it."""
    run = stopped_beside_a_read()
    assert run.orders() == []
    assert run.wake() is None
    run.outside(Resume)  # by the host that still has the run
    assert Execute("c1.1", 1) in run.orders()
    other = stopped_beside_a_read()
    other.crash("command")  # the run was let go of: whoever takes it up closes the intent of the older epoch
    assert other.state.phase == "suspended"
    assert other.phase("c1.1") == "executed"
    other.outside(Resume)
    other.check("c1.0", resource_version="v1")
    assert set(other.orders()) == {Execute("c1.0", 1), Execute("c1.1", 2)}
    for name in ("c1.0", "c1.1"):
        other.report(name)
        assert other.bound(name) == ("ok", "")


def test_stopped_run_that_is_closed_waits_for_what_is_out_no_longer_than_its_validity() -> None:
    for kind in (Close, Cancel):
        run = stopped_beside_a_read()
        run.outside(kind)
        assert run.state.phase == "suspended"
        run.tick_to_wake()
        assert run.stop()[0] == "terminated"
        assert run.bound("c1.1") == ("error", "lost")


def test_every_prefix_of_a_log_folds_and_goes_on() -> None:
    run = results_ready()
    run.settle()
    run.final()
    for length in range(1, len(run.log) + 1):
        state = fold(run.log[:length], run.blobs)
        decide(state, TakeOver(epoch=state.epoch + 1, host="h", cause="woken"), run.now)
        decide(state, Advance(), run.now)
