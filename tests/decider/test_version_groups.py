"""Source versions: what a result says of where it came from, and groups of reads that must agree."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from boundloop.runtime import events as e
from boundloop.runtime.observed import version_to_read
from boundloop.runtime.orders import Execute
from boundloop.runtime.start import NewRunSpec, start_run

from .shop import TOOLS, pins
from .spec import Run, call


def grouped(*names: str, scope: str = "turn", **fields: Any) -> Run:
    """The shop with these reads in one group."""
    tools = tuple(
        msgspec.structs.replace(it, same_version="orders", same_version_in=scope, **fields)
        if it.name in names
        else it
        for it in TOOLS
    )
    return Run(pins(tools=tools))


def two_reads(run: Run) -> None:
    turn = run.state.turn
    run.reply(call("get_order", order_id="A"), call("get_order", order_id=f"B{turn}"))
    run.check(f"c{turn}.0")
    run.check(f"c{turn}.1")


def source(version: str, at_ms: int = 0) -> e.Source:
    return e.Source(version, at_ms)


def content(run: Run, name: str) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(run.state.calls[name].content)
    return decoded


def test_a_result_shows_its_version_and_when_its_source_was_read() -> None:
    run = Run()
    run.reply(call("get_order", order_id="A"), call("get_order", order_id="B"))
    run.check("c1.0")
    run.check("c1.1")
    run.report("c1.0", result={"n": 1}, source=source("etag-7", 123))
    assert content(run, "c1.0") == {
        "data": {"n": 1},
        "observed_at": 123,
        "source_version": "etag-7",
        "status": "ok",
        "trust": "untrusted",
    }


def test_a_version_without_a_time_shows_when_the_result_arrived() -> None:
    run = Run()
    run.reply(call("get_order", order_id="A"), call("get_order", order_id="B"))
    run.check("c1.0")
    run.check("c1.1")
    run.report("c1.0", source=source("etag-7"))
    assert content(run, "c1.0")["observed_at"] == run.now


def test_a_result_without_a_source_is_shown_as_ever() -> None:
    run = Run()
    two_reads(run)
    run.report("c1.0")
    assert set(content(run, "c1.0")) == {"data", "observed_at", "status", "trust"}


def test_what_a_query_found_shows_its_version() -> None:
    run = Run()
    run.reply(call("ship", order_id="A"), call("get_order", order_id="B"))
    run.check("c1.0")
    run.check("c1.1")
    run.report("c1.0", "unknown")
    run.query("c1.0", "applied", {"shipped": "A"}, source=source("7"))
    assert content(run, "c1.0")["source_version"] == "7"


def test_a_group_of_one_version_is_bound_as_it_came() -> None:
    run = grouped("get_order")
    two_reads(run)
    run.report("c1.0", source=source("7"))
    assert version_to_read(run.state, run.state.calls["c1.1"]) == "7"
    run.report("c1.1", source=source("7"))
    assert run.state.phase == "model_requested"


def test_a_read_of_another_version_fails_and_is_told_which_one_to_read() -> None:
    run = grouped("get_order")
    two_reads(run)
    run.report("c1.0", source=source("7"))
    events = run.report("c1.1", source=source("8"))
    refused = next(event for event in events if isinstance(event, e.CallExecuted))
    assert (refused.outcome, refused.code, refused.result) == ("failed", "version_conflict", None)
    assert refused.source == source("8")
    assert refused.retry_at_ms
    run.tick(refused.retry_at_ms - run.now)
    assert [order for order in run.orders() if isinstance(order, Execute)] == [Execute("c1.1", 2)]
    assert version_to_read(run.state, run.state.calls["c1.1"]) == "7"
    run.report("c1.1", source=source("7"))
    assert run.state.phase == "model_requested"


def test_a_source_that_has_moved_on_ends_in_an_error_result_and_the_next_turn_reads_anew() -> None:
    run = grouped("get_order")
    two_reads(run)
    run.report("c1.0", source=source("7"))
    for _ in range(3):
        call_1 = run.state.calls["c1.1"]
        if call_1.retry_at_ms:
            run.tick(call_1.retry_at_ms - run.now)
        run.report("c1.1", source=source("8"))
    bound = [event for event, _ in run.log if isinstance(event, e.ResultBound)]
    assert [(it.call, it.status, it.code) for it in bound] == [
        ("c1.0", "ok", ""),
        ("c1.1", "error", "version_conflict"),
    ]
    two_reads(run)
    for name in ("c2.0", "c2.1"):
        run.report(name, source=source("8"))
    assert run.state.phase == "model_requested"


def test_a_read_of_a_group_that_does_not_say_its_version_fails_for_good() -> None:
    run = grouped("get_order")
    two_reads(run)
    run.report("c1.0", source=None)
    assert (run.state.calls["c1.0"].status, run.state.calls["c1.0"].code) == ("error", "version_missing")
    run.report("c1.1", source=source("7"))
    assert run.state.phase == "model_requested"


def test_a_run_wide_group_reads_one_version_in_all_turns() -> None:
    run = grouped("get_order", scope="run")
    two_reads(run)
    run.report("c1.0", source=source("7"))
    run.report("c1.1", source=source("7"))
    run.reply(call("get_order", order_id="C"))
    run.check("c2.0")
    assert version_to_read(run.state, run.state.calls["c2.0"]) == "7"
    run.report("c2.0", source=source("8"))
    assert run.state.calls["c2.0"].code == "version_conflict"


def test_reads_of_no_group_may_be_of_any_version() -> None:
    run = grouped("credit_check")
    two_reads(run)
    run.report("c1.0", source=source("7"))
    run.report("c1.1", source=source("8"))
    assert run.state.phase == "model_requested"


def test_a_host_that_dies_between_the_reads_of_a_group_changes_nothing_of_the_rule() -> None:
    run = grouped("get_order")
    two_reads(run)
    run.report("c1.0", source=source("7"))
    run.crash()
    run.tick(max(0, run.state.calls["c1.1"].retry_at_ms - run.now))
    run.report("c1.1", source=source("8"))
    assert run.state.calls["c1.1"].code == "version_conflict"


@pytest.mark.parametrize(("as_of", "refused"), [("", True), ("2026-01-01T00:00:00Z", False)])
def test_a_read_at_a_snapshot_is_refused_in_a_run_without_one(as_of: str, refused: bool) -> None:
    tools = tuple(msgspec.structs.replace(it, snapshot=it.name == "get_order") for it in TOOLS)
    pinned = pins(tools=tools)
    spec = NewRunSpec(run_id="r1", input="hello", operation_id="op1", as_of=as_of)
    run = Run(pinned, started=start_run(spec, pinned)[0])
    run.reply(call("get_order", order_id="A"), call("get_order", order_id="B"))
    run.check("c1.0")
    if refused:
        assert run.state.calls["c1.0"].code == "as_of_missing"
        return
    run.check("c1.1")
    run.report("c1.0", source=source("7"))
    assert content(run, "c1.0")["as_of"] == as_of
    assert run.state.calls["c1.0"].content.startswith(b'{"as_of":')


# --- where results are judged --------------------------------------------------------------------------------------------


def judged_group(scope: str) -> Run:
    run = grouped("get_order", scope=scope, max_attempts=1)
    return Run(msgspec.structs.replace(run.pins, guarded=("result",)))


@pytest.mark.parametrize("scope", ["turn", "run"])
def test_a_read_that_was_withheld_does_not_say_which_version_its_group_reads(scope: str) -> None:
    run = judged_group(scope)
    two_reads(run)
    run.report("c1.0", result={"n": 1}, source=source("v1"))
    run.judge_result("c1.0", "deny")
    assert run.state.run_versions == {}
    assert version_to_read(run.state, run.call("c1.1")) == ""
    run.report("c1.1", result={"n": 2}, source=source("v2"))
    run.judge_result("c1.1")
    assert run.state.calls == {} or run.bound("c1.1") == ("ok", "")
    assert run.state.run_versions == ({"orders": "v2"} if scope == "run" else {})


@pytest.mark.parametrize("scope", ["turn", "run"])
def test_beside_a_read_that_is_still_to_be_judged_only_its_version_is_taken(scope: str) -> None:
    run = judged_group(scope)
    two_reads(run)
    run.report("c1.0", result={"n": 1}, source=source("v1"))
    assert version_to_read(run.state, run.call("c1.1")) == "v1"
    run.report("c1.1", result={"n": 2}, source=source("v2"))
    run.judge_result("c1.1")
    assert run.bound("c1.1") == ("error", "version_conflict")
