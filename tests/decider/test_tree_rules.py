"""Parent and child: the lease before the run, settlement by the child's own log, and an end for both."""

from __future__ import annotations

import msgspec
import pytest

from boundloop.runtime import events as e
from boundloop.runtime.children import child_run_id, child_start, ended_child, unreadable_child
from boundloop.runtime.commands import Cancel, ChildEnded, ChildOpened, Close, Resume
from boundloop.runtime.goal import Goal
from boundloop.runtime.index import run_index, runs_to_wake
from boundloop.runtime.limits import HOST_DEATHS_MAX, MARGIN_MS
from boundloop.runtime.model import FinishKind, ResultItem
from boundloop.runtime.orders import CancelChild, SettleChild, StartChild, shown_phase
from boundloop.runtime.pins import read_pins
from boundloop.runtime.state import METERED, run_name

from .family import CLERK, HELPER, Family, family_pins, helped, reserved
from .shop import limits
from .spec import Run, call, given, tags

REFUND = call("refund", order_id="A", amount=5)


def completed(family: Family, name: str = "c1.0", text: str = "found") -> None:
    """The child answers, and its parent hears of it."""
    child = family.child(family.root, name)
    child.final(text)
    assert family.settle(family.root, name)


def last_result(run: Run) -> bytes:
    """What the model sees of the last call."""
    item = run.state.items[-1]
    assert isinstance(item, ResultItem)
    return item.content


# --- start -----------------------------------------------------------------------------------------------------------


def test_lease_and_intent_are_one_decision_before_the_child_exists() -> None:
    family = Family()
    family.root.reply(call("helper", input="go"))
    found = family.root.check("c1.0")
    assert tags(found) == ["call_validated", "call_started", "child_reserved"]
    lease = reserved(family.root)[0]
    assert lease.child_run == child_run_id("r1", "c1.0")
    assert set(lease.granted) == set(METERED) - {"cost_micros"}
    assert family.root.orders() == [StartChild("c1.0")]


def test_child_has_the_parents_pins_and_no_more_than_its_lease() -> None:
    family = helped(limits(children=9))
    root, child = family.root, family.child(family.root, "c1.0")
    started = child.log[0][0]
    assert isinstance(started, e.RunStarted)
    lease = reserved(root)[0].granted
    assert {name: getattr(child.state.limits, name) for name in lease} == lease
    assert (started.parent_run, started.parent_call, started.depth) == ("r1", "c1.0", 1)
    assert (started.operation_id, started.on_stop, started.input) == ("op1", "end", "go")
    assert (child.state.pins.model, child.state.pins.policy_revision) == ("scripted", "default-1")
    assert child.state.pins.system == "You help."
    assert sorted(child.state.tools) == sorted(HELPER.definition.agents[0].tools)
    assert family.root.orders() == [SettleChild("c1.0")]


def test_child_of_a_run_is_offered_nothing_that_the_parents_pins_do_not_have() -> None:
    few = tuple(tool for tool in family_pins().tools if tool.name in ("helper", "get_order"))
    family = Family(msgspec.structs.replace(family_pins(), tools=few))
    family.root.reply(call("helper", input="go"))
    family.root.check("c1.0")
    assert sorted(family.start(family.root, "c1.0").state.tools) == ["get_order", "helper"]


def test_creating_the_child_twice_says_so_once() -> None:
    family = helped()
    given(family.root).when(ChildOpened(call="c1.0"), family.root.now).then_nothing()
    given(family.root).when(ChildOpened(call="c9.9"), family.root.now).then_nothing()


def test_calls_of_one_turn_start_together_with_equal_shares_of_half() -> None:
    family = helped(limits(turns=17, children=12), "a", "b", "c", "d")
    leases = [event.granted for event in reserved(family.root)]
    assert [lease["turns"] for lease in leases] == [2, 2, 2, 2]  # half of the sixteen that are left
    assert [lease["children"] for lease in leases] == [1, 1, 1, 1]
    assert len({event.deadline_at_ms for event in reserved(family.root)}) == 1


