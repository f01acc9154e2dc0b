"""Questions to people: asked in the place of an execution, answered once, lapsed with their time or their run."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from boundloop.eventstore.inbox import inbox_rows
from boundloop.runtime import events as e
from boundloop.runtime.canonical import canonical_bytes
from boundloop.runtime.commands import Answer, Close, RaiseLimits, Resume
from boundloop.runtime.fold import fold
from boundloop.runtime.goal import Goal
from boundloop.runtime.index import run_index
from boundloop.runtime.model import ProposedCall, ResultItem
from boundloop.runtime.orders import RequestModel, RunChecks, shown_phase
from boundloop.runtime.question_tool import ask_user
from boundloop.runtime.questions import ANSWER_BYTES_MAX, question_id

from .shop import BY_NAME, MINUTE_MS, TOOLS, limits, pins
from .spec import Run, call, given, tags

BY_NAME[ask_user.name] = ask_user.definition
WHICH = question_id("r1", "c1.0")
DAY_MS = 24 * 60 * MINUTE_MS


def asker(goal: Goal | None = None, **bounds: Any) -> Run:
    return Run(pins(tools=(*TOOLS, ask_user.definition), bounds=limits(**bounds), goal=goal))


def question(text: str = "which order?", **more: Any) -> ProposedCall:
    return call("ask_user", question=text, **more)


def asked(*calls: ProposedCall, goal: Goal | None = None, **bounds: Any) -> Run:
    """A run whose first turn asks, and what else it calls."""
    run = asker(goal, **bounds)
    run.reply(*(calls or (question(),)))
    run.check("c1.0")
    return run


def answer(run: Run, text: str = "A1042", name: str = WHICH, **fields: Any) -> tuple[e.AnyEvent, ...]:
    values: dict[str, Any] = {"command_id": f"answer-{len(run.log)}", "by": "ann", "text": text, **fields}
    return run.send(Answer(question_id=name, **values))


def content(run: Run) -> Any:
    item = run.state.items[-1]
    assert isinstance(item, ResultItem)
    return msgspec.json.decode(item.content)


# --- asked and answered ----------------------------------------------------------------------------------------------


def test_question_waits_durably_and_its_answer_is_the_result() -> None:
    run = asked(question(choices=["A1042", "A1043", "A1042"]))
    event = run.log[-1][0]
    assert event == e.QuestionAsked(
        "c1.0",
        WHICH,
        "which order?",
        ("A1042", "A1043"),
        run.now + DAY_MS,
        run.call("c1.0").request_sha256,
    )
    assert (run.phase("c1.0"), shown_phase(run.state)) == ("waiting_answer", "waiting_answer")
    assert run.orders() == []
    assert run_index(run.state).waiting_for == f"answer:{WHICH}"
    assert tags(answer(run)) == ["question_answered", "result_bound", "model_requested"]
    assert run.bound("c1.0") == ("ok", "")
    assert content(run) == {
        "data": {"answer": "A1042"},
        "observed_at": run.now,
        "status": "ok",
        "trust": "person",
    }


def test_question_passes_every_rung_and_is_refused_like_any_call() -> None:
    run = asker()
    run.reply(call("ask_user", question=""), call("ask_user", question="x", more=1))
    run.check("c1.0")
    run.check("c1.1")
    assert [run.bound(name)[0] for name in ("c1.0", "c1.1")] == ["error", "error"]
    assert run.started("c1.0") == 0


def test_run_that_is_not_offered_the_tool_asks_nobody() -> None:
    run = Run()
    run.reply(question())
    run.check("c1.0")
    assert run.bound("c1.0") == ("error", "unknown_tool")


def test_question_is_one_of_the_runs_calls_and_of_one_tools() -> None:
    run = asked(question(), question("and why?"), tool_calls=1)
    run.check("c1.1")
    assert run.bound("c1.1") == ("error", "max_tool_calls")
    meters = run.state.meters
    assert (meters.tool_calls.spent, meters.call_attempts.spent) == (1, 1)
    each = asked(question(), question("and why?"), tool_calls_each={"ask_user": 1})
    each.check("c1.1")
    assert each.bound("c1.1") == ("error", "tool_calls_each")


def test_question_holds_back_later_effects_and_no_reads() -> None:
    run = asked(question(), call("get_order", order_id="A"), call("refund", order_id="A", amount=1))
    run.check("c1.1")
    run.check("c1.2")
    assert [run.phase(name) for name in ("c1.0", "c1.1", "c1.2")] == ["waiting_answer", "started", "checking"]
    run.report("c1.1")
    assert run.phase("c1.2") == "checking"
    answer(run)
    assert run.orders() == [RunChecks("c1.2", 0, True)]


def test_questions_are_put_to_people_up_to_parallel_at_a_time() -> None:
    run = asked(*(question(f"which {n}?") for n in range(5)), parallel=2)
    for n in range(1, 5):
        run.check(f"c1.{n}")

    def open_now() -> list[str]:
        return [call.call for call in run.state.calls.values() if call.phase == "waiting_answer"]

    assert open_now() == ["c1.0", "c1.1"]
    answer(run, name=question_id("r1", "c1.1"))
    assert open_now() == ["c1.0", "c1.2"]
    run.crash()
    assert open_now() == ["c1.0", "c1.2"]
    run.tick(DAY_MS // 48)
    for _ in range(4):
        answer(run, name=question_id("r1", open_now()[0]))
    assert open_now() == []
    assert isinstance(run.orders()[0], RequestModel)


def test_open_questions_take_no_place_of_a_read_and_reads_none_of_a_question() -> None:
    run = asked(question(), call("get_order", order_id="A"), question("and why?"), parallel=1)
    run.check("c1.1")
    run.check("c1.2")
    assert [run.phase(f"c1.{n}") for n in range(3)] == ["waiting_answer", "started", "checking"]
    answer(run)
    assert [run.phase(f"c1.{n}") for n in range(1, 3)] == ["started", "waiting_answer"]


def test_questions_that_wait_their_turn_are_refused_with_a_run_that_is_cancelled() -> None:
    run = asked(question(), question("and why?"), parallel=1)
    run.check("c1.1")
    run.cancel()
    assert [run.bound(f"c1.{n}") for n in range(2)] == [("error", "cancelled")] * 2
    assert [type(event) for event, _ in run.log].count(e.QuestionAsked) == 1


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"question": " \n"}, "$.question"),
        ({"question": "which?", "choices": ["A", " "]}, "$.choices[1]"),
        ({"question": "which?", "choices": ["\t", "\n"]}, "$.choices[0]"),
    ],
)
def test_what_shows_a_person_nothing_is_not_asked(arguments: dict[str, Any], path: str) -> None:
    run = asked(call("ask_user", **arguments))
    assert run.bound("c1.0") == ("error", "question_blank")
    rejected = next(event for event, _ in run.log if isinstance(event, e.CallRejected))
    assert (rejected.rung, rejected.path) == ("schema", path)
    assert run.state.counters.invalid_streak == 1


def test_blank_choice_of_an_older_log_can_be_chosen() -> None:
    run = asked(question(choices=["A", "B"]))
    asked_now = run.log[-1][0]
    assert isinstance(asked_now, e.QuestionAsked)
    older = msgspec.structs.replace(asked_now, choices=("A", " "))
    run.log[-1] = (older, run.now)
    run.state = fold(run.log, run.blobs)
    answer(run, " ")
    assert run.bound("c1.0") == ("ok", "")


def test_question_behind_an_effect_is_asked_when_that_is_done() -> None:
    run = asker()
    run.reply(call("refund", order_id="A", amount=1), question())
    run.check("c1.0")
    run.check("c1.1")
    assert run.phase("c1.1") == "checking"
    run.report("c1.0")
    assert run.phase("c1.1") == "waiting_answer"


def test_wait_for_an_answer_is_no_active_time() -> None:
    run = asked()
    run.tick(5 * MINUTE_MS)
    answer(run)
    assert run.state.counters.active_ms == 0


def test_answer_is_progress_even_where_it_is_no_news() -> None:
    run = asker(turns_without_progress=2, equal_results=100, repeats=100)
    for turn in range(1, 6):
        run.reply(question())
        run.check(f"c{turn}.0")
        answer(run, name=question_id("r1", f"c{turn}.0"))
        assert run.state.counters.idle_turns == 0
    assert isinstance(run.orders()[0], RequestModel)


def test_same_question_over_and_over_stops_without_progress() -> None:
    run = asker(equal_results=3)
    for turn in (1, 2):
        run.reply(question())
        run.check(f"c{turn}.0")
        answer(run, name=question_id("r1", f"c{turn}.0"))
    run.reply(question())
    run.check("c3.0")
    assert run.stop() == ("suspended", "incomplete", "no_progress")


def test_question_survives_a_crash_and_is_not_asked_again() -> None:
    run = asked()
    run.crash()
    assert run.phase("c1.0") == "waiting_answer"
    answer(run)
    assert [type(event) for event, _ in run.log].count(e.QuestionAsked) == 1
    assert run.bound("c1.0") == ("ok", "")


def test_completed_by_an_answer_that_the_goal_asks_for() -> None:
    run = asked(goal=Goal.of("ask_user"))
    answer(run)
    run.final()
    assert run.stop() == ("terminated", "completed", "final")


# --- cannot ----------------------------------------------------------------------------------------------------------


def test_question_that_nobody_can_answer_is_an_error_result_and_the_run_goes_on() -> None:
    run = asked()
    answer(run, "", cannot=True, reason="the customer is away")
    assert run.bound("c1.0") == ("error", "cannot_answer")
    assert content(run)["message"] == "nobody can answer this: the customer is away"
    counters = run.state.counters
    assert (counters.failures, counters.denials) == (0, 0)
    run.final()
    assert run.stop() == ("terminated", "completed", "final")


@pytest.mark.parametrize("by", ["goal", "person"])
def test_run_that_needs_the_answer_is_blocked_and_can_be_lifted(by: str) -> None:
    run = asked(goal=Goal.of("ask_user") if by == "goal" else None)
    answer(run, "", cannot=True, stop=by == "person")
    assert run.stop() == ("suspended", "incomplete", "blocked")
    assert run.state.detail == f"ask_user: nobody can answer {WHICH}"
    run.outside(Resume)
    assert isinstance(run.orders()[0], RequestModel)


def test_siblings_of_a_question_that_blocks_the_run_still_run() -> None:
    run = asked(question(), call("get_order", order_id="A"), goal=Goal.of("ask_user"))
    run.check("c1.1")
    answer(run, "", cannot=True)
    assert run.phase("c1.1") == "started"
    run.report("c1.1")
    assert run.bound("c1.1") == ("ok", "")
    assert run.state.reason == "blocked"


# --- lapsed ----------------------------------------------------------------------------------------------------------


def test_question_lapses_with_its_time() -> None:
    run = asked(answer_ms=MINUTE_MS)
    assert run.wake() == run.now + MINUTE_MS
    assert tags(run.tick(MINUTE_MS)) == ["call_rejected", "result_bound", "model_requested"]
    assert run.bound("c1.0") == ("error", "question_expired")
    assert run.state.counters.denials == 0


def test_question_that_the_goal_needs_and_nobody_answers_blocks_the_run() -> None:
    run = asked(goal=Goal.of("ask_user"), answer_ms=MINUTE_MS)
    run.tick(MINUTE_MS)
    assert run.stop() == ("suspended", "incomplete", "blocked")


def test_deadline_ends_the_wait_and_the_run() -> None:
    run = asked()
    run.tick_to_wake()
    assert run.stop() == ("suspended", "incomplete", "deadline")
    assert run.bound("c1.0")[0] == "error"


def test_deadline_that_is_raised_gives_an_open_question_its_time() -> None:
    run = asked(deadline_ms=MINUTE_MS, answer_ms=5 * MINUTE_MS)
    assert [row.expires_at_ms for row in inbox_rows(run.state)] == [run.now + MINUTE_MS]
    run.outside(RaiseLimits, raised={"deadline_ms": DAY_MS})
    assert [row.expires_at_ms for row in inbox_rows(run.state)] == [run.now + 5 * MINUTE_MS]
    assert run.wake() == run.now + 5 * MINUTE_MS
    run.tick(2 * MINUTE_MS)
    assert run.phase("c1.0") == "waiting_answer"
    answer(run)
    assert run.bound("c1.0") == ("ok", "")


def test_answer_at_the_deadline_is_refused_before_the_timer_rings() -> None:
    run = asked(deadline_ms=MINUTE_MS)
    given(run).when(said(), run.now + MINUTE_MS - 1).then(e.QuestionAnswered)
    given(run).when(said(), run.now + MINUTE_MS).then_refused("question_expired")


def test_cancelled_run_asks_nobody_any_more() -> None:
    run = asked()
    run.cancel()
    assert run.bound("c1.0") == ("error", "cancelled")
    assert run.stop() == ("terminated", "cancelled", "by_user")


def test_closed_run_asks_nobody_any_more() -> None:
    run = asked()
    for _ in range(3):
        run.crash()
    assert run.stop() == ("suspended", "failed", "crash_loop")
    run.outside(Close)
    assert run.bound("c1.0") == ("error", "cancelled")
    assert run.state.phase == "terminated"
    given(run).when(said(), run.now).then_refused("question_not_found")


@pytest.mark.parametrize(
    "fields", [{}, {"text": "", "cannot": True}, {"text": "", "cannot": True, "stop": True}]
)
def test_question_of_a_stopped_run_is_open_and_is_answered_once_the_run_is_resumed(
    fields: dict[str, Any],
) -> None:
    run = asked()
    for _ in range(3):
        run.crash()
    given(run).when(said(**fields), run.now).then_refused("run_stopped")
    given(run).when(said(by="run:r1"), run.now).then_refused("not_a_person")
    run.outside(Resume)
    answer(run)
    assert run.bound("c1.0") == ("ok", "")


def test_lifted_run_asks_on() -> None:
    run = asked()
    for _ in range(3):
        run.crash()
    run.outside(Resume)
    assert run.phase("c1.0") == "waiting_answer"
    answer(run)
    assert run.bound("c1.0") == ("ok", "")


# --- refused ---------------------------------------------------------------------------------------------------------


def said(text: str = "A1042", **fields: Any) -> Answer:
    values: dict[str, Any] = {"command_id": "a", "by": "ann", "question_id": WHICH, "text": text, **fields}
    return Answer(**values)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"question_id": "q_0000000000000000"}, "question_not_found"),
        ({"by": "run:r1"}, "not_a_person"),
        ({"text": ""}, "answer_empty"),
        ({"text": " \n"}, "answer_empty"),
        ({"cannot": True}, "answer_and_cannot"),
        ({"stop": True}, "stop_and_answer"),
        ({"text": "x" * ANSWER_BYTES_MAX}, "answer_size"),
    ],
)
def test_answer_that_is_none_changes_nothing(fields: dict[str, Any], code: str) -> None:
    run = asked()
    given(run).when(said(**fields), run.now).then_refused(code)


@pytest.mark.parametrize("text", ["A1044", "a1042", " A1042", ""])
def test_with_choices_only_one_of_them_is_an_answer(text: str) -> None:
    run = asked(question(choices=["A1042", "A1043"]))
    given(run).when(said(text), run.now).then_refused("not_a_choice")


def test_answer_fits_what_the_turns_results_leave() -> None:
    run = asked(result_bytes=1_000)
    given(run).when(said("x" * 900), run.now).then_refused("answer_size")
    answer(run, "x" * 800)
    assert len(content(run)["data"]["answer"]) == 800


def test_first_answer_wins() -> None:
    run = asked(question(), question("and why?"))
    run.check("c1.1")
    answer(run, "first")
    given(run).when(said("second"), run.now).then_refused("question_used")
    given(run).when(said("", cannot=True), run.now).then_refused("question_used")
    assert run.call("c1.0").result == canonical_bytes({"answer": "first"})


def test_answer_after_its_time_is_refused_before_the_timer_rings() -> None:
    run = asked(answer_ms=MINUTE_MS)
    given(run).when(said(), run.now + MINUTE_MS).then_refused("question_expired")


def test_answer_to_a_cancelled_run_is_refused() -> None:
    run = asked()
    run.fold_every_append = False
    run.state.cancel_reason = "by_user"
    given_state = run.decide(said())
    assert (given_state, run.refusal) == ((), "run_cancelled")


def test_requester_may_answer_where_approver_and_requester_differ() -> None:
    run = Run(pins(tools=(*TOOLS, ask_user.definition), separate_approver=True))
    run.reply(question())
    run.check("c1.0")
    answer(run, by=run.state.principal)
    assert run.bound("c1.0") == ("ok", "")
