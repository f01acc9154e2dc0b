"""The context of real runs: what is read on, what a crash leaves, and past requests out of the log."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from tests.stepped_runtime import Site, Stepped, has, results_in

from boundloop.actors.wishes import CommandRefused
from boundloop.adapters.script import call, calls, say
from boundloop.eventstore.history import pins_of, read_records
from boundloop.eventstore.requests import PastRequest, past_request
from boundloop.runtime import events as e
from boundloop.runtime.canonical import canonical_bytes
from boundloop.runtime.limits import Limits
from boundloop.runtime.model import DigestItem, ModelInput
from boundloop.runtime.policy import Policy, PolicyAnswer, PolicyQuestion
from boundloop.runtime.tool_spec import tool

LINES = [f'line {number}: ünïcode "quoted" \\ {"x" * (number % 7)}' for number in range(400)]


@tool(risk="read", result_bytes_max=600, facts={"document": "id"})
async def read_document(name: str = "a") -> dict[str, Any]:
    """Read a long document."""
    return {"id": name, "lines": LINES}


@tool(risk="read", conditions=("unit",))
async def measure(at: int) -> dict[str, Any]:
    """Measure something."""
    return {"at": at, "unit": "mm", "trace": "t" * 1_500}


def shown(request: ModelInput, number: int = -1) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(results_in(request)[number].content)
    return content


def reads_on_to_the_end(request: ModelInput) -> Any:
    """A model that reads a truncated result to its end."""
    last = shown(request)
    if last.get("truncated"):
        return call("read_result", {"handle": last["handle"], "limit": 3_000})
    if "next_offset" in last["data"]:
        data = last["data"]
        return call("read_result", {"handle": data["handle"], "offset": data["next_offset"], "limit": 3_000})
    return say("read it all")


def test_a_truncated_result_is_read_on_to_its_end(site: Site) -> None:
    host = site.open([call("read_document"), *[reads_on_to_the_end] * 20], [read_document])
    result = host.run()
    assert result.completed
    parts = [shown(request) for request in list(host.model.recorded)[2:]]
    assert len(parts) > 3
    whole = "".join(part["data"]["text"] for part in parts)
    assert whole.encode() == canonical_bytes({"id": "a", "lines": [*LINES]})
    names = [[one.name for one in request.tools] for request in host.model.recorded]
    assert names[0] == ["read_document"]  # nothing was truncated yet
    assert names[1] == ["read_document", "read_result"]
    assert result.spent["tool_calls"] == 1 + len(parts)
    assert len(site.of(result.run_id, e.CallStarted)) == 1 + len(parts)


@pytest.mark.parametrize("handle", ["0" * 16, "f" * 64])
def test_a_handle_that_is_not_this_runs_is_answered_as_one_that_never_was(site: Site, handle: str) -> None:
    host = site.open([call("read_document"), say("read")], [read_document])
    first = host.run()
    of_the_first = shown(host.model.recorded[1])["handle"]

    @tool(risk="read", result_bytes_max=600)
    async def other() -> list[str]:
        """Another long text."""
        return LINES[:300]

    asked: list[dict[str, Any]] = []
    for wanted in (handle, of_the_first):
        second = site.open(
            [call("other"), call("read_result", {"handle": wanted}), say("nothing")], [other], tenant="t2"
        )
        result = second.run()
        assert result.completed
        asked.append(shown(second.model.recorded[2]))
        second.close()
    assert asked[0] == asked[1]
    assert asked[0]["code"] == "unknown_handle"
    assert first.completed


def test_a_read_that_is_lost_with_its_host_is_done_again(site: Site) -> None:
    host = site.open([call("read_document"), *[reads_on_to_the_end] * 20], [read_document])
    host.line.cut_at(
        lambda events: any(isinstance(it, e.CallExecuted) and it.call == "c2.0" for it in events), before=True
    )
    run_id = host.start()
    host.settle()
    host.crash()
    after = site.after_crash(host, [read_document])
    result = after.rest(run_id)
    assert result.completed
    started = [event.attempt for event in site.of(run_id, e.CallStarted) if event.call == "c2.0"]
    assert started == [1, 2]


def test_a_policy_judges_read_result_as_any_other_tool(site: Site) -> None:
    def no_reading(question: PolicyQuestion) -> PolicyAnswer:
        return "deny" if question.tool == "read_result" else "allow"

    host = site.open(
        [call("read_document"), reads_on_to_the_end, say("well")],
        [read_document],
        policy=Policy(no_reading, revision="r1"),
    )
    assert host.run().completed
    assert shown(host.model.recorded[2])["status"] == "error"


def test_an_applications_own_read_result_stands(site: Site) -> None:
    @tool(risk="read")
    async def read_result(handle: str) -> dict[str, str]:
        """The application's own."""
        return {"own": handle}

    host = site.open(
        [call("read_document"), call("read_result", {"handle": "x"}), say("own")],
        [read_document, read_result],
    )
    assert host.run().completed
    assert shown(host.model.recorded[2])["data"] == {"own": "x"}


