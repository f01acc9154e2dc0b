"""Commands on a store that no application owns: each owns the file for a moment, and none of them gets in another's way."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from boundloop.actors.client import Runtime
from boundloop.adapters.script import call, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.eventstore.history import load_run
from boundloop.eventstore.location import connect_store
from boundloop.runtime import events as e
from boundloop.runtime.limits import WAIVED, Limits
from boundloop.runtime.tool_spec import tool

ROOT: Final = Path(__file__).resolve().parent.parent
CLI: Final = "from boundloop.actors.cli import main; main()"
PATIENCE_S: Final = 120
RUNS: Final = 6


@tool(risk="irreversible", key=("order",), far_side="keyed")
async def refund(order: int) -> dict[str, int]:
    """Refund an order."""
    return {"order": order}


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store whose runs ``r0 …`` wait for an approval each, and whose application is gone."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"

    model = ScriptedModel([call("refund", {"order": 1}), say("done")])
    with Runtime(store=url, model=model, tools=[refund]) as runtime:
        for number in range(RUNS):
            result = runtime.run_sync("pay", limits=Limits(cost=WAIVED), run_id=f"r{number}")
            assert len(result.approvals) == 1
    return url


def at_once(url: str, *commands: tuple[str, ...]) -> list[tuple[int, str]]:
    """Exit codes and error texts of command lines that run at the same time."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CLI, *command, "--store", url],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    ended: list[tuple[int, str]] = []
    for process in processes:
        _, errors = process.communicate(timeout=PATIENCE_S)
        ended.append((process.returncode, errors))
    return ended


async def kinds(url: str, run_id: str) -> Counter[type[e.Event]]:
    store = await connect_store(url)
    try:
        _, records = await load_run(store, run_id)
    finally:
        await store.close()
    return Counter(type(record.event) for record in records)


def test_eight_readers_at_once_all_read(url: str) -> None:
    commands = [("why", "r0"), ("runs", "list"), ("log", "r1"), ("inbox",)] * 2
    ended = at_once(url, *commands)
    assert [errors for _, errors in ended] == [""] * 8
    assert {code for code, _ in ended} <= {0, 7}  # 7: it waits for a person


@pytest.mark.asyncio
async def test_six_cancels_at_once_all_count(url: str) -> None:
    assert at_once(url, *(("cancel", f"r{number}") for number in range(RUNS))) == [(0, "")] * RUNS
    for number in range(RUNS):
        assert (await kinds(url, f"r{number}"))[e.CancelRequested] == 1


@pytest.mark.asyncio
async def test_two_approvals_of_one_call_at_once_decide_it_once(url: str) -> None:
    store = await connect_store(url)
    state, _ = await load_run(store, "r0")
    await store.close()
    approvals = [one.approval.approval_id for one in state.calls.values() if one.approval is not None]
    ended = at_once(url, *[("approve", approvals[0])] * 2)
    assert 0 in {code for code, _ in ended}
    assert {code for code, _ in ended} <= {0, 4}  # the second is told that it was decided
    assert (await kinds(url, "r0"))[e.ApprovalDecided] == 1


READER = """
import asyncio, sys
from boundloop.eventstore.location import connect_store

async def main():
    store = await connect_store(sys.argv[1])
    assert store.owns
    print("reading", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    await store.close()

asyncio.run(main())
"""


def test_a_program_starts_while_a_command_reads(url: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", READER, url],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reading\n"
        with ThreadPoolExecutor(1) as pool:
            starting = pool.submit(Runtime, store=url)
            reader.stdin.write("\n")
            reader.stdin.flush()
            starting.result(PATIENCE_S).close()
