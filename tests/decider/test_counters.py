"""Each counter by itself: what it counts, when, and what not. ``docs/counters.md`` names these tests row by row."""

from __future__ import annotations

from typing import Any

import pytest

from boundloop.runtime import events as e
from boundloop.runtime.commands import Executed, RaiseLimits, Resume
from boundloop.runtime.context import ITEM_OVERHEAD_TOKENS, input_tokens_bound
from boundloop.runtime.goal import Evidence, Goal
from boundloop.runtime.limits import MARGIN_MS
from boundloop.runtime.model import NoteItem, ProposedCall, Usage, UserItem
from boundloop.runtime.prices import FREE, Price

from .family import helped
from .shop import limits, pins
from .spec import Run, call

READ = call("get_order", order_id="A")
OTHER = call("get_order", order_id="B")
REFUND = call("refund", order_id="A", amount=5)
PAY = call("pay", order_id="A", amount=5)
BAD = ProposedCall("get_order", b"{")
DENY = (e.RungVerdict("policy", "deny", "no"),)


def ran(run: Run, *proposals: ProposedCall, result: Any = None) -> None:
    """One turn whose calls are checked and report success where they start."""
    run.reply(*proposals)
    for number in range(len(proposals)):
        name = f"c{run.state.turn}.{number}"
        run.check(name)
        if run.started(name):
            run.report(name, result=result)


def spent(run: Run, name: str) -> tuple[int, int]:
    """(spent, reserved)."""
    meter = getattr(run.state.meters, name)
    return meter.spent, meter.reserved


# --- metered ---------------------------------------------------------------------------------------------------------


def test_turns_count_the_first_request_of_a_turn_and_no_retry() -> None:
    run = Run()
    assert spent(run, "turns") == (1, 0)
    run.reply(finish="transport_broken")
    run.tick_to_wake()
    assert (run.state.model_attempt, spent(run, "turns")) == (2, (1, 0))
    ran(run, READ)
    assert spent(run, "turns") == (2, 0)


def test_model_attempts_count_each_request_with_retries_and_lost_ones() -> None:
    run = Run()
    run.reply(finish="transport_broken")
    run.tick_to_wake()
    run.crash()
    assert (run.state.turn, spent(run, "model_attempts")) == (1, (3, 0))
    ran(run, READ)
    assert spent(run, "model_attempts") == (4, 0)


def test_tool_calls_are_set_aside_at_admission_and_spent_at_the_first_start_alone() -> None:
    run = Run()
    run.reply(REFUND)
    run.ask("c1.0")
    assert spent(run, "tool_calls") == (0, 1)
    run.approve("c1.0")
    run.check("c1.0", resource_version="v1")
    assert spent(run, "tool_calls") == (1, 0)
    run.report("c1.0", "failed", code="busy", retryable=True, no_effect=True)
    run.tick_to_wake()
    run.check("c1.0", resource_version="v1")
    assert (run.started("c1.0"), spent(run, "tool_calls")) == (2, (1, 0))


@pytest.mark.parametrize("case", ["refused", "rejected", "replayed", "no_progress"])
def test_tool_calls_leave_out_what_never_started(case: str) -> None:
    run = Run(pins(bounds=limits(repeats=2)))
    before = 0
    match case:
        case "refused":
            run.reply(BAD)
            run.check("c1.0")
        case "rejected":
            run.reply(REFUND)
            run.ask("c1.0")
            run.reject("c1.0")
        case "replayed":
            ran(run, REFUND)
            run.reply(call("refund", order_id="A", amount=5, reason="again"))
            run.check("c2.0")
            assert run.bound("c2.0") == ("ok", "replayed")
            before = 1
        case _:
            ran(run, READ, result={"n": 1})
            ran(run, READ)
            assert run.bound("c2.0")[1] == "no_progress"
            before = 1
    assert spent(run, "tool_calls") == (before, 0)


