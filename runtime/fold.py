"""The fold: how one event changes a state. The only code that changes a ``State``.

Map of the file: ``begin`` and ``fold`` at the top, then one function per event in the order of ``events.py``, then the
few pure leaves they share. Every function looks the transition up first, so an event that the tables don't admit
raises and changes nothing. Nothing here decides: whatever a value depends on is in the event or in the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from . import events as e
from .canonical import decode_canonical
from .context import check_compaction, encode_item, reads_on
from .definitions import decode_definition, tools_offered
from .digest import fact_line, handle_of, item_of
from .errors import BugError, HistoryRefused
from .goal import Evidence
from .limits import RAISABLE, LimitValues
from .model import AssistantCall, AssistantItem, Item, NoteItem, ResultItem, UserItem
from .pins import Pins, number_of_leave
from .projection import CANNOT_TEXT, answer_content, error_content, ok_content, replayed_content
from .read_result import READ_RESULT
from .request_head import request_head
from .state import (
    EACH,
    METERED,
    UNKNOWN_BELOW_MAX,
    ApprovalState,
    CallState,
    ChildState,
    FactState,
    Meters,
    QuestionState,
    State,
    run_name,
)
from .taint import TaintSource, Trust, added
from .transitions import CallPhase, next_call_phase, next_run_phase
from .values_seen import index_given, index_result
from .withheld import guards_results, is_withheld


def begin(event: e.RunStarted, pins: Pins, at_ms: int) -> State:
    """The state after ``run_started``, the first event of every log."""
    head_sha256, head_bytes = request_head(pins, pins.tools_offered(0))
    limits = with_lease(pins.limits, event.limits) if event.limits else pins.limits
    state = State(
        run_id=event.run_id,
        pins=pins,
        pins_sha256=event.pins_sha256,
        limits=limits,
        tools={tool.name: tool for tool in pins.tools if tool.offered},
        request_head_sha256=head_sha256,
        request_head_bytes=head_bytes,
        meters=Meters.of(limits),
        tenant=event.tenant,
        principal=event.principal,
        operation_id=event.operation_id,
        agent=event.agent,
        application=event.application,
        parent_run=event.parent_run,
        parent_call=event.parent_call,
        depth=event.depth,
        on_stop=event.on_stop,
        as_of=event.as_of,
        trace=event.trace,
        given=event.given,
        seq=1,
        at_ms=at_ms,
        started_at_ms=at_ms,
        deadline_cap_ms=event.deadline_at_ms,
        deadline_at_ms=_deadline(at_ms, limits.deadline_ms, event.deadline_at_ms),
        epoch=1,
        phase=next_run_phase("", "run_started"),
        untrusted=event.tainted_by,
    )
    if pins.goal is not None:
        state.evidence = [0] * len(pins.goal.evidence)
    if pins.stages:
        state.stage_evidence = [0] * len(pins.stages[0].leave)
    if event.given and pins.watched is not None:
        index_given(state, pins.watched)
    _append_item(state, UserItem(event.input))
    return state


def with_lease(limits: LimitValues, differing: Mapping[str, int]) -> LimitValues:
    """The limits of a child: the pinned ones with those that its first event names."""
    fields: dict[str, Any] = {}
    each = dict(limits.tool_calls_each)
    for name, value in differing.items():
        if name.startswith(EACH):
            each[name.removeprefix(EACH)] = value
        elif name in LimitValues.__struct_fields__:
            fields[name] = value
        else:
            raise HistoryRefused("limit_unknown", f"{name} is no limit", path=name)
    return msgspec.structs.replace(limits, **fields, tool_calls_each=each)


def fold(records: Iterable[tuple[e.AnyEvent, int]], pins: Mapping[bytes, Pins]) -> State:
    """The state of a log: (event, at_ms) pairs in order. ``pins`` by hash (``pins.read_pins``). Linear in the events.

    Raises ``HistoryRefused`` for a log that doesn't start a run or whose pins are missing, and
    ``IllegalTransition`` for one that this interpreter can't have written.
    """
    iterator = iter(records)
    started, at_ms = next(iterator, (None, 0))
    if not isinstance(started, e.RunStarted):
        raise HistoryRefused("log_start", "the log does not begin with run_started")
    pinned = pins.get(started.pins_sha256)
    if pinned is None:
        raise HistoryRefused("pins_missing", "the run's pinned definitions are missing")
    state = begin(started, pinned, at_ms)
    for event, at_ms in iterator:
        evolve(state, event, at_ms)
    return state


def evolve(state: State, event: e.AnyEvent, at_ms: int) -> None:
    """Apply one event in place. Total over ``AnyEvent``; raises and changes nothing if the tables don't admit it."""
    apply = _APPLY.get(type(event))
    if apply is None:
        raise BugError("event_unknown", f"no fold for {type(event).__name__}")
    if at_ms == state.at_ms:
        apply(state, event, at_ms)
    else:
        active = _is_active(state) and not _took_over(state, event)
        apply(state, event, at_ms)
        if active:
            state.counters.active_ms += at_ms - state.at_ms
        state.at_ms = at_ms
    state.seq += 1


def _is_active(state: State) -> bool:
    if state.phase == "open_calls":
        return any(call.phase == "started" for call in state.calls.values())
    return state.phase in ("model_requested", "deciding", "created", "results_ready")


def _took_over(state: State, event: e.AnyEvent) -> bool:
    """Whether no host had the run until this event: from the last word of a dead one nobody was active."""
    return type(event) is e.RunResumed and event.epoch != state.epoch


# --- run ---------------------------------------------------------------------------------------------------------


