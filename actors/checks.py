"""The rungs that need application code, run by the driver: semantic check, authorisation, policy, switches, preview.

Each answers allow, deny, unknown (or ask). Whatever is raised, ``None`` or a time-out is unknown and is asked again
within ``RECHECKS_MAX``; whoever decides then denies it, retryably. Exits and interrupts of the application's code count
as raised: let through, they would end the loop of all runs. Inline checks must be CPU only; others run on threads.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Final

from ..runtime.canonical import JSON, canonical_bytes, decode_canonical
from ..runtime.commands import Admitted, ChecksDone, Refused
from ..runtime.errors import ToolError
from ..runtime.events import RungVerdict
from ..runtime.ladder import admit
from ..runtime.ledger import LedgerRow
from ..runtime.limits import RECHECKS_MAX
from ..runtime.policy import Policy, PolicyDecision, PolicyQuestion
from ..runtime.state import CallState, State
from ..runtime.tool_spec import ToolDefinition, ToolSpec
from ..runtime.toolbox import Toolbox
from .daemon_thread import on_daemon_thread

CHECK_TIMEOUT_S: Final = 10.0
CONTRACT_FIELDS: Final = ("name", "effect_version", "parameters", "risk", "key", "incidental", "far_side")
"""What a definition must keep for a run in flight; a change of anything else only makes approvals stale."""


class Gate:
    """What every check of a host needs: the tools' code, the policy, today's permissions and switches."""

    __slots__ = ("permissions_of", "policy", "switched_off", "toolbox")

    def __init__(
        self,
        toolbox: Toolbox,
        policy: Policy,
        permissions_of: Callable[[str, str], frozenset[str]],
        switched_off: Callable[[str, str], str],
    ) -> None:
        self.toolbox = toolbox
        self.policy = policy
        self.permissions_of = permissions_of
        self.switched_off = switched_off

    def runs_inline(self, definition: ToolDefinition | None) -> bool:
        """Whether all rungs of this tool's calls may run in the host's own loop."""
        return definition is None or (self.policy.inline and definition.check_inline)


def pure_rungs(
    state: State, call: CallState, recheck: bool
) -> tuple[Admitted | None, dict[str, JSON] | Refused]:
    """The admitted call with its arguments, or the refusal of a pure rung. A re-check decodes what was validated."""
    if recheck and call.arguments is not None:
        decoded = decode_canonical(call.arguments)
        return None, decoded if isinstance(decoded, dict) else {}
    outcome = admit(state, call)
    if isinstance(outcome, Refused):
        return None, outcome
    return outcome


def run_inline(
    gate: Gate,
    state: State,
    call: CallState,
    admitted: Admitted | None,
    arguments: dict[str, JSON],
    row: LedgerRow | None,
    *,
    recheck: bool,
) -> ChecksDone:
    """All rungs in order, first refusal wins, in the caller's thread."""
    definition = state.tools[call.tool]
    spec = gate.toolbox.get(call.tool)
    verdicts: list[RungVerdict] = []
    terminal = ask = False
    for rung in _rungs(gate, state, definition, spec, arguments):
        verdict, ends = _settled(rung)
        if verdict.verdict == "allow" and not verdict.revision:
            continue
        verdicts.append(verdict)
        if verdict.verdict == "ask":
            ask = True
        elif verdict.verdict != "allow":
            terminal = ends
            break
    refused = bool(verdicts) and verdicts[-1].verdict in ("deny", "unknown")
    # What would be shown to a person is made only when one is asked, or was asked before.
    ask = not refused and definition.is_effect and (ask or definition.approval == "always")
    preview, version, failure = None, "", None
    if ask or (recheck and call.approval is not None and not refused):
        preview, version, failure = _preview(spec, definition, arguments)
        if failure is not None:
            verdicts.append(failure)
    return ChecksDone(
        call=call.call,
        recheck=recheck,
        admitted=admitted,
        verdicts=tuple(verdicts),
        terminal=terminal,
        ask=ask,
        row=row,
        definition_sha256=b"" if spec is None else spec.definition_sha256,
        contract_kept=spec is not None and contract_kept(definition, spec.definition),
        policy_revision=gate.policy.revision,
        preview=preview,
        resource_version=version,
    )


async def run_beside(
    gate: Gate,
    state: State,
    call: CallState,
    admitted: Admitted | None,
    arguments: dict[str, JSON],
    row: LedgerRow | None,
    *,
    recheck: bool,
) -> ChecksDone:
    """The same rungs on a thread, for checks that may block; a time-out is an unknown."""
    work = on_daemon_thread(run_inline, gate, state, call, admitted, arguments, row, recheck=recheck)
    try:
        return await asyncio.wait_for(work, CHECK_TIMEOUT_S)
    except TimeoutError:
        return ChecksDone(
            call=call.call,
            recheck=recheck,
            admitted=admitted,
            verdicts=(RungVerdict("check", "unknown", "timeout", gate.policy.revision),),
            row=row,
            policy_revision=gate.policy.revision,
        )


