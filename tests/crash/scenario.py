"""One run that meets everything a crash can fall into: reads, effects of all four kinds of far side, two effects in one
turn, an approval; and the person who gives it and settles what stays unknown.

Every key that reaches the far side names its kind, so that what arrived can be judged by kind.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from examples.far_side import FarSide

from boundloop.actors.client import Runtime
from boundloop.actors.context import ToolContext
from boundloop.actors.result import Result
from boundloop.adapters.script import call, calls, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.runtime.commands import Approve, CommandAnswer, ResolveCall
from boundloop.runtime.errors import RunNotFound
from boundloop.runtime.far_side import Absent, Applied
from boundloop.runtime.limits import Limits
from boundloop.runtime.tool_spec import tool

RUN_ID: Final = "r1"
KEYS_BY_KIND: Final = {"keyed": 2, "queryable": 1, "natural": 1, "approved": 1, "none": 1}
"""How many different effects of each kind the script asks for."""

DECISIONS_MAX: Final = 12
PERSON: Final = "os:ann@desk"


def tools_at(far: FarSide, *, timeout_ms: int = 30_000) -> list[Any]:
    """The toolbox, all of it sync: each call is out in a thread of its own while the loop goes on."""

    def queried(key: str) -> Applied | Absent:
        answer = far.query(f"queryable:{key}")
        return Applied(answer["result"]) if answer["applied"] else Absent()

    @tool(risk="read", timeout_ms=timeout_ms)
    def look_up(order_id: str) -> dict[str, Any]:
        """Look up one order."""
        return far.query(f"read:{order_id}")

    @tool(risk="write", key=("order_id",), far_side="keyed", timeout_ms=timeout_ms)
    def book(order_id: str, ctx: ToolContext) -> dict[str, Any]:
        """Book; the far side takes the key."""
        return far.submit(f"keyed:{ctx.key}", order_id=order_id)

    @tool(
        risk="write",
        key=("order_id",),
        far_side="queryable",
        query=queried,
        query_authoritative=True,
        timeout_ms=timeout_ms,
    )
    def ship(order_id: str, ctx: ToolContext) -> dict[str, Any]:
        """Ship; the far side can be asked."""
        return far.submit(f"queryable:{ctx.key}", order_id=order_id)

    @tool(risk="write", key=("order_id",), far_side="natural", timeout_ms=timeout_ms)
    def set_state(order_id: str, ctx: ToolContext) -> dict[str, Any]:
        """Set a state; setting it twice is setting it."""
        return far.submit(f"natural:{ctx.key}", order_id=order_id)

    @tool(risk="irreversible", key=("order_id",), far_side="keyed", approval="always", timeout_ms=timeout_ms)
    def refund(order_id: str, ctx: ToolContext) -> dict[str, Any]:
        """Pay back, once a person said yes."""
        return far.submit(f"approved:{ctx.key}", order_id=order_id)

    @tool(risk="write", key=("order_id",), far_side="none", timeout_ms=timeout_ms)
    def post_letter(order_id: str, ctx: ToolContext) -> dict[str, Any]:
        """Send a letter; nobody can say later whether it went out."""
        return far.submit(f"none:{ctx.key}", order_id=order_id)

    return [look_up, book, ship, set_state, refund, post_letter]


def model() -> ScriptedModel:
    """The same script for every process that takes part."""
    return ScriptedModel(
        [
            calls(call("look_up", {"order_id": "A1"}), call("book", {"order_id": "A1"})),
            calls(call("ship", {"order_id": "A1"}), call("look_up", {"order_id": "A2"})),
            calls(call("set_state", {"order_id": "A1"}), call("book", {"order_id": "A2"})),
            call("refund", {"order_id": "A1"}),
            call("post_letter", {"order_id": "A1"}),
            say("Done."),
        ]
    )


class Stuck(AssertionError):
    """The run rests in a way that this person has no answer to."""


async def carry_through(runtime: Runtime, far: FarSide, operation_id: str) -> Result:
    """Start the run if there is none, give what it asks for, and return when it has ended."""
    try:
        await runtime.aio.result(RUN_ID)
    except RunNotFound:
        await runtime.aio.start(
            "Do it all.",
            run_id=RUN_ID,
            operation_id=operation_id,
            limits=Limits(cost=0, deadline_s=36_000),
        )
    for _ in range(DECISIONS_MAX):
        result = await runtime.aio.result(RUN_ID)
        if result.status == "ended":
            return result
        await _decide(runtime, far, result)
    raise Stuck(f"no end after {DECISIONS_MAX} decisions")


async def _decide(runtime: Runtime, far: FarSide, result: Result) -> None:
    for approval in result.approvals:
        command = Approve(
            command_id=f"approve {approval.approval_id}", by=PERSON, approval_id=approval.approval_id
        )
        _accepted(await runtime.aio.submit(RUN_ID, command))
        return
    if result.reason != "outcome_unknown":
        raise Stuck(repr(result))
    state = await runtime.aio.state(RUN_ID)
    for name in result.unknown_effects:
        key = state.calls[name].key
        assert key is not None
        answer = await asyncio.to_thread(far.query, f"none:{key.hex()}")
        resolve = ResolveCall(
            command_id=f"resolve {name} {state.calls[name].attempt}",
            by=PERSON,
            call=name,
            outcome="applied" if answer["applied"] else "absent",
            result="{}" if answer["applied"] else "",
        )
        _accepted(await runtime.aio.submit(RUN_ID, resolve))


def _accepted(answer: CommandAnswer) -> None:
    if not answer.accepted:
        raise Stuck(f"{answer.code}: {answer.message}")
