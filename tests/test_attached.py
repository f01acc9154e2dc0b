"""Several processes on one store: whoever comes second goes through the owner, and takes its place when it is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from tests.attach_play import LIMITS, Member, half_of, runtime_on, use_sockets
from tests.ray.process_table import eventually
from tests.stopping import stop

from boundloop.actors import attached as attached_module
from boundloop.actors.attached import Attached
from boundloop.actors.client import Runtime, StillRunning
from boundloop.actors.executors import Executors
from boundloop.actors.owning import Owning
from boundloop.actors.ray_run_actor import socket_to_owner
from boundloop.eventstore.socket_server import IN_FLIGHT_MAX
from boundloop.runtime.errors import BoundloopError, ConflictError, OwnedError, RunNotFound, StoreError
from boundloop.runtime.events import RunStarted

WITHIN_S: Final = 30.0


@pytest.fixture(autouse=True)
def sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    use_sockets(monkeypatch.setattr)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(64) as pool:
        yield pool


def is_attached(runtime: Runtime) -> bool:
    attached: bool = half_of(runtime).serving.attached
    return attached


def asked(runtime: Runtime, threads: ThreadPoolExecutor, run_id: str) -> Future[Any]:
    """A wait of another thread, once it is with the owner."""
    return threads.submit(runtime.result, run_id, WITHIN_S)


def test_a_second_runtime_does_all_that_the_first_can(path: Path) -> None:
    with runtime_on(path) as owner, runtime_on(path) as second:
        assert (is_attached(owner), is_attached(second)) == (False, True)
        assert second.run_sync("go", system="look look", limits=LIMITS).outcome == "completed"
        waiting = second.run_sync("go", system="pay", limits=LIMITS)
        assert waiting.status == "waiting"
        second.approve(waiting.run_id, waiting.approvals[0].approval_id, by="os:ann@desk")
        assert second.wait(waiting.run_id, WITHIN_S).outcome == "completed"
        seqs = [item.seq for item in second.stream(waiting.run_id)]
        assert seqs == list(range(1, second.state(waiting.run_id).seq + 1))
        outcomes = [
            row.result.outcome for row in second.map(["a", "b"], system="look", limits=LIMITS) if row.result
        ]
        assert outcomes == ["completed", "completed"]
        second.switch("tool", "pay", on=True, by="os:ann@desk")
        stopped = second.run_sync("go", system="pay", limits=LIMITS)
        assert "kill_switch" in str(owner.state(stopped.run_id).calls) or stopped.outcome == "completed"
        with pytest.raises(RunNotFound):
            second.result("nobody", WITHIN_S)
        with pytest.raises(BoundloopError, match="run_ended"):
            second.cancel(waiting.run_id)


def test_without_a_cluster_an_owned_file_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with runtime_on(path):
        monkeypatch.undo()
        with pytest.raises(OwnedError):
            runtime_on(path)


def test_an_application_that_the_owner_cannot_carry_is_refused_before_anything_is_written(path: Path) -> None:
    with runtime_on(path, other=True) as owner, runtime_on(path) as second:
        with pytest.raises(ConflictError, match="other_application"):
            second.start("go", system="pay", run_id="r1", limits=LIMITS)
        with pytest.raises(RunNotFound):
            owner.state("r1")
        assert owner.run_sync("go", system="look", limits=LIMITS).outcome == "completed"


def test_more_waits_than_a_connection_has_in_work_hold_up_nothing(
    path: Path, tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    gate = tmp_path / "gate"
    with runtime_on(path), runtime_on(path) as second:
        held = [
            second.start(str(gate), system="hold", limits=LIMITS).run_id for _ in range(IN_FLIGHT_MAX + 4)
        ]
        waits = [asked(second, threads, run_id) for run_id in held]
        began = second.run_sync("go", system="look", limits=LIMITS)
        assert began.outcome == "completed"
        assert not any(wait.done() for wait in waits)
        gate.touch()
        assert {wait.result(WITHIN_S).outcome for wait in waits} == {"completed"}


def test_a_wait_is_over_in_time(path: Path, tmp_path: Path) -> None:
    with runtime_on(path), runtime_on(path) as second:
        run = second.start(str(tmp_path / "never"), system="hold", limits=LIMITS)
        with pytest.raises(StillRunning):
            run.result(0.05)
        run.cancel()


def test_a_run_id_is_in_use_unless_it_is_the_same_start_asked_again(path: Path) -> None:
    with runtime_on(path), runtime_on(path) as second:
        second.start("go", system="look", run_id="r1", limits=LIMITS)
        with pytest.raises(ConflictError, match="run_exists"):
            second.start("go", system="look", run_id="r1", limits=LIMITS)
        with pytest.raises(ConflictError, match="run_exists"):
            second.start("something else", system="look", run_id="r1", limits=LIMITS)


class OnceGone:
    """A half whose owner dies after it has written the start, and before it says so."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def begin_run(self, event: RunStarted, pins: bytes, **options: Any) -> None:
        await self._inner.begin_run(event, pins, **options)
        raise StoreError("owner_gone", "it died")


