"""Drivers, tasks and actors of one cluster on one store, and what is left when one of them is killed."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

import pytest
import ray as real_ray
from examples.far_side import FarSide
from tests.attach_play import Member, half_of
from tests.ray import run_actor_member
from tests.ray.process_table import MARK, eventually, marked
from tests.ray.run_actor_play import (
    LIMITS,
    WITHIN_S,
    actor_pids,
    completed,
    host_with,
    runtime_on,
    start,
    until,
)

ray: Any = real_ray  # it has few types of its own
ORPHANS_S: Final = 30.0
"""Promised within a minute; it takes five seconds or so."""


@pytest.fixture(scope="module")
def far() -> Iterator[FarSide]:
    with FarSide.start() as made:
        yield made


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        num_cpus=4,
        logging_level=logging.ERROR,
    )
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


def all_it_can(path: str) -> dict[str, Any]:
    """What a process that is attached does with a store."""
    with runtime_on(path) as runtime:
        attached = half_of(runtime).serving.attached
        first = runtime.run_sync("go", system="look", limits=LIMITS)
        seqs = [item.seq for item in runtime.stream(first.run_id)]
        rows = [row.completed for row in runtime.map(["a", "b", "c"], system="look", limits=LIMITS)]
        waiting = runtime.run_sync("go", system="pay", limits=LIMITS)
        runtime.approve(waiting.run_id, waiting.approvals[0].approval_id, by="os:ann@desk")
        return {
            "attached": attached,
            "completed": [completed(first), completed(runtime.wait(waiting.run_id, WITHIN_S)), *rows],
            "in order": seqs == list(range(1, len(seqs) + 1)),
            "pid": os.getpid(),
        }


class Attaching:
    """An actor with a running loop, as a notebook has one."""

    async def all_it_can(self, path: str) -> dict[str, Any]:
        runtime = await asyncio.to_thread(runtime_on, path)
        async with runtime:
            first = await runtime.aio.run("go", system="look", limits=LIMITS)
            rows = [row.completed async for row in runtime.aio.map(["a", "b"], system="look", limits=LIMITS)]
            seqs = [item.seq async for item in runtime.aio.stream(first.run_id)]
            return {
                "attached": half_of(runtime).serving.attached,
                "completed": [completed(first), *rows],
                "in order": seqs == list(range(1, len(seqs) + 1)),
                "pid": os.getpid(),
            }


def test_a_task_and_an_actor_go_through_the_driver_that_owns_the_store(
    address: str, path: Path, far: FarSide
) -> None:
    with runtime_on(path, far) as owner:
        assert half_of(owner).serving.attached is False
        task: Any = ray.remote(all_it_can)
        actor: Any = ray.remote(Attaching).options(num_cpus=0).remote()
        for reference in (task.options(num_cpus=0).remote(str(path)), actor.all_it_can.remote(str(path))):
            said = ray.get(reference, timeout=WITHIN_S)
            assert said["attached"]
            assert said["pid"] != os.getpid()
            assert said["in order"]
            assert set(said["completed"]) == {True}
        ray.kill(actor)


def member(path: Path, ray_option: str, far: FarSide, token: str = "") -> Member:
    environment = {MARK: f"{token}:0"} if token else None
    return Member(path, ray_option, str(far.port), script=run_actor_member.__file__, environment=environment)


def test_the_owner_is_killed_and_another_process_goes_on_with_its_runs(
    address: str, path: Path, gate: Path, far: FarSide
) -> None:
    with member(path, address, far) as owner, ThreadPoolExecutor(2) as threads:
        assert owner.opened["attached"] is False
        with runtime_on(path, far) as second:
            assert half_of(second).serving.attached
            mine = start(second, "hold book", str(gate))
            owner.ask("start", run="theirs", plan="hold book", input=str(gate))
            for run_id in (mine, "theirs"):
                assert host_with(second, run_id) != owner.process.pid
            orphans = actor_pids(second) - {owner.process.pid}
            before = sum(far.counts()["effects"].values())
            waits = [threads.submit(second.result, run_id, WITHIN_S) for run_id in (mine, "theirs")]
            owner.kill()
            until("its actors are gone", lambda: not [pid for pid in orphans if alive(pid)], ORPHANS_S)
            gate.touch()
            assert all(completed(wait.result(WITHIN_S)) for wait in waits)
            assert half_of(second).serving.attached is False
            assert sum(far.counts()["effects"].values()) == before + 2


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_driver_with_a_cluster_of_its_own_leaves_no_process(
    path: Path, gate: Path, far: FarSide, how: signal.Signals
) -> None:
    token = token_hex(8)
    with member(path, "local", far, token) as driver:
        driver.ask("start", run="r1", plan="hold book", input=str(gate))
        if how == signal.SIGTERM:
            driver.ask("serve")
        assert len(marked(token)) > 3
        driver.process.send_signal(how)
        if how == signal.SIGTERM:
            assert driver.answer() == {"closed": True}
            driver.process.stdin.close()  # type: ignore[union-attr]  # it has one
        assert eventually(lambda: not left(token), ORPHANS_S), left(token)
    gate.touch()
    with runtime_on(path, far, warm_actors=0) as following:
        assert completed(following.result("r1", WITHIN_S))


def left(token: str) -> list[str]:
    """What lives of a driver's cluster, but for two agents of Ray's that take a minute to notice."""
    titles = [process.title for process in marked(token)]
    return [title for title in titles if title not in ("ray::DashboardAgent", "ray::RuntimeEnvAgent")]
