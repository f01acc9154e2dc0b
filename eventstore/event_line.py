"""One event as one line of words. Bounded, unescaped: text from outside stays what it is, cut to length."""

from __future__ import annotations

from ..runtime import events as e
from ..runtime.taint import Sources

_CUT = "..."
_SIDE_NAMED_MAX = 4


def event_line(event: e.AnyEvent, chars_max: int) -> tuple[str, str]:
    """(call id or "", what happened), the text at most ``chars_max`` characters."""
    return getattr(event, "call", ""), cut(_words(event, chars_max), chars_max)


def cut(text: str, chars_max: int) -> str:
    """The text, its end marked where it was longer."""
    return text if len(text) <= chars_max else text[: max(0, chars_max - len(_CUT))] + _CUT


def shown(data: bytes | None, chars_max: int) -> str:
    """Bytes as text, whatever they hold."""
    if data is None:
        return ""
    return cut(data[: 4 * chars_max + 4].decode("utf-8", "backslashreplace"), chars_max)


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _words(event: e.AnyEvent, chars_max: int) -> str:
    match event:
        case (
            e.RunStarted()
            | e.RunResumed()
            | e.DefinitionAdopted()
            | e.MessageReceived()
            | e.LimitsRaised()
            | e.CancelRequested()
            | e.CloseRequested()
            | e.RunSuspended()
            | e.RunTerminated()
            | e.LeaseDenied()
            | e.StageEntered()
        ):
            return _run_words(event)
        case e.ResultGuarded() | e.AnswerGuarded():
            return _joined(event.verdict, code=event.code, revision=event.revision)
        case e.ModelRequested() | e.ModelResponded() | e.ModelFailed():
            return _model_words(event)
        case e.ApprovalRequested() | e.ApprovalDecided() | e.ApprovalLapsed():
            return _approval_words(event, chars_max)
        case e.QuestionAsked() | e.QuestionAnswered():
            return _question_words(event, chars_max)
        case e.ChildReserved() | e.ChildStarted() | e.ChildToppedUp() | e.ChildSettled():
            return _child_words(event)
        case e.ContextCompacted() | e.FactRecorded():
            return _context_words(event, chars_max)
        case _:
            return _call_words(event, chars_max)


def _run_words(
    event: e.RunStarted
    | e.RunResumed
    | e.DefinitionAdopted
    | e.MessageReceived
    | e.LimitsRaised
    | e.CancelRequested
    | e.CloseRequested
    | e.RunSuspended
    | e.RunTerminated
    | e.LeaseDenied
    | e.StageEntered,
) -> str:
    match event:
        case e.RunStarted():
            head = f"{event.agent} for {event.principal}"
            return f"{_joined(head, tainted_by=_sources(event.tainted_by))}: {event.input}"
        case e.RunResumed():
            return _joined(f"epoch {event.epoch}, {event.cause}", by=event.by, host=event.host)
        case e.DefinitionAdopted():
            was = f"{event.tool}: {event.was_sha256.hex()[:16]}"
            return (
                f"{was}, now {event.definition_sha256.hex()[:16]}"
                if event.definition
                else f"{was}, withdrawn"
            )
        case e.MessageReceived():
            return f"{event.by or event.source}: {event.text}"
        case e.LimitsRaised():
            return _joined(_amounts(event.raised), by=event.by)
        case e.LeaseDenied():
            return f"no more {', '.join(event.limits)} above {event.by}"
        case e.StageEntered():
            return _joined(f"{event.stage} after {event.left}", because=", ".join(event.because))
        case e.CancelRequested():
            return _joined(event.reason, by=event.by)
        case e.CloseRequested():
            return _joined("", by=event.by)
        case e.RunSuspended() | e.RunTerminated():
            return _joined(f"{event.outcome}: {event.reason}", detail=event.detail)


def _model_words(event: e.ModelRequested | e.ModelResponded | e.ModelFailed) -> str:
    match event:
        case e.ModelRequested():
            text = (
                f"turn {event.turn}, attempt {event.attempt}: {_counted(event.items, 'item')}, "
                f"at most {event.input_tokens_bound} + {event.output_tokens_max} tokens"
            )
            if event.side is None:
                return text
            side = event.side
            return (
                f"{text}, and {_counted(side.attempts, 'side attempt')} "
                f"of {side.input_tokens} + {side.output_tokens} tokens"
            )
        case e.ModelResponded():
            text = f"{event.finish}, {_counted(event.calls, 'call')}" if event.calls else event.finish
            text += f", {event.spent_input_tokens} + {event.spent_output_tokens} tokens"
            text += "".join(f", {count} by {name}" for name, count in event.hosted) + _side(event.side)
            text += _tokens(event.tokens)
            return f"{text}: {event.text}" if event.text else text
        case e.ModelFailed():
            then = "tried again" if event.retry_at_ms else "not tried again"
            return _joined(f"{event.code}, {then}{_side(event.side)}", detail=event.safe_message)


def _tokens(tokens: e.TokenData | None) -> str:
    if tokens is None:
        return ""
    kept = "not kept" if tokens.sha256 is None else tokens.sha256.hex()
    return f", {tokens.size} bytes of token data ({kept})"


