"""Outside commands to a run that no host has: acquire, fold, decide, append, mark ready, release.

The same rules decide as in a host. Only ``run_resumed``, the command's own events and, if it ends the run, the steps to
that end are written here; everything else that follows needs a host. A command is idempotent by its id: the second time, and after a crash in between, the answer is
the first one's seq.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from secrets import token_hex
from typing import Literal
from weakref import WeakValueDictionary

import msgspec

from ..runtime.commands import Advance, Command, CommandAnswer, OutsideCommand, TakeOver
from ..runtime.decide import decide
from ..runtime.decision import Decision
from ..runtime.errors import ConflictError, HistoryRefused, LogDamaged, OwnedError, RunNotFound
from ..runtime.events import AnyEvent
from ..runtime.fold import evolve
from ..runtime.index import run_index, runs_to_wake
from ..runtime.ledger import Settlement
from ..runtime.orders import SettleChild, pending_orders
from ..runtime.state import State
from ..runtime.stops import ending
from .chain import append_hash
from .codec import encode_events, spill
from .history import load_intact
from .port import (
    APPEND_SCHEMA_VERSION,
    Acquired,
    AlreadyDone,
    Append,
    Appended,
    EventStore,
    HostRow,
    NotFound,
    Owned,
    SharedStore,
)
from .process_identity import start_of, this_process

TRIES_MAX = 8
"""How often a command is decided anew because another host got between; then it is a ``ConflictError``."""

CLOSING_STEPS_MAX = 1_000
"""Steps towards a run's end in the append of the command that asks for it. A turn has far fewer calls."""

Publish = Callable[[str, State, tuple[AnyEvent, ...], int], None]
"""(run id, state after them, events, seq of the first) of an append that was committed here."""

_encode_answer = msgspec.json.Encoder().encode
_decode_answer = msgspec.json.Decoder(CommandAnswer).decode
_turns: WeakValueDictionary[tuple[int, int, str], asyncio.Lock] = WeakValueDictionary()


def encode_answer(answer: CommandAnswer) -> bytes:
    """Wire form of an answer, for ``EventStore.submit``."""
    return _encode_answer(answer)


def decode_answer(data: bytes) -> CommandAnswer:
    """Strict decode; raises ``msgspec.DecodeError``."""
    return _decode_answer(data)


async def submit_unhosted(
    store: EventStore,
    run_id: str,
    command: OutsideCommand,
    *,
    host_id: str,
    dead_hosts: Sequence[str] = (),
    publish: Publish | None = None,
    spares: bool = False,
) -> CommandAnswer:
    """Decide one outside command as the run's host for a moment.

    ``host_id`` is a registered, live host of the caller (``host_for_one_command``): its owner row keeps others off
    meanwhile. ``dead_hosts``: owners whose death the caller has proved. ``publish`` is told what was committed.
    ``spares``: that the run's host has no row any more counts as no death of it; the store was away from all. A refusal, and a command that was accepted before, change nothing: not the log, not the epoch, not what the run waits
    for. Raises ``RunNotFound``; ``OwnedError`` if a live host has the run, which alone may decide then;
    ``ConflictError`` if other hosts got between ``TRIES_MAX`` times; ``HistoryRefused`` for a damaged run;
    ``StoreError``: whether the command was accepted is unknown, submit it again under the same id.
    """
    lock = _turns.setdefault((id(store), id(asyncio.get_running_loop()), run_id), asyncio.Lock())
    async with lock:
        for _ in range(TRIES_MAX):
            answer = await _try_once(store, run_id, command, host_id, dead_hosts, publish, spares)
            if answer is not None:
                return answer
    raise ConflictError("run_contended", "other hosts keep taking the run; submit again", path=run_id)


async def _try_once(
    store: EventStore,
    run_id: str,
    command: OutsideCommand,
    host_id: str,
    dead_hosts: Sequence[str],
    publish: Publish | None,
    spares: bool,
) -> CommandAnswer | None:
    """None: the run changed hands in between and nothing was written."""
    row = await store.run(run_id)
    if row is None:
        raise RunNotFound(run_id)
    if row.damaged:
        raise HistoryRefused("log_damaged", row.damaged, path=run_id)
    try:
        state, head = await load_intact(store, run_id)
    except LogDamaged as error:
        await store.mark_damaged(run_id, str(error)[:500])
        raise
    answer = _without_change(state, command, max(store.now_ms(), state.at_ms))
    if answer is not None:
        return answer
    acquired = await store.acquire(run_id, host_id, dead_hosts=dead_hosts)
    if isinstance(acquired, NotFound):
        raise RunNotFound(run_id)
    if isinstance(acquired, Owned):
        raise OwnedError(acquired.by.pid, acquired.by.node, path=run_id)
    try:
        if acquired.seq != state.seq:
            return None  # it moved between the read and the acquire
        if acquired.head != head:
            damaged = LogDamaged(
                run_id, state.seq, state.seq, "the log's last hash isn't the head in the run's row"
            )
            await store.mark_damaged(run_id, str(damaged)[:500])
            raise damaged
        return await _append(store, state, command, acquired, host_id, publish, spares)
    finally:
        # A no-op where the append released the run. Otherwise whatever was to be done is still to be done.
        await asyncio.shield(store.release(run_id, host_id, acquired.epoch, ready=True))


