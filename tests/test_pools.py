"""The broker of places over executors that are made of nothing: who is started, told, ended and paused when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.postgres_server import Server
from tests.stepped_loop import SteppedLoop

from boundloop.actors.group_holds import GroupHolds
from boundloop.actors.places import Grant, Kind, PlacesDoor, Refused, RemotePlaces, Want
from boundloop.actors.pool_spec import Pool, closed_after_crash_ms, kind_of, refuse_bad_pools, shapes
from boundloop.actors.pools import Pools
from boundloop.actors.slot_reports import PoolKey, PoolShape
from boundloop.actors.slots import LOST_EXTRA_MS, OVERDUE_DOUBT_MS
from boundloop.eventstore.postgres import PostgresStore
from boundloop.eventstore.sqlite import SqliteStore
from boundloop.runtime.errors import DeclarationError, StoreError
from boundloop.runtime.policy import Policy
from boundloop.runtime.tool_spec import tool
from boundloop.runtime.toolbox import Toolbox

SYNC: PoolKey = ("default", "sync")
QUICK: PoolKey = ("default", "quick")
ASYNC: PoolKey = ("default", "async")
START_MS = 300


class Factory:
    """Executors that take ``START_MS`` to come up, and die when a test says so."""

    def __init__(self) -> None:
        self.up: dict[str, Callable[[], None]] = {}
        self.ended: list[str] = []
        self.started: list[str] = []
        self.broken: BaseException | None = None
        self.hangs = False
        self.asked: list[tuple[str, str]] = []
        self.says: bool | Exception | None = True

    def name_of(self, key: PoolKey, number: int) -> str:
        return f"{key[1]}-{number}"

    async def start(self, name: str, key: PoolKey, gone: Callable[[], None]) -> None:
        self.started.append(name)
        if self.broken is not None:
            raise self.broken
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await asyncio.wait([never], timeout=None if self.hangs else START_MS / 1_000)
        self.up[name] = gone

    async def confirm(self, name: str, grant_ids: Sequence[str]) -> bool:
        self.asked += [(name, grant_id) for grant_id in grant_ids]
        if self.says is None:
            await asyncio.get_running_loop().create_future()
        if isinstance(self.says, Exception):
            raise self.says
        return self.says is True

    async def end(self, name: str) -> None:
        self.ended.append(name)
        gone = self.up.pop(name, None)
        if gone is not None:
            gone()

    def dies(self, name: str) -> None:
        self.up.pop(name)()


class Scene:
    def __init__(self, loop: SteppedLoop, **options: Any) -> None:
        self.loop = loop
        self.factory = Factory()
        shapes = options.pop("shapes", {SYNC: PoolShape(0, 1, 1, 5_000), QUICK: PoolShape(1, 1, 8, 5_000)})
        groups = options.pop("groups", {})
        self.pools = Pools(shapes, groups, self.factory, clock_ms=lambda: loop.now_ms, **options)
        self._ids = 0

    def want(self, kind: Kind = "sync", *, group: str = "", valid_ms: int = 60_000, host: str = "h") -> Want:
        self._ids += 1
        return Want(
            want_id=f"w{self._ids}",
            host_id=host,
            tool="t",
            pool="default",
            kind=kind,
            group=group,
            valid_ms=valid_ms,
        )

    def lease(self, want: Want) -> asyncio.Task[Grant | Refused]:
        return self.loop.create_task(self.pools.lease(want))


def stepped(scene: Callable[[SteppedLoop], Coroutine[Any, Any, None]]) -> None:
    loop = SteppedLoop()
    try:
        loop.run_until_complete(scene(loop))
    finally:
        loop.close()


def granted(task: asyncio.Task[Grant | Refused]) -> Grant:
    answer = task.result()
    assert isinstance(answer, Grant)
    return answer


def test_an_executor_is_started_for_the_first_who_waits_and_kept_for_the_next() -> None:
    async def play(loop: SteppedLoop) -> None:
        scene = Scene(loop)
        first = scene.lease(scene.want())
        await loop.advance(START_MS - 1)
        assert not first.done()
        await loop.advance(1)
        assert granted(first).actor == "sync-1"
        await scene.pools.give_back("w1")
        second = scene.lease(scene.want())
        await loop.settle()
        assert granted(second).actor == "sync-1"
        await scene.pools.close()

    stepped(play)


def test_open_waits_for_the_least_and_says_if_they_did_not_come_up() -> None:
    async def play(loop: SteppedLoop) -> None:
        scene = Scene(loop)
        opening = loop.create_task(scene.pools.open())
        await loop.advance(START_MS)
        assert opening.result() is True
        broken = Scene(loop)
        broken.factory.broken = RuntimeError("no module")
        opening = loop.create_task(broken.pools.open(warm_s=1.0))
        await loop.advance(1_000)
        assert opening.result() is False
        assert broken.pools.failures == {QUICK: broken.factory.broken}
        await scene.pools.close()
        await broken.pools.close()

    stepped(play)


def test_a_lost_executor_is_ended_and_its_replacement_takes_the_next() -> None:
    """R3: capacity is back as soon as a new process is up."""

    async def play(loop: SteppedLoop) -> None:
        scene = Scene(loop)
        first = scene.lease(scene.want())
        await loop.advance(START_MS)
        second = scene.lease(scene.want())
        await loop.settle()
        await scene.pools.lost("w1", "overdue")
        await loop.advance(START_MS)
        assert granted(first).actor in scene.factory.ended
        assert granted(second).actor != granted(first).actor
        await scene.pools.close()

    stepped(play)


@pytest.mark.parametrize("says", [True, False, RuntimeError("dead"), None])
def test_an_executor_that_others_use_is_asked_before_it_is_ended(says: bool | Exception | None) -> None:
    """No answer is no yes."""

    async def play(loop: SteppedLoop) -> None:
        scene = Scene(loop, shapes={ASYNC: PoolShape(0, 1, 8, 5_000)})
        scene.factory.says = says
        first, second = scene.lease(scene.want("async")), scene.lease(scene.want("async"))
        await loop.advance(START_MS)
        actor = granted(first).actor
        assert granted(second).actor == actor
        await scene.pools.lost("w1", "overdue")
        await loop.advance(OVERDUE_DOUBT_MS)
        assert scene.factory.asked == [(actor, "w1")]
        assert (actor in scene.factory.ended) is (says is not True)
        assert scene.pools.statistics().pools[ASYNC].leased == (1 if says is True else 0)
        await scene.pools.close()

    stepped(play)


def test_an_executor_that_dies_idle_is_replaced_before_anybody_is_sent_to_it() -> None:
    """R16, R19: the broker hears of every death, and doesn't hand a dead one out."""

    async def play(loop: SteppedLoop) -> None:
        scene = Scene(loop)
        first = scene.lease(scene.want())
        await loop.advance(START_MS)
        await scene.pools.give_back("w1")
        scene.factory.dies(granted(first).actor)
        second = scene.lease(scene.want())
        await loop.advance(START_MS)
        assert granted(second).actor != granted(first).actor
        await scene.pools.close()

    stepped(play)


