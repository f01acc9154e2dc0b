"""What happened, one line an event: seq, time since the start, tag, and the fields that a reviewer asks about.

Hashes, token bounds and host names are left out; ids are shown, since they are derived.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from boundloop.adapters.scripted import USAGE_DEFAULT as ORDINARY
from boundloop.runtime import events as e

Words = Callable[[Any, int], str]


def line(seq: int, at_ms: int, event: e.AnyEvent, started_ms: int) -> str:
    """One event. Times in it count from the start of the run."""
    words = WORDS[type(event)](event, started_ms)
    return f"{seq:3} {at_ms - started_ms:6} {e.tag_of(event):18} {words}".rstrip()


def _text(data: bytes | None) -> str:
    return "-" if data is None else data.decode("utf-8", "backslashreplace")


def _some(**parts: object) -> str:
    """Only what says something."""
    return " ".join(
        f'{name}="{value}"'
        if isinstance(value, str) and " " in value and value[0] != "{"
        else f"{name}={value}"
        for name, value in parts.items()
        if value not in ("", None, False, 0, ())
    )


def _at(at_ms: int, started_ms: int) -> int:
    return at_ms - started_ms if at_ms else 0


def _verdicts(verdicts: tuple[e.RungVerdict, ...]) -> str:
    return ",".join(f"{v.rung}:{v.verdict}{':' + v.code if v.code else ''}" for v in verdicts)


def _stopped(event: e.RunSuspended | e.RunTerminated, _: int) -> str:
    parts = _some(unfinished=", ".join(event.unfinished), detail=event.detail)
    return f"{event.outcome}/{event.reason} {parts}"


def _responded(event: e.ModelResponded, _: int) -> str:
    return f"turn={event.turn} finish={event.finish} " + _some(
        calls=event.calls,
        text=event.text,
        usage=_usage(event),
        hosted=",".join(f"{name}:{count}" for name, count in event.hosted),
    )


def _usage(event: e.ModelResponded) -> str:
    """Nothing where the model reported its ordinary usage; else what was taken for spent. Bounds aren't shown."""
    reported = event.usage
    if reported is None:
        return "unknown"
    if (reported.input_tokens, reported.output_tokens) == (ORDINARY.input_tokens, ORDINARY.output_tokens):
        return ""
    spent = [
        str(taken) if said == taken else "reserved"
        for said, taken in (
            (reported.input_tokens, event.spent_input_tokens),
            (reported.output_tokens, event.spent_output_tokens),
        )
    ]
    return "+".join(spent)


def _executed(event: e.CallExecuted, started_ms: int) -> str:
    parts = _some(
        code=event.code,
        message=event.safe_message,
        retry_at=_at(event.retry_at_ms, started_ms),
        result=None if event.result is None else _text(event.result),
    )
    return f"{event.call} attempt={event.attempt} {event.outcome} {parts}"


def _bound(event: e.ResultBound, _: int) -> str:
    replayed = "" if event.replayed is None else f"{event.replayed.run}/{event.replayed.call}"
    differ = event.replayed is not None and event.replayed.arguments_differ
    return f"{event.call} {event.status} " + _some(
        code=event.code, message=event.safe_message, replayed_from=replayed, arguments_differ=differ
    )


def _rejected(event: e.CallRejected, _: int) -> str:
    parts = _some(
        path=event.path,
        message=event.safe_message,
        retryable=event.retryable,
        terminal=event.terminal,
        verdicts=_verdicts(event.verdicts),
    )
    return f"{event.call} {event.rung}/{event.code} {parts}"


WORDS: dict[type[e.Event], Words] = {
    e.RunStarted: lambda x, t: _some(operation=x.operation_id, input=x.input),
    e.DefinitionAdopted: lambda x, t: _some(tool=x.tool, withdrawn=not x.definition),
    e.RunResumed: lambda x, t: _some(cause=x.cause, by=x.by),
    e.MessageReceived: lambda x, t: _some(source=x.source, by=x.by, text=x.text),
    e.LimitsRaised: lambda x, t: _some(by=x.by, **x.raised),
    e.CancelRequested: lambda x, t: _some(reason=x.reason, by=x.by),
    e.CloseRequested: lambda x, t: _some(by=x.by),
    e.RunSuspended: _stopped,
    e.RunTerminated: _stopped,
    e.StageEntered: lambda x, t: f"{x.stage} left={x.left} because={','.join(x.because)}",
    e.ModelRequested: lambda x, t: f"turn={x.turn} attempt={x.attempt} items={x.items}",
    e.ModelResponded: _responded,
    e.ModelFailed: lambda x, t: (
        f"turn={x.turn} attempt={x.attempt} {x.code} "
        + _some(finish_raw=x.finish_raw, retry_at=_at(x.retry_at_ms, t), message=x.safe_message)
    ),
    e.CallProposed: lambda x, t: f"{x.call} {x.tool} {_text(x.arguments)} " + _some(label=x.provider_call_id),
    e.CallValidated: lambda x, t: (
        f"{x.call} " + _some(key=None if x.key is None else x.key.hex()[:12], verdicts=_verdicts(x.verdicts))
    ),
    e.CallRejected: _rejected,
    e.CallsRejected: lambda x, t: f"turn={x.turn} {x.code} " + ", ".join(name for _, name in x.calls),
    e.ApprovalRequested: lambda x, t: (
        f"{x.call} {x.approval_id} round={x.round} {_text(x.preview)} expires_at={_at(x.expires_at_ms, t)}"
    ),
    e.ApprovalDecided: lambda x, t: (
        f"{x.call} {x.approval_id} {x.decision} " + _some(by=x.approver, reason=x.reason)
    ),
    e.ApprovalLapsed: lambda x, t: f"{x.call} {x.approval_id} " + _some(why=x.why, what=x.what),
    e.QuestionAsked: lambda x, t: (
        f"{x.call} {x.question_id} "
        + _some(question=x.question, choices="|".join(x.choices), expires_at=_at(x.expires_at_ms, t))
    ),
    e.QuestionAnswered: lambda x, t: (
        f"{x.call} {x.question_id} " + _some(by=x.by, result=_text(x.result), reason=x.reason, stop=x.stop)
    ),
    e.CallWaiting: lambda x, t: f"{x.call} {x.why} holder={x.holder_run}/{x.holder_call}",
    e.CallStarted: lambda x, t: (
        f"{x.call} attempt={x.attempt} "
        + _some(valid_until=_at(x.valid_until_ms, t), verdicts=_verdicts(x.verdicts))
    ),
    e.CallExecuted: _executed,
    e.CallReconciled: lambda x, t: (
        f"{x.call} {x.outcome} "
        + _some(
            by=x.by,
            reason=x.reason,
            next_query_at=_at(x.next_query_at_ms, t),
            result=None if x.result is None else _text(x.result),
        )
    ),
    e.ResultBound: _bound,
    e.ResultGuarded: lambda x, t: f"{x.call} {x.verdict} " + _some(code=x.code, revision=x.revision),
    e.AnswerGuarded: lambda x, t: f"turn={x.turn} {x.verdict} " + _some(code=x.code, revision=x.revision),
}