def test_declared_limits_come_first_and_never_above_what_is_free() -> None:
    bounds = limits(turns=4, tool_calls=2)
    family = helped(bounds, "a", tool="clerk")
    lease = reserved(family.root)[0].granted
    assert lease["turns"] == 3
    assert lease["tool_calls"] == 1  # two asked for; the call itself took one of two
    assert family.child(family.root, "c1.0").state.limits.denials == 2
    assert reserved(family.root)[0].deadline_at_ms == family.root.now + 60_000


def test_a_named_tools_calls_are_lent_too() -> None:
    family = helped(limits(tool_calls_each={"refund": 3, "get_order": 1}), "a", "b")
    assert [event.granted["tool_calls_each.refund"] for event in reserved(family.root)] == [2, 1]
    assert [event.granted["tool_calls_each.get_order"] for event in reserved(family.root)] == [1, 0]
    assert family.root.state.calls_each["refund"] == 3
    child = family.child(family.root, "c1.0")
    child.reply(REFUND)
    child.check("c1.0")
    child.report("c1.0")
    completed(family)
    assert family.root.state.calls_each["refund"] == 2


def test_more_children_than_the_limit_are_refused_by_name() -> None:
    family = helped(limits(children=2), "a", "b", "c")
    assert family.root.bound("c1.2") == ("error", "max_children")
    assert len(reserved(family.root)) == 2


def test_deeper_than_the_limit_is_refused_by_name() -> None:
    family = helped(limits(depth=1, children=4))
    child = family.child(family.root, "c1.0")
    child.reply(call("helper", input="deeper"))
    child.check("c1.0")
    assert child.bound("c1.0") == ("error", "max_depth")


def test_a_deadline_never_grows_down_the_tree() -> None:
    family = Family()
    root = family.root
    root.reply(call("helper", input="go"))
    root.check("c1.0")
    deadline = root.state.deadline_at_ms
    event, encoded = child_start(root.state, root.state.calls["c1.0"])
    late = Run(read_pins(event.pins_sha256, encoded), now=root.now + 1_234, started=event)
    assert late.state.deadline_at_ms == deadline


def test_children_count_against_parallel() -> None:
    family = helped(limits(parallel=2, children=9), "a", "b", "c")
    assert [family.root.phase(f"c1.{n}") for n in range(3)] == ["waiting_child", "waiting_child", "checking"]
    completed(family)
    assert family.root.phase("c1.2") == "waiting_child"


def test_an_effect_waits_for_the_child_before_it() -> None:
    family = Family()
    root = family.root
    root.reply(call("helper", input="go"), REFUND)
    root.check("c1.0")
    root.check("c1.1")
    family.start(root, "c1.0")
    assert root.phase("c1.1") == "checking"
    completed(family)
    root.check("c1.1")
    assert root.phase("c1.1") == "started"


def test_a_person_may_be_asked_before_an_agent_starts() -> None:
    family = Family()
    root = family.root
    root.reply(call("asked_for", input="go"), call("asked_for", input="no"))
    root.ask("c1.0")
    root.ask("c1.1")
    root.approve("c1.0")
    assert not reserved(root)
    root.check("c1.0", ask=False, resource_version="v1")
    assert [event.call for event in reserved(root)] == ["c1.0"]
    root.reject("c1.1")
    assert root.bound("c1.1") == ("error", "approval_rejected")


def test_a_cost_limit_that_nobody_can_keep_is_refused() -> None:
    dear = msgspec.structs.replace(
        CLERK.definition,
        agents=(msgspec.structs.replace(CLERK.definition.agents[0], limits={"cost_micros": 5}),),
    )
    tools = tuple(dear if tool.name == "clerk" else tool for tool in family_pins().tools)
    family = Family(msgspec.structs.replace(family_pins(price=None), tools=tools))
    family.root.reply(call("clerk", input="go"))
    family.root.check("c1.0")
    assert family.root.bound("c1.0") == ("error", "price_unknown")


