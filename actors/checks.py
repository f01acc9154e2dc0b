"""The rungs that need application code, run by the driver: semantic check, authorisation, policy, switches, preview.

Each answers allow, deny, unknown (or ask). Whatever is raised, ``None``, an answer of another type or a time-out is
unknown and is asked again within ``RECHECKS_MAX``; whoever decides then denies it, retryably. Exits and interrupts of
the application's code count as raised: let through, they would end the loop of all runs. Each handler is given its own
decode of the canonical arguments, so none changes what another sees, what is shown, or what runs. Inline checks must be
CPU only; others run on threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Final

from ..runtime.canonical import JSON, canonical_bytes, decode_canonical
from ..runtime.commands import Admitted, ChecksDone, Refused
from ..runtime.events import RungVerdict
from ..runtime.ladder import admit
from ..runtime.ledger import LedgerRow
from ..runtime.limits import RECHECKS_MAX
from ..runtime.policy import Policy, PolicyQuestion
from ..runtime.state import CallState, State
from ..runtime.tool_definition import ApprovalRule, ToolDefinition
from ..runtime.toolbox import Toolbox
from .application_answers import answered, check_answer, permission_set, policy_answer, version_answer
from .daemon_thread import on_daemon_thread

CHECK_TIMEOUT_S: Final = 10.0
CONTRACT_FIELDS: Final = (
    "name",
    "effect_version",
    "parameters",
    "risk",
    "key",
    "incidental",
    "far_side",
    "kind",
)
"""What a definition must keep for a run in flight; a change of anything else only makes approvals stale."""

_STRICTER: Final[tuple[ApprovalRule, ...]] = ("never", "policy", "always")


class Gate:
    """What every check of a host needs: the tools' code, the policy, today's permissions and switches."""

    __slots__ = ("permissions_of", "policy", "switched_off", "toolbox")

    def __init__(
        self,
        toolbox: Toolbox,
        policy: Policy,
        permissions_of: Callable[[str, str], AbstractSet[str]],
        switched_off: Callable[[str, str], str],
    ) -> None:
        self.toolbox = toolbox
        self.policy = policy
        self.permissions_of = permissions_of
        self.switched_off = switched_off

    def runs_inline(self, definition: ToolDefinition | None) -> bool:
        """Whether all rungs of this tool's calls may run in the host's own loop, by its present declaration."""
        if definition is None:
            return True
        spec = self.toolbox.get(definition.name)
        return self.policy.inline and (spec is None or spec.definition.check_inline)

    def granted(self, tenant: str, principal: str) -> frozenset[str] | None:
        """Today's permissions; None if the application gives no set of texts."""
        try:
            return permission_set(self.permissions_of(tenant, principal))
        except BaseException:
            return None


def pure_rungs(state: State, call: CallState, recheck: bool) -> tuple[Admitted | None, bytes | Refused]:
    """The admitted call with its canonical arguments, or the refusal of a pure rung. A re-check takes what was
    validated."""
    if recheck and call.arguments is not None:
        return None, call.arguments
    outcome = admit(state, call)
    if isinstance(outcome, Refused):
        return None, outcome
    admitted, _ = outcome
    return admitted, admitted.arguments


def run_inline(
    gate: Gate,
    state: State,
    call: CallState,
    admitted: Admitted | None,
    arguments: bytes,
    row: LedgerRow | None,
    *,
    recheck: bool,
) -> ChecksDone:
    """All rungs in order, first refusal wins, in the caller's thread."""
    return Pass(gate, state, call, admitted, arguments, row, recheck=recheck).run()


async def run_beside(
    gate: Gate,
    state: State,
    call: CallState,
    admitted: Admitted | None,
    arguments: bytes,
    row: LedgerRow | None,
    *,
    recheck: bool,
) -> ChecksDone:
    """The same rungs on a thread, for checks that may block; a time-out is an unknown."""
    asked = Pass(gate, state, call, admitted, arguments, row, recheck=recheck)
    try:
        return await asyncio.wait_for(on_daemon_thread(asked.run), CHECK_TIMEOUT_S)
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


