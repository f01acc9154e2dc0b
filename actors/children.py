"""What a driver does for the runs of its family: start, look at, cancel a child; ask the parent for more.

Every step is idempotent by a derived id and believes only logs, so it is simply done again after a crash. Nothing here
holds a state between calls. All functions may raise ``StoreError``: nothing is known then, do it again.
"""

from __future__ import annotations

from typing import Final

from ..eventstore.admission import create_unhosted
from ..eventstore.history import load_intact, read_records
from ..eventstore.port import EventStore
from ..eventstore.rules import ENDED_STATUS
from ..eventstore.submit import decode_answer
from ..runtime.children import cancel_by_parent, child_start, ended_child, unreadable_child
from ..runtime.commands import (
    Cancel,
    ChildEnded,
    ChildOpened,
    Command,
    CommandAnswer,
    NothingLeft,
    OutsideCommand,
    RaiseLease,
    TopUpChild,
    encode_command,
)
from ..runtime.errors import BugError, ConflictError, HistoryRefused, LogDamaged, StoreError
from ..runtime.events import RunStarted
from ..runtime.state import CallState, ChildState, State, run_name
from ..runtime.stops import ends_children
from ..runtime.top_ups import Short, lease_of, lease_raise, short_of, top_up_id

ASK_ROUNDS_MAX: Final = 4
"""How often a run asks for the same once more, because somebody else took what had just been given."""

DAMAGE_CHARS_MAX: Final = 500

_DAMAGED: Final = frozenset(
    {"log_damaged", "log_start", "log_gap", "log_illegal", "pins_missing", "pins_decode"}
)
"""The other run's log can't be believed: asking again mends nothing."""

_TRY_AGAIN: Final = frozenset({"run_contended", "owned", "overloaded"})


async def start_child(store: EventStore, state: State, call: CallState) -> Command:
    """Create the run of a durable lease; whichever host comes first takes it up once ``child_started`` is in its parent's log.
    One that is there already is the child, if it says so itself; another run under that id is no child, and the call failed."""
    child = _child(call)
    event, encoded_pins = child_start(state, call)
    row = await store.run(state.run_id)
    root_id = row.root_id if row is not None and row.root_id else state.run_id
    try:
        try:
            await create_unhosted(store, event, encoded_pins, root_id=root_id)
        except ConflictError:
            # Limits of the parent that were raised since are in this event, not in that one; the first creation counts.
            records = await read_records(store, child.run_id, to_seq=1)
            first = records[0].event if records else None
            if not isinstance(first, RunStarted) or (first.parent_run, first.parent_call) != (
                state.run_id,
                call.call,
            ):
                return ChildEnded(call=call.call, outcome="failed", reason="child_conflict", spent={})
    except (LogDamaged, HistoryRefused) as error:
        return await _damaged_child(store, call, error)
    return ChildOpened(call=call.call)


async def look_at_child(store: EventStore, call: CallState) -> ChildEnded | None:
    """What became of the child by its own log; None while it goes on, waits or is stopped."""
    child = _child(call)
    row = await store.run(child.run_id)
    if row is None:
        return unreadable_child(call.call, child, "child_missing")
    if row.damaged:
        return unreadable_child(call.call, child, "log_damaged")
    if row.index.status != ENDED_STATUS:
        return None
    try:
        ended, _ = await load_intact(store, child.run_id)
    except (LogDamaged, HistoryRefused) as error:
        return await _damaged_child(store, call, error)
    return ended_child(call.call, ended)


async def _damaged_child(store: EventStore, call: CallState, error: StoreError) -> ChildEnded:
    """The damage is the child's: it is marked there, and the parent goes on without it."""
    child = _child(call)
    await store.mark_damaged(child.run_id, str(error)[:DAMAGE_CHARS_MAX])
    return unreadable_child(call.call, child, "log_damaged")


async def cancel_child(store: EventStore, state: State, call: CallState) -> None:
    """Have the child cancelled by whoever decides for it. A refusal means that it has ended, or is being cancelled."""
    child = _child(call)
    await _submit(store, child.run_id, cancel_by_parent(state.run_id, child.run_id))


async def ask_parent(store: EventStore, child: State, asked: Short) -> RaiseLease | NothingLeft | Cancel:
    """More of what the run is short of: from its parent, else from the nearest run further up that has enough, and from
    there down again, on record in each log. What the parent's log grants already is taken first. A parent that ends its
    children ends this one: being short isn't why it stops."""
    for _ in range(ASK_ROUNDS_MAX):
        try:
            parent, _ = await load_intact(store, child.parent_run)
        except (LogDamaged, HistoryRefused) as error:
            # Its parent's damage is none of the child's.
            await store.mark_damaged(child.parent_run, str(error)[:DAMAGE_CHARS_MAX])
            break
        call = parent.calls.get(child.parent_call)
        if call is None or call.child is None or call.phase != "waiting_child":
            break
        if ends_children(parent):
            return cancel_by_parent(parent.run_id, child.run_id)
        raised = lease_raise(child, lease_of(call))
        if raised is not None:
            return raised
        if not await _given(store, parent, call, child, asked):
            break
    return NothingLeft(limits=tuple(asked))


async def _given(store: EventStore, parent: State, call: CallState, child: State, asked: Short) -> bool:
    """Whether to look at the parent again: it sets more aside, or ends. One that hasn't enough asks its own parent first:
    at most ``depth`` deep."""
    command = TopUpChild(
        command_id=top_up_id(child, asked),
        by=run_name(child.run_id),
        call=call.call,
        child_run=child.run_id,
        asked=asked,
    )
    answer = await _submit(store, parent.run_id, command)
    if answer.code != "nothing_left" or not parent.parent_run:
        return answer.accepted or answer.code == "run_ending"
    missing = short_of(parent, asked)
    raised = await ask_parent(store, parent, missing) if missing else None
    if isinstance(raised, NothingLeft):
        return False
    if raised is not None:
        await _submit(store, parent.run_id, raised)
    if isinstance(raised, Cancel):
        return True
    return (await _submit(store, parent.run_id, command)).accepted


async def _submit(store: EventStore, run_id: str, command: OutsideCommand) -> CommandAnswer:
    answer = decode_answer(await store.submit(run_id, command.command_id, encode_command(command)))
    if answer.accepted or answer.code in _DAMAGED:
        return answer
    if answer.actor in ("store", "bug") or answer.code in _TRY_AGAIN:
        raise StoreError(answer.code, answer.message, path=run_id)
    return answer


def _child(call: CallState) -> ChildState:
    if call.child is None:
        raise BugError("child_unknown", f"{call.call} has no child run", path=call.call)
    return call.child
