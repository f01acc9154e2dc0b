"""One owner a file, one host a run, and what becomes of those that aren't it any more."""

# pyright: reportPrivateUsage=false
# A host that is lost shows only inside of its Runtime.

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from examples.far_side import FarSide
from tests.crash.child import Forge, Order
from tests.kill.load import runtime_on
from tests.shell import ROOT, Shell
from tests.stepped_runtime import Site, Stepped
from tests.stopping import stop

from boundloop.actors.context import ToolContext
from boundloop.actors.execution import Report
from boundloop.actors.executors import Dispatch, Executors
from boundloop.adapters.script import call, held, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.eventstore.history import load_run
from boundloop.eventstore.location import open_store
from boundloop.runtime import events as e
from boundloop.runtime.commands import Cancel
from boundloop.runtime.errors import OwnedError, StoreError
from boundloop.runtime.limits import HOST_DEATHS_MAX
from boundloop.runtime.tool_spec import tool, tool_spec

ROUNDS = int(os.environ.get("BOUNDLOOP_OWNER_ROUNDS", "20"))
"""Of the race for a new file."""

RACE_TIMEOUT_S = 300
CLI = "from boundloop.actors.cli import main; main()"
STUCK_S = 30.0


@pytest.fixture
def far() -> Iterator[FarSide]:
    with FarSide.start() as started:
        yield started


# --- the file --------------------------------------------------------------------------------------------------------


def test_of_eight_processes_one_owns_a_new_file_and_seven_are_told_who(tmp_path: Path) -> None:
    command = [sys.executable, "tests/owner_race.py", str(tmp_path), str(ROUNDS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=RACE_TIMEOUT_S, check=True)
    rounds: list[list[dict[str, Any]]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rounds) == ROUNDS
    for answers in rounds:
        owners = [answer["pid"] for answer in answers if answer["owned_by"] is None]
        refused = [answer for answer in answers if answer["owned_by"] is not None]
        assert (len(owners), len(refused)) == (1, 7)
        assert {answer["owned_by"] for answer in refused} == {owners[0]}
        assert {answer["host"] for answer in refused} == {socket.gethostname()}


def test_a_stopped_owner_is_named_to_runtimes_and_to_commands(tmp_path: Path, far: FarSide) -> None:
    path = tmp_path / "runs.db"
    with Shell(path, far) as owner:
        stop(owner.pid)
        with pytest.raises(OwnedError) as error:
            runtime_on(str(path), far)
        assert (error.value.pid, error.value.host) == (owner.pid, socket.gethostname())
        assert "take_over=True" in str(error.value)
        done = subprocess.run(
            [sys.executable, "-c", CLI, "runs", "list", "--store", f"sqlite:///{path}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=STUCK_S,
            check=False,
        )
        assert done.returncode == 4
        assert f"owned by process {owner.pid} on {socket.gethostname()}" in done.stderr


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "running"])
def test_taking_over_ends_the_owner_and_goes_on_with_its_runs(
    tmp_path: Path, far: FarSide, stopped: bool
) -> None:
    path = tmp_path / "runs.db"
    far.set_modes("apply_then_hang")
    with Shell(
        path, far, "patient"
    ) as owner:  # it is still asking when its successor is there, however late that is
        owner.ask("start", run="r1", plan="book look_up")
        wait_for_requests(far, 1)
        if stopped:
            stop(owner.pid)
        with Shell(path, far, "take-over", "patient") as successor:
            assert owner.process.wait(STUCK_S) == -signal.SIGKILL
            assert successor.ask("wait", run="r1")["outcome"] == "completed"
            assert successor.ask("close") == {"closed": True}
    counts = far.counts()
    assert (set(counts["requests"].values()), set(counts["effects"].values())) == ({2}, {1})
    resumed = [event for event in events_of(path, "r1") if isinstance(event, e.RunResumed)]
    assert [event.cause for event in resumed] == ["host_died"]


def wait_for_requests(far: FarSide, count: int) -> None:
    """Until the far side was asked for that many effects; asking it is what makes time pass."""
    for _ in range(10_000):
        if sum(far.counts()["requests"].values()) >= count:
            return
    raise AssertionError("the far side was never asked")


def events_of(path: Path, run_id: str) -> list[Any]:
    async def read() -> list[Any]:
        store = await open_store(f"sqlite:///{path}")
        try:
            _, records = await load_run(store, run_id)
            return [record.event for record in records]
        finally:
            await store.close()

    return asyncio.run(read())


# --- runs ------------------------------------------------------------------------------------------------------------


