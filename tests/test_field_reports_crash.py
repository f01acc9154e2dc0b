"""What people report about crashes: work done twice, work lost, outcomes guessed. Here none of it may happen.

A host dies as by SIGKILL at the append that is named; the next one has nothing but the log.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.stepped_runtime import Site, has, results_in

from boundloop.actors.context import ToolContext
from boundloop.adapters.script import attempts, call, calls, failed, say
from boundloop.adapters.scripted import Gate
from boundloop.runtime import events as e
from boundloop.runtime.far_side import Absent, Applied
from boundloop.runtime.tool_spec import tool


class Mail:
    """Sends letters, and remembers by key what it sent."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.by_key: dict[str, dict[str, Any]] = {}
        self.queries = 0
        self.gate: Gate | None = None

    def query(self, key: str) -> Applied | Absent:
        self.queries += 1
        return Applied(self.by_key[key]) if key in self.by_key else Absent()

    def tools(self) -> list[Any]:
        @tool(risk="write", key=("to",), far_side="queryable", query=self.query, query_authoritative=True)
        async def send(to: str, ctx: ToolContext) -> dict[str, Any]:
            """Send a letter."""
            if self.gate is not None:
                await self.gate.passed()
            self.sent[to] += 1
            self.by_key[ctx.key] = {"sent": to}
            return {"sent": to}

        @tool(
            risk="irreversible",
            key=("to",),
            far_side="queryable",
            query=self.query,
            query_authoritative=True,
            approval="always",
        )
        async def send_registered(to: str, ctx: ToolContext) -> dict[str, Any]:
            """Send a registered letter."""
            self.sent[to] += 1
            self.by_key[ctx.key] = {"sent": to}
            return {"sent": to}

        return [send, send_registered]


THREE_LETTERS = [
    calls(call("send", {"to": "a"}), call("send", {"to": "b"}), call("send", {"to": "c"})),
    say("all sent"),
]


# F1
def test_after_a_crash_between_two_effects_of_a_turn_only_the_missing_one_is_done(site: Site) -> None:
    mail = Mail()
    first = site.open(THREE_LETTERS, mail.tools())
    first.line.cut_at(has(e.CallStarted, call="c1.2"), before=True)
    run_id = first.start()
    assert first.line.broken.wait(10)
    first.crash()
    assert mail.sent == {"a": 1, "b": 1}

    result = site.after_crash(first, mail.tools()).rest(run_id)
    assert result.completed
    assert mail.sent == {"a": 1, "b": 1, "c": 1}


# F2
def test_an_approved_effect_whose_result_was_never_recorded_is_asked_about_and_not_done_again(
    site: Site,
) -> None:
    mail = Mail()
    first = site.open([call("send_registered", {"to": "a"}), say("sent")], mail.tools())
    first.line.cut_at(has(e.CallExecuted), before=True)
    run_id = first.start()
    first.rt.approve(run_id, first.rest(run_id).approvals[0].approval_id, by="bob")
    assert first.line.broken.wait(10)
    first.crash()
    assert (mail.sent, mail.queries) == ({"a": 1}, 0)

    second = site.after_crash(first, mail.tools())
    assert second.rest(run_id).completed
    assert (mail.sent, mail.queries) == ({"a": 1}, 1)
    assert [event.outcome for event in site.of(run_id, e.CallExecuted)] == ["unknown"]
    assert [event.outcome for event in site.of(run_id, e.CallReconciled)] == ["applied"]


# F3
def test_after_a_crash_no_model_is_asked_while_a_proposed_call_is_open(site: Site) -> None:
    mail = Mail()
    mail.gate = Gate("post office")
    first = site.open(THREE_LETTERS, mail.tools())
    first.line.cut_at(has(e.CallStarted, call="c1.1"), before=True)
    mail.gate.open()
    run_id = first.start()
    assert first.line.broken.wait(10)
    first.crash()
    assert first.model.requests == 1

    mail.gate = Gate("post office")
    second = site.after_crash(first, mail.tools())
    second.settle()
    assert mail.gate.wait_reached(10)
    assert first.model.requests == 1
    mail.gate.open()
    assert second.rest(run_id).completed
    assert first.model.requests == 2


