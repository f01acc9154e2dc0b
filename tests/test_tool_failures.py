"""What an operator hears of a tool that raised: class and place, and its words only if asked for; log and model hear nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from tests.stepped_runtime import Site

from boundloop.actors import tool_failures
from boundloop.actors.dispatch_wire import WireCall, decode_reply, encode_reply
from boundloop.actors.execution import failure
from boundloop.adapters.script import call, say
from boundloop.runtime.errors import ToolError
from boundloop.runtime.tool_spec import ToolSpec, tool, tool_spec

SECRET = "sk-live-4242"


def inner() -> None:
    raise KeyError(SECRET)


@tool(risk="read")
def on_a_thread(number: int) -> int:
    """Fails."""
    inner()
    return number


@tool(risk="read")
async def on_the_loop(number: int) -> int:
    """Fails."""
    inner()
    return number


@tool(risk="read", inline=True)
async def in_the_host(number: int) -> int:
    """Fails."""
    inner()
    return number


@tool(risk="read")
def says_so(number: int) -> int:
    """Fails, by its own word."""
    raise ToolError("no_stock", safe_message="none left")


def raised_by(function: Callable[[int], Any]) -> str:
    return tool_failures.raised(tool_spec(function), caught(function))


def caught(function: Callable[[int], Any]) -> BaseException:
    try:
        function(1)
    except BaseException as error:  # noqa: BLE001  handed on
        return error
    raise AssertionError("it raised nothing")


@pytest.mark.parametrize("function", [on_a_thread, on_the_loop, in_the_host])
def test_the_operator_hears_the_class_and_the_place(
    site: Site, caplog: pytest.LogCaptureFixture, function: Callable[[int], Any]
) -> None:
    name = tool_spec(function).name
    host = site.open([call(name, {"number": 1}), say("sorry")], tools=[function])
    with caplog.at_level(logging.WARNING, logger="boundloop.tools"):
        host.run()
    (record,) = [it for it in caplog.records if it.name == "boundloop.tools"]
    line = record.getMessage()
    assert line.startswith(
        f"{name} raised KeyError at {__file__}:{inner.__code__.co_firstlineno + 1} in inner (run r_"
    )
    assert line.endswith(", attempt 1)")
    assert SECRET not in line
    assert "KeyError" not in site.stored()
    assert SECRET not in site.stored()


def test_a_tools_own_word_is_in_the_log_already() -> None:
    assert raised_by(says_so) == ""


def test_the_words_come_only_if_the_operator_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SECRET not in raised_by(on_a_thread)
    monkeypatch.setenv("BOUNDLOOP_TOOL_ERRORS", "full")
    text = raised_by(on_a_thread)
    for word in (SECRET, "Traceback", "on_a_thread"):
        assert word in text
    assert len(text) <= tool_failures.TOLD_CHARS_MAX
    monkeypatch.setenv("BOUNDLOOP_TOOL_ERRORS", "1")
    assert SECRET not in raised_by(on_a_thread)


class Nameless(type):
    """A class that doesn't tell its name."""

    @property
    def __module__(cls) -> Any:  # type: ignore[override]  # hostile on purpose
        raise RuntimeError(SECRET)


def test_an_exception_may_be_anything() -> None:
    odd = Nameless("Odd", (Exception,), {})

    def broken(_: object) -> str:
        raise RuntimeError(SECRET)

    rude = type("Rude\x1b[2J\u202e" + "x" * 10_000, (Exception,), {"__str__": broken})
    spec = tool_spec(on_a_thread)
    for kind in (odd, rude):
        text = tool_failures.raised(spec, kind(SECRET))
        assert text.isprintable()
        assert len(text) < 1_000
        text.encode()
        assert SECRET not in text


def test_it_travels_beside_the_report_and_not_in_it() -> None:
    spec: ToolSpec = tool_spec(on_a_thread)
    report = failure(spec, "c1", 1, caught(on_a_thread), duration_ms=1)
    sent = WireCall(
        run_id="r", call="c1", attempt=1, epoch=1, tool=spec.name, definition_sha256=b"", arguments=b"{}",
        operation_id="o", tenant="t", principal="p", key="", valid_ms=1, deadline_ns=0, boot="", view_bytes_max=1,
    )  # fmt: skip
    reply = decode_reply(encode_reply([report]), [sent])
    assert reply is not None
    (came,) = reply.reports
    assert came.raised == report.raised != ""
    assert "KeyError" not in repr(came.executed)