def test_starts_that_fail_are_repeated_ever_more_slowly_and_waiters_are_told_at_once() -> None:
    async def play(loop: SteppedLoop) -> None:
        scene = Scene(loop)
        scene.factory.broken = RuntimeError("no module")
        waiting = scene.lease(scene.want(valid_ms=60_000))
        await loop.advance(1_000)
        assert waiting.result() == Refused(code="executors_failing")
        for _ in range(120):
            scene.lease(scene.want(valid_ms=60_000))
            await loop.advance(500)
        assert len([name for name in scene.factory.started if name.startswith("sync")]) < 12
        assert scene.pools.statistics().waiting == 0
        await scene.pools.close()

    stepped(play)


def test_a_start_that_hangs_is_given_up_and_another_one_tried() -> None:
    """R17: making an actor may hang for ever."""

    async def play(loop: SteppedLoop) -> None:
        scene = Scene(loop)
        scene.factory.hangs = True
        waiting = scene.lease(scene.want(valid_ms=90_000))
        await loop.advance(59_000)
        scene.factory.hangs = False
        await loop.advance(2_000)
        assert isinstance(waiting.result(), Grant)
        await scene.pools.close()

    stepped(play)


def test_who_is_cancelled_while_waiting_leaves_no_place_behind() -> None:
    async def play(loop: SteppedLoop) -> None:
        scene = Scene(loop)
        first, second = scene.lease(scene.want()), scene.lease(scene.want())
        await loop.settle()
        second.cancel()
        await loop.advance(START_MS)
        granted(first)
        await scene.pools.give_back("w1")
        statistics = scene.pools.statistics()
        assert (statistics.waiting, statistics.pools[SYNC].leased) == (0, 0)
        await scene.pools.close()

    stepped(play)


