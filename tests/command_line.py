"""A store on disk and the command line over it, in this process."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from boundloop.actors.cli import invoke
from boundloop.eventstore.blob_coding import packed, unpacked
from boundloop.eventstore.location import open_store
from boundloop.eventstore.port import EventStore

NOON_MS = 1_700_000_000_000
T = TypeVar("T")


class Done(NamedTuple):
    """What a command line came to."""

    code: int
    out: str
    err: str

    @property
    def value(self) -> Any:
        return json.loads(self.out)


class CommandLine:
    """``boundloop`` with this store in its environment."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = folder / "runs.db"
        self.url = f"sqlite:///{self.path}"
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Done:
        self._capsys.readouterr()
        code = invoke(arguments)
        out, err = self._capsys.readouterr()
        return Done(code, out, err)

    def build(self, build: Callable[[EventStore], Awaitable[T]], *, at_ms: int | None = None) -> T:
        """Write to the store as its owner; with ``at_ms`` its clock stands still there."""

        fixed_ms = at_ms or 0

        async def work() -> T:
            store = await open_store(self.url, clock=(lambda: fixed_ms) if fixed_ms else None)
            try:
                return await build(store)
            finally:
                await store.close()

        return asyncio.run(work())

    def change_bytes(self, old: bytes, new: bytes) -> None:
        """Reach into the closed file past the store, compressed blobs included; ``old`` must be there."""
        data = self.path.read_bytes()
        assert len(old) == len(new)
        self.path.write_bytes(data.replace(old, new))
        altered = old in data
        connection = sqlite3.connect(self.path)
        for row, coding, kept in connection.execute("SELECT rowid, coding, data FROM blob_parts").fetchall():
            part = unpacked(coding, kept)
            if coding and old in part:
                altered = True
                change = (*packed(part.replace(old, new)), row)
                connection.execute("UPDATE blob_parts SET coding = ?, data = ? WHERE rowid = ?", change)
        connection.commit()
        connection.close()
        assert altered