def _run_resumed(state: State, event: e.RunResumed, at_ms: int) -> None:
    lifts = state.phase == "suspended" and event.cause in ("resume", "resolved")
    wanted = state.resume_phase if lifts else state.phase
    state.phase = next_run_phase(state.phase, "run_resumed", wanted or "results_ready")
    state.epoch = event.epoch
    if event.cause == "host_died":
        state.counters.host_deaths += 1
    if lifts:
        # What stopped it is lifted; what the rest of the turn had earned beside it is not.
        if state.stop_after_turn == state.reason:
            state.stop_after_turn = state.stop_detail = ""
        if state.reason == "approval_expired":
            state.approval_expired_for = ""
        state.outcome = state.reason = state.detail = ""
        state.unfinished = ()
        state.counters.host_deaths = 0
        state.counters.invalid_streak = 0
        state.counters.idle_turns = 0
        state.counters.corrective_turns = 0
        state.model_retry_at_ms = 0
        state.lease_denied = ()
        # Attempts of a turn are counted on, so that a late answer to an old one is never taken for a new one's.
        state.model_attempts_before = state.model_attempt
    _remember(state, event)


def _definition_adopted(state: State, event: e.DefinitionAdopted, at_ms: int) -> None:
    known = state.tools.get(event.tool)
    if known is None:
        raise BugError("tool_unknown", f"{event.tool} is no tool of the run", path=event.tool)
    if event.definition:
        definition = decode_definition(event.definition, event.tool)
    else:
        definition = msgspec.structs.replace(known, offered=False)
    state.phase = next_run_phase(state.phase, "definition_adopted")
    _trusted_less(state, known.trust, event.tool, definition.trust)
    state.tools = {**state.tools, event.tool: definition}
    state.definitions = {**state.definitions, event.tool: event.definition_sha256}
    state.request_head_sha256, state.request_head_bytes = request_head(state.pins, tools_offered(state))


def _trusted_less(state: State, before: Trust, tool: str, now: Trust) -> None:
    """What the model has read of a tool counts as its definition says now: whose words they were didn't change when somebody
    found out."""
    declared = now == "untrusted"
    if before == "undeclared" and declared:
        state.untrusted = tuple(
            msgspec.structs.replace(one, declared=True) if one.tool == tool else one
            for one in state.untrusted
        )
    elif before == "trusted" and now != "trusted" and _was_read(state, tool):
        state.untrusted = added(state.untrusted, TaintSource(tool, _call_read(state, tool), declared))


def _was_read(state: State, tool: str) -> bool:
    """Whether any call of it was bound. What exactly of a failed one was shown isn't kept for ever, so each counts."""
    start = tool.encode() + b"\0"
    return any(seen.startswith(start) for seen in state.results_seen)


def _call_read(state: State, tool: str) -> str:
    """The first call of it that is still in the model's context; empty if all of them were compacted."""
    results = (item for item in state.items if isinstance(item, ResultItem) and item.name == tool)
    first = next(results, None)
    return "" if first is None else first.call_id


def _message_received(state: State, event: e.MessageReceived, at_ms: int) -> None:
    by_person = event.source == "user"
    wanted = state.phase if by_person else None
    state.phase = next_run_phase(state.phase, "message_received", wanted)
    if not by_person:
        state.counters.corrective_turns += 1
        _append_item(state, NoteItem(event.text))
        return
    state.counters.messages += 1
    state.counters.idle_turns = 0
    state.turn_progress = True
    state.unread.append(event.text)
    take_in(state)
    _remember(state, event)


def take_in(state: State) -> None:
    """People's messages, and facts of the host before them, join the history, if they may stand at its end: all calls there have their results, no request
    is out, and no paused turn waits for its continuation."""
    phase = state.resume_phase if state.phase == "suspended" else state.phase
    free = phase in ("created", "model_retry", "results_ready") and state.finish != "paused"
    if free or (phase == "deciding" and state.finish == "final"):
        _take_in_facts(state)
        for text in state.unread:
            _append_item(state, UserItem(text))
        state.unread = []


def _take_in_facts(state: State) -> None:
    """One item with the latest values. A fact that a result set meanwhile is in that result."""
    waiting = [(name, state.facts[name]) for name in state.waiting_facts]
    lines = [fact_line(name, fact.value, "", fact.at_ms, fact.seq) for name, fact in waiting if not fact.call]
    if lines:
        _append_item(state, item_of(lines))
    if waiting:
        state.waiting_facts = []


def _limits_raised(state: State, event: e.LimitsRaised, at_ms: int) -> None:
    phase = next_run_phase(state.phase, "limits_raised")
    for name in event.raised:
        if name not in RAISABLE:
            raise BugError("limit_unknown", f"{name} can't be raised", path=name)
    state.phase = phase
    state.limits = msgspec.structs.replace(state.limits, **event.raised)
    state.deadline_at_ms = _deadline(state.started_at_ms, state.limits.deadline_ms, state.deadline_cap_ms)
    for name in METERED:
        if name in event.raised:
            getattr(state.meters, name).raise_to(event.raised[name])
    if state.parent_run and event.by == run_name(state.parent_run):
        state.lease_raises += 1
    if state.lease_denied:
        state.lease_denied = tuple(name for name in state.lease_denied if name not in event.raised)
    _remember(state, event)


def _deadline(started_at_ms: int, deadline_ms: int, cap_ms: int) -> int:
    """A child's never passes its parent's, however late the child is created."""
    at_ms = started_at_ms + deadline_ms
    return min(at_ms, cap_ms) if cap_ms else at_ms


