"""What travels between a host and an executor: calls and reports, questions and answers as MessagePack, nothing else.

No object of the application, no exception and no reference into Ray crosses in either direction: what can't be decoded
as one of these is no report, and then nothing is known about the attempt. Arguments and results stay what they are
everywhere, canonical JSON bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Annotated, Final, TypeVar

import msgspec

from ..eventstore.port import BLOB_BYTES_MAX
from ..eventstore.process_identity import ProcessIdentity, boot_id
from ..runtime.canonical import canonical_bytes
from ..runtime.commands import Executed
from ..runtime.events import RungVerdict
from .execution import Report
from .executors import Dispatch
from .guarding import GuardAsked
from .query import FarSideAnswer, Sent
from .rungs import RungsAnswered, RungsAsked

BATCH_CALLS_MAX: Final = 64
FRAME_BYTES: Final = 65_536
REPLY_BYTES_MAX: Final = BLOB_BYTES_MAX + FRAME_BYTES + 1_048_576
"""One report with the largest artifact and the largest view, or one answer with the largest preview or result."""

A = TypeVar("A")
Text = Annotated[str, msgspec.Meta(max_length=1_024)]
LongText = Annotated[str, msgspec.Meta(max_length=4_096)]


class WireCall(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """One attempt. ``arguments`` are canonical JSON, ``key`` is hex and empty for reads.

    ``valid_ms`` is what the attempt has left when it is sent, and counts from receipt. ``deadline_ns`` is the same end on
    the sender's monotonic clock: an executor of the same boot (``boot``) goes by it too, so that a call which lay in a
    queue is refused. ``definition_sha256`` is that of the tool as the sender has it. ``grant`` is the lease under which it
    is sent: what comes under one that was given up is refused.
    """

    run_id: Text
    call: Text
    attempt: int
    epoch: int
    tool: Text
    definition_sha256: bytes
    arguments: bytes
    operation_id: Text
    tenant: Text
    principal: Text
    key: Text
    valid_ms: int
    deadline_ns: int
    boot: Text
    view_bytes_max: int
    grant: Text = ""
    as_of: LongText = ""
    same_version: Text = ""
    resource_version: Text = ""


class WireReport(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """What became of an attempt, the whole result if ``executed`` holds a view of it, and what the tool raised, for the
    operator's logger."""

    executed: Executed
    artifact: bytes | None = None
    raised: str = ""


