"""A process with a Runtime on the store: ``python -m tests.kill.member ROLE FOLDER STORE FAR_PORT MODEL_URL ADDRESS SEED NUMBER``.

``service`` only lives; ``driver`` starts runs, waits for them and approves what they ask, and notes each yes that it gets in
``acks.jsonl``, on disk before it goes on. Whichever of them owns the store tells every append that the store took. Ends
when its standard input closes; a driver that is told ``stop`` starts nothing more.
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
from pathlib import Path
from typing import Final

import msgspec
from tests.kill.acks import Ack
from tests.kill.cluster_load import LIMITS, message, runtime_on
from tests.kill.talk import Note, say
from tests.kill.told import tell_of

from boundloop.actors.client import Runtime, StillRunning
from boundloop.eventstore.sqlite import SqliteStore
from boundloop.runtime.errors import BoundloopError, ConflictError, OwnedError

LANES: Final = 4
RUN_S: Final = 20.0
PAUSE_S: Final = 0.2
OPEN_TRIES: Final = 100
PERSON: Final = "os:ben@driver"


def main() -> None:
    role, folder, store, far_port, model_url, address, seed, number = sys.argv[1:]
    tell_of(SqliteStore, say)  # of PostgreSQL each host tells in a file of its own
    runtime = _opened(store, int(far_port), model_url, address)
    say(Note("open"))
    try:
        if role == "driver":
            asyncio.run(Driver(runtime, Path(folder), int(seed), int(number)).work())
            say(Note("done"))
        while os.read(0, 4_096):
            pass
    finally:
        runtime.close()


def _opened(store: str, far_port: int, model_url: str, address: str) -> Runtime:
    """The person at the desk may own the file for the length of a command, and who was killed may not be gone yet."""
    for _ in range(OPEN_TRIES):
        try:
            return runtime_on(store, far_port, model_url, address)
        except (OwnedError, BoundloopError) as error:
            say(Note(f"not let in: {error.code}"))
            select.select([], [], [], PAUSE_S)
    raise RuntimeError("the store can't be opened")


# --- the driver ---------------------------------------------------------------------------------------------------------


class Driver:
    """Some runs at a time, each carried to its end by whoever hosts it."""

    def __init__(self, runtime: Runtime, folder: Path, seed: int, number: int) -> None:
        self._runtime = runtime
        self._seed = seed
        self._number = number
        self._acks = os.open(folder / "acks.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._stopped = False

    async def work(self) -> None:
        """Until told to stop, or until the standard input closes."""
        listening = asyncio.create_task(self._listen())
        await asyncio.gather(*(self._lane(lane) for lane in range(LANES)))
        listening.cancel()

    async def _listen(self) -> None:
        while not self._stopped:
            if await asyncio.to_thread(lambda: select.select([0], [], [], PAUSE_S)[0]):
                os.read(0, 4_096)
                self._stopped = True

    async def _lane(self, lane: int) -> None:
        count = 0
        while not self._stopped:
            count += 1
            run_id = f"d{self._number}-{lane}-{count}"
            await self._start(run_id)
            await self._carry(run_id)

    async def _start(self, run_id: str) -> None:
        while not self._stopped:
            try:
                await self._runtime.aio.start(message(self._seed, run_id), run_id=run_id, limits=LIMITS)
            except ConflictError as error:
                if error.code != "run_exists":
                    raise
            except BoundloopError as error:
                await self._pause(error)
                continue
            self._note(Ack(what="started", run_id=run_id))
            return

    async def _carry(self, run_id: str) -> None:
        """Until it ends, or until all that it waits for is the other person's to settle."""
        while not self._stopped:
            try:
                result = await self._runtime.aio.result(run_id, RUN_S)
                for one in result.approvals:  # its own, and those of the runs below it
                    seq = await self._runtime.aio.approve(one.run_id, one.approval_id, by=PERSON)
                    self._note(Ack(what="approved", run_id=one.run_id, seq=seq))
            except StillRunning:
                continue
            except BoundloopError as error:
                await self._pause(error)
                continue
            if not result.approvals:
                return

    async def _pause(self, error: BoundloopError) -> None:
        say(Note(f"driver: {error.code}"))
        await asyncio.to_thread(select.select, [], [], [], PAUSE_S)

    def _note(self, ack: Ack) -> None:
        os.write(self._acks, msgspec.json.encode(ack) + b"\n")
        os.fsync(self._acks)


if __name__ == "__main__":
    main()
