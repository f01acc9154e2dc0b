"""The shipped contract works for a store of somebody else's, with a test framework or without."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from boundloop.eventstore.memory import MemoryStore
from boundloop.eventstore.port import AlreadyDone, Append, AppendAnswer, Conflict
from boundloop.eventstore.testkit import CASES, World, run_contract

PATIENCE_S = 60
FORGETFUL = {
    "test_the_same_append_again_is_already_done",
    "test_cancelling_the_caller_leaves_the_store_whole",
}


@asynccontextmanager
async def good(folder: str) -> AsyncGenerator[World]:
    world = World()
    world.store = MemoryStore(clock=world.clock, on_submit=world.on_submit, on_ready=world.on_ready)
    yield world


class _Forgetful(MemoryStore):
    async def append(self, request: Append) -> AppendAnswer:
        answer = await super().append(request)
        return Conflict(answer.seq) if isinstance(answer, AlreadyDone) else answer


@asynccontextmanager
async def bad(folder: str) -> AsyncGenerator[World]:
    world = World()
    world.store = _Forgetful(clock=world.clock, on_submit=world.on_submit, on_ready=world.on_ready)
    yield world


def test_there_are_more_than_sixty_cases_each_of_its_own_name() -> None:
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)


def test_a_store_that_keeps_the_contract_passes_each_case() -> None:
    outcomes = run_contract(good)
    assert [outcome for outcome in outcomes if outcome.failure] == []
    assert len(outcomes) == len(CASES)


def test_a_store_that_does_not_is_told_in_which_case_and_how() -> None:
    failed = {outcome.case: outcome.failure for outcome in run_contract(bad) if outcome.failure}
    assert failed.keys() == FORGETFUL
    assert all("AssertionError" in failure for failure in failed.values())


def test_it_runs_from_the_command_line_and_needs_no_test_framework() -> None:
    module = "tests.contract.test_testkit"
    for name, code, last in (
        ("good", 0, f"{len(CASES)} cases, 0 failed"),
        ("bad", 1, f"{len(CASES)} cases, {len(FORGETFUL)} failed"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "boundloop.eventstore.testkit", f"{module}:{name}"],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert (done.returncode, done.stdout.splitlines()[-1]) == (code, last), done.stderr
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, boundloop.eventstore.testkit; print('pytest' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert loaded.stdout == "False\n"
