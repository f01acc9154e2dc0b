"""Approvals: propose, preview, decide, commit; and everything that makes a decision worthless on the way."""

from __future__ import annotations

from typing import Any

import pytest

from boundloop.runtime import events as e
from boundloop.runtime.commands import Approve, Cancel, Reject, Resume
from boundloop.runtime.goal import Goal
from boundloop.runtime.model import ProposedCall

from .shop import MINUTE_MS, limits, pins
from .spec import Run, call, given, tags

REFUND = call("refund", order_id="A", amount=5)


def asked(*calls: ProposedCall, **pinned: Any) -> Run:
    run = Run(pins(**pinned))
    run.reply(*(calls or (REFUND,)))
    for number in range(len(calls) or 1):
        run.ask(f"c1.{number}")
    return run


def lapses(run: Run) -> list[tuple[str, str]]:
    return [(event.why, event.what) for event, _ in run.log if isinstance(event, e.ApprovalLapsed)]


def test_preview_is_bound_and_hashed() -> None:
    run = asked()
    approval = run.call("c1.0").approval
    assert approval is not None
    assert approval.args_sha256 == run.call("c1.0").args_sha256
    assert approval.expires_at_ms == run.now + 10 * MINUTE_MS
    assert run.state.phase == "open_calls"
    assert not run.orders()


def test_approve_checks_again_then_starts_once() -> None:
    run = asked()
    run.tick(1_000)
    events = run.approve("c1.0")
    assert tags(events) == ["approval_decided"]
    run.check("c1.0", resource_version="v1")
    assert run.started("c1.0") == 1
    run.report("c1.0")
    assert run.bound("c1.0") == ("ok", "")


@pytest.mark.parametrize(
    ("what", "fields"),
    [
        ("definition", {"definition_sha256": b"other"}),
        ("policy", {"policy_revision": "next"}),
        ("resource_version", {"resource_version": "v2"}),
        ("preview", {"preview": b'{"amount":1000000}'}),
    ],
)
def test_stale_asks_anew(what: str, fields: dict[str, Any]) -> None:
    run = asked()
    first = run.approval("c1.0")
    run.approve("c1.0")
    run.ask("c1.0", **fields)
    assert lapses(run) == [("stale", what)]
    assert run.phase("c1.0") == "waiting_approval"
    assert run.approval("c1.0") != first
    assert run.started("c1.0") == 0
    # The old decision is worth nothing now.
    run.outside(Approve, approval_id=first, by="boss")
    assert run.refusal == "approval_not_found"
    run.approve("c1.0")
    run.check("c1.0", **{"resource_version": "v1", **fields})
    assert run.started("c1.0") == 1


def test_what_is_done_is_what_was_shown_and_approved() -> None:
    """The preview that the commit's own pass makes is held against the one that the person saw."""
    run = asked()
    run.approve("c1.0")
    run.check("c1.0", resource_version="v1", preview=None)
    assert lapses(run) == [("stale", "preview")]
    assert run.started("c1.0") == 0


def test_a_retry_after_a_proven_failure_needs_the_preview_that_was_approved() -> None:
    run = asked()
    run.approve("c1.0")
    run.check("c1.0", resource_version="v1")
    run.report("c1.0", "failed", code="busy", retryable=True, no_effect=True)
    run.tick_to_wake()
    run.check("c1.0", resource_version="v1", preview=b'{"amount":1000000}')
    assert run.started("c1.0") == 1
    assert run.bound("c1.0") == ("error", "busy")


def test_an_unknown_effect_is_sent_again_although_it_may_itself_have_changed_the_preview() -> None:
    run = asked()
    run.approve("c1.0")
    run.check("c1.0", resource_version="v1")
    run.report("c1.0", "unknown", code="timeout", retryable=True)
    run.tick_to_wake()
    run.check("c1.0", resource_version="v1", preview=b'{"left_to_refund":0}')
    assert run.started("c1.0") == 2


def test_altered_arguments_or_preview_are_stale() -> None:
    """Neither can change in a log of ours; a state that holds such a change is not acted upon."""
    for field, what in (("args_sha256", "arguments"), ("preview", "preview")):
        run = asked()
        run.approve("c1.0")
        approval = run.call("c1.0").approval
        assert approval is not None
        setattr(approval, field, b"altered")
        command = run.checks("c1.0", resource_version="v1")
        run.fold_every_append = False
        events = run.send(command)
        assert tags(events) == ["approval_lapsed", "approval_requested"]
        assert lapses(run) == [("stale", what)]


