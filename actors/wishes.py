"""The outside commands that a Runtime's methods hand in, each with a fresh command id."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import cast
from uuid import uuid4

from ..eventstore.port import Switch
from ..runtime.canonical import JSON, canonical_bytes
from ..runtime.commands import (
    MESSAGE_BYTES_MAX,
    Answer,
    Approve,
    Cancel,
    Close,
    RaiseLimits,
    RecordFact,
    Reject,
    ResolveCall,
    Resume,
    Send,
)
from ..runtime.errors import CallerError, DeclarationError
from ..runtime.limits import micros
from .run_options import checked_text

SWITCH_TEXT_BYTES_MAX = 1_000


class CommandRefused(CallerError):
    """An outside command that was not accepted; nothing changed. ``code`` says why."""


def _command_id() -> str:
    return f"cmd_{uuid4().hex[:20]}"


def cancel(by: str) -> Cancel:
    return Cancel(command_id=_command_id(), by=by)


def resume(by: str) -> Resume:
    return Resume(command_id=_command_id(), by=by)


def close(by: str) -> Close:
    return Close(command_id=_command_id(), by=by)


def send(text: str, by: str) -> Send:
    """Raises ``DeclarationError`` for what is no text of at most ``MESSAGE_BYTES_MAX`` bytes."""
    return Send(command_id=_command_id(), by=by, text=checked_text(text, "text", MESSAGE_BYTES_MAX))


def answer(question_id: str, text: str, by: str, reason: str, *, cannot: bool, stop: bool) -> Answer:
    return Answer(
        command_id=_command_id(),
        by=by,
        question_id=question_id,
        text=checked_text(text, "text", MESSAGE_BYTES_MAX),
        cannot=cannot,
        stop=stop,
        reason=reason,
    )


def raise_limits(
    by: str, cost: str | int | Decimal | None, deadline_s: int | None, raised: Mapping[str, int]
) -> RaiseLimits:
    """``cost`` and ``deadline_s`` as in ``Limits``. Raises ``DeclarationError`` for money that is none, and for a limit
    that is named twice."""
    given = dict(raised)
    if cost is not None:
        _once(given, "cost_micros", micros(cost))
    if deadline_s is not None:
        if type(deadline_s) is not int:
            raise DeclarationError("limit_type", "must be an integer", path="deadline_s")
        _once(given, "deadline_ms", deadline_s * 1_000)
    return RaiseLimits(command_id=_command_id(), by=by, raised=given)


def _once(given: dict[str, int], name: str, value: int) -> None:
    if name in given:
        raise DeclarationError("limit_twice", "this limit is given twice", path=name)
    given[name] = value


def approve(approval_id: str, by: str, reason: str) -> Approve:
    return Approve(command_id=_command_id(), by=by, approval_id=approval_id, reason=reason)


def reject(approval_id: str, by: str, reason: str, *, stop: bool) -> Reject:
    return Reject(
        command_id=_command_id(),
        by=by,
        approval_id=approval_id,
        reason=reason,
        on_reject="stop" if stop else "continue",
    )


def resolve_call(call: str, by: str, result: str, reason: str, *, applied: bool) -> ResolveCall:
    return ResolveCall(
        command_id=_command_id(),
        by=by,
        call=call,
        outcome="applied" if applied else "absent",
        result=result,
        reason=reason,
    )


def record_fact(name: str, value: object, by: str) -> RecordFact:
    """``value``: what JSON calls a text, a number, true, false or null. Raises ``CommandRefused`` for anything else."""
    if value is not None and type(value) not in (str, int, float, bool):
        raise CommandRefused("fact_value", "a text, a number, true, false or null", path=name)
    try:
        text = canonical_bytes(cast(JSON, value)).decode()
    except CallerError as error:
        raise CommandRefused("fact_value", str(error), path=name) from error
    return RecordFact(command_id=_command_id(), by=by, name=name, value=text)


def switch(scope: str, target: str, by: str, reason: str, at_ms: int) -> Switch:
    """Raises ``DeclarationError`` for another scope, a target that is missing or too much, and for no text."""
    if scope not in ("global", "tenant", "tool") or (scope == "global") != (target == ""):
        raise DeclarationError("switch_scope", "global, or tenant/tool with a name", path="scope")
    for name, text in (("target", target), ("by", by), ("reason", reason)):
        checked_text(text, name, SWITCH_TEXT_BYTES_MAX)
    return Switch(scope=scope, target=target, by=by, reason=reason, at_ms=at_ms)  # type: ignore[arg-type]  # checked above
