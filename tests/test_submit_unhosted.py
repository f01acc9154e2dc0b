"""Outside commands to runs that no host has: once, fenced, and a refusal changes nothing."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.written_runs import WrittenRun, approval_of, asking, finished, pins_for, unknown

from boundloop.eventstore.history import load_run
from boundloop.eventstore.location import open_store
from boundloop.eventstore.memory import MemoryStore
from boundloop.eventstore.port import HOST_VALID_MS, EventStore, HostRow, RunRow
from boundloop.eventstore.sqlite import SqliteStore
from boundloop.eventstore.submit import (
    decode_answer,
    encode_answer,
    host_for_one_command,
    submit_unhosted,
)
from boundloop.eventstore.verify import verify_run, verify_store
from boundloop.runtime.commands import (
    Approve,
    Cancel,
    Close,
    CommandAnswer,
    OutsideCommand,
    RaiseLimits,
    Reject,
    ResolveCall,
    Resume,
)
from boundloop.runtime.errors import HistoryRefused, LogDamaged, OwnedError, RunNotFound
from boundloop.runtime.events import ApprovalDecided, CallReconciled, RunResumed
from boundloop.runtime.index import run_index
from boundloop.runtime.limits import LimitValues

pytestmark = pytest.mark.asyncio


async def put(store: EventStore, run_id: str, command: OutsideCommand) -> CommandAnswer:
    async with host_for_one_command(store) as host_id:
        return await submit_unhosted(store, run_id, command, host_id=host_id)


async def row_of(store: EventStore, run_id: str) -> RunRow:
    row = await store.run(run_id)
    assert row is not None
    return row


async def test_an_approval_is_one_append_under_a_new_epoch_and_leaves_the_run_ready() -> None:
    store = MemoryStore()
    run = await asking(store, "r1")
    answer = await put(store, "r1", Approve(command_id="k1", by="os:ann@desk", approval_id=approval_of(run)))
    state, records = await load_run(store, "r1")
    assert answer.accepted
    assert [type(record.event) for record in records[-2:]] == [RunResumed, ApprovalDecided]
    assert (answer.seq, records[-1].seq) == (state.seq, state.seq)
    assert (records[-1].epoch, state.epoch) == (2, 2)
    row = await row_of(store, "r1")
    assert (row.owner, row.ready, row.index.status) == ("", True, "validating")
    assert await store.hosts() == []
    assert (await verify_run(store, "r1")).ok


async def test_the_same_command_again_is_the_same_answer_and_no_append() -> None:
    store = MemoryStore()
    run = await asking(store, "r1")
    command = Approve(command_id="k1", by="os:ann@desk", approval_id=approval_of(run))
    first = await put(store, "r1", command)
    row = await row_of(store, "r1")
    assert await put(store, "r1", command) == first
    assert await row_of(store, "r1") == row


async def test_a_refusal_changes_nothing_at_all() -> None:
    store = MemoryStore()
    await asking(store, "r1", pins=pins_for(separate_approver=True), principal="os:ann@desk")
    row = await row_of(store, "r1")
    state, _ = await load_run(store, "r1")
    call = state.calls["c1.0"]
    assert call.approval is not None
    answer = await put(
        store, "r1", Approve(command_id="k1", by="os:ann@desk", approval_id=call.approval.approval_id)
    )
    assert (answer.accepted, answer.code, answer.actor) == (False, "same_person", "caller")
    assert await row_of(store, "r1") == row


async def test_refusals_have_codes() -> None:
    store = MemoryStore()
    await finished(store, "r1")
    wanted: list[tuple[OutsideCommand, str]] = [
        (Cancel(command_id="a", by="x"), "run_ended"),
        (Resume(command_id="b", by="x"), "run_ended"),
        (Close(command_id="c", by="x"), "run_ended"),
        (Approve(command_id="d", by="x", approval_id="ap_0"), "approval_not_found"),
        (ResolveCall(command_id="e", by="x", call="c1.0", outcome="absent"), "not_unknown"),
        (RaiseLimits(command_id="f", by="x", raised={"turns": 99}), "run_ended"),
        (RaiseLimits(command_id="", by="x", raised={"turns": 99}), "command_id"),
    ]
    for command, code in wanted:
        assert (await put(store, "r1", command)).code == code


async def test_a_run_that_does_not_exist_is_not_found() -> None:
    with pytest.raises(RunNotFound):
        await put(MemoryStore(), "nobody", Cancel(command_id="a", by="x"))


async def test_the_id_of_a_reject_approves_nothing() -> None:
    store = MemoryStore()
    run = await asking(store, "r1")
    approval = approval_of(run)
    assert (await put(store, "r1", Reject(command_id="k1", by="x", approval_id=approval))).accepted
    row = await row_of(store, "r1")
    answer = await put(store, "r1", Approve(command_id="k1", by="x", approval_id=approval))
    assert (answer.accepted, answer.code) == (False, "command_id_reused")
    assert await row_of(store, "r1") == row


async def test_a_damaged_run_takes_no_command() -> None:
    store = MemoryStore()
    await asking(store, "r1")
    await store.mark_damaged("r1", "seq 3 to 4")
    with pytest.raises(HistoryRefused, match="seq 3 to 4"):
        await put(store, "r1", Cancel(command_id="a", by="x"))


async def test_a_live_host_is_named_and_a_dead_one_is_not_in_the_way() -> None:
    store = MemoryStore()
    run = await asking(store, "r1")
    await store.register_host(HostRow(host_id="h1", node="far", pid=4711, pid_start=1, boot_id="b"))
    await store.acquire("r1", "h1")
    command = Approve(command_id="k1", by="x", approval_id=approval_of(run))
    with pytest.raises(OwnedError, match="process 4711 on far"):
        await put(store, "r1", command)
    async with host_for_one_command(store) as host_id:
        answer = await submit_unhosted(store, "r1", command, host_id=host_id, dead_hosts=("h1",))
    assert answer.accepted
    state, _ = await load_run(store, "r1")
    assert state.counters.host_deaths == 1


@pytest.mark.parametrize(
    ("row", "spares", "cause", "deaths"),
    [
        ("expired", False, "host_died", 1),
        ("expired", True, "command", 0),
        ("found dead", False, "host_died", 1),
        ("found dead", True, "command", 0),
        ("given up", False, "command", 0),
    ],
)
async def test_a_host_whose_row_is_gone_counts_as_dead_unless_its_store_was_away_from_all(
    tmp_path: Path, row: str, spares: bool, cause: str, deaths: int
) -> None:
    now_ms = 1_700_000_000_000
    store = await open_store(f"sqlite:///{tmp_path}/runs.db", clock=lambda: now_ms)
    run = await asking(store, "r1")
    await store.register_host(HostRow(host_id="h1", node="far", pid=4711, pid_start=1, boot_id="b"))
    await store.acquire("r1", "h1")
    if row == "expired":
        now_ms += HOST_VALID_MS
    else:
        await store.drop_host("h1", died=row == "found dead")
    command = Approve(command_id="k1", by="x", approval_id=approval_of(run))
    async with host_for_one_command(store) as host_id:
        assert (await submit_unhosted(store, "r1", command, host_id=host_id, spares=spares)).accepted
    state, records = await load_run(store, "r1")
    (resumed,) = [record.event for record in records if isinstance(record.event, RunResumed)]
    assert (resumed.cause, state.counters.host_deaths) == (cause, deaths)
    await store.close()


async def test_an_append_of_the_epoch_before_is_refused() -> None:
    store = MemoryStore()
    run = await asking(store, "r1")
    assert (await put(store, "r1", Approve(command_id="k1", by="x", approval_id=approval_of(run)))).accepted
    run.put(Cancel(command_id="late", by="y"))
    with pytest.raises(AssertionError, match="Fenced"):
        await run.append()


async def test_fifty_people_approve_at_once_and_one_approval_is_on_record(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/runs.db")
    run = await asking(store, "r1")
    approval = approval_of(run)
    async with host_for_one_command(store) as host_id:
        answers = await asyncio.gather(
            *(
                submit_unhosted(
                    store,
                    "r1",
                    Approve(command_id=f"k{number}", by="x", approval_id=approval),
                    host_id=host_id,
                )
                for number in range(50)
            )
        )
    assert sum(answer.accepted for answer in answers) == 1
    assert {answer.code for answer in answers if not answer.accepted} == {"approval_used"}
    _, records = await load_run(store, "r1")
    assert sum(isinstance(record.event, ApprovalDecided) for record in records) == 1
    await store.close()


async def test_two_processes_worth_of_hosts_end_in_one_decision(tmp_path: Path) -> None:
    """Two host ids, as of two processes: the loser is told who has the run, or that the approval is used."""
    store = await open_store(f"sqlite:///{tmp_path}/runs.db")
    run = await asking(store, "r1")
    approval = approval_of(run)
    done = await asyncio.gather(
        *(put(store, "r1", Approve(command_id=f"k{n}", by="x", approval_id=approval)) for n in range(20)),
        return_exceptions=True,
    )
    accepted = [one for one in done if not isinstance(one, BaseException) and one.accepted]
    assert len(accepted) == 1
    for one in done:
        if isinstance(one, BaseException):
            assert isinstance(one, OwnedError)
        else:
            assert one.accepted or one.code == "approval_used"
    await store.close()


async def test_a_reject_frees_the_key_for_others() -> None:
    store = MemoryStore()
    run = await asking(store, "r1")
    key = run.state.calls["c1.0"].key
    assert key is not None
    answer = await put(
        store, "r1", Reject(command_id="k1", by="x", approval_id=approval_of(run), reason="no")
    )
    assert answer.accepted
    row = await store.ledger_row("default", key)
    assert row is not None
    assert row.status == "rejected"


async def test_an_unknown_effect_is_settled_by_a_person_in_log_and_ledger() -> None:
    store = MemoryStore()
    run = await unknown(store, "r1")
    key = run.state.calls["c1.0"].key
    assert key is not None
    answer = await put(
        store,
        "r1",
        ResolveCall(command_id="k1", by="x", call="c1.0", outcome="applied", result='{"ok": true}'),
    )
    assert answer.accepted
    row = await store.ledger_row("default", key)
    assert row is not None
    assert (row.status, row.result) == ("succeeded", b'{"ok":true}')
    assert (await row_of(store, "r1")).ready


async def test_an_unknown_effect_of_an_ended_run_can_still_be_settled() -> None:
    store = MemoryStore()
    run = await unknown(store, "r1")
    run.put(Close(command_id="c", by="x"))
    run.advance()
    await run.append()
    assert run.state.phase == "terminated"
    answer = await put(store, "r1", ResolveCall(command_id="k1", by="x", call="c1.0", outcome="absent"))
    assert answer.accepted
    state, records = await load_run(store, "r1")
    assert isinstance(records[-1].event, CallReconciled)
    assert not state.unknown_calls
    assert not (await row_of(store, "r1")).ready
    assert (await verify_run(store, "r1")).ok


async def test_raising_a_limit_of_a_stopped_run_does_not_wake_it() -> None:
    store = MemoryStore()
    run = await asking(store, "r1", pins=pins_for(LimitValues(cost_micros=0, turns=1)))
    await put(store, "r1", Reject(command_id="k1", by="x", approval_id=approval_of(run)))
    later, _ = await load_run(store, "r1")
    row = await row_of(store, "r1")
    assert row.ready
    run.state, run.head = later, row.head
    run.advance()
    await run.append(release=True)
    assert run.state.reason == "max_turns"
    assert (await put(store, "r1", Resume(command_id="k2", by="x"))).code == "max_turns"
    assert (await put(store, "r1", RaiseLimits(command_id="k3", by="x", raised={"turns": 9}))).accepted
    assert not (await row_of(store, "r1")).ready
    assert (await put(store, "r1", Resume(command_id="k4", by="x"))).accepted
    assert (await row_of(store, "r1")).ready


async def test_a_cancelled_caller_leaves_no_run_behind(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/runs.db")
    run = await asking(store, "r1")
    command = Approve(command_id="k1", by="x", approval_id=approval_of(run))
    for turns in range(12):
        task = asyncio.ensure_future(put(store, "r1", command))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert (await put(store, "r1", command)).accepted
    assert (await row_of(store, "r1")).owner == ""
    await store.close()


async def test_answers_travel() -> None:
    store = MemoryStore()
    run = await asking(store, "r1")
    answer = await put(store, "r1", Approve(command_id="k1", by="x", approval_id=approval_of(run)))
    assert decode_answer(encode_answer(answer)) == answer


async def closed_by(run: WrittenRun, store: EventStore, command: OutsideCommand) -> RunRow:
    """The run's row after an outside command while no host lives."""
    answer = await put(store, run.state.run_id, command)
    assert answer.accepted
    state, records = await load_run(store, run.state.run_id)
    row = await row_of(store, run.state.run_id)
    assert (row.seq, row.head) == (records[-1].seq, (await store.read(run.state.run_id))[-1].hash)
    assert row.index == run_index(state)
    assert (await verify_store(store)).ok
    return row


