"""Guardrails as they are asked: in the host's loop, on a thread, or in an executor. The same code in all of them.

What is asked travels as bytes, and each try gets its own decode of them, so no guardrail changes what another sees or
what a model is shown.
"""

from __future__ import annotations

import inspect
from typing import Final, get_args

import msgspec

from ..runtime.canonical import JSON, decode_canonical
from ..runtime.commands import Guarded
from ..runtime.events import RungVerdict
from ..runtime.foreign_text import bounded_code
from ..runtime.guarded import answer_sha256, input_sha256, shown_beside
from ..runtime.guardrails import (
    GuardrailAnswer,
    GuardrailDecision,
    GuardrailQuestion,
    Place,
    result_sha256,
)
from ..runtime.ledger import LedgerRow
from ..runtime.limits import RECHECKS_MAX
from ..runtime.policy import Policy
from ..runtime.read_result import READ_RESULT
from ..runtime.state import CallState, State
from ..runtime.taint import TaintSource, counted
from ..runtime.tool_spec import ToolSpec
from ..runtime.toolbox import Toolbox
from .secret_source import Secrets

ANSWERS_POOL: Final = "default"
"""The pool whose executors judge final answers and parts that ``read_result`` read, which belong to no tool of the application."""

_BARE: Final = {name: GuardrailDecision(answer=name) for name in get_args(GuardrailAnswer)}
_NO_ANSWER: Final = GuardrailDecision(answer="unknown", code="guardrail_no_answer")


class GuardAsked(
    msgspec.Struct, frozen=True, kw_only=True, tag="guard", forbid_unknown_fields=True, gc=False
):
    """One question to a guardrail. ``arguments``, ``result`` and the values of ``facts`` are canonical JSON; ``input_sha256`` is what the verdict is
    about."""

    place: Place
    tenant: str
    principal: str
    operation_id: str
    input_sha256: bytes
    tool: str = ""
    arguments: bytes = b"{}"
    result: bytes | None = None
    code: str = ""
    text: str = ""
    untrusted: tuple[TaintSource, ...] = ()
    source_version: str = ""
    facts: dict[str, bytes] = {}


def about_result(state: State, call: CallState) -> GuardAsked:
    """The executed result of a call, as the model would be shown it."""
    failed = call.outcome != "succeeded" or bool(call.code)
    version, facts = shown_beside(call)
    return GuardAsked(
        place="result",
        tenant=state.tenant,
        principal=state.principal,
        operation_id=state.operation_id,
        input_sha256=input_sha256(state, call),
        tool=call.tool,
        arguments=call.arguments or b"{}",
        result=call.result,
        code=call.code,
        text=call.safe_message if failed else "",
        untrusted=state.untrusted,
        source_version=version,
        facts=facts,
    )


def about_replay(
    state: State, call: CallState, arguments: bytes, args_sha256: bytes, row: LedgerRow
) -> GuardAsked:
    """The recorded result of an effect, as it would be replayed to this call."""
    return GuardAsked(
        place="result",
        tenant=state.tenant,
        principal=state.principal,
        operation_id=state.operation_id,
        input_sha256=result_sha256(call.tool, args_sha256, "", "", row.result_sha256),
        tool=call.tool,
        arguments=arguments,
        result=row.result,
        untrusted=state.untrusted,
    )


def about_answer(state: State) -> GuardAsked:
    """The final text of the turn."""
    return GuardAsked(
        place="answer",
        tenant=state.tenant,
        principal=state.principal,
        operation_id=state.operation_id,
        input_sha256=answer_sha256(state),
        text=state.last_text,
        untrusted=state.untrusted,
    )


def place_for(toolbox: Toolbox, spec: ToolSpec | None) -> tuple[str, float]:
    """The pool whose executors judge results of this tool, and how long a place there may be waited for: as long as a check of
    the tool waits. An answer and ``read_result`` have no executor of their own: as long as the slowest tool of their pool may
    keep one."""
    if spec is not None and spec.definition is not READ_RESULT:
        return spec.definition.pool, spec.definition.timeout_ms / 1_000
    shared = [one.definition for one in toolbox.values() if one.definition.pool == ANSWERS_POOL]
    return ANSWERS_POOL, max((definition.timeout_ms for definition in shared), default=0) / 1_000


def judged(
    policy: Policy,
    asked: GuardAsked,
    *,
    tries_max: int = RECHECKS_MAX,
    secrets: Secrets | None = None,
) -> RungVerdict:
    """The verdict, in this thread. An unknown is asked for again, ``tries_max`` times in all. Raises nothing."""
    guardrails = policy.guardrails
    ask = None if guardrails is None else guardrails.at(asked.place)
    if guardrails is None or ask is None:
        return unjudged("guardrail_missing", policy)
    decision = _NO_ANSWER
    for _ in range(tries_max):
        try:
            answer = ask(_question(policy, asked))
            decision = _read(answer, secrets)
        except BaseException:  # noqa: BLE001  whatever it raises is no answer
            decision = GuardrailDecision(answer="unknown", code="guardrail_failed")
        if decision.answer != "unknown":
            break
    return RungVerdict("guardrail", decision.answer, decision.code, guardrails.revision)


def unjudged(code: str, policy: Policy) -> RungVerdict:
    """No answer came, for whatever reason."""
    revision = "" if policy.guardrails is None else policy.guardrails.revision
    return RungVerdict("guardrail", "unknown", code, revision)


def told(asked: GuardAsked, verdict: RungVerdict, call: str = "") -> Guarded:
    """The verdict as a command."""
    return Guarded(call=call, verdict=verdict, input_sha256=asked.input_sha256)


def _question(policy: Policy, asked: GuardAsked) -> GuardrailQuestion:
    arguments = decode_canonical(asked.arguments)
    result: JSON = None if asked.result is None else decode_canonical(asked.result)
    return GuardrailQuestion(
        place=asked.place,
        tenant=asked.tenant,
        principal=asked.principal,
        operation_id=asked.operation_id,
        tool=asked.tool,
        arguments=arguments if isinstance(arguments, dict) else {},
        result=result,
        code=asked.code,
        text=asked.text,
        tainted_by=counted(asked.untrusted, policy.taint),
        source_version=asked.source_version,
        facts={name: decode_canonical(value) for name, value in asked.facts.items()},
    )


def _read(answer: object, secrets: Secrets | None) -> GuardrailDecision:
    """What was answered, if it is one of the answers that there are."""
    if isinstance(answer, GuardrailDecision):
        if answer.answer not in _BARE:
            return _NO_ANSWER
        code: object = answer.code if secrets is None else secrets.redactor.said(answer.code)
        return GuardrailDecision(answer=_BARE[answer.answer].answer, code=bounded_code(code))
    if isinstance(answer, str):
        return _BARE.get(bounded_code(answer), _NO_ANSWER)
    if inspect.isawaitable(answer):
        close = getattr(answer, "close", None)
        if close is not None:
            close()
    return _NO_ANSWER
