"""Asking the far side what became of an idempotency key."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Final, Literal

import msgspec

from ..runtime.canonical import canonical_bytes
from ..runtime.errors import BoundloopError
from ..runtime.far_side import Absent, Applied
from ..runtime.foreign_text import bounded_code
from ..runtime.tool_spec import ToolSpec
from .daemon_thread import on_daemon_thread

QUERY_TIMEOUT_S: Final = 30.0


class FarSideAnswer(msgspec.Struct, frozen=True, gc=False):
    """``code`` is ``output_invalid`` for an effect that is there, with a result that isn't what its tool declares.
    ``whole`` is the result that ``result`` is a bounded view of; None if it is the whole one."""

    outcome: Literal["applied", "absent", "unknown"]
    result: bytes | None = None
    reason: str = ""
    code: str = ""
    whole: bytes | None = None


async def ask_far_side(spec: ToolSpec | None, key: bytes | None) -> FarSideAnswer:
    """Run the tool's ``query(key)``: ``Applied(result)``, ``Absent()``, or anything else for "can't say".

    Sync handlers run on a thread. A time-out, an exception and ``None`` are all unknown; none is ever taken for absent.
    """
    if spec is None or spec.query is None or key is None:
        return FarSideAnswer("unknown", reason="no_query")
    try:
        async with asyncio.timeout(QUERY_TIMEOUT_S):
            answer: Any = await _call(spec.query, key.hex())
    except TimeoutError:
        return FarSideAnswer("unknown", reason="timeout")
    except BoundloopError as error:
        return FarSideAnswer("unknown", reason=bounded_code(error.code, "query_failed"))
    except BaseException:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # nobody asks any more
        return FarSideAnswer("unknown", reason="query_failed")
    if isinstance(answer, Applied):
        return _applied(spec, answer.result)
    if isinstance(answer, Absent):
        return FarSideAnswer("absent")
    return FarSideAnswer("unknown", reason="no_answer")


def _applied(spec: ToolSpec, value: object) -> FarSideAnswer:
    """The effect is there whatever its result looks like: a wrong one is not shown, a large one is bounded."""
    try:
        result = spec.encode_result(value)
        encoded = canonical_bytes(result)
    except BoundloopError:
        return FarSideAnswer("applied", code="output_invalid")
    if spec.check_result(result) is not None:
        return FarSideAnswer("applied", code="output_invalid")
    if len(encoded) > spec.definition.result_bytes_max:
        view = canonical_bytes({"bytes": len(encoded), "truncated": True})
        return FarSideAnswer("applied", view, whole=encoded)
    return FarSideAnswer("applied", encoded)


async def _call(query: Any, key: str) -> object:
    if inspect.iscoroutinefunction(query):
        return await query(key)
    return await on_daemon_thread(query, key)
