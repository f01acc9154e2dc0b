"""Where a SQLite file is refused, because neither locks nor fsync can be relied upon there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.fake_proc import FakeProc
from tests.shell import ROOT
from tests.small_disk import can_mount

from boundloop.actors import doctor_store
from boundloop.eventstore import file_system, sqlite_file
from boundloop.eventstore.file_system import Mount, judge, mount_of
from boundloop.eventstore.sqlite_file import real_path
from boundloop.runtime.errors import StoreError

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:40 / /data/my\\040share rw shared:9 - nfs4 server:/x rw
31 30 0:41 / /data/my\\040share/local rw - xfs /dev/vdb rw
32 22 0:42 / /data/over rw - ext4 /dev/vdc rw
33 22 0:43 / /data/over rw - 9p none rw
34 22 0:44 /runs.db /data/runs.db rw - ext4 /dev/vdc rw
"""


def test_the_innermost_and_latest_mount_counts(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text(MOUNTS)

    def kind(path: str) -> str:
        return mount_of(path, str(tmp_path / "mounts")).kind

    assert kind("/data/my share/runs.db") == "nfs4"
    assert kind("/data/my share/deep/runs.db") == "nfs4"
    assert kind("/data/my share/local/x/runs.db") == "xfs"
    assert kind("/data/my shares/runs.db") == "ext4"
    assert kind("/data/over/runs.db") == "9p"
    assert mount_of("/data/runs.db", str(tmp_path / "mounts")).point == "/data/runs.db"


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph", "lustre", "fakeowner"]
)
def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    assert refusal(tmp_path, monkeypatch, Mount("/", kind)) == "network_file_system"


@pytest.mark.parametrize(
    "kind", ["fuse", "fuse.sshfs", "fuse.s3fs", "fuse.rclone", "fuse.juicefs", "fuse.new"]
)
def test_fuse_that_is_not_known_to_be_local_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    assert refusal(tmp_path, monkeypatch, Mount("/", kind)) == "fuse_file_system"


@pytest.mark.parametrize(
    "kind", ["ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs", "fuseblk", "fuse.gocryptfs", ""]
)
def test_a_local_file_system_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    assert refusal(tmp_path, monkeypatch, Mount("/", kind)) == ""


def refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: Mount) -> str:
    """The code of the refusal, empty if there is none."""

    def mounted(path: str) -> Mount:
        return mount

    monkeypatch.setattr(sqlite_file, "mount_of", mounted)
    try:
        real_path(str(tmp_path / "runs.db"))
    except StoreError as error:
        return error.code
    return ""


def test_without_a_mount_table_the_kernel_says_the_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = mount_of(str(tmp_path / "runs.db"))
    by_number = mount_of(str(tmp_path / "runs.db"), str(tmp_path / "absent"))
    assert by_number.point == ""
    assert by_number.kind in ("", here.kind)
    assert mount_of("/proc/runs.db", str(tmp_path / "absent")).kind == ""
    monkeypatch.setattr(file_system, "_NUMBERS", {0x9FA0: "nfs"})  # /proc's own number
    assert judge(mount_of("/proc/runs.db", str(tmp_path / "absent")).kind) == "network"


OPEN = """
import asyncio, sys
from boundloop.eventstore.location import open_store
from boundloop.runtime.errors import StoreError
try:
    asyncio.run(open_store("sqlite:///" + sys.argv[1]))
except StoreError as error:
    print(error.code)
"""


@pytest.mark.skipif(not can_mount("tmpfs"), reason="nothing can be mounted here")
def test_a_file_that_is_a_mount_of_its_own_is_refused(tmp_path: Path) -> None:
    """As a container has it that is given one file and not its folder."""
    outside, inside = tmp_path / "outside.db", tmp_path / "inside" / "runs.db"
    inside.parent.mkdir()
    for path in (outside, inside):
        path.touch()
    script = 'mount --bind "$1" "$2" && exec "$3" -c "$4" "$2"'
    arguments = (str(outside), str(inside), sys.executable, OPEN)
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "mounted_file\n"
    assert sorted(path.name for path in inside.parent.iterdir()) == ["runs.db"]


def test_the_doctor_says_so_of_a_mounted_file(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    path = tmp_path / "runs.db"
    path.touch()
    proc.file(
        "self/mountinfo", f"30 20 0:1 / / rw - ext4 /dev/a rw\n31 30 0:1 /x {path} rw - ext4 /dev/a rw\n"
    )
    found = {one.name: one for one in doctor_store.check_store(proc.machine(), f"sqlite:///{path}")}
    assert found["store.file_system"].level == "fail"
    assert "mount its folder" in str(found["store.file_system"])
