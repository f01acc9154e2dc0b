"""Denials: over any tools and arguments, for good, and before a further attempt."""

from __future__ import annotations

import pytest

from boundloop.runtime.commands import ResolveCall
from boundloop.runtime.events import RungVerdict
from boundloop.runtime.model import ResultItem

from .shop import limits, pins
from .spec import Run, call

NO = RungVerdict("policy", "deny", "not_yours")
FRAUD = RungVerdict("policy", "deny", "fraud")


def test_other_arguments_and_other_tools_are_no_way_around_the_limit_of_denials() -> None:
    run = Run(pins(bounds=limits(denials=2)))
    for turn, proposal in enumerate(
        (
            call("refund", order_id="A", amount=5),
            call("refund", order_id="B", amount=7),
            call("pay", order_id="C", amount=1),
        ),
        1,
    ):
        run.reply(proposal)
        run.check(f"c{turn}.0", verdicts=(NO,))
    assert run.stop() == ("terminated", "failed", "policy_denied")
    assert not run.ledger.rows


def failed_once(run: Run) -> None:
    """An effect whose first attempt failed with proof, and whose next attempt is due."""
    run.reply(call("refund", order_id="A", amount=5), call("get_order", order_id="B"))
    run.check("c1.0")
    run.check("c1.1")
    run.report("c1.0", "failed", code="busy", retryable=True, no_effect=True)
    run.tick_to_wake()


@pytest.mark.parametrize(
    ("verdict", "stop"),
    [
        (FRAUD, ("terminated", "failed", "policy_denied")),
        (RungVerdict("switch", "deny", "kill_switch_global"), ("terminated", "cancelled", "kill_switch")),
    ],
)
def test_what_is_denied_for_good_before_a_further_attempt_ends_the_run(
    verdict: RungVerdict, stop: tuple[str, str, str]
) -> None:
    run = Run()
    failed_once(run)
    run.check("c1.0", verdicts=(verdict,), terminal=True)
    assert run.stop() == stop
    assert run.state.detail == verdict.code
    assert run.started("c1.0") == 1
    assert run.bound("c1.0") == ("error", "busy")
    assert run.started("c1.1") == 0


def test_what_is_denied_before_a_further_attempt_goes_back_to_the_model() -> None:
    run = Run()
    failed_once(run)
    run.check("c1.0", verdicts=(NO,))
    run.report("c1.1")
    assert run.state.phase == "model_requested"
    assert run.bound("c1.0") == ("error", "busy")


@pytest.mark.parametrize(
    ("verdict", "stop"),
    [
        (FRAUD, ("terminated", "failed", "policy_denied")),
        (RungVerdict("switch", "deny", "kill_switch_tenant"), ("terminated", "cancelled", "kill_switch")),
    ],
)
@pytest.mark.parametrize("outcome", ["applied", "absent"])
def test_a_denial_for_good_before_an_unknown_effect_is_sent_again_ends_the_run_and_leaves_the_effect_to_a_person(
    verdict: RungVerdict, stop: tuple[str, str, str], outcome: str
) -> None:
    run = Run()
    run.reply(call("refund", order_id="A", amount=5))
    run.check("c1.0")
    run.report("c1.0", "unknown", code="timeout")
    run.tick_to_wake()
    run.check("c1.0", verdicts=(verdict,), terminal=True)
    assert run.stop() == stop
    assert run.state.detail == verdict.code
    assert run.bound("c1.0") == ("error", "unknown")
    assert run.started("c1.0") == 1
    (row,) = run.ledger.rows.values()
    assert row.status == "unknown"
    run.outside(ResolveCall, call="c1.0", outcome=outcome, reason="seen at the bank")
    assert not run.state.unknown_calls
    assert run.stop() == stop


def test_a_denial_before_an_unknown_effect_is_sent_again_leaves_the_run_to_a_person() -> None:
    run = Run()
    run.reply(call("refund", order_id="A", amount=5))
    run.check("c1.0")
    run.report("c1.0", "unknown", code="timeout")
    run.tick_to_wake()
    run.check("c1.0", verdicts=(NO,))
    assert run.stop() == ("suspended", "incomplete", "outcome_unknown")


def test_the_model_reads_the_same_words_whoever_forbids() -> None:
    told: set[bytes] = set()
    for rung in ("authorisation", "policy", "taint", "guardrail", "switch"):
        run = Run()
        run.reply(call("refund", order_id="A", amount=5))
        run.check("c1.0", verdicts=(RungVerdict(rung, "deny", "denied"),))
        (item,) = (item for item in run.state.items if isinstance(item, ResultItem))
        told.add(item.content)
    assert len(told) == 1
