"""Dispatches to executors elsewhere, over lines that a test answers: what is reported, and what becomes of the place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from tests.stepped_loop import SteppedLoop

from boundloop.actors.context import ToolContext
from boundloop.actors.dispatch_wire import Stop, WireCall, decode_calls, encode_reply
from boundloop.actors.execution import Report, succeeded
from boundloop.actors.executors import GRACE_MS, QUICK_LATE_MS, Dispatch
from boundloop.actors.leases import KEPT_IDLE_S
from boundloop.actors.lines import ExecutorDied, LineDown, NoAnswer
from boundloop.actors.places import Grant, Kind, LossCause, Refused, Want
from boundloop.actors.pooled_dispatch import LATE_S, PooledExecutors
from boundloop.actors.quick_batch import BATCH_S, GRACE_S
from boundloop.actors.quick_lane import (
    BEGIN_S,
    CROSSING_S,
    HARVEST_S,
    LEASE_LEFT_LEAST_S,
    PATIENCE_S,
    WAIT_S,
)
from boundloop.runtime.commands import Executed
from boundloop.runtime.limits import MARGIN_MS
from boundloop.runtime.tool_spec import QUICK_TIMEOUT_MS_MAX, ToolSpec, tool
from boundloop.runtime.toolbox import Toolbox


@tool(risk="write", key="call", timeout_ms=10_000)
def pay(cents: int) -> int:
    """An effect."""
    return cents


@tool(risk="read", timeout_ms=10_000)
def look(cents: int) -> int:
    """A read."""
    return cents


@tool(risk="read", quick=True)
def rate(cents: int) -> int:
    """A short read."""
    return cents


@tool(risk="write", key="call", timeout_ms=10_000, group="bank")
def pay_limited(cents: int) -> int:
    """An effect of a limited group."""
    return cents


@tool(risk="read", inline=True)
async def glance(cents: int) -> int:
    """In the host itself."""
    return cents


@tool(risk="write", key="call", timeout_ms=10_000)
async def pay_async(cents: int) -> int:
    """An effect on a loop with others."""
    return cents


@tool(risk="read", timeout_ms=10_000)
async def look_async(cents: int) -> int:
    """A read there."""
    return cents


@tool(risk="read", timeout_ms=10_000, group="bank")
async def look_limited(cents: int) -> int:
    """A read of a limited group there."""
    return cents


TOOLS = Toolbox([pay, look, rate, pay_limited, glance, pay_async, look_async, look_limited])


class Line:
    """What was sent on it, to be answered by the test."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sent: list[tuple[tuple[WireCall, ...], asyncio.Future[object]]] = []
        self.stops: list[Stop] = []
        self.down = False
        self.gone = False
        self.partial: asyncio.Future[object] | None = None

    def send(self, calls: bytes) -> asyncio.Future[object]:
        if self.down:
            raise LineDown(self.name)
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.sent.append((decode_calls(calls), answer))
        return answer

    def stop(self, stop: Stop) -> None:
        self.stops.append(stop)

    async def harvest(self, first: Stop) -> object:
        self.stops.append(first)
        if self.partial is None or self.partial.cancelled():
            self.partial = asyncio.get_running_loop().create_future()
        return await self.partial

    def answer(self, place: int = -1, value: object = None) -> None:
        """The call succeeded, or came back as given."""
        calls, answer = self.sent[place]
        if isinstance(value, Exception):
            answer.set_exception(value)
        elif value is not None:
            answer.set_result(value)
        else:
            answer.set_result(encode_reply([done(call) for call in calls]))


def done(call: WireCall) -> Report:
    return succeeded(TOOLS[call.tool], call.call, call.attempt, 5, view_bytes_max=1_000, duration_ms=1)