def _cancel_requested(state: State, event: e.CancelRequested, at_ms: int) -> None:
    state.phase = next_run_phase(state.phase, "cancel_requested")
    if not state.cancel_reason:
        state.cancel_reason = event.reason
        state.cancel_by = event.by
    _remember(state, event)


def _close_requested(state: State, event: e.CloseRequested, at_ms: int) -> None:
    state.phase = next_run_phase(state.phase, "close_requested")
    state.close_requested = True
    _remember(state, event)


def _run_suspended(state: State, event: e.RunSuspended, at_ms: int) -> None:
    before = state.phase
    state.phase = next_run_phase(before, "run_suspended")
    # A turn that came to nothing is asked for again from the same history.
    state.resume_phase = "results_ready" if before == "deciding" else before
    if state.unread or state.waiting_facts:
        take_in(state)
    _stop(state, event, at_ms)


def _run_terminated(state: State, event: e.RunTerminated, at_ms: int) -> None:
    state.phase = next_run_phase(state.phase, "run_terminated")
    _stop(state, event, at_ms)
    if event.outcome == "completed":
        state.final_text = state.last_text


def _stop(state: State, event: e.RunSuspended | e.RunTerminated, at_ms: int) -> None:
    state.stopped_at_ms = at_ms
    state.outcome = event.outcome
    state.reason = event.reason
    state.detail = event.detail
    state.unfinished = event.unfinished


# --- model -------------------------------------------------------------------------------------------------------


def _model_requested(state: State, event: e.ModelRequested, at_ms: int) -> None:
    state.phase = next_run_phase(state.phase, "model_requested")
    meters = state.meters
    if event.turn != state.turn:
        meters.turns.spend(1)
        state.turn = event.turn
        state.calls = {}
        state.surplus = ()
        state.turn_result_bytes = 0
        state.turn_progress = False
        state.model_attempts_before = 0
        state.approval_expired_for = ""
    meters.model_attempts.spend(1)
    of_input, of_output, of_cost = event.input_tokens_bound, event.output_tokens_max, event.cost_bound_micros
    side = event.side
    if side is not None:
        meters.model_attempts.reserve(side.attempts)
        of_input, of_output = of_input + side.input_tokens, of_output + side.output_tokens
        of_cost += side.cost_micros
    state.reserved_side = side
    state.model_attempt = event.attempt
    state.model_epoch = state.epoch
    state.model_retry_at_ms = 0
    state.requested_at_ms = at_ms
    state.request_sha256 = event.request_sha256
    state.reserved_input, state.reserved_output, state.reserved_cost = of_input, of_output, of_cost
    state.requested_items = event.items
    meters.input_tokens.reserve(of_input)
    meters.output_tokens.reserve(of_output)
    meters.total_tokens.reserve(of_input + of_output)
    meters.cost_micros.reserve(of_cost)


def _settle_model(state: State, event: e.ModelResponded | e.ModelFailed) -> None:
    meters = state.meters
    spent_input, spent_output = event.spent_input_tokens, event.spent_output_tokens
    meters.input_tokens.settle(state.reserved_input, spent_input)
    meters.output_tokens.settle(state.reserved_output, spent_output)
    meters.total_tokens.settle(state.reserved_input + state.reserved_output, spent_input + spent_output)
    meters.cost_micros.settle(state.reserved_cost, event.spent_cost_micros)
    state.reserved_input = state.reserved_output = state.reserved_cost = 0
    if event.side is not None or state.reserved_side is not None:
        _settle_side(state, event.side)


def _settle_side(state: State, side: e.SideSpent | None) -> None:
    """Side attempts are model attempts of the run. An adapter that made more than were set aside has gone beyond what it
    declared, and gets nothing further to send until somebody resumes the run."""
    reserved = 0 if state.reserved_side is None else state.reserved_side.attempts
    made = 0 if side is None else side.attempts
    state.reserved_side = None
    state.meters.model_attempts.settle(reserved, made)
    state.counters.side_attempts += made
    if made > reserved:
        state.counters.side_overrun += made - reserved
        if not state.stop_after_turn:
            state.stop_after_turn = "max_turns"
            state.stop_detail = f"side_attempts: {made} made, {reserved} declared"


def _model_responded(state: State, event: e.ModelResponded, at_ms: int) -> None:
    state.phase = next_run_phase(state.phase, "model_responded")
    _settle_model(state, event)
    state.response_id = event.response_id
    state.finish = event.finish
    state.last_text = event.text
    state.continuation = event.continuation
    state.model_code = ""
    state.answer_verdict = state.answer_code = ""
    for name, count in event.hosted:
        # In the same answer the model had it before its eyes already, so it taints the calls of this turn too.
        state.counters.hosted_calls += count
        state.untrusted = added(state.untrusted, TaintSource(f"hosted:{name}", f"t{event.turn}", True))
    if not event.calls and event.finish in ("final", "paused") and (event.text or event.continuation):
        # A turn with calls joins the history when its results do: a call is never split from its result.
        _append_item(state, AssistantItem(event.text, (), event.continuation))
    if state.unread or state.waiting_facts:
        take_in(state)


def _model_failed(state: State, event: e.ModelFailed, at_ms: int) -> None:
    state.phase = next_run_phase(state.phase, "model_failed")
    _settle_model(state, event)
    state.model_code = event.code
    state.model_retry_at_ms = event.retry_at_ms
    state.response_id = event.response_id
    if state.unread or state.waiting_facts:
        take_in(state)


# --- call --------------------------------------------------------------------------------------------------------


