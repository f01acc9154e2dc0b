"""From what a tool's code did to the report that ``decide`` takes: values, errors and sizes, nothing raised further.

For an effect only two things are proof that nothing took effect: a ``ToolError(no_effect=True)`` from the tool, and a
dispatch that was never made. Everything else that isn't a value is reported as unknown.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final, cast

from ..eventstore.port import BLOB_BYTES_MAX
from ..runtime.canonical import JSON, canonical_bytes
from ..runtime.commands import Executed
from ..runtime.errors import BoundloopError, ToolError
from ..runtime.events import Source
from ..runtime.foreign_text import bounded_code, bounded_text
from ..runtime.observed import Observed, source_of
from ..runtime.redaction import Redactor
from ..runtime.tool_spec import ToolSpec
from . import tool_failures

VIEW_CHARS_SHARE: Final = 0.75
ARTIFACT_BYTES_MAX: Final = BLOB_BYTES_MAX
SAFE_MESSAGE_CHARS_MAX: Final = 512

_FINAL_REFUSALS: Final = frozenset(
    (
        "old_epoch",
        "arguments_unbound",
        "tool_not_here",
        "definition_differs",
        "secret_unknown",
        "secret_not_allowed",
    )
)
"""Refused dispatches that would be refused again."""


class Report:
    """One attempt's report and, for a result too large to show, the whole of it for the blob store. ``raised``: what the
    tool raised, for the operator's logger alone (``tool_failures.raised``)."""

    __slots__ = ("artifact", "executed", "raised")

    def __init__(self, executed: Executed, artifact: bytes | None = None, raised: str = "") -> None:
        self.executed = executed
        self.artifact = artifact
        self.raised = raised


def succeeded(
    spec: ToolSpec,
    call: str,
    attempt: int,
    value: object,
    *,
    view_bytes_max: int,
    duration_ms: int,
    redactor: Redactor | None = None,
) -> Report:
    """A returned value: encoded, checked against the declared result, redacted, bounded. Of an ``Observed`` that is its value.

    An effect whose result is invalid did happen: it is reported as succeeded with ``output_invalid`` and is never run
    again. A read with an invalid result failed.
    """
    source: Source | None = None
    try:
        if isinstance(value, Observed):
            source, value = source_of(cast("Observed[object]", value)), cast("Observed[object]", value).value
        result = spec.encode_result(value)
        violation = spec.check_result(result)
        if redactor is not None:
            result, source = redactor.json(result), redacted_source(source, redactor)
        encoded = canonical_bytes(result)
    except BoundloopError as error:
        return Report(_invalid(spec, call, attempt, error.path or error.code, duration_ms, redactor))
    except ValueError as error:
        return Report(_invalid(spec, call, attempt, str(error), duration_ms, redactor))
    if violation is not None:
        return Report(_invalid(spec, call, attempt, violation.path, duration_ms, redactor))
    if len(encoded) > ARTIFACT_BYTES_MAX:
        return Report(_invalid(spec, call, attempt, f"{len(encoded)} bytes", duration_ms))
    progress = _progress_sha256(spec, result)
    if len(encoded) <= view_bytes_max:
        return Report(
            Executed(
                call=call,
                attempt=attempt,
                outcome="succeeded",
                result=encoded,
                duration_ms=duration_ms,
                progress_sha256=progress,
                source=source,
            )
        )
    digest = sha256(encoded).digest()
    return Report(
        Executed(
            call=call,
            attempt=attempt,
            outcome="succeeded",
            result=_view(encoded, digest, view_bytes_max),
            duration_ms=duration_ms,
            artifact=digest,
            size=len(encoded),
            progress_sha256=progress or digest,
            source=source,
        ),
        encoded,
    )


def failed(
    spec: ToolSpec,
    call: str,
    attempt: int,
    error: BaseException,
    *,
    duration_ms: int,
    redactor: Redactor | None = None,
) -> Executed:
    """A raised exception. Only a ``ToolError`` speaks to the model; any other text stays out of log and model."""
    if isinstance(error, ToolError):
        # Its fields are the tool's own words: anything but True is no, and anything but a text is left out.
        no_effect = error.no_effect is True
        message = error.safe_message if isinstance(cast(object, error.safe_message), str) else ""
        code: object = error.code
        if redactor is not None:
            # Before they are cut: what is left of a secret is still some of it.
            message, code = redactor.text(message), redactor.said(code)
        return Executed(
            call=call,
            attempt=attempt,
            outcome="failed" if no_effect or spec.definition.risk == "read" else "unknown",
            code=bounded_code(code, "tool_error"),
            safe_message=bounded_text(message, SAFE_MESSAGE_CHARS_MAX),
            retryable=error.retryable is True,
            no_effect=no_effect,
            duration_ms=duration_ms,
        )
    return _unclear(spec, call, attempt, "tool_error", "the tool failed", duration_ms, retryable=False)