class World:
    """Places (two sync executors, one quick), lines to them, and the executors under test."""

    def __init__(self, loop: SteppedLoop, *, groups: dict[str, int] | None = None) -> None:
        self.loop = loop
        self.lines = {name: Line(name) for name in ("sync-1", "sync-2", "quick-1", "async-1")}
        self.free = {"sync": ["sync-1", "sync-2"], "quick": ["quick-1"] * 8, "async": ["async-1"] * 8}
        self.held: dict[str, tuple[Kind, str]] = {}
        self.freed = asyncio.Event()
        self.wants: list[Want] = []
        self.losses: list[LossCause] = []
        self.refusal: Refused | None = None
        self.contended = False
        self.unknown: set[str] = set()
        self.connects = True
        self.executors = PooledExecutors(self, self, holder="h", groups=groups or {}, dependencies={})
        self.reports: dict[str, list[Executed]] = {}
        self._number = 0

    # Places

    async def lease(self, want: Want) -> Grant | Refused:
        self.wants.append(want)
        if self.refusal is not None:
            return self.refusal
        while not self.free[want.kind]:
            self.freed.clear()
            await self.freed.wait()
        actor = self.free[want.kind].pop(0)
        self.held[want.want_id] = (want.kind, actor)
        return Grant(grant_id=want.want_id, actor=actor, contended=self.contended)

    async def give_back(self, grant_id: str) -> None:
        if grant_id in self.held:
            kind, actor = self.held.pop(grant_id)
            self.free[kind].append(actor)
            self.freed.set()

    async def lost(self, grant_id: str, why: LossCause) -> None:
        del self.held[grant_id]
        self.losses.append(why)

    # Lines

    def known(self, name: str) -> Line | None:
        return None if name in self.unknown else self.lines[name]

    async def line(self, name: str, kind: Kind) -> Line:
        if not self.connects:
            await asyncio.Event().wait()
        raise LineDown(name)

    def forget(self, name: str) -> None:
        self.unknown.add(name)

    # The host

    def start(self, spec: ToolSpec, *, valid_ms: int | None = None) -> Callable[[], None] | None:
        self._number += 1
        call = f"c{self._number}"
        valid_ms = spec.definition.timeout_ms if valid_ms is None else valid_ms
        self.reports[call] = []
        return self.executors.start(
            Dispatch(
                spec=spec,
                context=ToolContext(
                    run_id="r",
                    call_id=call,
                    attempt=1,
                    operation_id="o",
                    tenant="t",
                    principal="p",
                    key="",
                    valid_ms=valid_ms,
                    dependencies={},
                ),
                arguments={"cents": 5},
                epoch=1,
                valid_ms=valid_ms,
                view_bytes_max=1_000,
                deliver=lambda report: self.reports[call].append(report.executed),
            )
        )

    def said(self, call: str = "c1") -> list[tuple[str, str, bool]]:
        return [(it.outcome, it.code, it.no_effect) for it in self.reports[call]]


def in_world(
    scene: Callable[[World, SteppedLoop], Coroutine[Any, Any, None]], groups: dict[str, int] | None = None
) -> None:
    loop = SteppedLoop()

    async def play() -> None:
        world = World(loop, groups=groups)
        await scene(world, loop)
        closing = loop.create_task(world.executors.close())
        await loop.advance(3 * GRACE_MS)
        assert closing.done()
        assert not world.held, "a place was neither given back nor lost"

    try:
        loop.run_until_complete(play())
    finally:
        loop.close()


PAY, LOOK, RATE, LIMITED, GLANCE = (TOOLS[name] for name in ("pay", "look", "rate", "pay_limited", "glance"))


def test_an_effect_travels_alone_and_its_place_is_kept_for_the_next_call() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        world.start(PAY)
        await loop.settle()
        world.lines["sync-1"].answer()
        await loop.settle()
        assert world.said() == [("succeeded", "", False)]
        world.start(PAY)
        assert len(world.lines["sync-1"].sent) == 2, "with a place at hand it leaves at once"
        world.lines["sync-1"].answer()
        await loop.advance(int(KEPT_IDLE_S * 1_000))
        assert len(world.wants) == 1
        assert not world.held

    in_world(play)


def test_a_contended_place_is_given_back_after_each_call() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        world.contended = True
        world.start(PAY)
        await loop.settle()
        world.lines["sync-1"].answer()
        await loop.settle()
        assert not world.held

    in_world(play)


