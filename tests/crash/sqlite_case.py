"""One crash on a SQLite file: a child dies at one append, what is left is judged, another child goes on to the end."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import msgspec
from examples.far_side import FarSide

from boundloop.eventstore.codec import Recorded
from boundloop.eventstore.location import open_store

from .child import Forge, Order, Outcome
from .points import Position
from .proof import Acknowledged, Counted, check_end, check_intents, check_log

AHEAD_MS = 60_000
"""How much later the next process comes by its own clock: every validity of the last one is over."""


def count_appends(forge: Forge, far: FarSide, folder: Path) -> int:
    """The appends of an undisturbed run, which is judged too."""
    path = folder / "whole.db"
    counted = Counted(far)
    outcome = forge.run(Order(path=str(path), far_port=far.port, operation_id="whole"))
    finish(outcome, path, counted, [])
    return outcome.appends


def crash_once(
    forge: Forge, far: FarSide, folder: Path, at: int, position: Position, *, again_at: int = 0
) -> None:
    """Raises ``AssertionError`` for anything that doesn't hold. ``again_at``: the successor dies too, at that append of
    its own, and a third process finishes."""
    name = f"{position}_{at}_{again_at}"
    path = folder / f"{name}.db"
    counted = Counted(far)
    acknowledged: list[Acknowledged] = []
    whole = Order(path=str(path), far_port=far.port, operation_id=name)
    ahead_ms = 0
    for death in [at, again_at] if again_at else [at]:
        outcome = forge.run(msgspec.structs.replace(whole, at=death, position=position, ahead_ms=ahead_ms))
        if outcome.status == 0 and death == again_at:
            break  # it had come to its end before that append
        assert outcome.status == -signal.SIGKILL, outcome
        acknowledged += outcome.acknowledged
        requests = counted.counts()["requests"]
        check_intents(look(path, acknowledged), requests)
        ahead_ms += AHEAD_MS
    outcome = forge.run(msgspec.structs.replace(whole, ahead_ms=ahead_ms))
    finish(outcome, path, counted, acknowledged)


def finish(outcome: Outcome, path: Path, far: Counted, acknowledged: list[Acknowledged]) -> None:
    """The last process ended well, and so did the run."""
    assert outcome.status == 0, outcome
    assert outcome.result is not None, outcome.error
    records = look(path, acknowledged + outcome.acknowledged)
    check_end(outcome.result, records, far.counts())


def look(path: Path, acknowledged: list[Acknowledged]) -> list[Recorded]:
    """The log as any process would find it now."""

    async def read() -> list[Recorded]:
        store = await open_store(f"sqlite:///{path}")
        try:
            return await check_log(store, acknowledged)
        finally:
            await store.close()

    return asyncio.run(read())
