"""Decisions from another shell, with real processes: through the socket of a Runtime that lives, and as the file's owner
for one command while none does."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples.far_side import FarSide
from tests.shell import ROOT, Shell

from boundloop.eventstore.history import read_records
from boundloop.eventstore.location import connect_store, open_store
from boundloop.eventstore.port import EventStore
from boundloop.eventstore.submit import decode_answer, host_for_one_command, submit_unhosted
from boundloop.eventstore.verify import verify_store
from boundloop.runtime import events as e
from boundloop.runtime.commands import Approve, CommandAnswer, encode_command

CLI = "from boundloop.actors.cli import main; main()"
STUCK_S = 60.0
AT_ONCE = 50


@pytest.fixture
def far() -> Iterator[FarSide]:
    with FarSide.start() as started:
        yield started


def boundloop(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line in a shell of its own."""
    return subprocess.run(
        [sys.executable, "-c", CLI, *arguments, "--store", f"sqlite:///{path}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=STUCK_S,
        check=False,
    )


def asks_for_approval(shell: Shell, run_id: str) -> str:
    """Start a run that waits for a person; the approval's id."""
    shell.ask("start", run=run_id, plan="look_up refund book")
    result = shell.ask("result", run=run_id)
    assert result["status"] == "waiting"
    [approval] = result["approvals"]
    return str(approval)


def test_approved_through_the_socket_of_a_living_runtime(tmp_path: Path, far: FarSide) -> None:
    path = tmp_path / "runs.db"
    with Shell(path, far) as host:
        approval = asks_for_approval(host, "r1")
        assert boundloop(path, "approve", approval).returncode == 0
        assert host.ask("wait", run="r1")["outcome"] == "completed"
    assert_once(far, 2)


def test_approved_while_no_runtime_lives_and_the_next_one_goes_on(tmp_path: Path, far: FarSide) -> None:
    path = tmp_path / "runs.db"
    with Shell(path, far) as host:
        approval = asks_for_approval(host, "r1")
        host.ask("close")
    assert boundloop(path, "approve", approval).returncode == 0
    assert far.counts()["effects"] == {}
    with Shell(path, far) as successor:
        assert successor.ask("wait", run="r1")["outcome"] == "completed"
    assert_once(far, 2)


def test_approved_after_the_host_was_killed(tmp_path: Path, far: FarSide) -> None:
    path = tmp_path / "runs.db"
    with Shell(path, far) as host:
        approval = asks_for_approval(host, "r1")
        host.process.kill()
        host.process.wait(STUCK_S)
    assert boundloop(path, "approve", approval).returncode == 0
    assert boundloop(path, "approve", approval).returncode != 0
    with Shell(path, far) as successor:
        assert successor.ask("wait", run="r1")["outcome"] == "completed"
    assert_once(far, 2)


@pytest.mark.parametrize("lives", [True, False], ids=["a runtime lives", "none lives"])
def test_fifty_approvals_at_once_are_one_decision_and_one_effect(
    tmp_path: Path, far: FarSide, lives: bool
) -> None:
    """Half of them over connections of their own, the other half over one."""
    path = tmp_path / "runs.db"
    with Shell(path, far) as host:
        approval = asks_for_approval(host, "r1")
        if not lives:
            host.ask("close")
        answers = asyncio.run(approve_at_once(path, approval, lives))
        codes = Counter("taken" if answer.accepted else answer.code for answer in answers)
        assert codes["taken"] == 1
        assert sum(codes.values()) == AT_ONCE
        if lives:
            assert host.ask("wait", run="r1")["outcome"] == "completed"
    if not lives:
        with Shell(path, far) as successor:
            assert successor.ask("wait", run="r1")["outcome"] == "completed"
    assert_once(far, 2)
    assert asyncio.run(decisions_in(path)) == 1


async def approve_at_once(path: Path, approval: str, lives: bool) -> list[CommandAnswer]:
    url = f"sqlite:///{path}"
    if lives:
        stores = [await connect_store(url) for _ in range(AT_ONCE // 2)]
    else:
        opened = await open_store(url)
        stores = [opened]
    try:
        return list(
            await asyncio.gather(
                *(
                    _approve(stores[number % len(stores)], approval, number, lives)
                    for number in range(AT_ONCE)
                )
            )
        )
    finally:
        for store in stores:
            await store.close()


async def _approve(store: EventStore, approval: str, number: int, lives: bool) -> CommandAnswer:
    command = Approve(command_id=f"k{number}", by=f"os:p{number}@desk", approval_id=approval)
    if lives:
        return decode_answer(await store.submit("r1", command.command_id, encode_command(command)))
    async with host_for_one_command(store) as host_id:
        return await submit_unhosted(store, "r1", command, host_id=host_id)


async def decisions_in(path: Path) -> int:
    store = await open_store(f"sqlite:///{path}")
    try:
        assert (await verify_store(store)).ok
        records = await read_records(store, "r1")
    finally:
        await store.close()
    return sum(isinstance(record.event, e.ApprovalDecided) for record in records)


def assert_once(far: FarSide, effects: int) -> None:
    """Every effect was asked for once and happened once."""
    counts = far.counts()
    assert list(counts["requests"].values()) == [1] * effects
    assert list(counts["effects"].values()) == [1] * effects
