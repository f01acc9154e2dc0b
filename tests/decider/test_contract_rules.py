"""Rules of the contract that no other test of this folder plays by themselves (``docs/rules.md`` names all of them)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from boundloop.runtime import events as e
from boundloop.runtime.binding import check_bindings
from boundloop.runtime.commands import (
    Advance,
    Approve,
    Cancel,
    ChecksDone,
    ChildEnded,
    ChildOpened,
    ClaimLost,
    Close,
    Command,
    Executed,
    ModelReplied,
    NothingLeft,
    Queried,
    RaiseLimits,
    Reject,
    ResolveCall,
    Resume,
    TakeOver,
)
from boundloop.runtime.decide import decide
from boundloop.runtime.errors import HistoryRefused
from boundloop.runtime.fold import evolve
from boundloop.runtime.ledger import LedgerRow
from boundloop.runtime.model import FINISH, ModelTurn, ProposedCall, ResultItem, Usage
from boundloop.runtime.orders import Execute, RequestModel, StartChild
from boundloop.runtime.state import State, state_digest
from boundloop.runtime.transitions import IllegalTransition

from .family import Family, helped
from .shop import limits, pins
from .spec import Run, call, given, tags

READ = call("get_order", order_id="A")
REFUND = call("refund", order_id="A", amount=5)
PAY = call("pay", order_id="A", amount=5)


def proposed(*proposals: ProposedCall) -> Run:
    run = Run(fold_every_append=False)
    run.reply(*proposals)
    return run


def checked(*proposals: ProposedCall) -> Run:
    run = proposed(*proposals)
    for number in range(len(proposals)):
        run.check(f"c1.{number}")
    return run


def reported(outcome: Any, *proposals: ProposedCall, **fields: Any) -> Run:
    run = checked(*proposals)
    run.report("c1.0", outcome, **fields)
    return run


def asked() -> Run:
    run = proposed(REFUND)
    run.ask("c1.0")
    return run


def waits_for_key() -> Run:
    first = checked(REFUND)
    run = Run(ledger=first.ledger, run_id="r2", fold_every_append=False)
    run.reply(REFUND)
    run.check("c1.0")
    return run


def finished(finish: Any, **fields: Any) -> Run:
    run = Run(fold_every_append=False)
    run.reply(finish=finish, **fields)
    return run


def cancelling() -> Run:
    run = checked(READ)
    run.cancel()
    return run


PLACES: dict[str, Callable[[], Run]] = {
    "model_requested": lambda: Run(fold_every_append=False),
    "model_retry": lambda: finished("transport_broken"),
    "proposed": lambda: proposed(READ, REFUND),
    "started read": lambda: checked(READ),
    "started effect": lambda: checked(PAY),
    "waiting_approval": asked,
    "waiting_key": waits_for_key,
    "read to be tried again": lambda: reported("failed", READ, retryable=True, code="busy"),
    "effect to be tried again": lambda: reported("failed", REFUND, retryable=True, no_effect=True),
    "reconciling": lambda: reported("unknown", call("ship", order_id="A")),
    "outcome_unknown": lambda: reported("unknown", PAY),
    "waiting_child": lambda: helped(limits(children=9)).root,
    "suspended": lambda: finished("truncated"),
    "cancelling": cancelling,
    "terminated": lambda: finished("refused"),
}
"""A run in each place that differs for decisions."""


def commands(run: Run) -> list[Command]:
    """One of each command, as it fits and as it doesn't."""
    row = LedgerRow(
        tenant="default", key=b"k" * 32, tool="refund", status="in_flight", intent_sha256=b"i" * 32,
        args_sha256=b"a" * 32, run_id="other", call_id="c1.0", attempt=1, epoch=1, valid_until_ms=1, at_ms=1,
    )  # fmt: skip
    held = next(iter(run.state.calls.values()), None)
    approval = "ap_none" if held is None or held.approval is None else held.approval.approval_id
    found: list[Command] = [Advance(), TakeOver(epoch=1, host="h", cause="woken")]
    found.append(TakeOver(epoch=run.state.epoch + 1, host="h", cause="host_died"))
    for finish in FINISH:
        for turn in (run.state.turn, 99):
            reply = ModelTurn(finish=finish, calls=(READ,), text="x", usage=Usage(-1, None))
            found.append(ModelReplied(turn=turn, attempt=run.state.model_attempt, reply=reply))
    for name in ("c1.0", "c9.9"):
        found += [
            ChecksDone(call=name, recheck=False),
            ChecksDone(call=name, recheck=True, row=row, ask=True, contract_kept=False),
            ChecksDone(call=name, recheck=True, row=row, ask=True),
            ClaimLost(call=name, row=row),
            ChildOpened(call=name),
            ChildEnded(call=name, outcome="completed", reason="final", spent={}),
            Queried(call=name, number=1, asked_at_ms=0, outcome="absent"),
            Queried(call=name, number=9, asked_at_ms=0, outcome="applied"),
            ResolveCall(command_id=f"s{name}", by="u", call=name, outcome="applied", result="{"),
            ResolveCall(command_id=f"t{name}", by="u", call=name, outcome="absent"),
        ]
        for outcome in ("succeeded", "failed", "unknown"):
            for attempt in (0, 1, 7):
                found.append(Executed(call=name, attempt=attempt, outcome=cast(Any, outcome)))
    found += [
        NothingLeft(limits=("turns", "no_such")),
        Approve(command_id="a", by="u", approval_id=approval),
        Reject(command_id="b", by="u", approval_id=approval, on_reject="stop"),
        Approve(command_id="", by="u", approval_id="\ud800"),
        Cancel(command_id="c", by="u"),
        Resume(command_id="d", by="u"),
        Close(command_id="e", by="u"),
        RaiseLimits(command_id="f", by="u", raised={"turns": 10**18, "depth": -1}),
    ]
    return found


