"""What people report about arguments and results: half a call executed, one failure that takes its siblings along, a
time-out that is called a failure, a result that fills the context."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from hashlib import sha256
from typing import Any

import pytest
from tests.stepped_runtime import Site, results_in

from boundloop.actors.context import ToolContext
from boundloop.adapters.script import attempts, call, calls, lost, say
from boundloop.runtime import events as e
from boundloop.runtime.canonical import JSON, canonical_bytes
from boundloop.runtime.errors import ToolError
from boundloop.runtime.far_side import Applied
from boundloop.runtime.goal import Evidence, Goal
from boundloop.runtime.limits import Limits
from boundloop.runtime.tool_spec import tool

STUCK_S = 30.0


def note_tool(ran: Counter[str]) -> Any:
    @tool(risk="write", key="call")
    async def note(text: str = "") -> dict[str, Any]:
        """Write a note; all of its arguments may be left out."""
        ran[text] += 1
        return {"noted": text}

    return note


# F51
@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b'{"text": "half',
        b'{"text":"a"',
        b"null",
        b"[]",
        b'"{}"',
        b"{}{}",
        b'{"text":"a",}',
        b"\xff",
    ],
)
def test_arguments_that_did_not_arrive_whole_are_an_error_and_never_an_empty_object(
    site: Site, raw: bytes
) -> None:
    ran: Counter[str] = Counter()
    host = site.open([call("note", raw=raw), say("gave up")], [note_tool(ran)])
    result = host.run()
    assert result.completed
    assert ran == {}
    (rejected,) = site.of(result.run_id, e.CallRejected)
    assert rejected.rung == "json"
    (proposed,) = site.of(result.run_id, e.CallProposed)
    assert proposed.arguments == raw
    (bound,) = results_in(host.model.recorded[-1])
    assert bound.is_error


# F51
def test_a_call_of_a_stream_that_broke_is_not_executed(site: Site) -> None:
    ran: Counter[str] = Counter()
    host = site.open([attempts(lost(call("note", {"text": "a"})), say("nothing done"))], [note_tool(ran)])
    run_id = host.start()
    host.advance(60_000)
    assert host.rest(run_id).completed
    assert ran == {}
    assert site.of(run_id, e.CallProposed) == []


# F53
@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("risk", ["read", "write"])
def test_of_three_calls_of_which_one_raises_all_three_results_are_bound(
    site: Site, risk: str, failing: int
) -> None:
    async def act(number: int) -> dict[str, Any]:
        """Do something, or fail at it."""
        if number == failing:
            raise ToolError("broken", safe_message="that one is broken", no_effect=True)
        return {"number": number}

    declared = tool(risk="read")(act) if risk == "read" else tool(risk="write", key=("number",))(act)
    host = site.open(
        [calls(*(call("act", {"number": number}) for number in range(3))), say("done")], [declared]
    )
    result = host.run()
    assert result.completed
    bound = site.of(result.run_id, e.ResultBound)
    assert sorted(event.call for event in bound) == ["c1.0", "c1.1", "c1.2"]
    contents = [json.loads(item.content) for item in results_in(host.model.recorded[-1])]
    assert [content["status"] for content in contents] == [
        "error" if number == failing else "ok" for number in range(3)
    ]
    assert [content["data"]["number"] for content in contents if "data" in content] == [
        number for number in range(3) if number != failing
    ]


class Slow:
    """A sync tool that can't be stopped: it does its work once it is let go, however late that is."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.let_go = threading.Event()
        self.done = threading.Event()
        self.ran = 0

    def work(self, order: str) -> dict[str, Any]:
        self.ran += 1
        self.entered.set()
        self.let_go.wait(STUCK_S)
        self.done.set()
        return {"done": order}


# F54
def test_a_timed_out_sync_effect_is_unknown_and_its_late_success_settles_it(site: Site) -> None:
    slow = Slow()
    pay = tool(risk="irreversible", name="pay", key=("order",), approval="never", timeout_ms=1_000)
    host = site.open([call("pay", {"order": "1"}), say("paid")], [pay_of(pay, slow)])
    run_id = host.start()
    assert slow.entered.wait(STUCK_S)
    host.advance(1_000)
    stopped = host.rest(run_id)
    assert (stopped.status, stopped.reason) == ("stopped", "outcome_unknown")
    assert [event.outcome for event in site.of(run_id, e.CallExecuted)] == ["unknown"]

    ended = threading.Event()
    host.rt.watch(lambda run, state, events, seq: ended.set() if state.phase == "terminated" else None)
    slow.let_go.set()
    assert ended.wait(STUCK_S)
    result = host.rest(run_id)
    assert result.completed
    assert slow.ran == 1
    assert [(event.outcome, event.by) for event in site.of(run_id, e.CallReconciled)] == [
        ("applied", "executor")
    ]


