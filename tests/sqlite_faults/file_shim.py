"""Faults below SQLite: its operations on files fail where a disk would fail, and what a disk had not yet kept is lost.

A VFS of SQLite that hands everything to the usual one, but for what is armed. It is reached through ``ctypes``, so the
library that Python's ``sqlite3`` uses has to be a shared one (``find_library`` says whether it is).
"""

from __future__ import annotations

import _sqlite3
import ctypes
import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self

How = Literal["once", "full", "torn", "unsynced", "dropped", "gone", "power"]
"""``once``: it fails and has done nothing. ``full``: for want of space. ``torn``: half of a write was done. ``unsynced``:
an fsync fails and what it was for stays readable all the same. ``dropped``: an fsync fails, and what it was for is
forgotten. ``gone``: this and everything after it fails. ``power``: the same, and nothing is there that wasn't synced."""

KINDS: Final[dict[How, frozenset[str]]] = {
    "once": frozenset(("open", "read", "truncate", "size", "delete", "write")),
    "full": frozenset(("write",)),
    "torn": frozenset(("write",)),
    "unsynced": frozenset(("sync",)),
    "dropped": frozenset(("sync",)),
    "gone": frozenset(("open", "read", "truncate", "size", "delete", "write", "sync")),
    "power": frozenset(("open", "read", "truncate", "size", "delete", "write", "sync")),
}

_OK: Final = 0
_PART_BYTES: Final = 64 * 1024
"""SQLite writes no more than 128 KiB at a time, and is never asked to."""
_FULL: Final = 13
_CODES: Final = {
    "open": 14,
    "read": 266,
    "write": 778,
    "sync": 1034,
    "truncate": 1546,
    "size": 1802,
    "delete": 2570,
}
"""What SQLite's own VFS answers when the operation fails."""

_Open = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
)
"""A name is handed on as the pointer it is: SQLite keeps it, and a copy would be gone by then."""
_Delete = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
_Close = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_Transfer = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
_Truncate = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
_Sync = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
_Size = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64))


class _Vfs(ctypes.Structure):
    """``sqlite3_vfs``, version 3."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("file_bytes", ctypes.c_int),
        ("path_bytes_max", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("open", _Open),
        ("delete", _Delete),
        ("others", ctypes.c_void_p * 14),
    )


class _Methods(ctypes.Structure):
    """``sqlite3_io_methods``, version 3."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("close", _Close),
        ("read", _Transfer),
        ("write", _Transfer),
        ("truncate", _Truncate),
        ("sync", _Sync),
        ("size", _Size),
        ("others", ctypes.c_void_p * 12),
    )