def _without_change(state: State, command: OutsideCommand, now_ms: int) -> CommandAnswer | None:
    """The answer to a command that was accepted before or is refused; None if it would change something."""
    decision = decide(state, command, now_ms)
    if decision.refusal is not None:
        refusal = decision.refusal
        return CommandAnswer(
            accepted=False, code=refusal.code, message=refusal.message, actor="caller", seq=state.seq
        )
    seq = state.commands.get(command.command_id)
    if seq is not None:
        return CommandAnswer(accepted=True, seq=seq)
    if not decision.events:
        return CommandAnswer(
            accepted=False, code="nothing_to_do", message="this changes nothing", actor="caller"
        )
    return None


async def _append(
    store: EventStore,
    state: State,
    command: OutsideCommand,
    acquired: Acquired,
    host_id: str,
    publish: Publish | None,
    spares: bool,
) -> CommandAnswer | None:
    at_ms = max(store.now_ms(), state.at_ms)
    base_seq = state.seq
    written = _Written(state, at_ms)
    if state.phase != "terminated":  # after the end only the fact about an unknown effect may follow
        cause: Literal["host_died", "command"] = "host_died" if acquired.died and not spares else "command"
        written.take(TakeOver(epoch=acquired.epoch, host=host_id, cause=cause))
    answer = _without_change(state, command, at_ms)
    if answer is not None:
        return answer
    written.take(command)
    written.close_out()
    body, blobs = spill(encode_events(written.events))
    append_id = sha256(command.command_id.encode()).digest()[:16]
    causation = f"command:{command.command_id}"
    request = Append(
        run_id=state.run_id,
        expected_seq=base_seq,
        epoch=acquired.epoch,
        append_id=append_id,
        at_ms=at_ms,
        causation=causation,
        body=body,
        event_count=len(written.events),
        prev_hash=acquired.head,
        hash=append_hash(
            acquired.head,
            state.run_id,
            base_seq + 1,
            len(written.events),
            acquired.epoch,
            at_ms,
            append_id,
            causation,
            APPEND_SCHEMA_VERSION,
            body,
        ),
        index=run_index(state),
        host_id=host_id,
        settlements=tuple(written.settlements),
        release=True,
        ready=_has_work(state, at_ms, woken=acquired.woken),
        wake_runs=runs_to_wake(state),
        blobs=blobs,
    )
    committed = await store.append(request)
    if publish is not None and isinstance(committed, Appended):
        try:
            publish(state.run_id, state, tuple(written.events), base_seq + 1)
        except Exception:  # the command is accepted, whatever becomes of who watches
            logging.getLogger(__name__).exception("a watcher of run %s failed", state.run_id)
    match committed:
        case Appended() | AlreadyDone():
            return CommandAnswer(accepted=True, seq=state.commands[command.command_id])
        case _:
            return None


class _Written:
    """The events of one append, each applied as soon as it is decided."""

    def __init__(self, state: State, at_ms: int) -> None:
        self.state = state
        self.at_ms = at_ms
        self.events: list[AnyEvent] = []
        self.settlements: list[Settlement] = []

    def take(self, command: Command) -> None:
        self._add(decide(self.state, command, self.at_ms))

    def close_out(self) -> None:
        """Once the end was asked for, everything towards it that needs no I/O: a run that was cancelled or closed ends
        although no host lives. What a far side has to be asked about first is left to a host."""
        for _ in range(CLOSING_STEPS_MAX):
            state = self.state
            if not (state.cancel_reason or state.close_requested or ending(state)):
                return
            decision = decide(state, Advance(), self.at_ms)
            if not decision.events or decision.claim is not None:
                return
            self._add(decision)

    def _add(self, decision: Decision) -> None:
        for event in decision.events:
            evolve(self.state, event, self.at_ms)
        self.events += decision.events
        self.settlements += decision.settlements


def _has_work(state: State, now_ms: int, *, woken: bool) -> bool:
    """Whether a host would find something to do at once; timers are found by the index. ``woken``: the mark of whoever
    woke the run is gone with the acquisition, so a child that it waits for may have ended."""
    return bool(
        decide(state, Advance(), now_ms).events
        or any(woken or type(order) is not SettleChild for order in pending_orders(state, now_ms))
    )


@asynccontextmanager
async def host_for_one_command(store: EventStore) -> AsyncGenerator[str]:
    """A host row of this process for the length of a command; yields its id."""
    process = this_process()
    host_id = f"command_{process.pid}_{token_hex(4)}"
    await store.register_host(
        HostRow(
            host_id=host_id,
            node=process.host,
            pid=process.pid,
            pid_start=process.pid_start,
            boot_id=process.boot_id,
        )
    )
    try:
        yield host_id
    finally:
        await asyncio.shield(store.drop_host(host_id))


async def proved_dead(store: EventStore) -> tuple[str, ...]:
    """Hosts of this machine whose process is gone, by pid, start time and boot: they needn't expire first. For
    whoever holds the file's lock: no other process can be this file's host then. In a shared store none is proved: machines
    may have one name, and containers of one machine the same numbers for other processes."""
    if isinstance(store, SharedStore):
        return ()
    here = this_process()
    return tuple(
        host.host_id
        for host in await store.hosts()
        if host.node == here.host
        and host.boot_id
        and host.pid_start
        and (host.boot_id != here.boot_id or start_of(host.pid) != host.pid_start)
    )
