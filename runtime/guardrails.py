"""Guardrails: the application's judgement of a call, of a result, and of the final answer.

Three places with three purposes. Before a call, because what it does can't be taken back; after a result, before a model
sees it; before a final answer is believed. Three values: allow, deny, unknown. An exception, None, another type and a
time-out are unknown; an unknown is asked again within bounds and then denies, retryably. What is guarded is pinned when a
run starts, so whoever carries the run on knows what is still to be judged; a host whose policy has no such guardrail
any more answers unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from .canonical import JSON
from .declared_shape import checked_revision
from .errors import DeclarationError
from .taint import Sources

Place = Literal["call", "result", "answer"]
GuardrailAnswer = Literal["allow", "deny", "unknown"]

WITHHELD: Final = "withheld"
"""The code of a result that the model isn't shown."""

WITHHELD_TEXT: Final = "this result was withheld by a check of the application"
UNJUDGED_TEXT: Final = "this result could not be checked and was withheld; what was done stands"


class GuardrailQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What a guardrail may look at. ``tool`` and ``arguments`` are empty for an answer. ``result``: exactly what the model would be
    shown as data, a bounded view of a large one. ``text``: the final answer; of a failed call, the message that the model
    would be shown, with ``code``. ``source_version``: what the tool calls the version of its source, which the model is shown too.
    ``facts``: what a large result sets as facts, which may come from behind the view. ``tainted_by``: as a policy sees it."""

    place: Place
    tenant: str
    principal: str
    operation_id: str
    tool: str = ""
    arguments: Mapping[str, JSON] = {}
    result: JSON = None
    code: str = ""
    text: str = ""
    tainted_by: Sources = ()
    source_version: str = ""
    facts: Mapping[str, JSON] = {}


class GuardrailDecision(msgspec.Struct, frozen=True, kw_only=True):
    """An answer with its reason code, which is recorded; a denied answer's is told to the model."""

    answer: GuardrailAnswer
    code: str = ""


GuardrailFunction = Callable[[GuardrailQuestion], GuardrailDecision | GuardrailAnswer | None]


class Guardrails:
    """A named revision of guardrails (``revision`` has to be given), given to a ``Policy`` and run as its rules are: in the host's loop, or in executors with
    ``Policy(inline=False)``.

    ``call``: asked about each call after the policy, again before each dispatch that is checked again. ``result``: about
    each result before the model sees it, replayed ones too. ``answer``: about a final answer before the run completes.
    ``provisional``: provisional text of a model is shown before its answer counts; else it is held back where an ``answer``
    guardrail is, and where a goal or stages ask for evidence, with any guardrails or none. Raises ``DeclarationError``.
    """

    __slots__ = ("answer", "call", "provisional", "result", "revision")

    def __init__(
        self,
        *,
        call: GuardrailFunction | None = None,
        result: GuardrailFunction | None = None,
        answer: GuardrailFunction | None = None,
        revision: str = "",
        provisional: bool = False,
    ) -> None:
        checked_revision(revision, "guardrail_revision")
        for name, function in (("call", call), ("result", result), ("answer", answer)):
            if function is not None and not callable(function):
                raise DeclarationError("guardrail_type", "give a function", path=name)
        self.call = call
        self.result = result
        self.answer = answer
        self.revision = revision
        self.provisional = provisional

    def at(self, place: Place) -> GuardrailFunction | None:
        """The guardrail of this place, if there is one."""
        return {"call": self.call, "result": self.result, "answer": self.answer}[place]

    @property
    def pinned(self) -> tuple[Place, ...]:
        """The places that a run has to wait for: what is judged behind the call itself."""
        places: tuple[Place, ...] = ("result", "answer")
        return tuple(place for place in places if self.at(place) is not None)


def result_sha256(
    tool: str,
    args_sha256: bytes,
    code: str,
    message: str,
    digest: bytes | None,
    source_version: str = "",
    facts: Mapping[str, bytes] = MappingProxyType({}),
) -> bytes:
    """What a verdict on a result is about: the tool and its arguments, and what the model would be shown. The last two are in
    the preimage where there are any."""
    shown = None if digest is None else digest.hex()
    beside = (source_version, sorted((name, value.hex()) for name, value in facts.items()))
    preimage = ("result", tool, args_sha256.hex(), code, message, shown, *(beside if any(beside) else ()))
    return sha256(msgspec.json.encode(preimage)).digest()
