"""What changes between two reads of the store, and what is left once the last thing that was out is given up."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from typing import Any

from tests.stepped_runtime import Site, Stepped, has
from tests.tree_play import Play, child_runs

from boundloop.adapters.script import ScriptedTurn, call, say
from boundloop.eventstore.codec import decode_events
from boundloop.eventstore.port import Append, AppendAnswer
from boundloop.eventstore.submit import host_for_one_command, submit_unhosted
from boundloop.runtime import Limits, agent, tool
from boundloop.runtime import events as e
from boundloop.runtime.commands import Reject
from boundloop.runtime.errors import StoreError


@tool(risk="write", key="call", approval="always")
async def pay(n: int) -> dict[str, int]:
    """Pay."""
    return {"n": n}


ASKS = [call("pay", {"n": 1}), say("done")]
patient = agent(name="patient", description="Waits when it stops.", system="patient", on_stop="suspend")


def inner(host: Stepped) -> Any:
    return host.rt._embedded.host_of()


def between_row_and_log(site: Site, run_id: str, happens: Any) -> None:
    """Once, after the run's row was read and before its log is."""
    read = site.store.read
    done: list[bool] = []

    async def reads(wanted: str, **options: Any) -> Any:
        if (
            wanted == run_id and options.get("rows_max") != 1 and not done
        ):  # one row alone is read before the run is taken
            done.append(True)
            await happens()
        return await read(wanted, **options)

    site.store.read = reads  # type: ignore[method-assign,assignment]  # the store is the test's own


def test_a_run_that_another_host_takes_between_two_reads_is_not_damaged(site: Site) -> None:
    """A host that was taken for dead takes a run up, and is itself overtaken before it has read the log."""
    first = site.open(ASKS, [pay])
    waits = first.run(limits=Limits(cost="1"))
    run_id, approval = waits.run_id, waits.approvals[0].approval_id
    host = inner(first)

    async def overtaken() -> None:
        await site.store.drop_host(host.host_id, died=True)
        command = Reject(command_id="c", by="boss", approval_id=approval)
        async with host_for_one_command(site.store) as host_id:
            assert (await submit_unhosted(site.store, run_id, command, host_id=host_id)).accepted

    between_row_and_log(site, run_id, overtaken)
    assert first.on_loop(host.take_up(run_id)) is False
    row = asyncio.run(site.store.run(run_id))
    assert row is not None
    assert not row.damaged


def test_an_append_that_lands_while_its_run_is_read_again_damages_nothing(site: Site) -> None:
    """The store gave an append up for lost, and made it between the reads that were to tell."""
    host = site.open(ASKS, [pay])
    append, wanted = site.store.append, has(e.ModelResponded)
    late: list[Append] = []

    async def appends(request: Append) -> AppendAnswer:
        if not late and wanted(decode_events(request.body)):
            late.append(request)

            async def lands() -> None:
                await append(request)

            between_row_and_log(site, request.run_id, lands)
            raise StoreError("timeout", "no answer")
        return await append(request)

    site.store.append = appends  # type: ignore[method-assign]  # the store is the test's own
    run_id = host.start()
    host.advance(2_000)
    row = asyncio.run(site.store.run(run_id))
    assert row is not None
    assert late
    assert (row.damaged, row.index.waiting_for.partition(":")[0]) == ("", "approval")


def test_a_stopped_run_is_let_go_when_the_last_that_was_out_is_given_up(site: Site) -> None:
    """The child ends while its cancel is still to be answered: the answer is no reason to stay, nor does it ring."""
    play = Play(
        {"": [call("patient", {"input": "x"}), say("done")], "patient": [ScriptedTurn(finish="truncated")]}
    )
    host = site.open(play.model, [patient])
    submit = site.store.submit

    async def answers_late(run_id: str, command_id: str, command: bytes) -> bytes:
        answer = await submit(run_id, command_id, command)
        later = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(1, later.set_result, None)
        await later
        return answer

    site.store.submit = answers_late  # type: ignore[method-assign]  # the store is the test's own
    run_id = host.start(limits=Limits(cost="1", deadline_s=30))
    host.advance(120_000)
    assert len(child_runs(site, run_id)) == 1
    row = asyncio.run(site.store.run(run_id))
    assert row is not None
    assert (row.index.status, row.index.reason, row.owner) == ("suspended", "deadline", "")


def test_a_command_is_answered_with_the_seq_of_its_own_event(site: Site) -> None:
    """Others follow from a reject in the same step; asked again it has the same answer."""
    host = site.open([call("pay", {"n": 1}), say("done")], [pay])
    result = host.run()
    command = Reject(command_id="c", by="boss", approval_id=result.approvals[0].approval_id)

    async def twice() -> tuple[Any, Any]:
        held = inner(host)
        assert await held.take_up(result.run_id)
        return await held.submit(result.run_id, command), await held.submit(result.run_id, command)

    first, second = host.on_loop(twice())
    decided = [
        seq for seq, event in enumerate(site.events(result.run_id), 1) if isinstance(event, e.ApprovalDecided)
    ]
    assert [first.seq, second.seq] == decided * 2
