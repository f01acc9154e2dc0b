"""The lock that makes one process the owner of a SQLite file.

``FILE.lock`` is a file of its own, never removed, held with ``flock``: the kernel lets go when the owner's last
descriptor closes, however the owner died, and a stopped owner keeps it. Its text names the owner for whoever comes
second; the lock, not the text, is the truth.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import time
import weakref
from secrets import token_hex

import msgspec

from ..runtime.errors import OwnedError, StoreError
from .process_identity import ProcessIdentity, is_same_process, this_process

TEXT_WAIT_MS = 1_000
"""How long to wait for a new owner to write who it is, or for a text of an owner that just ended to be replaced."""

TAKE_OVER_WAIT_MS = 5_000
"""How long a killed owner may take to end (a process in a disk wait can't die at once)."""

_POLL_MS = 5


class OwnerText(msgspec.Struct, frozen=True, kw_only=True):
    """What the lock file says. ``socket`` is the path or name under which the owner listens."""

    process: ProcessIdentity
    token: str
    socket: str = ""


class OwnerLock:
    """Held from ``take`` to ``release``. Not for two threads."""

    def __init__(self, path: str, descriptor: int, text: OwnerText) -> None:
        self.path = path
        self.text = text
        self._descriptor = descriptor
        _held.add(self)

    def release(self) -> None:
        """Let go; harmless when done before. The file stays, with its last text."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def forget_in_child(self) -> None:
        """A forked child shares the descriptor and would keep the lock after its parent's death."""
        self.release()


_held: weakref.WeakSet[OwnerLock] = weakref.WeakSet()


def _forget_all_in_child() -> None:
    for lock in list(_held):
        lock.forget_in_child()


os.register_at_fork(after_in_child=_forget_all_in_child)


def take(path: str, *, socket: str = "", take_over: bool = False) -> OwnerLock:
    """Become the owner. ``path`` is the lock file's.

    Raises ``OwnedError`` with the owner's pid and host. With ``take_over`` an owner on this machine is killed first,
    if pid, start time and boot id prove that it is the process which wrote the text; a reused pid is never touched.
    May block up to ``TAKE_OVER_WAIT_MS``.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StoreError("lock_unusable", str(error), path=path) from error
    try:
        if not _try_lock(descriptor, path):
            owner = _wait_for_lock_or_owner(descriptor, path)
            if owner is not None:
                if not take_over:
                    raise OwnedError(owner.process.pid, owner.process.host, path=path)
                _end(owner.process, descriptor, path)
        text = OwnerText(process=this_process(), token=token_hex(16), socket=socket)
        _write(descriptor, text, path)
    except BaseException:
        os.close(descriptor)
        raise
    return OwnerLock(path, descriptor, text)


def live_owner(path: str) -> OwnerText | None:
    """Who holds this lock file's lock; None if nobody does. Takes the lock for a moment if it is free."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError("lock_unusable", str(error), path=path) from error
    try:
        if _try_lock(descriptor, path):
            return None
        return _wait_for_lock_or_owner(descriptor, path)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, path: str) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise StoreError("lock_unusable", str(error), path=path) from error
    return True


def _wait_for_lock_or_owner(descriptor: int, path: str) -> OwnerText | None:
    """None: the lock is ours now. Else who holds it; a text that proves nothing is believed only after a while, since
    an owner may be between taking the lock and writing its name."""
    deadline = time.monotonic() + TEXT_WAIT_MS / 1000
    while True:
        text = _read(descriptor)
        if text is not None and is_same_process(text.process):
            return text
        if _try_lock(descriptor, path):
            return None
        if time.monotonic() >= deadline:
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
    encoded = msgspec.json.encode(text) + b"\n"
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, encoded, 0)
    except OSError as error:
        raise StoreError("lock_unusable", str(error), path=path) from error


def _end(process: ProcessIdentity, descriptor: int, path: str) -> None:
    """Kill the owner and wait for the lock. Raises ``OwnedError`` if it can't be proved, killed or waited for."""
    refusal = OwnedError(process.pid, process.host, path=path)
    if process.pid == os.getpid() or not is_same_process(process):
        raise refusal
    try:
        handle = os.pidfd_open(process.pid)
    except OSError as error:
        if error.errno != errno.ESRCH:
            raise refusal from error
        handle = -1  # it ended by itself in between
    deadline = time.monotonic() + TAKE_OVER_WAIT_MS / 1000
    try:
        if handle >= 0:
            # The handle can't come to mean another process. Asked again now, the proof holds for the handle.
            if not is_same_process(process):
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


def _kill(handle: int, refusal: OwnedError) -> None:
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        return
    except OSError as error:
        raise refusal from error