def test_the_same_want_again_has_the_same_answer() -> None:
    """R29: a question whose answer was lost is asked again."""

    async def play(loop: SteppedLoop) -> None:
        scene = Scene(loop)
        want = scene.want()
        first, again = scene.lease(want), scene.lease(want)
        await loop.advance(START_MS)
        assert granted(first).actor == granted(again).actor
        third = scene.lease(want)
        await loop.settle()
        assert granted(third).actor == granted(first).actor
        assert scene.pools.statistics().pools[SYNC].leased == 1
        await scene.pools.close()

    stepped(play)


def test_closing_ends_all_executors_and_refuses_who_waits() -> None:
    async def play(loop: SteppedLoop) -> None:
        scene = Scene(loop)
        held = scene.lease(scene.want())
        await loop.advance(START_MS)
        waits = scene.lease(scene.want())
        await loop.settle()
        await scene.pools.close()
        await loop.settle()
        assert waits.result() == Refused(code="closed")
        assert scene.factory.up == {}
        assert granted(held).actor in scene.factory.ended
        assert await scene.pools.lease(scene.want()) == Refused(code="closed")

    stepped(play)


@pytest.mark.parametrize("unclean", [False, True])
def test_the_next_owner_knows_whose_calls_may_still_be_at_the_far_side(tmp_path: Path, unclean: bool) -> None:
    """After a close as after a death, of which a close some time before may know more than the new application."""

    async def play(loop: SteppedLoop) -> None:
        store = await SqliteStore.open(str(tmp_path / "runs.db"), clock=lambda: 1_000_000 + loop.now_ms)
        scene = Scene(loop, groups={"bank": 2, "mail": 1})
        holds = GroupHolds(scene.pools, {"bank": 2, "mail": 1}, unclean=False)
        await holds.take_over(store)
        for group in ("bank", "mail"):
            scene.lease(scene.want("quick", group=group, valid_ms=20_000))
        await loop.advance(START_MS)
        await holds.hand_over()
        await scene.pools.close()

        after = Scene(loop, groups={"bank": 2}, closed_ms={"bank": 1_000} if unclean else None)
        holds = GroupHolds(after.pools, {"bank": 2}, unclean=unclean)
        await holds.take_over(store)
        first = after.lease(after.want("quick", group="bank"))
        second = after.lease(after.want("quick", group="bank"))
        await loop.advance(START_MS + 2_000)
        assert [first.done(), second.done()] == [not unclean, False]
        await holds.hand_over()
        assert set(await store.group_holds()) == {"bank", "mail"}
        await loop.advance(18_000 + LOST_EXTRA_MS)
        assert [first.done(), second.done()] == [True, True]
        await after.pools.close()
        await store.close()

    stepped(play)


