"""Child runs: a call of an agent is a run of its own under a lease, and its result is what became of that run.

The lease and the intent are one append. The child's id is derived from the run and the call, so creating it is
idempotent and a crash anywhere is made good by looking: it is there or it isn't, it has ended or it hasn't. A child never
fails its parent: whatever it came to is the result of one call.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from hashlib import sha256
from typing import Final

import msgspec

from . import events as e
from .agent_definition import AgentDefinition
from .agent_reach import agent_called, is_chosen, tools_of
from .binding import request_sha256
from .canonical import JSON, canonical_bytes, decode_canonical
from .commands import Cancel, ChildEnded, ChildOpened
from .decision import NOTHING, Decision
from .errors import BugError, CallerError
from .events import UnknownBelow
from .leases import grants, limits_of_child
from .order import OUT, may_start
from .pins import Pins, encode_pins
from .redaction import Redactor
from .reported import sound_text
from .results import room_for_result
from .state import EACH, METERED, UNKNOWN_BELOW_MAX, CallState, ChildState, State, run_name
from .strict_json import parse_value
from .taint import seen_from
from .top_ups import agent_of_call


def child_run_id(run_id: str, call: str) -> str:
    """The id of the run that a call starts, the same whoever derives it."""
    return "r_" + sha256(f"child/{run_id}/{call}".encode()).hexdigest()[:24]


def is_agent(state: State, call: CallState) -> bool:
    """Whether a call starts a child run instead of being executed."""
    definition = state.tools.get(call.tool)
    return definition is not None and definition.kind == "agent"


def agent_asked(state: State, call: CallState) -> AgentDefinition:
    """The agent that a validated call asks for."""
    agent = agent_called(state.tools[call.tool], decode_canonical(call.arguments or b"{}"))
    if agent is None:
        raise BugError("agent_unknown", f"{call.tool} has no such agent", path=call.call)
    return agent


# --- start -------------------------------------------------------------------------------------------------------


def start_children(state: State, call: CallState, now_ms: int) -> Decision:
    """All calls of agents that may start now, together: those that ask for nothing share equally. They wait until no
    call of an agent is still being checked. The caller has seen to it that this one may start and that no limit stands
    in its way; others for which there is no room are looked at again."""
    group: list[CallState] = []
    running = 0
    for other in state.calls.values():
        running += other.phase in OUT
        if not is_agent(state, other):
            continue
        if other.phase == "proposed":
            return NOTHING
        if other.phase == "checking" and not other.rechecked and may_start(state, other):
            group.append(other)
    meters = state.meters
    room = min(state.limits.parallel - running, meters.children.free, meters.call_attempts.free)
    return reserve(state, group[:room], now_ms)


def reserve(
    state: State,
    calls: list[CallState],
    now_ms: int,
    rechecked: tuple[e.Revisions | None, tuple[e.RungVerdict, ...]] | None = None,
) -> Decision:
    """The intents of these calls with their leases. ``rechecked``: under which revisions a pass right before this was
    made, and its verdicts."""
    agents = [agent_asked(state, call) for call in calls]
    events: list[e.AnyEvent] = []
    for call, agent, lease in zip(calls, agents, grants(state, agents), strict=True):
        asked_ms = agent.limits.get("deadline_ms", state.limits.deadline_ms)
        deadline = min(now_ms + asked_ms, state.deadline_at_ms)
        under, verdicts = (call.under, ()) if rechecked is None else rechecked
        digest = request_sha256(state, call, 1, under)
        events.append(e.CallStarted(call.call, 1, deadline, digest, verdicts, under))
        child_run = child_run_id(state.run_id, call.call)
        events.append(e.ChildReserved(call.call, child_run, agent.name, lease, deadline))
    return Decision(tuple(events))


def cancel_by_parent(run_id: str, child_run: str) -> Cancel:
    """What a run cancels its child with, the same whoever derives it."""
    return Cancel(command_id=f"cancel_{child_run}"[:128], by=run_name(run_id), reason="by_parent")


def child_start(state: State, call: CallState) -> tuple[e.RunStarted, bytes]:
    """The first event of the child and its encoded pins: the parent's model, revisions, tenant, principal and operation,
    the agent's own text, goal and tools, and never a permission or a tool that the parent's pins don't have. Tools are as
    the parent goes by them now, so what a deploy has tightened stays so below it. The pins are those of every child of this
    agent in the tree under the same definitions; what is the child's own is in the event."""
    child, agent = call.child, agent_of_call(state, call)
    if child is None or agent is None:
        raise BugError("child_unknown", f"{call.call} has no child run", path=call.call)
    deadline_ms = max(1, child.deadline_at_ms - call.started_at_ms)
    known = {definition.name: state.tools.get(definition.name, definition) for definition in state.pins.tools}
    pins: Pins = msgspec.structs.replace(
        state.pins,
        system=agent.system,
        tools=tools_of(agent, known),
        goal=agent.goal,
        hosted=tuple(name for name in agent.hosted if name in state.pins.hosted),
        stages=agent.stages,
    )
    encoded = encode_pins(pins)
    started = e.RunStarted(
        run_id=child.run_id,
        tenant=state.tenant,
        principal=state.principal,
        operation_id=state.operation_id,
        agent=agent.name,
        input=_input(state, call),
        pins_sha256=sha256(encoded).digest(),
        application=state.application,
        parent_run=state.run_id,
        parent_call=call.call,
        depth=state.depth + 1,
        as_of=state.as_of,
        trace=state.trace,
        on_stop=agent.on_stop,
        dense=True,
        deadline_at_ms=child.deadline_at_ms,
        limits=limits_of_child(state, agent, child.granted, deadline_ms),
        tainted_by=seen_from(state.untrusted, state.run_id),
        given=_given(state, call),
    )
    return started, encoded