def test_call_attempts_count_each_start_with_lost_ones_and_no_query() -> None:
    run = Run()
    run.reply(READ, call("ship", order_id="A"))
    run.check("c1.0")
    run.crash()
    assert (run.started("c1.0"), spent(run, "call_attempts")) == (2, (2, 0))
    run.report("c1.0")
    run.check("c1.1")
    run.report("c1.1", "unknown")
    run.query("c1.1", "unknown")
    run.tick_to_wake()
    run.query("c1.1", "applied")
    assert spent(run, "call_attempts") == (3, 0)


TOKENS = ("input_tokens", "output_tokens", "total_tokens")


@pytest.mark.parametrize("name", TOKENS)
def test_tokens_are_set_aside_by_the_bound_and_settled_by_what_is_reported(name: str) -> None:
    run = Run(pins(price=FREE))
    bound = input_tokens_bound(run.state)
    wanted = {"input_tokens": bound, "output_tokens": 100, "total_tokens": bound + 100}[name]
    assert spent(run, name) == (0, wanted)
    ran(run, READ)  # its request reported 10 and 5
    assert spent(run, name)[0] == {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}[name]


@pytest.mark.parametrize("name", TOKENS)
def test_tokens_that_nobody_reported_stay_spent_as_they_were_set_aside(name: str) -> None:
    run = Run()
    set_aside = spent(run, name)[1]
    run.reply(READ, usage=None)
    assert spent(run, name) == (set_aside, 0)
    lost = Run()
    lost.crash()
    assert spent(lost, name)[0] == set_aside


def test_cost_counts_requests_by_usage_and_each_attempt_of_a_call() -> None:
    run = Run(pins(price=Price(input=1_000_000, output=2_000_000)))
    assert spent(run, "cost_micros") == (0, input_tokens_bound(run.state) + 2 * 100)
    run.reply(call("credit_check", order_id="A"), usage=Usage(10, 5))
    assert spent(run, "cost_micros") == (20, 0)
    run.check("c1.0")
    assert spent(run, "cost_micros") == (20, 40)
    run.report("c1.0", "failed", code="busy", retryable=True)
    assert spent(run, "cost_micros") == (60, 0)
    run.tick_to_wake()
    assert (run.started("c1.0"), spent(run, "cost_micros")) == (2, (60, 40))


def test_cost_leaves_out_calls_that_never_started() -> None:
    run = Run()
    run.reply(call("send_letter", order_id="A"))
    run.ask("c1.0")
    run.reject("c1.0")
    assert spent(run, "cost_micros")[0] == 0


def test_children_count_leases_of_the_whole_tree_below_and_no_refused_call() -> None:
    family = helped(limits(children=3), "go")
    root, child = family.root, family.child(family.root, "c1.0")
    assert spent(root, "children") == (1, 1)
    child.reply(*(call("helper", input=f"deeper {number}") for number in range(3)))
    assert family.ask(child), "one more was left"
    assert not family.ask(child)
    for number in range(3):
        child.check(f"c1.{number}")
    assert child.bound("c1.2") == ("error", "max_children")
    assert spent(child, "children") == (2, 0)
    for number in range(2):
        family.start(child, f"c1.{number}").final()
        family.settle(child, f"c1.{number}")
    child.final()
    family.settle(root, "c1.0")
    assert spent(root, "children") == (3, 0)


# --- limits that are no meters -----------------------------------------------------------------------------------------


def test_requests_for_one_turn_are_counted_anew_in_the_next_and_after_a_resume() -> None:
    run = Run(pins(bounds=limits(model_attempts_per_turn=2)))
    run.reply(finish="transport_broken")
    run.tick_to_wake()
    ran(run, READ)
    for _ in range(2):
        run.reply(finish="transport_broken")
        if run.state.live:
            run.tick_to_wake()
    assert run.stop() == ("suspended", "failed", "model_failed")
    run.outside(Resume)
    run.reply(finish="transport_broken")
    assert run.state.phase == "model_retry"


def test_calls_of_one_turn_beyond_the_bound_are_refused_as_one() -> None:
    run = Run(pins(bounds=limits(calls_per_turn=2)))
    run.reply(*(call("get_order", order_id=f"A{number}") for number in range(5)))
    counters = run.state.counters
    assert (counters.calls_proposed, counters.calls_refused, counters.denials) == (2, 3, 1)
    assert len(run.state.calls) == 2