def test_what_owners_of_one_database_leave_adds_up(postgres: Server) -> None:
    """Two that share it close with a call at work each, in order: both places are taken for whoever comes next."""

    async def play(loop: SteppedLoop) -> None:
        store = await PostgresStore.open(url, clock=lambda: 1_000_000 + loop.now_ms)
        scenes = [Scene(loop, groups={"bank": 2}) for _ in range(2)]
        holds = [GroupHolds(scene.pools, {"bank": 2}, unclean=False) for scene in scenes]
        for one, scene in zip(holds, scenes, strict=True):
            await one.take_over(store)
            scene.lease(scene.want("quick", group="bank", valid_ms=20_000))
        await loop.advance(START_MS)
        for one in holds:
            await one.hand_over()  # when the close begins
            await one.hand_over()  # and when what could end in order has
        assert (await store.group_holds())["bank"][0] == 2
        await store.close()
        for scene in scenes:
            await scene.pools.close()

    url = postgres.url()
    stepped(play)


def test_a_dead_hosts_places_come_back_and_its_waiters_are_dropped() -> None:
    async def play(loop: SteppedLoop) -> None:
        scene = Scene(loop, groups={"bank": 1})
        held = scene.lease(scene.want(group="bank", valid_ms=10_000, host="a"))
        await loop.advance(START_MS)
        granted(held)
        dropped = scene.lease(scene.want(host="a"))
        other = scene.lease(scene.want(group="bank", host="b"))
        await loop.settle()
        scene.pools.host_gone("a")
        await loop.advance(START_MS)
        assert dropped.result() == Refused(code="closed")
        assert not other.done()
        await loop.advance(10_000 + LOST_EXTRA_MS)
        granted(other)
        await scene.pools.close()

    stepped(play)


def test_a_group_is_closed_for_a_while_after_a_crash_of_its_owner() -> None:
    async def play(loop: SteppedLoop) -> None:
        scene = Scene(loop, groups={"bank": 1}, closed_ms={"bank": 30_000})
        waiting = scene.lease(scene.want(group="bank"))
        await loop.advance(29_000)
        assert not waiting.done()
        await loop.advance(1_000 + START_MS)
        granted(waiting)
        await scene.pools.close()

    stepped(play)


# --- from another process ------------------------------------------------------------------------------------------------


def test_a_remote_host_has_the_same_answers() -> None:
    async def play(loop: SteppedLoop) -> None:
        scene = Scene(loop)
        remote = RemotePlaces(PlacesDoor(scene.pools).answer)
        leasing = loop.create_task(remote.lease(scene.want()))
        await loop.advance(START_MS)
        grant = granted(leasing)
        await remote.lost(grant.grant_id, "overdue")
        brief = loop.create_task(remote.lease(scene.want(valid_ms=1)))
        await loop.advance(1)
        assert brief.result() == Refused(code="expired")
        second = loop.create_task(remote.lease(scene.want()))
        await loop.advance(START_MS)
        await remote.give_back(granted(second).grant_id)
        assert scene.pools.statistics().pools[SYNC].leased == 0
        await scene.pools.close()

    stepped(play)


def test_an_owner_that_does_not_answer_grants_nothing() -> None:
    async def play(loop: SteppedLoop) -> None:
        asked: list[str] = []

        async def gone(kind: str, payload: bytes) -> bytes:
            asked.append(kind)
            raise StoreError("owner_gone", "it went away")

        async def silent(kind: str, payload: bytes) -> bytes:
            asked.append(kind)
            answer: asyncio.Future[bytes] = loop.create_future()
            return await answer

        scene = Scene(loop)
        assert await RemotePlaces(gone).lease(scene.want()) == Refused(code="no_broker")
        waiting = loop.create_task(RemotePlaces(silent).lease(scene.want(valid_ms=5_000)))
        await loop.advance(5_000)
        assert waiting.result() == Refused(code="expired")
        assert asked.count("places.give_back") == 2

    stepped(play)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("places.lease", b"\xc1"),
        ("places.lease", msgspec.msgpack.encode({"want_id": "x"})),
        ("places.give_back", msgspec.msgpack.encode(3)),
        ("places.lost", msgspec.msgpack.encode({"grant_id": "x", "why": "bored"})),
    ],
)
def test_questions_that_are_none_are_refused(kind: str, payload: bytes) -> None:
    async def play(loop: SteppedLoop) -> None:
        with pytest.raises(msgspec.MsgspecError):
            await PlacesDoor(Scene(loop).pools).answer(kind, payload)

    stepped(play)


