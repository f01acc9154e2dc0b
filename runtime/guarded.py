"""What guardrails are still to judge, from the state alone, and what their verdicts become.

A result is in the log as executed before it is judged, so a crash between the two loses nothing: whoever carries the run on
finds it executed and not judged, and has it judged before it is bound. A run that ends waits for no guardrail: what nobody
judged by then is withheld.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from . import events as e
from .commands import Guarded
from .decision import NOTHING, Decision
from .effects import retry_barred
from .guardrails import result_sha256
from .state import CallState, State
from .withheld import unjudged


def result_due(state: State, call: CallState, now_ms: int) -> bool:
    """Whether the result of an execution that is over is to be judged now: of a failure, once no further attempt can follow."""
    if not unjudged(state, call):
        return False
    if call.outcome == "succeeded" or not call.retry_at_ms:
        return True
    return call.retry_at_ms <= now_ms and retry_barred(state, call)


def input_sha256(state: State, call: CallState) -> bytes:
    """The same of an executed call."""
    version, facts = shown_beside(call)
    return result_sha256(
        call.tool, call.args_sha256, call.code, call.safe_message, call.result_sha256, version, facts
    )


def shown_beside(call: CallState) -> tuple[str, dict[str, bytes]]:
    """What of a success a model is shown beside its data: the version of its source, and facts of the whole of a large one."""
    if call.outcome != "succeeded" or call.code:
        return "", {}
    return "" if call.source is None else call.source.version, call.facts


def answer_sha256(state: State) -> bytes:
    """What a verdict on the answer is about: the turn and its text."""
    return sha256(msgspec.json.encode(("answer", state.turn, state.last_text))).digest()


def answer_guarded(state: State) -> bool:
    """Whether a final answer of this run is judged before it counts."""
    return "answer" in state.pins.guarded


def answer_checked(state: State) -> bool:
    """Whether something may still say no to a final answer of this run: a guardrail, a goal, or a stage before the last."""
    return answer_guarded(state) or state.pins.goal is not None or bool(state.pins.stages)


def guarded(state: State, command: Guarded, now_ms: int) -> Decision:
    """A verdict arrived. One about anything but what is to be judged now changes nothing."""
    verdict = command.verdict
    value = verdict.verdict if verdict.verdict in ("allow", "deny") else "unknown"
    if not command.call:
        waits = state.phase == "deciding" and state.finish == "final" and not state.answer_verdict
        if not waits or not answer_guarded(state) or command.input_sha256 != answer_sha256(state):
            return NOTHING
        return Decision(
            (e.AnswerGuarded(state.turn, value, verdict.code, verdict.revision, command.input_sha256),)
        )
    call = state.calls.get(command.call)
    if call is None or state.phase != "open_calls" or not result_due(state, call, now_ms):
        return NOTHING
    if command.input_sha256 != input_sha256(state, call):
        return NOTHING
    return Decision(
        (e.ResultGuarded(call.call, value, verdict.code, verdict.revision, command.input_sha256),)
    )
