"""Places of pools and groups: never above a limit, none lost for ever, first come first served, all bounded."""

from __future__ import annotations

from itertools import count, pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from boundloop.actors.places import Grant, Kind, LossCause, Want
from boundloop.actors.pool_places import CONTENDED_MS, CRASH_BACKOFF_MS, FAILING_AFTER
from boundloop.actors.pooled_dispatch import LATE_S
from boundloop.actors.ray_pool_actors import CLEAR_S
from boundloop.actors.slot_reports import Assigned, Doubt, PoolKey, PoolShape
from boundloop.actors.slots import LOST_EXTRA_MS, OVERDUE_DOUBT_MS, Slots
from boundloop.runtime.limits import MARGIN_MS

SYNC: PoolKey = ("default", "sync")
ASYNC: PoolKey = ("default", "async")
QUICK: PoolKey = ("default", "quick")


class Desk:
    """Slots with a clock to move, executors that come up when they are told to, and what was said so far."""

    def __init__(self, *, sync: int = 2, groups: dict[str, int] | None = None, **options: object) -> None:
        shapes = {
            SYNC: PoolShape(least=0, most=sync, places=1, idle_ms=5_000),
            ASYNC: PoolShape(least=0, most=1, places=4, idle_ms=5_000),
            QUICK: PoolShape(least=1, most=1, places=8, idle_ms=5_000),
        }
        self.now = 0
        self.slots = Slots(shapes, groups or {}, **options)  # type: ignore[arg-type]  # each test's own keywords
        self.granted: dict[str, Grant] = {}
        self.refused: dict[str, str] = {}
        self.started: list[str] = []
        self.ended: list[str] = []
        self.doubts: list[Doubt] = []
        self.confirms: bool | None = True
        self._ids = count(1)

    def want(self, *, kind: Kind = "sync", group: str = "", valid_ms: int = 1_000, host: str = "h") -> str:
        want_id = f"w{next(self._ids)}"
        code = self.slots.ask(
            Want(
                want_id=want_id,
                host_id=host,
                tool="t",
                pool="default",
                kind=kind,
                group=group,
                valid_ms=valid_ms,
            ),
            self.now,
        )
        if code is not None:
            self.refused[want_id] = code
        return want_id

    def turn(self, *, up: bool = True) -> Assigned:
        """Do what is due; with ``up`` what was started comes up at once."""
        said = self.slots.assign(self.now)
        self.granted.update({grant.grant_id: grant for grant in said.grants})
        self.refused.update(said.refused)
        self.started += [name for name, _ in said.start]
        self.ended += said.end
        self.doubts += said.doubts
        settles = bool(said.doubts) and self.confirms is not None
        for doubt in said.doubts if settles else ():
            self.slots.settled(doubt, self.now, ended=self.confirms is True)
        for name, _ in said.start if up else ():
            self.slots.executor_up(name, self.now)
        return self.turn(up=up) if settles or (up and said.start) else said

    def back(self, grant_id: str) -> None:
        self.slots.give_back(grant_id, self.now)
        self.turn()

    def lost(self, grant_id: str, why: LossCause = "overdue") -> None:
        self.slots.lost(grant_id, why, self.now)
        self.turn()

    def pass_ms(self, ms: int) -> None:
        self.now += ms
        self.turn()


def test_a_sync_executor_has_one_call_and_the_next_waits_for_it() -> None:
    desk = Desk(sync=1)
    first, second = desk.want(), desk.want()
    desk.turn()
    assert list(desk.granted) == [first]
    desk.back(first)
    assert desk.granted[second].actor == desk.granted[first].actor


def test_a_pool_is_contended_for_a_while_after_somebody_waited_for_it() -> None:
    desk = Desk(sync=1)
    first = desk.want(valid_ms=60_000)
    desk.turn()
    assert not desk.granted[first].contended
    second = desk.want(valid_ms=60_000)
    desk.turn()
    desk.back(first)
    assert desk.granted[second].contended
    desk.back(second)
    desk.pass_ms(CONTENDED_MS)
    third = desk.want()
    desk.turn()
    assert not desk.granted[third].contended


def test_executors_are_started_when_somebody_waits_and_never_more_than_the_most() -> None:
    desk = Desk(sync=3)
    desk.turn()
    assert desk.started == ["default-quick-1"]
    for _ in range(10):
        desk.want()
    desk.turn()
    assert len(desk.granted) == 3
    assert len(desk.started) == 4


