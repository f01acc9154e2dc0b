"""The rungs of one call that are the application's code: what is asked, and what was answered, in whatever process.

Each answers allow, deny, unknown (or ask). Whatever is raised, ``None`` and an answer of another type are unknown and
are asked again within ``RECHECKS_MAX``; whoever decides then denies it, retryably. Exits and interrupts of the
application's code count as raised. Each handler is given its own decode of the canonical arguments, so none changes what
another sees, what is shown, or what runs.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Final, Literal

import msgspec

from ..eventstore.port import BLOB_BYTES_MAX
from ..runtime.canonical import JSON, canonical_bytes, decode_canonical
from ..runtime.events import RungVerdict
from ..runtime.limits import RECHECKS_MAX
from ..runtime.policy import Policy, PolicyQuestion
from ..runtime.taint import AfterUntrustedRule, Sources, TaintSource, answer_after, counted
from ..runtime.tool_spec import ToolSpec
from .application_answers import (
    answered,
    check_answer,
    permission_set,
    policy_answer,
    price_answer,
    version_answer,
)
from .guarding import GuardAsked, judged
from .secret_source import Secrets

CHECK_TIMEOUT_S: Final = 10.0
"""How long all rungs of one call together may take beside the loop."""

PREVIEW_BYTES_MAX: Final = BLOB_BYTES_MAX

Permissions = Callable[[str, str], AbstractSet[str]]
Scope = Callable[[], str]
Rung = Callable[[], tuple[RungVerdict, bool]]


class RungsAsked(
    msgspec.Struct, frozen=True, kw_only=True, tag="rungs", forbid_unknown_fields=True, gc=False
):
    """What the application is asked about one call. ``definition_sha256`` is that of the tool as the asker has it now;
    everything else is as it holds for this call: what was pinned, and what was tightened since.

    ``acts``: a kill switch holds it up. ``asked_before``: a person was, so what is shown is made
    again.
    """

    tool: str
    definition_sha256: bytes
    risk: Literal["read", "write", "irreversible"]
    approval: Literal["policy", "always", "never"]
    permissions: tuple[str, ...]
    cost_micros: int
    acts: bool
    asked_before: bool
    arguments: bytes
    tenant: str
    principal: str
    operation_id: str
    tool_calls: int
    untrusted: tuple[TaintSource, ...] = ()
    after_untrusted: AfterUntrustedRule = "policy"

    def decoded(self) -> dict[str, JSON]:
        """The arguments, anew each time."""
        decoded = decode_canonical(self.arguments)
        return decoded if isinstance(decoded, dict) else {}


class RungsAnswered(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The verdicts in order, the last one the refusal if there is one; an allow without a revision is left out."""

    verdicts: tuple[RungVerdict, ...] = ()
    terminal: bool = False
    ask: bool = False
    preview: bytes | None = None
    resource_version: str = ""
    price_micros: int | None = None

    @property
    def refused(self) -> bool:
        """Whether a rung said no, or nothing that can be relied on."""
        return bool(self.verdicts) and self.verdicts[-1].verdict in ("deny", "unknown")


