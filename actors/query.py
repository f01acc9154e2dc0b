"""Asking the far side what became of an idempotency key."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Final, Literal

from ..runtime.canonical import canonical_bytes
from ..runtime.errors import BoundloopError
from ..runtime.far_side import Absent, Applied
from ..runtime.tool_spec import ToolSpec
from .daemon_thread import on_daemon_thread

QUERY_TIMEOUT_S: Final = 30.0

Answer = tuple[Literal["applied", "absent", "unknown"], bytes | None, str]


async def ask_far_side(spec: ToolSpec | None, key: bytes | None) -> Answer:
    """Run the tool's ``query(key)``: ``Applied(result)``, ``Absent()``, or anything else for "can't say".

    Sync handlers run on a thread. A time-out, an exception and ``None`` are all unknown; none is ever taken for absent.
    """
    if spec is None or spec.query is None or key is None:
        return "unknown", None, "no_query"
    try:
        async with asyncio.timeout(QUERY_TIMEOUT_S):
            answer: Any = await _call(spec.query, key.hex())
        if isinstance(answer, Applied):
            return "applied", canonical_bytes(spec.encode_result(answer.result)), ""
        if isinstance(answer, Absent):
            return "absent", None, ""
    except TimeoutError:
        return "unknown", None, "timeout"
    except BoundloopError as error:
        return "unknown", None, error.code[:64]
    except Exception:
        return "unknown", None, "query_failed"
    return "unknown", None, "no_answer"


async def _call(query: Any, key: str) -> object:
    if inspect.iscoroutinefunction(query):
        return await query(key)
    return await on_daemon_thread(query, key)