def test_waiters_are_served_in_order_of_arrival() -> None:
    desk = Desk(sync=1)
    wants = [desk.want(valid_ms=100_000) for _ in range(5)]
    desk.turn()
    for want in wants:
        assert list(desk.granted)[-1] == want
        desk.back(want)


def test_a_full_group_lets_others_of_the_pool_pass_but_nobody_of_the_group() -> None:
    desk = Desk(sync=3, groups={"bank": 1})
    first, second = desk.want(group="bank"), desk.want(group="bank")
    other = desk.want()
    beside = desk.want(kind="async", group="bank")
    desk.turn()
    assert set(desk.granted) == {first, other}
    desk.back(first)
    assert second in desk.granted
    assert beside not in desk.granted


def test_who_has_room_in_its_group_but_no_executor_is_next_in_both() -> None:
    desk = Desk(sync=1, groups={"bank": 1})
    running = desk.want()
    desk.turn()
    grouped = desk.want(group="bank")
    later = desk.want()
    other_kind = desk.want(kind="async", group="bank")
    desk.turn()
    assert set(desk.granted) == {running}
    desk.back(running)
    assert grouped in desk.granted
    assert {later, other_kind}.isdisjoint(desk.granted)


def test_a_lost_group_place_returns_after_the_validity_and_the_executor_at_once() -> None:
    """R3, R19: an executor that died may have a request at the far side for as long as the call was valid."""
    desk = Desk(groups={"bank": 1})
    first = desk.want(group="bank", valid_ms=5_000)
    desk.turn()
    second = desk.want(group="bank", valid_ms=60_000)
    desk.lost(first, "died")
    other = desk.want()
    desk.turn()
    assert desk.ended == [desk.granted[first].actor]
    assert other in desk.granted
    desk.pass_ms(4_999 + LOST_EXTRA_MS)
    assert second not in desk.granted
    desk.pass_ms(1)
    assert second in desk.granted


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_call_that_is_over_with_its_time_leaves_its_executor_at_once_and_its_group_later(
    kind: Kind,
) -> None:
    desk = Desk(sync=1, groups={"bank": 1})
    first = desk.want(kind=kind, group="bank", valid_ms=5_000)
    desk.turn()
    second = desk.want(kind=kind, group="bank", valid_ms=60_000)
    other = desk.want(kind=kind, valid_ms=60_000)
    desk.pass_ms(5_000)
    desk.lost(first, "late")
    assert not desk.ended
    assert desk.granted[other].actor == desk.granted[first].actor
    desk.back(other)
    desk.pass_ms(LOST_EXTRA_MS - 1)
    assert second not in desk.granted
    desk.pass_ms(1)
    assert second in desk.granted
    assert desk.slots.statistics().lost == 0


def test_a_place_that_is_never_given_back_is_taken_for_lost() -> None:
    desk = Desk(sync=1)
    first = desk.want(valid_ms=1_000)
    desk.turn()
    desk.pass_ms(1_000 + LOST_EXTRA_MS)
    assert desk.ended == [desk.granted[first].actor]
    again = desk.want()
    desk.turn()
    assert again in desk.granted


def test_a_dead_host_waits_for_nothing_and_holds_nothing() -> None:
    desk = Desk(sync=1)
    held, waits = desk.want(host="a", valid_ms=60_000), desk.want(host="a", valid_ms=60_000)
    other = desk.want(host="b", valid_ms=60_000)
    desk.turn()
    desk.slots.host_gone("a", desk.now)
    desk.turn()
    assert held in desk.granted
    assert waits not in desk.granted
    assert other in desk.granted
    assert desk.granted[other].actor != desk.granted[held].actor


@pytest.mark.parametrize("why", ["overdue", "died", "host", "not_given_back"])
def test_a_call_that_its_loop_knows_to_be_over_spares_its_siblings(why: LossCause) -> None:
    desk = Desk()
    calls = [desk.want(kind="async", valid_ms=5_000) for _ in range(4)]
    fifth = desk.want(kind="async", valid_ms=60_000)
    desk.turn()
    desk.confirms = None
    desk.lost(calls[0], why)
    assert fifth not in desk.granted
    (doubt,) = desk.doubts
    assert (doubt.executor, doubt.grant_ids) == (desk.granted[calls[0]].actor, (calls[0],))
    desk.slots.settled(doubt, desk.now, ended=True)
    desk.turn()
    assert not desk.ended
    assert fifth in desk.granted