def test_a_place_is_not_kept_while_calls_of_this_host_wait_for_one() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        for _ in range(3):
            world.start(PAY)
        await loop.settle()
        world.lines["sync-1"].answer()
        await loop.advance(2)
        assert len(world.lines["sync-1"].sent) == 2
        world.lines["sync-1"].answer()
        world.lines["sync-2"].answer()

    in_world(play)


def test_a_kept_place_is_not_used_past_its_validity() -> None:
    """The broker must know by when a call is over."""

    async def play(world: World, loop: SteppedLoop) -> None:
        world.start(PAY, valid_ms=100)
        await loop.settle()
        world.lines["sync-1"].answer()
        await loop.settle()
        world.start(PAY, valid_ms=10_000)
        await loop.settle()
        assert [want.valid_ms > 10_000 for want in world.wants] == [False, True]
        world.lines["sync-2"].answer()

    in_world(play)


def test_a_limited_group_has_a_place_for_each_call_and_for_no_longer_than_the_call() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        for _ in range(2):
            world.start(LIMITED)
            await loop.settle()
            world.lines[next(iter(world.held.values()))[1]].answer()
            await loop.settle()
            assert not world.held
        assert [(want.group, want.valid_ms) for want in world.wants] == [("bank", 10_000)] * 2

    in_world(play, {"bank": 1})


ENDED = {"outcome": "failed", "code": "x", "no_effect": True}
UNCLEAR = [
    {"outcome": "unknown", "code": "cancelled"},
    {"outcome": "unknown", "code": "timeout"},
    {"outcome": "unknown", "code": "tool_error"},
    {"outcome": "failed", "code": "cancelled"},
    {"outcome": "failed", "code": "timeout"},
]


@pytest.mark.parametrize(
    ("said", "losses"),
    [
        *((said, ["late"]) for said in UNCLEAR),
        ({"outcome": "succeeded"}, []),
        ({"outcome": "failed", "code": "tool_error"}, []),
        (ENDED, []),
    ],
)
def test_a_call_of_a_limited_group_that_nobody_knows_to_be_over_keeps_its_place(
    said: dict[str, Any], losses: list[LossCause]
) -> None:
    """Its request may still be at work at the far side, whoever stopped waiting for it."""

    async def play(world: World, loop: SteppedLoop) -> None:
        world.start(LIMITED)
        await loop.settle()
        world.lines["sync-1"].answer(
            value=encode_reply([Report(Executed(call="c1", attempt=1, retryable=True, **said))])
        )
        await loop.settle()
        assert [it.outcome for it in world.reports["c1"]] == [said["outcome"]]
        assert world.losses == losses

    in_world(play, {"bank": 1})


@pytest.mark.parametrize("said", UNCLEAR)
def test_a_call_of_no_limited_group_gives_its_place_back_whatever_it_says(said: dict[str, Any]) -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        world.start(PAY)
        await loop.settle()
        world.lines["sync-1"].answer(value=encode_reply([Report(Executed(call="c1", attempt=1, **said))]))
        await loop.settle()
        assert world.losses == []

    in_world(play)


@pytest.mark.parametrize("code", ["expired", "overloaded", "executors_failing", "no_broker"])
def test_no_place_is_proof_that_nothing_ran(code: Any) -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        world.refusal = Refused(code=code)
        world.start(PAY)
        await loop.settle()
        assert world.said() == [("failed", code, True)]

    in_world(play)


def test_an_executor_that_cannot_be_reached_is_proof_too_and_is_given_up() -> None:
    """R5: so is one that isn't what it should be."""

    async def play(world: World, loop: SteppedLoop) -> None:
        world.unknown.add("sync-1")
        world.start(PAY)
        world.lines["sync-2"].down = True
        world.start(PAY)
        await loop.settle()
        assert world.said("c1") == world.said("c2") == [("failed", "no_executor", True)]
        assert world.losses == ["unreached", "unreached"]

    in_world(play)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ExecutorDied("x"), "died"),
        (NoAnswer("x"), "overdue"),
        (b"", "overdue"),
        (b"\xc1", "overdue"),
        ("text", "overdue"),
        (encode_reply([]), "overdue"),
        (encode_reply([Report(Executed(call="other", attempt=1, outcome="succeeded"))]), "overdue"),
        (encode_reply([Report(Executed(call="c1", attempt=2, outcome="succeeded"))]), "overdue"),
    ],
)
@pytest.mark.parametrize(("spec", "outcome"), [(PAY, "unknown"), (LOOK, "failed")])
def test_whatever_comes_instead_of_an_answer_leaves_an_effect_unknown(
    spec: ToolSpec, outcome: str, answer: object, why: LossCause
) -> None:
    """R3, R4: an error after the dispatch says nothing about what happened."""

    async def play(world: World, loop: SteppedLoop) -> None:
        world.start(spec)
        await loop.settle()
        world.lines["sync-1"].answer(value=answer)
        await loop.settle()
        assert world.said() == [(outcome, "lost", False)]
        assert world.losses == [why]

    in_world(play)