def _call_proposed(state: State, event: e.CallProposed, at_ms: int) -> None:
    phase = next_run_phase(state.phase, "call_proposed")
    if event.call in state.calls:
        raise BugError("call_repeated", f"{event.call} was proposed before", path=event.call)
    state.phase = phase
    state.counters.calls_proposed += 1
    state.calls[event.call] = CallState(
        call=event.call,
        turn=state.turn,
        index=len(state.calls),
        tool=event.tool,
        provider_call_id=event.provider_call_id,
        raw=event.arguments,
        phase=next_call_phase("", "call_proposed"),
        withheld=event.withheld,
        stage=state.stage,
    )


def _call(state: State, name: str, tag: str) -> CallState:
    """The named open call, with the run's transition checked and taken (it never changes the run's phase here)."""
    call = state.calls.get(name)
    if call is None:
        raise BugError("call_unknown", f"no call {name} is open", path=name)
    next_run_phase(state.phase, tag)
    return call


def _call_validated(state: State, event: e.CallValidated, at_ms: int) -> None:
    call = _call(state, event.call, "call_validated")
    call.phase = next_call_phase(call.phase, "call_validated")
    call.arguments = call.raw if event.arguments is None else event.arguments
    call.args_sha256 = event.args_sha256
    call.key = event.key
    call.intent_sha256 = event.intent_sha256
    call.checked_seq = state.seq + 1
    call.under = event.under
    call.price_micros = event.price_micros
    state.meters.tool_calls.reserve(1)
    state.calls_each[call.tool] = state.calls_each.get(call.tool, 0) + 1
    state.counters.invalid_streak = 0
    same = repeat_key(call)
    state.repeats[same] = state.repeats.get(same, 0) + 1


def _call_rejected(state: State, event: e.CallRejected, at_ms: int) -> None:
    call = _call(state, event.call, "call_rejected")
    admitted = call.phase != "proposed"
    call.phase = next_call_phase(call.phase, "call_rejected")
    call.rung, call.code, call.path = event.rung, event.code, event.path
    call.safe_message, call.retryable, call.terminal = event.safe_message, event.retryable, event.terminal
    if admitted:
        _give_back(state, call)
    counters = state.counters
    counters.calls_refused += 1
    if event.rung in ("known", "json", "schema"):
        counters.invalid_streak += 1
    if event.rung not in ("progress", "limits", "definition", "answer"):
        counters.denials += 1
    if event.rung == "progress":
        state.stop_after_turn = state.stop_after_turn or "no_progress"
        state.stop_detail = state.stop_detail or f"{call.tool} was repeated without news"
    elif event.rung == "limits" and event.code in ("max_tool_calls", "budget_cost"):
        state.stop_after_turn = state.stop_after_turn or event.code
    elif event.rung == "answer" and _needs(state, call.tool):
        _block(state, f"{call.tool}: nobody answered in time")
    elif event.rung == "definition":
        state.stop_after_turn = state.stop_after_turn or "definition_changed"
        state.stop_detail = state.stop_detail or call.tool
    elif event.terminal:
        state.stop_after_turn = ENDS_BY.get(event.rung, "policy_denied")
        state.stop_detail = event.code


ENDS_BY: dict[str, e.EndsBy] = {"switch": "kill_switch", "approval": "approval_denied"}
"""Why a run ends after a terminal refusal, by the rung that gave it."""


def _give_back(state: State, call: CallState) -> None:
    """An admitted call that never started gives its place back."""
    if call.attempt == 0:
        state.meters.tool_calls.settle(1, 0)
        state.calls_each[call.tool] -= 1


def _calls_rejected(state: State, event: e.CallsRejected, at_ms: int) -> None:
    next_run_phase(state.phase, "calls_rejected")
    state.surplus = event.calls
    state.counters.calls_refused += len(event.calls)
    state.counters.denials += 1


def _approval_requested(state: State, event: e.ApprovalRequested, at_ms: int) -> None:
    call = _call(state, event.call, "approval_requested")
    call.phase = next_call_phase(call.phase, "approval_requested")
    call.approval_rounds = event.round
    call.holds_key = True
    call.holder_run = call.holder_call = call.holder_why = ""
    call.approval = ApprovalState(
        approval_id=event.approval_id,
        round=event.round,
        preview=event.preview,
        preview_sha256=event.preview_sha256,
        args_sha256=event.args_sha256,
        definition_sha256=event.definition_sha256,
        policy_revision=event.policy_revision,
        resource_version=event.resource_version,
        requested_at_ms=at_ms,
        expires_at_ms=event.expires_at_ms,
    )


def _approval(call: CallState, approval_id: str) -> ApprovalState:
    approval = call.approval
    if approval is None or approval.approval_id != approval_id:
        raise BugError("approval_unknown", f"{call.call} has no approval {approval_id}", path=call.call)
    return approval


def _approval_decided(state: State, event: e.ApprovalDecided, at_ms: int) -> None:
    call = _call(state, event.call, "approval_decided")
    approval = _approval(call, event.approval_id)
    call.phase = next_call_phase(call.phase, "approval_decided")
    approval.decision = event.decision
    approval.approver = event.approver
    approval.reason = event.reason
    state.approvals[event.call] = event.decision
    _remember(state, event)


def _approval_lapsed(state: State, event: e.ApprovalLapsed, at_ms: int) -> None:
    call = _call(state, event.call, "approval_lapsed")
    approval = _approval(call, event.approval_id)
    call.phase = next_call_phase(call.phase, "approval_lapsed")
    approval.decision = event.why
    if event.why == "expired" and _needs(state, call.tool):
        state.approval_expired_for = call.tool


def _needs(state: State, tool: str) -> bool:
    """Whether an open predicate of the goal, or of the stage, names this tool."""
    goal = state.pins.goal
    needs = [] if goal is None else list(zip(goal.evidence, state.evidence, strict=True))
    if state.pins.stages:
        needs += zip(state.pins.stages[state.stage].leave, state.stage_evidence, strict=True)
    return any(item.tool == tool and met < item.count for item, met in needs)