def _given(state: State, call: CallState) -> bytes:
    """What the parent was given, and the arguments of this call whose values were held against the parent's results."""
    held = state.tools[call.tool].from_results
    if not held:
        return state.given
    given = decode_canonical(state.given or b"{}")
    arguments = decode_canonical(call.arguments or b"{}")
    members = {
        **(given if isinstance(given, dict) else {}),
        **{name: arguments[name] for name in held if isinstance(arguments, dict) and name in arguments},
    }
    return canonical_bytes(members) if members else b""


def _input(state: State, call: CallState) -> str:
    """The text of the argument ``input`` where that is all there is beside the choice of an agent; else the arguments."""
    arguments = decode_canonical(call.arguments or b"{}")
    chosen = {"agent"} if is_chosen(state.tools[call.tool]) else set[str]()
    if isinstance(arguments, dict) and set(arguments) - chosen == {"input"}:
        text = arguments["input"]
        if isinstance(text, str):
            return text
    return (call.arguments or b"{}").decode()


def opened(state: State, command: ChildOpened, now_ms: int) -> Decision:
    """The child run is there, made now or before."""
    call = state.calls.get(command.call)
    child = None if call is None else call.child
    if call is None or child is None or call.phase != "waiting_child" or child.started:
        return NOTHING
    return Decision((e.ChildStarted(call.call, child.run_id),))


# --- settle ------------------------------------------------------------------------------------------------------


def ended_child(call: str, child: State) -> ChildEnded:
    """What the child's log says of its end."""
    spent = {name: getattr(child.meters, name).spent for name in METERED}
    spent |= {EACH + tool: count for tool, count in child.calls_each.items() if count}
    own = (UnknownBelow(child.run_id, one.call, one.tool) for one in child.unknown_calls.values())
    unknown = (*own, *child.unknown_below)
    effects = Counter(child.effects) + Counter(child.effects_below)
    # What took effect without a usable result is no success of its tool, but it happened.
    succeeded = (Counter(child.effects) | Counter(child.succeeded_tools)) + Counter(child.effects_below)
    return ChildEnded(
        call=call,
        outcome=child.outcome,
        reason=child.reason,
        spent=spent,
        text=child.final_text,
        succeeded=dict(succeeded),
        effects=dict(effects),
        unknown=unknown[:UNKNOWN_BELOW_MAX],
        unknown_more=child.unknown_more + len(unknown[UNKNOWN_BELOW_MAX:]),
        tainted_by=seen_from(child.untrusted, child.run_id),
    )


def unreadable_child(call: str, child: ChildState, reason: str) -> ChildEnded:
    """A child whose log can't be believed: nobody knows what it did and what it spent, so all of its lease is spent."""
    return ChildEnded(
        call=call,
        outcome="failed",
        reason=reason,
        spent=dict(child.granted),
        unknown=(UnknownBelow(child.run_id, "", ""),),
    )


def redacted_end(state: State, command: ChildEnded, redactor: Redactor) -> ChildEnded:
    """A child's end without what has been declared since its own log took it in. A typed answer is redacted as the value
    that it is: inside its text a marker in the place of a number would leave no JSON."""
    text, call = command.text, state.calls.get(command.call)
    if call is not None and _is_typed(state, call):
        try:
            value = parse_value(text.encode())
            kept = redactor.json(value)
            text = text if kept is value else canonical_bytes(kept).decode()
        except (CallerError, UnicodeEncodeError):
            pass  # no answer of its type; as any other text
    return msgspec.structs.replace(command, text=redactor.text(text))