# F54
def test_a_late_success_settles_an_effect_even_after_its_run_ended(site: Site) -> None:
    slow = Slow()
    pay = tool(risk="irreversible", name="pay", key=("order",), approval="never", timeout_ms=1_000)
    host = site.open([call("pay", {"order": "1"}), say("paid")], [pay_of(pay, slow)])
    run_id = host.start()
    assert slow.entered.wait(STUCK_S)
    host.rt.cancel(run_id)
    host.advance(60_000)
    result = host.rest(run_id)
    assert (result.outcome, result.unknown_effects) == ("cancelled", ("c1.0",))

    settled = threading.Event()
    host.rt.watch(lambda run, state, events, seq: settled.set() if not state.unknown_calls else None)
    slow.let_go.set()
    assert settled.wait(STUCK_S)
    assert host.rest(run_id).unknown_effects == ()
    assert isinstance(site.events(run_id)[-1], e.CallReconciled)


def pay_of(declare: Any, slow: Slow) -> Any:
    def pay(order: str) -> dict[str, Any]:
        """Pay an order out."""
        return slow.work(order)

    return declare(pay)


# F54
def test_a_timed_out_sync_read_failed_and_may_be_tried_again(site: Site) -> None:
    slow = Slow()

    @tool(risk="read", timeout_ms=1_000, max_attempts=2)
    def report(order: str) -> dict[str, Any]:
        """Read a report."""
        return slow.work(order)

    host = site.open([call("report", {"order": "1"}), say("done")], [report])
    run_id = host.start()
    assert slow.entered.wait(STUCK_S)
    slow.entered.clear()
    host.advance(1_000)
    host.advance(1_000)
    assert slow.entered.wait(STUCK_S)
    host.advance(1_000)
    assert host.rest(run_id).completed
    slow.let_go.set()
    executed = site.of(run_id, e.CallExecuted)
    assert [(event.outcome, event.code, event.retryable) for event in executed] == [
        ("failed", "timeout", True),
        ("failed", "timeout", True),
    ]
    assert executed[0].retry_at_ms > 0


# F54
def test_a_timed_out_tool_is_asked_to_stop_by_its_token(site: Site) -> None:
    entered, asked = threading.Event(), threading.Event()

    @tool(risk="read", timeout_ms=1_000, max_attempts=1)
    def report(ctx: ToolContext) -> dict[str, Any]:
        """Read a report until told to stop."""
        entered.set()
        if ctx.cancel.wait(STUCK_S):
            asked.set()
        return {}

    host = site.open([call("report"), say("done")], [report])
    run_id = host.start()
    assert entered.wait(STUCK_S)
    host.advance(1_000)
    assert host.rest(run_id).completed
    assert asked.wait(STUCK_S)


# F57
def test_a_result_of_fifty_megabytes_is_an_artifact_with_a_bounded_view_and_its_full_hash(site: Site) -> None:
    whole: dict[str, JSON] = {"rows": "x" * 50_000_000}

    @tool(risk="read", result_bytes_max=4_096)
    async def dump() -> dict[str, Any]:
        """Dump everything."""
        return whole

    host = site.open([call("dump"), say("that was much")], [dump])
    result = host.run()
    assert result.completed
    assert host.model.requests == 2
    (executed,) = site.of(result.run_id, e.CallExecuted)
    encoded = canonical_bytes(whole)
    assert executed.artifact is not None
    assert executed.artifact == sha256(encoded).digest()
    assert executed.size == len(encoded)
    assert asyncio.run(site.store.get_blob(executed.artifact)) == encoded
    (bound,) = results_in(host.model.recorded[-1])
    assert len(bound.content) < 4_096 + 256
    shown = json.loads(bound.content)
    assert shown["truncated"] is True
    assert shown["data"]["handle"] == sha256(encoded).hexdigest()
    assert shown["data"]["bytes"] == len(encoded)


@pytest.mark.parametrize(("asked", "completes"), [("paid", True), ("open", False)])
@pytest.mark.parametrize("far_side", ["keyed", "queryable"])
def test_evidence_in_a_result_too_large_to_show_counts(
    site: Site, far_side: str, asked: str, completes: bool
) -> None:
    whole: dict[str, JSON] = {"rows": "x" * 50_000, "state": "paid"}
    options: dict[str, Any] = {"far_side": far_side}
    if far_side == "queryable":
        options["query"] = lambda key: Applied(whole)  # pyright: ignore[reportUnknownLambdaType]  # a key is text

    @tool(risk="write", key="call", result_bytes_max=1_000, **options)
    async def pay() -> dict[str, Any]:
        """Pay, and tell at length."""
        if far_side == "queryable":
            raise ConnectionError
        return whole

    host = site.open([call("pay"), say("paid")], [pay])
    goal = Goal.of(Evidence("pay", result={"state": asked}))
    result = host.run(goal=goal, limits=Limits(cost="1", corrective_turns=0))
    assert result.completed is completes
    assert result.reason == ("final" if completes else "evidence_missing")