class Rungs:
    """One pass over the rungs of a call whose tool is here. Holds nothing of the run, which may go on meanwhile."""

    __slots__ = ("_permissions_of", "_policy", "_price_micros", "_secrets", "asked", "spec", "tainted_by")

    def __init__(
        self,
        asked: RungsAsked,
        spec: ToolSpec,
        policy: Policy,
        permissions_of: Permissions,
        secrets: Secrets | None = None,
    ) -> None:
        self.asked = asked
        self.spec = spec
        self._policy = policy
        self._permissions_of = permissions_of
        self._price_micros: int | None = None
        self.tainted_by: Sources = counted(asked.untrusted, policy.taint) if asked.untrusted else ()
        self._secrets = secrets

    def run(self, switched_off: Scope | None = None) -> RungsAnswered:
        """All rungs in order, in this thread; the first refusal wins. ``switched_off`` gives the scope of a kill switch;
        without it the switches are left to whoever asked."""
        verdicts: list[RungVerdict] = []
        terminal = ask = False
        for rung in self._rungs(switched_off):
            verdict, ends = _settled(rung)
            if verdict.verdict == "allow" and not verdict.revision:
                continue
            verdicts.append(verdict)
            if verdict.verdict == "ask":
                ask = True
            elif verdict.verdict != "allow":
                return RungsAnswered(verdicts=tuple(verdicts), terminal=ends)
        asked = self.asked
        # What would be shown to a person is made only when one is asked, or was asked before.
        ask = ask or asked.approval == "always"
        preview, version = None, ""
        if ask or asked.asked_before:
            preview, version, failure = self._preview()
            if failure is not None:
                verdicts.append(failure)
        return RungsAnswered(
            verdicts=tuple(verdicts),
            terminal=terminal,
            ask=ask,
            preview=preview,
            resource_version=version,
            price_micros=self._price_micros,
        )

    def unanswered(self, code: str) -> RungsAnswered:
        """No answer came, for whatever reason: an unknown."""
        return RungsAnswered(verdicts=(RungVerdict("check", "unknown", code, self._policy.revision),))

    # --- the rungs ---------------------------------------------------------------------------------------------------

    def _rungs(self, switched_off: Scope | None) -> list[Rung]:
        rungs: list[Rung] = []
        if self.spec.check is not None:
            rungs.append(self._check)
        if self.asked.permissions:
            rungs.append(self._authorisation)
        rungs.append(self._decision)
        guardrails = self._policy.guardrails
        if guardrails is not None and guardrails.call is not None:
            rungs.append(self._guardrail)
        if self.tainted_by:
            rungs.append(self._taint)
        if self.spec.price is not None:
            rungs.append(self._price)
        if self.asked.acts and switched_off is not None:
            rungs.append(lambda: switch_verdict(switched_off()))
        return rungs

    def _granted(self) -> frozenset[str] | None:
        """Today's permissions; None if the application gives no set of texts."""
        try:
            return permission_set(self._permissions_of(self.asked.tenant, self.asked.principal))
        except BaseException:  # noqa: BLE001  whatever it raises is no answer
            return None

    def _check(self) -> tuple[RungVerdict, bool]:
        """A semantic check: True allows, False or a text denies, the text as its code; a ``PolicyDecision`` may end the run."""
        assert self.spec.check is not None
        verdict, code, ends = check_answer(self.spec.check, self.asked.decoded(), self._secrets)
        return RungVerdict("check", verdict, code, self.spec.definition.version), ends

    def _authorisation(self) -> tuple[RungVerdict, bool]:
        """By the principal of the server side, as it is today; never by an argument."""
        granted = self._granted()
        if granted is None:
            return RungVerdict("authorisation", "unknown", "permissions_failed"), False
        if granted.issuperset(self.asked.permissions):
            return RungVerdict("authorisation", "allow"), False
        return RungVerdict("authorisation", "deny", "not_permitted"), False

    def _decision(self) -> tuple[RungVerdict, bool]:
        policy, asked = self._policy, self.asked
        granted = self._granted()
        if granted is None:
            return RungVerdict("policy", "unknown", "permissions_failed", policy.revision), False
        question = PolicyQuestion(
            tenant=asked.tenant,
            principal=asked.principal,
            permissions=granted,
            tool=asked.tool,
            risk=asked.risk,
            approval=asked.approval,
            arguments=asked.decoded(),
            operation_id=asked.operation_id,
            tool_calls_so_far=asked.tool_calls,
            tainted_by=self.tainted_by,
        )
        decision = policy_answer(policy, question, self._secrets)
        return RungVerdict("policy", decision.answer, decision.code, policy.revision), decision.terminal

    def _guardrail(self) -> tuple[RungVerdict, bool]:
        asked = self.asked
        question = GuardAsked(
            place="call",
            tenant=asked.tenant,
            principal=asked.principal,
            operation_id=asked.operation_id,
            input_sha256=b"",
            tool=asked.tool,
            arguments=asked.arguments,
            untrusted=asked.untrusted,
        )
        return judged(
            self._policy, question, tries_max=1, secrets=self._secrets
        ), False  # whoever runs the rungs asks again

    def _taint(self) -> tuple[RungVerdict, bool]:
        """The rule for calls of a model that has read words of outsiders: the tool's own, else the policy's."""
        policy, word = self._policy, self.asked.after_untrusted
        if word == "policy" and policy.taint is None:
            return RungVerdict("taint", "allow"), False
        answer = answer_after(word, policy.taint, self.asked.risk)
        return RungVerdict("taint", answer, "tainted", policy.revision), False

    def _price(self) -> tuple[RungVerdict, bool]:
        """What an attempt with these arguments costs. No answer is an unknown price, which only a run with a cost limit is
        refused for: so it is no verdict on the call."""
        assert self.spec.price is not None
        for _ in range(RECHECKS_MAX):
            self._price_micros = price_answer(self.spec.price, self.asked.decoded())
            if self._price_micros is not None:
                break
        return RungVerdict("price", "allow"), False

    def _preview(self) -> tuple[bytes | None, str, RungVerdict | None]:
        """The immutable preview from the real arguments, and the version of the resource that it shows."""
        spec, asked = self.spec, self.asked
        shown: dict[str, JSON] = {
            "tool": asked.tool,
            "risk": asked.risk,
            "arguments": asked.decoded(),
            "cost_micros": asked.cost_micros if self._price_micros is None else self._price_micros,
        }
        if self.tainted_by:
            shown["tainted_by"] = [
                {"tool": one.tool, "call": one.call, "run": one.run} for one in self.tainted_by
            ]
        version = ""
        try:
            if spec.version_of is not None:
                version = version_answer(spec.version_of(asked.decoded()), self._secrets)
            if spec.preview is not None:
                shown["preview"] = spec.encode_result(answered(spec.preview(asked.decoded())))
                if self._secrets is not None:
                    shown["preview"] = self._secrets.redactor.json(shown["preview"])
            preview = canonical_bytes(shown)
        except BaseException:  # noqa: BLE001  whatever it raises is no preview
            return None, "", RungVerdict("preview", "unknown", "preview_failed")
        if len(preview) > PREVIEW_BYTES_MAX:
            return None, "", RungVerdict("preview", "unknown", "preview_size")
        return preview, version, None


def switch_verdict(scope: str) -> tuple[RungVerdict, bool]:
    """A kill switch that is on: for one tool its calls are refused, for a tenant or all the run ends."""
    if not scope:
        return RungVerdict("switch", "allow"), False
    return RungVerdict("switch", "deny", f"kill_switch_{scope}"), scope != "tool"


def switched(came: RungsAnswered, scope: str) -> RungsAnswered:
    """What was answered elsewhere, under the switches as they are now: they come after all rungs but the preview."""
    before = tuple(verdict for verdict in came.verdicts if verdict.rung != "preview")
    if not scope or (before and before[-1].verdict in ("deny", "unknown")):
        return came
    verdict, terminal = switch_verdict(scope)
    return RungsAnswered(verdicts=(*before, verdict), terminal=terminal)


def _settled(rung: Rung) -> tuple[RungVerdict, bool]:
    """A rung's answer; an unknown is asked for again, a bounded number of times."""
    verdict, terminal = rung()
    for _ in range(RECHECKS_MAX - 1):
        if verdict.verdict != "unknown":
            break
        verdict, terminal = rung()
    return verdict, terminal