def test_calls_of_a_named_tool_are_counted_when_admitted_and_given_back_when_refused() -> None:
    run = Run(pins(bounds=limits(tool_calls_each={"refund": 1})))
    run.reply(REFUND)
    run.ask("c1.0")
    assert run.state.calls_each["refund"] == 1
    run.reject("c1.0")
    assert run.state.calls_each["refund"] == 0
    run.reply(REFUND, call("refund", order_id="B", amount=1), READ)
    for number in range(3):
        run.check(f"c2.{number}")
    assert run.bound("c2.1") == ("error", "tool_calls_each")
    run.report("c2.0")
    run.report("c2.2")
    assert (run.state.calls_each["refund"], run.state.calls_each["get_order"]) == (1, 1)
    assert run.state.live, "the other tools go on"


def test_output_of_a_request_is_asked_for_up_to_its_bound() -> None:
    run = Run(pins(bounds=limits(output_tokens_per_request=77)))
    (requested,) = [event for event, _ in run.log if isinstance(event, e.ModelRequested)]
    assert requested.output_tokens_max == 77
    assert run.state.meters.output_tokens.reserved == 77


def test_context_counts_the_input_bound_and_the_output_asked_for() -> None:
    plain = Run()
    needed = input_tokens_bound(plain.state) + 100
    for room, stopped in ((needed, ""), (needed - 1, "context_exhausted")):
        run = Run(pins(bounds=limits(context_tokens=room)))
        assert run.state.reason == stopped


def test_history_counts_encoded_items_and_neither_tools_nor_system_text() -> None:
    run = Run()
    before = run.state.counters.history_bytes
    assert 0 < before < 60
    assert run.state.request_head_bytes > 500
    ran(run, READ, result={"n": "x" * 100})
    assert run.state.counters.history_bytes > before + 100
    stopped = Run(pins(bounds=limits(history_bytes=before)))
    ran(stopped, READ)
    assert stopped.state.reason == "context_exhausted"


def test_bytes_of_a_turns_results_are_counted_when_bound_and_anew_each_turn() -> None:
    run = Run()
    run.reply(READ, OTHER)
    for number in range(2):
        run.check(f"c1.{number}")
    run.report("c1.0", result={"n": 1})
    bound = run.state.calls["c1.0"].content
    assert run.state.turn_result_bytes == len(bound)
    run.report("c1.1", result={"n": 2})
    assert run.state.turn_result_bytes == 0, "the next turn's request is out"


def test_wall_time_runs_through_waits_and_stops() -> None:
    run = Run(pins(bounds=limits(deadline_ms=10_000)))
    run.reply(REFUND)
    run.ask("c1.0")
    run.tick(9_999)
    assert run.state.live
    run.tick(1)
    assert run.stop() == ("suspended", "incomplete", "deadline")
    stopped = Run(pins(bounds=limits(deadline_ms=10_000)))
    stopped.reply(finish="truncated")
    stopped.tick(10_000)
    stopped.outside(Resume)
    assert stopped.refusal == "deadline"


def test_active_time_counts_what_is_out_and_no_wait() -> None:
    run = Run()
    run.now += 7  # a request is out
    run.reply(REFUND)
    assert run.state.counters.active_ms == 7
    run.ask("c1.0")
    run.tick(1_000)  # a person is waited for
    run.approve("c1.0")
    assert run.state.counters.active_ms == 7
    run.check("c1.0", resource_version="v1")
    run.now += 5  # the tool is out
    run.report("c1.0", "failed", code="busy", retryable=True, no_effect=True)
    assert run.state.counters.active_ms == 12
    run.now += 50_000  # nobody has the run
    run.crash()
    assert run.state.counters.active_ms == 12


