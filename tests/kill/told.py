"""What a store says yes and no to, told by whichever process asked it.

A file has one owner, which tells on its standard output. PostgreSQL is opened by every host: run actors tell in a file each, in
the folder that the environment names, because they are Ray's processes and not ours; ``Telling`` reads along.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from tests.kill.talk import Committed, HostDropped, HostSeen, Message, TurnedAway, decode_message

from boundloop.eventstore.port import (
    AlreadyDone,
    Append,
    AppendAnswer,
    Appended,
    ClaimTaken,
    Conflict,
    Fenced,
    HostRow,
)

TOLD_FOLDER: Final = "BOUNDLOOP_KILL_TOLD"
GHOST: Final = b"ghost"
LOOK_S: Final = 0.02


def tell_of(store: Any, say: Callable[[Message], None]) -> None:
    """Every answer of this class of stores in this process, whoever asked it."""
    append, renew = store.append, store.renew_host
    register, drop = store.register_host, store.drop_host

    async def told_append(self: Any, request: Append) -> AppendAnswer:
        answer: AppendAnswer = await append(self, request)
        match answer:
            case Appended():
                say(_commit(request))
            case Fenced() | Conflict() if request.append_id != GHOST:
                say(TurnedAway(type(answer).__name__.lower(), request.run_id, request.host_id))
            case AlreadyDone() | ClaimTaken() | Fenced() | Conflict():
                pass
        return answer

    async def told_renew(self: Any, host_id: str) -> bool:
        renewed: bool = await renew(self, host_id)
        if not renewed:
            say(TurnedAway("renewal", "", host_id))
        return renewed

    async def told_register(self: Any, host: HostRow) -> None:
        await register(self, host)
        say(HostSeen(host.host_id, host.pid))

    async def told_drop(self: Any, host_id: str, *, died: bool = False) -> None:
        await drop(self, host_id, died=died)
        say(HostDropped(host_id))

    store.append, store.renew_host = told_append, told_renew
    store.register_host, store.drop_host = told_register, told_drop


def _commit(request: Append) -> Committed:
    index = request.index
    rests = bool(index.waiting_for) or index.status in ("terminated", "suspended")
    first = request.expected_seq + 1
    return Committed(request.run_id, first, request.event_count, request.hash, request.host_id, rests)


def tell_in_files() -> None:
    """For a process that hosts runs in PostgreSQL; nothing where nobody listens."""
    folder = os.environ.get(TOLD_FOLDER, "")
    if not folder:
        return
    from boundloop.eventstore.postgres import PostgresStore

    path = Path(folder) / f"{os.getpid()}.jsonl"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def say(message: Message) -> None:
        os.write(file, msgspec.json.encode(message) + b"\n")  # to a file: whole, or the process is no more

    tell_of(PostgresStore, say)


class Telling:
    """Reads along in all files of a folder, on a thread, until ``close``."""

    def __init__(self, folder: Path, hear: Callable[[Message], None]) -> None:
        self._folder = folder
        self._hear = hear
        self._read: dict[Path, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Everything that was told until now has been heard then."""
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._over.wait(LOOK_S):
            self._look()
        self._look()

    def _look(self) -> None:
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            for line in whole.splitlines():
                with contextlib.suppress(msgspec.MsgspecError):
                    self._hear(decode_message(line))