@pytest.mark.parametrize("why", ["overdue", "died", "host", "not_given_back"])
def test_a_call_that_its_loop_does_not_know_to_be_over_ends_it_with_its_siblings(why: LossCause) -> None:
    """R12: an effect must not happen after the margin, when it may have been proved absent."""
    desk = Desk(groups={"bank": 4})
    calls = [desk.want(kind="async", group="bank", valid_ms=5_000) for _ in range(4)]
    desk.turn()
    desk.confirms = False
    desk.lost(calls[0], why)
    assert desk.ended == [desk.granted[calls[0]].actor]
    statistics = desk.slots.statistics()
    assert (statistics.lost, statistics.groups["bank"].lost) == (4, 4)
    fifth = desk.want(kind="async", valid_ms=60_000)
    desk.turn()
    assert desk.granted[fifth].actor != desk.granted[calls[0]].actor


def test_a_dead_hosts_calls_in_one_executor_are_one_question() -> None:
    desk = Desk()
    calls = [desk.want(kind="async", host="a") for _ in range(3)]
    other = desk.want(kind="async", host="b")
    desk.turn()
    desk.slots.host_gone("a", desk.now)
    desk.turn()
    assert [set(it.grant_ids) for it in desk.doubts] == [set(calls)]
    assert not desk.ended
    assert desk.slots.held(other)
    assert not any(desk.slots.held(call) for call in calls)


def test_an_overdue_call_is_over_before_the_margin() -> None:
    """Its host says it a second after the validity; then an executor has so long to confirm, and to end."""
    end_s = LATE_S + OVERDUE_DOUBT_MS / 1_000 + CLEAR_S + 1.0
    assert end_s < MARGIN_MS / 1_000


def test_a_deaf_read_on_a_loop_spares_its_siblings_and_keeps_its_place_until_its_time_is_over() -> None:
    desk = Desk()
    calls = [desk.want(kind="async", valid_ms=5_000) for _ in range(4)]
    desk.turn()
    desk.lost(calls[0], "deaf")
    assert not desk.ended
    fifth = desk.want(kind="async", valid_ms=60_000)
    desk.turn()
    assert fifth not in desk.granted
    desk.pass_ms(5_000 + LOST_EXTRA_MS)
    assert fifth in desk.granted
    assert desk.granted[calls[0]].actor not in desk.ended


@pytest.mark.parametrize("kind", ["quick", "async"])
@pytest.mark.parametrize(("confirms", "ended"), [(True, 0), (False, 1)])
def test_one_hosts_missing_line_ends_no_executor_that_others_reach(
    kind: Kind, confirms: bool, ended: int
) -> None:
    desk = Desk(groups={"bank": 1})
    others = [desk.want(kind=kind, host="a", valid_ms=60_000) for _ in range(2)]
    mine = desk.want(kind=kind, group="bank", host="b", valid_ms=60_000)
    desk.turn()
    desk.confirms = confirms
    desk.lost(mine, "unreached")
    assert len(desk.ended) == ended
    assert desk.slots.statistics().lost == (2 if ended else 0)
    assert desk.slots.statistics().groups["bank"].lost == 0, "nothing was sent"
    assert all(other in desk.granted for other in others)


def test_a_sync_executor_without_a_line_is_ended_and_its_group_has_its_place_back() -> None:
    desk = Desk(groups={"bank": 1})
    mine = desk.want(group="bank", valid_ms=60_000)
    desk.turn()
    desk.lost(mine, "unreached")
    assert desk.ended == [desk.granted[mine].actor]
    again = desk.want(group="bank")
    desk.turn()
    assert again in desk.granted


def test_a_stuck_quick_executor_is_replaced_and_a_dead_hosts_share_of_one_is_not() -> None:
    desk = Desk()
    first, second = desk.want(kind="quick", host="a"), desk.want(kind="quick", host="b")
    desk.turn()
    desk.slots.host_gone("a", desk.now)
    desk.turn()
    assert not desk.ended
    desk.lost(second)
    assert desk.ended == [desk.granted[first].actor]
    assert len(desk.started) == 2


def test_nobody_waits_past_the_validity() -> None:
    desk = Desk(sync=1)
    desk.want(valid_ms=60_000)
    late = desk.want(valid_ms=1_000)
    desk.turn()
    assert desk.slots.next_ms(desk.now) == 1_000
    desk.pass_ms(1_000)
    assert desk.refused == {late: "expired"}


def test_the_queue_is_bounded_and_its_refusal_typed() -> None:
    desk = Desk(sync=1, queue_max=2)
    wants = [desk.want() for _ in range(3)]
    assert desk.refused == {wants[2]: "overloaded"}