def test_a_call_that_answers_after_its_validity_is_reported_late_and_keeps_its_executor() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        world.start(PAY)
        await loop.advance(10_000)
        assert world.said() == [("unknown", "timeout", False)]
        assert [stop.call for stop in world.lines["sync-1"].stops] == ["c1"]
        world.lines["sync-1"].answer()
        await loop.settle()
        assert world.said()[1:] == [("succeeded", "", False)]
        assert world.losses == []

    in_world(play)


def test_a_call_that_does_not_end_loses_its_executor() -> None:
    """R16: every wait has its end."""

    async def play(world: World, loop: SteppedLoop) -> None:
        world.start(LOOK)
        await loop.advance(10_000 + int(LATE_S * 1_000))
        assert world.said() == [("failed", "timeout", False)]
        assert world.losses == ["overdue"]

    in_world(play)


def test_a_cancelled_call_is_asked_and_its_answer_counts() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        cancel = world.start(PAY)
        await loop.settle()
        assert cancel is not None
        cancel()
        await loop.settle()
        assert [stop.call for stop in world.lines["sync-1"].stops] == ["c1"]
        world.lines["sync-1"].answer()
        await loop.settle()
        assert world.said() == [("succeeded", "", False)]

    in_world(play)


def test_a_cancelled_call_that_spins_loses_its_executor_at_the_grace_bound() -> None:
    """R11: a sync tool can't be interrupted."""

    async def play(world: World, loop: SteppedLoop) -> None:
        cancel = world.start(PAY, valid_ms=60_000)
        await loop.settle()
        assert cancel is not None
        cancel()
        await loop.advance(GRACE_MS - 1)
        assert world.said() == []
        await loop.advance(1)
        assert world.said() == [("unknown", "cancelled", False)]
        assert world.losses == ["overdue"]

    in_world(play)


def test_a_call_that_is_cancelled_while_it_waits_for_a_place_never_ran() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        world.free["sync"].clear()
        cancel = world.start(PAY)
        await loop.settle()
        assert cancel is not None
        cancel()
        await loop.settle()
        assert world.said() == [("failed", "cancelled", True)]
        early = world.start(PAY)
        assert early is not None
        early()
        await loop.settle()
        assert world.said("c2") == [("failed", "cancelled", True)]

    in_world(play)


def test_a_call_cancelled_in_the_moment_it_left_is_unknown() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        world.start(PAY)
        await loop.settle()
        world.lines["sync-1"].answer()
        await loop.settle()
        cancel = world.start(PAY)
        assert cancel is not None
        cancel()
        await loop.settle()
        assert world.said("c2") == [("unknown", "cancelled", False)]
        assert world.losses == ["overdue"]

    in_world(play)


@pytest.mark.parametrize(
    ("name", "why"), [("pay_async", "overdue"), ("look_limited", "overdue"), ("look_async", "deaf")]
)
def test_on_a_loop_with_others_only_what_may_do_harm_is_overdue(name: str, why: LossCause) -> None:
    """R12: an effect must not happen when it may have been proved absent; a read may go on."""

    async def play(world: World, loop: SteppedLoop) -> None:
        world.start(TOOLS[name])
        await loop.advance(10_000 + int(LATE_S * 1_000))
        assert world.said()[0][1] == "timeout"
        assert world.losses == [why]

    in_world(play, {"bank": 1})