@pytest.mark.parametrize("becomes_owner", [False, True])
def test_a_start_whose_owner_died_before_it_answered_is_no_conflict(path: Path, becomes_owner: bool) -> None:
    first = runtime_on(path)
    second = runtime_on(path)
    try:
        owners = half_of(second)._owners
        owners._serving = OnceGone(owners.serving)
        if becomes_owner:
            move = owners._move_on

            async def move_on(from_: Any) -> None:
                await asyncio.to_thread(first.close)
                await move(from_)

            owners._move_on = move_on
        run = second.start("go", system="look", run_id="r1", limits=LIMITS)
        assert run.result(WITHIN_S).outcome == "completed"
        assert is_attached(second) is not becomes_owner
    finally:
        second.close()
        first.close()


def test_the_owner_closes_and_an_attached_runtime_goes_on_with_its_runs(
    path: Path, tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    gate = tmp_path / "gate"
    first = runtime_on(path)
    with runtime_on(path) as second:
        run = second.start(str(gate), system="hold look", limits=LIMITS)
        waiting = asked(second, threads, run.run_id)
        stream = threads.submit(lambda: [item.seq for item in second.stream(run.run_id)])
        first.close()
        gate.touch()
        assert waiting.result(WITHIN_S).outcome == "completed"
        assert not is_attached(second)
        seqs = stream.result(WITHIN_S)
        assert seqs == list(range(1, len(seqs) + 1))


def test_the_owner_is_killed_and_an_attached_runtime_goes_on_with_its_runs(
    path: Path, tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    gate = tmp_path / "gate"
    with Member(path) as owner, runtime_on(path) as second:
        assert is_attached(second)
        mine = second.start(str(gate), system="hold look", limits=LIMITS)
        owner.ask("start", run="theirs", plan="hold look", input=str(gate))
        waits = [asked(second, threads, run_id) for run_id in (mine.run_id, "theirs")]
        owner.kill()
        gate.touch()
        assert {wait.result(WITHIN_S).outcome for wait in waits} == {"completed"}


def test_two_attached_runtimes_race_for_a_killed_owners_place(
    path: Path, tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    gate = tmp_path / "gate"
    with Member(path) as owner, runtime_on(path) as second, runtime_on(path) as third:
        runs = [rt.start(str(gate), system="hold look", limits=LIMITS).run_id for rt in (second, third)]
        waits = [asked(rt, threads, run_id) for rt in (second, third) for run_id in runs]
        owner.kill()
        gate.touch()
        assert {wait.result(WITHIN_S).outcome for wait in waits} == {"completed"}
        assert sorted((is_attached(second), is_attached(third))) == [False, True]


def test_an_attached_process_is_killed_and_its_runs_go_on(path: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with runtime_on(path) as owner, Member(path) as second:
        assert second.opened["attached"]
        second.ask("start", run="theirs", plan="hold look", input=str(gate))
        second.tell("result", run="theirs")
        second.kill()
        gate.touch()
        assert owner.result("theirs", WITHIN_S).outcome == "completed"


def test_a_stopped_owner_keeps_nobody_waiting_beyond_the_bound(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached_module, "ANSWER_S", 0.2)
    with Member(path) as owner, runtime_on(path) as second:
        owner.ask("start", run="r1", plan="look", input="go")
        stop(owner.process.pid)
        with pytest.raises(StoreError, match="owner_silent"):
            second.result("r1", 0.1)
        os.kill(owner.process.pid, signal.SIGCONT)
        assert second.result("r1", WITHIN_S).outcome == "completed"


def test_an_owner_that_is_just_opening_is_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch, threads: ThreadPoolExecutor
) -> None:
    opening, go_on = threading.Event(), threading.Event()
    begin = vars(Owning)["_begin"]

    async def slowly(self: Owning, *args: Any) -> None:
        opening.set()
        await asyncio.to_thread(go_on.wait, WITHIN_S)
        await begin(self, *args)

    monkeypatch.setattr(Owning, "_begin", slowly)
    first = threads.submit(runtime_on, path)
    assert opening.wait(WITHIN_S)
    second = threads.submit(runtime_on, path)
    go_on.set()
    with first.result(WITHIN_S) as owner, second.result(WITHIN_S) as other:
        assert sorted((is_attached(owner), is_attached(other))) == [False, True]


def test_an_owner_that_serves_nobody_is_as_good_as_gone(path: Path) -> None:
    real = os.path.realpath(path)

    async def attach() -> None:
        await Attached.open(await socket_to_owner(real), lambda: None)

    with runtime_on(path) as owner:
        half_of(owner).serving._serves_others = False  # as while it opens or closes
        with pytest.raises(StoreError, match="owner_not_serving"):
            asyncio.run(attach())


def test_a_runtime_that_closes_while_it_looks_for_the_next_owner_takes_nothing_over(path: Path) -> None:
    first = runtime_on(path)
    second = runtime_on(path)
    looking = threading.Event()
    owners = half_of(second)._owners
    served = owners._served

    async def slow(*args: Any) -> Any:
        looking.set()
        assert await asyncio.to_thread(eventually, lambda: owners.closed, WITHIN_S)
        return await served(*args)

    owners._served = slow  # so that it can be closed meanwhile
    first.close()
    assert looking.wait(WITHIN_S)
    second.close()
    runtime_on(path).close()


def test_what_fails_while_a_store_is_opened_leaves_nothing_behind(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        """A cluster's half that neither opens nor closes."""

        def __init__(self) -> None:
            self.executors = Executors()
            self.closed = False

        def serves(self, owning: Owning) -> None:
            """Nobody is told."""

        async def open(self, host: Any) -> None:
            raise StoreError("no_room", "the cluster is full")

        async def drain(self) -> None:
            """Nobody is there."""

        async def close(self) -> None:
            self.closed = True
            raise StoreError("no_room", "it doesn't even close")

    async def body() -> None:
        failing = Failing()
        with pytest.raises(StoreError, match="no_room"):
            await Owning.open(
                half_of(runtime).parts,
                f"sqlite:///{path}",
                take_over=False,
                clock=None,
                cluster=lambda host, died: failing,  # type: ignore[arg-type,return-value]  # one that fails
            )
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        assert not tasks
        assert failing.closed

    runtime = runtime_on(path)
    runtime.close()
    asyncio.run(body())
    runtime_on(path).close()


def test_the_store_is_given_back_though_the_cluster_fails_to_close(path: Path) -> None:
    runtime = runtime_on(path)

    class Failing:
        async def drain(self) -> None:
            raise StoreError("ray_gone", "the cluster is no more")

        async def close(self) -> None:
            """Nothing is left."""

    half_of(runtime).serving._cluster = Failing()
    with pytest.raises(StoreError, match="ray_gone"):
        runtime.close()
    runtime_on(path).close()
