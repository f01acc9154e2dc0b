"""On which file systems a SQLite file is safe: where locks hold, fsync reaches a disk, and a file and its WAL lie together.

The type is the mount table's, which names what is behind FUSE; where that can't be read, the kernel's number.
"""

from __future__ import annotations

import ctypes
import os
import re
from typing import Final, Literal

import msgspec

Judgement = Literal["safe", "network", "unknown"]

MOUNTS: Final = "/proc/self/mountinfo"

NETWORK: Final = frozenset(
    (
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "drvfs",
        "fakeowner",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "osxfs",
        "prl_fs",
        "pvfs2",
        "smb3",
        "smbfs",
        "vboxsf",
        "virtiofs",
        "vmhgfs",
        "wekafs",
    )
)
"""Files of another machine, or of the host of a virtual one: locks of two machines don't meet, and fsync may stop
half-way."""

LOCAL_FUSE: Final = frozenset(
    ("fuse.encfs", "fuse.fuse-overlayfs", "fuse.fuse2fs", "fuse.gocryptfs", "fuseblk")
)
"""FUSE over a local disk. Any other may be a bucket or another machine, and only its program knows what it does with a lock
or an fsync."""

_NUMBERS: Final = {
    0x01021997: "9p",
    0x5346414F: "afs",
    0x6B414653: "afs",
    0x00C36400: "ceph",
    0xFF534D42: "cifs",
    0x73757245: "coda",
    0x65735546: "fuse",
    0x01161970: "gfs2",
    0x47504653: "gpfs",
    0x0BD00BD0: "lustre",
    0x6969: "nfs",
    0x7461636F: "ocfs2",
    0xFE534D42: "smb3",
    0x517B: "smbfs",
    0x786F4256: "vboxsf",
    0x794C7630: "overlay",
    0x01021994: "tmpfs",
    0x858458F6: "ramfs",
}
"""What ``statfs`` says of those that matter here; FUSE is one number whatever is behind it, virtiofs among them."""


class Mount(msgspec.Struct, frozen=True):
    """What holds a path: where it is mounted, and its type. Both empty if the system doesn't say."""

    point: str
    kind: str


def judge(kind: str) -> Judgement:
    """What a file system of this type is for a store. ``unknown`` is FUSE that isn't known to be local; a type that the
    system doesn't tell is taken for safe, for want of anything to go by."""
    if kind in NETWORK:
        return "network"
    if kind.startswith("fuse") and kind not in LOCAL_FUSE:
        return "unknown"
    return "safe"


def mount_of(path: str, mounts: str = MOUNTS) -> Mount:
    """The mount that holds this path, which need not exist but for its folder. Links must be resolved."""
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as lines:
            rows = [line.split() for line in lines]
    except OSError:
        rows = []
    best = Mount("", "")
    for row in rows:
        point = re.sub(
            r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), row[4]
        )  # a blank is written as \040
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best.point):  # of two mounts on one point the later one is seen
            best = Mount(point, row[row.index("-") + 1])
    return best if best.kind else Mount("", _kind_by_number(os.path.dirname(path) or "/"))


def _kind_by_number(folder: str) -> str:
    """By ``statfs``, which needs no /proc; empty for what isn't known here."""
    try:
        library = ctypes.CDLL(None)
        answer = ctypes.create_string_buffer(512)
        if library.statfs(os.fsencode(folder), answer) != 0:
            return ""
    except (OSError, AttributeError):
        return ""
    number = ctypes.c_long.from_buffer(answer).value & 0xFFFFFFFF
    return _NUMBERS.get(number, "")