class Pass:
    """One pass over the rungs of one call. Whatever it needs of the run is read when it is made, because it may run on
    another thread while the run goes on."""

    __slots__ = (
        "_admitted",
        "_arguments",
        "_asked_before",
        "_call",
        "_definition",
        "_gate",
        "_operation_id",
        "_principal",
        "_recheck",
        "_row",
        "_spec",
        "_tenant",
        "_tool_calls",
    )

    def __init__(
        self,
        gate: Gate,
        state: State,
        call: CallState,
        admitted: Admitted | None,
        arguments: bytes,
        row: LedgerRow | None,
        *,
        recheck: bool,
    ) -> None:
        self._gate = gate
        self._call = call.call
        self._admitted = admitted
        self._arguments = arguments
        self._row = row
        self._recheck = recheck
        self._definition = state.tools[call.tool]
        self._spec = gate.toolbox.get(call.tool)
        self._tenant = state.tenant
        self._principal = state.principal
        self._operation_id = state.operation_id
        self._tool_calls = state.meters.tool_calls.spent
        self._asked_before = recheck and call.approval is not None

    def run(self) -> ChecksDone:
        """All rungs in order; the first refusal wins."""
        gate, spec, definition = self._gate, self._spec, self._definition
        verdicts: list[RungVerdict] = []
        terminal = ask = False
        for rung in self._rungs():
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
        ask = not refused and self._acts() and (ask or self._approval() == "always")
        preview, version, failure = None, "", None
        if ask or (self._asked_before and not refused):
            preview, version, failure = self._preview()
            if failure is not None:
                verdicts.append(failure)
        return ChecksDone(
            call=self._call,
            recheck=self._recheck,
            admitted=self._admitted,
            verdicts=tuple(verdicts),
            terminal=terminal,
            ask=ask,
            row=self._row,
            definition_sha256=b"" if spec is None else spec.definition_sha256,
            handler_revision="" if spec is None else spec.definition.handler_revision,
            contract_kept=spec is not None and contract_kept(definition, spec.definition),
            policy_revision=gate.policy.revision,
            preview=preview,
            resource_version=version,
        )

    # --- what holds: what was pinned, and what was tightened since --------------------------------------------------

    def _acts(self) -> bool:
        """Whether a person may be asked and a switch holds it up: effects, and agents, whose runs may have some."""
        return self._definition.is_effect or self._definition.kind == "agent"

    def _approval(self) -> ApprovalRule:
        pinned = self._definition.approval
        if self._spec is None:
            return pinned
        present = self._spec.definition.approval
        return present if _STRICTER.index(present) > _STRICTER.index(pinned) else pinned

    def _needed(self) -> tuple[str, ...]:
        pinned = self._definition.permissions
        if self._spec is None or self._spec.definition.permissions == pinned:
            return pinned
        return (*pinned, *self._spec.definition.permissions)

    def _decoded(self) -> dict[str, JSON]:
        decoded = decode_canonical(self._arguments)
        return decoded if isinstance(decoded, dict) else {}

    # --- the rungs ---------------------------------------------------------------------------------------------------

    def _rungs(self) -> list[Rung]:
        if self._spec is None:
            return [lambda: (RungVerdict("known", "deny", "tool_not_here"), False)]
        rungs: list[Rung] = []
        if self._spec.check is not None:
            rungs.append(self._check)
        if self._needed():
            rungs.append(self._authorisation)
        rungs.append(self._policy)
        if self._acts():
            rungs.append(self._switch)
        return rungs

    def _check(self) -> tuple[RungVerdict, bool]:
        """A semantic check: True allows, False or a text denies, the text as its code."""
        assert self._spec is not None
        assert self._spec.check is not None
        verdict, code = check_answer(self._spec.check, self._decoded())
        return RungVerdict("check", verdict, code, self._spec.definition.version), False

    def _authorisation(self) -> tuple[RungVerdict, bool]:
        """By the principal of the server side, as it is today; never by an argument."""
        granted = self._gate.granted(self._tenant, self._principal)
        if granted is None:
            return RungVerdict("authorisation", "unknown", "permissions_failed"), False
        if granted.issuperset(self._needed()):
            return RungVerdict("authorisation", "allow"), False
        return RungVerdict("authorisation", "deny", "not_permitted"), False

    def _policy(self) -> tuple[RungVerdict, bool]:
        policy, definition = self._gate.policy, self._definition
        granted = self._gate.granted(self._tenant, self._principal)
        if granted is None:
            return RungVerdict("policy", "unknown", "permissions_failed", policy.revision), False
        question = PolicyQuestion(
            tenant=self._tenant,
            principal=self._principal,
            permissions=granted,
            tool=definition.name,
            risk=definition.risk,
            approval=self._approval(),
            arguments=self._decoded(),
            operation_id=self._operation_id,
            tool_calls_so_far=self._tool_calls,
        )
        decision = policy_answer(policy, question)
        verdict = RungVerdict("policy", decision.answer, decision.code, policy.revision)
        return verdict, decision.terminal

    def _switch(self) -> tuple[RungVerdict, bool]:
        """A kill switch that is on: for one tool its calls are refused, for a tenant or all the run ends."""
        scope = self._gate.switched_off(self._tenant, self._definition.name)
        if not scope:
            return RungVerdict("switch", "allow"), False
        return RungVerdict("switch", "deny", f"kill_switch_{scope}"), scope != "tool"

    def _preview(self) -> tuple[bytes | None, str, RungVerdict | None]:
        """The immutable preview from the real arguments, and the version of the resource that it shows."""
        spec, definition = self._spec, self._definition
        shown: dict[str, JSON] = {
            "tool": definition.name,
            "risk": definition.risk,
            "arguments": self._decoded(),
            "cost_micros": definition.cost_micros,
        }
        version = ""
        try:
            if spec is not None and spec.version_of is not None:
                version = version_answer(spec.version_of(self._decoded()))
            if spec is not None and spec.preview is not None:
                shown["preview"] = spec.encode_result(answered(spec.preview(self._decoded())))
            return canonical_bytes(shown), version, None
        except BaseException:
            return None, "", RungVerdict("preview", "unknown", "preview_failed")


Rung = Callable[[], tuple[RungVerdict, bool]]


def _settled(rung: Rung) -> tuple[RungVerdict, bool]:
    """A rung's answer; an unknown is asked for again, a bounded number of times."""
    verdict, terminal = rung()
    for _ in range(RECHECKS_MAX - 1):
        if verdict.verdict != "unknown":
            break
        verdict, terminal = rung()
    return verdict, terminal
