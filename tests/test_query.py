"""What a tool's query is taken to say: only a plain answer settles anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypedDict

import pytest

from boundloop.actors import query as query_module
from boundloop.actors.query import ask_far_side, ask_in_this_thread
from boundloop.runtime import Absent, Applied, ToolError, ToolSpec, tool
from boundloop.runtime.tool_spec import tool_spec

KEY = bytes(32)


class Paid(TypedDict):
    paid: int


def queried_by(query: Callable[[str], Any]) -> ToolSpec:
    @tool(risk="write", key=("order_id",), far_side="queryable", query=query, result_bytes_max=256)
    async def pay(order_id: str) -> Paid:
        """Pay."""
        return {"paid": 1}

    return tool_spec(pay)


def broken(_key: str) -> None:
    raise ToolError("bank_down")


def hostile(_key: str) -> None:
    raise SystemExit(3)


def answering(answer: object) -> Callable[[str], object]:
    def query(_key: str) -> object:
        return answer

    return query


async def awaited(_key: str) -> Applied:
    return Applied({"paid": 2})


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (answering(Applied({"paid": 1})), ("applied", b'{"paid":1}', "", "")),
        (awaited, ("applied", b'{"paid":2}', "", "")),
        (answering(Absent()), ("absent", None, "", "")),
        (answering(None), ("unknown", None, "no_answer", "")),
        (answering(False), ("unknown", None, "no_answer", "")),
        (answering(Absent), ("unknown", None, "no_answer", "")),
        (broken, ("unknown", None, "bank_down", "")),
        (hostile, ("unknown", None, "query_failed", "")),
        # The effect is there: a result that isn't what the tool declares makes it no less so.
        (answering(Applied({"paid": "one"})), ("applied", None, "", "output_invalid")),
        (answering(Applied({"paid": float("nan")})), ("applied", None, "", "output_invalid")),
        (answering(Applied(object())), ("applied", None, "", "output_invalid")),
    ],
)
def test_only_a_plain_answer_settles(query: Callable[[str], Any], expected: tuple[Any, ...]) -> None:
    answer = asyncio.run(ask_far_side(queried_by(query), KEY))

    assert (answer.outcome, answer.result, answer.reason, answer.code) == expected
    if query is not awaited:
        assert ask_in_this_thread(queried_by(query), KEY) == answer


def test_a_result_beyond_all_bounds_is_an_effect_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_module, "WHOLE_BYTES_MAX", 10_000)

    @tool(
        risk="write",
        key=("n",),
        far_side="queryable",
        query=answering(Applied("x" * 10_000)),
        result_bytes_max=256,
    )
    async def write(n: int) -> str:
        """Write."""
        return ""

    answer = asyncio.run(ask_far_side(tool_spec(write), KEY))

    assert (answer.outcome, answer.code, answer.whole) == ("applied", "output_invalid", None)


def test_a_large_result_is_bounded() -> None:
    @tool(
        risk="write",
        key=("n",),
        far_side="queryable",
        query=answering(Applied("x" * 5_000)),
        result_bytes_max=256,
    )
    async def write(n: int) -> str:
        """Write."""
        return ""

    answer = asyncio.run(ask_far_side(tool_spec(write), KEY))

    assert (answer.outcome, answer.result) == ("applied", b'{"bytes":5002,"truncated":true}')
