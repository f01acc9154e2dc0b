"""Run actors that open PostgreSQL themselves: nobody owns the store, and each Runtime of a cluster has actors of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import ray as real_ray
from examples.far_side import FarSide
from tests.attach_play import half_of
from tests.postgres_server import Server
from tests.ray.cluster import one_node
from tests.ray.process_table import eventually
from tests.ray.run_actor_play import (
    WITHIN_S,
    actor_pids,
    completed,
    events_so_far,
    host_with,
    hosts_of,
    kill,
    runtime_on,
    start,
    supervisor_of,
    until,
)

from boundloop.actors.client import Runtime
from boundloop.eventstore.location import connect_store
from boundloop.eventstore.submit import decode_answer
from boundloop.runtime import events as e
from boundloop.runtime.commands import Cancel, encode_command
from boundloop.runtime.errors import StoreError

ray: Any = real_ray  # it has few types of its own
WARM_TRIES: Final = 10
PASSWORD: Final = "canary-7f3a91"


@pytest.fixture(scope="module")
def far() -> Iterator[FarSide]:
    with FarSide.start() as made:
        yield made


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with one_node("boundloop"):
        yield


@pytest.fixture(scope="module")
def url(postgres: Server) -> str:
    return postgres.url().replace("postgres@", f"postgres:{PASSWORD}@")


@pytest.fixture(scope="module")
def runtime(cluster: None, far: FarSide, url: str) -> Iterator[Runtime]:
    with runtime_on(url, far, ray="require") as made:
        for _ in range(WARM_TRIES):  # an executor may take longer to make than the first call waits for it
            made.result(start(made, "book"), WITHIN_S)
            if far.counts()["effects"]:
                break
        yield made


def test_runs_are_carried_by_actors_that_open_the_store_themselves(runtime: Runtime, far: FarSide) -> None:
    before = sum(far.counts()["effects"].values())
    runs = [start(runtime, "look look book") for _ in range(4)]
    assert all(completed(runtime.result(run_id, WITHIN_S)) for run_id in runs)
    assert sum(far.counts()["effects"].values()) - before == 4
    hosts = {
        one.host for run_id in runs for one in events_so_far(runtime, run_id) if isinstance(one, e.RunResumed)
    }
    assert half_of(runtime).host_of().host_id not in hosts
    assert actor_pids(runtime)


def test_a_killed_actors_run_goes_on_in_another(runtime: Runtime, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    run_id = start(runtime, "hold book", str(gate))
    first = host_with(runtime, run_id)
    assert first != os.getpid()
    kill(first)
    second = host_with(runtime, run_id, other_than=first)
    gate.touch()
    assert completed(runtime.result(run_id, WITHIN_S))
    assert second not in (first, os.getpid())


def test_a_command_from_elsewhere_is_decided_by_the_actor_that_has_the_run(
    runtime: Runtime, url: str, tmp_path: Path
) -> None:
    """Another process knows the database only: its command goes through a table to the host that has the run."""
    run_id = start(runtime, "hold", str(tmp_path / "never"))
    host_with(runtime, run_id)

    async def cancel() -> bool:
        store = await connect_store(url)
        try:
            command = Cancel(command_id="elsewhere", by="os:ann@desk")
            return decode_answer(await store.submit(run_id, "elsewhere", encode_command(command))).accepted
        finally:
            await store.close()

    def accepted() -> bool:
        try:
            return asyncio.run(cancel())
        except StoreError as error:
            if error.code != "no_submit_handler":
                raise
            return False  # beside load it may go from one host to the next just then

    assert eventually(accepted, WITHIN_S)
    assert runtime.result(run_id, WITHIN_S).outcome == "cancelled"
    until("the seat is free", lambda: run_id not in supervisor_of(runtime).seating.seat_of)


def test_a_person_decides_and_the_run_goes_on_in_an_actor(runtime: Runtime) -> None:
    run_id = start(runtime, "pay")
    waiting = runtime.result(run_id, WITHIN_S)
    runtime.approve(run_id, waiting.approvals[0].approval_id, by="os:ann@desk")
    assert completed(runtime.result(run_id, WITHIN_S))


def test_two_runtimes_share_the_runs_of_one_store(runtime: Runtime, far: FarSide, url: str) -> None:
    """Each has run actors of its own; a run has one host, and an effect takes place once, whoever carries it."""
    before = far.counts()["effects"].copy()
    before_actors = actor_pids(runtime)
    with runtime_on(url, far, ray="require", name="second") as second:
        runs = [start((runtime, second)[number % 2], "look book") for number in range(8)]
        assert all(
            completed((runtime, second)[number % 2].result(run_id, WITHIN_S))
            for number, run_id in enumerate(runs)
        )
        until("the second one has a run actor too", lambda: len(actor_pids(second)) > len(before_actors))
    after = far.counts()["effects"]
    assert sorted(count - before.get(key, 0) for key, count in after.items() if key not in before) == [1] * 8


def test_runs_outlast_the_death_of_the_server(
    runtime: Runtime, postgres: Server, far: FarSide, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    run_id = start(runtime, "hold book look", str(gate))
    host_with(runtime, run_id)
    postgres.kill()
    gate.touch()
    postgres.start()
    assert completed(runtime.result(run_id, WITHIN_S))


def test_the_urls_password_is_in_nothing_that_ray_shows(runtime: Runtime, url: str) -> None:
    start(runtime, "look")
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    assert session.is_dir()
    logs = [path for path in (session / "logs").rglob("*") if path.is_file()]
    assert logs
    assert not [path for path in logs if PASSWORD.encode() in path.read_bytes()]


def test_when_it_closes_no_row_and_no_actor_is_left(cluster: None, far: FarSide, postgres: Server) -> None:
    own = postgres.url()
    with runtime_on(own, far, ray="require", name="brief") as brief:
        assert completed(brief.result(start(brief, "look"), WITHIN_S))
        pids = actor_pids(brief)
        hosts = set(hosts_of(brief))
        assert len(hosts) >= 2

    async def rows() -> list[Any]:
        store = await connect_store(own)
        try:
            return await store.hosts()
        finally:
            await store.close()

    assert asyncio.run(rows()) == []
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 20)