def test_read_result_is_unknown_before_there_is_anything_to_read(site: Site) -> None:
    host = site.open([call("read_result", {"handle": "0" * 16}), say("no")], [measure])
    result = host.run()
    assert result.completed
    (rejected,) = site.of(result.run_id, e.CallRejected)
    assert (rejected.rung, rejected.code) == ("known", "unknown_tool")


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"handle": "../x"},
        {"handle": "0" * 15},
        {"handle": "0" * 16, "limit": 0},
        {"handle": "0" * 16, "offset": -1},
        {"handle": "0" * 16, "limit": 10**9},
    ],
)
def test_read_result_takes_only_what_its_schema_says(site: Site, arguments: dict[str, Any]) -> None:
    host = site.open([call("read_document"), call("read_result", arguments), say("no")], [read_document])
    result = host.run()
    (rejected,) = site.of(result.run_id, e.CallRejected)
    assert rejected.rung == "schema"


# --- compaction ----------------------------------------------------------------------------------------------------

TIGHT = Limits(
    cost="1", context_tokens=3_600, output_tokens_per_request=200, turns=40, turns_without_progress=40
)


def measuring(turns: int) -> list[Any]:
    return [*[call("measure", {"at": number}) for number in range(turns)], say("measured")]


def rebuilt(site: Site, run_id: str, request: ModelInput) -> PastRequest:
    async def look() -> PastRequest:
        records = await read_records(site.store, run_id)
        state = records[0].event
        assert isinstance(state, e.RunStarted)
        pins = {state.pins_sha256: await pins_of(site.store, state.pins_sha256)}
        return past_request(records, pins, request.turn, request.attempt)

    return asyncio.run(look())


def check_all_rebuilt(site: Site, host: Stepped, run_id: str) -> None:
    assert host.model.recorded
    for request in host.model.recorded:
        found = rebuilt(site, run_id, request)
        assert found.request == msgspec.structs.replace(request, items=tuple(request.items))
        assert found.intact


def test_a_long_run_goes_on_in_a_small_context_and_every_request_comes_out_of_the_log(site: Site) -> None:
    host = site.open(measuring(20), [measure])
    result = host.run(limits=TIGHT)
    assert result.completed
    assert len(site.of(result.run_id, e.ContextCompacted)) >= 2
    check_all_rebuilt(site, host, result.run_id)
    last = host.model.recorded[-1]
    text = "".join(item.text for item in last.items if isinstance(item, DigestItem))
    assert '"conditions":{"unit":"mm"}' in text


@pytest.mark.parametrize("before", [True, False])
def test_a_host_that_dies_at_a_compaction_leaves_nothing_behind(site: Site, before: bool) -> None:
    host = site.open(measuring(20), [measure])
    host.line.cut_at(has(e.ContextCompacted), before=before)
    run_id = host.start(limits=TIGHT)
    host.settle()
    host.crash()
    after = site.after_crash(host, [measure])
    result = after.rest(run_id)
    assert result.completed
    check_all_rebuilt(site, after, run_id)


def test_what_was_compacted_is_read_on_by_the_handle_of_its_digest(site: Site) -> None:
    def first_digest(request: ModelInput) -> Any:
        note = next(item for item in request.items if isinstance(item, DigestItem))
        line = json.loads(note.text.split("\n")[1])
        return call("read_result", {"handle": line["handle"], "limit": 600})

    host = site.open([*measuring(12)[:-1], first_digest, say("seen")], [measure])
    result = host.run(limits=TIGHT)
    assert result.completed
    data = shown(host.model.recorded[-1])["data"]
    assert data["text"].startswith('{"at":0,"trace":"ttt')
    assert data["next_offset"] == 600


# --- facts ---------------------------------------------------------------------------------------------------------


def test_facts_of_a_tool_come_from_its_whole_result(site: Site) -> None:
    host = site.open([call("read_document", {"name": "d7"}), say("read")], [read_document])
    result = host.run()
    (fact,) = site.of(result.run_id, e.FactRecorded)
    assert (fact.name, fact.value, fact.call) == ("document", b'"d7"', "c1.0")


def test_the_host_records_facts_in_a_run_that_waits(site: Site) -> None:
    @tool(risk="irreversible", key=("order",), far_side="keyed")
    async def refund(order: str) -> dict[str, str]:
        """Refund."""
        return {"refunded": order}

    host = site.open([call("refund", {"order": "1"}), say("done")], [refund])
    run_id = host.start()
    host.settle()
    host.rt.record_fact(run_id, "segment", "gold")
    host.settle()
    approval = host.rest(run_id).approvals[0]
    host.rt.approve(run_id, approval.approval_id, by="boss")
    result = host.rest(run_id)
    assert result.completed
    assert '"fact":"segment"' in host.model.recorded[-1].items[-1].text
    with pytest.raises(CommandRefused, match="run_ended"):
        host.rt.record_fact(run_id, "segment", "silver")
    with pytest.raises(CommandRefused, match="fact_value"):
        site.open([say("x")]).rt.record_fact(host.start(), "a", [1])  # type: ignore[arg-type]  # what is refused


def test_several_calls_of_one_turn_go_together(site: Site) -> None:
    turn = calls(*[call("measure", {"at": number}) for number in range(2)])
    more = [calls(*[call("measure", {"at": 10 * n + m}) for m in range(2)]) for n in range(1, 8)]
    host = site.open([turn, *more, say("measured")], [measure])
    result = host.run(limits=TIGHT)
    assert result.completed
    assert site.of(result.run_id, e.ContextCompacted)
    check_all_rebuilt(site, host, result.run_id)