def test_a_cost_limit_of_its_own_is_a_lease_where_the_parents_is_waived() -> None:
    dear = msgspec.structs.replace(
        CLERK.definition,
        agents=(msgspec.structs.replace(CLERK.definition.agents[0], limits={"cost_micros": 5}),),
    )
    tools = tuple(dear if tool.name == "clerk" else tool for tool in family_pins().tools)
    family = Family(msgspec.structs.replace(family_pins(), tools=tools))
    family.root.reply(call("clerk", input="go"))
    family.root.check("c1.0")
    child = family.start(family.root, "c1.0")
    assert child.state.limits.cost_micros == 5
    assert family.root.state.meters.cost_micros.reserved == 5


# --- settle ----------------------------------------------------------------------------------------------------------


def test_settlement_is_what_the_childs_log_says() -> None:
    family = helped()
    child = family.child(family.root, "c1.0")
    child.reply(call("get_order", order_id="A"))
    child.check("c1.0")
    child.report("c1.0")
    child.final("it is shipped")
    found = family.root.send(ended_child("c1.0", child.state))
    assert tags(found)[:3] == ["child_settled", "call_executed", "result_bound"]
    settled = found[0]
    assert isinstance(settled, e.ChildSettled)
    assert settled.spent == {
        name: getattr(child.state.meters, name).spent
        for name in METERED
        if getattr(child.state.meters, name).spent
    }
    assert family.root.state.meters.turns.spent == 4  # two of the child, the parent's first and its next
    assert family.root.bound("c1.0") == ("ok", "")
    data = msgspec.json.decode(last_result(family.root))["data"]
    assert (data["text"], data["outcome"], data["succeeded"]) == (
        "it is shipped",
        "completed",
        {"get_order": 1},
    )


def test_settling_twice_settles_once() -> None:
    family = helped(None, "a", "b")
    child = family.child(family.root, "c1.0")
    child.final()
    family.settle(family.root, "c1.0")
    given(family.root).when(ended_child("c1.0", child.state), family.root.now).then_nothing()


@pytest.mark.parametrize(
    ("finish", "reason"),
    [("truncated", "truncated"), ("refused", "model_refusal"), ("filtered", "content_filtered")],
)
def test_a_failed_child_is_an_error_result_and_fails_nobody(finish: FinishKind, reason: str) -> None:
    family = Family(family_pins(goal=Goal.of("helper")))
    root = family.root
    root.reply(call("helper", input="go"))
    root.check("c1.0")
    child = family.start(root, "c1.0")
    child.reply(finish=finish)
    assert child.state.phase == "terminated"
    family.settle(root, "c1.0")
    assert root.bound("c1.0") == ("error", reason)
    assert root.state.phase == "model_requested"
    assert root.state.counters.failures == 0


def test_a_child_that_cannot_be_read_has_spent_its_lease() -> None:
    family = helped()
    lease = family.root.state.calls["c1.0"].child
    assert lease is not None
    family.root.send(unreadable_child("c1.0", lease, "log_damaged"))
    assert family.root.bound("c1.0") == ("error", "log_damaged")
    assert family.root.state.meters.turns.spent == 2 + lease.granted["turns"]


def test_usage_above_the_lease_draws_on_what_is_free_and_then_is_overrun() -> None:
    family = helped(limits(output_tokens=1_000, output_tokens_per_request=100))
    lease = reserved(family.root)[0].granted["output_tokens"]
    free = family.root.state.meters.output_tokens.free
    over = lease + free + 7
    family.root.send(
        ChildEnded(
            call="c1.0", outcome="completed", reason="final", spent={"output_tokens": over, "turns": 1}
        )
    )
    meter = family.root.state.meters.output_tokens
    assert (meter.overrun, meter.free) == (7, 0)
    assert family.root.stop() == ("suspended", "incomplete", "budget_tokens")


def test_a_long_answer_is_cut_to_the_bound() -> None:
    family = helped()
    completed(family, text='"\\é' * 50_000)
    content = last_result(family.root)
    data = msgspec.json.decode(content)["data"]
    assert data["text_truncated"] is True
    assert 8_000 < len(content) < 17_000


