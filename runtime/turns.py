"""Model turns: when the next request may go out, what an answer becomes, and whether a final text is believed."""

from __future__ import annotations

from collections import Counter

from . import events as e
from .answer import answer_of, source_missing
from .binding import check_bindings
from .commands import ModelReplied
from .context import compaction, fits, forced_compaction, input_tokens_bound, request_sha256
from .decision import NOTHING, Decision
from .definitions import is_offered
from .guarded import answer_guarded
from .limits import CEILING, MODEL_BACKOFF_MS, backoff_ms
from .model import FINISH, AssistantItem, ModelTurn, ProposedCall, UserItem
from .prices import cost_bound, cost_of
from .reported import LABEL_CHARS_MAX, SPENT_MAX, sound_label, sound_text, sound_usage
from .side_attempts import own_reservation, side_reserved, side_spent
from .stages import never_offered, still_to_leave, tools_to_leave
from .state import State
from .stops import stop, unfinished
from .top_ups import Short, may_ask

NAME_CHARS_MAX = 128


def next_request(state: State, now_ms: int) -> Decision:
    """The next ``model_requested``, or the stop that stands in its way. All calls of the turn are bound."""
    blocked = _reason_to_stop(state)
    if blocked is not None:
        return blocked
    if state.calls:
        check_bindings(state)
    return request(state, turn=state.turn + 1, attempt=1)


def _reason_to_stop(state: State) -> Decision | None:
    """Stops that were earned in the last turn, most specific first."""
    counters, limits = state.counters, state.limits
    if state.stop_after_turn:
        return stop(state, state.stop_after_turn, state.stop_detail)
    goal_tools = {predicate.tool for predicate in state.pins.goal.evidence} if state.pins.goal else set[str]()
    if goal_tools or state.pins.stages:
        missing = {name for name in goal_tools if name not in state.tools}
        if state.definitions:
            missing |= {
                name for name in _still_needed(state) | tools_to_leave(state) if not is_offered(state, name)
            }
        never = min(missing) if missing else ""
        if state.pins.stages and not never:
            never = never_offered(state, _still_needed(state))
        if never:
            return stop(state, "blocked", f"{never} is not offered")
        if state.approval_expired_for in _still_needed(state) | tools_to_leave(state):
            return stop(state, "approval_expired", state.approval_expired_for)
        failed = _failed_for_good(state)
        if failed:
            return stop(state, "tool_failed", failed)
    source = source_missing(state)
    if source:
        return stop(state, "blocked", f"{source} is not offered")
    if counters.hosted_calls > limits.hosted_calls:
        return stop(state, "max_tool_calls", "hosted_calls")
    if counters.denials > limits.denials:
        return stop(state, "policy_denied", "denials")
    if counters.failures > limits.failures:
        return stop(state, "tool_failed", "failures")
    if counters.invalid_streak >= limits.invalid_streak:
        return stop(state, "no_progress", "invalid_streak")
    if counters.idle_turns >= limits.turns_without_progress:
        return stop(state, "no_progress", "turns_without_progress")
    if counters.active_ms >= limits.active_ms:
        return stop(state, "deadline", "active_ms")
    return None


def _still_needed(state: State) -> set[str]:
    """Tools that the goal's open predicates name."""
    goal = state.pins.goal
    if goal is None:
        return set()
    return {
        predicate.tool
        for predicate, met in zip(goal.evidence, state.evidence, strict=True)
        if met < predicate.count
    }


def _failed_for_good(state: State) -> str:
    """A tool that the goal still needs and that failed permanently in this turn; empty if there is none. A child run that
    failed is no such tool: another one may do better."""
    needed = _still_needed(state)
    for call in state.calls.values():
        permanent = call.outcome == "failed" and not call.retryable and call.status == "error"
        if permanent and call.child is None and call.tool in needed:
            return f"{call.tool}: {call.code}"
    return ""


