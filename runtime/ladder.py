"""The ladder: from a model's proposal to "may run", first refusal wins, every rung on record.

Pure rungs (``admit``): known and offered, strict JSON, schema. Rungs of the application (check, authorisation, policy,
switch, price, preview) are run by the driver and come back as verdicts. Then limits, the ledger's row, no-progress and
the approval are judged here. A refusal goes back to the model as the call's result; its text is the same for what is
missing and what is forbidden.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from . import events as e
from .approvals import request_approval
from .binding import revisions_now
from .canonical import JSON, canonical_bytes
from .commands import Admitted, ChecksDone, Refused
from .decision import NOTHING, Decision, settle
from .effects import limit_short
from .errors import CallerError
from .fold import repeat_key
from .key_rows import by_row
from .questions import BLANK_TEXT, blank_in
from .read_result import READ_RESULT
from .recheck import recheck_done
from .refusal import NOT_AVAILABLE, REFUSAL_TEXT, first_refusal
from .secret_arguments import REFERENCE_PREFIX, reference_name
from .state import CallState, State
from .stops import ending
from .strict_json import parse_object
from .tool_cost import price_refusal
from .tool_definition import ToolDefinition
from .values_seen import first_invented, not_seen_text

WITHHELD = (
    "an argument held a secret itself, which is never run; where the tool takes one, write secret://NAME"
)
SECRETS_NAMED_MAX = 5
"""Of those that an argument takes, so many are named to a model that wrote another."""

NO_SNAPSHOT = "this tool reads at a fixed point in time, and none was set for this task"


def admit(state: State, call: CallState) -> tuple[Admitted, dict[str, JSON]] | Refused:
    """The pure rungs over the raw bytes. What is admitted is canonical: these bytes are validated, hashed, shown,
    approved and executed. No bytes at all are how models say "no arguments": ``{}`` where the schema takes that. (A
    text that was cut to nothing doesn't get here: its turn isn't executable.)"""
    definition = state.tools.get(call.tool)
    stages = state.pins.stages
    staged = not stages or call.tool in stages[call.stage].tools or definition is READ_RESULT
    if definition is None or not definition.offered or not staged:
        return Refused(rung="known", code="unknown_tool", safe_message=NOT_AVAILABLE)
    if call.withheld:
        return Refused(rung="check", code="secret_in_argument", safe_message=WITHHELD, path=call.withheld)
    validator = definition.validator()
    try:
        arguments = {} if not call.raw and validator({}) is None else parse_object(call.raw)
    except CallerError as error:
        return Refused(
            rung="json",
            code=error.code,
            safe_message="the arguments are not acceptable JSON",
            path=error.path,
        )
    violation = validator(arguments)
    if violation is not None:
        return Refused(
            rung="schema", code=violation.code, safe_message=violation.message, path=violation.path
        )
    forbidden = _foreign_secret(definition, arguments)
    if forbidden is not None:
        return forbidden
    if definition.kind == "question":
        blank = blank_in(arguments)
        if blank:
            return Refused(rung="schema", code="question_blank", safe_message=BLANK_TEXT, path=blank)
    if definition.snapshot and not state.as_of:
        return Refused(rung="check", code="as_of_missing", safe_message=NO_SNAPSHOT)
    if definition.from_results:
        invented = first_invented(state, definition.from_results, arguments, call.turn)
        if invented:
            return Refused(
                rung="provenance",
                code="not_from_results",
                safe_message=not_seen_text(state),
                path=f"$.{invented}",
            )
    canonical = canonical_bytes(arguments)
    if definition.risk == "read":
        return Admitted(
            arguments=canonical, args_sha256=sha256(canonical).digest(), key=None, intent_sha256=None
        ), arguments
    key = definition.key_of(state.tenant, state.operation_id, f"{state.run_id}/{call.call}", arguments)
    admitted = Admitted(
        arguments=canonical,
        args_sha256=sha256(canonical).digest(),
        key=key,
        intent_sha256=definition.intent_sha256(arguments),
    )
    return admitted, arguments


def _foreign_secret(definition: ToolDefinition, arguments: dict[str, JSON]) -> Refused | None:
    """The refusal of a reference to a secret that this argument of this tool may not refer to, whoever named it."""
    for name, allowed in definition.secret_arguments.items():
        value = arguments.get(name)
        if value is not None and reference_name(value) not in allowed:
            takes = ", ".join(f"{REFERENCE_PREFIX}{one}" for one in allowed[:SECRETS_NAMED_MAX])
            return Refused(
                rung="check",
                code="secret_not_allowed",
                safe_message=f"this argument takes nothing but a reference to a secret of this tool: {takes}",
                path=f"$.{name}",
            )
    return None


def checks_done(state: State, command: ChecksDone, now_ms: int) -> Decision:
    """Verdicts arrived. The first pass admits, refuses, replays, waits or asks; the re-check starts or refuses."""
    call = state.calls.get(command.call)
    if call is None or state.phase != "open_calls" or state.cancel_reason or ending(state):
        return NOTHING
    if command.recheck:
        return recheck_done(state, call, command, now_ms)
    if call.phase != "proposed":
        return NOTHING
    refused = command.refused
    if refused is not None:
        return Decision(
            (e.CallRejected(call.call, refused.rung, refused.code, refused.safe_message, refused.path),)
        )
    if command.admitted is None:
        return NOTHING
    if not command.contract_kept:
        # Siblings may be running, so the run stops after the turn (the fold notes it) and not in its middle.
        code = "definition_changed"
        return Decision((e.CallRejected(call.call, "definition", code, REFUSAL_TEXT["definition"]),))
    rejection = (
        first_refusal(call, command)
        or price_refusal(state, call, command)
        or _over_limits(state, call, command.price_micros)
    )
    if rejection is not None:
        return Decision((rejection,))
    return _admitted(state, call, command.admitted, command, now_ms)


def _over_limits(state: State, call: CallState, price_micros: int | None) -> e.CallRejected | None:
    each = state.limits.tool_calls_each.get(call.tool)
    if state.meters.tool_calls.free < 1:
        code = "max_tool_calls"
    elif each is not None and state.calls_each.get(call.tool, 0) >= each:
        code = "tool_calls_each"
    else:
        code = limit_short(state, call, price_micros) or _price_unknown(state, call)
    if not code:
        return None
    return e.CallRejected(call.call, "limits", code, REFUSAL_TEXT["limits"])


def _price_unknown(state: State, call: CallState) -> str:
    """An agent asks for a cost limit, and without a price of the model nobody can keep it."""
    agents = () if state.pins.priced else state.tools[call.tool].agents
    return "price_unknown" if any("cost_micros" in agent.limits for agent in agents) else ""


def _admitted(
    state: State, call: CallState, admitted: Admitted, command: ChecksDone, now_ms: int
) -> Decision:
    """Ledger, no-progress and approval, over a call whose own rungs all said yes."""
    event = e.CallValidated(
        call.call,
        None if admitted.arguments == call.raw else admitted.arguments,
        admitted.args_sha256,
        command.verdicts,
        admitted.key,
        admitted.intent_sha256,
        revisions_now(state, call, command),
        command.price_micros,
    )
    validated = msgspec.structs.replace(
        call,
        phase="checking",
        arguments=admitted.arguments,
        args_sha256=admitted.args_sha256,
        key=admitted.key,
        intent_sha256=admitted.intent_sha256,
        price_micros=command.price_micros,
    )
    then = by_row(state, validated, command.row, command)
    if then is None:
        then = _repeated(state, validated) or _ask(state, validated, command, now_ms) or NOTHING
    return Decision((event, *then.events), then.claim, then.settlements)


def _repeated(state: State, call: CallState) -> Decision | None:
    """The K-th repetition binds ``no_progress`` and is not run."""
    same = repeat_key(call)
    limits = state.limits
    repeated = state.repeats.get(same, 0)
    if repeated == 0:
        return None
    if repeated + 1 < limits.repeats and state.equal_results.get(same, 1) + 1 < limits.equal_results:
        return None
    return Decision(
        (e.CallRejected(call.call, "progress", "no_progress", REFUSAL_TEXT["progress"]),),
        settlements=settle(state, call, "free") if call.holds_key else (),
    )


def _ask(state: State, call: CallState, command: ChecksDone, now_ms: int) -> Decision | None:
    if not command.ask:
        return None
    return request_approval(state, call, command, now_ms, round_=1)
