"""An owner that can't host any more, and whoever looks for the next one: the file is given back, no run is left where nobody
hosts it, and another store of the same path is never taken for the first.

A cluster without Ray: whoever comes first owns the file, and the others go through its socket or a messenger.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from tests.attach_play import LIMITS, half_of, on_loop, runtime_on, use_sockets
from tests.ray.process_table import eventually
from tests.stepped_loop import SteppedLoop

from boundloop.actors import client, pools, ray_cluster_use, supervisor
from boundloop.actors.attached import NOT_SERVING, Attached
from boundloop.actors.client import CLOSE_TIMEOUT_S, Runtime
from boundloop.actors.executors import Executors
from boundloop.actors.host import EXECUTORS_S, Host
from boundloop.actors.owner_row import SELF_STOP_S
from boundloop.actors.owners import MOVE_LEAST_S, MOVE_PAUSE_S, MOVE_S, OPENING_S, OWNER_ANSWER_S, Owners
from boundloop.actors.owning import Owning, Parts
from boundloop.actors.ray_cluster_use import POOLS_S, WARM_S, RayClusterUse
from boundloop.actors.ray_run_actor import StoreMessenger, socket_to_owner
from boundloop.actors.ray_run_actors import NAME_PAUSE_S, NAME_TRIES, OPEN_S
from boundloop.eventstore.carried import CarriedStore
from boundloop.eventstore.location import open_store, parse_url
from boundloop.eventstore.owned import lock_path
from boundloop.eventstore.owner import live_owner
from boundloop.eventstore.port import RunFilter
from boundloop.eventstore.socket_server import DRAIN_WAIT_MS
from boundloop.eventstore.sqlite_file import real_path
from boundloop.runtime.errors import OwnedError, StoreError
from boundloop.runtime.policy import Policy
from boundloop.runtime.toolbox import Toolbox

WITHIN_S: Final = 30.0
STALLED: Final = "its owner row could not be renewed: the store did not answer"


class Here:
    """A cluster's half with no hosts in it: the owner's own has all runs."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.executors = Executors()
        self.trouble = None
        self.queued = self.held = 0
        self.ends: list[str] = []

    def serves(self, owning: Owning) -> None:
        """Nobody is told."""

    async def open(self, host: Host) -> None:
        """Nothing is made."""

    def full(self) -> None:
        return None

    def expects(self, run_id: str) -> None:
        """It is looked for anyway."""

    def begun(self, started: Any, *, created: bool) -> None:
        if created and self.look is not None:
            self.look()

    look: Callable[[], None] | None = None

    def dense_stay_here(self, tenant: str) -> bool:
        return True

    def holds(self, run_id: str) -> bool:
        return False

    def takes(self, row: Any, started: Any) -> bool:
        return False

    def nudge(self, run_id: str) -> None:
        """Nothing waits here."""

    async def submit(self, run_id: str, command: Any) -> None:
        return None

    async def shown(self, run_id: str, mark: Any, timeout_s: float) -> None:
        return None

    async def drain(self) -> None:
        self.ends.append("drain")

    async def close(self) -> None:
        self.ends.append("close")


class HereUse:
    """Owns the file if nobody does, else goes through the owner."""

    async def serve(
        self, parts: Parts, url: str, *, take_over: bool, clock: Any, lost: Callable[[], None]
    ) -> Owning | Attached:
        def cluster(host: Host, died: bool) -> Any:
            here = Here()
            here.look = host.look
            return here

        try:
            return await Owning.open(parts, url, take_over=take_over, clock=clock, cluster=cluster, lost=lost)
        except OwnedError:
            return await Attached.open(await socket_to_owner(real_path(parse_url(url).path)), lost)

    async def leave(self) -> None:
        """There is nothing to leave."""


@pytest.fixture
def clustered(monkeypatch: pytest.MonkeyPatch) -> None:
    def here(*given: object, **wanted: object) -> type[HereUse]:
        return HereUse

    monkeypatch.setattr(client, "cluster_use", here)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def lose_host(runtime: Runtime) -> None:
    """What seconds of a stalled disk do."""
    on_loop(runtime, half_of(runtime).serving.host._lose(STALLED, None))


