"""Taking over a run: ``run_resumed`` first, and in the same append the facts about every intent of an older epoch.

An older epoch's intent is never dispatched by the new host. What it came to is not known here, so a read failed and
may be tried again, an effect is unknown and goes through reconciliation, and a model request is lost with its
reservation spent. Behind those facts stand the definitions of tools that the new host's application has otherwise. After this append recovery is the ordinary path: fold, ``advance``, ``pending_orders``.
"""

from __future__ import annotations

from . import events as e
from .commands import TakeOver
from .decision import NOTHING, Decision, settle
from .definitions import DefinitionChange, encode_definition
from .effects import lost
from .ledger import Settlement
from .refusal import NOT_AVAILABLE
from .side_attempts import side_lost
from .state import State
from .turns import attempts_or_asked, turn_attempts_left


def take_over(state: State, command: TakeOver, now_ms: int) -> Decision:
    """The one append that opens a new epoch. An ended run has nothing to take over, and an epoch is opened once: the
    command comes again if its append was committed without an answer."""
    if state.phase == "terminated" or state.epoch >= command.epoch:
        return NOTHING
    group: list[e.AnyEvent] = [e.RunResumed(command.epoch, command.cause, command.host)]
    settlements: list[Settlement] = []
    if state.phase == "model_requested" and state.model_epoch < command.epoch:
        side = side_lost(state)
        again = turn_attempts_left(state) and attempts_or_asked(state, 0 if side is None else side.attempts)
        group.append(
            e.ModelFailed(
                state.turn,
                state.model_attempt,
                "lost",
                True,
                now_ms if again else 0,
                state.reserved_input,
                state.reserved_output,
                state.reserved_cost,
                side=side,
            )
        )
    for call in state.calls.values():
        if call.phase == "started" and call.attempt_epoch < command.epoch:
            decision = lost(state, call, now_ms)
            group += decision.events
            settlements += decision.settlements
    for change in command.definitions:
        _adopt(state, change, group, settlements)
    return Decision(tuple(group), settlements=tuple(settlements))


def _adopt(
    state: State, change: DefinitionChange, group: list[e.AnyEvent], settlements: list[Settlement]
) -> None:
    """One changed definition. What a person is being asked about under the old one isn't what would be done: the approval
    lapses, and is asked for anew; of a tool that is gone the call is refused."""
    known = state.tools.get(change.tool)
    if known is None:
        return
    now = change.definition
    if now is None:
        group.append(e.DefinitionAdopted(change.tool, known.definition_sha256))
    else:
        group.append(
            e.DefinitionAdopted(
                change.tool, known.definition_sha256, now.definition_sha256, encode_definition(now)
            )
        )
    for call in state.calls.values():
        approval = call.approval
        if call.tool != change.tool or call.phase != "waiting_approval" or approval is None:
            continue
        group.append(e.ApprovalLapsed(call.call, approval.approval_id, "stale", "definition"))
        settlements += settle(state, call, "free")
        if now is None:
            group.append(e.CallRejected(call.call, "known", "unknown_tool", NOT_AVAILABLE))