# F5
def test_a_sibling_that_was_executed_is_not_executed_again_after_a_crash(site: Site) -> None:
    mail = Mail()
    first = site.open(
        [calls(call("send", {"to": "a"}), call("send_registered", {"to": "b"})), say("sent")], mail.tools()
    )
    run_id = first.start()
    waiting = first.rest(run_id)
    assert waiting.waiting_for.startswith("approval:")
    first.crash()

    second = site.after_crash(first, mail.tools())
    second.rt.approve(run_id, waiting.approvals[0].approval_id, by="bob")
    assert second.rest(run_id).completed
    assert mail.sent == {"a": 1, "b": 1}


# F7
def test_a_run_that_fails_after_an_approved_effect_goes_on_with_its_recorded_result(site: Site) -> None:
    mail = Mail()
    host = site.open(
        [
            call("send_registered", {"to": "a"}),
            attempts(
                failed("invalid_request", retryable=False),
                failed("invalid_request", retryable=False),
                say("sent"),
            ),
        ],
        mail.tools(),
    )
    run_id = host.start()
    host.rt.approve(run_id, host.rest(run_id).approvals[0].approval_id, by="bob")
    assert (host.rest(run_id).reason, mail.sent) == ("model_failed", {"a": 1})
    host.rt.resume(run_id)
    assert host.rest(run_id).reason == "model_failed"
    host.rt.resume(run_id)
    assert host.rest(run_id).completed
    assert mail.sent == {"a": 1}
    (recorded,) = results_in(host.model.recorded[-1])
    assert b'"data":{"sent":"a"}' in recorded.content


class AskAgain(Exception):
    """What a tool raises that wants the model to correct itself."""


class Bail(BaseException):
    """A signal that isn't even an ``Exception``."""


CONTROL_FLOW = [
    AskAgain,
    Bail,
    SystemExit,
    KeyboardInterrupt,
    GeneratorExit,
    StopAsyncIteration,
    TimeoutError,
    asyncio.CancelledError,
]


# F8
@pytest.mark.parametrize("raised", CONTROL_FLOW)
@pytest.mark.parametrize("kind", ["async", "inline", "thread"])
def test_a_control_flow_exception_of_a_tool_is_an_outcome_and_runs_nothing_again(
    site: Site, kind: str, raised: type[BaseException]
) -> None:
    ran: Counter[str] = Counter()

    async def write(to: str) -> dict[str, Any]:
        """Write somewhere."""
        ran["write"] += 1
        raise raised

    def write_sync(to: str) -> dict[str, Any]:
        """Write somewhere."""
        ran["write"] += 1
        raise raised

    async def read() -> dict[str, Any]:
        """Read something."""
        ran["read"] += 1
        raise raised

    def read_sync() -> dict[str, Any]:
        """Read something."""
        ran["read"] += 1
        raise raised

    sync, inline = kind == "thread", kind == "inline"
    host = site.open(
        [calls(call("read"), call("write", {"to": "a"}))],
        [
            tool(risk="read", name="read", inline=inline)(read_sync if sync else read),
            tool(risk="write", name="write", key=("to",), inline=inline)(write_sync if sync else write),
        ],
    )
    result = host.run()
    assert (result.status, result.reason) == ("stopped", "outcome_unknown")
    assert ran == {"read": 1, "write": 1}
    assert [event.outcome for event in site.of(result.run_id, e.CallExecuted)] == ["failed", "unknown"]
    host.advance(600_000)
    assert ran == {"read": 1, "write": 1}


# F10
def test_a_host_that_was_taken_for_dead_appends_nothing_after_its_successor(site: Site) -> None:
    mail = Mail()
    first = site.open(THREE_LETTERS, mail.tools())
    gate = first.line.stall_at(has(e.CallExecuted, call="c1.0"))
    run_id = first.start()
    assert gate.wait_reached(10)

    first.alive = False  # as far as anybody can see
    second = site.after_crash(first, mail.tools())
    result = second.rest(run_id)
    assert result.completed
    written = len(site.events(run_id))
    gate.open()
    first.settle()
    assert len(site.events(run_id)) == written
    assert mail.sent == {"a": 1, "b": 1, "c": 1}
    assert mail.queries == 1
    first.alive = True
