"""Reserve, spend, settle: the law at every meter, and no tree of runs above what its root was granted."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.random_examples import examples

from boundloop.runtime.budget import (
    UNLIMITED,
    Meter,
    child_grant,
    child_shares,
    law_holds,
    top_up,
)
from boundloop.runtime.errors import BugError
from boundloop.runtime.model import Usage
from boundloop.runtime.prices import PER_MILLION, Price, PriceTable, cost_bound, cost_of

AMOUNT = st.integers(0, 2**53)
NODES_MAX = 200


def copy(meter: Meter) -> tuple[int, int, int, int]:
    return meter.granted, meter.spent, meter.reserved, meter.overrun


@given(AMOUNT, st.lists(st.tuples(st.sampled_from(["reserve", "settle", "spend", "raise"]), AMOUNT, AMOUNT)))
def test_law_holds_after_every_move_and_a_refused_move_changes_nothing(
    granted: int, moves: list[tuple[str, int, int]]
) -> None:
    meter = Meter(granted)
    for kind, first, second in moves:
        before, free = copy(meter), meter.free
        try:
            match kind:
                case "reserve":
                    meter.reserve(first)
                    assert meter.free == free - first
                case "settle":
                    meter.settle(first, second)
                case "spend":
                    meter.spend(first)
                    assert meter.free == free - first
                case _:
                    meter.raise_to(first)
                    assert meter.free >= free
        except BugError:
            assert copy(meter) == before
        assert law_holds(meter)


@given(AMOUNT, AMOUNT, AMOUNT)
def test_usage_above_its_reservation_draws_on_free_first(granted: int, reserved: int, spent: int) -> None:
    reserved = min(reserved, granted)
    meter = Meter(granted)
    meter.reserve(reserved)
    meter.settle(reserved, spent)
    assert meter.overrun == max(0, spent - granted)
    assert meter.free == max(0, granted - spent)
    assert meter.reserved == 0


@pytest.mark.parametrize("amount", [-1, 11])
def test_what_is_not_free_is_not_taken(amount: int) -> None:
    meter = Meter(10)
    for move in (meter.reserve, meter.spend):
        with pytest.raises(BugError):
            move(amount)
    with pytest.raises(BugError):
        meter.settle(1, 0)
    with pytest.raises(BugError):
        meter.settle(0, -1)
    with pytest.raises(BugError):
        meter.raise_to(9)
    assert copy(meter) == (10, 0, 0, 0)


def test_overrun_that_a_higher_grant_covers_is_none_any_more() -> None:
    meter = Meter(10)
    meter.reserve(10)
    meter.settle(10, 25)
    meter.raise_to(20)
    assert (meter.overrun, meter.free) == (5, 0)
    meter.raise_to(40)
    assert (meter.overrun, meter.free) == (0, 15)


def test_what_one_child_overran_is_covered_by_what_another_gives_back() -> None:
    """Two leases of 50 of 100: one spends 90, the other 10 of its 50. All is spent, and nothing is free beyond it."""
    meter = Meter(100)
    meter.reserve(50)
    meter.reserve(50)
    meter.settle(50, 90)
    assert (meter.overrun, meter.free) == (40, 0)
    meter.settle(50, 10)
    assert (meter.overrun, meter.free) == (0, 0)
    meter.raise_to(130)
    assert (meter.overrun, meter.free) == (0, 30)


@given(AMOUNT, AMOUNT, AMOUNT, AMOUNT)
def test_nothing_is_free_beside_an_overrun(granted: int, lent: int, first: int, second: int) -> None:
    lent = min(lent, granted // 2)
    meter = Meter(granted)
    meter.reserve(lent)
    meter.reserve(lent)
    for spent in (first, second):
        meter.settle(lent, spent)
        assert not (meter.overrun and meter.free)
    assert meter.free == max(0, granted - first - second)


def test_broken_laws_are_seen() -> None:
    assert not law_holds(Meter(10, spent=-1))
    assert not law_holds(Meter(10, spent=5, reserved=6))
    assert not law_holds(Meter(10, overrun=-1))
    assert not law_holds(Meter(10, spent=5, overrun=1))


@given(AMOUNT, st.integers(1, 500))
def test_shares_are_equal_and_leave_half(free: int, children: int) -> None:
    shares = child_shares(free, children)
    assert len(shares) == children
    assert len(set(shares)) == 1
    assert sum(shares) <= free // 2


@pytest.mark.parametrize(("free", "children"), [(10, 0), (-1, 2), (10, -1)])
def test_absurd_shares_are_a_bug(free: int, children: int) -> None:
    with pytest.raises(BugError):
        child_shares(free, children)


@given(AMOUNT, AMOUNT, st.one_of(st.none(), AMOUNT))
def test_grants_and_top_ups_are_never_above_what_is_free(free: int, share: int, asked: int | None) -> None:
    assert 0 <= child_grant(free, share, asked) <= free
    assert 0 <= top_up(free, share) <= free
    assert top_up(free, -1) == 0


@dataclass
class Node:
    """One run of a tree, with the leases that its children hold."""

    meter: Meter
    parent: Node | None = None
    children: list[Node] = field(default_factory=list["Node"])
    ended: bool = False


def start_children(parent: Node, asked: list[int | None]) -> list[Node]:
    """All of one tick: those without a limit of their own share half of the remainder."""
    sharing = sum(1 for want in asked if want is None)
    shares = child_shares(parent.meter.free, sharing) if sharing else ()
    share = shares[0] if shares else 0
    made: list[Node] = []
    for want in asked:
        grant = child_grant(parent.meter.free, share, want)
        parent.meter.reserve(grant)
        node = Node(Meter(grant), parent)
        parent.children.append(node)
        made.append(node)
    return made


def ask_for_more(node: Node, amount: int) -> int:
    """A top-up is recorded at the parent before the child has it."""
    parent = node.parent
    if parent is None:
        return 0
    got = top_up(parent.meter.free, amount)
    parent.meter.reserve(got)
    node.meter.raise_to(node.meter.granted + got)
    return got


def end(node: Node) -> None:
    """Children first; then the lease is closed from the run's own meter."""
    for child in node.children:
        if not child.ended:
            end(child)
    node.ended = True
    if node.parent is not None:
        node.parent.meter.settle(node.meter.granted, node.meter.spent)


