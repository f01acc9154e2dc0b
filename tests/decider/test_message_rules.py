"""People's messages: when they join the history, what they change, and where they are refused."""

from __future__ import annotations

import pytest

from boundloop.runtime import events as e
from boundloop.runtime.commands import (
    MESSAGE_BYTES_MAX,
    Close,
    RaiseLimits,
    RecordFact,
    ResolveCall,
    Resume,
    Send,
)
from boundloop.runtime.goal import Goal
from boundloop.runtime.limits import LimitValues
from boundloop.runtime.model import AssistantItem, FinishKind, NoteItem, ResultItem, UserItem
from boundloop.runtime.orders import AskParent, RequestModel, shown_phase

from .family import helped
from .shop import limits, pins
from .spec import Run, call, given, tags


def bounded(**values: int) -> Run:
    bounds: LimitValues = limits(**values)
    return Run(pins(bounds=bounds))


def say(run: Run, text: str = "in blue, please", **fields: str) -> tuple[e.AnyEvent, ...]:
    return run.outside(Send, text=text, **fields)


def kinds(run: Run) -> list[str]:
    return [type(item).__name__ for item in run.state.items]


def message(text: str) -> Send:
    return Send(command_id="m", by="ann", text=text)


# --- where it joins --------------------------------------------------------------------------------------------------


def test_message_while_calls_are_open_is_on_record_at_once_and_joins_after_the_results() -> None:
    run = Run()
    run.reply(call("get_order", order_id="A"), call("get_order", order_id="B"))
    run.check("c1.0")
    run.check("c1.1")
    assert tags(say(run)) == ["message_received"]
    assert (run.state.unread, kinds(run)) == (["in blue, please"], ["UserItem"])
    run.report("c1.0", result={"order": "A"})
    assert kinds(run) == ["UserItem"]
    run.report("c1.1", result={"order": "B"})
    assert kinds(run) == ["UserItem", "AssistantItem", "ResultItem", "ResultItem", "UserItem"]
    assert run.state.unread == []
    requested = run.log[-1][0]
    assert isinstance(requested, e.ModelRequested)
    assert requested.items == 5


def test_message_while_a_request_is_out_joins_after_that_turn() -> None:
    run = Run()
    before = run.state.request_sha256
    say(run)
    assert (run.state.request_sha256, len(run.state.items)) == (before, 1)
    run.reply(call("get_order", order_id="A"))
    assert kinds(run) == ["UserItem"]
    run.check("c1.0")
    run.report("c1.0")
    assert kinds(run)[-1] == "UserItem"


def test_final_answer_that_did_not_know_a_message_is_followed_by_one_more_turn() -> None:
    run = Run()
    say(run, "one")
    say(run, "two")
    assert tags(run.final("the answer")) == ["model_responded", "model_requested"]
    assert run.state.items[1:] == [AssistantItem("the answer"), UserItem("one"), UserItem("two")]
    run.final("the answer to that")
    assert run.stop() == ("terminated", "completed", "final")
    assert run.state.final_text == "the answer to that"


def fact(run: Run) -> tuple[e.AnyEvent, ...]:
    return run.outside(RecordFact, name="segment", value='"gold"')


@pytest.mark.parametrize("order", ["fact first", "message first", "on both sides"])
def test_a_fact_of_the_host_beside_a_message_does_not_stand_for_its_answer(order: str) -> None:
    run = Run()
    for step in {"fact first": "fm", "message first": "mf", "on both sides": "fmf"}[order]:
        _ = fact(run) if step == "f" else say(run)
    assert tags(run.final("unaware")) == ["model_responded", "model_requested"]
    run.final("the answer to that")
    assert run.stop() == ("terminated", "completed", "final")
    assert run.state.final_text == "the answer to that"


def test_facts_alone_ask_for_no_further_turn() -> None:
    run = Run()
    fact(run)
    fact(run)
    run.final("the answer")
    assert run.stop() == ("terminated", "completed", "final")


@pytest.mark.parametrize("facts", [1, 3])
def test_a_fact_while_a_parent_is_asked_for_a_turn_leaves_the_message_unanswered(facts: int) -> None:
    family = helped(limits(turns=4))
    child = family.child(family.root, "c1.0")
    say(child, "STOP, wrong order")
    child.final("unaware")
    assert child.state.phase == "deciding"
    for _ in range(facts):
        fact(child)
    assert child.state.phase == "deciding"
    assert [type(order) for order in child.orders()] == [AskParent]
    assert family.ask(child)
    child.final("stopped")
    assert (child.stop(), child.state.final_text) == (("terminated", "completed", "final"), "stopped")


