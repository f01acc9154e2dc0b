"""What a hostile or broken model can send: too many calls, odd ids, absurd numbers, late and doubled answers."""

from __future__ import annotations

import pytest

from boundloop.runtime import events as e
from boundloop.runtime.commands import ModelReplied
from boundloop.runtime.errors import HistoryRefused
from boundloop.runtime.model import AssistantItem, ModelTurn, ProposedCall, ResultItem, Usage
from boundloop.runtime.prices import Price

from .shop import limits, pins
from .spec import Run, call, given


def test_ten_thousand_calls_in_one_turn() -> None:
    run = Run(fold_every_append=False)
    run.reply(*(call("get_order", f"p{n}", order_id="A") for n in range(10_000)))
    assert len(run.state.calls) == 64
    refused = [event for event, _ in run.log if isinstance(event, e.CallsRejected)]
    assert [len(event.calls) for event in refused] == [10_000 - 64]
    for n in range(64):
        run.check(f"c1.{n}", verdicts=(e.RungVerdict("policy", "deny", "no"),))
    # Each of the ten thousand has its one result, in order; then the run stops at its denials.
    results = [item for item in run.state.items if isinstance(item, ResultItem)]
    assert [item.provider_call_id for item in results] == [f"p{n}" for n in range(10_000)]
    assert all(item.is_error for item in results)
    assert run.state.reason == "policy_denied"
    run.check_replay()


def test_duplicate_and_empty_provider_ids() -> None:
    run = Run(pins(bounds=limits(calls_per_turn=4)))
    labels = ["a", "a", "a~c1.1.0", "", "a", "a", ""]
    run.reply(*(call("get_order", label, order_id=f"A{n}") for n, label in enumerate(labels)))
    for n in range(4):
        run.check(f"c1.{n}")
        run.report(f"c1.{n}")
    item = next(item for item in run.state.items if isinstance(item, AssistantItem) and item.calls)
    shown = [made.provider_call_id for made in item.calls]
    named = [label for label in shown if label]
    assert len(named) == len(set(named)) == 5
    assert shown[0] == "a"
    assert shown[3] == shown[6] == ""
    assert len({made.call_id for made in item.calls}) == 7
    results = [item for item in run.state.items if isinstance(item, ResultItem)]
    assert [made.provider_call_id for made in results] == shown


def test_lone_surrogates_and_long_names_are_stored_safely() -> None:
    run = Run()
    run.reply(
        ProposedCall("x" * 5_000 + "\ud800", b"{}", "\udfff" * 2_000),
        text="\ud800 text",
        finish_raw="\ud800",
    )
    run.check_replay()
    run.check("c1.0")
    assert run.bound("c1.0") == ("error", "unknown_tool")


@pytest.mark.parametrize(
    "usage",
    [
        Usage(-5, -5, -5, -5),
        Usage(2**70, 2**70, 2**70, 2**70),
        Usage(10, 10, 2**70),
        Usage(10, 10, -(2**70)),
        Usage(-(2**70), 5),
        Usage(None, None),
    ],
)
def test_absurd_usage_breaks_no_law(usage: Usage) -> None:
    price = Price(input=3_000_000, output=2**53, cached_input=2**53)
    run = Run(pins(price=price, bounds=limits(cost_micros=2**53)))
    if run.state.phase == "model_requested":
        run.reply(call("get_order", order_id="A"), usage=usage)
        run.check_replay()
        if usage.input_tokens is not None and usage.input_tokens < 0:
            assert run.state.meters.input_tokens.spent >= 0
    failing = Run(pins(price=price, bounds=limits(cost_micros=2**53)))
    if failing.state.phase == "model_requested":
        failing.reply(finish="provider_error", usage=usage)
        failing.check_replay()


def test_dearer_cache_never_makes_a_cost_below_nothing() -> None:
    price = Price(input=1, output=1, cached_input=2**40)
    run = Run(pins(price=price, bounds=limits(cost_micros=2**53)))
    run.reply(call("get_order", order_id="A"), usage=Usage(10, 10, -1_000_000))
    assert run.state.meters.cost_micros.spent >= 0


def test_late_and_doubled_answers_change_nothing() -> None:
    run = Run()
    turn = ModelTurn(finish="calls", calls=(call("get_order", order_id="A"),), usage=Usage(1, 1))
    answer = ModelReplied(turn=1, attempt=1, reply=turn)
    run.send(answer)
    given(run).when(answer, run.now).then_nothing()
    given(run).when(ModelReplied(turn=2, attempt=1, reply=turn), run.now).then_nothing()
    run.check("c1.0")
    run.report("c1.0")
    given(run).when(answer, run.now).then_nothing()
    given(run).when(ModelReplied(turn=2, attempt=2, reply=turn), run.now).then_nothing()


def test_doubled_reports_change_nothing() -> None:
    run = Run()
    run.reply(call("get_order", order_id="A"), call("get_order", order_id="B"))
    run.check("c1.0")
    report = run.executed("c1.0")
    run.send(report)
    given(run).when(report, run.now).then_nothing()
    given(run).when(run.executed("c1.1", attempt=1), run.now).then_nothing()


def test_result_that_was_altered_in_memory_is_refused_before_it_goes_back() -> None:
    for field, value in (("result", b'{"n":2}'), ("code", "x"), ("request_sha256", b"y" * 32)):
        run = Run(fold_every_append=False)
        run.reply(call("get_order", order_id="A"), call("get_order", order_id="B"))
        run.check("c1.0")
        run.check("c1.1")
        run.report("c1.0", result={"n": 1})
        setattr(run.state.calls["c1.0"], field, value)
        with pytest.raises(HistoryRefused):
            run.report("c1.1")