def test_an_unknown_pool_is_refused_at_once() -> None:
    desk = Desk()
    want = Want(want_id="x", host_id="h", tool="t", pool="gpu", kind="sync", valid_ms=1)
    assert desk.slots.ask(want, 0) == "no_pool"


def test_after_an_unclean_restart_a_group_grants_nothing_until_the_old_calls_must_be_over() -> None:
    desk = Desk(groups={"bank": 1}, closed_until_ms={"bank": 30_000})
    first = desk.want(group="bank", valid_ms=60_000)
    desk.turn()
    assert not desk.granted
    assert desk.slots.next_ms(desk.now) == 30_000
    desk.pass_ms(30_000)
    assert first in desk.granted


def test_what_is_out_at_the_end_is_taken_from_the_next_ones_group_until_it_must_be_over() -> None:
    desk = Desk(groups={"bank": 3, "mail": 1})
    first, second = desk.want(group="bank", valid_ms=5_000), desk.want(group="bank", valid_ms=9_000)
    over = desk.want(kind="async", group="bank", valid_ms=90_000)
    desk.turn()
    desk.back(over)
    desk.lost(first, "died")
    holds = desk.slots.holds(desk.now)
    assert holds == {"bank": (2, 9_000 + LOST_EXTRA_MS)}
    assert second in desk.granted

    after = Desk(groups={"bank": 3, "mail": 1})
    for name, (places, until_ms) in holds.items():
        after.slots.hold(name, places, until_ms, after.now)
    wants = [after.want(group="bank", valid_ms=60_000) for _ in range(2)]
    after.turn()
    assert set(after.granted) == {wants[0]}
    assert after.slots.holds(after.now) == {"bank": (3, 60_000 + LOST_EXTRA_MS)}
    after.pass_ms(8_999 + LOST_EXTRA_MS)
    assert wants[1] not in after.granted
    after.pass_ms(1)
    assert wants[1] in after.granted


def test_more_holds_than_a_lower_limit_has_places_close_the_group() -> None:
    desk = Desk(groups={"bank": 1})
    desk.slots.hold("bank", 5, 1_000, desk.now)
    want = desk.want(group="bank", valid_ms=60_000)
    desk.turn()
    assert want not in desk.granted
    desk.pass_ms(1_000)
    assert want in desk.granted


def test_a_group_that_is_closed_is_held_whole() -> None:
    desk = Desk(groups={"bank": 2}, closed_until_ms={"bank": 30_000})
    assert desk.slots.holds(desk.now) == {"bank": (2, 30_000)}
    assert desk.slots.holds(30_000) == {}


def test_executors_that_dont_come_up_are_tried_ever_more_slowly_and_waiters_are_told_why() -> None:
    desk = Desk(sync=1)
    starts: list[int] = []
    refused: list[int] = []
    for _ in range(400):
        want = desk.want(valid_ms=60_000)
        while SYNC in (keys := dict(desk.turn(up=False).start)).values():
            starts.append(desk.now)
            desk.slots.executor_gone(next(name for name, key in keys.items() if key == SYNC), desk.now)
        if desk.refused.get(want) == "executors_failing":
            refused.append(desk.now)
        desk.now += 250
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert all(gap >= CRASH_BACKOFF_MS[2] for gap in gaps[1:])
    assert len(starts) < 12
    assert refused[0] == starts[FAILING_AFTER - 1], "nobody waits for what doesn't come up"


def test_a_start_that_works_ends_the_refusals() -> None:
    desk = Desk(sync=1)
    for _ in range(FAILING_AFTER):
        desk.want(valid_ms=60_000)
        for name, key in desk.turn(up=False).start:
            if key == SYNC:
                desk.slots.executor_gone(name, desk.now)
        desk.now += 60_000
    want = desk.want(valid_ms=60_000)
    desk.turn()
    assert want in desk.granted
    assert desk.slots.statistics().waiting == 0


def test_failing_starts_refuse_nobody_while_another_executor_is_up() -> None:
    desk = Desk(sync=2)
    held = desk.want(valid_ms=600_000)
    desk.turn()
    waits = desk.want(valid_ms=600_000)
    for _ in range(2 * FAILING_AFTER):
        for name, _ in desk.turn(up=False).start:
            desk.slots.executor_gone(name, desk.now)
        desk.now += 40_000
    assert waits not in desk.refused
    desk.back(held)
    assert waits in desk.granted


