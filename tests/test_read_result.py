"""``read_result``: every part at any size, and what a run's end, another shell and a stranger make of it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.stepped_runtime import Site, results_in

from boundloop.actors.read_back import whole_result
from boundloop.actors.reception import Inquiries
from boundloop.actors.rungs import RungsAsked
from boundloop.adapters.script import call, say
from boundloop.eventstore.submit import decode_answer
from boundloop.runtime import events as e
from boundloop.runtime.canonical import canonical_bytes
from boundloop.runtime.commands import RecordFact, encode_command
from boundloop.runtime.limits import Limits
from boundloop.runtime.policy import Policy
from boundloop.runtime.read_result import READ_RESULT, part_of
from boundloop.runtime.taint import Trust
from boundloop.runtime.tool_spec import tool
from boundloop.runtime.toolbox import Toolbox


@given(
    text=st.text(st.characters(codec="utf-8"), max_size=60),
    limit=st.integers(1, 40),
    view=st.integers(1, 400),
)
def test_the_parts_of_a_result_are_the_whole_of_it_at_any_size(text: str, limit: int, view: int) -> None:
    whole = canonical_bytes({"text": text})
    offset, read = 0, ""
    for _ in range(len(whole) + 1):
        part: dict[str, Any] = json.loads(part_of(whole, "0" * 16, offset, limit, view))
        assert part["bytes"] == len(whole)
        read += part["text"]
        if "next_offset" not in part:
            break
        assert part["next_offset"] > offset
        offset = part["next_offset"]
    assert read.encode() == whole


@given(text=st.text(st.characters(codec="utf-8"), max_size=40), offset=st.integers(0, 2**40))
def test_any_offset_is_answered(text: str, offset: int) -> None:
    whole = canonical_bytes(text)
    part: dict[str, Any] = json.loads(part_of(whole, "0" * 16, offset, 8, 10_000))
    assert part["text"].encode() in whole
    assert len(part["text"].encode()) <= 8


@tool(risk="read", result_bytes_max=400)
async def dump() -> str:
    """A long text."""
    return "x" * 5_000


def read_first(request: Any) -> Any:
    content = json.loads(results_in(request)[0].content)
    return call("read_result", {"handle": content["handle"]})


def test_a_run_that_is_cancelled_while_it_reads_binds_the_call_and_ends(site: Site) -> None:
    host = site.open([call("dump"), read_first, say("no")], [dump])
    gate = host.line.stall_at(
        lambda events: any(isinstance(it, e.CallStarted) and it.call == "c2.0" for it in events)
    )
    run_id = host.start()
    host.settle()
    cancelled = asyncio.run_coroutine_threadsafe(host.rt.aio.cancel(run_id), host.loop)
    host.settle()
    gate.open()
    cancelled.result(30.0)
    result = host.rest(run_id)
    assert (result.outcome, result.reason) == ("cancelled", "by_user")
    bound = [event for event in site.of(run_id, e.ResultBound) if event.call == "c2.0"]
    assert len(bound) == 1


def test_only_what_was_bound_can_be_read(site: Site) -> None:
    host = site.open([call("dump"), say("no")], [dump])
    first = host.run()
    (executed,) = site.of(first.run_id, e.CallExecuted)
    assert executed.artifact is not None
    assert executed.result_sha256 is not None
    whole = asyncio.run(whole_result(site.store, first.run_id, executed.artifact.hex()[:16]))
    assert whole == canonical_bytes("x" * 5_000)
    for handle in (executed.result_sha256.hex(), "", executed.artifact.hex() + "00"):
        assert asyncio.run(whole_result(site.store, first.run_id, handle)) is None
    second = site.open([say("nothing read")]).run()
    assert asyncio.run(whole_result(site.store, second.run_id, executed.artifact.hex())) is None


ran: Counter[str] = Counter()


@tool(risk="read", permissions=("admin",))
async def read_result(handle: str) -> str:
    """The application's own, for admins."""
    ran["own"] += 1
    return "secret"


@tool(risk="read", name="read_result", permissions=("admin",), params=READ_RESULT.parameters)
async def of_the_same_arguments(handle: str, offset: int = 0, limit: int = 4096) -> str:
    """The application's own, for admins."""
    ran["own"] += 1
    return "secret"


OWN = pytest.mark.parametrize("own", [read_result, of_the_same_arguments], ids=["other", "same arguments"])