def spent_in_tree(node: Node) -> int:
    """What this run's own turns used, and those of all below it that haven't been settled into it."""
    return node.meter.spent + sum(spent_in_tree(child) for child in node.children if not child.ended)


def granted_in_tree(node: Node) -> int:
    return (
        node.meter.spent
        + node.meter.free
        + sum(granted_in_tree(child) for child in node.children if not child.ended)
    )


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_no_tree_passes_its_root(data: st.DataObject) -> None:
    """Children, grandchildren, top-ups and ends in any order: what is asked for never passes the root's grant."""
    granted = data.draw(st.integers(0, 10**6))
    root = Node(Meter(granted))
    live = [root]
    made = 1
    for _ in range(data.draw(st.integers(0, 60))):
        node = data.draw(st.sampled_from(live))
        match data.draw(st.integers(0, 3)):
            case 0 if made < NODES_MAX:
                asked = data.draw(
                    st.lists(
                        st.one_of(st.none(), st.integers(0, 10**6)),
                        min_size=1,
                        max_size=min(9, NODES_MAX - made),
                    )
                )
                live += start_children(node, asked)
                made += len(asked)
            case 1:
                node.meter.spend(data.draw(st.integers(0, node.meter.free)))
            case 2:
                ask_for_more(node, data.draw(st.integers(0, 10**6)))
            case _ if node is not root:
                end(node)
                live = [other for other in live if not other.ended]
            case _:
                pass
        assert root.meter.granted == granted
        assert spent_in_tree(root) <= granted
        assert granted_in_tree(root) == granted
        assert all(law_holds(other.meter) for other in live)
    end(root)
    assert root.meter.spent <= granted
    assert root.meter.reserved == 0
    assert root.meter.overrun == 0


def test_overrun_of_a_child_draws_on_its_parent_first() -> None:
    parent = Node(Meter(100))
    (child,) = start_children(parent, [40])
    child.meter.reserve(40)
    child.meter.settle(40, 55)
    assert child.meter.overrun == 15
    end(child)
    assert (parent.meter.spent, parent.meter.free, parent.meter.overrun) == (55, 45, 0)
    (other,) = start_children(parent, [45])
    other.meter.reserve(45)
    other.meter.settle(45, 50)
    end(other)
    assert (parent.meter.free, parent.meter.overrun) == (0, 5)


# --- prices --------------------------------------------------------------------------------------------------------


def test_unknown_price_is_not_free() -> None:
    table = PriceTable(revision="1", entries={"a": Price(input=1, output=2)})
    assert table.price("a") == Price(input=1, output=2)
    assert table.price("a-mini") is None
    assert table.price("A") is None


@given(
    st.integers(0, 10**9),
    st.integers(0, 10**9),
    st.one_of(st.none(), st.integers(0, 10**9)),
    st.integers(0, 10**7),
    st.integers(0, 10**7),
    st.integers(0, 10**8),
)
def test_bound_is_never_below_the_cost(
    price_in: int, price_out: int, price_cached: int | None, tokens_in: int, tokens_out: int, cached: int
) -> None:
    price = Price(input=price_in, output=price_out, cached_input=price_cached)
    cost = cost_of(price, Usage(tokens_in, tokens_out, cached))
    assert cost is not None
    assert 0 <= cost <= cost_bound(price, tokens_in, tokens_out)


def test_cost_rounds_up_and_unknown_usage_has_none() -> None:
    price = Price(input=1, output=1)
    assert cost_of(price, Usage(1, 0)) == 1
    assert cost_of(price, Usage(PER_MILLION, 0)) == 1
    assert cost_of(price, Usage(PER_MILLION, 1)) == 2
    assert cost_of(price, Usage(None, 1)) is None
    assert cost_of(price, Usage(1, None)) is None


def test_unlimited_is_only_the_waived_cost() -> None:
    meter = Meter(UNLIMITED)
    meter.spend(2**53)
    assert law_holds(meter)