def test_idle_executors_beyond_the_least_end() -> None:
    desk = Desk(sync=2)
    wants = [desk.want(), desk.want()]
    desk.turn()
    for want in wants:
        desk.back(want)
    assert desk.slots.next_ms(desk.now) is not None
    desk.pass_ms(5_000)
    assert set(desk.ended) == {desk.granted[want].actor for want in wants}
    assert desk.slots.statistics().pools[QUICK].up == 1


def test_timers_of_what_has_ended_do_not_pile_up() -> None:
    desk = Desk()
    for _ in range(20_000):
        want = desk.want(valid_ms=86_400_000)
        desk.turn()
        desk.back(want)
    assert len(desk.slots._timers) < 3_000  # pyright: ignore[reportPrivateUsage]  # what would grow unseen
    assert not desk.slots._leases  # pyright: ignore[reportPrivateUsage]  # the same


LIMIT = 2


LOSSES: list[LossCause] = ["died", "overdue", "deaf", "late"]


class Walk(RuleBasedStateMachine):
    """Any order of what may happen. The model: which calls may be at the group's far side, and until when."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk(sync=3, groups={"bank": LIMIT}, queue_max=20)
        self.valid_until: dict[str, int] = {}
        self.grouped: set[str] = set()
        self.done: set[str] = set()
        self.lost: set[str] = set()

    def _open(self) -> list[str]:
        return [it for it in self.desk.granted if it not in self.done and it not in self.lost]

    @rule(
        group=st.sampled_from(["", "bank"]),
        kind=st.sampled_from(["sync", "async"]),
        valid_ms=st.integers(1, 5_000),
        host=st.sampled_from(["a", "b"]),
    )
    def ask(self, group: str, kind: Kind, valid_ms: int, host: str) -> None:
        want = self.desk.want(group=group, kind=kind, valid_ms=valid_ms, host=host)
        self.valid_until[want] = self.desk.now + valid_ms
        if group:
            self.grouped.add(want)
        self.desk.turn()

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        if calls := self._open():
            call = data.draw(st.sampled_from(calls))
            self.done.add(call)
            self.desk.back(call)

    @rule(data=st.data(), why=st.sampled_from(LOSSES), confirms=st.booleans())
    def lose(self, data: st.DataObject, why: LossCause, confirms: bool) -> None:
        self.desk.confirms = confirms
        if calls := self._open():
            call = data.draw(st.sampled_from(calls))
            self.lost.add(call)
            self.desk.lost(call, why)

    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        if self.desk.started:
            self.desk.slots.executor_gone(data.draw(st.sampled_from(self.desk.started)), self.desk.now)
            self.desk.turn()

    @rule(host=st.sampled_from(["a", "b"]))
    def host_dies(self, host: str) -> None:
        self.desk.slots.host_gone(host, self.desk.now)
        self.desk.turn()

    @rule(ms=st.integers(1, 3_000))
    def wait(self, ms: int) -> None:
        self.desk.pass_ms(ms)

    @invariant()
    def never_above_the_limit_at_the_far_side(self) -> None:
        """A call may be there from its grant until it was given back, or else until its validity is over."""
        there = [
            call
            for call in self.desk.granted
            if call in self.grouped and call not in self.done and self.valid_until[call] > self.desk.now
        ]
        assert len(there) <= LIMIT, there

    @invariant()
    def no_executor_has_more_than_its_places(self) -> None:
        pools = self.desk.slots.statistics().pools
        assert pools[SYNC].leased <= pools[SYNC].up <= 3
        assert pools[ASYNC].leased <= 4

    def teardown(self) -> None:
        """No place is lost for ever: after the longest validity all of them can be had at once."""
        self.desk.pass_ms(5_000 + LOST_EXTRA_MS)
        self.desk.pass_ms(CRASH_BACKOFF_MS[-1])
        wants = [self.desk.want(group="bank", valid_ms=5_000) for _ in range(LIMIT)]
        wants.append(self.desk.want(valid_ms=5_000))
        self.desk.turn()
        assert set(wants) <= set(self.desk.granted)
        for want in wants:
            self.desk.back(want)
        self.desk.pass_ms(5_000 + LOST_EXTRA_MS)
        statistics = self.desk.slots.statistics()
        assert statistics.waiting == 0
        assert statistics.groups["bank"].held == statistics.groups["bank"].lost == 0
        assert all(pool.leased == 0 for pool in statistics.pools.values())


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