def contract_kept(pinned: ToolDefinition, present: ToolDefinition) -> bool:
    """Whether a call that was validated under ``pinned`` means the same under ``present``."""
    return pinned is present or all(
        getattr(pinned, field) == getattr(present, field) for field in CONTRACT_FIELDS
    )


Rung = Callable[[], tuple[RungVerdict, bool]]


def _rungs(
    gate: Gate,
    state: State,
    definition: ToolDefinition,
    spec: ToolSpec | None,
    arguments: dict[str, JSON],
) -> list[Rung]:
    rungs: list[Rung] = []
    if spec is None:
        return [lambda: (RungVerdict("known", "deny", "tool_not_here"), False)]
    if spec.check is not None:
        check = spec.check
        rungs.append(lambda: (_check(check, arguments, definition.version), False))
    if definition.permissions:
        rungs.append(lambda: (_authorisation(gate, state, definition), False))
    rungs.append(lambda: _policy(gate, state, definition, arguments))
    if definition.is_effect:
        rungs.append(lambda: _switch(gate, state, definition))
    return rungs


def _settled(rung: Rung) -> tuple[RungVerdict, bool]:
    """A rung's answer; an unknown is asked for again, a bounded number of times."""
    verdict, terminal = rung()
    for _ in range(RECHECKS_MAX - 1):
        if verdict.verdict != "unknown":
            break
        verdict, terminal = rung()
    return verdict, terminal


def _check(check: Callable[..., Any], arguments: dict[str, JSON], revision: str) -> RungVerdict:
    """A semantic check answers True/None-less: True allows, a string or False denies with it as the code."""
    try:
        answer = check(dict(arguments))
    except ToolError as error:
        return RungVerdict("check", "deny", error.code[:64], revision)
    except BaseException:
        return RungVerdict("check", "unknown", "check_failed", revision)
    if inspect.isawaitable(answer):
        _drop(answer)
        return RungVerdict("check", "unknown", "check_async", revision)
    if answer is True or answer == "allow":
        return RungVerdict("check", "allow", "", revision)
    if answer is False:
        return RungVerdict("check", "deny", "check_denied", revision)
    if isinstance(answer, str):
        return RungVerdict("check", "deny", answer[:64], revision)
    return RungVerdict("check", "unknown", "check_no_answer", revision)


def _drop(awaitable: Any) -> None:
    close = getattr(awaitable, "close", None)
    if close is not None:
        close()


def _authorisation(gate: Gate, state: State, definition: ToolDefinition) -> RungVerdict:
    """By the principal of the server side, as it is today; never by an argument."""
    try:
        granted = gate.permissions_of(state.tenant, state.principal)
    except BaseException:
        return RungVerdict("authorisation", "unknown", "permissions_failed", "")
    if granted.issuperset(definition.permissions):
        return RungVerdict("authorisation", "allow")
    return RungVerdict("authorisation", "deny", "not_permitted")


def _policy(
    gate: Gate, state: State, definition: ToolDefinition, arguments: dict[str, JSON]
) -> tuple[RungVerdict, bool]:
    policy = gate.policy
    question = PolicyQuestion(
        tenant=state.tenant,
        principal=state.principal,
        permissions=frozenset(state.pins.permissions),
        tool=definition.name,
        risk=definition.risk,
        approval=definition.approval,
        arguments=arguments,
        operation_id=state.operation_id,
        tool_calls_so_far=state.meters.tool_calls.spent,
    )
    try:
        answer = policy.decide(question)
    except BaseException:
        return RungVerdict("policy", "unknown", "policy_failed", policy.revision), False
    if isinstance(answer, PolicyDecision):
        return RungVerdict("policy", answer.answer, answer.code[:64], policy.revision), answer.terminal
    if answer in ("allow", "deny", "ask", "unknown"):
        return RungVerdict("policy", answer, "", policy.revision), False
    return RungVerdict("policy", "unknown", "policy_no_answer", policy.revision), False


def _switch(gate: Gate, state: State, definition: ToolDefinition) -> tuple[RungVerdict, bool]:
    """A kill switch that is on: for one tool its calls are refused, for a tenant or all the run ends."""
    scope = gate.switched_off(state.tenant, definition.name)
    if not scope:
        return RungVerdict("switch", "allow"), False
    return RungVerdict("switch", "deny", f"kill_switch_{scope}"), scope != "tool"


def _preview(
    spec: ToolSpec | None, definition: ToolDefinition, arguments: dict[str, JSON]
) -> tuple[bytes | None, str, RungVerdict | None]:
    """The immutable preview from the real arguments, and the version of the resource that it shows."""
    shown: dict[str, JSON] = {
        "tool": definition.name,
        "risk": definition.risk,
        "arguments": arguments,
        "cost_micros": definition.cost_micros,
    }
    version = ""
    try:
        if spec is not None and spec.version_of is not None:
            version = str(spec.version_of(dict(arguments)))[:256]
        if spec is not None and spec.preview is not None:
            shown["preview"] = spec.encode_result(spec.preview(dict(arguments)))
        return canonical_bytes(shown), version, None
    except BaseException:
        return None, "", RungVerdict("preview", "unknown", "preview_failed")
