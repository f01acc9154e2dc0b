"""The other shell: a person at a desk who approves, settles and lifts, through whoever owns the file or as its owner for
one command; and a ghost who sends late appends under epochs that are over."""

from __future__ import annotations

import asyncio
import select
from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec
from examples.far_side import FarSide

from boundloop.eventstore.chain import append_hash
from boundloop.eventstore.codec import encode_events
from boundloop.eventstore.history import load_run
from boundloop.eventstore.location import connect_store
from boundloop.eventstore.port import (
    APPEND_SCHEMA_VERSION,
    Append,
    Conflict,
    EventStore,
    Fenced,
    RunFilter,
    RunRow,
)
from boundloop.eventstore.submit import (
    decode_answer,
    encode_answer,
    host_for_one_command,
    proved_dead,
    submit_unhosted,
)
from boundloop.runtime import events as e
from boundloop.runtime.commands import (
    Approve,
    OutsideCommand,
    ResolveCall,
    Resume,
    decode_command,
    encode_command,
)
from boundloop.runtime.effects import needs_person
from boundloop.runtime.errors import BoundloopError, OwnedError, StoreError
from boundloop.runtime.limits import MARGIN_MS
from boundloop.runtime.state import State

PERSON: Final = "os:ann@desk"
PAUSE_S: Final = 0.1
PAGE_RUNS: Final = 1_000
SHOWN_RUNS_MAX: Final = 10


class Report(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """One look at the store. ``left``: runs that have not ended. ``counts`` sums up everything since the start.
    ``open_runs``: some of the runs that are left, as they stand."""

    left: int
    counts: dict[str, int]
    open_runs: tuple[str, ...] = ()


class Desk:
    """Works until told to stop."""

    def __init__(self, url: str, far: FarSide, say: Callable[[Report], None]) -> None:
        self._url = url
        self._far = far
        self._say = say
        self._counts: Counter[str] = Counter()
        self._seen: dict[str, RunRow] = {}

    def work(self, stop: int) -> None:
        """Until the descriptor ``stop`` can be read."""
        while not select.select([stop], [], [], PAUSE_S)[0]:
            asyncio.run(self._one_look())

    async def _one_look(self) -> None:
        opened: list[EventStore] = []

        async def decide_here(run_id: str, command_id: str, data: bytes) -> bytes:
            store = opened[0]
            async with host_for_one_command(store) as host_id:
                dead = await proved_dead(store)
                return encode_answer(
                    await submit_unhosted(
                        store, run_id, decode_command(data), host_id=host_id, dead_hosts=dead
                    )
                )

        try:
            store = await connect_store(self._url, on_submit=decide_here)
        except (OwnedError, StoreError):
            self._counts["not let in"] += 1
            return
        opened.append(store)
        try:
            await self._serve(store)
        except StoreError:
            self._counts["connections lost"] += 1
        finally:
            await store.close()

    async def _serve(self, store: EventStore) -> None:
        left = 0
        open_runs: list[str] = []
        after = ""
        while page := await store.runs(RunFilter(after=after, limit=PAGE_RUNS)):
            for row in page:
                await self._haunt(store, row)
                if row.index.status != "terminated":
                    left += 1
                    if len(open_runs) < SHOWN_RUNS_MAX:
                        open_runs.append(f"{row.run_id} {row.index.status} {row.index.waiting_for}".strip())
                    await self._attend(store, row)
            after = page[-1].run_id
        self._say(Report(left=left, counts=dict(self._counts), open_runs=tuple(open_runs)))

    async def _attend(self, store: EventStore, row: RunRow) -> None:
        """What a person would do about this run."""
        if row.owner or not (row.index.waiting_for or row.index.status == "suspended"):
            return
        state, _ = await load_run(store, row.run_id)
        for command in await self._commands(state, store.now_ms()):
            try:
                data = await store.submit(row.run_id, command.command_id, encode_command(command))
            except StoreError:
                raise
            except BoundloopError:
                self._counts["commands that came at a bad time"] += 1
                continue
            answer = decode_answer(data)
            self._counts[
                f"{type(command).__name__.lower()} {'taken' if answer.accepted else answer.code}"
            ] += 1

    async def _commands(self, state: State, now_ms: int) -> list[OutsideCommand]:
        commands: list[OutsideCommand] = []
        for call in state.calls.values():
            if call.phase == "waiting_approval" and call.approval is not None:
                name = call.approval.approval_id
                commands.append(Approve(command_id=f"approve {name}", by=PERSON, approval_id=name))
            elif needs_person(state, call) and now_ms > call.valid_until_ms + MARGIN_MS:
                # Nothing of it can be in the air any more, so the far side's answer is the last word.
                assert call.key is not None
                applied = self._far.query(f"none:{call.key.hex()}")["applied"]
                commands.append(
                    ResolveCall(
                        command_id=f"resolve {call.call} {call.attempt}",
                        by=PERSON,
                        call=call.call,
                        outcome="applied" if applied else "absent",
                        result="{}" if applied else "",
                    )
                )
        if state.phase == "suspended" and state.reason == "crash_loop":
            commands.append(Resume(command_id=f"resume {state.seq}", by=PERSON))
        return commands

    async def _haunt(self, store: EventStore, row: RunRow) -> None:
        """An append that a host of an earlier epoch might still send."""
        seen = self._seen.get(row.run_id)
        if seen is None or seen.epoch == row.epoch:
            if row.owner:
                self._seen[row.run_id] = row
            return
        del self._seen[row.run_id]
        body = encode_events((e.CancelRequested("by_user", "ghost", "ghost"),))
        late = (
            seen.run_id,
            seen.seq + 1,
            1,
            seen.epoch,
            row.updated_at_ms,
            b"ghost",
            "",
            APPEND_SCHEMA_VERSION,
        )
        answer = await store.append(
            Append(
                run_id=seen.run_id,
                expected_seq=seen.seq,
                epoch=seen.epoch,
                append_id=b"ghost",
                at_ms=row.updated_at_ms,
                causation="",
                body=body,
                event_count=1,
                prev_hash=seen.head,
                hash=append_hash(seen.head, *late, body),
                index=seen.index,
                host_id=seen.owner,
            )
        )
        refused = isinstance(answer, (Fenced, Conflict))
        self._counts["zombies refused" if refused else "zombies let in"] += 1
