"""A file that has its name once it is whole and on disk.

Until then it is ``NAME.XXXXXXXXXXXXXXXX.part`` beside it, with sixteen random hex digits: a file of nobody else's, whatever lies
in the folder, and readable for its owner only. So makers of one name don't meet before the end. A crash leaves that file, or
the whole one under its name.
"""

from __future__ import annotations

import ctypes
import errno
import os
from secrets import token_hex
from typing import Final

PART_BYTES: Final = 8
"""Random bytes in the name of a part."""

_AT_FDCWD: Final = -100
_RENAME_NOREPLACE: Final = 1
_CANT: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM)
"""What a kernel, a file system or a sandbox without this rename says. Of a folder without permission it is ``EACCES``."""


def begin_file(path: str) -> tuple[str, int]:
    """A new, empty file for what will be ``path``: its name, and a descriptor to write to. Raises ``OSError``."""
    part = f"{path}.{token_hex(PART_BYTES)}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return part, os.open(part, flags, 0o600)


def name_over(part: str, path: str) -> None:
    """The part, which is synced, is ``path`` from now on, instead of what was. Raises ``OSError``."""
    os.replace(part, path)
    sync_folder(path)


def name_new(part: str, path: str) -> None:
    """The part, which is synced, is ``path`` from now on. Raises ``FileExistsError`` if there is anything of that name, which stays as
    it is, and ``OSError``. At no moment has the file two names, but where the file system can't rename so (ext4, XFS, Btrfs,
    ZFS and tmpfs can): there a kill may leave it both."""
    if not _renamed(part, path):
        os.link(part, path)  # this writes over nothing either
        os.unlink(part)
    sync_folder(path)


def _renamed(part: str, path: str) -> bool:
    try:
        library = ctypes.CDLL(None, use_errno=True)
        rename = library.renameat2
    except (OSError, AttributeError):
        return False
    done = rename(_AT_FDCWD, os.fsencode(part), _AT_FDCWD, os.fsencode(path), _RENAME_NOREPLACE)
    number = 0 if done == 0 else ctypes.get_errno()
    if number in _CANT:
        return False
    if number:
        raise OSError(number, os.strerror(number), path)
    return True


def sync_folder(path: str) -> None:
    """The name of this file is on disk after this."""
    descriptor = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