def _question_asked(state: State, event: e.QuestionAsked, at_ms: int) -> None:
    call = _call(state, event.call, "question_asked")
    call.phase = next_call_phase(call.phase, "question_asked")
    state.meters.tool_calls.settle(1, 1)
    state.meters.call_attempts.spend(1)
    call.attempt = 1
    call.attempt_epoch = state.epoch
    call.started_at_ms = at_ms
    call.request_sha256 = event.request_sha256
    call.question = QuestionState(
        event.question_id, event.question, event.choices, at_ms, event.expires_at_ms
    )


def _question_answered(state: State, event: e.QuestionAnswered, at_ms: int) -> None:
    call = _call(state, event.call, "question_answered")
    if call.question is None or call.question.question_id != event.question_id:
        raise BugError("question_unknown", f"{call.call} does not ask {event.question_id}", path=call.call)
    call.phase = next_call_phase(call.phase, "question_answered")
    call.observed_at_ms = at_ms
    if event.result is not None:
        call.outcome = "succeeded"
        call.result, call.result_sha256 = event.result, sha256(event.result).digest()
    else:
        # Neither a failure of a tool nor a denial: what was asked isn't known to anybody.
        call.outcome, call.rung, call.code = "cannot", "answer", "cannot_answer"
        call.safe_message = CANNOT_TEXT + (f": {event.reason}" if event.reason else "")
        if event.stop or _needs(state, call.tool):
            _block(state, f"{call.tool}: nobody can answer {event.question_id}")
    state.counters.idle_turns = 0
    state.turn_progress = True
    _remember(state, event)


def _block(state: State, detail: str) -> None:
    """The run stops after its turn, for what it needs and nobody has."""
    if not state.stop_after_turn:
        state.stop_after_turn, state.stop_detail = "blocked", detail


def _call_waiting(state: State, event: e.CallWaiting, at_ms: int) -> None:
    call = _call(state, event.call, "call_waiting")
    call.phase = next_call_phase(call.phase, "call_waiting")
    call.holder_run, call.holder_call, call.holder_why = event.holder_run, event.holder_call, event.why
    call.holds_key = False


def _call_started(state: State, event: e.CallStarted, at_ms: int) -> None:
    call = _call(state, event.call, "call_started")
    definition = state.tools[call.tool]
    cost = definition.cost_micros if event.price_micros is None else event.price_micros
    first = call.attempt == 0
    call.phase = next_call_phase(call.phase, "call_started")
    meters = state.meters
    if first:
        meters.tool_calls.settle(1, 1)
    meters.call_attempts.spend(1)
    if cost:
        meters.cost_micros.reserve(cost)
        call.reserved_micros = cost
    call.price_micros = event.price_micros
    if definition.rate is not None:
        state.starts[call.tool] = [*state.starts.get(call.tool, ()), at_ms][-definition.rate[0] :]
    call.attempt = event.attempt
    call.attempt_epoch = state.epoch
    call.started_at_ms = at_ms
    call.valid_until_ms = event.valid_until_ms
    call.request_sha256 = event.request_sha256
    call.under = event.under
    call.holds_key = call.key is not None
    call.retry_at_ms = 0
    call.resend_denied = False
    call.guarded = ""  # a verdict is about one attempt's result


def _call_executed(state: State, event: e.CallExecuted, at_ms: int) -> None:
    call = _call(state, event.call, "call_executed")
    unknown = event.outcome == "unknown"
    call.phase = next_call_phase(call.phase, "call_executed", "reconciling" if unknown else "executed")
    if call.reserved_micros or event.spent_micros:
        spent = call.reserved_micros if event.spent_micros is None else event.spent_micros
        state.meters.cost_micros.settle(call.reserved_micros, spent)
        call.reserved_micros = 0
    call.outcome, call.code, call.safe_message = event.outcome, event.code, event.safe_message
    call.retryable, call.retry_at_ms = event.retryable, event.retry_at_ms
    call.result, call.result_sha256 = event.result, event.result_sha256
    call.artifact, call.size = event.artifact, event.size
    call.progress_sha256 = event.progress_sha256
    call.met = event.met
    call.values = event.values
    call.source = event.source
    call.facts = event.facts
    call.observed_at_ms = at_ms
    if event.outcome == "failed" and call.key is not None:
        call.holds_key = False


def _note_version(state: State, call: CallState, source: e.Source) -> None:
    """The first success of a run-wide group that the model is shown says which version the run reads."""
    definition = state.tools[call.tool]
    if definition.same_version and definition.same_version_in == "run":
        state.run_versions.setdefault(definition.same_version, source.version)


def _call_reconciled(state: State, event: e.CallReconciled, at_ms: int) -> None:
    if state.phase == "terminated":
        next_run_phase(state.phase, "call_reconciled")
        _reconcile_bound(state, event)
        return
    call = state.calls.get(event.call)
    next_run_phase(state.phase, "call_reconciled")
    if call is None or call.phase == "bound":
        _reconcile_bound(state, event)
        return
    wanted = _AFTER_RECONCILED[event.outcome]
    call.phase = next_call_phase(call.phase, "call_reconciled", wanted)
    call.queries += 1 if event.by == "query" else 0
    call.next_query_at_ms = event.next_query_at_ms
    call.resend_denied = event.by == "recheck"
    if event.ends:
        state.stop_after_turn, state.stop_detail = event.ends, event.reason
    if event.outcome == "applied":
        call.outcome = "succeeded"
        call.code = event.code
        call.safe_message = "" if not event.code else "the action took effect; its result is not usable"
        call.result, call.result_sha256 = event.result, event.result_sha256
        call.met = event.met
        call.values = event.values
        call.source = event.source
        call.observed_at_ms = at_ms
    elif event.outcome == "absent":
        call.outcome = ""
        call.holds_key = False
        call.retry_at_ms = 0
        call.guarded = ""
    _remember(state, event)