def _side(side: e.SideSpent | None) -> str:
    if side is None:
        return ""
    known = ", ".join(f"{made.purpose} {made.model}" for made in side.made[:_SIDE_NAMED_MAX])
    rest = side.attempts - min(len(side.made), _SIDE_NAMED_MAX)
    if rest:
        known += f"{' and ' if known else ''}{rest} {'more' if known else 'as they were set aside'}"
    tokens = f"{side.input_tokens} + {side.output_tokens} tokens"
    return f", {tokens} of it in {_counted(side.attempts, 'side attempt')} ({known})"


def _approval_words(event: e.ApprovalRequested | e.ApprovalDecided | e.ApprovalLapsed, chars_max: int) -> str:
    match event:
        case e.ApprovalRequested():
            return f"{event.approval_id}, round {event.round}: {shown(event.preview, chars_max)}"
        case e.ApprovalDecided():
            return _joined(f"{event.approval_id} {event.decision}", by=event.approver, reason=event.reason)
        case e.ApprovalLapsed():
            return _joined(f"{event.approval_id} {event.why}", what=event.what)


def _question_words(event: e.QuestionAsked | e.QuestionAnswered, chars_max: int) -> str:
    match event:
        case e.QuestionAsked():
            return _joined(f"{event.question_id}: {event.question}", choices=" / ".join(event.choices))
        case e.QuestionAnswered(result=None):
            stop = ", the run stops" if event.stop else ""
            return _joined(f"{event.question_id} can't be answered{stop}", by=event.by, reason=event.reason)
        case e.QuestionAnswered():
            return _joined(
                event.question_id, by=event.by, reason=event.reason, answer=shown(event.result, chars_max)
            )


def _child_words(event: e.ChildReserved | e.ChildStarted | e.ChildToppedUp | e.ChildSettled) -> str:
    match event:
        case e.ChildReserved():
            return f"{event.agent}, run {event.child_run}: {_amounts(event.granted)}"
        case e.ChildStarted():
            return f"run {event.child_run}"
        case e.ChildToppedUp():
            return _joined(f"{_amounts(event.granted)} more", by=event.by)
        case e.ChildSettled():
            head = f"run {event.child_run} {event.outcome}: {event.reason}"
            named = ", ".join(f"{one.run} {one.call} {one.tool}".rstrip() for one in event.unknown)
            more = f" and {event.unknown_more} more" if event.unknown_more else ""
            return _joined(
                head,
                spent=_amounts(event.spent),
                effects=_amounts(event.effects),
                unknown=named + more,
                tainted_by=_sources(event.tainted_by),
            )


def _sources(sources: Sources) -> str:
    return " ".join(one.tool for one in sources)


def _context_words(event: e.ContextCompacted | e.FactRecorded, chars_max: int) -> str:
    match event:
        case e.ContextCompacted():
            how = " and shortened" if event.terse else ""
            left = f"{_counted(event.items, 'item')} and {event.history_bytes} bytes left"
            return f"number {event.number}, the turns up to item {event.until}{how}: {left}"
        case e.FactRecorded():
            return _joined(f"{event.name} = {shown(event.value, chars_max)}", by=event.by)


def _amounts(named: dict[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in named.items())


def _call_words(event: e.AnyEvent, chars_max: int) -> str:
    match event:
        case e.CallProposed():
            return f"{event.tool} {shown(event.arguments, chars_max)}"
        case e.CallValidated():
            key = "" if event.key is None else event.key.hex()[:16]
            return _joined("", key=key, arguments=shown(event.arguments, chars_max)) or "a read"
        case e.CallRejected():
            final = ", final" if event.terminal else ""
            return _joined(f"{event.code} at {event.rung}{final}", path=event.path, text=event.safe_message)
        case e.CallsRejected():
            return f"{len(event.calls)} calls: {event.code}"
        case e.CallWaiting():
            return f"{event.why} in call {event.holder_call} of {event.holder_run}"
        case e.CallStarted():
            return f"attempt {event.attempt}"
        case e.CallExecuted():
            head = f"attempt {event.attempt} {event.outcome}"
            if event.outcome == "succeeded" and not event.code:
                version = "" if event.source is None else event.source.version
                return f"{_joined(head, version=version)}: {shown(event.result, chars_max)}"
            again = "" if not event.retry_at_ms else ", tried again"
            return _joined(f"{head}{again}", code=event.code, text=event.safe_message)
        case e.CallReconciled():
            return _joined(
                event.outcome,
                by=event.by,
                reason=event.reason,
                ends=event.ends,
                result=shown(event.result, chars_max),
            )
        case e.ResultBound():
            replay = "" if event.replayed is None else f"{event.replayed.call} of {event.replayed.run}"
            return _joined(event.status, code=event.code, replayed=replay, text=event.safe_message)
        case _:
            return ""


def _joined(head: str, **parts: str) -> str:
    """The head and the parts that aren't empty."""
    words = [head] if head else []
    return ", ".join(words + [f"{name} {value}" for name, value in parts.items() if value])