def test_calls_out_at_once_are_counted_with_children_and_without_those_that_wait() -> None:
    run = Run(pins(bounds=limits(parallel=1)))
    run.reply(READ, OTHER)
    run.check("c1.0")
    run.check("c1.1")
    assert (run.phase("c1.0"), run.phase("c1.1")) == ("started", "checking")
    run.report("c1.0", "failed", code="busy", retryable=True)
    assert run.phase("c1.1") == "started", "a call that waits for its retry isn't out"
    family = helped(limits(parallel=1, children=9), "a", "b")
    assert [family.root.phase(f"c1.{n}") for n in range(2)] == ["waiting_child", "checking"]


def test_time_of_an_approval_counts_to_the_decision_and_to_the_start() -> None:
    undecided = Run(pins(bounds=limits(approval_ms=1_000)))
    undecided.reply(REFUND)
    undecided.ask("c1.0")
    undecided.tick(1_000)
    assert undecided.bound("c1.0")[1] == "approval_expired"
    decided = Run(pins(bounds=limits(approval_ms=1_000)))
    decided.reply(REFUND)
    decided.ask("c1.0")
    decided.tick(999)
    decided.approve("c1.0")
    verdicts = decided.checks("c1.0", resource_version="v1")
    decided.now += 1
    decided.send(verdicts)
    assert decided.bound("c1.0")[1] == "approval_expired"
    assert decided.started("c1.0") == 0


def test_previews_of_one_call_are_counted_each_time_a_person_is_asked() -> None:
    run = Run(pins(bounds=limits(approval_rounds=2)))
    run.reply(REFUND, PAY)
    run.ask("c1.0")
    assert run.state.calls["c1.0"].approval_rounds == 1
    run.approve("c1.0")
    run.check("c1.0", resource_version="v2")
    assert run.state.calls["c1.0"].approval_rounds == 2
    assert run.state.calls["c1.1"].approval_rounds == 0
    run.approve("c1.0")
    run.check("c1.0", resource_version="v3")
    assert run.bound("c1.0")[1] == "approval_stale"


def denials_of(run: Run) -> int:
    return run.state.counters.denials


def test_denials_count_refusals_over_any_tool_and_arguments() -> None:
    run = Run(pins(bounds=limits(denials=3)))
    run.reply(BAD, ProposedCall("no_such", b"{}"), READ)
    for number in range(2):
        run.check(f"c1.{number}")
    run.check("c1.2", verdicts=DENY)
    assert denials_of(run) == 3
    assert run.state.live, "the limit is passed, not met"
    run.reply(REFUND)
    run.ask("c2.0")
    run.reject("c2.0")
    assert denials_of(run) == 4
    assert run.stop() == ("terminated", "failed", "policy_denied")


def test_denials_leave_out_limits_repetition_and_what_the_run_itself_closed() -> None:
    run = Run(pins(bounds=limits(repeats=2, tool_calls_each={"ship": 0})))
    ran(run, READ, result={"n": 1})
    run.reply(READ, call("ship", order_id="A"), REFUND)
    for number in range(2):
        run.check(f"c2.{number}")
    run.cancel()
    assert [run.bound(f"c2.{n}")[1] for n in range(3)] == ["no_progress", "tool_calls_each", "cancelled"]
    assert denials_of(run) == 0
    changed = Run()
    changed.reply(READ)
    changed.check("c1.0", contract_kept=False)
    assert changed.bound("c1.0")[1] == "definition_changed"
    assert denials_of(changed) == 0


def test_failures_count_bound_failures_of_any_tool_and_no_attempt_that_is_tried_again() -> None:
    run = Run()
    run.reply(READ, call("credit_check", order_id="A"))
    for number in range(2):
        run.check(f"c1.{number}")
    run.report("c1.0", "failed", code="busy", retryable=True)
    assert run.state.counters.failures == 0
    run.tick_to_wake()
    run.report("c1.0")
    run.report("c1.1", "failed", code="gone")
    assert run.state.counters.failures == 1


def test_failures_leave_out_refusals_unknown_effects_and_child_runs() -> None:
    run = Run()
    run.reply(BAD, PAY)
    run.check("c1.0")
    run.check("c1.1")
    run.report("c1.1", "unknown")
    run.cancel()
    assert run.bound("c1.1") == ("error", "unknown")
    assert run.state.counters.failures == 0
    family = helped(limits(children=9))
    family.child(family.root, "c1.0").reply(finish="truncated")
    family.settle(family.root, "c1.0")
    assert family.root.bound("c1.0")[0] == "error"
    assert family.root.state.counters.failures == 0