_AFTER_RECONCILED: dict[str, CallPhase] = {
    "applied": "executed",
    "unknown": "reconciling",
    "absent": "checking",
}


def _result_guarded(state: State, event: e.ResultGuarded, at_ms: int) -> None:
    call = _call(state, event.call, "result_guarded")
    call.phase = next_call_phase(call.phase, "result_guarded")
    call.guarded = event.verdict
    if call.outcome != "failed":
        call.retryable = event.verdict == "unknown"


def _answer_guarded(state: State, event: e.AnswerGuarded, at_ms: int) -> None:
    state.phase = next_run_phase(state.phase, "answer_guarded")
    state.answer_verdict, state.answer_code = event.verdict, event.code


def _reconcile_bound(state: State, event: e.CallReconciled) -> None:
    """The model has its result already; what is known of the effect is on record."""
    call = state.unknown_calls.get(event.call) or state.absent_calls.get(event.call)
    if call is None:
        raise BugError("call_unknown", f"call {event.call} has no unknown effect", path=event.call)
    next_call_phase("bound", "call_reconciled")
    if event.outcome != "unknown":
        state.unknown_calls.pop(event.call, None)
        state.absent_calls.pop(event.call, None)
    if event.outcome == "applied":
        _count_effect(state.effects, call.tool)
    elif event.outcome == "absent":
        state.absent_calls[event.call] = call
    _remember(state, event)


def _result_bound(state: State, event: e.ResultBound, at_ms: int) -> None:
    call = _call(state, event.call, "result_bound")
    was = call.phase
    phase = next_call_phase(was, "result_bound")
    last = not any(other.phase != "bound" for other in state.calls.values() if other is not call)
    if state.phase == "suspended":
        state.phase = next_run_phase("suspended", "result_bound")
        if last and state.resume_phase == "open_calls":
            state.resume_phase = "results_ready"
    else:
        state.phase = next_run_phase(state.phase, "result_bound", "results_ready" if last else "open_calls")
    call.phase = phase
    if was in ("checking", "waiting_key"):
        _give_back(state, call)
    if was == "reconciling":
        state.unknown_calls[call.call] = call
    elif call.attempt and call.outcome == "" and event.replayed is None and call.key is not None:
        state.absent_calls[call.call] = call
    call.status, call.code, call.binding_sha256 = event.status, event.code, event.binding_sha256
    call.holds_key = False
    if event.replayed is not None:
        call.replayed = True
        call.result = event.result
        call.result_sha256 = None if event.result is None else sha256(event.result).digest()
    call.content = _content(state, call, event)
    reads_behind = call.artifact is not None and event.status == "ok" and not guards_results(state)
    if reads_behind and not state.reading:
        _offer_reading(state)
    if call.source is not None and event.status == "ok":
        _note_version(state, call, call.source)
    state.turn_result_bytes += len(call.content)
    _count_result(state, call)
    if last:
        _close_turn(state)


def _content(state: State, call: CallState, event: e.ResultBound) -> bytes:
    if event.status == "ok":
        trusted = state.tools[call.tool].trust == "trusted"
        result = call.result if call.result is not None else b"null"
        if call.question is not None:
            return answer_content(result, call.observed_at_ms)
        if event.replayed is not None:
            return replayed_content(
                result,
                event.replayed.at_ms,
                arguments_differ=event.replayed.arguments_differ,
                trusted=trusted,
            )
        truncated = call.met is not None or call.artifact is not None
        source = call.source
        as_of = state.as_of if state.as_of and state.tools[call.tool].snapshot else ""
        # Of a large result only the view was judged, so nothing behind it is there to be read.
        handle = "" if call.artifact is None or guards_results(state) else handle_of(call.artifact)
        if source is None and not as_of:
            return ok_content(
                result, call.observed_at_ms, truncated=truncated, trusted=trusted, handle=handle
            )
        return ok_content(
            result,
            (source and source.observed_at_ms) or call.observed_at_ms,
            truncated=truncated,
            source_version="" if source is None else source.version,
            as_of=as_of,
            trusted=trusted,
            handle=handle,
        )
    shows = call.child is not None and not is_withheld(state, call)
    data = call.result if shows else None  # what an agent did that failed afterwards
    return error_content(event.code, event.safe_message, path=call.path, retryable=call.retryable, data=data)


def _count_result(state: State, call: CallState) -> None:
    """Repeats, progress, failures and evidence, from one bound result."""
    if call.status == "ok":
        digest = call.progress_sha256 or call.result_sha256 or b""
        state.succeeded_tools[call.tool] = state.succeeded_tools.get(call.tool, 0) + 1
        _count_evidence(state, call)
        watched = state.pins.watched
        if watched is not None:
            index_result(state, call, watched)
    else:
        digest = call.code.encode()
        if is_withheld(state, call):
            state.counters.denials += 1
        elif call.rung == "" and call.code != "unknown" and call.child is None:
            state.counters.failures += 1
    if call.key is not None and not call.replayed and (call.status == "ok" or call.outcome == "succeeded"):
        _count_effect(state.effects, call.tool)  # also where its result is of no use
    if call.args_sha256:
        same = repeat_key(call)
        pair = same + digest
        count = state.result_pairs.get(pair, 0) + 1
        state.result_pairs[pair] = count
        if count > 1 and count > state.equal_results.get(same, 0):
            state.equal_results[same] = count
    news = call.tool.encode() + b"\0" + digest
    if news not in state.results_seen:
        state.results_seen[news] = state.seq
        state.turn_progress = True


