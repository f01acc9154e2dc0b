"""Runs in actors of a real cluster: reused, killed at every point, stopped, commanded, drained."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest
import ray as real_ray
from examples.far_side import FarSide
from tests.attach_play import half_of, on_loop
from tests.model_server import speaking
from tests.ray.cluster import one_node
from tests.ray.run_actor_play import (
    LIMITS,
    WITHIN_S,
    actor_pids,
    completed,
    events_so_far,
    host_with,
    kill,
    row_of,
    runtime_on,
    start,
    store_of,
    supervisor_of,
    until,
)
from tests.stopping import stop
from tests.test_follow import Reader, Writer

from boundloop.actors import ray_run_actors
from boundloop.actors.client import CommandRefused, Runtime, StillRunning
from boundloop.adapters import OpenAIChat, ScriptedModel, say
from boundloop.adapters.port import AttemptReset
from boundloop.runtime import events as e
from boundloop.runtime.errors import BoundloopError, DeclarationError, StoreError

SHORT_S: Final = 1.0
ray: Any = real_ray  # it has few types of its own


@pytest.fixture(scope="module")
def far() -> Iterator[FarSide]:
    with FarSide.start() as made:
        yield made


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with one_node("somebody-elses"):
        yield


@pytest.fixture(scope="module")
def shared(cluster: None, far: FarSide, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    with runtime_on(tmp_path_factory.mktemp("store") / "runs.db", far, ray="require") as made:
        yield made


@pytest.fixture
def runtime(shared: Runtime) -> Iterator[Runtime]:
    """The shared one, with nobody in a seat before and after."""
    yield shared
    supervisor = supervisor_of(shared)
    for run_id in list(supervisor.seating.seat_of) + list(supervisor.seating.queued_runs()):
        with contextlib.suppress(CommandRefused):  # it ended meanwhile
            shared.cancel(run_id)
    until("the seats are empty", lambda: not supervisor.seating.seat_of and not supervisor.queued)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


def events(runtime: Runtime, run_id: str) -> list[e.AnyEvent]:
    return [item.event for item in runtime.stream(run_id, until="rest")]


def effects(far: FarSide) -> dict[str, int]:
    return far.counts()["effects"]


@pytest.mark.asyncio
async def test_what_a_model_writes_in_a_run_actor_is_shown_to_whoever_follows_from_whenever(
    cluster: None, tmp_path: Path
) -> None:
    write = Writer("Half of ", "an answer.", breaks=1)
    async with (
        speaking(write) as server,
        Runtime(
            store=f"sqlite:///{tmp_path}/runs.db",
            model=OpenAIChat(model="m", base_url=server.url, stream=True),
            ray="require",
            name="follow",
            run_actors=1,
        ) as runtime,
    ):
        run = await runtime.aio.start("go", limits=LIMITS)
        first = Reader(runtime.aio.follow(run))
        await first.until(lambda: first.shown() == "Half of ", WITHIN_S)
        assert await asyncio.to_thread(host_with, runtime, run.run_id) != os.getpid()
        write.go_on.set()
        await first.until(lambda: first.shown(1, 2) == "Half of ", WITHIN_S)
        late = Reader(runtime.aio.follow(run))
        await late.until(lambda: late.shown(1, 2) == "Half of ", WITHIN_S)
        write.go_on.set()
        await first.all()
        await late.all()
        last = (await runtime.aio.state(run)).seq
    assert first.seqs() == late.seqs() == list(range(1, last + 1))
    assert [item for item in first.items if isinstance(item, AttemptReset)] == [AttemptReset(1, 1)]
    assert not any(isinstance(item, AttemptReset) for item in late.items)


# --- one after the other ---------------------------------------------------------------------------------------------


def test_a_run_goes_through_an_actor_of_its_own_and_actors_are_reused(runtime: Runtime, gate: Path) -> None:
    run_id = start(runtime, "hold", str(gate))
    assert runtime.state(run_id).seq >= 1, "start returns when run_started is durable"
    first = host_with(runtime, run_id)
    assert first != os.getpid()
    gate.touch()
    assert completed(runtime.result(run_id, WITHIN_S))
    pids: set[int] = set()
    for _ in range(4):
        run_id = start(runtime, "look hold look", str(gate))
        assert completed(runtime.result(run_id, WITHIN_S))
        pids |= actor_pids(runtime)
    assert first in pids
    assert len(pids) <= 2
    assert not supervisor_of(runtime).deaths


def test_runs_that_wait_hold_no_actor(runtime: Runtime) -> None:
    before = actor_pids(runtime)
    waiting = [start(runtime, "look pay") for _ in range(10)]
    for run_id in waiting:
        assert runtime.result(run_id, WITHIN_S).status == "waiting"
    until("all seats are free", lambda: not supervisor_of(runtime).seating.seat_of)
    assert len(actor_pids(runtime)) <= max(len(before), 2)
    assert not [row_of(runtime, run_id).owner for run_id in waiting if row_of(runtime, run_id).owner]
    for run_id in waiting:
        runtime.cancel(run_id)
        assert runtime.result(run_id, WITHIN_S).outcome == "cancelled"


# --- killed ------------------------------------------------------------------------------------------------------------


def test_killed_between_an_effect_and_its_result_the_run_goes_on_and_the_effect_is_one(
    runtime: Runtime, far: FarSide
) -> None:
    far.set_modes("apply_then_hang")
    before = sum(effects(far).values())
    run_id = start(runtime, "book look")
    until("the effect happened", lambda: sum(effects(far).values()) == before + 1)
    kill(host_with(runtime, run_id))
    result = runtime.result(run_id, WITHIN_S)
    assert completed(result), result
    assert sum(effects(far).values()) == before + 1
    resumed = [event for event in events(runtime, run_id) if isinstance(event, e.RunResumed)]
    assert "host_died" in {event.cause for event in resumed}


@pytest.mark.parametrize("plan", ["late:look", "hold"])
def test_killed_in_a_model_request_or_a_read_it_is_tried_again_elsewhere(
    runtime: Runtime, gate: Path, plan: str
) -> None:
    run_id = start(runtime, plan, str(gate))
    wanted = e.ModelRequested if plan.startswith("late") else e.CallStarted
    until("it is under way", lambda: isinstance(events_so_far(runtime, run_id)[-1], wanted))
    kill(host_with(runtime, run_id))
    gate.touch()
    assert completed(runtime.result(run_id, WITHIN_S))


def test_killed_while_its_run_waits_for_a_person_nothing_is_lost(runtime: Runtime, far: FarSide) -> None:
    run_id = start(runtime, "pay")
    waiting = runtime.result(run_id, WITHIN_S)
    for pid in actor_pids(runtime):
        kill(pid)
    runtime.approve(run_id, waiting.approvals[0].approval_id, by="os:ann@desk")
    assert completed(runtime.wait(run_id, WITHIN_S))


def is_stopped(pid: int) -> bool:
    """Stop it; False if it is one that an earlier test killed, and gone by now."""
    try:
        stop(pid)
    except ProcessLookupError:
        return False
    return True


def test_killed_while_it_adopts_a_run_another_takes_it(runtime: Runtime) -> None:
    stopped: list[int] = []

    def one_is_stopped() -> bool:
        stopped.extend(pid for pid in actor_pids(runtime) if is_stopped(pid))
        return bool(stopped)

    until("one stands ready, and is stopped", one_is_stopped)
    run_id = start(runtime, "look")
    until("it has a seat", lambda: run_id in supervisor_of(runtime).seating.seat_of)
    for pid in stopped:
        kill(pid)
    assert completed(runtime.result(run_id, WITHIN_S))


def at_its_call(runtime: Runtime, run_id: str, deaths: int) -> bool:
    """Whether the run was taken over so often, and its call is out."""
    so_far = events_so_far(runtime, run_id)
    taken_over = [event for event in so_far if isinstance(event, e.RunResumed) and event.cause == "host_died"]
    return len(taken_over) == deaths and isinstance(so_far[-1], e.CallStarted)


def test_the_third_death_in_one_run_stops_it(runtime: Runtime, gate: Path) -> None:
    run_id = start(runtime, "hold", str(gate))
    last = 0
    for deaths in range(3):
        last = host_with(runtime, run_id, other_than=last)
        until("it is at its call again", partial(at_its_call, runtime, run_id, deaths))
        kill(last)
    result = runtime.result(run_id, WITHIN_S)
    assert (result.outcome, result.reason) == ("failed", "crash_loop")


def kill_nobody(actor: object) -> None:
    """As if it could not be reached."""


@pytest.mark.skipif(
    "BOUNDLOOP_LONG" not in os.environ,
    reason="waits out a host's validity, as tests/ray/test_given_up_hosts.py does",
)
def test_stopped_beyond_its_validity_it_is_fenced_and_ends_by_itself(
    cluster: None, tmp_path: Path, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_run_actors.RayRunActor, "kill", kill_nobody)
    with runtime_on(tmp_path / "runs.db", ray="require", name="zombie") as runtime:
        run_id = start(runtime, "hold look look", str(gate))
        zombie = host_with(runtime, run_id)
        until("it is at its call", lambda: isinstance(events_so_far(runtime, run_id)[-1], e.CallStarted))
        stop(zombie)
        assert host_with(runtime, run_id, other_than=zombie) != zombie
        gate.touch()
        assert completed(runtime.result(run_id, WITHIN_S))
        os.kill(zombie, signal.SIGCONT)
        until("it ended by itself", lambda: not Path(f"/proc/{zombie}/stat").exists() or _is_dead(zombie))
        monkeypatch.undo()
        epochs = [row.epoch for row in on_loop(runtime, store_of(runtime).read(run_id))]
        assert epochs == sorted(epochs), "nothing of an older epoch follows a newer one"


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


# --- commanded -----------------------------------------------------------------------------------------------------------


def test_commands_reach_a_run_wherever_it_is(runtime: Runtime, gate: Path) -> None:
    running = [start(runtime, "hold", str(gate)) for _ in range(2)]
    for run_id in running:
        assert host_with(runtime, run_id) != os.getpid()
    queued = start(runtime, "look")
    until("the third waits for a seat", lambda: supervisor_of(runtime).queued == 1)
    with pytest.raises(StillRunning):
        runtime.result(queued, 0.05)
    for run_id in (running[0], queued):
        runtime.cancel(run_id)
        assert runtime.result(run_id, WITHIN_S).reason == "by_user"
        with pytest.raises(CommandRefused):
            runtime.cancel(run_id)
    gate.touch()
    assert completed(runtime.result(running[1], WITHIN_S))


def test_a_kill_switch_is_seen_in_an_actor_before_the_next_effect(
    runtime: Runtime, gate: Path, far: FarSide
) -> None:
    before = effects(far)
    run_id = start(runtime, "hold book", str(gate))
    host_with(runtime, run_id)
    runtime.switch("tool", "book", on=True, by="os:ann@desk")
    try:
        gate.touch()
        assert runtime.result(run_id, WITHIN_S).status == "ended"
        assert effects(far) == before
    finally:
        runtime.switch("tool", "book", on=False, by="os:ann@desk")


def test_a_host_full_of_runs_answers_at_once(cluster: None, tmp_path: Path, gate: Path) -> None:
    with runtime_on(
        tmp_path / "runs.db", ray="require", name="dense", dense_actors=1, warm_actors=0
    ) as runtime:
        runs = [
            half_of(runtime).start(str(gate), {"system": "hold", "limits": LIMITS}, dense=True)
            for _ in range(100)
        ]
        ids = [on_loop(runtime, run) for run in runs]
        host = host_with(runtime, ids[-1])
        assert host != os.getpid()
        slowest = 0.0
        for run_id in ids[:5]:
            began = time.monotonic()
            runtime.cancel(run_id)
            slowest = max(slowest, time.monotonic() - began)
        gate.touch()
        assert [runtime.result(run_id, WITHIN_S).outcome for run_id in ids] == ["cancelled"] * 5 + [
            "completed"
        ] * 95
        assert len(actor_pids(runtime)) <= 2
        assert slowest < SHORT_S


# --- what can't be ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["argument", "environment"])
def test_ray_client_is_refused(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    if where == "environment":
        monkeypatch.setenv("RAY_ADDRESS", "ray://127.0.0.1:10001")
    with pytest.raises(DeclarationError, match="ray_client"):
        runtime_on(tmp_path / "runs.db", ray="require" if where == "environment" else "ray://127.0.0.1:10001")


def test_a_store_in_memory_is_refused(cluster: None) -> None:
    with pytest.raises(DeclarationError, match="store_not_shared"):
        Runtime(store="memory://", model=ScriptedModel([say("hi")]), ray="require")


def test_what_cannot_travel_is_named_before_anything_begins(cluster: None, tmp_path: Path) -> None:
    lock = threading.Lock()

    class Locked(ScriptedModel):
        def __init__(self) -> None:
            super().__init__([say("hi")])
            self.lock = lock

    url = f"sqlite:///{tmp_path}/runs.db"
    with pytest.raises(DeclarationError, match=r"dependencies\.lock"):
        Runtime(store=url, model=ScriptedModel([say("hi")]), dependencies={"lock": lock}, ray="require")
    with pytest.raises(DeclarationError, match="model"):
        Runtime(store=url, model=Locked(), ray="require")
    Runtime(store=url, model=ScriptedModel([say("hi")])).close()


def test_an_application_that_fails_in_its_actors_says_so_to_whoever_waits(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text(
        "from boundloop.runtime.tool_spec import tool\n\n"
        "@tool(risk='read')\nasync def peep(number: int) -> int:\n    'Peep.'\n    return number\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    only_here: Any = importlib.import_module("only_here")
    with Runtime(
        store=f"sqlite:///{tmp_path}/runs.db",
        model=ScriptedModel([say("hi")]),
        tools=[only_here.peep],
        ray="require",
        name="failing",
        run_actors=1,
    ) as runtime:
        with pytest.raises(BoundloopError, match="only_here"):
            runtime.run_sync("go", limits=LIMITS)
        with pytest.raises(BoundloopError, match="only_here"):
            runtime.start("go", limits=LIMITS)
    sys.modules.pop("only_here")


# --- names -----------------------------------------------------------------------------------------------------------------


class Impostor:
    """Some other actor."""

    async def identify(self) -> tuple[str, str, str, str]:
        return "store_messenger", "0.0.0", "/elsewhere.db", ""

    async def carry(self, client: str, request: bytes) -> bytes:
        raise AssertionError("nothing is entrusted to it")


class Stranger:
    """An actor that has nothing of a messenger's."""