def request(state: State, *, turn: int, attempt: int) -> Decision:
    """Reserve and ask, or stop: a request goes out only if its input bound plus its maximum output fits. Where the context
    is what is too small, old turns leave it first; the request is due then."""
    meters, limits = state.meters, state.limits
    if turn != state.turn and meters.turns.free < 1:
        return _out_of(state, turn, "max_turns")
    side = side_reserved(state)
    if meters.model_attempts.free < 1 + side.attempts:
        return _out_of(state, turn, "max_turns", "model_attempts")
    input_bound = input_tokens_bound(state)
    output_max = limits.output_tokens_per_request
    if not fits(state):
        compact = compaction(state)
        if compact is not None:
            return Decision((compact,))
        return stop(state, "context_exhausted", f"{input_bound} input tokens")
    if (
        input_bound + side.input_tokens > meters.input_tokens.free
        or output_max + side.output_tokens > meters.output_tokens.free
        or input_bound + output_max + side.input_tokens + side.output_tokens > meters.total_tokens.free
    ):
        return _out_of(state, turn, "budget_tokens")
    price = state.pins.price
    cost = 0 if price is None else cost_bound(price, input_bound, output_max)
    if cost + side.cost_micros > meters.cost_micros.free or meters.cost_micros.overrun:
        return _out_of(state, turn, "budget_cost")
    digest = request_sha256(
        state.request_head_sha256, state.rolling_sha256, turn, len(state.items), output_max
    )
    return Decision(
        (
            e.ModelRequested(
                turn,
                attempt,
                digest,
                len(state.items),
                input_bound,
                output_max,
                cost,
                side if side.attempts else None,
            ),
        )
    )


def request_short(state: State, turn: int) -> Short:
    """What the request of this turn needs and the run's limits don't have."""
    meters, output_max = state.meters, state.limits.output_tokens_per_request
    input_bound, price = input_tokens_bound(state), state.pins.price
    cost = 0 if price is None else cost_bound(price, input_bound, output_max)
    side = side_reserved(state)
    of_input, of_output = input_bound + side.input_tokens, output_max + side.output_tokens
    needs = (
        ("turns", (turn != state.turn) - meters.turns.free),
        ("model_attempts", 1 + side.attempts - meters.model_attempts.free),
        ("input_tokens", of_input - meters.input_tokens.free),
        ("output_tokens", of_output - meters.output_tokens.free),
        ("total_tokens", of_input + of_output - meters.total_tokens.free),
        ("cost_micros", cost + side.cost_micros - meters.cost_micros.free),
    )
    return {name: missing for name, missing in needs if missing > 0}


def next_request_short(state: State, now_ms: int) -> Short:
    """The same for the request that is due next; nothing where none is."""
    match state.phase:
        case "created" | "results_ready":
            return request_short(state, state.turn + 1)
        case "deciding" if state.finish == "paused" or unanswered(state):
            return request_short(state, state.turn + 1)
        case "model_retry" if state.model_retry_at_ms <= now_ms:
            return request_short(state, state.turn)
        case _:
            return {}


def request_after_resume(state: State) -> tuple[int, int]:
    """Turn and attempt of the request that a stopped run comes to once its stop is lifted: one that failed is asked again
    in its own turn."""
    if state.resume_phase == "model_retry":
        return state.turn, state.model_attempt + 1
    return state.turn + 1, 1


def _out_of(state: State, turn: int, reason: str, detail: str = "") -> Decision:
    """A child asks its parent first (``pending_orders``); everybody else stops."""
    if may_ask(state, request_short(state, turn)):
        return NOTHING
    return stop(state, reason, detail)


def or_asked(state: State, name: str) -> bool:
    """Whether there is one more of this, or a parent that may have it."""
    return getattr(state.meters, name).free >= 1 or may_ask(state, {name: 1})


def attempts_or_asked(state: State, side_made: int) -> bool:
    """Whether a further request has its model attempts once the open one, with so many side attempts, is settled."""
    reserved, needed = state.reserved_side, 1 + side_reserved(state).attempts
    given_back = 0 if reserved is None else reserved.attempts
    free = state.meters.model_attempts.free + given_back - side_made
    return free >= needed or may_ask(state, {"model_attempts": needed})


# --- an answer ---------------------------------------------------------------------------------------------------


