"""Making an actor asks the cluster's control service, which may be away for good: the owner's loop goes on, and the making has an
end. So has leaving the cluster, which waits for what is out: Ray ends a process that detaches under such a call. Played by functions
that block."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, Final

import pytest

from boundloop.actors import ray_calls, ray_cluster, ray_pool_actors
from boundloop.actors.ray_calls import NotAttached, ask_ray, end_actor
from boundloop.actors.ray_pool_actors import RayExecutorFactory
from boundloop.actors.ray_run_actors import made_within

WITHIN_S: Final = 30.0
SHORT_S: Final = 0.05


class Ray:
    """What is asked of it."""

    def __init__(self) -> None:
        self.killed: list[object] = []
        self.put_by: list[threading.Thread] = []
        self.told = threading.Event()
        self.answers = threading.Event()
        self.answers.set()
        self.left = False

    def is_initialized(self) -> bool:
        return not self.left

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "n", gcs_address="a")

    def kill(self, actor: object, *, no_restart: bool) -> None:
        self.killed.append((actor, no_restart))
        self.told.set()
        self.answers.wait(WITHIN_S)
        assert not self.left, "left under a call: Ray would end the process"

    def shutdown(self) -> None:
        self.left = True

    def put(self, data: bytes) -> bytes:
        self.put_by.append(threading.current_thread())
        return data

    def remote(self, **options: object) -> Any:
        raise ValueError("no actor is made here")


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    fake = Ray()

    def the_fake() -> Any:
        return fake

    for module in (ray_calls, ray_cluster, ray_pool_actors):
        monkeypatch.setattr(module, "untyped_ray", the_fake)
    monkeypatch.setattr(ray_cluster, "_notices_to", print)
    return fake


async def turns(until: threading.Event) -> None:
    """Every turn of the loop that this takes is one that nothing held up."""
    async with asyncio.timeout(WITHIN_S):
        await asyncio.to_thread(until.wait, WITHIN_S)


@pytest.mark.parametrize("cancelled", [False, True])
def test_what_blocks_is_given_up_and_an_actor_that_comes_about_all_the_same_is_ended(
    ray: Ray, cancelled: bool
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def make() -> str:
        begun.set()
        go_on.wait(WITHIN_S)
        return "actor"

    async def body() -> None:
        making = asyncio.ensure_future(made_within(WITHIN_S if cancelled else SHORT_S, make))
        await turns(begun)
        if cancelled:
            making.cancel()
        with pytest.raises(asyncio.CancelledError if cancelled else TimeoutError):
            await making
        assert ray.killed == []
        go_on.set()
        await turns(ray.told)
        assert ray.killed == [("actor", True)]

    asyncio.run(body())


def test_what_fails_late_is_no_complaint(ray: Ray) -> None:
    go_on, raised = threading.Event(), threading.Event()
    complaints: list[object] = []

    def make() -> str:
        go_on.wait(WITHIN_S)
        raised.set()
        raise RuntimeError("no control service")

    async def body() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        with pytest.raises(TimeoutError):
            await made_within(SHORT_S, make)
        go_on.set()
        await turns(raised)
        await asyncio.to_thread(threading.Event().wait, 0)

    asyncio.run(body())
    assert (ray.killed, complaints) == ([], [])


def test_what_is_made_in_time_is_given(ray: Ray) -> None:
    assert asyncio.run(made_within(WITHIN_S, lambda: "actor")) == "actor"
    with pytest.raises(ValueError, match="taken"):
        asyncio.run(made_within(WITHIN_S, taken))
    assert ray.killed == []


def taken() -> str:
    raise ValueError("the name is taken")


def leaving(*, started: bool) -> threading.Thread:
    """A Runtime's last act, under way."""
    thread = threading.Thread(target=ray_cluster.Cluster(started=started).leave)
    thread.start()
    return thread


async def asked_until_it_is_left() -> None:
    async with asyncio.timeout(WITHIN_S):
        while True:
            await ask_ray(lambda: None)