def test_two_children_that_want_the_same_refund_make_one_effect() -> None:
    family = helped(None, "a", "b")
    first, second = (family.child(family.root, f"c1.{n}") for n in range(2))
    for child in (first, second):
        child.reply(REFUND)
        child.check("c1.0")
    assert (first.phase("c1.0"), second.phase("c1.0")) == ("started", "waiting_key")
    first.report("c1.0", result={"refunded": 5})
    second.check("c1.0")
    assert second.bound("c1.0") == ("ok", "replayed")
    assert second.started("c1.0") == 0


# --- waiting and ending ----------------------------------------------------------------------------------------------


def test_a_parent_that_waits_for_children_says_for_whom() -> None:
    family = helped()
    row = run_index(family.root.state)
    assert shown_phase(family.root.state) == "waiting_child"
    assert row.waiting_for == f"child:{child_run_id('r1', 'c1.0')}"


def test_the_last_append_of_a_child_wakes_its_parent() -> None:
    family = helped()
    child = family.child(family.root, "c1.0")
    assert runs_to_wake(child.state) == ()
    child.final()
    assert runs_to_wake(child.state) == ("r1",)
    assert runs_to_wake(family.root.state) == ()


def test_a_child_that_waits_for_a_person_keeps_its_parent_waiting() -> None:
    family = helped()
    child = family.child(family.root, "c1.0")
    child.reply(REFUND)
    child.ask("c1.0")
    assert not family.settle(family.root, "c1.0")
    child.approve("c1.0")
    child.check("c1.0", resource_version="v1")
    child.report("c1.0")
    child.final()
    assert family.settle(family.root, "c1.0")


def test_a_stopped_child_of_an_agent_that_suspends_waits_for_whoever_lifts_it() -> None:
    family = helped(None, "go", tool="patient")
    child = family.child(family.root, "c1.0")
    child.reply(finish="truncated")
    assert child.stop() == ("suspended", "incomplete", "truncated")
    assert runs_to_wake(child.state) == ("r1",)
    assert not family.settle(family.root, "c1.0")
    child.outside(Resume)
    child.final()
    assert family.settle(family.root, "c1.0")


def cancel_root(family: Family) -> None:
    family.root.cancel()


def pass_the_deadline(family: Family) -> None:
    family.root.now = family.root.state.deadline_at_ms
    family.root.settle()


@pytest.mark.parametrize("end", [cancel_root, pass_the_deadline])
def test_a_parent_ends_after_its_children(end: object) -> None:
    family = helped()
    assert callable(end)
    end(family)
    assert family.root.state.phase == "open_calls"
    child = family.child(family.root, "c1.0")
    child.now = family.root.now
    child.settle()
    family.serve()
    assert child.state.phase == "terminated"
    assert family.root.state.outcome in ("cancelled", "incomplete")


def test_cancel_goes_down_to_grandchildren_and_ends_all() -> None:
    family = helped(limits(turns=40, children=9))
    child = family.child(family.root, "c1.0")
    child.reply(call("helper", input="deeper"))
    child.check("c1.0")
    grandchild = family.start(child, "c1.0")
    family.root.cancel()
    assert CancelChild("c1.0") in family.root.orders()
    family.serve()
    assert family.root.stop() == ("terminated", "cancelled", "by_user")
    assert child.stop() == grandchild.stop() == ("terminated", "cancelled", "by_parent")
    assert family.root.bound("c1.0") == child.bound("c1.0") == ("error", "by_parent")


def test_a_childs_cancel_does_not_end_its_parent() -> None:
    family = helped()
    child = family.child(family.root, "c1.0")
    child.cancel()
    family.settle(family.root, "c1.0")
    assert family.root.bound("c1.0") == ("error", "by_user")
    assert family.root.state.phase == "model_requested"


def test_a_child_that_was_only_reserved_is_created_and_cancelled() -> None:
    """Else a host that is late with it would start a run that nobody settles."""
    family = Family()
    root = family.root
    root.reply(call("helper", input="go"))
    root.check("c1.0")
    root.cancel()
    assert root.orders() == [StartChild("c1.0")]
    family.serve()
    assert family.child(root, "c1.0").stop() == ("terminated", "cancelled", "by_parent")
    assert root.stop() == ("terminated", "cancelled", "by_user")


