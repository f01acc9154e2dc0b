"""Which calls run side by side, and that no sibling discards another."""

from __future__ import annotations

from boundloop.runtime import events as e
from boundloop.runtime.orders import Execute

from .shop import limits, pins
from .spec import Run, call


def running(run: Run) -> list[str]:
    return [order.call for order in run.orders() if isinstance(order, Execute)]


def test_reads_run_together_up_to_the_bound() -> None:
    run = Run(pins(bounds=limits(parallel=2)))
    run.reply(*(call("get_order", order_id=f"A{n}") for n in range(4)))
    for n in range(4):
        run.check(f"c1.{n}")
    assert running(run) == ["c1.0", "c1.1"]
    run.report("c1.1")
    assert running(run) == ["c1.0", "c1.2"]


def test_effects_run_alone_and_in_call_order() -> None:
    run = Run()
    names = ["c1.0", "c1.1", "c1.2", "c1.3"]
    run.reply(
        call("get_order", order_id="A"),
        call("pay", order_id="A", amount=1),
        call("pay", order_id="B", amount=1),
        call("get_order", order_id="B"),
    )
    for name in reversed(names):
        run.check(name)
    assert running(run) == ["c1.0"]
    for name in names[1:]:
        run.report(names[names.index(name) - 1])
        if run.phase(name) == "checking":  # an effect that had to wait is checked again when its turn comes
            run.check(name)
        assert running(run) == [name]
    run.report("c1.3")
    started = [event.call for event, _ in run.log if isinstance(event, e.CallStarted)]
    assert started == names


def test_read_behind_an_unchecked_effect_waits() -> None:
    run = Run()
    run.reply(call("pay", order_id="A", amount=1), call("get_order", order_id="A"))
    run.check("c1.1")
    assert running(run) == []
    run.check("c1.0")
    run.report("c1.0")
    assert running(run) == ["c1.1"]


def test_refused_effect_lets_the_next_go() -> None:
    run = Run()
    run.reply(call("nobody_knows"), call("pay", order_id="A", amount=1))
    run.check("c1.1")
    run.check("c1.0")
    assert running(run) == []
    run.check("c1.1")
    assert running(run) == ["c1.1"]


def test_verdicts_of_the_same_millisecond_are_no_re_check_for_an_effect_that_waited() -> None:
    run = Run()
    run.reply(call("pay", order_id="A", amount=1), call("pay", order_id="B", amount=1))
    run.check("c1.0")
    run.check("c1.1")
    run.report("c1.0")  # time stands still
    assert running(run) == []
    run.check("c1.1", verdicts=(e.RungVerdict("switch", "deny", "kill_switch_tool"),))
    assert run.bound("c1.1") == ("error", "kill_switch_tool")


def test_failing_sibling_discards_nobody() -> None:
    run = Run()
    run.reply(*(call("get_order", order_id=f"A{n}") for n in range(3)))
    for n in range(3):
        run.check(f"c1.{n}")
    run.report("c1.0", "failed", code="gone")
    run.report("c1.2")
    run.report("c1.1")
    assert [run.bound(f"c1.{n}") for n in range(3)] == [("error", "gone"), ("ok", ""), ("ok", "")]
    assert run.state.phase == "model_requested"


def test_waiting_for_a_person_holds_what_comes_behind() -> None:
    run = Run()
    run.reply(call("refund", order_id="A", amount=1), call("get_order", order_id="A"))
    run.ask("c1.0")
    run.check("c1.1")
    assert running(run) == []
    run.reject("c1.0")
    assert running(run) == ["c1.1"]


def test_retry_of_a_read_does_not_hold_reads() -> None:
    run = Run()
    run.reply(call("get_order", order_id="A"), call("get_order", order_id="B"))
    run.check("c1.0")
    run.report("c1.0", "failed", code="busy", retryable=True)
    run.check("c1.1")
    assert running(run) == ["c1.1"]
    run.tick_to_wake()
    assert running(run) == ["c1.0", "c1.1"]


def test_overdue_read_is_lost_and_tried_within_its_attempts() -> None:
    run = Run()
    run.reply(call("get_order", order_id="A"))
    run.check("c1.0")
    for attempt in (1, 2, 3):
        assert run.started("c1.0") == attempt
        run.tick_to_wake()
    assert run.bound("c1.0") == ("error", "lost")


def test_overdue_effect_is_unknown() -> None:
    run = Run()
    run.reply(call("pay", order_id="A", amount=1))
    run.check("c1.0")
    run.tick_to_wake()
    assert run.stop() == ("suspended", "incomplete", "outcome_unknown")


def test_validity_never_passes_the_deadline() -> None:
    run = Run(pins(bounds=limits(deadline_ms=7_000)))
    run.reply(call("get_order", order_id="A"))
    run.tick(3_000)
    run.check("c1.0")
    assert run.call("c1.0").valid_until_ms == run.state.deadline_at_ms
