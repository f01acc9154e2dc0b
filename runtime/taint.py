"""Taint: whose words a model had read when it proposed a call, and what that changes for the call.

Every result is data. Words that outsiders wrote (a page, a mail, a search result) may still ask a model for an action, and
no model tells them from an instruction reliably. So the run remembers which sources of that kind its model has read, and a
rule over that (``Taint``) sends later effects to a person or refuses them. A call counts as tainted by what was in the
history when its turn was asked for: results of its own turn came after it.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

from .errors import DeclarationError

Trust = Literal["undeclared", "untrusted", "trusted"]
"""What a tool says of its results. ``untrusted``: outsiders write them. ``trusted``: the host vouches for them.
``undeclared``: nobody said; a model is told that they are untrusted, and only a strict rule counts them."""

AfterUntrusted = Literal["policy", "allow", "ask", "deny"]
"""What a tool wants for its calls once the run is tainted: as the policy's rule says, or this instead."""

AfterUntrustedRule = Literal["policy", "allow", "ask", "deny", "policy_ask"]
"""What a run goes by. ``policy_ask``: of "policy" and "ask", one was pinned and the other is declared now, so the stricter of
their two answers holds. Nobody declares it."""

RuleAnswer = Literal["allow", "ask", "deny"]
Risks = tuple[Literal["read", "write", "irreversible"], ...]

SOURCES_MAX: Final = 64
"""Sources that a run names. One more is left out, but never a declared one for an undeclared one."""

INPUT: Final = "input"
"""The tool name of a source that is the run's own input."""

_RISKS: Final = frozenset(("read", "write", "irreversible"))


class TaintSource(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Words of outsiders that a model has read: by the tool that brought them, and the first call of it. ``run`` is empty
    for a call of the run itself. ``declared``: the tool says that outsiders write its results."""

    tool: str
    call: str
    declared: bool
    run: str = ""


Sources = tuple[TaintSource, ...]


def added(known: Sources, source: TaintSource) -> Sources:
    """With one more source; each tool is named once, as declared if it ever was."""
    for place, one in enumerate(known):
        if one.tool == source.tool:
            if one.declared or not source.declared:
                return known
            return (*known[:place], source, *known[place + 1 :])
    if len(known) < SOURCES_MAX:
        return (*known, source)
    if source.declared:
        for place, one in enumerate(known):
            if not one.declared:
                return (*known[:place], source, *known[place + 1 :])
    return known


def seen_from(sources: Sources, run_id: str) -> Sources:
    """The same sources as another run names them."""
    return tuple(one if one.run else msgspec.structs.replace(one, run=run_id) for one in sources)


class Taint(msgspec.Struct, frozen=True, kw_only=True):
    """The rule of a policy. Calls of tools whose risk is in ``ask`` need a person once the model has read untrusted words, those
    in ``deny`` are refused; all others go on. ``undeclared``: results of tools that declare no ``trust`` count too, so that
    all that isn't ``trusted`` taints. Raises ``DeclarationError`` for a risk that is none."""

    ask: Risks = ("write", "irreversible")
    deny: Risks = ()
    undeclared: bool = False

    def __post_init__(self) -> None:
        for name in ("ask", "deny"):
            if not isinstance(getattr(self, name), tuple) or not _RISKS.issuperset(getattr(self, name)):
                raise DeclarationError("taint_risk", "risks are read, write and irreversible", path=name)

    def answer(self, risk: str) -> RuleAnswer:
        """What the rule says of a tainted call."""
        if risk in self.deny:
            return "deny"
        return "ask" if risk in self.ask else "allow"


def counted(sources: Sources, rule: Taint | None) -> Sources:
    """The sources that taint under this rule: declared ones, and under a strict rule all."""
    if rule is not None and rule.undeclared:
        return sources
    return tuple(one for one in sources if one.declared)


_STRICTER: Final[tuple[AfterUntrustedRule, ...]] = ("allow", "policy", "ask", "policy_ask", "deny")


def stricter(one: AfterUntrustedRule, other: AfterUntrustedRule) -> AfterUntrustedRule:
    """Of what was pinned and what is declared now, the stricter. What the policy's rule would say isn't known here: it may be
    more than "ask"."""
    if one == other:
        return one
    if {one, other} == {"policy", "ask"}:
        return "policy_ask"
    return one if _STRICTER.index(one) > _STRICTER.index(other) else other


def answer_after(word: AfterUntrustedRule, rule: Taint | None, risk: str) -> RuleAnswer:
    """What becomes of a tainted call whose tool goes by ``word``, under a policy with this rule."""
    if word == "allow" or word == "ask" or word == "deny":
        return word
    by_rule: RuleAnswer = "allow" if rule is None else rule.answer(risk)
    if word == "policy":
        return by_rule
    return "deny" if by_rule == "deny" else "ask"


def refuse_words(trust: object, after_untrusted: object) -> str:
    """The name of the field that is no word of its kind; empty if both are."""
    if trust not in get_args(Trust):
        return "trust"
    return "" if after_untrusted in get_args(AfterUntrusted) else "after_untrusted"
