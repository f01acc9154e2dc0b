"""Executors whose source of secrets takes its time: what is too late by then, or was stopped meanwhile, never starts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from boundloop.actors.context import ToolContext
from boundloop.actors.dispatch_wire import wire_call
from boundloop.actors.execution import Report
from boundloop.actors.executors import Dispatch
from boundloop.actors.reception import Reception, run_here
from boundloop.actors.secret_source import SecretQuestion, Secrets, settings_of
from boundloop.runtime.redaction import Redaction
from boundloop.runtime.tool_spec import tool, tool_spec
from boundloop.runtime.toolbox import Toolbox

SENT: list[str] = []
TOKEN = "token-4711"


@tool(risk="write", key=("order",), far_side="keyed", secret_arguments={"token": "billing"})
def pay(order: str, token: str) -> str:
    """Pay."""
    SENT.append(order)
    return f"paid with {token}"


@pytest.fixture(autouse=True)
def forget() -> None:
    SENT.clear()


def received(
    source: Callable[[SecretQuestion], str], valid_ms: int = 60_000, name: str = "billing"
) -> Dispatch:
    toolbox = Toolbox([pay])
    secrets = Secrets.of(settings_of(Redaction(values={"key": "sk-4242"}), source, toolbox))
    context = ToolContext(
        run_id="r1",
        call_id="c1.0",
        attempt=1,
        operation_id="op",
        tenant="acme",
        principal="ann",
        key="6b" * 32,
        valid_ms=valid_ms,
        dependencies={},
    )
    dispatch = Dispatch(
        spec=tool_spec(pay),
        context=context,
        arguments={"order": "a", "token": f"secret://{name}"},
        epoch=1,
        valid_ms=valid_ms,
        view_bytes_max=1_000,
        deliver=lambda report: None,
    )
    came = Reception(toolbox, {}, secrets).receive(wire_call(dispatch, valid_ms), lambda report: None)
    assert isinstance(came, Dispatch)
    return came


def test_nothing_is_asked_of_the_source_before_the_call_is_known_to_be_at_work() -> None:
    asked: list[SecretQuestion] = []

    def source(question: SecretQuestion) -> str:
        asked.append(question)
        return TOKEN

    dispatch = received(source)
    assert asked == []
    report = run_here(dispatch)
    assert asked == [SecretQuestion("billing", "acme", "ann", "pay")]
    assert SENT == ["a"]
    assert report.executed.result == b'"paid with [redacted:billing]"'


def test_an_effect_whose_time_is_over_when_its_secret_is_there_is_refused_with_proof() -> None:
    def source(question: SecretQuestion) -> str:
        dispatch.started_s -= 60.0  # as long as the call was valid
        return TOKEN

    dispatch = received(source)
    _refused(run_here(dispatch), "expired")


def test_an_effect_that_is_stopped_while_its_secret_is_asked_for_is_refused_with_proof() -> None:
    def source(question: SecretQuestion) -> str:
        dispatch.context.cancel.set()
        return TOKEN

    dispatch = received(source)
    _refused(run_here(dispatch), "cancelled")


def test_an_executor_asks_for_no_secret_that_the_tool_does_not_name() -> None:
    def source(question: SecretQuestion) -> str:
        raise AssertionError(question)

    _refused(run_here(received(source, name="payroll")), "secret_not_allowed")


def _refused(report: Report, code: str) -> None:
    assert (report.executed.outcome, report.executed.code) == ("failed", code)
    assert report.executed.no_effect
    assert SENT == []