async def test_a_run_that_is_cancelled_while_no_host_lives_ends() -> None:
    store = MemoryStore()
    row = await closed_by(await asking(store, "r1"), store, Cancel(command_id="k", by="x"))
    assert (row.index.status, row.index.outcome, row.index.reason) == ("terminated", "cancelled", "by_user")
    assert (row.ready, row.owner, await store.ready_runs(), await store.ledger_rows()) == (False, "", [], [])


async def test_a_stopped_run_that_is_closed_while_no_host_lives_ends_as_it_stopped() -> None:
    store = MemoryStore()
    row = await closed_by(await unknown(store, "r1"), store, Close(command_id="k", by="x"))
    assert (row.index.status, row.index.reason, row.ready) == ("terminated", "outcome_unknown", False)
    assert [held.status for held in await store.unknown_effects()] == ["unknown"]


async def test_a_reject_that_stops_ends_the_run_while_no_host_lives() -> None:
    store = MemoryStore()
    run = await asking(store, "r1")
    reject = Reject(command_id="k", by="x", approval_id=approval_of(run), on_reject="stop")
    row = await closed_by(run, store, reject)
    assert (row.index.status, row.index.reason, row.ready) == ("terminated", "approval_denied", False)


async def test_a_reject_that_goes_on_leaves_the_rest_to_a_host() -> None:
    store = MemoryStore()
    run = await asking(store, "r1")
    row = await closed_by(run, store, Reject(command_id="k", by="x", approval_id=approval_of(run)))
    assert row.index.status != "terminated"
    assert await store.ready_runs() == ["r1"]


async def test_a_watcher_that_fails_takes_nothing_back() -> None:
    store = MemoryStore()
    await asking(store, "r1")

    def watch(*_: object) -> None:
        raise RuntimeError("watching is broken")

    async with host_for_one_command(store) as host_id:
        answer = await submit_unhosted(
            store, "r1", Cancel(command_id="k", by="x"), host_id=host_id, publish=watch
        )
    assert answer.accepted
    assert (await row_of(store, "r1")).index.status == "terminated"


async def test_a_log_that_isnt_what_its_row_says_is_marked_damaged(tmp_path: Path) -> None:
    """Found when a command is decided; what was altered while the file was closed is found when it is opened."""
    store = await SqliteStore.open(str(tmp_path / "runs.db"))
    await asking(store, "r1")
    altered = "UPDATE runs SET head = zeroblob(32)"
    await store._thread.submit(lambda: store._rows._connection().execute(altered), writes=True, light=False)
    with pytest.raises(LogDamaged):
        await put(store, "r1", Cancel(command_id="k", by="x"))
    assert "head" in (await row_of(store, "r1")).damaged
    assert await store.ready_runs() == []
    await store.close()