def model_replied(state: State, command: ModelReplied, now_ms: int) -> Decision:
    """Turn an answer into facts. An answer to a request that isn't the open one changes nothing."""
    if (
        state.phase != "model_requested"
        or command.turn != state.turn
        or command.attempt != state.model_attempt
    ):
        return NOTHING
    reply = command.reply
    if reply.hosted and not set(reply.hosted) <= set(state.pins.hosted):
        # However the turn ended: the provider is configured otherwise than the run, and asking again won't help.
        return _failed(state, reply, "hosted_undeclared", now_ms)
    rule = FINISH.get(reply.finish)
    if rule is None or (reply.calls and rule.final) or (rule.executable and not reply.calls):
        # What no table row describes is never final and never executable.
        return _failed(state, reply, "unknown_finish", now_ms)
    if rule.retry:
        return _failed(state, reply, reply.error_code or reply.finish, now_ms)
    spent_input, spent_output, spent_cost, side = _spent(state, reply)
    calls = reply.calls if rule.executable else ()
    responded = e.ModelResponded(
        state.turn,
        state.model_attempt,
        reply.finish,
        sound_label(reply.finish_raw),
        sound_text(reply.text),
        len(calls),
        sound_usage(reply.usage),
        spent_input,
        spent_output,
        spent_cost,
        sound_label(reply.response_id),
        "" if reply.served_model == state.pins.model else sound_label(reply.served_model),
        reply.continuation,
        reply.first_token_ms,
        reply.total_ms,
        tuple(sorted(Counter(reply.hosted).items())) if reply.hosted else (),
        side,
        command.tokens,
    )
    if not calls:
        return Decision((responded,))
    return Decision((responded, *_proposals(state, calls)))


def _proposals(state: State, calls: tuple[ProposedCall, ...]) -> list[e.AnyEvent]:
    """One proposal a call, in order; what is beyond ``calls_per_turn`` is refused as one."""
    most = state.limits.calls_per_turn
    labels: set[str] = set()
    events: list[e.AnyEvent] = []
    turn = state.turn
    surplus: list[tuple[str, str]] = []
    for index, proposed in enumerate(calls):
        call = f"c{turn}.{index}"
        label = _unique(sound_label(proposed.provider_call_id), call, labels)
        name = sound_label(proposed.name)[:NAME_CHARS_MAX]
        if index < most:
            events.append(e.CallProposed(call, name, proposed.arguments, label, proposed.withheld))
        else:
            surplus.append((label, name))
    if surplus:
        events.append(e.CallsRejected(turn, most, "calls_per_turn", tuple(surplus)))
    return events


def _unique(label: str, call: str, labels: set[str]) -> str:
    """A provider that repeats an id in one response would get two results for it. Empty ones stay empty."""
    if not label:
        return label
    unique, tries = label, 0
    while unique in labels:  # another suffix each time, so at most as often as there are labels
        unique = f"{label[: LABEL_CHARS_MAX - 32]}~{call}.{tries}"
        tries += 1
    labels.add(unique)
    return unique


def _spent(state: State, reply: ModelTurn) -> tuple[int, int, int, e.SideSpent | None]:
    """What settles the reservation: the reported usage; where it is unknown the reservation stays spent. The side attempts'
    part is in it, and beside it."""
    spent_input, spent_output, spent_cost = _own_spent(state, reply)
    if state.reserved_side is None and reply.side_attempts == ():
        return spent_input, spent_output, spent_cost, None
    side = side_spent(state, reply)
    if side is not None:
        spent_input = min(spent_input + side.input_tokens, CEILING)
        spent_output = min(spent_output + side.output_tokens, CEILING)
        spent_cost = min(spent_cost + side.cost_micros, SPENT_MAX)
    return spent_input, spent_output, spent_cost, side


def _own_spent(state: State, reply: ModelTurn) -> tuple[int, int, int]:
    usage, price = sound_usage(reply.usage), state.pins.price
    reserved_input, reserved_output, reserved_cost = own_reservation(state)
    if usage is None:
        return reserved_input, reserved_output, reserved_cost
    spent_input = reserved_input if usage.input_tokens is None else usage.input_tokens
    spent_output = reserved_output if usage.output_tokens is None else usage.output_tokens
    cost = None if price is None else cost_of(price, usage)
    return spent_input, spent_output, reserved_cost if cost is None else min(cost, SPENT_MAX)


def _failed(state: State, reply: ModelTurn, code: str, now_ms: int) -> Decision:
    """No usable turn. Sent again within the turn's and the run's attempts and the deadline, or not at all."""
    spent_input, spent_output, spent_cost, side = _spent(state, reply)
    retryable = reply.retryable and code != "hosted_undeclared"
    retry_at = 0
    if (
        retryable
        and turn_attempts_left(state)
        and attempts_or_asked(state, 0 if side is None else side.attempts)
    ):
        delay = max(reply.retry_after_ms, backoff_ms(MODEL_BACKOFF_MS, state.model_attempt))
        retry_at = now_ms + delay
        if retry_at >= state.deadline_at_ms:
            retry_at = 0
    return Decision(
        (
            e.ModelFailed(
                state.turn,
                state.model_attempt,
                sound_label(code),
                retryable,
                retry_at,
                spent_input,
                spent_output,
                spent_cost,
                sound_label(reply.finish_raw),
                sound_text(reply.safe_message)[:512],
                sound_label(reply.response_id),
                side,
            ),
        )
    )


