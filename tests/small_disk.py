"""Real small disks, for a process that is started on one: full when their owner fills them, read-only when they are told to fail.

A disk is mounted in a mount namespace of the process that uses it and is gone with it. ``tmpfs`` is memory; ``ext4`` is an image
behind a loop device, which keeps what was written for the next process.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final, Literal

Kind = Literal["tmpfs", "ext4"]
SIZE: Final = "6M"
TRIES_MAX: Final = 10_000

_MOUNT: Final[dict[Kind, str]] = {
    "tmpfs": f'mount -t tmpfs -o size={SIZE} none "$1"',
    "ext4": 'mount -o loop,errors=remount-ro "$1.img" "$1"',
}


class SmallDisk:
    """``folder`` is where it is mounted, for the process that ``command`` starts."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._kind: Kind = kind
        self._image = Path(f"{folder}.img")
        if kind == "ext4":
            with open(self._image, "wb") as image:
                image.truncate(8 * 1024 * 1024)
            subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(self._image)], check=True)

    @property
    def command(self) -> list[str]:
        """What stands before a command, so that it runs with the disk mounted."""
        script = f'{_MOUNT[self._kind]} && shift && exec "$@"'
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", str(self.folder)]

    def fail(self) -> None:
        """As if the disk had failed a write of the file system's own: it turns read-only under whoever uses it."""
        assert self._kind == "ext4"
        device = Path(self._loop()).name
        Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("made to fail\n")

    def repair(self) -> None:
        """Once nobody uses it any more: as a person does before it is mounted again."""
        for _ in range(TRIES_MAX):
            if not self._loop():
                break
        else:
            raise AssertionError("the disk is still mounted")
        done = subprocess.run(["e2fsck", "-fy", str(self._image)], check=False, capture_output=True)
        assert done.returncode in (0, 1), done.stdout  # 1: it was repaired

    def _loop(self) -> str:
        listed = subprocess.run(
            ["losetup", "-n", "-O", "NAME", "-j", str(self._image)],
            check=True,
            capture_output=True,
            text=True,
        )
        return listed.stdout.strip()


@functools.cache
def can_mount(kind: Kind) -> bool:
    """Whether this process may mount such a disk."""
    if os.geteuid() != 0 or not all(
        shutil.which(name) for name in ("unshare", "nsenter", "mount", "losetup")
    ):
        return False
    script = "mount -t tmpfs none /mnt"
    if kind == "ext4":
        if not (
            shutil.which("mkfs.ext4")
            and os.path.isdir("/sys/fs/ext4")
            and os.path.exists("/dev/loop-control")
        ):
            return False
        script += ' && cd /mnt && truncate -s 8M d && mkfs.ext4 -q d && mkdir m && mount -o loop d m && mount | grep -q " ext4 "'
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
        check=False,
        capture_output=True,
        timeout=60,
    )
    return done.returncode == 0


def fill(folder: Path) -> None:
    """Leave no byte free on the disk that holds this folder."""
    with open(folder / "filler", "ab", buffering=0) as filler:
        for size in (1024 * 1024, 4096, 1):
            try:
                while filler.write(bytes(size)) == size:
                    pass
            except OSError:
                continue


def make_room(folder: Path) -> None:
    """Give back what ``fill`` took."""
    (folder / "filler").unlink(missing_ok=True)
