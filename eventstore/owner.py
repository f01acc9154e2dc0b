"""The lock that makes one process the owner of a SQLite file.

``FILE.lock`` is a file of its own, never removed, held with ``flock``: the kernel lets go when the owner's last
descriptor closes, however the owner died, and a stopped owner keeps it. Its text names the owner for whoever comes
second; the lock, not the text, is the truth. So a text stands there only while its writer holds the lock: whoever gets
the lock clears it first, and whoever gives the lock up clears it before. What a killed owner leaves names a process
that is gone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import time
import weakref
from secrets import token_hex

import msgspec

from ..runtime.errors import DiskFull, OwnedError, StoreError
from .process_identity import ProcessIdentity, is_same_process, this_process

TEXT_WAIT_MS = 1_000
"""How long to wait for a new owner to write who it is, or for a text of an owner that just ended to be replaced."""

BRIEF_WAIT_MS = 5_000
"""How long whoever comes to stay waits for an owner that is there for one command."""

TAKE_OVER_WAIT_MS = 5_000
"""How long a killed owner may take to end (a process in a disk wait can't die at once)."""

_POLL_MS = 5


class OwnerText(msgspec.Struct, frozen=True, kw_only=True):
    """What the lock file says. ``socket`` is the path or name under which the owner listens. ``brief``: it owns the file
    for one command only."""

    process: ProcessIdentity
    token: str
    socket: str = ""
    brief: bool = False


class OwnerLock:
    """Held from ``take`` to ``release``. Not for two threads."""

    def __init__(self, path: str, descriptor: int, text: OwnerText) -> None:
        self.path = path
        self.text = text
        self._descriptor = descriptor
        _held.add(self)

    def release(self) -> None:
        """Let go; harmless when done before. The file stays, empty."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            _let_go(descriptor)

    def forget_in_child(self) -> None:
        """A forked child shares the descriptor and would keep the lock after its parent's death. The text is the
        parent's and stays."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_held: weakref.WeakSet[OwnerLock] = weakref.WeakSet()


def _forget_all_in_child() -> None:
    for lock in list(_held):
        lock.forget_in_child()


os.register_at_fork(after_in_child=_forget_all_in_child)


def take(path: str, *, socket: str = "", take_over: bool = False, brief: bool = False) -> OwnerLock:
    """Become the owner. ``path`` is the lock file's.

    Raises ``OwnedError`` with the owner's pid and host; unless ``brief`` (the caller has one command only), an owner of
    that kind is waited for up to ``BRIEF_WAIT_MS``. With ``take_over`` an owner on this machine is killed first, if pid,
    start time and boot id prove that it is the process which wrote the text; a reused pid is never touched. On a full
    disk a brief owner goes without a text, others get ``DiskFull``. Blocks, up to the sum of the waits named above.
    """
    text = OwnerText(process=this_process(), token=token_hex(16), socket=socket, brief=brief)
    descriptor = _open(path, os.O_CREAT)
    try:
        if not _try_lock(descriptor, path):
            owner = _wait_for_lock_or_owner(descriptor, path, 0 if brief else BRIEF_WAIT_MS)
            if owner is not None:
                if not take_over:
                    raise OwnedError(owner.process.pid, owner.process.host, path=path)
                _end(owner, descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    try:
        _clear(descriptor, path)
        if not _is_the_file(descriptor, path):
            raise StoreError("lock_unusable", "the lock file was replaced meanwhile", path=path)
        _write(descriptor, text, path)
    except BaseException:
        _let_go(descriptor)
        raise
    return OwnerLock(path, descriptor, text)


def live_owner(path: str) -> OwnerText | None:
    """Who holds this lock file's lock; None if nobody does. Takes the lock for a moment if it is free. Asks on a disk that
    turned read-only too, where an owner may still answer."""
    try:
        descriptor = _open(path, or_only_read=True)
    except FileNotFoundError:
        return None
    try:
        owner = None if _try_lock(descriptor, path) else _wait_for_lock_or_owner(descriptor, path, 0)
        if owner is None:
            # Or a text that nobody stands for would pass as the holder's while we look.
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)
    return owner


def _open(path: str, flags: int = 0, *, or_only_read: bool = False) -> int:
    """Raises ``FileNotFoundError`` (never with ``O_CREAT``) or ``StoreError``."""
    common = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        try:
            return os.open(path, os.O_RDWR | common | flags, 0o600)
        except OSError as error:
            if not (or_only_read and error.errno == errno.EROFS):
                raise
            return os.open(path, os.O_RDONLY | common)
    except FileNotFoundError as error:
        if flags & os.O_CREAT:
            raise _unusable(error, path) from error
        raise
    except OSError as error:
        raise _unusable(error, path) from error


def _unusable(error: OSError, path: str) -> StoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(path)
    return StoreError("lock_unusable", str(error), path=path)


def _clear(descriptor: int, path: str) -> None:
    try:
        os.ftruncate(descriptor, 0)
    except OSError as error:
        raise _unusable(error, path) from error


def _let_go(descriptor: int) -> None:
    """Give up a lock that is held: first the text, then the lock. On a disk that takes nothing any more the text stays;
    the lock is the truth."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
    os.close(descriptor)


def _is_the_file(descriptor: int, path: str) -> bool:
    """Whether the locked file is still the one that others would open: someone may have removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _try_lock(descriptor: int, path: str) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise StoreError("lock_unusable", str(error), path=path) from error
    return True


def _wait_for_lock_or_owner(descriptor: int, path: str, brief_wait_ms: int) -> OwnerText | None:
    """None: the lock is ours now. Else who holds it; a text that proves nothing is believed only after a while, since
    an owner may be between taking the lock and writing its name. An owner for one command is waited for."""
    began = time.monotonic()
    while True:
        text = _read(descriptor)
        if _try_lock(descriptor, path):
            return None
        # Only a text that was there before and after the lock was found held is its holder's: who takes the lock, or
        # gives it up, clears the text.
        if text != _read(descriptor):
            text = None
        proved = text is not None and is_same_process(text.process)
        wait_ms = 0 if proved else TEXT_WAIT_MS
        if text is not None and text.brief:
            wait_ms = max(wait_ms, brief_wait_ms)
        if (time.monotonic() - began) * 1000 >= wait_ms:
            return text or OwnerText(
                process=ProcessIdentity(pid=0, pid_start=0, boot_id="", host="unknown"), token=""
            )
        time.sleep(_POLL_MS / 1000)


def _read(descriptor: int) -> OwnerText | None:
    try:
        return msgspec.json.decode(os.pread(descriptor, 4096, 0), type=OwnerText)
    except (OSError, msgspec.DecodeError):
        return None


def _write(descriptor: int, text: OwnerText, path: str) -> None:
    try:
        os.pwrite(descriptor, msgspec.json.encode(text) + b"\n", 0)
    except OSError as error:
        typed = _unusable(error, path)
        if not (
            text.brief and isinstance(typed, DiskFull)
        ):  # the lock holds without a text, and reading needs no more
            raise typed from error


def _end(owner: OwnerText, descriptor: int, path: str) -> None:
    """Kill the owner and wait for the lock. Raises ``OwnedError`` if it can't be proved, killed or waited for."""
    process = owner.process
    refusal = OwnedError(process.pid, process.host, path=path)
    if process.pid in (os.getpid(), 1) or not is_same_process(
        process
    ):  # 1 is the container's or the machine's own
        raise refusal
    try:
        handle = os.pidfd_open(process.pid)
    except OSError as error:
        if error.errno != errno.ESRCH:
            raise refusal from error
        handle = -1  # it ended by itself in between
    deadline = time.monotonic() + TAKE_OVER_WAIT_MS / 1000
    try:
        if handle >= 0 and not _try_lock(descriptor, path):
            # The handle can't come to mean another process. Asked again now, the proof holds for the handle: this
            # process is the one that the text names, and the text is still the one of who holds the lock.
            if (
                _read(descriptor) != owner
                or not is_same_process(process)
                or not _may_hold(descriptor, process.pid)
            ):
                raise refusal
            _kill(handle, refusal)
            select.select([handle], [], [], TAKE_OVER_WAIT_MS / 1000)
    finally:
        if handle >= 0:
            os.close(handle)
    while not _try_lock(descriptor, path):  # its forked children may hold the lock for a moment longer
        if time.monotonic() >= deadline:
            raise refusal
        time.sleep(_POLL_MS / 1000)


def _may_hold(descriptor: int, pid: int, locks: str = "/proc/locks") -> bool:
    """False if the kernel names others as this file's lock holders, and not this process. Where the kernel doesn't tell
    (some containers), the text has to do."""
    inode = str(os.fstat(descriptor).st_ino)
    try:
        with open(locks, encoding="ascii", errors="replace") as file:
            rows = [line.split() for line in file]
    except OSError:
        return True
    holders = {
        row[4] for row in rows if len(row) >= 6 and row[1] == "FLOCK" and row[5].rpartition(":")[2] == inode
    }
    return not holders or str(pid) in holders


def _kill(handle: int, refusal: OwnedError) -> None:
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        return
    except OSError as error:
        raise refusal from error