def _count_effect(effects: dict[str, int], tool: str, count: int = 1) -> None:
    effects[tool] = effects.get(tool, 0) + count


def _count_evidence(state: State, call: CallState) -> None:
    goal = state.pins.goal
    if goal is not None and _counted(call, goal.evidence, state.evidence, 0):
        state.turn_progress = True
    stages = state.pins.stages
    if stages and call.stage == state.stage:
        first = number_of_leave(state.pins, state.stage)
        if _counted(call, stages[state.stage].leave, state.stage_evidence, first):
            state.stage_calls.append(call.call)
            state.turn_progress = True


def _counted(call: CallState, asked: tuple[Evidence, ...], met: list[int], first: int) -> bool:
    """Count a bound, successful result for each predicate that it meets; whether it met one. ``first`` is the number of the
    first predicate among all of the run's."""
    counts = False
    for place, predicate in enumerate(asked):
        if predicate.tool == call.tool and met[place] < predicate.count and call.arguments is not None:
            arguments: Any = decode_canonical(call.arguments)
            if predicate.asked_by(arguments) and _meets(call, first + place, predicate):
                met[place] += 1
                counts = True
    return counts


def _meets(call: CallState, number: int, predicate: Evidence) -> bool:
    """By the whole result: a bounded view comes with the predicates that the whole one met."""
    if call.met is not None:
        return number in call.met
    return predicate.met_by(None if call.result is None else decode_canonical(call.result))


def _close_turn(state: State) -> None:
    """All calls are bound: the assistant item and its results join the history, in call order."""
    ordered = list(state.calls.values())
    calls = [AssistantCall(call.call, call.provider_call_id, call.tool, call.raw) for call in ordered]
    first_surplus = len(ordered)
    for offset, (provider_call_id, name) in enumerate(state.surplus):
        calls.append(AssistantCall(f"c{state.turn}.{first_surplus + offset}", provider_call_id, name, b"{}"))
    _append_item(state, AssistantItem(state.last_text, tuple(calls), state.continuation))
    for call in ordered:
        _append_item(
            state,
            ResultItem(call.call, call.provider_call_id, call.tool, call.status == "error", call.content),
        )
    for surplus in calls[first_surplus:]:
        refused = error_content("calls_per_turn", "too many calls in one turn; this one was not considered")
        _append_item(
            state, ResultItem(surplus.call_id, surplus.provider_call_id, surplus.name, True, refused)
        )
    for call in ordered:
        if (call.attempt or call.replayed) and not is_withheld(state, call):
            _taint(state, call)
    counters = state.counters
    counters.idle_turns = 0 if state.turn_progress else counters.idle_turns + 1
    if state.unread or state.waiting_facts:
        take_in(state)


def _taint(state: State, call: CallState) -> None:
    """From the next turn on the model has read this result: words of outsiders, unless its tool vouches for it. An agent's
    is as tainted as its own run was."""
    definition = state.tools[call.tool]
    if definition.trust == "trusted" or definition is READ_RESULT:
        return  # what is read on was bound in this run before, and tainted it then, or is vouched for
    if definition.kind == "agent":
        for source in () if call.child is None else call.child.untrusted:
            state.untrusted = added(state.untrusted, source)
        return
    for one in state.untrusted:
        if one.tool == call.tool and one.declared == (definition.trust == "untrusted"):
            return
    source = TaintSource(call.tool, call.call, definition.trust == "untrusted")
    state.untrusted = added(state.untrusted, source)


# --- tree --------------------------------------------------------------------------------------------------------


def _child_reserved(state: State, event: e.ChildReserved, at_ms: int) -> None:
    call = _call(state, event.call, "child_reserved")
    call.phase = next_call_phase(call.phase, "child_reserved")
    call.child = ChildState(event.child_run, event.agent, dict(event.granted), event.deadline_at_ms)
    state.meters.children.spend(1)
    _lease(state, event.granted)


def _child_started(state: State, event: e.ChildStarted, at_ms: int) -> None:
    call = _call(state, event.call, "child_started")
    call.phase = next_call_phase(call.phase, "child_started")
    child_of(call).started = True


def _child_topped_up(state: State, event: e.ChildToppedUp, at_ms: int) -> None:
    call = _call(state, event.call, "child_topped_up")
    call.phase = next_call_phase(call.phase, "child_topped_up")
    child = child_of(call)
    for name, more in event.granted.items():
        child.granted[name] = child.granted.get(name, 0) + more
    _lease(state, event.granted)
    _remember(state, event)


def _child_settled(state: State, event: e.ChildSettled, at_ms: int) -> None:
    call = _call(state, event.call, "child_settled")
    call.phase = next_call_phase(call.phase, "child_settled")
    child = child_of(call)
    granted, child.untrusted = child.granted, event.tainted_by
    for name in METERED:
        getattr(state.meters, name).settle(granted.get(name, 0), event.spent.get(name, 0))
    # More requests than were lent are side attempts that no adapter had declared.
    beyond = event.spent.get("model_attempts", 0) - granted.get("model_attempts", 0)
    state.counters.side_overrun += max(0, beyond)
    for name, set_aside in granted.items():
        tool = name.removeprefix(EACH)
        if tool != name:
            state.calls_each[tool] += event.spent.get(name, 0) - set_aside
    for tool, count in event.effects.items():
        _count_effect(state.effects_below, tool, count)
    unknown = (*state.unknown_below, *event.unknown)
    state.unknown_below = unknown[:UNKNOWN_BELOW_MAX]
    state.unknown_more += event.unknown_more + len(unknown[UNKNOWN_BELOW_MAX:])


