"""``decide(state, command, now)``: from a wish or an observation to facts. Pure, total, and never calls application code.

One row a command. A decision is made from the state alone; the driver applies its events (``fold.evolve``) before it
asks for the next one, so no rule has to look ahead. Whatever a rule doesn't expect (a late report, a doubled answer, a
call that is gone) is ``NOTHING``; whatever the tables don't admit is a bug and raises in the fold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from .advance import advance
from .approvals import approve, reject
from .canonical import canonical_bytes
from .children import ended, opened
from .commands import (
    Advance,
    Answer,
    Approve,
    Cancel,
    ChecksDone,
    ChildEnded,
    ChildOpened,
    ClaimLost,
    Close,
    Command,
    Executed,
    Guarded,
    ModelReplied,
    NothingLeft,
    Outside,
    OutsideCommand,
    Queried,
    RaiseLease,
    RaiseLimits,
    RecordFact,
    Reject,
    ResolveCall,
    Resume,
    Send,
    TakeOver,
    TopUpChild,
    command_sha256,
)
from .control import cancel, close, raise_limits, resume
from .decision import NOTHING, Decision, refuse
from .effects import claim_lost, executed, queried, resolve_call
from .errors import BugError, CallerError
from .events import Commanded
from .facts import record_fact
from .guarded import guarded
from .ladder import checks_done
from .messages import send
from .questions import answer
from .state import State
from .strict_json import parse_value
from .takeover import take_over
from .top_ups import nothing_left, raise_lease, top_up_child
from .turns import model_replied

COMMAND_ID_CHARS_MAX = 128

Rule = Callable[[State, Any, int], Decision]


def decide(state: State, command: Command, now_ms: int) -> Decision:
    """The decision about one command at store time ``now_ms``. The state is not changed."""
    if type(command) is Advance:
        return advance(state, now_ms)
    rule = _RULES.get(type(command))
    if rule is None:
        raise BugError("command_unknown", type(command).__name__)
    if isinstance(command, Outside):
        return _outside(state, command, rule, now_ms)
    return rule(state, command, now_ms)


def _outside(state: State, command: OutsideCommand, rule: Rule, now_ms: int) -> Decision:
    """Once: an id that was accepted before is done if it stood for this command, and refused if for another."""
    name = command.command_id
    if not 0 < len(name) <= COMMAND_ID_CHARS_MAX:
        return refuse("command_id", f"1 to {COMMAND_ID_CHARS_MAX} characters")
    try:
        digest = command_sha256(command)
    except UnicodeEncodeError:
        return refuse("command_encoding", "the command holds a lone surrogate")
    if name in state.commands:
        if state.command_digests[name] == digest:
            return NOTHING
        return refuse("command_id_reused", "that command id was used for another command")
    decision = rule(state, command, now_ms)
    events = tuple(
        msgspec.structs.replace(event, command_sha256=digest)
        if isinstance(event, Commanded) and event.command_id == name
        else event
        for event in decision.events
    )
    return msgspec.structs.replace(decision, events=events)


def _resolve(state: State, command: ResolveCall, now_ms: int) -> Decision:
    """A person's result is a result like any other: strict JSON, or refused."""
    result: bytes | None = None
    if command.result:
        try:
            result = canonical_bytes(parse_value(command.result))
        except CallerError as error:
            return refuse("result_json", str(error))
    return resolve_call(state, command, now_ms, result)


_RULES: dict[type[Any], Rule] = {
    TakeOver: take_over,
    ModelReplied: model_replied,
    ChecksDone: checks_done,
    ClaimLost: claim_lost,
    Executed: executed,
    Guarded: guarded,
    Queried: queried,
    ChildOpened: opened,
    ChildEnded: ended,
    NothingLeft: nothing_left,
    Approve: approve,
    Reject: reject,
    Cancel: cancel,
    Resume: resume,
    Close: close,
    RaiseLimits: raise_limits,
    ResolveCall: _resolve,
    TopUpChild: top_up_child,
    RaiseLease: raise_lease,
    Send: send,
    Answer: answer,
    RecordFact: record_fact,
}