# F57
@pytest.mark.parametrize("parallel", [1, 8])
def test_the_results_of_one_turn_together_stay_within_the_runs_bound(site: Site, parallel: int) -> None:
    @tool(risk="read", result_bytes_max=60_000)
    async def dump(number: int) -> dict[str, Any]:
        """Dump something."""
        return {"rows": "x" * 50_000}

    host = site.open([calls(*(call("dump", {"number": number}) for number in range(8))), say("done")], [dump])
    result = host.run(limits=Limits(cost="1", result_bytes=100_000, parallel=parallel))
    assert result.completed
    found = results_in(host.model.recorded[-1])
    assert len(found) == 8
    assert sum(len(item.content) for item in found) <= 100_000


# F60
@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (b'{"order":"1","lines":[{"sku":"a","count":"many"}]}', "$.lines[0].count"),
        (b'{"order":"1","lines":[{"sku":"a","count":1,"count":2}]}', "$.lines[0].count"),
        (b'{"order":"1","lines":[{"sku":"a","count":1e999}]}', ""),
        (b'{"order":1,"lines":[]}', "$.order"),
    ],
)
def test_what_cannot_be_stored_is_refused_when_it_is_proposed_and_by_its_path(
    site: Site, raw: bytes, path: str
) -> None:
    ran: Counter[str] = Counter()
    item = {
        "type": "object",
        "properties": {"sku": {"type": "string"}, "count": {"type": "integer"}},
        "required": ["sku", "count"],
    }

    async def order_many(**arguments: Any) -> dict[str, Any]:
        """Order several things."""
        ran["order_many"] += 1
        return {}

    declared = tool(
        risk="write",
        key=("order",),
        params={
            "type": "object",
            "properties": {"order": {"type": "string"}, "lines": {"type": "array", "items": item}},
            "required": ["order", "lines"],
        },
    )(order_many)
    host = site.open([call("order_many", raw=raw), say("gave up")], [declared])
    result = host.run()
    assert result.completed
    assert ran == {}
    (rejected,) = site.of(result.run_id, e.CallRejected)
    assert rejected.path == path or (not path and rejected.path)
    (bound,) = results_in(host.model.recorded[-1])
    assert json.loads(bound.content)["path"] == rejected.path


class Opaque:
    """No JSON, and trouble for whoever tries to make a copy, a text or a pickle of it."""

    def __reduce__(self) -> Any:
        raise AssertionError("pickled")

    def __repr__(self) -> str:
        raise AssertionError("shown")

    __str__ = __repr__


class Boom:
    """A model by its looks, whose serialiser raises."""

    __pydantic_core_schema__ = None

    def model_dump(self, **options: Any) -> Any:
        raise KeyError("no")


# F60
@pytest.mark.parametrize(
    "value", [Opaque(), object(), Boom(), float("nan"), 2**70, "\ud800", {"a": Opaque()}]
)
@pytest.mark.parametrize("kind", ["async", "inline", "thread"])
def test_a_result_that_is_no_json_is_output_invalid_and_an_effect_is_never_run_again(
    site: Site, kind: str, value: object
) -> None:
    ran: Counter[str] = Counter()

    async def write() -> Any:
        """Do something, and answer with something odd."""
        ran["write"] += 1
        return value

    def write_sync() -> Any:
        """Do something, and answer with something odd."""
        ran["write"] += 1
        return value

    async def read() -> Any:
        """Read something odd."""
        ran["read"] += 1
        return value

    inline = kind == "inline"
    tools = [
        tool(risk="write", name="write", key="arguments", far_side="keyed", inline=inline)(
            write_sync if kind == "thread" else write
        ),
        tool(risk="read", name="read", inline=inline)(read),
    ]
    host = site.open([calls(call("write"), call("read")), call("write"), say("done")], tools)
    result = host.run()
    host.advance(600_000)
    assert result.completed
    assert ran == {"write": 1, "read": 1}
    assert [(event.outcome, event.code) for event in site.of(result.run_id, e.CallExecuted)] == [
        ("succeeded", "output_invalid"),
        ("failed", "output_invalid"),
    ]