def turn_attempts_left(state: State) -> bool:
    """Whether this turn's request may be sent once more; a lifted stop grants the turn its attempts anew."""
    return state.model_attempt - state.model_attempts_before < state.limits.model_attempts_per_turn


def retry_due(state: State, now_ms: int) -> Decision:
    """After a failed request: wait, ask again, or stop."""
    if state.stop_after_turn:
        # Its adapter went beyond what it declared: nothing further is sent, not even for the same turn.
        return stop(state, state.stop_after_turn, state.stop_detail)
    if state.model_retry_at_ms == 0:
        reason = "policy_denied" if state.model_code == "hosted_undeclared" else "model_failed"
        if state.model_attempt == state.model_attempts_before:
            # A lifted stop asks for the same turn again, with new attempts.
            return request(state, turn=state.turn, attempt=state.model_attempt + 1)
        return stop(state, reason, state.model_code)
    if now_ms < state.model_retry_at_ms:
        return NOTHING
    return request(state, turn=state.turn, attempt=state.model_attempt + 1)


def judge(state: State, now_ms: int) -> Decision:
    """A turn without calls. Only an explicit final text, with the evidence that the goal asks for, completes."""
    match state.finish:
        case "truncated":
            return stop(state, "truncated")
        case "refused":
            return stop(state, "model_refusal")
        case "filtered":
            return stop(state, "content_filtered")
        case "context_exceeded":
            compact = forced_compaction(state)
            if compact is not None:
                return Decision((compact,))
            return stop(state, "context_exhausted", "said by the provider")
        case "paused":
            return next_request(state, now_ms)
        case "final" if unanswered(state):
            return next_request(state, now_ms)
        case "final":
            return _judge_final(state)
        case other:
            return stop(state, "model_failed", f"unexpected {other}")


def unanswered(state: State) -> bool:
    """Whether a person's message came while this answer was made: it stands behind the answer, which doesn't count it.
    Facts that the host recorded meanwhile may stand on either side of it."""
    if state.phase != "deciding" or state.finish != "final" or not state.last_text.strip():
        return False
    for item in reversed(state.items):
        if type(item) is UserItem:
            return True
        if type(item) is AssistantItem:
            return False
    return False


def _judge_final(state: State) -> Decision:
    if not state.last_text.strip():
        return stop(state, "empty_response")
    goal = state.pins.goal
    if goal is None and not state.pins.stages:
        return _completed(state, "no evidence asked")
    needs = () if goal is None else zip(goal.evidence, state.evidence, strict=True)
    missing = [predicate.name() for predicate, met in needs if met < predicate.count]
    missing += still_to_leave(state)
    wrong = answer_of(state, state.last_text).missing
    if not missing and not wrong:
        return _completed(state)
    if state.counters.corrective_turns < state.limits.corrective_turns and or_asked(state, "turns"):
        note = "Not done: there is no successful result on record for " + "; ".join(missing) + "."
        if wrong:
            note = (
                (f"{note} " if missing else "Not done: ")
                + "The answer doesn't count: "
                + "; ".join(wrong)
                + "."
            )
        return Decision((e.MessageReceived("runtime", note[:1_024]),))
    return stop(state, "evidence_missing", ", ".join(unfinished(state))[:512])


def _completed(state: State, detail: str = "") -> Decision:
    """The end in success. Where answers are judged, one that wasn't allowed never gets here: a denied one is asked for
    again within ``corrective_turns``, one that nobody could judge waits for whoever resumes."""
    if not answer_guarded(state) or state.answer_verdict == "allow":
        return stop(state, "final", detail)
    if not state.answer_verdict:
        return NOTHING
    if state.answer_verdict != "deny":
        return stop(state, "evidence_missing", f"the answer could not be checked: {state.answer_code}")
    if state.counters.corrective_turns < state.limits.corrective_turns and or_asked(state, "turns"):
        note = f"Not done: this answer was refused by a check ({state.answer_code or 'denied'}). Give another one."
        return Decision((e.MessageReceived("runtime", note),))
    return stop(state, "policy_denied", f"the answer was refused: {state.answer_code or 'denied'}")


def answer_due(state: State, now_ms: int) -> bool:
    """Whether the final text is all that is left to judge."""
    if state.finish != "final" or state.answer_verdict or state.cancel_reason or unanswered(state):
        return False
    return now_ms < state.deadline_at_ms and not judge(state, now_ms).events