def test_a_cancelled_call_on_a_loop_with_others_is_told_to_be_overdue_with_its_time() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        cancel = world.start(TOOLS["pay_async"], valid_ms=60_000)
        await loop.settle()
        assert cancel is not None
        cancel()
        await loop.advance(GRACE_MS)
        assert world.said() == [("unknown", "cancelled", False)]
        assert world.losses == []
        await loop.advance(50_000 + int(LATE_S * 1_000))
        assert world.losses == ["overdue"]

    in_world(play)


@pytest.mark.parametrize(("name", "after_ms"), [("pay", 0), ("pay_async", 9_000)])
def test_what_a_reported_call_has_left_behind_is_overdue_when_its_time_is_over(
    name: str, after_ms: int
) -> None:
    """Threads can't be stopped. A sync executor is of no use to others meanwhile."""

    async def play(world: World, loop: SteppedLoop) -> None:
        cancel = world.start(TOOLS[name])
        await loop.settle()
        assert cancel is not None
        await loop.advance(1_000)
        cancel()
        await loop.settle()
        (line,) = [it for it in world.lines.values() if it.sent]
        report = Report(Executed(call="c1", attempt=1, outcome="unknown", code="cancelled"))
        line.answer(value=encode_reply([report], stuck=True))
        await loop.settle()
        assert world.said() == [("unknown", "cancelled", False)]
        await loop.advance(after_ms - 1)
        assert not after_ms or world.losses == []
        await loop.advance(1)
        assert world.losses == ["overdue"]

    in_world(play)


def test_a_kept_place_whose_executor_has_ended_is_not_used() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        world.start(PAY)
        await loop.settle()
        world.lines["sync-1"].answer()
        await loop.settle()
        world.lines["sync-1"].gone = True
        world.start(PAY)
        await loop.settle()
        assert world.losses == ["died"]
        world.lines["sync-2"].answer()
        await loop.settle()
        assert world.said("c2") == [("succeeded", "", False)]

    in_world(play)


def test_inline_tools_never_leave_the_host() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        world.start(GLANCE)
        assert world.said() == [("succeeded", "", False)]
        assert not world.wants

    in_world(play)


# --- short reads ---------------------------------------------------------------------------------------------------------


def batches(line: Line) -> Sequence[int]:
    return [len(calls) for calls, _ in line.sent]


def test_short_reads_of_one_turn_travel_together_and_what_comes_meanwhile_is_the_next_batch() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        quick = world.lines["quick-1"]
        for _ in range(100):
            world.start(RATE)
        await loop.settle()
        assert batches(quick) == [64]
        world.start(RATE)
        quick.answer()
        await loop.settle()
        assert batches(quick) == [64, 37]
        quick.answer()
        await loop.settle()
        assert all(world.said(call) == [("succeeded", "", False)] for call in world.reports)

    in_world(play)


def test_a_batch_that_hangs_is_harvested_and_its_executor_given_up() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        quick = world.lines["quick-1"]
        for _ in range(2):
            world.start(RATE)
        await loop.advance(50 + int(PATIENCE_S * 1_000))
        assert [stop.call for stop in quick.stops] == ["c1"]
        calls, _ = quick.sent[0]
        late = Report(Executed(call="c2", attempt=1, outcome="failed", code="timeout"))
        assert quick.partial is not None
        quick.partial.set_result(encode_reply([done(calls[0]), late], stuck=True))
        await loop.settle()
        assert world.said("c1") == [("succeeded", "", False)]
        assert world.said("c2") == [("failed", "timeout", False)]
        assert world.losses == ["overdue"]

    in_world(play)


def test_a_batch_that_never_answers_is_lost_and_can_be_tried_again() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        world.start(RATE)
        await loop.advance(50 + int((PATIENCE_S + HARVEST_S) * 1_000))
        assert world.said() == [("failed", "lost", False)]
        assert world.reports["c1"][0].retryable
        assert world.losses == ["overdue"]

    in_world(play)