def test_streak_of_unusable_calls_is_broken_by_an_admitted_one_and_not_by_a_denied_one() -> None:
    run = Run(pins(bounds=limits(invalid_streak=9)))
    ran(run, BAD, ProposedCall("no_such", b"{}"), ProposedCall("get_order", b"{}"))
    assert run.state.counters.invalid_streak == 3
    run.reply(READ)
    run.check("c2.0", verdicts=DENY)
    assert run.state.counters.invalid_streak == 3
    ran(run, READ)
    assert run.state.counters.invalid_streak == 0


def test_repeats_count_equal_calls_whatever_comes_back() -> None:
    run = Run(pins(bounds=limits(repeats=3)))
    for number in range(3):
        ran(run, READ, OTHER, result={"n": number})
    assert [run.bound(f"c3.{n}")[1] for n in range(2)] == ["no_progress", "no_progress"]
    assert run.started("c3.0") == 0


def test_equal_results_count_the_same_call_with_the_same_result_in_a_row_or_not() -> None:
    run = Run(pins(bounds=limits(equal_results=3)))
    for number in (1, 2, 1):
        ran(run, READ, result={"n": number})
        assert run.bound(f"c{run.state.turn - 1}.0") == ("ok", "")
    ran(run, READ)
    assert run.bound("c4.0")[1] == "no_progress"


def test_idle_turns_count_turns_with_calls_and_no_news() -> None:
    run = Run(
        pins(
            bounds=limits(equal_results=9, turns_without_progress=9),
            goal=Goal.of(Evidence("get_order", count=9)),
        )
    )
    ran(run, READ, result={"n": 1})
    assert run.state.counters.idle_turns == 0
    ran(run, REFUND, result={"n": 1})
    ran(run, BAD)
    assert run.state.counters.idle_turns == 0, "the first refusal of its kind is news"
    ran(run, BAD)
    assert run.state.counters.idle_turns == 1
    run.reply(finish="paused", continuation=b"x")
    assert run.state.counters.idle_turns == 1, "a turn without calls isn't one"
    ran(run, OTHER, result={"n": 1})
    assert run.state.counters.idle_turns == 0, "a predicate counted one more"


def test_corrective_turns_count_the_notes_of_the_runtime_and_nobody_elses() -> None:
    run = Run(pins(goal=Goal.of("refund"), bounds=limits(corrective_turns=2)))
    run.final()
    run.final()
    assert run.state.counters.corrective_turns == 2
    assert [type(item) for item in run.state.items if isinstance(item, NoteItem | UserItem)] == [
        UserItem,
        NoteItem,
        NoteItem,
    ]
    run.final()
    assert run.state.reason == "evidence_missing"
    run.outside(Resume)
    assert run.state.counters.corrective_turns == 0


def test_depth_counts_the_runs_above() -> None:
    family = helped(limits(depth=1, children=9))
    child = family.child(family.root, "c1.0")
    assert (family.root.state.depth, child.state.depth) == (0, 1)
    child.reply(call("helper", input="deeper"))
    child.check("c1.0")
    assert child.bound("c1.0") == ("error", "max_depth")


