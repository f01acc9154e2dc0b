"""SIGKILL in the middle of a tree on a SQLite file; whoever opens the file next carries all of it to its end."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.tree_play import Tree, check_sums, own_use, read_tree, three_levels

from boundloop.actors.client import Runtime
from boundloop.eventstore.location import open_store
from boundloop.eventstore.verify import verify_store

from .tree_child import ROOT, RUN_ID, tools_to

APPENDS_LEAST = 30
CASES = [(at, position) for at in range(3, APPENDS_LEAST, 6) for position in ("before", "after")]
AHEAD_MS = 60_000
"""How much later the next process comes by its own clock: every validity of the last one is over."""


def killed(folder: Path, at: int, position: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            str(ROOT / "tests" / "crash" / "tree_child.py"),
            str(folder / "runs.db"),
            str(folder / "keys"),
            str(at),
            position,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=ROOT,
    )


async def whole_tree(path: Path) -> Tree:
    store = await open_store(f"sqlite:///{path}")
    try:
        verdict = await verify_store(store)
        assert verdict.ok, verdict
        return await read_tree(store, RUN_ID)
    finally:
        await store.close()


def test_the_tree_has_that_many_appends(tmp_path: Path) -> None:
    done = killed(tmp_path, 0, "before")
    text, _, appends = done.stdout.strip().partition(" ")
    assert (text, done.returncode) == ("done", 0), done.stderr
    assert int(appends) > APPENDS_LEAST


@pytest.mark.parametrize(("at", "position"), CASES)
def test_a_killed_process_leaves_a_tree_that_another_one_ends(tmp_path: Path, at: int, position: str) -> None:
    done = killed(tmp_path, at, position)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with Runtime(
        store=f"sqlite:///{tmp_path / 'runs.db'}",
        model=three_levels().model,
        tools=tools_to(str(tmp_path / "keys")),
        clock=lambda: time.time_ns() // 1_000_000 + AHEAD_MS,
    ) as runtime:
        result = runtime.wait(RUN_ID, timeout_s=50)
    assert (result.outcome, result.text) == ("completed", "done")
    tree = asyncio.run(whole_tree(tmp_path / "runs.db"))
    check_sums(tree)
    assert len(tree) == 4
    assert result.spent["turns"] == sum(own_use(events)["turns"] for _, events in tree.values())
    assert len(set((tmp_path / "keys").read_text().split())) == 1
