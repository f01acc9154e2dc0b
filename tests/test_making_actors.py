"""Making an actor asks the cluster's control service, which may be away for good: the owner's loop goes on, and the making has an
end. Played by functions that block."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Final

import pytest

from boundloop.actors import ray_cluster
from boundloop.actors.ray_run_actors import made_within

WITHIN_S: Final = 30.0
SHORT_S: Final = 0.05


class Ray:
    """What is asked of it."""

    def __init__(self) -> None:
        self.killed: list[object] = []
        self.told = threading.Event()
        self.left = False

    def is_initialized(self) -> bool:
        return not self.left

    def kill(self, actor: object, *, no_restart: bool) -> None:
        self.killed.append((actor, no_restart))
        self.told.set()


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    fake = Ray()

    def the_fake() -> Any:
        return fake

    monkeypatch.setattr(ray_cluster, "untyped_ray", the_fake)
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


def test_a_cluster_that_was_left_is_asked_nothing_more(ray: Ray) -> None:
    """Ray would begin another cluster to end an actor in it."""
    ray.left = True
    ray_cluster.kill_while_joined("actor")
    assert ray.killed == []