def test_three_rounds_then_the_call_is_refused() -> None:
    run = asked()
    for number in range(2, 5):
        run.approve("c1.0")
        run.ask("c1.0", resource_version=f"v{number}")
    assert run.bound("c1.0") == ("error", "approval_stale")
    assert run.tags().count("approval_requested") == 3
    assert not run.ledger.rows


def test_expired_while_it_waits() -> None:
    run = asked()
    run.tick_to_wake()
    assert lapses(run) == [("expired", "")]
    assert run.bound("c1.0") == ("error", "approval_expired")
    assert run.state.phase == "model_requested"
    assert not run.ledger.rows


def test_decision_at_the_moment_of_expiry_is_too_late() -> None:
    run = asked()
    approval = run.call("c1.0").approval
    assert approval is not None
    command = Approve(command_id="x", by="boss", approval_id=approval.approval_id)
    given(run).when(command, approval.expires_at_ms).then_refused("approval_expired")
    given(run).when(command, approval.expires_at_ms - 1).then(e.ApprovalDecided)


def test_expired_between_decision_and_start() -> None:
    run = asked()
    approval = run.call("c1.0").approval
    assert approval is not None
    run.now = approval.expires_at_ms - 1
    run.approve("c1.0")
    verdicts = run.checks("c1.0", resource_version="v1")
    run.now += 1
    run.send(verdicts)
    assert run.started("c1.0") == 0
    assert run.bound("c1.0") == ("error", "approval_expired")


def test_expired_suspends_where_the_goal_needs_it_and_can_be_lifted() -> None:
    other = call("refund", order_id="B", amount=5)
    run = asked(REFUND, call("pay", order_id="B", amount=1), goal=Goal.of("refund"))
    run.tick_to_wake()
    # The one that the goal doesn't need expired in the same turn, and last.
    assert run.stop() == ("suspended", "incomplete", "approval_expired")
    assert run.state.detail == "refund"
    run.outside(Resume)
    assert run.state.phase == "model_requested"
    run.reply(other)
    run.check("c2.0")
    run.report("c2.0")
    run.final()
    assert run.stop() == ("terminated", "completed", "final")


def test_separate_approver() -> None:
    run = asked(separate_approver=True)
    command = Approve(command_id="x", by="local", approval_id=run.approval("c1.0"))
    given(run).when(command, run.now).then_refused("same_person")
    no = Reject(command_id="y", by="local", approval_id=run.approval("c1.0"))
    given(run).when(no, run.now).then_refused("same_person")
    run.approve("c1.0", by="boss")
    assert run.phase("c1.0") == "checking"


def test_requester_may_approve_where_policy_does_not_say_otherwise() -> None:
    run = asked()
    run.approve("c1.0", by="local")
    assert run.phase("c1.0") == "checking"


def test_single_use() -> None:
    run = asked()
    approval = run.approval("c1.0")
    run.approve("c1.0")
    for command in (
        Approve(command_id="again", by="boss", approval_id=approval),
        Reject(command_id="no", by="boss", approval_id=approval),
    ):
        given(run).when(command, run.now).then_refused("approval_used")
    # The same command once more is no second decision, and no refusal.
    done = next(event for event, _ in run.log if isinstance(event, e.ApprovalDecided))
    same = Approve(command_id=done.command_id, by="boss", approval_id=approval)
    given(run).when(same, run.now).then_nothing()


def test_approval_of_one_call_is_nothing_to_another() -> None:
    run = asked(REFUND, call("refund", order_id="B", amount=5))
    run.approve("c1.0")
    assert run.phase("c1.1") == "waiting_approval"
    given(run).when(Approve(command_id="x", by="boss", approval_id="ap_guess"), run.now).then_refused(
        "approval_not_found"
    )


def test_reject_goes_back_to_the_model() -> None:
    run = asked()
    run.reject("c1.0", reason="no")
    assert run.bound("c1.0") == ("error", "approval_rejected")
    assert run.state.phase == "model_requested"
    assert [row.status for row in run.ledger.rows.values()] == ["rejected"]


def test_reject_that_stops_waits_for_what_is_out_and_starts_nothing_else() -> None:
    run = Run()
    run.reply(call("get_order", order_id="A"), REFUND, call("pay", order_id="A", amount=1))
    run.check("c1.0")
    run.ask("c1.1")
    run.check("c1.2")
    run.reject("c1.1", on_reject="stop")
    assert run.bound("c1.2") == ("error", "run_stopping")
    assert run.stop()[0] == "open_calls"
    run.report("c1.0")
    assert run.bound("c1.0") == ("ok", "")
    assert run.started("c1.2") == 0
    assert run.stop() == ("terminated", "failed", "approval_denied")


