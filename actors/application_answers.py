"""What application code answered in a check, as what the log can hold.

An answer of another type than the declared one is no answer. Nothing here raises what the application raised, unless it
says so; texts are cut and made valid.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any, Final, Literal, cast, get_args

from ..runtime.canonical import JSON
from ..runtime.errors import ToolError
from ..runtime.foreign_text import bounded_code, bounded_text
from ..runtime.policy import Policy, PolicyAnswer, PolicyDecision, PolicyQuestion
from ..runtime.tool_cost import PRICE_MICROS_MAX
from .secret_source import Secrets

VERSION_CHARS_MAX: Final = 256
_BARE: Final = {name: PolicyDecision(answer=name) for name in get_args(PolicyAnswer)}
_NO_ANSWER: Final = PolicyDecision(answer="unknown", code="policy_no_answer")


def permission_set(answer: object) -> frozenset[str]:
    """What ``permissions_of`` answered. Raises ``TypeError`` unless it is a set of texts."""
    if not isinstance(answer, frozenset | set):
        raise TypeError("permissions are a set")
    granted = frozenset(cast("AbstractSet[object]", answer))
    if not all(type(name) is str for name in granted):
        raise TypeError("a permission is a text")
    return cast("frozenset[str]", granted)


def check_answer(
    check: Callable[..., Any], arguments: dict[str, JSON], secrets: Secrets | None = None
) -> tuple[Literal["allow", "deny", "unknown"], str, bool]:
    """What a semantic check said, the code of a denial, and whether it ends the run: True allows, False or a text denies, a
    ``PolicyDecision`` says what it says. A check asks nobody: ``ask`` is no answer of it."""
    try:
        answer = check(arguments)
        if inspect.isawaitable(answer):
            _drop(answer)
            return "unknown", "check_async", False
        if answer is True:
            return "allow", "", False
        if answer is False:
            return "deny", "check_denied", False
        if isinstance(answer, PolicyDecision):
            return _decided(answer, secrets)
        if isinstance(answer, str):
            code = bounded_code(_redacted(answer, secrets))
            return ("allow", "", False) if code == "allow" else ("deny", code, False)
        return "unknown", "check_no_answer", False
    except ToolError as error:
        return "deny", bounded_code(_redacted(error.code, secrets), "check_denied"), False
    except BaseException:
        return "unknown", "check_failed", False


def _decided(
    answer: PolicyDecision, secrets: Secrets | None
) -> tuple[Literal["allow", "deny", "unknown"], str, bool]:
    if answer.answer not in ("allow", "deny", "unknown") or type(answer.terminal) is not bool:
        return "unknown", "check_no_answer", False
    return answer.answer, bounded_code(_redacted(answer.code, secrets)), answer.terminal


def policy_answer(policy: Policy, question: PolicyQuestion, secrets: Secrets | None = None) -> PolicyDecision:
    """The policy's answer if it is one of those that there are; else unknown."""
    try:
        answer = policy.decide(question)
        if not isinstance(answer, PolicyDecision):
            return _bare(answer)
        if answer.answer not in _BARE or type(answer.terminal) is not bool:
            return _NO_ANSWER
        return PolicyDecision(
            answer=_BARE[answer.answer].answer,
            code=bounded_code(_redacted(answer.code, secrets)),
            terminal=answer.terminal,
        )
    except BaseException:
        return PolicyDecision(answer="unknown", code="policy_failed")


def _bare(answer: object) -> PolicyDecision:
    """An answer that is but a word."""
    if isinstance(answer, str):
        return _BARE.get(bounded_code(answer), _NO_ANSWER)
    if inspect.isawaitable(answer):
        _drop(answer)
    return _NO_ANSWER


def price_answer(price: Callable[..., Any], arguments: dict[str, JSON]) -> int | None:
    """What a tool's price says in micro-units; None for anything that is no price."""
    try:
        answer = price(arguments)
    except BaseException:
        return None
    if inspect.isawaitable(answer):
        _drop(answer)
    return answer if type(answer) is int and 0 <= answer <= PRICE_MICROS_MAX else None


def version_answer(answer: object, secrets: Secrets | None = None) -> str:
    """A resource's version: a text or a number. Raises ``TypeError`` for anything else."""
    answer = _redacted(answered(answer), secrets)
    return str(int(answer)) if isinstance(answer, int) else bounded_text(answer, VERSION_CHARS_MAX)


def answered(answer: object) -> object:
    """The answer, if it is one. Raises ``TypeError`` for None and for a coroutine."""
    if inspect.isawaitable(answer):
        _drop(answer)
        raise TypeError("handlers of a check are plain functions")
    if answer is None:
        raise TypeError("no answer")
    return answer


def _redacted(text: object, secrets: Secrets | None) -> object:
    """Before it is cut: what is left of a secret is still some of it."""
    return text if secrets is None else secrets.redactor.said(text)


def _drop(awaitable: object) -> None:
    close = getattr(awaitable, "close", None)
    if close is not None:
        close()