@pytest.mark.parametrize("started", [True, False], ids=["ours", "the application's"])
def test_a_cluster_is_left_when_nothing_is_out(ray: Ray, started: bool) -> None:
    ray.answers.clear()
    end_actor("actor")
    assert ray.told.wait(WITHIN_S)
    thread = leaving(started=started)
    thread.join(SHORT_S)
    assert thread.is_alive()
    assert not ray.left
    ray.answers.set()
    thread.join(WITHIN_S)
    assert not thread.is_alive()
    assert ray.left == started


def test_what_was_asked_for_but_has_not_begun_is_waited_for_too(
    ray: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread has its first turn when it gets one."""
    start = threading.Thread.start
    held: list[threading.Thread] = []

    def late(thread: threading.Thread) -> None:
        if thread.name == "boundloop-end":
            held.append(thread)
        else:
            start(thread)

    monkeypatch.setattr(threading.Thread, "start", late)
    end_actor("actor")
    thread = leaving(started=False)
    thread.join(SHORT_S)
    assert thread.is_alive()
    start(held[0])
    thread.join(WITHIN_S)
    assert not thread.is_alive()
    assert ray.killed == [("actor", True)]


def test_leaving_does_not_wait_for_ever(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_calls, "LEAVE_WAIT_S", SHORT_S)
    ray.answers.clear()
    end_actor("actor")
    assert ray.told.wait(WITHIN_S)
    thread = leaving(started=False)
    thread.join(WITHIN_S)
    assert not thread.is_alive()
    ray.answers.set()


def test_what_is_given_up_and_comes_about_meanwhile_is_ended_before_it_is_left(ray: Ray) -> None:
    """Whether or not the loop has a turn in between: the application detaches next."""
    begun, go_on = threading.Event(), threading.Event()

    def make() -> str:
        begun.set()
        go_on.wait(WITHIN_S)
        return "actor"

    async def body() -> None:
        making = asyncio.ensure_future(made_within(WITHIN_S, make))
        await turns(begun)
        making.cancel()
        await asyncio.gather(making, return_exceptions=True)
        thread = leaving(started=False)
        thread.join(SHORT_S)
        assert thread.is_alive()
        go_on.set()
        thread.join(WITHIN_S)
        assert ray.killed == [("actor", True)]
        ray.left = True

    asyncio.run(body())


def test_what_is_given_up_just_as_it_comes_about_is_ended_too(ray: Ray) -> None:
    """Its thread is over, and the loop hasn't heard of it."""
    came = threading.Event()

    def make() -> str:
        came.set()
        return "actor"

    async def body() -> None:
        making = asyncio.ensure_future(made_within(WITHIN_S, make))
        await asyncio.sleep(0)
        assert came.wait(WITHIN_S)
        leaving(started=False).join(WITHIN_S)
        assert not making.done()
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
        leaving(started=False).join(WITHIN_S)
        assert ray.killed == [("actor", True)]

    asyncio.run(body())


def test_an_application_travels_once_and_not_by_the_loop(ray: Ray) -> None:
    async def body() -> None:
        factory = RayExecutorFactory(
            namespace="n", prefix="p", store="s", revision="1", shipment=b"the application", pools={}
        )
        starts = [factory.start(f"p:{number}", ("default", "sync"), print) for number in range(3)]
        assert all(isinstance(it, ValueError) for it in await asyncio.gather(*starts, return_exceptions=True))

    asyncio.run(body())
    assert len(ray.put_by) == 1
    assert ray.put_by[0] is not threading.current_thread()


def test_nothing_begins_while_it_is_left(ray: Ray) -> None:
    ray.answers.clear()
    end_actor("first")
    assert ray.told.wait(WITHIN_S)
    thread = leaving(started=True)
    with pytest.raises(NotAttached):
        asyncio.run(asked_until_it_is_left())
    ray.answers.set()
    thread.join(WITHIN_S)
    assert ray.killed == [("first", True)]


def test_a_cluster_that_was_left_is_asked_nothing_more(ray: Ray) -> None:
    """Ray would begin another cluster to end an actor in it."""
    ray.left = True
    end_actor("actor")
    leaving(started=False).join(WITHIN_S)
    assert ray.killed == []
    with pytest.raises(NotAttached):
        asyncio.run(ask_ray(lambda: "asked"))