def test_token_bound_is_a_token_a_byte_or_a_third_and_some_for_each_item() -> None:
    for how, divisor in (("bytes", 1), ("estimate", 3)):
        state = Run(pins(bounds=limits(token_bound=how))).state
        size = state.counters.history_bytes + state.request_head_bytes
        assert input_tokens_bound(state) == -(-size // divisor) + ITEM_OVERHEAD_TOKENS * len(state.items)


# --- counters beside the limits ----------------------------------------------------------------------------------------


def test_deaths_count_hosts_that_died_and_a_resume_begins_anew() -> None:
    run = Run(pins(bounds=limits(model_attempts_per_turn=9)))
    run.crash("woken")
    run.crash("command")
    assert run.state.counters.host_deaths == 0
    run.crash()
    assert run.state.counters.host_deaths == 1
    run.reply(finish="truncated")
    run.outside(Resume)
    assert run.state.counters.host_deaths == 0


def test_refused_and_proposed_calls_are_counted_one_by_one() -> None:
    run = Run(pins(bounds=limits(calls_per_turn=2)))
    run.reply(BAD, READ, OTHER)
    run.check("c1.0")
    run.check("c1.1")
    assert (run.state.counters.calls_proposed, run.state.counters.calls_refused) == (2, 2)


def test_successes_effects_and_evidence_are_counted_when_bound_and_replays_are_no_effect() -> None:
    goal = Goal.of(Evidence("refund", count=5))
    run = Run(pins(goal=goal))
    ran(run, REFUND)
    run.reply(call("refund", order_id="A", amount=5, reason="again"), READ)
    for number in range(2):
        run.check(f"c2.{number}")
    run.report("c2.1")
    assert run.state.succeeded_tools == {"refund": 2, "get_order": 1}
    assert run.state.effects == {"refund": 1}
    assert run.state.evidence == [2]


def test_effects_below_are_those_of_ended_children_as_of_their_end() -> None:
    family = helped(limits(children=9, turns=40))
    child = family.child(family.root, "c1.0")
    ran(child, REFUND)
    assert family.root.state.effects_below == {}
    child.reply(PAY)
    child.check("c2.0")
    child.report("c2.0", "unknown")
    child.cancel()
    family.settle(family.root, "c1.0")
    assert family.root.state.effects_below == {"refund": 1}
    assert [one.tool for one in family.root.state.unknown_below] == ["pay"]
    assert family.root.state.unknown_more == 0


def test_queries_and_attempts_of_one_call_are_counted_apart() -> None:
    run = Run()
    run.reply(call("ship", order_id="A"))
    run.check("c1.0")
    run.report("c1.0", "unknown")
    for _ in range(2):
        run.query("c1.0", "unknown")
        run.tick_to_wake()
    held = run.state.calls["c1.0"]
    assert (held.attempt, held.queries) == (1, 2)
    run.tick(held.valid_until_ms + MARGIN_MS + 1 - run.now)
    run.query("c1.0", "absent")
    run.check("c1.0")
    held = run.state.calls["c1.0"]
    assert (held.attempt, held.queries) == (2, 3)


def test_raises_of_a_lease_are_counted_and_those_by_a_person_are_not() -> None:
    family = helped(limits(turns=9, children=9))
    child = family.child(family.root, "c1.0")
    child.outside(RaiseLimits, raised={"denials": 50})
    assert child.state.lease_raises == 0
    while child.state.phase == "model_requested":
        ran(child, call("get_order", order_id=f"A{child.state.turn}"), result={"n": child.state.turn})
    assert family.ask(child)
    assert child.state.lease_raises == 1


def test_model_attempts_of_a_turn_go_on_after_a_resume_so_that_no_late_answer_fits() -> None:
    run = Run(pins(bounds=limits(model_attempts_per_turn=1)))
    run.reply(finish="transport_broken")
    run.outside(Resume)
    assert (run.state.turn, run.state.model_attempt, run.state.model_attempts_before) == (1, 2, 1)


def test_a_late_report_of_another_attempt_moves_no_counter() -> None:
    run = Run()
    run.reply(READ)
    run.check("c1.0")
    run.report("c1.0", "failed", code="busy", retryable=True)
    run.tick_to_wake()
    run.send(Executed(call="c1.0", attempt=1, outcome="failed", code="late"))
    assert (run.phase("c1.0"), run.state.counters.failures) == ("started", 0)


def test_calls_of_a_named_tool_that_are_lent_count_as_admitted_until_settled() -> None:
    family = helped(limits(children=9, turns=40, tool_calls_each={"refund": 3}))
    root, child = family.root, family.child(family.root, "c1.0")
    assert root.state.calls_each["refund"] == 3
    ran(child, REFUND)
    child.final()
    family.settle(root, "c1.0")
    assert root.state.calls_each["refund"] == 1