def failure(
    spec: ToolSpec,
    call: str,
    attempt: int,
    error: BaseException,
    *,
    duration_ms: int,
    redactor: Redactor | None = None,
) -> Report:
    """The same as a report, redacted, which says to the operator what was raised and where."""
    executed = failed(spec, call, attempt, error, duration_ms=duration_ms, redactor=redactor)
    return Report(executed, raised=tool_failures.raised(spec, error, redactor))


def redacted_source(source: Source | None, redactor: Redactor) -> Source | None:
    """The source with its version redacted: results of one version are still of one."""
    if source is None or not source.version:
        return source
    return Source(redactor.text(source.version), source.observed_at_ms)


def timed_out(spec: ToolSpec, call: str, attempt: int, duration_ms: int) -> Executed:
    """No report within the validity: a read may be tried again, an effect is unknown."""
    return _unclear(spec, call, attempt, "timeout", "the tool did not answer in time", duration_ms)


def lost(spec: ToolSpec, call: str, attempt: int, duration_ms: int) -> Executed:
    """Its executor died, or nobody knows what became of it: a read may be tried again, an effect is unknown."""
    return _unclear(spec, call, attempt, "lost", "the executor was lost", duration_ms)


def cancelled(spec: ToolSpec, call: str, attempt: int, duration_ms: int) -> Executed:
    """Stopped on request. What an effect did by then nobody knows."""
    return _unclear(spec, call, attempt, "cancelled", "the call was cancelled", duration_ms, retryable=False)


def may_go_on(executed: Executed) -> bool:
    """Whether what an attempt asked of its far side may still be at work there, for all that its report says."""
    if executed.outcome == "failed":
        return not executed.no_effect and executed.code in ("timeout", "lost", "cancelled")
    return executed.outcome == "unknown"


def not_dispatched(call: str, attempt: int, code: str) -> Executed:
    """The dispatch was refused: expired, of an old epoch, another definition, or no room in time. Nothing ran."""
    return Executed(
        call=call,
        attempt=attempt,
        outcome="failed",
        code=code,
        safe_message="the call was not dispatched",
        retryable=code not in _FINAL_REFUSALS,
        no_effect=True,
        spent_micros=0,
    )


def _unclear(
    spec: ToolSpec,
    call: str,
    attempt: int,
    code: str,
    message: str,
    duration_ms: int,
    *,
    retryable: bool = True,
) -> Executed:
    return Executed(
        call=call,
        attempt=attempt,
        outcome="failed" if spec.definition.risk == "read" else "unknown",
        code=code,
        safe_message=message,
        retryable=retryable,
        duration_ms=duration_ms,
    )


def _invalid(
    spec: ToolSpec,
    call: str,
    attempt: int,
    path: str,
    duration_ms: int,
    redactor: Redactor | None = None,
) -> Executed:
    if redactor is not None:
        path = redactor.text(path)  # the names of members are the tool's too
    return Executed(
        call=call,
        attempt=attempt,
        outcome="failed" if spec.definition.risk == "read" else "succeeded",
        code="output_invalid",
        safe_message=f"the tool's result is not what it declares ({path[:200]})",
        duration_ms=duration_ms,
    )


def _progress_sha256(spec: ToolSpec, result: JSON) -> bytes | None:
    """The digest that counts as news: the result without its declared volatile fields. None if it has none."""
    volatile = spec.definition.volatile
    if not volatile or not isinstance(result, dict):
        return None
    return sha256(canonical_bytes({k: v for k, v in result.items() if k not in volatile})).digest()


def _view(encoded: bytes, digest: bytes, view_bytes_max: int) -> bytes:
    """A bounded stand-in for a large result: how large it is, its hash to read on, and its beginning."""
    head: dict[str, Any] = {"bytes": len(encoded), "handle": digest.hex(), "truncated": True}
    room = int((view_bytes_max - len(canonical_bytes(head)) - 16) * VIEW_CHARS_SHARE)
    if room > 0:
        text = encoded[:room].decode("utf-8", "ignore")
        while text and len(canonical_bytes({**head, "head": text})) > view_bytes_max:
            text = text[: len(text) * 3 // 4]
        head["head"] = text
    return canonical_bytes(head)
