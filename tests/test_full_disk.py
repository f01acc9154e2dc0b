"""A Runtime whose disk is full, or turns read-only, in the middle of a run. The disks are real ones, so where this process
may not mount any, ``test_store_trouble`` has to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from examples.far_side import FarSide
from tests.shell import ROOT, Shell
from tests.small_disk import Kind, SmallDisk, can_mount

KINDS: tuple[Kind, ...] = ("tmpfs", "ext4")
BOTH = [
    pytest.param(kind, marks=pytest.mark.skipif(not can_mount(kind), reason=f"no {kind} can be mounted here"))
    for kind in KINDS
]
PLAN = "book post_letter ship"
CLI = "from boundloop.actors.cli import main; main()"
STUCK_S = 60.0


def command_line(host: Shell, path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command where that host's disk is mounted."""
    where = ["nsenter", "--mount", "--target", str(host.pid)]
    return subprocess.run(
        [*where, sys.executable, "-c", CLI, *words, "--store", f"sqlite:///{path}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=STUCK_S,
        check=False,
    )


@pytest.mark.parametrize("append", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", BOTH)
def test_a_full_disk_in_the_middle_of_a_run_sends_nothing_without_its_intent(
    tmp_path: Path, kind: Kind, append: int
) -> None:
    disk = SmallDisk(kind, tmp_path / "disk")
    with FarSide.start() as far, Shell(disk.folder / "runs.db", far, "disk", under=disk.command) as host:
        host.ask("start", run="warm", plan="look_up")
        host.ask("wait", run="warm")
        host.ask("limit_files_at_append", append=append, bytes=1)
        host.tell("start", run="r1", plan=PLAN)
        host.tell("append_failed")
        started = host.answer()
        assert host.answer() == {"failed": True}
        # Of each effect one append holds the intent and the next one the outcome.
        assert sum(far.counts()["requests"].values()) <= (append - 1) // 2
        host.ask("limit_files", bytes=0)
        if "started" not in started:
            assert (append, started["error"], started["actor"]) == (1, "disk_full", "store")
            host.ask("start", run="r1", plan=PLAN)
        assert host.ask("wait", run="r1")["outcome"] == "completed"
        assert list(far.counts()["requests"].values()) == [1, 1, 1]


@pytest.mark.parametrize("kind", BOTH[1:])
def test_a_disk_that_turns_read_only_ends_in_errors_and_the_next_host_goes_on(
    tmp_path: Path, kind: Kind
) -> None:
    disk = SmallDisk(kind, tmp_path / "disk")
    path = disk.folder / "runs.db"
    with FarSide.start() as far:
        with Shell(path, far, under=disk.command) as host:
            host.ask("start", run="r1", plan="book refund ship")
            [approval] = host.ask("result", run="r1")["approvals"]
            before = far.counts()
            disk.fail()
            assert host.ask("approve", run="r1", approval=approval)["actor"] == "store"
            assert host.ask("start", run="r2", plan="book")["actor"] == "store"
            assert far.counts() == before
            listed = command_line(host, path, "runs", "list")
            assert (listed.returncode, "r1" in listed.stdout) == (0, True), listed.stderr
            # It has ended, though its row as a host couldn't be dropped: nothing holds the file any more.
            assert host.ask("close")["actor"] == "store"
            refused = command_line(host, path, "runs", "list")
            assert (refused.returncode, "Read-only" in refused.stderr) == (5, True)
            assert "Traceback" not in refused.stderr
        disk.repair()
        with Shell(path, far, under=disk.command) as host:
            assert "seq" in host.ask("approve", run="r1", approval=approval)
            assert host.ask("wait", run="r1")["outcome"] == "completed"
        assert list(far.counts()["requests"].values()) == [1, 1, 1]