@OWN
@pytest.mark.parametrize("inline", [True, False], ids=["in the loop", "beside it"])
@pytest.mark.parametrize("why", ["not asked for", "not permitted"])
def test_an_applications_own_tool_of_that_name_is_out_of_reach_of_a_run_without_it(
    site: Site, own: Any, inline: bool, why: str
) -> None:
    ran.clear()
    permitted: dict[str, Any] = {"permissions": ("admin",)} if why == "not asked for" else {}
    subset: dict[str, Any] = {"tools": ("dump",)} if why == "not asked for" else {}
    host = site.open(
        [call("dump"), read_first, say("done")], [dump, own], policy=Policy(inline=inline), **permitted
    )
    result = host.run(**subset)
    assert [event.code for event in site.of(result.run_id, e.CallRejected)] == []
    assert ran["own"] == 0
    assert result.completed
    part = json.loads(results_in(host.model.recorded[-1])[-1].content)["data"]
    assert "xxx" in part["text"]


@OWN
def test_an_applications_own_tool_of_that_name_is_what_a_run_with_it_calls(site: Site, own: Any) -> None:
    ran.clear()
    script = [call("dump"), read_first, say("done")]
    host = site.open(script, [dump, own], permissions=("admin",))
    assert host.run().completed
    assert ran["own"] == 1


@OWN
def test_an_executor_that_has_another_tool_of_that_name_answers_for_the_built_in(own: Any) -> None:
    asked = RungsAsked(
        tool=READ_RESULT.name,
        definition_sha256=READ_RESULT.definition_sha256,
        risk="read",
        approval="policy",
        permissions=(),
        cost_micros=0,
        acts=False,
        asked_before=False,
        arguments=b"{}",
        tenant="t",
        principal="p",
        operation_id="o",
        tool_calls=0,
    )
    here = Inquiries(Toolbox([own]), Policy(), lambda tenant, principal: frozenset())
    assert not here.rungs(asked).refused
    other = here.rungs(msgspec.structs.replace(asked, definition_sha256=bytes(32)))
    assert [verdict.code for verdict in other.verdicts] == ["definition_differs"]


@pytest.mark.parametrize("times", [1, 2])
def test_a_fact_from_another_shell_is_recorded_once(site: Site, times: int) -> None:
    @tool(risk="irreversible", key=("order",), far_side="keyed")
    async def refund(order: str) -> str:
        """Refund."""
        return order

    host = site.open([call("refund", {"order": "1"}), say("done")], [refund])
    run_id = host.start(limits=Limits(cost="1"))
    host.settle()
    host.crash()
    after = site.after_crash(host, [refund])
    command = RecordFact(command_id="f1", by="shop", name="segment", value='"gold"')
    for _ in range(times):
        answer = after.on_loop(_submitted(after, run_id, command))
        assert answer.accepted
    (fact,) = site.of(run_id, e.FactRecorded)
    assert (fact.name, fact.by, fact.call) == ("segment", "shop", "")
    approval = after.rest(run_id).approvals[0]
    after.rt.approve(run_id, approval.approval_id, by="boss")
    assert after.rest(run_id).completed
    assert after.state(run_id).facts["segment"].value == b'"gold"'


async def _submitted(host: Any, run_id: str, command: RecordFact) -> Any:
    answer = await host.site.store.submit(run_id, command.command_id, encode_command(command))
    return decode_answer(answer)


def test_a_handle_that_names_two_results_finds_neither(site: Site) -> None:
    @tool(risk="read")
    async def number(of: int) -> int:
        """One more."""
        return of + 1

    host = site.open([*(call("number", {"of": of}) for of in range(20)), say("counted")], [number])
    run_id = host.run().run_id
    digests = [done.result_sha256.hex() for done in site.of(run_id, e.CallExecuted) if done.result_sha256]
    firsts = [digest[0] for digest in digests]
    shared = next(first for first in firsts if firsts.count(first) > 1)  # 20 hashes, 16 digits
    assert asyncio.run(whole_result(site.store, run_id, shared)) is None
    assert asyncio.run(whole_result(site.store, run_id, digests[0])) == b"1"


@pytest.mark.parametrize(
    ("trust", "tainted"), [("trusted", []), ("untrusted", ["dump"]), ("undeclared", ["dump"])]
)
def test_reading_on_taints_no_more_than_the_result_did(site: Site, trust: Trust, tainted: list[str]) -> None:
    @tool(risk="read", result_bytes_max=400, trust=trust)
    async def dump() -> str:
        """A long text."""
        return "x" * 5_000

    host = site.open([call("dump"), read_first, say("read")], [dump])
    result = host.run()
    assert [done.outcome for done in site.of(result.run_id, e.CallExecuted)] == ["succeeded"] * 2
    assert [source.tool for source in host.state(result.run_id).untrusted] == tainted
