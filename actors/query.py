"""Asking the far side what became of an idempotency key."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any, Final, Literal, cast

import msgspec

from ..eventstore.port import BLOB_BYTES_MAX
from ..runtime.canonical import canonical_bytes, decode_canonical
from ..runtime.errors import BoundloopError
from ..runtime.events import Source
from ..runtime.far_side import Absent, Applied
from ..runtime.foreign_text import bounded_code
from ..runtime.observed import Observed, source_of
from ..runtime.redaction import Redactor
from ..runtime.tool_spec import ToolSpec
from .daemon_thread import on_daemon_thread
from .execution import redacted_source
from .secret_source import SecretRefused, Secrets

QUERY_TIMEOUT_S: Final = 30.0
WHOLE_BYTES_MAX: Final = BLOB_BYTES_MAX


class FarSideAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """``code`` is ``output_invalid`` for an effect that is there, with a result that isn't what its tool declares, or of
    more than ``WHOLE_BYTES_MAX``. ``whole`` is the result that ``result`` is a bounded view of; None if it is the whole
    one."""

    outcome: Literal["applied", "absent", "unknown"]
    result: bytes | None = None
    reason: str = ""
    code: str = ""
    whole: bytes | None = None
    source: Source | None = None


def unknown(reason: str) -> FarSideAnswer:
    """The far side's word wasn't had, and why. Never taken for absent."""
    return FarSideAnswer("unknown", reason=reason)


class Sent(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """What a call was sent with, as far as its far side may say it again: its canonical arguments, and for whom."""

    arguments: bytes
    tenant: str
    principal: str


def sent_with(spec: ToolSpec | None, arguments: bytes | None, tenant: str, principal: str) -> Sent | None:
    """None for a call of a tool that takes no references."""
    if spec is None or arguments is None or not spec.definition.secret_arguments:
        return None
    return Sent(arguments, tenant, principal)


async def ask_far_side(
    spec: ToolSpec | None, key: bytes | None, secrets: Secrets | None = None, sent: Sent | None = None
) -> FarSideAnswer:
    """Run the tool's ``query(key)``: ``Applied(result)``, ``Absent()``, or anything else for "can't say"; redacted.

    Sync handlers run on a thread. A time-out, an exception and ``None`` are all unknown; none is ever taken for absent. So is
    the answer about a call whose references can't be resolved now: its values may be in it, and this process needn't be the
    one that sent them.
    """
    if spec is None or spec.query is None or key is None:
        return unknown("no_query")
    values: Mapping[str, str] = {}
    try:
        async with asyncio.timeout(QUERY_TIMEOUT_S):
            if sent is not None:
                values = await on_daemon_thread(_values_of, spec, secrets, sent)
            answer: Any = await _call(spec.query, key.hex())
    except TimeoutError:
        return unknown("timeout")
    except SecretRefused as error:
        return unknown(error.code)
    except BaseException as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling() and not isinstance(error, BoundloopError):
            raise  # nobody asks any more
        return _failed(error, _redactor(secrets, values))
    return _said(spec, answer, _redactor(secrets, values))


def ask_in_this_thread(
    spec: ToolSpec, key: bytes, secrets: Secrets | None = None, sent: Sent | None = None
) -> FarSideAnswer:
    """The same for a sync handler, here, for as long as it takes."""
    if spec.query is None:
        return unknown("no_query")
    values: Mapping[str, str] = {}
    try:
        if sent is not None:
            values = _values_of(spec, secrets, sent)
        answer: object = spec.query(key.hex())
    except TimeoutError:
        return unknown("timeout")
    except SecretRefused as error:
        return unknown(error.code)
    except BaseException as error:
        return _failed(error, _redactor(secrets, values))
    return _said(spec, answer, _redactor(secrets, values))


def _values_of(spec: ToolSpec, secrets: Secrets | None, sent: Sent) -> Mapping[str, str]:
    """What the call's references stand for now. Those of a mapping are taken out of everything anyhow."""
    if secrets is None or secrets.settings.ask is None:
        return {}
    arguments = decode_canonical(sent.arguments)
    if not isinstance(arguments, dict):
        return {}
    return secrets.resolved(spec, arguments, sent.tenant, sent.principal)


def _redactor(secrets: Secrets | None, values: Mapping[str, str]) -> Redactor | None:
    return None if secrets is None else secrets.taking_out(values)


def is_async(spec: ToolSpec) -> bool:
    """Whether its query is a coroutine function."""
    return inspect.iscoroutinefunction(spec.query)


def _failed(error: BaseException, redactor: Redactor | None) -> FarSideAnswer:
    if isinstance(error, BoundloopError):
        code: object = error.code if redactor is None else redactor.said(error.code)
        return unknown(bounded_code(code, "query_failed"))
    return unknown("query_failed")


def _said(spec: ToolSpec, answer: object, redactor: Redactor | None) -> FarSideAnswer:
    if isinstance(answer, Applied):
        return _applied(spec, answer.result, redactor)
    if isinstance(answer, Absent):
        return FarSideAnswer("absent")
    return unknown("no_answer")


def _applied(spec: ToolSpec, value: object, redactor: Redactor | None) -> FarSideAnswer:
    """The effect is there whatever its result looks like: a wrong one is not shown, a large one is bounded."""
    source: Source | None = None
    try:
        if isinstance(value, Observed):
            source, value = source_of(cast("Observed[object]", value)), cast("Observed[object]", value).value
        result = spec.encode_result(value)
        violation = spec.check_result(result)
        if redactor is not None:
            result, source = redactor.json(result), redacted_source(source, redactor)
        encoded = canonical_bytes(result)
    except (BoundloopError, ValueError):
        return FarSideAnswer("applied", code="output_invalid")
    if len(encoded) > WHOLE_BYTES_MAX or violation is not None:
        return FarSideAnswer("applied", code="output_invalid")
    if len(encoded) > spec.definition.result_bytes_max:
        view = canonical_bytes({"bytes": len(encoded), "truncated": True})
        return FarSideAnswer("applied", view, whole=encoded, source=source)
    return FarSideAnswer("applied", encoded, source=source)


async def _call(query: Any, key: str) -> object:
    if inspect.iscoroutinefunction(query):
        return await query(key)
    return await on_daemon_thread(query, key)
