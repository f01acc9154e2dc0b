"""The checks of one call, as a driver asks for them: the pure rungs here, the application's by ``rungs``, and what a host
knows beside them.

Inline checks are the application's code in the host's own loop, and must be CPU only. All others are asked of the
executors, where they may block; whatever keeps them from an answer in time is an unknown, which denies. What an executor
answers is only what the application said: tool, row, definition and switches are the host's own knowledge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..runtime.agent_definition import AgentDefinition
from ..runtime.agent_reach import agent_called
from ..runtime.canonical import decode_canonical
from ..runtime.commands import Admitted, ChecksDone, Refused
from ..runtime.definitions import contract_kept, stricter_approval
from ..runtime.events import RungVerdict
from ..runtime.ladder import admit
from ..runtime.ledger import LedgerRow
from ..runtime.policy import Policy
from ..runtime.state import CallState, State
from ..runtime.taint import stricter
from ..runtime.tool_definition import ApprovalRule, ToolDefinition
from ..runtime.tool_spec import ToolSpec
from ..runtime.toolbox import Toolbox
from .executors import ToolExecutors
from .rungs import Permissions, Rungs, RungsAnswered, RungsAsked, switched
from .secret_source import Secrets

_NOT_HERE: Final = RungsAnswered(verdicts=(RungVerdict("known", "deny", "tool_not_here"),))


class Gate:
    """What every check of a host needs: the tools' code, the policy, today's permissions and switches, and what is never to
    enter the log."""

    __slots__ = ("permissions_of", "policy", "secrets", "switched_off", "toolbox")

    def __init__(
        self,
        toolbox: Toolbox,
        policy: Policy,
        permissions_of: Permissions,
        switched_off: Callable[[str, str], str],
        secrets: Secrets | None = None,
    ) -> None:
        self.toolbox = toolbox
        self.secrets = secrets
        self.policy = policy
        self.permissions_of = permissions_of
        self.switched_off = switched_off

    def runs_inline(self, definition: ToolDefinition | None) -> bool:
        """Whether all rungs of this tool's calls may run in the host's own loop, by its present declaration."""
        if definition is None:
            return True
        spec = self.toolbox.spec_of(definition)
        return self.policy.inline and (spec is None or spec.definition.check_inline)

    @property
    def guards_inline(self) -> bool:
        """Whether guardrails run in the host's own loop."""
        return self.policy.inline


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
    about = Pass(gate, state, call, admitted, arguments, row, recheck=recheck)
    rungs = about.rungs
    return about.done(_NOT_HERE if rungs is None else rungs.run(about.scope))


async def run_beside(
    gate: Gate,
    executors: ToolExecutors,
    state: State,
    call: CallState,
    admitted: Admitted | None,
    arguments: bytes,
    row: LedgerRow | None,
    *,
    recheck: bool,
) -> ChecksDone:
    """The same rungs where they may block. The switches are looked at last, as they are when the answer is here."""
    about = Pass(gate, state, call, admitted, arguments, row, recheck=recheck)
    if about.rungs is None:
        return about.done(_NOT_HERE)
    came = await executors.checked(about.rungs)
    return about.done(switched(came, about.scope()) if about.rungs.asked.acts else came)


class Pass:
    """One pass over the rungs of one call. Whatever it needs of the run is read when it is made, because the run goes on
    while others answer. ``rungs``: None if the tool isn't here."""

    __slots__ = (
        "_admitted",
        "_call",
        "_definition",
        "_gate",
        "_names",
        "_recheck",
        "_row",
        "_tenant",
        "rungs",
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
        self._row = row
        self._recheck = recheck
        self._definition = definition = state.tools[call.tool]
        self._tenant = state.tenant
        spec = gate.toolbox.spec_of(definition)
        self.rungs: Rungs | None = None
        agents = () if definition.kind != "agent" else _agents_called(definition, spec, arguments)
        self._names = (definition.name, *dict.fromkeys(agent.name for agent in agents))
        if spec is not None:
            asked = RungsAsked(
                tool=definition.name,
                definition_sha256=spec.definition_sha256,
                risk=definition.risk,
                approval=_approval(definition, spec, agents),
                permissions=_needed(definition, spec, agents),
                cost_micros=definition.cost_micros,
                # Effects, and agents, whose runs may have some.
                acts=definition.is_effect or definition.kind == "agent",
                asked_before=recheck and call.approval is not None,
                arguments=arguments,
                tenant=state.tenant,
                principal=state.principal,
                operation_id=state.operation_id,
                tool_calls=state.meters.tool_calls.spent,
                untrusted=state.untrusted,
                after_untrusted=stricter(definition.after_untrusted, spec.definition.after_untrusted),
            )
            self.rungs = Rungs(asked, spec, gate.policy, gate.permissions_of, gate.secrets)

    def scope(self) -> str:
        """Of a kill switch that holds this call up now; empty if none does."""
        scopes = (self._gate.switched_off(self._tenant, name) for name in self._names)
        return next(filter(None, scopes), "")

    def done(self, came: RungsAnswered) -> ChecksDone:
        """The application's answers with what is known here."""
        spec = None if self.rungs is None else self.rungs.spec
        return ChecksDone(
            call=self._call,
            recheck=self._recheck,
            admitted=self._admitted,
            verdicts=came.verdicts,
            terminal=came.terminal,
            ask=came.ask,
            row=self._row,
            definition_sha256=b"" if spec is None else spec.definition_sha256,
            handler_revision="" if spec is None else spec.definition.handler_revision,
            contract_kept=spec is not None and contract_kept(self._definition, spec.definition),
            policy_revision=self._gate.policy.revision,
            preview=came.preview,
            price_micros=came.price_micros,
            resource_version=came.resource_version,
        )


def _agents_called(
    pinned: ToolDefinition, spec: ToolSpec | None, arguments: bytes
) -> tuple[AgentDefinition, ...]:
    """The agent that a call asks for: as it was pinned, and as it is now."""
    decoded = decode_canonical(arguments)
    definitions = (pinned,) if spec is None else (pinned, spec.definition)
    return tuple(agent for one in definitions if (agent := agent_called(one, decoded)) is not None)


def _approval(pinned: ToolDefinition, spec: ToolSpec, agents: tuple[AgentDefinition, ...]) -> ApprovalRule:
    """What was pinned, or what is stricter: since, or of the agent that is called."""
    strictest = stricter_approval(pinned.approval, spec.definition.approval)
    for agent in agents:
        strictest = stricter_approval(strictest, agent.approval)
    return strictest


def _needed(pinned: ToolDefinition, spec: ToolSpec, agents: tuple[AgentDefinition, ...]) -> tuple[str, ...]:
    """What was pinned, what is needed since, and what the agent that is called needs."""
    present = spec.definition.permissions
    needed = pinned.permissions if present == pinned.permissions else (*pinned.permissions, *present)
    return (*needed, *(name for agent in agents for name in agent.permissions))