class BatchReply(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One report a call, in the order of the calls. ``stuck``: something of a call is still at work in the executor, that
    of an effect or of a limited group, or what keeps a thread of short reads; if it doesn't end, the executor has to."""

    reports: tuple[WireReport, ...]
    stuck: bool = False


class ExecutorIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an executor says it is. ``revision`` is that of the shipped application. ``failure`` names the type of what
    kept it from loading the application."""

    class_name: Text
    store: Text
    revision: Text
    process: ProcessIdentity
    failure: Text = ""


class ExecutorStatus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``running``: the calls that its tools' code is at now. ``lag_ms``: how late its loop was lately (async only)."""

    running: tuple[tuple[Text, Text, int], ...] = ()
    lag_ms: int = 0
    done: int = 0


class QueryAsked(
    msgspec.Struct, frozen=True, kw_only=True, tag="query", forbid_unknown_fields=True, gc=False
):
    """What the far side is asked: ``key`` by the ``query`` of this tool. ``sent``: where the call's arguments hold
    references."""

    tool: Text
    definition_sha256: bytes
    key: bytes
    sent: Sent | None = None


Work = tuple[WireCall, ...] | RungsAsked | QueryAsked | GuardAsked
"""What an executor is handed."""


class Stop(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Ask one attempt to stop; ``at_work``: only if it has begun."""

    run_id: Text
    call: Text
    attempt: int
    at_work: bool = False


_encode = msgspec.msgpack.Encoder().encode
_calls = msgspec.msgpack.Decoder(tuple[WireCall, ...]).decode
_work: msgspec.msgpack.Decoder[Work] = msgspec.msgpack.Decoder(Work)
_rungs_answered = msgspec.msgpack.Decoder(RungsAnswered).decode
_far_side_answer = msgspec.msgpack.Decoder(FarSideAnswer).decode
_verdict = msgspec.msgpack.Decoder(RungVerdict).decode
_reply = msgspec.msgpack.Decoder(BatchReply).decode
_grants = msgspec.msgpack.Decoder(tuple[str, ...]).decode
_stop = msgspec.msgpack.Decoder(Stop).decode
_identity = msgspec.msgpack.Decoder(ExecutorIdentity).decode
_status = msgspec.msgpack.Decoder(ExecutorStatus).decode


def wire_call(dispatch: Dispatch, left_ms: int, grant: str = "", *, begin_ms: int = 0) -> WireCall:
    """A dispatch as it travels now under a lease, with ``left_ms`` of its validity left. ``begin_ms``: so long it may lie
    at the executor before that begins to count."""
    context = dispatch.context
    return WireCall(
        run_id=context.run_id,
        call=context.call_id,
        attempt=context.attempt,
        epoch=dispatch.epoch,
        tool=dispatch.spec.name,
        definition_sha256=dispatch.spec.definition_sha256,
        arguments=canonical_bytes(dispatch.arguments),
        operation_id=context.operation_id,
        tenant=context.tenant,
        principal=context.principal,
        key=context.key,
        valid_ms=left_ms,
        deadline_ns=time.monotonic_ns() + (left_ms + begin_ms) * 1_000_000,
        boot=_boot(),
        view_bytes_max=dispatch.view_bytes_max,
        grant=grant,
        as_of=context.as_of,
        same_version=context.same_version,
        resource_version=context.resource_version,
    )


def left_ms(call: WireCall, lay_ms: int = 0) -> int:
    """What an attempt that was received just now has left; 0 or less if it is over. ``lay_ms``: so long it may have lain
    here unseen, which matters where clocks can't be compared."""
    if call.boot and call.boot == _boot():
        return min(call.valid_ms, (call.deadline_ns - time.monotonic_ns()) // 1_000_000)
    return call.valid_ms - lay_ms


def encode_calls(calls: Sequence[WireCall]) -> bytes:
    return _encode(calls)


def decode_calls(data: bytes) -> tuple[WireCall, ...]:
    """Raises ``msgspec.DecodeError`` for anything else."""
    return _calls(data)


def decode_work(data: bytes) -> Work:
    """Raises ``msgspec.DecodeError`` for anything else."""
    return _work.decode(data)


def encode_question(asked: RungsAsked | QueryAsked | GuardAsked) -> bytes:
    return _encode(asked)


def encode_answer(answer: RungsAnswered | FarSideAnswer | RungVerdict) -> bytes:
    return _encode(answer)


def decode_rungs_answered(data: object) -> RungsAnswered | None:
    """None for anything else, and for a refusal that isn't the last verdict: then nothing is known."""
    answer = _decoded(data, _rungs_answered)
    if answer is None or any(it.verdict in ("deny", "unknown") for it in answer.verdicts[:-1]):
        return None
    return answer


def decode_verdict(data: object) -> RungVerdict | None:
    """A guardrail's; None for anything else, after which nothing is known."""
    verdict = _decoded(data, _verdict)
    known = verdict is not None and verdict.rung == "guardrail" and verdict.verdict != "ask"
    return verdict if known else None


def decode_far_side_answer(data: object) -> FarSideAnswer | None:
    """None for anything else, after which nothing is known."""
    return _decoded(data, _far_side_answer)


def _decoded(data: object, decode: Callable[[bytes], A]) -> A | None:
    if not isinstance(data, bytes) or len(data) > REPLY_BYTES_MAX:
        return None
    try:
        return decode(data)
    except msgspec.DecodeError:
        return None


def encode_reply(reports: Sequence[Report], *, stuck: bool = False) -> bytes:
    return _encode(
        BatchReply(tuple(WireReport(it.executed, it.artifact, it.raised) for it in reports), stuck)
    )


def decode_reply(data: object, calls: Sequence[WireCall]) -> BatchReply | None:
    """The reply to exactly these calls; None for anything else, after which nothing is known about any of them."""
    if not isinstance(data, bytes) or len(data) > REPLY_BYTES_MAX * len(calls):
        return None
    try:
        reply = _reply(data)
    except msgspec.DecodeError:
        return None
    said = [(it.executed.call, it.executed.attempt) for it in reply.reports]
    return reply if said == [(call.call, call.attempt) for call in calls] else None


def encode_grants(grants: Sequence[str]) -> bytes:
    return _encode(grants)


def decode_grants(data: bytes) -> tuple[str, ...]:
    """Raises ``msgspec.DecodeError`` for anything else."""
    return _grants(data)


def encode_stop(stop: Stop) -> bytes:
    return _encode(stop)


def decode_stop(data: bytes) -> Stop:
    """Raises ``msgspec.DecodeError`` for anything else."""
    return _stop(data)


def encode_identity(identity: ExecutorIdentity) -> bytes:
    return _encode(identity)


def decode_identity(data: bytes) -> ExecutorIdentity:
    """Raises ``msgspec.DecodeError`` for anything else."""
    return _identity(data)


def encode_status(status: ExecutorStatus) -> bytes:
    return _encode(status)


def decode_status(data: bytes) -> ExecutorStatus:
    """Raises ``msgspec.DecodeError`` for anything else."""
    return _status(data)


_boots: list[str] = []


def _boot() -> str:
    """The boot of this machine, read once: a process doesn't outlive it."""
    if not _boots:
        _boots.append(boot_id())
    return _boots[0]