def test_that_turn_is_within_the_limits_and_its_absence_is_a_stop() -> None:
    run = bounded(turns=1)
    say(run)
    run.final()
    assert run.stop() == ("suspended", "incomplete", "max_turns")
    run.outside(RaiseLimits, raised={"turns": 2})
    run.outside(Resume)
    assert run.state.items[-1] == UserItem("in blue, please")
    run.final("blue")
    assert run.stop() == ("terminated", "completed", "final")


def test_message_stands_in_for_the_corrective_note_and_spends_none() -> None:
    run = Run(pins(goal=Goal.of("refund")))
    say(run)
    run.final()
    assert run.state.counters.corrective_turns == 0
    run.final()
    assert isinstance(run.state.items[-1], NoteItem)


def test_message_before_a_failed_request_is_sent_again_goes_with_it() -> None:
    run = Run()
    say(run)
    run.reply(finish="provider_error", error_code="overloaded")
    assert (run.state.phase, run.state.items[-1]) == ("model_retry", UserItem("in blue, please"))
    say(run, "and soon")
    assert len(run.state.items) == 3
    run.tick_to_wake()
    requested = run.log[-1][0]
    assert isinstance(requested, e.ModelRequested)
    assert (requested.turn, requested.attempt, requested.items) == (1, 2, 3)


def test_paused_turn_is_continued_before_a_message_is_heard() -> None:
    run = Run()
    say(run)
    run.reply(finish="paused", text="so far", continuation=b"more")
    assert kinds(run) == ["UserItem", "AssistantItem"]
    run.reply(finish="provider_error", error_code="overloaded")
    say(run, "and soon")
    assert kinds(run) == ["UserItem", "AssistantItem"]
    run.tick_to_wake()
    run.final("the rest")
    assert kinds(run) == ["UserItem", "AssistantItem", "AssistantItem", "UserItem", "UserItem"]
    assert run.state.phase == "model_requested"


@pytest.mark.parametrize(
    ("finish", "reason"),
    [("truncated", "truncated"), ("refused", "model_refusal"), ("filtered", "content_filtered")],
)
def test_cut_or_refused_turn_stops_as_ever(finish: str, reason: str) -> None:
    run = Run()
    say(run)
    run.reply(finish=finish)  # type: ignore[arg-type]  # of the table
    assert run.state.reason == reason


def test_child_asks_its_parent_for_the_turn_that_a_message_needs() -> None:
    family = helped(limits(turns=4))
    child = family.child(family.root, "c1.0")
    say(child)
    child.final("the answer")
    assert child.state.phase == "deciding"
    say(child, "and soon")
    assert [type(order) for order in child.orders()] == [AskParent]
    assert kinds(child) == ["UserItem", "AssistantItem", "UserItem", "UserItem"]
    assert family.ask(child)
    child.final("the answer to that")
    assert child.stop() == ("terminated", "completed", "final")


def test_message_while_nothing_is_under_way_joins_at_once() -> None:
    family = helped(limits(turns=3, children=9), "a", "b", "c")
    child = family.child(family.root, "c1.0")
    assert shown_phase(child.state) == "created"
    say(child, "one")
    assert child.state.items[-1] == UserItem("one")
    assert family.ask(child)
    child.reply(call("get_order", order_id="A"))
    child.check("c1.0")
    child.report("c1.0")
    assert shown_phase(child.state) == "results_ready"
    say(child, "two")
    assert child.state.items[-1] == UserItem("two")


# --- waits and stops -------------------------------------------------------------------------------------------------


def test_message_to_a_run_that_waits_for_a_person_leaves_it_waiting() -> None:
    run = Run()
    run.reply(call("refund", order_id="A", amount=1))
    run.ask("c1.0")
    say(run)
    assert run.phase("c1.0") == "waiting_approval"
    run.reject("c1.0")
    assert [type(item) for item in run.state.items[-2:]] == [ResultItem, UserItem]