def test_a_run_of_a_living_host_is_nobody_elses(site: Site) -> None:
    first = site.open([held(say("Done."), "slow")])
    run_id = first.start()
    second = site.open([say("Done.")])
    with pytest.raises(OwnedError) as error:
        second.rt.cancel(run_id)
    assert (error.value.pid, error.value.path) == (os.getpid(), run_id)
    assert len(site.of(run_id, e.CancelRequested)) == 0


def test_a_command_to_a_host_that_lost_the_run_is_answered(site: Site) -> None:
    """Its host finds out at the append; the command then goes where the run is."""
    script = [held(say("Done."), "slow")]
    first = site.open(script)
    run_id = first.start()
    asyncio.run(site.store.drop_host(first.rt._embedded.host_of().host_id, died=True))
    second = site.open([held(say("Done."), "slow")])
    second.settle()
    command = Cancel(command_id="k1", by="os:ann@desk")
    answer = asyncio.run_coroutine_threadsafe(first.rt.aio.submit(run_id, command), first.loop)
    with pytest.raises(OwnedError):
        answer.result(STUCK_S)
    assert len(site.of(run_id, e.CancelRequested)) == 0


@pytest.mark.asyncio
async def test_an_executor_refuses_an_epoch_below_the_highest_it_saw() -> None:
    ran: list[int] = []
    reports: list[Report] = []

    @tool(risk="write", key=("n",), far_side="keyed", inline=True)
    async def book(n: int) -> int:
        """Book."""
        ran.append(n)
        return n

    executors = Executors()

    def dispatch(epoch: int) -> Dispatch:
        return Dispatch(
            spec=tool_spec(book),
            context=ToolContext(
                run_id="r1",
                call_id="c1",
                attempt=1,
                operation_id="o1",
                tenant="t",
                principal="p",
                key="00",
                valid_ms=1_000,
                dependencies={},
            ),
            arguments={"n": epoch},
            epoch=epoch,
            valid_ms=1_000,
            view_bytes_max=1_000,
            deliver=reports.append,
        )

    for epoch in (2, 1, 2):
        executors.start(dispatch(epoch))
    assert ran == [2, 2]
    assert [(report.executed.code, report.executed.no_effect) for report in reports] == [
        ("", False),
        ("old_epoch", True),
        ("", False),
    ]


# --- a host that can't keep its row -------------------------------------------------------------------------------------


def failure_of(host: Stepped) -> BaseException | None:
    """Why it stopped being a host."""
    return host.rt._embedded.host_of().failed


def test_a_host_that_cannot_renew_stops_within_its_validity(site: Site) -> None:
    """Its row holds 10 s; it is quiet by 8 s, so nobody else can be at work while it still is."""
    ran: list[int] = []

    @tool(risk="write", key=("n",), far_side="keyed", inline=True)
    async def book(n: int) -> int:
        """Book."""
        ran.append(n)
        return n

    model = ScriptedModel([held(call("book", {"n": 1}), "slow"), say("Done.")])
    host = site.open(model, [book])
    run_id = host.start()
    waiting = asyncio.run_coroutine_threadsafe(host.rt._embedded.result(run_id, None, "rest"), host.loop)
    host.settle()
    host.line.cut()
    host.advance(7_999)
    assert failure_of(host) is None
    host.advance(1)
    assert isinstance(failure_of(host), StoreError)
    model.gate("slow").open()
    host.advance(20_000)
    with pytest.raises(StoreError, match="host_lost"):
        waiting.result(STUCK_S)
    with pytest.raises(StoreError, match="host_lost"):
        host.start()
    assert ran == []


def test_a_host_whose_row_was_dropped_stops_at_its_next_renewal(site: Site) -> None:
    host = site.open([held(say("Done."), "slow")])
    host.start()
    host.settle()
    asyncio.run(site.store.drop_host(host.rt._embedded.host_of().host_id, died=True))
    host.advance(2_000)
    assert isinstance(failure_of(host), StoreError)
    with pytest.raises(StoreError, match="host_lost"):
        host.start()


def test_the_third_death_of_a_host_in_one_run_stops_it(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.db")
    with FarSide.start(in_order=True) as far, Forge() as forge:
        for death in range(HOST_DEATHS_MAX):
            order = Order(path=path, far_port=far.port, operation_id="o1", at=2 if death else 3)
            assert forge.run(order).status == -signal.SIGKILL
        last = forge.run(Order(path=path, far_port=far.port, operation_id="o1"))
    assert "crash_loop" in last.error
    assert "resumable=True" in last.error
    deaths = [event for event in events_of(Path(path), "r1") if isinstance(event, e.RunResumed)]
    assert [event.cause for event in deaths] == ["host_died"] * HOST_DEATHS_MAX