@pytest.mark.parametrize("place", list(PLACES))
def test_every_command_is_decided_in_every_place_and_changes_nothing_by_that(place: str) -> None:
    """Total: an answer to each, and what is decided can be applied."""
    run = PLACES[place]()
    before = state_digest(run.state)
    encoded = msgspec.msgpack.encode([event for event, _ in run.log])
    for command in commands(run):
        for at in (run.now, run.now + 10**9):
            decision = decide(run.state, command, at)
            assert state_digest(run.state) == before
            assert decision.refusal is None or not decision.events
            assert decide(run.state, command, at) == decision, "the same wish, the same answer"
            state = given(run).when(Advance(), run.now).state
            for event in decision.events:
                evolve(state, event, at)
    assert msgspec.msgpack.encode([event for event, _ in run.log]) == encoded


@pytest.mark.parametrize("place", [name for name in PLACES if name != "terminated"])
def test_taking_over_begins_with_run_resumed_and_closes_every_older_intent_in_the_same_append(
    place: str,
) -> None:
    run = PLACES[place]()
    epoch = run.state.epoch + 1
    decision = decide(run.state, TakeOver(epoch=epoch, host="h", cause="host_died"), run.now)
    first = decision.events[0]
    assert isinstance(first, e.RunResumed)
    assert (first.epoch, first.cause) == (epoch, "host_died")
    run.append(decision)
    assert run.state.phase != "model_requested", "its request is lost, and spent"
    assert all(held.phase != "started" for held in run.state.calls.values())
    dispatched = [order for order in run.orders() if isinstance(order, RequestModel | Execute)]
    assert dispatched == [], "nothing of an older epoch is sent"


# --- what goes back to a model ---------------------------------------------------------------------------------------------


def two_bound() -> State:
    run = Run(fold_every_append=False)
    run.reply(READ, call("get_order", order_id="B"))
    for number in range(2):
        run.check(f"c1.{number}")
    for number in range(2):
        run.decide(run.executed(f"c1.{number}", result={"n": number}))
    for name in ("c1.0", "c1.1"):
        event = next(
            event
            for event in decide(run.state, Advance(), run.now).events
            if isinstance(event, e.ResultBound)
        )
        assert event.call == name
        evolve(run.state, event, run.now)
    assert run.state.phase == "results_ready"
    return run.state


def test_bound_results_that_are_whole_go_back() -> None:
    check_bindings(two_bound())


def test_results_that_were_swapped_between_their_calls_are_refused() -> None:
    state = two_bound()
    first, second = state.calls["c1.0"], state.calls["c1.1"]
    first.result, second.result = second.result, first.result
    first.result_sha256, second.result_sha256 = second.result_sha256, first.result_sha256
    with pytest.raises(HistoryRefused) as caught:
        check_bindings(state)
    assert caught.value.code == "binding_mismatch"


def test_a_result_with_its_binding_copied_from_another_call_is_refused() -> None:
    state = two_bound()
    first, second = state.calls["c1.0"], state.calls["c1.1"]
    for name in ("result", "result_sha256", "binding_sha256"):
        setattr(second, name, getattr(first, name))
    with pytest.raises(HistoryRefused) as caught:
        check_bindings(state)
    assert caught.value.code == "binding_mismatch"