def test_at_a_common_deadline_the_childs_own_timer_names_its_reason() -> None:
    family = helped()
    root, child = family.root, family.child(family.root, "c1.0")
    assert child.state.deadline_at_ms == root.state.deadline_at_ms
    root.now = root.state.deadline_at_ms
    root.settle()
    assert not any(isinstance(order, CancelChild) for order in root.orders())
    child.now = root.now
    child.settle()
    assert child.stop() == ("terminated", "incomplete", "deadline")
    family.settle(root, "c1.0")
    assert root.bound("c1.0") == ("error", "deadline")
    assert root.stop() == ("suspended", "incomplete", "deadline")


def test_an_overdue_child_is_cancelled() -> None:
    family = helped(None, "go", tool="patient")
    root, child = family.root, family.child(family.root, "c1.0")
    child.reply(finish="truncated")
    root.now = root.state.deadline_at_ms + 2 * MARGIN_MS
    root.settle()
    assert not any(isinstance(order, CancelChild) for order in root.orders())
    root.tick(1)
    family.serve()
    assert child.stop() == ("terminated", "cancelled", "by_parent")
    assert root.stop() == ("suspended", "incomplete", "deadline")


def test_taking_a_parent_over_re_attaches_its_child() -> None:
    family = Family()
    root = family.root
    root.reply(call("helper", input="go"))
    root.check("c1.0")
    root.crash()
    assert root.orders() == [StartChild("c1.0")]
    family.start(root, "c1.0")
    root.crash()
    assert root.orders() == [SettleChild("c1.0")]
    completed(family)
    assert root.started("c1.0") == 1


def test_a_stopped_parent_settles_its_child_and_goes_on_when_it_is_lifted() -> None:
    family = helped()
    root = family.root
    for _ in range(HOST_DEATHS_MAX):
        root.crash()
    assert root.stop() == ("suspended", "failed", "crash_loop")
    assert root.orders() == [SettleChild("c1.0")]
    child = family.child(root, "c1.0")
    child.final("late")
    family.settle(root, "c1.0")
    root.outside(Resume)
    assert root.bound("c1.0") == ("ok", "")
    assert root.state.phase == "model_requested"


def test_a_parent_that_stops_before_its_child_exists_starts_it_all_the_same() -> None:
    family = Family()
    root = family.root
    root.reply(call("helper", input="go"))
    root.check("c1.0")
    for _ in range(HOST_DEATHS_MAX):
        root.crash()
    assert root.orders() == [StartChild("c1.0")]
    family.start(root, "c1.0")
    assert root.state.phase == "suspended"


@pytest.mark.parametrize("how", ["close", "cancel"])
def test_closing_a_stopped_parent_cancels_its_child_first(how: str) -> None:
    family = helped()
    root = family.root
    for _ in range(HOST_DEATHS_MAX):
        root.crash()
    if how == "close":
        root.outside(Close)
    else:
        root.cancel()
    assert CancelChild("c1.0") in root.orders()
    family.serve()
    assert family.child(root, "c1.0").stop() == ("terminated", "cancelled", "by_parent")
    assert root.state.phase == "terminated"


def test_a_parent_that_ends_as_it_stops_closes_its_child() -> None:
    family = helped(on_stop="end")
    root = family.root
    for _ in range(HOST_DEATHS_MAX):
        root.crash()
    assert root.state.close_requested
    family.serve()
    assert root.stop() == ("terminated", "failed", "crash_loop")


def test_a_rejected_sibling_that_stops_the_run_cancels_its_children() -> None:
    family = Family()
    root = family.root
    root.reply(call("helper", input="go"), REFUND)
    root.check("c1.0")
    root.ask("c1.1")
    family.start(root, "c1.0")
    root.reject("c1.1", on_reject="stop")
    assert CancelChild("c1.0") in root.orders()
    family.serve()
    assert root.stop() == ("terminated", "failed", "approval_denied")


def test_a_child_can_be_cancelled_by_its_parent_alone_in_a_parents_name() -> None:
    family = helped()
    child = family.child(family.root, "c1.0")
    child.send(Cancel(command_id="x", by=run_name("r1"), reason="by_parent"))
    assert child.stop() == ("terminated", "cancelled", "by_parent")