# --- the owner's host is lost ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("clustered")
def test_an_owner_that_lost_its_host_gives_the_file_back_and_finds_its_place_anew(
    path: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with runtime_on(path) as runtime, ThreadPoolExecutor() as threads:
        first = half_of(runtime).serving
        held = runtime.start(str(gate), system="hold look", limits=LIMITS)
        waiting = threads.submit(runtime.result, held.run_id, WITHIN_S)
        assert eventually(lambda: first.waiters.count(held.run_id) == 1, WITHIN_S)
        lose_host(runtime)
        assert runtime.run_sync("go", system="look", limits=LIMITS).outcome == "completed"
        assert half_of(runtime).serving is not first
        assert first._cluster.ends == ["drain", "close"]
        gate.touch()
        assert waiting.result(WITHIN_S).outcome == "completed"


@pytest.mark.usefixtures("clustered")
def test_what_an_owner_without_a_host_is_asked_is_for_the_next_owner(path: Path) -> None:
    real = os.path.realpath(path)

    async def body() -> None:
        told: list[int] = []
        parts = half_of(runtime).parts
        owning = await Owning.open(
            parts,
            f"sqlite:///{path}",
            take_over=False,
            clock=None,
            cluster=lambda host, died: Here(),  # type: ignore[arg-type,return-value]  # one with no hosts
            lost=lambda: told.append(1),
        )
        other = await socket_to_owner(real)
        await owning.host._lose(STALLED, None)
        for asked in (
            lambda: owning.submit("r1", None),  # type: ignore[arg-type]  # it isn't looked at
            lambda: owning.result("r1", None, "rest"),
            lambda: owning.on_ask("attach", b""),
        ):
            with pytest.raises(StoreError) as refused:
                await asked()
            assert refused.value.code in ("host_lost", NOT_SERVING)
        assert owning._giving_up is not None
        await owning._giving_up
        assert told == [1]
        with pytest.raises(StoreError, match="owner_gone"):
            await other.hosts()
        assert live_owner(lock_path(real)) is None
        await other.close()

    runtime = runtime_on(path)
    runtime.close()
    asyncio.run(body())


@pytest.mark.usefixtures("clustered")
def test_an_attached_runtime_takes_the_place_of_an_owner_that_lost_its_host(path: Path) -> None:
    with runtime_on(path) as first, runtime_on(path) as second:
        assert half_of(second).serving.attached
        lose_host(first)
        assert second.run_sync("go", system="look", limits=LIMITS).outcome == "completed"
        assert first.run_sync("go", system="look", limits=LIMITS).outcome == "completed"
        attached = sorted(half_of(runtime).serving.attached for runtime in (first, second))
        assert attached == [False, True]


def test_serving_without_a_cluster_ends_with_the_reason_when_the_host_is_lost(path: Path) -> None:
    runtime = runtime_on(path)
    with ThreadPoolExecutor(1) as threads:
        serving = threads.submit(runtime.serve)
        assert eventually(lambda: bool(vars(runtime)["_closed_words"]), WITHIN_S)
        lose_host(runtime)
        with pytest.raises(StoreError, match="host_lost"):
            serving.result(WITHIN_S)
    with pytest.raises(StoreError, match="closed"):
        runtime.start("go", system="look", limits=LIMITS)
    runtime_on(path).close()


def test_serving_what_has_lost_its_host_already_ends_at_once(path: Path) -> None:
    runtime = runtime_on(path)
    lose_host(runtime)
    with pytest.raises(StoreError, match="host_lost"):
        runtime.serve()


# --- another store of the same path ------------------------------------------------------------------------------------


class Node:
    started = False
    node_id = "n2"

    def leave(self) -> None:
        """There is nothing to leave."""


async def hang_up(messenger: StoreMessenger) -> None:
    for made in messenger._stores.values():
        await (await made).close()


def test_a_file_of_the_same_path_on_another_machine_is_refused_and_asked_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner on the other machine is gone; here lies a file from an earlier day."""
    there, here = tmp_path / "there.db", os.path.realpath(tmp_path / "runs.db")
    messengers: list[StoreMessenger] = []

    async def on_another_node(self: RayClusterUse, path: str) -> CarriedStore | None:
        if not messengers:
            return None
        self._elsewhere = True
        return CarriedStore(path, lambda request: messengers[0].carry("one", request))

    def join(option: str | None) -> Node:
        return Node()

    monkeypatch.setattr(ray_cluster_use, "join", join)
    monkeypatch.setattr(ray_cluster_use, "RayHosting", Here)
    monkeypatch.setattr(RayClusterUse, "_on_another_node", on_another_node)

    def use(*given: object, **wanted: object) -> Callable[[], RayClusterUse]:
        return lambda: RayClusterUse("auto", name="b", run_actors=1, warm=0, dense_actors=0, pools=None)

    async def prepare() -> None:
        await (await open_store(f"sqlite:///{here}")).close()

    asyncio.run(prepare())
    with monkeypatch.context() as patched:
        use_sockets(patched.setattr)
        owner = runtime_on(there)
    messengers.append(StoreMessenger(os.path.realpath(there)))
    monkeypatch.setattr(client, "cluster_use", use)
    try:
        with runtime_on(here) as runtime:
            assert half_of(runtime).serving.attached
            assert runtime.run_sync("go", system="look", run_id="r1", limits=LIMITS).outcome == "completed"
            owner.close()
            on_loop(runtime, hang_up(messengers.pop()))
            for _ in range(2):
                with pytest.raises(StoreError, match="other_store"):
                    runtime.start("go", system="look", run_id="r2", limits=LIMITS)
            assert live_owner(lock_path(here)) is None, "it isn't kept from whoever wants it"
    finally:
        owner.close()

    async def runs_here() -> list[Any]:
        store = await open_store(f"sqlite:///{here}")
        try:
            return list(await store.runs(RunFilter(limit=10)))
        finally:
            await store.close()

    assert asyncio.run(runs_here()) == []


# --- looking for the next owner ----------------------------------------------------------------------------------------


class Half:
    """One that goes through an owner."""

    attached = True
    broken = False

    async def close(self) -> None:
        """Nothing is held."""


class Looking:
    """Raises one error after the other, and then finds an owner; the last error stays if ``stays``."""

    foreign_errors = True

    def __init__(self, loop: SteppedLoop, errors: list[Exception], *, stays: bool = False) -> None:
        self.loop = loop
        self.errors = errors
        self.stays = stays
        self.looked: list[int] = []
        self.left = 0

    async def serve(self, *_: Any, **__: Any) -> Half:
        self.looked.append(self.loop.now_ms)
        if self.errors:
            raise self.errors[0] if self.stays else self.errors.pop(0)
        return Half()

    async def leave(self) -> None:
        self.left += 1


PARTS: Final = Parts(
    toolbox=Toolbox([]),
    policy=Policy(),
    adapter=None,
    tenant="default",
    application="",
    permissions_of=lambda tenant, principal: frozenset(),
    groups={},
    dependencies={},
)


def looks(
    errors: list[Exception],
    test: Callable[[SteppedLoop, Looking, Any], Coroutine[Any, Any, None]],
    *,
    stays: bool = False,
) -> None:
    loop = SteppedLoop()
    complaints: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context))

    async def body() -> None:
        owners = Owners(PARTS, None)
        looking: Any = Looking(loop, errors, stays=stays)
        owners._use = looking
        serving: Any = Half()
        owners._serving = serving
        owners.url = "sqlite:///x"
        try:
            await test(loop, looking, owners)
        finally:
            owners.closed = True
            await owners.close()
        assert not asyncio.all_tasks() - {asyncio.current_task()}

    try:
        loop.run_until_complete(body())
    finally:
        loop.close()
    assert not complaints, complaints


def test_whoever_lost_its_owner_looks_for_the_next_whatever_goes_wrong() -> None:
    async def test(loop: SteppedLoop, looking: Looking, owners: Any) -> None:
        first = owners._serving
        owners._owner_lost()
        await loop.advance(60_000)
        assert owners._serving is not first
        assert len(looking.looked) == 6
        assert owners._mover.done()

    looks(
        [
            TimeoutError(),
            RuntimeError("the cluster isn't itself"),
            StoreError("owner_gone"),
            StoreError("owned"),
            OSError(24, "no more files"),
        ],
        test,
    )


def test_it_goes_on_looking_until_it_closes() -> None:
    async def test(loop: SteppedLoop, looking: Looking, owners: Any) -> None:
        owners._owner_lost()
        await loop.advance(3_600_000)
        assert len(looking.looked) > 3_600 / MOVE_PAUSE_S / 2
        owners.closed = True
        await owners.close()
        seen = len(looking.looked)
        await loop.advance(60_000)
        assert len(looking.looked) == seen

    looks([RuntimeError("never")], test, stays=True)


def test_it_does_not_go_on_where_no_further_try_helps() -> None:
    async def test(loop: SteppedLoop, looking: Looking, owners: Any) -> None:
        owners._owner_lost()
        await loop.advance(60_000)
        assert len(looking.looked) == 1
        with pytest.raises(StoreError, match="other_store"):
            await owners._move_on(owners._serving)

    looks([StoreError("other_store")], test, stays=True)


@pytest.mark.parametrize(("code", "bound_s"), [("owner_gone", MOVE_S), (NOT_SERVING, OPENING_S)])
def test_a_call_waits_longer_for_an_owner_that_is_there_and_opens(code: str, bound_s: float) -> None:
    async def test(loop: SteppedLoop, looking: Looking, owners: Any) -> None:
        asked = asyncio.ensure_future(owners._move_on(owners._serving))
        await loop.advance(int(bound_s * 1_000) - 1_000)
        assert not asked.done()
        await loop.advance(2_000)
        with pytest.raises(StoreError, match=code):
            await asked

    looks([StoreError(code)], test, stays=True)


@pytest.mark.parametrize(("given_s", "waits_s"), [(0.0, MOVE_LEAST_S), (8.0, 8.0)])
def test_a_call_with_a_bound_looks_no_longer_than_that_and_a_little_at_least(
    given_s: float, waits_s: float
) -> None:
    async def gone(_: Any) -> None:
        raise StoreError("owner_gone", "said to this call")

    async def test(loop: SteppedLoop, looking: Looking, owners: Any) -> None:
        asked = asyncio.ensure_future(owners.ask(gone, end_s=loop.time() + given_s))
        await loop.advance(int(waits_s * 1_000) - 1)
        assert not asked.done()
        await loop.advance(1)
        with pytest.raises(StoreError, match="said to this call"):
            await asked

    looks([StoreError("owner_gone")], test, stays=True)


def test_what_does_not_open_is_left() -> None:
    async def test(loop: SteppedLoop, looking: Any, owners: Any) -> None:
        with pytest.raises(StoreError, match="other_store"):
            await Owners(PARTS, lambda: looking).open("sqlite:///y", take_over=False, clock=None)
        assert looking.left == 1

    looks([StoreError("other_store")], test)


def test_closing_does_not_wait_for_a_look_that_hangs() -> None:
    async def test(loop: SteppedLoop, looking: Looking, owners: Any) -> None:
        async def serve(*_: Any, **__: Any) -> Half:
            await loop.create_future()
            return Half()

        looking.serve = serve  # type: ignore[method-assign]  # an owner that never opens
        asked = asyncio.ensure_future(owners._move_on(owners._serving))
        await loop.settle()
        owners.closed = True
        closing = asyncio.ensure_future(owners.close())
        await loop.settle()
        assert closing.done()
        with pytest.raises(StoreError, match="closed"):
            await asked

    looks([], test)


def test_an_owner_that_is_found_as_this_runtime_closes_is_closed_too() -> None:
    """Else it would host on, and keep its file, with nobody to end it."""

    async def test(loop: SteppedLoop, looking: Looking, owners: Any) -> None:
        found, go_on, ended = Half(), asyncio.Event(), list[Half]()

        async def serve(*_: Any, **__: Any) -> Half:
            await go_on.wait()
            return found

        async def close() -> None:
            ended.append(found)

        found.close = close  # type: ignore[method-assign]  # to see it
        looking.serve = serve  # type: ignore[method-assign]  # one that takes its time
        asked = asyncio.ensure_future(owners._move_on(owners._serving))
        await loop.settle()
        go_on.set()
        await asyncio.sleep(0)  # it is found, and nobody has looked yet
        owners.closed = True
        await owners.close()
        assert ended == [found]
        with pytest.raises(StoreError, match="closed"):
            await asked

    looks([], test)


# --- the bounds fit ----------------------------------------------------------------------------------------------------


def test_the_parts_of_closing_and_of_opening_fit_their_bounds() -> None:
    hosts_s = max(supervisor.DRAIN_S + 2 * supervisor.END_S, SELF_STOP_S + EXECUTORS_S)
    assert hosts_s + POOLS_S + DRAIN_WAIT_MS / 1_000 < CLOSE_TIMEOUT_S
    assert POOLS_S <= pools.END_S
    assert WARM_S + OPEN_S + NAME_TRIES * NAME_PAUSE_S < OPENING_S
    assert OWNER_ANSWER_S >= MOVE_S
