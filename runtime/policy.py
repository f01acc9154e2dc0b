"""The deterministic policy: who may do what, what needs a person, and its revision.

A policy is the application's code, so the interpreter never calls it: the driver runs it as a check and records the
verdict with the policy's revision and the digest of what it saw. It must be quick and free of I/O (``inline``), or say
otherwise and then runs in the executor. Three values: allow, deny, unknown; ``ask`` is an allow that needs a person.
An exception, None or a time-out is unknown, and unknown denies after bounded retries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, cast

import msgspec

from .canonical import JSON
from .declared_shape import checked_revision
from .errors import DeclarationError
from .guardrails import Guardrails
from .taint import Sources, Taint

PolicyAnswer = Literal["allow", "deny", "ask", "unknown"]


class PolicyQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy may look at: never the conversation, never provider text. ``tainted_by``: the words of outsiders that the
    model had read when it proposed the call, as far as the policy's rule counts them (``taint.counted``)."""

    tenant: str
    principal: str
    permissions: frozenset[str]
    tool: str
    risk: Literal["read", "write", "irreversible"]
    approval: Literal["policy", "always", "never"]
    arguments: Mapping[str, JSON]
    operation_id: str
    tool_calls_so_far: int
    tainted_by: Sources = ()


class PolicyDecision(msgspec.Struct, frozen=True, kw_only=True):
    """An answer with its reason code (shown to the model as a bounded, neutral text). ``terminal`` ends the run."""

    answer: PolicyAnswer
    code: str = ""
    terminal: bool = False


TAINT_DEFAULT: Final = Taint()
"""Writes and irreversible calls need a person once the model has read what outsiders are declared to write."""

ALLOW = PolicyDecision(answer="allow")
ASK = PolicyDecision(answer="ask", code="needs_approval")
PolicyFunction = Callable[[PolicyQuestion], PolicyDecision | PolicyAnswer | None]


def default_rules(question: PolicyQuestion) -> PolicyDecision:
    """Reads and writes are allowed; irreversible effects need a person unless their tool declares that it needs none."""
    return ASK if question.risk == "irreversible" and question.approval != "never" else ALLOW


class Policy:
    """A named revision of rules.

    ``decide`` answers for one call. ``revision`` must change whenever the rules do: approvals given under another
    revision are stale. ``separate_approver``: who asks may not approve. ``inline=False`` runs it in the executor. ``taint``: the
    rule for calls of a model that has read words of outsiders, asked after ``decide`` (``taint.Taint``); None for none. It is
    one of the rules that the revision stands for. ``guardrails``: run as ``decide`` is, with a revision of their own.
    """

    __slots__ = ("decide", "guardrails", "inline", "revision", "separate_approver", "taint")

    def __init__(
        self,
        decide: PolicyFunction = default_rules,
        *,
        revision: str = "default-1",
        separate_approver: bool = False,
        inline: bool = True,
        taint: Taint | None = TAINT_DEFAULT,
        guardrails: Guardrails | None = None,
    ) -> None:
        checked_revision(revision, "policy_revision")
        if not callable(decide):
            raise DeclarationError("policy_type", "give a function", path="decide")
        if guardrails is not None and not isinstance(cast(object, guardrails), Guardrails):
            raise DeclarationError("policy_type", "give Guardrails(...)", path="guardrails")
        self.decide = decide
        self.revision = revision
        self.separate_approver = separate_approver
        self.inline = inline
        self.taint = taint
        self.guardrails = guardrails