def test_a_batch_behind_one_that_hangs_is_given_up_before_it_began() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        quick = world.lines["quick-1"]
        world.start(RATE)
        await loop.advance(50 + int(PATIENCE_S * 1_000))
        assert quick.partial is not None
        quick.partial.set_result(b"")
        await loop.advance(int(BEGIN_S * 1_000) - 50)
        assert world.said() == []
        assert all(it.at_work for it in quick.stops)
        await loop.advance(200)
        assert not quick.stops[-1].at_work
        assert world.said() == [("failed", "expired", True)]
        assert world.losses == []

    in_world(play)


def test_a_batch_that_begins_late_is_waited_for() -> None:
    """The time of a read counts from its beginning, and other hosts have batches there too."""

    async def play(world: World, loop: SteppedLoop) -> None:
        quick = world.lines["quick-1"]
        world.start(RATE)
        await loop.advance(50 + int(PATIENCE_S * 1_000))
        assert quick.partial is not None
        quick.partial.set_result(b"")
        await loop.advance(300)
        quick.answer()
        await loop.settle()
        assert world.said() == [("succeeded", "", False)]

    in_world(play)


def test_a_crowd_of_reads_is_no_fault_of_the_last_ones() -> None:
    """Each batch takes as long as a read may: those behind it wait, within a bound of their own."""

    async def play(world: World, loop: SteppedLoop) -> None:
        quick = world.lines["quick-1"]
        for _ in range(512):
            world.start(RATE)
        await loop.settle()
        for _ in range(8):
            await loop.advance(50)
            quick.answer()
            await loop.settle()
        assert batches(quick) == [64] * 8
        assert {it for call in world.reports for it in world.said(call)} == {("succeeded", "", False)}
        sent = quick.sent[-1][0][0]
        assert sent.valid_ms == 50, "whole, however long it waited"

    in_world(play)


def test_a_short_read_that_has_no_time_left_is_refused_and_its_neighbour_has_what_it_was_given() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        quick = world.lines["quick-1"]
        for valid_ms in (0, 20):
            world.start(RATE, valid_ms=valid_ms)
        await loop.settle()
        assert world.said("c1") == [("failed", "expired", True)]
        assert [call.valid_ms for call in quick.sent[0][0]] == [20]
        quick.answer()
        await loop.settle()
        assert world.said("c2") == [("succeeded", "", False)]

    in_world(play)


OUT_S = QUICK_TIMEOUT_MS_MAX / 1_000 + PATIENCE_S + BEGIN_S + HARVEST_S + CROSSING_S
"""How long a batch may be out."""

TURNS_MS = 200
"""For the turns of a busy loop on the way."""


def test_the_bounds_of_a_short_read_are_over_before_the_margin() -> None:
    """From the end that its intent names to its report, whatever it waits for: then the attempt is given up."""
    in_a_pool_ms = QUICK_LATE_MS + int((WAIT_S + OUT_S) * 1_000)
    in_the_host_ms = QUICK_LATE_MS + QUICK_LATE_MS + QUICK_TIMEOUT_MS_MAX
    assert max(in_a_pool_ms, in_the_host_ms) + TURNS_MS < MARGIN_MS
    assert BATCH_S + QUICK_TIMEOUT_MS_MAX / 1_000 + GRACE_S < HARVEST_S
    assert OUT_S < LEASE_LEFT_LEAST_S


def test_the_last_read_that_leaves_in_time_is_told_of_before_the_margin() -> None:
    """Its executor says that the batch waits until it may no longer, and is then silent."""

    async def play(world: World, loop: SteppedLoop) -> None:
        quick = world.lines["quick-1"]
        places, world.free["quick"] = world.free["quick"], []
        world.start(RATE)
        await loop.advance(int(WAIT_S * 1_000) - 10)
        world.free["quick"] = places
        world.freed.set()
        await loop.settle()
        assert batches(quick) == [1]
        for _ in range(0, int(BEGIN_S * 1_000), 10):
            await loop.advance(10)
            await says_that_it_waits(quick, loop)
        await loop.advance(MARGIN_MS - QUICK_LATE_MS - int((WAIT_S + BEGIN_S) * 1_000))
        assert world.said() == [("failed", "lost", False)]
        assert world.losses == ["overdue"]

    in_world(play)