def find_library() -> Any:
    """SQLite's library as this process has it loaded; None if its functions can't be reached from outside."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        loaded = {line.split(maxsplit=5)[-1].strip() for line in maps if re.search(r"/libsqlite3\.so", line)}
    for path in (*sorted(loaded), _sqlite3.__file__, None):
        try:
            library = ctypes.CDLL(path)
            library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
            library.sqlite3_vfs_find.argtypes = (ctypes.c_char_p,)
            library.sqlite3_vfs_register.argtypes = (ctypes.POINTER(_Vfs), ctypes.c_int)
            library.sqlite3_vfs_unregister.argtypes = (ctypes.POINTER(_Vfs),)
        except (OSError, AttributeError):
            continue
        return library
    return None


@dataclass
class _File:
    """An open file, and how to take back what it was told since its last good fsync, oldest first."""

    usual: _Methods
    undo: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])


class FileShim:
    """The default VFS of this process for the time of a ``with``. ``number`` counts from ``arm``, from 1."""

    def __init__(self, library: Any) -> None:
        self.fired = ""
        """The kind of the operation that failed, empty if none did yet."""
        self.met = threading.Event()
        """Set when an operation has failed."""
        self.left_open = 0
        """Files that were still open at the end of the ``with``."""
        self.count: Counter[str] = Counter()
        self._how: How = "once"
        self._left = 0
        self._all_fail = False
        self._library = library
        self._files: dict[int, _File] = {}
        self._tables: dict[int, _Methods] = {}
        self._usual = library.sqlite3_vfs_find(None).contents
        self._vfs = _Vfs()
        ctypes.memmove(ctypes.byref(self._vfs), ctypes.byref(self._usual), ctypes.sizeof(_Vfs))
        self._vfs.name = b"faulty"
        # Kept here: a callback that is collected while C may call it ends the process.
        self._kept: list[Any] = [_Open(self._open), _Delete(self._delete)]
        self._vfs.open, self._vfs.delete = self._kept

    def __enter__(self) -> Self:
        assert self._library.sqlite3_vfs_register(ctypes.byref(self._vfs), 1) == _OK
        return self

    def __exit__(self, *exc: object) -> None:
        self.left_open = len(self._files)
        self._library.sqlite3_vfs_unregister(ctypes.byref(self._vfs))

    def arm(self, number: int, how: How) -> None:
        self.met.clear()
        self.fired, self._left, self._how, self._all_fail = "", number, how, False

    def heal(self) -> None:
        """Nothing fails from now on."""
        self._left, self._all_fail = 0, False

    # --- what fails ------------------------------------------------------------------------------------------------

    def _fails(self, kind: str) -> bool:
        self.count[kind] += 1
        if self._all_fail:
            return True
        if self._left == 0 or kind not in KINDS[self._how]:
            return False
        self._left -= 1
        if self._left:
            return False
        self.fired = kind
        if self._how in ("gone", "power"):
            self._all_fail = True
        if self._how == "power":
            for file in self._files.values():
                _take_back(file)
        self.met.set()
        return True

    def _code(self, kind: str) -> int:
        return _FULL if self._how == "full" else _CODES[kind]

    # --- the VFS ---------------------------------------------------------------------------------------------------

    def _open(self, vfs: int, name: int, file: int, flags: int, out_flags: int) -> int:
        if self._fails("open"):
            ctypes.c_void_p.from_address(file).value = None
            return _CODES["open"]
        done: int = self._usual.open(vfs, name, file, flags, out_flags)
        methods = ctypes.c_void_p.from_address(file)
        if done == _OK and methods.value:
            usual = _Methods.from_address(methods.value)
            self._files[file] = _File(usual)
            methods.value = ctypes.addressof(self._table(methods.value))
        return done

    def _delete(self, vfs: int, name: int, sync_folder: int) -> int:
        if self._fails("delete"):
            return _CODES["delete"]
        done: int = self._usual.delete(vfs, name, sync_folder)
        return done

    def _table(self, usual: int) -> _Methods:
        made = self._tables.get(usual)
        if made is None:
            made = _Methods()
            ctypes.memmove(ctypes.byref(made), usual, ctypes.sizeof(_Methods))
            ours: list[Any] = [
                _Close(self._close),
                _Transfer(self._read),
                _Transfer(self._write),
                _Truncate(self._truncate),
                _Sync(self._sync),
                _Size(self._size),
            ]
            made.close, made.read, made.write, made.truncate, made.sync, made.size = ours
            self._kept += ours
            self._tables[usual] = made
        return made

    # --- a file ----------------------------------------------------------------------------------------------------

    def _close(self, file: int) -> int:
        usual = self._files.pop(file).usual
        done: int = usual.close(file)
        return done

    def _read(self, file: int, into: int, size: int, offset: int) -> int:
        if self._fails("read"):
            return _CODES["read"]
        done: int = self._files[file].usual.read(file, into, size, offset)
        return done

    def _write(self, file: int, data: int, size: int, offset: int) -> int:
        open_file = self._files[file]
        if not self._fails("write"):
            self._remember(file, open_file, size, offset)
            done: int = open_file.usual.write(file, data, size, offset)
            return done
        if self._how == "torn" and not self._all_fail:
            self._remember(file, open_file, size // 2, offset)
            open_file.usual.write(file, data, size // 2, offset)
        return self._code("write")

    def _truncate(self, file: int, size: int) -> int:
        if self._fails("truncate"):
            return _CODES["truncate"]
        open_file = self._files[file]
        end = ctypes.c_int64()
        open_file.usual.size(file, ctypes.byref(end))
        self._remember(file, open_file, max(end.value - size, 0), size)
        done: int = open_file.usual.truncate(file, size)
        return done

    def _sync(self, file: int, flags: int) -> int:
        open_file = self._files[file]
        if self._fails("sync"):
            if self._how == "dropped":
                _take_back(open_file)
            # The kernel tells of a failure once. What it couldn't keep counts as clean from then on.
            elif self._how == "unsynced":
                open_file.undo.clear()
            return _CODES["sync"]
        done: int = open_file.usual.sync(file, flags)
        open_file.undo.clear()
        return done

    def _size(self, file: int, size: Any) -> int:
        if self._fails("size"):
            return _CODES["size"]
        done: int = self._files[file].usual.size(file, size)
        return done

    def _remember(self, file: int, open_file: _File, size: int, offset: int) -> None:
        """How to put this part of the file back as it is now."""
        usual = open_file.usual
        end = ctypes.c_int64()
        usual.size(file, ctypes.byref(end))
        there = min(max(end.value - offset, 0), size)
        before: list[tuple[Any, int, int]] = []
        for start in range(offset, offset + there, _PART_BYTES):
            part = min(_PART_BYTES, offset + there - start)
            buffer = ctypes.create_string_buffer(part)
            assert usual.read(file, buffer, part, start) == _OK
            before.append((buffer, part, start))

        def put_back() -> None:
            for kept, part, start in before:
                assert usual.write(file, kept, part, start) == _OK
            now = ctypes.c_int64()
            usual.size(file, ctypes.byref(now))
            if now.value > end.value:
                usual.truncate(file, end.value)

        open_file.undo.append(put_back)


def _take_back(file: _File) -> None:
    while file.undo:
        file.undo.pop()()
