"""Side attempts of an adapter are model attempts of the run: set aside with each request, settled by its answer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decider.family import Family, family_pins
from tests.random_examples import examples

from boundloop.runtime import events as e
from boundloop.runtime.children import ended_child
from boundloop.runtime.commands import Cancel, RaiseLimits, Resume
from boundloop.runtime.context import input_tokens_bound, model_input
from boundloop.runtime.errors import DeclarationError
from boundloop.runtime.limits import CEILING
from boundloop.runtime.model import SideAttempt, Usage
from boundloop.runtime.orders import AskParent
from boundloop.runtime.pins import encode_pins
from boundloop.runtime.prices import FREE, Price
from boundloop.runtime.reported import SPENT_MAX
from boundloop.runtime.side_attempts import PURPOSE_CHARS_MAX
from boundloop.runtime.side_bounds import SIDE_ATTEMPTS_MAX, SideBounds
from boundloop.runtime.state import METERED

from .shop import limits, pins
from .spec import Run, call

MICRO = Price(input=1_000_000, output=1_000_000)
"""A micro-unit a token."""
SIDE = SideBounds(attempts_max=2, input_tokens_max=50, output_tokens_max=10, price=MICRO)
ONE = SideAttempt("chooser", Usage(7, 3))
READ = call("get_order", order_id="A")


def routed(side: SideBounds | None = SIDE, **fields: Any) -> Run:
    fields.setdefault("price", MICRO)
    return Run(msgspec.structs.replace(pins(**fields), side=side))


def meter(run: Run, name: str) -> tuple[int, int, int]:
    """Spent, reserved, overrun."""
    found = getattr(run.state.meters, name)
    return found.spent, found.reserved, found.overrun


def last(run: Run, kind: type[Any]) -> Any:
    return next(event for event, _ in reversed(run.log) if isinstance(event, kind))


# --- set aside -------------------------------------------------------------------------------------------------------


def test_a_request_sets_aside_what_its_adapter_declares() -> None:
    run = routed()
    bound = input_tokens_bound(run.state)
    requested = last(run, e.ModelRequested)
    assert requested.side == e.SideReserved(2, 100, 20, 120)
    assert (requested.input_tokens_bound, requested.output_tokens_max) == (bound, 100)
    assert requested.cost_bound_micros == bound + 100
    assert meter(run, "model_attempts") == (1, 2, 0)
    assert meter(run, "input_tokens") == (0, bound + 100, 0)
    assert meter(run, "output_tokens") == (0, 120, 0)
    assert meter(run, "total_tokens") == (0, bound + 220, 0)
    assert meter(run, "cost_micros") == (0, bound + 220, 0)


def test_the_adapter_is_told_its_own_output_and_how_many_side_attempts_it_may_make() -> None:
    asked = model_input(routed().state)
    assert (asked.output_tokens_max, asked.side_attempts_max) == (100, 2)
    assert model_input(routed(None).state).side_attempts_max == 0


def test_where_nothing_is_declared_nothing_is_written() -> None:
    plain = pins()
    assert b'"side":' not in encode_pins(plain)
    run = Run(plain)
    run.final()
    assert last(run, e.ModelRequested).side is None
    assert last(run, e.ModelResponded).side is None


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        ({"model_attempts": 2}, "max_turns"),
        ({"input_tokens": 100}, "budget_tokens"),
        ({"output_tokens": 119}, "budget_tokens"),
        ({"total_tokens": 219}, "budget_tokens"),
        ({"cost_micros": 219}, "budget_cost"),
    ],
)
def test_a_request_is_not_sent_without_room_for_its_side_attempts(
    bounds: dict[str, int], reason: str
) -> None:
    run = routed(bounds=limits(**bounds))
    assert run.stop() == ("suspended", "incomplete", reason)
    assert not any(isinstance(event, e.ModelRequested) for event, _ in run.log)


def test_a_stop_for_want_of_attempts_is_lifted_by_room_for_all_of_them() -> None:
    run = routed(bounds=limits(model_attempts=2))
    run.outside(Resume)
    assert run.refusal == "max_turns"
    run.outside(RaiseLimits, raised={"model_attempts": 3})
    run.outside(Resume)
    assert run.state.phase == "model_requested"


def test_an_unknown_price_of_theirs_with_a_cost_limit_is_refused_at_the_start() -> None:
    unpriced = msgspec.structs.replace(SIDE, price=None)
    with pytest.raises(DeclarationError, match="side attempts"):
        routed(unpriced)
    waived = routed(unpriced, bounds=limits(cost_micros=None))
    assert last(waived, e.ModelRequested).side == e.SideReserved(2, 100, 20, 0)


# --- settled ---------------------------------------------------------------------------------------------------------


def test_an_answer_settles_them_by_what_is_reported() -> None:
    run = routed()
    run.final()
    assert meter(run, "model_attempts") == (1, 0, 0)
    run = routed()
    run.reply(READ, usage=Usage(100, 20), side_attempts=(ONE,))
    responded = last(run, e.ModelResponded)
    assert responded.side == e.SideSpent(1, 7, 3, 10, (ONE,))
    assert responded.usage == Usage(100, 20)
    assert (responded.spent_input_tokens, responded.spent_output_tokens) == (107, 23)
    assert responded.spent_cost_micros == 130
    assert meter(run, "model_attempts") == (2, 0, 0)
    assert meter(run, "total_tokens") == (130, 0, 0)
    assert run.state.counters.side_attempts == 1


@pytest.mark.parametrize(
    ("made", "spent"),
    [
        (SideAttempt("m"), (50, 10, 60)),
        (SideAttempt("m", Usage(7, None)), (7, 10, 60)),
        (SideAttempt("m", Usage(-1, 3)), (50, 3, 60)),
        (SideAttempt("m", None, 4), (50, 10, 4)),
        (SideAttempt("m", Usage(7, 3), -4), (7, 3, 10)),
        (SideAttempt("m", Usage(70, 30), 0), (70, 30, 0)),
    ],
)
def test_what_is_unknown_of_one_stays_spent_as_it_was_set_aside(
    made: SideAttempt, spent: tuple[int, int, int]
) -> None:
    run = routed()
    run.reply(READ, side_attempts=(made,))
    side = last(run, e.ModelResponded).side
    assert (side.input_tokens, side.output_tokens, side.cost_micros) == spent


def test_an_answer_without_usage_keeps_its_own_reservation_spent_and_theirs_by_report() -> None:
    run = routed()
    bound = input_tokens_bound(run.state)
    run.reply(READ, usage=None, side_attempts=(ONE,))
    assert meter(run, "input_tokens") == (bound + 7, 0, 0)
    assert meter(run, "output_tokens") == (103, 0, 0)


def test_those_of_a_failed_request_count_too() -> None:
    run = routed()
    run.reply(finish="provider_error", side_attempts=(ONE, ONE))
    failed = last(run, e.ModelFailed)
    assert failed.side == e.SideSpent(2, 14, 6, 20, (ONE, ONE))
    assert meter(run, "model_attempts") == (3, 0, 0)
    run.tick_to_wake()
    assert meter(run, "model_attempts") == (4, 2, 0)


def test_a_failed_request_is_not_sent_again_without_attempts_for_all() -> None:
    run = routed(bounds=limits(model_attempts=5))
    run.reply(finish="provider_error", side_attempts=(ONE, ONE))
    assert run.stop() == ("suspended", "failed", "model_failed")
    given_back = routed(bounds=limits(model_attempts=5))
    given_back.reply(finish="provider_error", side_attempts=(ONE,))
    given_back.tick_to_wake()
    assert given_back.state.phase == "model_requested"


def test_where_nobody_knows_how_many_there_were_all_of_them_stay_spent() -> None:
    run = routed()
    run.reply(finish="transport_broken", usage=None, side_attempts=None)
    assert last(run, e.ModelFailed).side == e.SideSpent(2, 100, 20, 120)
    assert meter(run, "model_attempts") == (3, 0, 0)


def test_a_lost_request_is_spent_with_all_of_its_side_attempts() -> None:
    run = routed()
    bound = input_tokens_bound(run.state)
    run.crash()
    assert last(run, e.ModelFailed).side == e.SideSpent(2, 100, 20, 120)
    assert meter(run, "model_attempts") == (4, 2, 0)  # the lost three, and the next one
    assert run.state.meters.total_tokens.spent == bound + 220


def test_a_request_given_up_by_a_cancel_is_spent_with_all_of_its_side_attempts() -> None:
    run = routed()
    run.outside(Cancel)
    assert run.stop() == ("terminated", "cancelled", "by_user")
    assert meter(run, "model_attempts") == (3, 0, 0)
    assert run.state.reserved_side is None


# --- beyond the declaration ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("side", "declared"), [(SIDE, 2), (None, 0)])
def test_beyond_what_is_declared_nothing_further_is_sent_until_somebody_resumes(
    side: SideBounds | None, declared: int
) -> None:
    run = routed(side)
    run.reply(READ, side_attempts=(ONE, ONE, ONE))
    assert meter(run, "model_attempts") == (4, 0, 0)  # there was room for it
    assert run.state.counters.side_overrun == 3 - declared
    run.check("c1.0")
    run.report("c1.0")
    assert run.stop() == ("suspended", "incomplete", "max_turns")
    assert run.state.detail == f"side_attempts: 3 made, {declared} declared"
    run.outside(Resume)
    assert run.state.phase == "model_requested"
    run.final()
    assert run.state.outcome == "completed"


def test_beyond_what_is_free_it_is_overrun() -> None:
    run = routed(bounds=limits(model_attempts=3))
    run.reply(READ, side_attempts=(ONE,) * 5)
    assert meter(run, "model_attempts") == (6, 0, 3)
    run.check("c1.0")
    run.report("c1.0")
    assert run.stop() == ("suspended", "incomplete", "max_turns")
    run.outside(Resume)
    assert run.refusal == "max_turns"


def test_a_failed_request_beyond_its_declaration_is_not_sent_again() -> None:
    run = routed()
    run.reply(finish="provider_error", side_attempts=(ONE,) * 3)
    assert run.stop() == ("suspended", "incomplete", "max_turns")
    run.outside(Resume)
    assert run.state.phase == "model_requested"
    assert (run.state.turn, run.state.model_attempt) == (1, 2)


def test_an_undeclared_one_of_which_nothing_is_known_costs_as_much_as_its_request() -> None:
    run = routed(None)
    bound = input_tokens_bound(run.state)
    run.reply(READ, side_attempts=(SideAttempt("m"),))
    side = last(run, e.ModelResponded).side
    assert (side.attempts, side.input_tokens, side.output_tokens) == (1, bound, 100)
    assert side.cost_micros == bound + 100


def test_hostile_reports_are_bounded_and_storable() -> None:
    run = routed()
    huge = SideAttempt("m\ud800" * 999, Usage(2**70, 2**70, -5, 2**70), 2**70, "p\ud800" * 999)
    run.reply(READ, side_attempts=(huge,) * 100)
    side = last(run, e.ModelResponded).side
    assert (side.attempts, len(side.made)) == (100, SIDE_ATTEMPTS_MAX)
    assert (side.input_tokens, side.output_tokens, side.cost_micros) == (CEILING, CEILING, SPENT_MAX)
    assert side.made[0].usage == Usage(CEILING, CEILING, 0, CEILING)
    assert len(side.made[0].purpose) <= 6 * PURPOSE_CHARS_MAX  # a surrogate is written out in six characters
    assert run.state.counters.side_overrun == 98


# --- trees -----------------------------------------------------------------------------------------------------------


def family(**bounds: int) -> tuple[Family, Run]:
    tree = Family(msgspec.structs.replace(family_pins(bounds=limits(children=4, **bounds)), side=SIDE))
    tree.root.reply(call("helper", input="go"))
    tree.root.check("c1.0")
    return tree, tree.start(tree.root, "c1.0")


def test_a_childs_side_attempts_are_counted_in_its_parent() -> None:
    tree, child = family()
    assert child.state.pins.side == SIDE
    child.reply(text="done", usage=Usage(10, 5), side_attempts=(ONE, ONE))
    assert tree.settle(tree.root, "c1.0")
    settled = last(tree.root, e.ChildSettled)
    assert settled.spent["model_attempts"] == 3
    assert settled.spent["total_tokens"] == 35
    assert meter(tree.root, "model_attempts") == (1 + 3 + 1, 2, 0)


def test_a_child_asks_its_parent_for_attempts_for_all_of_them() -> None:
    # One is the parent's own first; half of the other five is lent, and a request with its side attempts needs three.
    tree, child = family(model_attempts=6)
    asked = [dict(order.asked) for order in child.orders() if isinstance(order, AskParent)]
    assert asked == [{"model_attempts": 1}]
    assert tree.ask(child)
    assert child.state.phase == "model_requested"
    assert meter(child, "model_attempts")[:2] == (1, 2)


def test_what_a_child_made_beyond_its_lease_is_overrun_in_its_parent_where_nothing_is_free() -> None:
    tree, child = family(model_attempts=6)
    tree.ask(child)
    child.reply(text="done", side_attempts=(ONE,) * 9)
    assert child.state.outcome == "completed"
    spent = ended_child("c1.0", child.state).spent["model_attempts"]
    assert spent == 10
    assert tree.settle(tree.root, "c1.0")
    assert tree.root.state.meters.model_attempts.overrun == 1 + 10 - 6
    assert tree.root.stop() == ("suspended", "incomplete", "max_turns")


# --- the law ---------------------------------------------------------------------------------------------------------

COUNT = st.none() | st.integers(-2, 400)
MADE = st.builds(
    SideAttempt,
    st.text(max_size=4),
    st.none() | st.builds(Usage, COUNT, COUNT),
    COUNT,
)
TURN = st.tuples(
    st.sampled_from(["calls", "provider_error", "crash", "final"]),
    st.none() | st.lists(MADE, max_size=5).map(tuple),
)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.none() | st.integers(1, 3),
    st.integers(1, 14),
    st.lists(TURN, max_size=8),
)
def test_the_law_holds_over_any_side_attempts(declared: int | None, attempts: int, turns: list[Any]) -> None:
    """``Run`` checks conservation at every meter and each replay after every event."""
    side = None if declared is None else msgspec.structs.replace(SIDE, attempts_max=declared)
    run = routed(side, price=FREE, bounds=limits(model_attempts=attempts, total_tokens=9_000))
    made_in_all = 0
    for kind, made in turns:
        if run.state.phase == "model_retry":
            run.tick_to_wake()
        if run.state.phase != "model_requested":
            break
        if kind == "crash":
            run.crash()
            made_in_all += declared or 0
            continue
        made_in_all += (declared or 0) if made is None else len(made)
        if kind == "calls":
            run.reply(READ, side_attempts=made)
            name = f"c{run.state.turn}.0"
            run.check(name)
            if run.phase(name) == "started":
                run.report(name, result={"n": run.state.turn})
        elif kind == "final":
            run.reply(text="done", side_attempts=made)
        else:
            run.reply(finish="provider_error", side_attempts=made)
    requests = sum(1 for event, _ in run.log if isinstance(event, e.ModelRequested))
    assert run.state.counters.side_attempts == made_in_all
    assert run.state.meters.model_attempts.spent == requests + made_in_all
    assert run.state.meters.model_attempts.overrun <= run.state.counters.side_overrun
    for name in METERED:
        assert getattr(run.state.meters, name).free >= 0