def test_cancel_first_then_approve() -> None:
    run = asked()
    approval = run.approval("c1.0")
    run.cancel()
    assert run.stop() == ("terminated", "cancelled", "by_user")
    assert lapses(run) == [("cancelled", "")]
    run.outside(Approve, approval_id=approval, by="boss")
    assert run.refusal == "approval_not_found"
    assert run.started("c1.0") == 0


def test_cancel_in_the_same_append_before_approve() -> None:
    """Both commands are in one batch: the second finds the first in the state, before anything else was due."""
    run = asked()
    run.decide(Cancel(command_id="c", by="user"))
    run.decide(Approve(command_id="a", by="boss", approval_id=run.approval("c1.0")))
    assert run.refusal == "run_cancelled"
    run.settle()
    assert run.started("c1.0") == 0


def test_approve_first_then_cancel() -> None:
    run = asked()
    run.approve("c1.0")
    verdicts = run.checks("c1.0", resource_version="v1")
    run.cancel()
    assert run.stop() == ("terminated", "cancelled", "by_user")
    run.send(verdicts)
    assert run.started("c1.0") == 0
    assert not run.ledger.rows


def test_two_approvals_in_reverse_order_run_in_call_order() -> None:
    run = asked(REFUND, call("pay", order_id="B", amount=1))
    run.approve("c1.1")
    assert not run.orders()
    run.approve("c1.0")
    assert [order.call for order in run.orders()] == ["c1.0"]  # type: ignore[union-attr]  # only checks are pending
    run.check("c1.0", resource_version="v1")
    run.report("c1.0")
    run.check("c1.1", resource_version="v1")
    run.report("c1.1")
    started = [event.call for event, _ in run.log if isinstance(event, e.CallStarted)]
    assert started == ["c1.0", "c1.1"]


def test_a_read_that_a_person_was_asked_about_is_checked_again_like_an_effect() -> None:
    run = asked(call("get_order", order_id="A"))
    run.approve("c1.0")
    assert run.started("c1.0") == 0
    run.ask("c1.0", resource_version="v2")
    assert lapses(run) == [("stale", "resource_version")]
    run.approve("c1.0")
    run.check("c1.0", resource_version="v2")
    run.report("c1.0", "failed", code="busy", retryable=True)
    run.tick_to_wake()
    assert run.started("c1.0") == 1
    run.check("c1.0", resource_version="v2")
    assert run.started("c1.0") == 2
    run.report("c1.0")
    assert run.bound("c1.0") == ("ok", "")


def test_waiting_survives_a_restart() -> None:
    run = asked()
    run.crash("woken")
    assert run.phase("c1.0") == "waiting_approval"
    run.approve("c1.0")
    run.crash("woken")
    run.check("c1.0", resource_version="v1")
    assert run.started("c1.0") == 1


def test_approval_never_outlives_the_deadline() -> None:
    run = asked(bounds=limits(deadline_ms=MINUTE_MS))
    approval = run.call("c1.0").approval
    assert approval is not None
    assert approval.expires_at_ms == run.state.deadline_at_ms


def test_policy_that_wants_a_person_only_at_the_recheck_asks_then() -> None:
    run = Run()
    run.reply(call("set_state", order_id="A", state="x"), REFUND)
    run.check("c1.0")
    run.check("c1.1")
    run.tick(1)
    run.report("c1.0")
    run.ask("c1.1")
    assert run.phase("c1.1") == "waiting_approval"
    run.approve("c1.1")
    run.check("c1.1", resource_version="v1")
    assert run.started("c1.1") == 1


def test_decisions_on_a_stopped_run_wait_until_it_goes_on() -> None:
    run = asked()
    for _ in range(3):
        run.crash("host_died")
    assert run.stop() == ("suspended", "failed", "crash_loop")
    command = Approve(command_id="x", by="boss", approval_id=run.approval("c1.0"))
    given(run).when(command, run.now).then_refused("run_stopped")
    no = Reject(command_id="y", by="boss", approval_id=run.approval("c1.0"))
    given(run).when(no, run.now).then_refused("run_stopped")
    run.outside(Resume)
    run.approve("c1.0")
    assert run.phase("c1.0") == "checking"