def test_stopped_run_keeps_a_message_and_is_not_lifted_by_it() -> None:
    run = Run()
    run.reply(finish="truncated")
    assert tags(say(run)) == ["message_received"]
    assert run.stop() == ("suspended", "incomplete", "truncated")
    run.outside(Resume)
    assert run.state.items[-1] == UserItem("in blue, please")
    assert isinstance(run.orders()[0], RequestModel)


def test_message_to_a_run_that_stopped_with_open_calls_joins_after_their_results() -> None:
    run = Run()
    run.reply(call("pay", order_id="A", amount=1))
    run.check("c1.0")
    run.report("c1.0", "unknown")
    assert run.state.reason == "outcome_unknown"
    say(run)
    assert kinds(run) == ["UserItem"]
    run.outside(ResolveCall, call="c1.0", outcome="applied", result="{}")
    assert kinds(run) == ["UserItem", "AssistantItem", "ResultItem", "UserItem"]


def test_message_survives_a_crash_wherever_it_stands() -> None:
    run = Run()
    say(run, "one")
    run.crash()
    assert run.state.items[-1] == UserItem("one")
    run.reply(call("get_order", order_id="A"))
    say(run, "two")
    run.crash()
    assert run.state.unread == ["two"]
    run.check("c2.0" if "c2.0" in run.state.calls else "c1.0")
    run.report(next(iter(run.state.calls)))
    assert run.state.items[-1] == UserItem("two")


# --- progress --------------------------------------------------------------------------------------------------------


def test_message_is_progress() -> None:
    run = bounded(turns_without_progress=2, equal_results=100, repeats=100)
    for turn in range(1, 7):
        run.reply(call("get_order", order_id="A"))
        run.check(f"c{turn}.0")
        if turn % 2 == 0:
            say(run)
        run.report(f"c{turn}.0")
        assert run.state.live
    for turn in (7, 8):
        run.reply(call("get_order", order_id="A"))
        run.check(f"c{turn}.0")
        run.report(f"c{turn}.0")
    assert run.stop() == ("suspended", "incomplete", "no_progress")


# --- refused ---------------------------------------------------------------------------------------------------------


def test_run_that_has_ended_takes_no_message() -> None:
    run = Run()
    run.final()
    given(run).when(message("late"), run.now).then_refused("run_ended")


def test_run_that_is_ending_takes_no_message() -> None:
    run = Run()
    run.reply(call("pay", order_id="A", amount=1))
    run.check("c1.0")
    run.cancel()
    given(run).when(message("wait"), run.now).then_refused("run_ending")
    closing = Run()
    closing.reply(finish="truncated")
    closing.decide(Close(command_id="close", by="u"))
    given(closing).when(message("wait"), closing.now).then_refused("run_ending")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "message_empty"),
        (" \n", "message_empty"),
        ("\u00e4" * (MESSAGE_BYTES_MAX // 2 + 1), "message_size"),
    ],
)
def test_message_has_some_text_and_not_too_much(text: str, code: str) -> None:
    run = Run()
    given(run).when(message(text), run.now).then_refused(code)


def test_messages_are_counted_and_never_pass_their_limit() -> None:
    run = bounded(messages=2)
    say(run)
    say(run)
    given(run).when(message("more"), run.now).then_refused("max_messages")
    run.outside(RaiseLimits, raised={"messages": 3})
    say(run)
    assert run.state.counters.messages == 3
    none = bounded(messages=0)
    given(none).when(message("more"), none.now).then_refused("max_messages")


def test_who_said_it_is_on_record() -> None:
    run = Run()
    [event, *_] = say(run, by="ann")
    assert isinstance(event, e.MessageReceived)
    assert (event.source, event.by, event.text) == ("user", "ann", "in blue, please")


@pytest.mark.parametrize(
    ("finish", "reason", "heard"),
    [
        ("truncated", "truncated", True),
        ("final", "empty_response", True),
        ("refused", "model_refusal", False),
        ("filtered", "content_filtered", False),
    ],
)
def test_a_message_under_an_answer_that_is_none_is_heard_where_the_run_only_stopped(
    finish: FinishKind, reason: str, heard: bool
) -> None:
    run = Run()
    say(run)
    run.reply(finish=finish)
    assert (run.state.phase, run.state.reason) == ("suspended" if heard else "terminated", reason)
    run.outside(Resume)
    assert run.refusal == ("" if heard else "run_ended")
    if heard:
        assert UserItem("in blue, please") in run.state.items
        assert isinstance(run.orders()[0], RequestModel)