@pytest.mark.parametrize("kind", [Impostor, Stranger])
def test_an_actor_of_another_kind_under_our_name_is_refused(
    cluster: None, tmp_path: Path, kind: type
) -> None:
    path = os.path.realpath(tmp_path / "runs.db")
    name = f"taken-{sha256(path.encode()).hexdigest()[:12]}"
    actor_class: Any = ray.remote(kind)
    foreign: Any = actor_class.options(name=name, namespace="boundloop", num_cpus=0).remote()
    try:
        with pytest.raises(StoreError, match="other_actor"):
            runtime_on(path, ray="require", name="taken")
    finally:
        ray.kill(foreign)
    with runtime_on(path, ray="require", name="taken", warm_actors=0) as runtime:
        assert half_of(runtime).serving.attached is False


def test_a_name_is_free_for_the_next_owner_at_once(cluster: None, tmp_path: Path) -> None:
    for _ in range(3):
        with runtime_on(tmp_path / "runs.db", ray="require", name="again", warm_actors=0) as runtime:
            assert half_of(runtime).serving.attached is False


def test_two_runtimes_of_one_cluster_do_not_meet(runtime: Runtime, tmp_path: Path) -> None:
    with runtime_on(tmp_path / "runs.db", ray="require", name="second", warm_actors=0) as second:
        assert half_of(second).serving.attached is False
        run_id = start(second, "look")
        assert completed(second.result(run_id, WITHIN_S))
        with pytest.raises(BoundloopError, match="run_not_found"):
            runtime.result(run_id, SHORT_S)
        assert not actor_pids(second) & actor_pids(runtime)
