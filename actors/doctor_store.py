"""A store's file and what lies beside it: the file system, room, modes, the lock and its owner. The file itself is never
opened. A server is another matter (``doctor_postgres``)."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Final

from ..eventstore.file_system import judge, mount_of
from ..eventstore.location import parse_url, shown_url
from ..eventstore.owner import OwnerText, live_owner
from ..eventstore.process_identity import boot_id
from ..eventstore.socket_protocol import socket_name
from ..runtime.errors import BoundloopError
from .doctor_findings import Finding, fail, ok, warn
from .doctor_machine import Machine

ROOM_BYTES_MIN: Final = 64 * 1024 * 1024
ROOM_BYTES_LOW: Final = 1024 * 1024 * 1024
WAL_BYTES_HIGH: Final = 64 * 1024 * 1024
"""Four times what a reset WAL keeps: something holds a checkpoint up."""

NOBODY: Final = "nobody owns it: a command is its owner meanwhile, and runs stand still"

OVERLAYS: Final = frozenset(("overlay", "overlayfs", "aufs"))
IN_MEMORY: Final = frozenset(("tmpfs", "ramfs"))


def check_store(machine: Machine, url: str) -> Iterator[Finding]:
    """Everything about the store that shows from outside."""
    if not url:
        yield ok("store", "none was named", "", "--store URL, or BOUNDLOOP_STORE")
        return
    try:
        location = parse_url(url)
    except BoundloopError as error:
        yield fail("store", f"{shown_url(url)}: {error.message}", "no command can open it", "sqlite:///FILE")
        return
    if location.kind == "postgres":
        from .doctor_postgres import check_postgres

        yield from check_postgres(url)
        return
    if not location.path:
        yield warn("store", url, "runs live as long as this process", "sqlite:///FILE")
        return
    path = os.path.realpath(location.path)
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        yield fail("store", f"there is no folder {folder}", "no command can open it", "make the folder")
        return
    mount = mount_of(path, str(machine.proc / "self/mountinfo"))
    if mount.point == path and os.path.exists(path):
        yield fail(
            "store.file_system",
            "the file itself is a mount",
            "its WAL and its lock would lie elsewhere, and go with the container. It is refused",
            "mount its folder",
        )
    else:
        yield check_file_system(mount.kind)
    yield check_room(os.statvfs(folder))
    yield from check_modes(path)
    yield check_wal(path)
    yield check_owner(machine, path)


def check_file_system(kind: str) -> Finding:
    name = "store.file_system"
    judgement = judge(kind)
    if judgement == "network":
        return fail(
            name,
            kind,
            "locks and shared memory don't hold across machines there: two owners can damage the file. It is refused",
            "a local disk",
        )
    if judgement == "unknown":
        return fail(
            name,
            kind,
            "whether fsync reaches a disk and locks hold is up to a program that nobody here knows. It is refused",
            "a local disk",
        )
    if kind.startswith("fuse"):
        return warn(name, kind, "an fsync is only as good as the program behind it", "a local disk")
    if kind in OVERLAYS:
        return warn(
            name,
            kind,
            "a container's own layer: it goes with the container, and a first write copies the file",
            "a volume",
        )
    if kind in IN_MEMORY:
        return warn(name, kind, "it is memory: it goes with the machine's next start", "a local disk")
    if not kind:
        return warn(name, "the system doesn't tell", "a network file system could pass unseen", "mount /proc")
    return ok(name, kind)


def check_room(space: os.statvfs_result) -> Finding:
    free = space.f_bavail * space.f_frsize
    found = f"{free // 2**20} MiB free"
    if space.f_files > 0 and space.f_favail == 0:
        return fail("store.room", "no inode is free", "a WAL can't be made", "remove files")
    if free < ROOM_BYTES_MIN:
        return fail(
            "store.room", found, "an append that finds no room is undone, and no effect is sent", "make room"
        )
    if free < ROOM_BYTES_LOW:
        return warn("store.room", found, "logs are never deleted by themselves", "make room")
    return ok("store.room", found)


def check_modes(path: str) -> Iterator[Finding]:
    """What others may do with the file, the folder and the socket."""
    faults: list[str] = []
    socket = os.path.join(os.path.dirname(path), socket_name(path))
    for name in (path, f"{path}-wal", f"{path}.lock", socket):
        mode = _mode(name)
        if mode is not None and mode & 0o077:
            faults.append(f"{os.path.basename(name)} {stat.S_IMODE(mode):04o}")
    if faults:
        yield warn(
            "store.modes",
            ", ".join(faults),
            "other users can read what runs were told, or give commands to the owner",
            f"chmod 600 {path}*",
        )
    else:
        yield ok("store.modes", "nobody else may read the file or use its socket")
    folder = _mode(os.path.dirname(path)) or 0
    if folder & 0o022 and not folder & stat.S_ISVTX:
        yield fail(
            "store.folder",
            f"mode {stat.S_IMODE(folder):04o}",
            "other users can put another file or lock in place of these",
            "chmod go-w",
        )
    elif folder & 0o022:
        yield warn(
            "store.folder",
            f"mode {stat.S_IMODE(folder):04o}",
            "other users can make files beside these, a socket or a WAL before the store does",
            "a folder of its own, mode 0700",
        )
    else:
        yield ok("store.folder", f"mode {stat.S_IMODE(folder):04o}")


def _mode(path: str) -> int | None:
    try:
        return os.stat(path).st_mode
    except OSError:
        return None


def check_wal(path: str) -> Finding:
    try:
        size = os.stat(f"{path}-wal").st_size
    except OSError:
        return ok("store.wal", "there is none")
    found = f"{size // 1024} KiB"
    if size > WAL_BYTES_HIGH:
        return warn(
            "store.wal",
            found,
            "checkpoints don't keep up, or a killed owner left it; every opening reads all of it",
            "close the owner in good order once, which folds it in",
        )
    return ok("store.wal", found)


def check_owner(machine: Machine, path: str) -> Finding:
    """Who holds the lock, and in which state that process is."""
    name = "store.owner"
    try:
        owner = live_owner(f"{path}.lock")
    except (BoundloopError, OSError) as error:
        return warn(name, str(error), "the lock can't be asked", "look at the modes of FILE.lock")
    if owner is None:
        return ok(name, NOBODY)
    return _judged(machine, owner)


def _judged(machine: Machine, owner: OwnerText) -> Finding:
    name = "store.owner"
    process = owner.process
    found = f"process {process.pid} on {process.host}"
    if process.pid == 0:
        return warn(
            name,
            "somebody who doesn't say who",
            "the lock is held, and its text names nobody; it can't be taken over",
            "fuser FILE.lock",
        )
    if process.boot_id != boot_id():
        return fail(
            name,
            f"{found}, of another machine or another boot",
            "the lock is held from elsewhere, so the file is shared: two owners can damage it",
            "a local disk, and one machine",
        )
    state = machine.text(f"{process.pid}/stat").rpartition(")")[2].split()
    if state and state[0] in ("T", "t"):
        return fail(
            name,
            f"{found}, stopped",
            "it keeps the lock and does nothing: no run goes on and no command gets in",
            "kill -CONT it, or start a Runtime with take_over=True",
        )
    brief = ", for one command" if owner.brief else ""
    return ok(name, f"{found}, alive{brief}")