# --- declared pools ------------------------------------------------------------------------------------------------------


@tool(risk="read", quick=True)
def rate(city: str) -> int:
    """Short."""
    return len(city)


@tool(risk="read", quick=True, group="bank")
def limited_rate(city: str) -> int:
    """Short, and one of a group."""
    return len(city)


@tool(risk="write", key="call", group="bank", timeout_ms=45_000, pool="big")
def pay(cents: int) -> int:
    """Slow."""
    return cents


@tool(risk="read", inline=True, group="bank")
async def glance(city: str) -> int:
    """In the host, unless its group is limited."""
    return len(city)


TOOLS = Toolbox([rate, limited_rate, pay, glance])


def test_pools_are_those_that_the_tools_need() -> None:
    groups = {"bank": 2}
    assert [kind_of(spec, groups) for spec in TOOLS.values()] == ["quick", "sync", "sync", "async"]
    assert [kind_of(spec, {}) for spec in TOOLS.values()] == ["quick", "quick", "sync", None]
    made = shapes({"big": Pool(executors=5, warm=1)}, groups, TOOLS, Policy())
    assert set(made) == {
        ("default", "quick"),
        ("default", "sync"),
        ("big", "sync"),
        ("default", "async"),
    }
    assert made["big", "sync"] == PoolShape(1, 5, 1, 60_000)
    assert made["default", "quick"].least == 2


def test_a_group_is_closed_after_a_crash_for_as_long_as_its_slowest_tool_may_take() -> None:
    assert closed_after_crash_ms({"bank": 2, "unused": 1}, TOOLS) == {"bank": 45_000 + LOST_EXTRA_MS}


@pytest.mark.parametrize(
    ("pools", "path"),
    [
        ({"default": Pool(ray_options={"max_restarts": 1})}, "pools.default.ray_options.max_restarts"),
        (
            {"default": Pool(ray_options={"max_task_retries": 3})},
            "pools.default.ray_options.max_task_retries",
        ),
        ({"default": Pool(ray_options={"name": "x"})}, "pools.default.ray_options.name"),
        ({"default": Pool(ray_options={"runtime_env": {}})}, "pools.default.ray_options.runtime_env"),
        ({"default": Pool(ray_options={"_labels": {}})}, "pools.default.ray_options._labels"),
        ({"default": Pool(executors=0)}, "pools.default.executors"),
        ({"default": Pool(executors=True)}, "pools.default.executors"),
        ({"default": Pool(async_places=100_000)}, "pools.default.async_places"),
        ({"default": 3}, "pools.default"),
        ({}, "pay.pool"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_pool_is_refused_before_any_run(pools: dict[str, Pool], path: str) -> None:
    """R2, R4, R22: what would restart, repeat or build an environment at run time is no option."""
    with pytest.raises(DeclarationError) as refused:
        refuse_bad_pools(pools, {"bank": 1}, TOOLS)
    assert refused.value.path == path


def test_good_pools_and_limits_pass() -> None:
    refuse_bad_pools({"big": Pool(ray_options={"num_cpus": 2})}, {"bank": 1}, TOOLS)
    with pytest.raises(DeclarationError):
        refuse_bad_pools({"big": Pool()}, {"bank": 0}, TOOLS)