def ended(state: State, command: ChildEnded, now_ms: int) -> Decision:
    """Settle the lease, and make of the child's end what the call came to. A failed child is an error result, which the
    model may do something about; it is no failure of the run. What it had done by then is told, and it isn't to be
    tried again if that may be something."""
    call = state.calls.get(command.call)
    child = None if call is None else call.child
    if call is None or child is None or call.phase != "waiting_child":
        return NOTHING
    names = {*METERED, *child.granted}
    spent = {name: amount for name, amount in sorted(command.spent.items()) if name in names and amount > 0}
    settled = e.ChildSettled(
        call.call,
        child.run_id,
        spent,
        command.outcome,
        command.reason,
        command.effects,
        command.unknown,
        command.unknown_more,
        command.tainted_by,
    )
    completed = command.outcome == "completed"
    acted = bool(command.effects or command.unknown or command.unknown_more)
    body = _body(state, call, child, command) if completed or acted else None
    result = None if body is None else _fitted(state, call, dict(body))
    executed = e.CallExecuted(
        call.call,
        call.attempt,
        "succeeded" if completed else "failed",
        result,
        None if result is None else sha256(result).digest(),
        "" if completed else command.reason,
        "" if completed else _FAILED.format(command.outcome, command.reason) + (_STANDS if acted else ""),
        retryable=command.outcome in ("incomplete", "failed") and not acted,
        duration_ms=max(0, now_ms - call.started_at_ms),
        progress_sha256=None if body is None else _progress(body),
    )
    return Decision((settled, executed))


_FAILED: Final = "the agent did not complete its task: {} ({})"
_STANDS: Final = "; what it did before stands, or may"


def _body(state: State, call: CallState, child: ChildState, command: ChildEnded) -> dict[str, JSON]:
    """All that there is to tell the parent's model. A typed answer is there as values too, so that a source can name them; a
    text that is none (any more) is there as a text alone."""
    text = sound_text(command.text)
    body: dict[str, JSON] = {
        "agent": child.agent,
        "outcome": command.outcome,
        "reason": command.reason,
        "run": child.run_id,
        "text": text,
    }
    if command.outcome == "completed" and _is_typed(state, call):
        with suppress(CallerError):
            body["output"] = parse_value(text.encode())
    if command.succeeded:
        body["succeeded"] = dict(command.succeeded)
    if command.unknown:
        body["unknown_effects"] = [msgspec.structs.asdict(one) for one in command.unknown]
    if command.unknown_more:
        body["unknown_effects_more"] = command.unknown_more
    return body


def _is_typed(state: State, call: CallState) -> bool:
    """Whether the agent of this call answers with a value of a declared type."""
    agent = agent_of_call(state, call)
    return agent is not None and agent.goal is not None and agent.goal.output is not None


def _progress(body: dict[str, JSON]) -> bytes:
    """The digest by which two ends of children are the same: which runs they were is no news."""
    same = {name: value for name, value in body.items() if name not in ("run", "unknown_effects")}
    unknown = body.get("unknown_effects")
    if isinstance(unknown, list):
        same["unknown_effects"] = [one["tool"] for one in unknown if isinstance(one, dict)]
    return sha256(canonical_bytes(same)).digest()


def _fitted(state: State, call: CallState, body: dict[str, JSON]) -> bytes:
    """Canonical JSON within the call's bound, and what was left out said: the text is cut first, then names are counted
    instead, unknown effects last. The whole of it is the child's log."""
    most = min(state.tools[call.tool].result_bytes_max, room_for_result(state))
    encoded = canonical_bytes(body)
    text = str(body["text"])
    while len(encoded) > most and text:  # at least a quarter shorter each time
        text = text[: min(len(text) * 3 // 4, len(text) - (len(encoded) - most) // 8)]
        body["text"], body["text_truncated"] = text, True
        encoded = canonical_bytes(body)
    if len(encoded) > most and body.pop("output", None) is not None:
        body["output_truncated"] = True
        encoded = canonical_bytes(body)
    for name in ("succeeded", "unknown_effects"):
        names = body.get(name)
        while len(encoded) > most and isinstance(names, dict | list) and names:
            if isinstance(names, dict):
                names.popitem()
            else:
                names.pop()
            body[f"{name}_more"] = _count(body.get(f"{name}_more")) + 1
            encoded = canonical_bytes(body)
    return encoded


def _count(value: JSON) -> int:
    return value if isinstance(value, int) else 0
