"""``doctor`` on the store, the process and the command line."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.command_line import CommandLine
from tests.fake_proc import FakeProc
from tests.stopping import stop

from boundloop.actors import doctor_process as process_checks
from boundloop.actors import doctor_store as store_checks
from boundloop.actors.doctor import examine, healthy
from boundloop.actors.doctor_findings import Finding
from boundloop.actors.doctor_machine import Machine
from boundloop.eventstore.location import open_store
from boundloop.eventstore.owner import OwnerText
from boundloop.eventstore.process_identity import ProcessIdentity, boot_id
from boundloop.eventstore.sqlite_library import SqliteLibrary, has_wal_reset_race, this_library

OWN = """
import asyncio, sys
from boundloop.eventstore.location import open_store

async def own():
    store = await open_store(sys.argv[1])
    print("owned", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await store.close()

asyncio.run(own())
"""


def of_store(path: Path) -> dict[str, Finding]:
    return {finding.name: finding for finding in store_checks.check_store(Machine(), f"sqlite:///{path}")}


# --- the store -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        ("nfs4", "fail"),
        ("cifs", "fail"),
        ("9p", "fail"),
        ("fuse.sshfs", "fail"),
        ("fuse.something", "fail"),
        ("fuse", "fail"),
        ("fuse.gocryptfs", "warn"),
        ("fuseblk", "warn"),
        ("overlay", "warn"),
        ("tmpfs", "warn"),
        ("", "warn"),
        ("ext4", "ok"),
        ("xfs", "ok"),
    ],
)
def test_file_systems_are_judged_by_what_locks_and_syncs_are_worth_there(kind: str, level: str) -> None:
    assert store_checks.check_file_system(kind).level == level


def test_the_file_system_is_that_of_the_mount_table(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.file("self/mountinfo", "30 20 0:1 / / rw - ext4 /dev/a rw\n31 30 0:2 / /tmp rw - nfs4 far:/x rw\n")
    found = {one.name: one for one in store_checks.check_store(proc.machine(), "sqlite:////tmp/runs.db")}
    assert (found["store.file_system"].level, found["store.file_system"].found) == ("fail", "nfs4")


@pytest.mark.parametrize(
    ("blocks", "inodes", "level"), [(10, 5, "fail"), (2**19, 5, "ok"), (2**17, 5, "warn"), (2**19, 0, "fail")]
)
def test_room_counts_bytes_and_inodes(blocks: int, inodes: int, level: str) -> None:
    space = os.statvfs_result((4096, 4096, 2**20, blocks, blocks, 100, inodes, inodes, 0, 255))
    assert store_checks.check_room(space).level == level


def test_a_file_that_others_may_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    path.touch(0o600)
    os.chmod(tmp_path, 0o700)
    assert of_store(path)["store.modes"].level == "ok"
    assert of_store(path)["store.folder"].level == "ok"
    os.chmod(path, 0o644)
    os.chmod(tmp_path, 0o777)
    found = of_store(path)
    assert "runs.db 0644" in found["store.modes"].found
    assert found["store.folder"].level == "fail"
    os.chmod(tmp_path, 0o1777)
    assert of_store(path)["store.folder"].level == "warn"


def test_a_wal_that_grew_past_what_checkpoints_keep_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    assert of_store(path)["store.wal"].level == "ok"
    with open(f"{path}-wal", "wb") as file:
        file.truncate(store_checks.WAL_BYTES_HIGH + 1)
    assert of_store(path)["store.wal"].level == "warn"


def test_a_living_owner_is_told_from_a_stopped_one_and_from_none(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    assert "nobody owns it" in of_store(path)["store.owner"].found
    command = [sys.executable, "-c", OWN, f"sqlite:///{path}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"owned\n"
        found = of_store(path)
        assert f"process {owner.pid}" in found["store.owner"].found
        assert {one.level for one in found.values()} == {"ok"}
        stop(owner.pid)
        stopped = of_store(path)["store.owner"]
        assert (stopped.level, "stopped" in stopped.found) == ("fail", True)
        os.kill(owner.pid, signal.SIGKILL)
    assert "nobody owns it" in of_store(path)["store.owner"].found


@pytest.mark.parametrize(
    ("pid", "boot", "level"), [(0, "", "warn"), (4, "of-another-machine", "fail"), (0, "here", "warn")]
)
def test_an_owner_that_is_of_another_boot_or_says_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pid: int, boot: str, level: str
) -> None:
    identity = ProcessIdentity(pid=pid, pid_start=1, boot_id=boot_id() if boot == "here" else boot, host="x")
    text = OwnerText(process=identity, token="")

    def owner(path: str) -> OwnerText:
        return text

    monkeypatch.setattr(store_checks, "live_owner", owner)
    assert of_store(tmp_path / "runs.db")["store.owner"].level == level


@pytest.mark.parametrize("url", ["sqlite:///", "postgres://x", "sqlite:////nowhere/at/all.db"])
def test_a_store_that_no_command_could_open_is_a_failure(url: str) -> None:
    assert [one.level for one in store_checks.check_store(Machine(), url)] == ["fail"]


# --- the process and the machine -------------------------------------------------------------------------------------


def test_bounds_of_versions_are_compared_by_number() -> None:
    within = process_checks.within
    assert within("2.60.0", ">=2.52,<3")
    assert not within("2.51.9", ">=2.52,<3")
    assert not within("3.0", ">=2.52,<3")
    assert within("3.11.7", ">=3.11,<3.14")
    assert not within("3.14.0rc1", ">=3.11,<3.14")
    assert not within("1.2", "==1.3")
    assert within("2.9.0", "")
    assert process_checks.check_version("ray", "", ">=2.52,<3").level == "fail"
    assert process_checks.check_version("ray", "2.9.0", ">=2.52,<3").level == "fail"


def test_what_the_package_asks_for_is_what_is_compared() -> None:
    ranges = process_checks.supported_ranges()
    assert ranges["msgspec"].startswith((">=", "<"))
    assert {one.level for one in process_checks.check_versions()} == {"ok"}


@pytest.mark.parametrize(
    ("version", "race"),
    [
        ((3, 6, 23), False),
        ((3, 7, 0), True),
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 52, 0), False),
    ],
)
def test_the_range_of_the_wal_reset_race(version: tuple[int, int, int], race: bool) -> None:
    assert has_wal_reset_race(version) is race


def test_the_library_says_its_default_and_a_store_says_full() -> None:
    assert this_library().synchronous in ("FULL", "NORMAL")
    found = process_checks.check_sqlite(SqliteLibrary("3.40.1", True, "NORMAL"))
    assert "EXCLUSIVE" in found.found
    assert "FULL" in found.means


def test_numbers_of_the_machine_have_their_bounds(tmp_path: Path) -> None:
    checks = process_checks
    assert checks.check_niceness(15).level == "warn"
    assert checks.check_niceness(0).level == "ok"
    assert checks.check_open_files(256).level == "warn"
    assert checks.check_open_files(resource.RLIM_INFINITY).level == "ok"
    assert checks.check_shared_memory((64 * 2**20, 60 * 2**20)).level == "warn"
    assert checks.check_shared_memory((2**30, 2**30)).level == "ok"
    assert checks.check_shared_memory(None).level == "warn"
    assert checks.check_identity("", 5).level == "warn"
    proc = FakeProc(tmp_path)
    assert checks.check_memory(proc.machine()).level == "warn"
    proc.file("meminfo", "MemTotal:  9 kB\nMemAvailable:     600000 kB\n")
    assert checks.check_memory(proc.machine()).level == "warn"
    proc.file("meminfo", "MemAvailable:     8000000 kB\n")
    assert "Ray itself and about 82 actors" in checks.check_memory(proc.machine()).found


# --- the command line ------------------------------------------------------------------------------------------------


def test_the_worst_comes_first_and_decides_the_exit_code(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert cli("doctor").code == 0
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    monkeypatch.setenv("RAY_testing_x", "\x1b[2J")
    done = cli("doctor", "-o", "json")
    assert done.code == 1
    assert (done.value[0]["level"], done.value[0]["name"]) == ("fail", "ray.address")
    shown = cli("doctor")
    assert shown.code == 1
    assert shown.out.startswith("fail  ray.address")
    assert "To do: " in shown.out
    assert "\x1b" not in shown.out
    assert cli("--store", "sqlite:///", "doctor").code == 1


def test_a_healthy_machine_fails_nothing(tmp_path: Path) -> None:
    found = examine(Machine(environment={}), f"sqlite:///{tmp_path}/runs.db")
    assert healthy(found), [one for one in found if one.level == "fail"]
    assert len({one.name for one in found}) == len(found)


def test_a_store_that_is_looked_at_is_neither_made_nor_opened(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    of_store(path)
    assert list(tmp_path.iterdir()) == []

    async def make() -> None:
        store = await open_store(f"sqlite:///{path}")
        await store.close()

    asyncio.run(make())
    before = path.read_bytes()
    of_store(path)
    assert path.read_bytes() == before


def test_without_being_asked_ray_is_not_imported(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom boundloop.actors.cli import invoke\ncode = invoke(['doctor'])\n"
        "sys.exit(99 if 'ray' in sys.modules else code)"
    )
    environment = {name: text for name, text in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=False, timeout=60, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