def test_a_missing_result_is_refused_and_a_second_one_for_a_call_too() -> None:
    state = two_bound()
    with pytest.raises(IllegalTransition):
        evolve(state, e.ResultBound("c1.0", "ok", "", bytes(32)), 1)
    state.calls["c1.1"].phase = "executed"
    with pytest.raises(HistoryRefused) as caught:
        check_bindings(state)
    assert caught.value.code == "result_missing"


def test_a_result_under_another_response_is_refused() -> None:
    state = two_bound()
    state.response_id = "another"
    with pytest.raises(HistoryRefused) as caught:
        check_bindings(state)
    assert caught.value.code == "binding_mismatch"


SHOWN = {
    *("as_of", "code", "data", "handle", "message", "observed_at", "path", "replayed", "retryable"),
    *("source_version", "status", "truncated", "trust"),
}


def test_a_model_sees_the_published_fields_of_a_result_and_nothing_of_the_protected_record() -> None:
    run = Run(pins(bounds=limits(calls_per_turn=3)))
    run.reply(REFUND, READ, ProposedCall("get_order", b"{"), READ)
    for number in range(3):
        run.check(f"c1.{number}")
    run.report("c1.0", "failed", code="closed", safe_message="closed", no_effect=True)
    run.report("c1.1", result={"n": 1})
    shown = [item.content for item in run.state.items if isinstance(item, ResultItem)]
    assert len(shown) == 4
    protected = (
        run.state.tenant.encode(),
        run.state.principal.encode(),
        *(event.request_sha256.hex().encode() for event, _ in run.log if isinstance(event, e.CallStarted)),
        *(
            event.key.hex().encode()
            for event, _ in run.log
            if isinstance(event, e.CallValidated) and event.key
        ),
    )
    for content in shown:
        assert set(cast("dict[str, Any]", msgspec.json.decode(content))) <= SHOWN
        assert not any(secret in content for secret in protected)


# --- the ladder's order ----------------------------------------------------------------------------------------------------


def test_a_repetition_is_refused_before_anybody_is_asked() -> None:
    run = Run(pins(bounds=limits(repeats=2)))
    letter = call("send_letter", order_id="A")
    run.reply(letter)
    run.check("c1.0")
    run.report("c1.0")
    run.reply(letter)
    run.ask("c2.0")
    assert run.bound("c2.0") == ("error", "no_progress")
    assert "approval_requested" not in run.tags()


def test_a_call_beyond_a_limit_is_refused_before_its_key_is_looked_up() -> None:
    first = reported("succeeded", REFUND)
    run = Run(pins(bounds=limits(tool_calls=0)), ledger=first.ledger, run_id="r2")
    run.reply(REFUND)
    run.check("c1.0")
    assert run.bound("c1.0") == ("error", "max_tool_calls")


def test_a_conflict_is_told_before_anybody_is_asked() -> None:
    first = reported("succeeded", REFUND)
    run = Run(ledger=first.ledger, run_id="r2")
    run.reply(call("refund", order_id="A", amount=6))
    run.ask("c1.0")
    assert run.bound("c1.0") == ("error", "idempotency_conflict")
    assert "approval_requested" not in run.tags()


# --- trees -----------------------------------------------------------------------------------------------------------------


def test_ended_children_of_a_lifted_parent_stay_ended() -> None:
    family = helped(limits(children=9))
    root, child = family.root, family.child(family.root, "c1.0")
    for _ in range(3):
        root.crash()
    assert root.stop() == ("suspended", "failed", "crash_loop")
    child.final("found")
    family.settle(root, "c1.0")
    root.outside(Resume)
    assert root.state.phase == "model_requested"
    assert not any(isinstance(order, StartChild) for order in root.orders())
    assert child.stop() == ("terminated", "completed", "final")
    assert len(family.runs) == 2


def test_a_child_acts_for_the_same_tenant_principal_and_operation() -> None:
    family = helped(limits(children=9), operation_id="case-7")
    root, child = family.root.state, family.child(family.root, "c1.0").state
    for name in ("tenant", "principal", "operation_id", "as_of", "trace"):
        assert getattr(child, name) == getattr(root, name), name
    assert child.operation_id == "case-7"


def test_a_tree_that_is_cancelled_writes_it_down_before_anything_is_told() -> None:
    family = Family()
    family.root.reply(call("helper", input="go"))
    family.root.check("c1.0")
    family.start(family.root, "c1.0")
    events = family.root.decide(Cancel(command_id="c", by="u"))
    assert tags(events) == ["cancel_requested"]
    child = family.child(family.root, "c1.0")
    assert not child.state.cancel_reason, "the child hears of it by an order, after the append"
    family.serve()
    assert child.stop() == ("terminated", "cancelled", "by_parent")
    assert family.root.stop() == ("terminated", "cancelled", "by_user")
