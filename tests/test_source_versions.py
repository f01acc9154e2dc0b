"""What tools say of their sources, and what they are told of them, through every executor of one process."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.stepped_runtime import Site

from boundloop.actors.context import ToolContext
from boundloop.actors.dispatch_wire import WireCall, encode_reply, wire_call
from boundloop.actors.execution import Report
from boundloop.actors.executors import Dispatch
from boundloop.actors.reception import Reception, run_here
from boundloop.adapters.script import call, calls, say
from boundloop.runtime import Applied, Observed, Toolbox, ToolError
from boundloop.runtime import events as e
from boundloop.runtime.canonical import canonical_bytes
from boundloop.runtime.errors import DeclarationError
from boundloop.runtime.model import ResultItem
from boundloop.runtime.tool_spec import tool, tool_spec


def shown(site: Site, run_id: str) -> list[dict[str, Any]]:
    """What the model saw of each call, from the log."""
    return [
        {"source": it.source, "outcome": it.outcome, "code": it.code}
        for it in site.of(run_id, e.CallExecuted)
    ]


@pytest.mark.parametrize("kind", ["thread", "task", "inline"])
def test_a_tools_source_is_on_record_from_every_executor(site: Site, kind: str) -> None:
    def read(order: str, ctx: ToolContext) -> Observed[dict[str, str]]:
        """Read an order."""
        return Observed({"order": order, "at": ctx.as_of}, source_version="etag-7", observed_at_ms=5)

    async def read_async(order: str, ctx: ToolContext) -> Observed[dict[str, str]]:
        """Read an order."""
        return read(order, ctx)

    declared = tool(risk="read", name="read", snapshot=True, inline=kind == "inline")(
        read if kind == "thread" else read_async
    )
    host = site.open([calls(call("read", {"order": "A"})), say("done")], [declared])
    run_id = host.start(as_of="snap-3")
    assert host.rest(run_id).completed
    assert shown(site, run_id) == [{"source": e.Source("etag-7", 5), "outcome": "succeeded", "code": ""}]
    [result] = [item for item in host.state(run_id).items if isinstance(item, ResultItem)]
    assert msgspec.json.decode(result.content) == {
        "as_of": "snap-3",
        "data": {"at": "snap-3", "order": "A"},
        "observed_at": 5,
        "source_version": "etag-7",
        "status": "ok",
        "trust": "untrusted",
    }


def test_a_group_whose_source_moves_on_is_read_again_at_the_version_that_it_began_with(site: Site) -> None:
    asked: list[tuple[str, str]] = []
    latest = {"n": 7}

    @tool(risk="read", inline=True, same_version="orders")
    async def read(order: str, ctx: ToolContext) -> Observed[dict[str, str]]:
        """Read an order at the latest version, or at the one that is asked for."""
        asked.append((order, ctx.same_version))
        version = ctx.same_version or str(latest["n"])
        if order == "B" and ctx.attempt == 1:
            version = str(latest["n"] + 1)  # it ignores what it was asked for
        return Observed({"order": order, "version": version}, source_version=version)

    turn = calls(call("read", {"order": "A"}), call("read", {"order": "B"}))
    host = site.open([turn, say("done")], [read])
    run_id = host.start()
    host.settle()
    host.advance(1_000)
    assert host.rest(run_id).completed
    assert asked == [("A", ""), ("B", ""), ("B", "7")]
    assert [(it["code"], it["source"].version) for it in shown(site, run_id)] == [
        ("", "7"),
        ("version_conflict", "8"),
        ("", "7"),
    ]


@pytest.mark.parametrize(
    "of",
    [
        {"source_version": "x" * 257},
        {"source_version": "\ud800"},
        {"source_version": 7},
        {"observed_at_ms": -1},
        {"observed_at_ms": 2**53},
        {"observed_at_ms": 1.5},
    ],
)
def test_a_source_that_no_log_can_hold_makes_the_result_invalid_and_an_effect_stays_done(
    site: Site, of: dict[str, Any]
) -> None:
    empty: dict[str, str] = {}
    said = Observed(empty, **of)

    @tool(risk="read")
    def read() -> Observed[dict[str, str]]:
        """Read."""
        return said

    @tool(risk="write", key="call")
    def write() -> Observed[dict[str, str]]:
        """Write."""
        return said

    host = site.open([calls(call("read", {}), call("write", {})), say("done")], [read, write])
    run_id = host.start()
    assert host.rest(run_id).completed
    assert [(it["outcome"], it["code"], it["source"]) for it in shown(site, run_id)] == [
        ("failed", "output_invalid", None),
        ("succeeded", "output_invalid", None),
    ]


def test_an_approved_effect_is_given_the_version_that_the_person_saw(site: Site) -> None:
    seen: list[str] = []

    def version_of(arguments: dict[str, Any]) -> str:
        return "v3"

    @tool(risk="write", key=("order",), approval="always", version_of=version_of, check_inline=True)
    def cancel(order: str, ctx: ToolContext) -> dict[str, str]:
        """Cancel an order."""
        seen.append(ctx.resource_version)
        return {"cancelled": order}

    host = site.open([calls(call("cancel", {"order": "A"})), say("done")], [cancel])
    run_id = host.start()
    [approval] = host.rest(run_id).approvals
    host.rt.approve(run_id, approval.approval_id, by="boss")
    assert host.rest(run_id).completed
    assert seen == ["v3"]


def test_a_query_says_where_its_answer_came_from(site: Site) -> None:
    def query(key: str) -> Applied:
        return Applied(Observed({"shipped": True}, source_version="carrier-9"))

    @tool(risk="write", key=("order",), far_side="queryable", query=query)
    def ship(order: str) -> dict[str, bool]:
        """Ship an order."""
        raise TimeoutError

    host = site.open([calls(call("ship", {"order": "A"})), say("done")], [ship])
    run_id = host.start()
    for _ in range(5):
        host.settle()
        host.advance(60_000)
    [reconciled] = site.of(run_id, e.CallReconciled)
    assert (reconciled.outcome, reconciled.source) == ("applied", e.Source("carrier-9"))


def test_versions_travel_to_another_process_and_back() -> None:
    """As on Ray: the call as it is sent, and the report as it comes."""

    @tool(risk="read", same_version="orders")
    def read(ctx: ToolContext) -> Observed[dict[str, str]]:
        """Read."""
        return Observed(
            {"as_of": ctx.as_of, "resource": ctx.resource_version}, source_version=ctx.same_version
        )

    spec = tool_spec(read)
    reports: list[Report] = []
    context = ToolContext(
        run_id="r1",
        call_id="c1.0",
        attempt=1,
        operation_id="op",
        tenant="t",
        principal="p",
        key="",
        valid_ms=1_000,
        dependencies={},
        as_of="x" * 4_096,
        same_version="v" * 256,
        resource_version="é" * 256,
    )
    dispatch = Dispatch(
        spec=spec,
        context=context,
        arguments={},
        epoch=1,
        valid_ms=1_000,
        view_bytes_max=100_000,
        deliver=reports.append,
    )
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(wire_call(dispatch, 1_000)), type=WireCall)
    received = Reception(Toolbox([read]), {}).receive(sent, reports.append)
    assert isinstance(received, Dispatch)
    report = run_here(received)
    assert report.executed.source == e.Source("v" * 256)
    assert report.executed.result == canonical_bytes({"as_of": "x" * 4_096, "resource": "é" * 256})
    assert encode_reply([report])


def test_an_effect_is_in_no_group_of_reads_and_a_scope_needs_a_group() -> None:
    def write(order: str) -> dict[str, str]:
        """Write."""
        return {"order": order}

    with pytest.raises(DeclarationError, match="same_version"):
        tool(risk="write", key=("order",), same_version="orders")(write)
    with pytest.raises(DeclarationError, match="same_version_in"):
        tool(risk="read", same_version_in="run")(write)


def test_what_an_observed_result_holds_is_checked_like_any_other() -> None:
    @tool(risk="read")
    def read() -> Observed[dict[str, int]]:
        """Read."""
        raise ToolError("unused")

    spec = tool_spec(read)
    assert spec.check_result({"n": 1}) is None
    assert spec.check_result({"n": "one"}) is not None