def _lease(state: State, granted: dict[str, int]) -> None:
    """Set aside what a child may spend; calls of one tool count as admitted while they are lent."""
    for name, amount in granted.items():
        tool = name.removeprefix(EACH)
        if tool != name:
            state.calls_each[tool] = state.calls_each.get(tool, 0) + amount
        else:
            getattr(state.meters, name).reserve(amount)


def child_of(call: CallState) -> ChildState:
    """The child that a call waits for. A call without one has none to settle: a bug."""
    if call.child is None:
        raise BugError("child_unknown", f"{call.call} has no child run", path=call.call)
    return call.child


def _stage_entered(state: State, event: e.StageEntered, at_ms: int) -> None:
    stages, following = state.pins.stages, state.stage + 1
    phase = next_run_phase(state.phase, "stage_entered")
    if following >= len(stages) or stages[following].name != event.stage:
        raise BugError("stage_unknown", f"the next stage isn't {event.stage}", path=event.stage)
    state.phase = phase
    state.stage = following
    state.stage_evidence = [0] * len(stages[following].leave)
    state.stage_calls = []
    state.request_head_sha256, state.request_head_bytes = request_head(state.pins, tools_offered(state))
    state.turn_progress = True
    state.counters.idle_turns = 0


def _lease_denied(state: State, event: e.LeaseDenied, at_ms: int) -> None:
    state.phase = next_run_phase(state.phase, "lease_denied")
    state.lease_denied = tuple(dict.fromkeys((*state.lease_denied, *event.limits)))


# --- context -----------------------------------------------------------------------------------------------------


def _context_compacted(state: State, event: e.ContextCompacted, at_ms: int) -> None:
    forced = state.phase == "deciding" and state.finish == "context_exceeded"
    # What the provider found too long is asked for again, as a new turn.
    phase = next_run_phase(state.phase, "context_compacted", "results_ready" if forced else state.phase)
    made = check_compaction(state, event)
    state.phase = phase
    state.compactions = event.number
    state.items = made.items  # a new list: whoever was given the old one keeps what it was given
    state.counters.history_bytes = made.history_bytes
    state.rolling_sha256 = made.rolling_sha256
    if not state.reading:
        _offer_reading(state)
    if forced:
        take_in(state)


def _offer_reading(state: State) -> None:
    """From now on there is something to read on."""
    if not reads_on(state):
        return
    state.reading = True
    state.tools[READ_RESULT.name] = READ_RESULT
    state.request_head_sha256, state.request_head_bytes = request_head(state.pins, tools_offered(state))


def _fact_recorded(state: State, event: e.FactRecorded, at_ms: int) -> None:
    state.phase = next_run_phase(state.phase, "fact_recorded")
    state.facts[event.name] = FactState(event.value, event.call, at_ms, state.seq + 1)
    if not event.call:
        # Nothing else in the history says it: it goes in as it is, after the turn that is under way.
        state.facts_recorded += 1
        if event.name not in state.waiting_facts:
            state.waiting_facts.append(event.name)
        take_in(state)
    _remember(state, event)


# --- shared leaves -----------------------------------------------------------------------------------------------


def repeat_key(call: CallState) -> bytes:
    """What counts as the same call: tool and canonical arguments."""
    return call.tool.encode() + b"\0" + call.args_sha256


def _append_item(state: State, item: Item) -> None:
    encoded = encode_item(item)
    state.items.append(item)
    state.rolling_sha256 = sha256(state.rolling_sha256 + encoded).digest()
    state.counters.history_bytes += len(encoded)


def _remember(state: State, event: e.Commanded) -> None:
    if event.command_id:
        state.commands[event.command_id] = state.seq + 1
        state.command_digests[event.command_id] = event.command_sha256


_APPLY: dict[type[e.Event], Callable[[State, Any, int], None]] = {
    e.RunResumed: _run_resumed,
    e.DefinitionAdopted: _definition_adopted,
    e.MessageReceived: _message_received,
    e.LimitsRaised: _limits_raised,
    e.CancelRequested: _cancel_requested,
    e.CloseRequested: _close_requested,
    e.RunSuspended: _run_suspended,
    e.RunTerminated: _run_terminated,
    e.ModelRequested: _model_requested,
    e.ModelResponded: _model_responded,
    e.ModelFailed: _model_failed,
    e.CallProposed: _call_proposed,
    e.CallValidated: _call_validated,
    e.CallRejected: _call_rejected,
    e.CallsRejected: _calls_rejected,
    e.ApprovalRequested: _approval_requested,
    e.ApprovalDecided: _approval_decided,
    e.ApprovalLapsed: _approval_lapsed,
    e.QuestionAsked: _question_asked,
    e.QuestionAnswered: _question_answered,
    e.CallWaiting: _call_waiting,
    e.CallStarted: _call_started,
    e.CallExecuted: _call_executed,
    e.CallReconciled: _call_reconciled,
    e.ResultBound: _result_bound,
    e.ResultGuarded: _result_guarded,
    e.AnswerGuarded: _answer_guarded,
    e.ChildReserved: _child_reserved,
    e.ChildStarted: _child_started,
    e.ChildToppedUp: _child_topped_up,
    e.ChildSettled: _child_settled,
    e.LeaseDenied: _lease_denied,
    e.StageEntered: _stage_entered,
    e.ContextCompacted: _context_compacted,
    e.FactRecorded: _fact_recorded,
}