def test_an_executor_that_is_slow_to_say_that_a_batch_waits_is_asked_no_longer_for_that() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        quick = world.lines["quick-1"]
        world.start(RATE)
        await loop.advance(50 + int(PATIENCE_S * 1_000))
        may_begin_ms = loop.now_ms + int(BEGIN_S * 1_000)
        while loop.now_ms < may_begin_ms - int(PATIENCE_S * 1_000) or quick.partial is None:
            await says_that_it_waits(quick, loop)
            await loop.advance(10)
        asked = quick.partial
        assert loop.now_ms < may_begin_ms
        await loop.advance(int(HARVEST_S * 1_000) - 50)
        assert quick.partial is asked, "the same question all the while"
        await says_that_it_waits(quick, loop)
        await loop.advance(int(OUT_S * 1_000) - loop.now_ms)
        assert world.said() == [("failed", "lost", False)]

    in_world(play)


async def says_that_it_waits(quick: Line, loop: SteppedLoop) -> None:
    if quick.partial is not None:
        asked, quick.partial = quick.partial, None
        asked.set_result(b"")
        await loop.settle()


@pytest.mark.parametrize("hangs", ["the batch before it", "the way to an executor"])
def test_a_read_that_waits_is_refused_when_its_time_is_over_whatever_is_waited_for(hangs: str) -> None:
    """What holds it up has a time of its own: a spare executor is waited for longer, and so is a line to one."""

    async def play(world: World, loop: SteppedLoop) -> None:
        hanging = hangs == "the batch before it"
        world.free["quick"] = ["quick-1"] if hanging else []
        if hanging:
            world.start(RATE)
            await loop.advance(10)
        else:
            world.forget("quick-1")
            world.connects = False
        waiting = len(world.reports) + 1
        world.start(RATE)
        await loop.advance(int(WAIT_S * 1_000) - 10)
        if not hanging:
            world.free["quick"] = ["quick-1"]
            world.freed.set()
            await loop.settle()
        assert world.said(f"c{waiting}") == []
        await loop.advance(10)
        assert world.said(f"c{waiting}") == [("failed", "expired", True)]

    in_world(play)


def test_a_batch_that_could_not_be_sent_goes_elsewhere() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        world.lines["quick-2"] = Line("quick-2")
        world.lines["quick-1"].down = True
        world.free["quick"] = ["quick-1", "quick-2"]
        for _ in range(3):
            world.start(RATE)
        await loop.settle()
        assert world.losses == ["unreached"]
        world.lines["quick-2"].answer()
        await loop.settle()
        assert [world.said(call) for call in world.reports] == [[("succeeded", "", False)]] * 3

    in_world(play)


def test_the_next_batch_does_not_wait_for_one_that_is_held_up() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        world.lines["quick-2"] = Line("quick-2")
        world.free["quick"] = ["quick-1", "quick-2"]
        world.start(RATE)
        await loop.advance(2)
        world.start(RATE)
        await loop.advance(10)
        assert batches(world.lines["quick-2"]) == [1]
        world.lines["quick-2"].answer()
        world.lines["quick-1"].answer()

    in_world(play)


def test_a_dead_executors_short_reads_are_failed_and_the_next_go_elsewhere() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        world.lines["quick-2"] = Line("quick-2")
        world.free["quick"] = ["quick-1", "quick-2"]
        world.start(RATE)
        await loop.settle()
        world.lines["quick-1"].answer(value=ExecutorDied("x"))
        await loop.settle()
        world.start(RATE)
        await loop.settle()
        world.lines["quick-2"].answer()
        await loop.settle()
        assert world.said("c1") == [("failed", "lost", False)]
        assert world.said("c2") == [("succeeded", "", False)]
        assert world.losses == ["died"]

    in_world(play)


def test_short_reads_without_a_place_are_refused_when_their_time_is_over() -> None:
    async def play(world: World, loop: SteppedLoop) -> None:
        world.free["quick"].clear()
        world.start(RATE)
        cancel = world.start(RATE)
        assert cancel is not None
        cancel()
        await loop.advance(int(WAIT_S * 1_000))
        assert world.said("c1") == [("failed", "expired", True)]
        assert world.said("c2") == [("failed", "cancelled", True)]

    in_world(play)
