"""What the log alone says: how a run stopped, where it left the straight path, what a person is asked."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from tests.written_runs import WrittenRun, approval_of, asking, finished, pins_for, unknown

from boundloop.eventstore.deviation import BY_RUNG, CLASSES
from boundloop.eventstore.event_line import event_line
from boundloop.eventstore.forensics import Why, timeline, why
from boundloop.eventstore.history import fold_to, load_run
from boundloop.eventstore.inbox import find_asking, gather_inbox
from boundloop.eventstore.memory import MemoryStore
from boundloop.runtime.commands import Approve, Cancel, Close, Reject
from boundloop.runtime.errors import CallerError, HistoryRefused, LogDamaged, RunNotFound
from boundloop.runtime.events import EVENT_TYPES, MessageReceived, Rung, RungVerdict
from boundloop.runtime.goal import Goal
from boundloop.runtime.limits import LimitValues
from boundloop.runtime.state import state_digest

pytestmark = pytest.mark.asyncio


async def asked_why(store: MemoryStore, run_id: str) -> Why:
    state, records = await load_run(store, run_id)
    return why(state, records)


async def test_a_history_folds_to_the_state_its_writer_had() -> None:
    store = MemoryStore()
    run = await finished(store, "r1")
    state, records = await load_run(store, "r1")
    assert state_digest(state) == state_digest(run.state)
    assert [record.seq for record in records] == list(range(1, run.state.seq + 1))


async def test_every_seq_can_be_replayed_and_no_other() -> None:
    store = MemoryStore()
    run = await finished(store, "r1")
    for seq in range(1, run.state.seq + 1):
        state, records = await fold_to(store, "r1", seq)
        assert (state.seq, len(records)) == (seq, seq)
    for seq in (0, -1, run.state.seq + 1):
        with pytest.raises(CallerError, match="seq_range"):
            await fold_to(store, "r1", seq)
    with pytest.raises(RunNotFound):
        await load_run(store, "r2")


async def test_a_history_without_its_pins_is_refused() -> None:
    store = MemoryStore()
    await finished(store, "r1", pins=pins_for(LimitValues(cost_micros=0, turns=49)))
    store._blobs.clear()  # pyright: ignore[reportPrivateUsage]  # the blob is lost
    with pytest.raises(HistoryRefused, match="pins_missing"):
        await load_run(store, "r1")


async def test_a_log_with_a_row_missing_is_refused() -> None:
    store = MemoryStore()
    await finished(store, "r1")
    del store._runs["r1"].log[2]  # pyright: ignore[reportPrivateUsage]  # a row is lost
    with pytest.raises((HistoryRefused, LogDamaged)):
        await load_run(store, "r1")


async def test_events_that_can_not_follow_are_refused_by_seq() -> None:
    store = MemoryStore()
    run = await finished(store, "r1")
    run.events = [MessageReceived("user", "still there?")]
    run.state.seq += 1
    await run.append()
    with pytest.raises(HistoryRefused, match=f"seq {run.state.seq} can't follow"):
        await load_run(store, "r1")


async def test_every_event_has_a_bounded_line() -> None:
    store = MemoryStore()
    await finished(store, "r1", text="x" * 5_000)
    _, records = await load_run(store, "r1")
    lines = list(timeline(records, text_chars_max=40))
    assert [line.seq for line in lines] == [record.seq for record in records]
    assert max(len(line.text) for line in lines) == 40
    assert all(line.after_ms >= 0 for line in lines)


async def test_no_event_type_is_without_words() -> None:
    store = MemoryStore()
    run = await asking(store, "r1")
    run.put(Reject(command_id="k", by="os:ann@desk", approval_id=approval_of(run)))
    run.advance()
    await run.append()
    await unknown(store, "r2")
    seen: set[type] = set()
    for run_id in ("r1", "r2"):
        _, records = await load_run(store, run_id)
        for record in records:
            seen.add(type(record.event))
            _, text = event_line(record.event, 100)
            assert text, record.tag
    assert seen <= set(EVENT_TYPES)
    assert len(seen) >= 12


# --- why ---------------------------------------------------------------------------------------------------------


async def test_a_run_without_trouble_has_no_deviation_and_nothing_to_type() -> None:
    store = MemoryStore()
    await finished(store, "r1")
    found = await asked_why(store, "r1")
    assert (found.outcome, found.reason, found.resumable) == ("completed", "final", False)
    assert (found.deviations, found.waits, found.unknown_effects, found.next_commands) == ((), (), (), ())
    spent = {row.name: row.spent for row in found.spend}
    assert (spent["turns"], spent["tool_calls"], spent["input_tokens"]) == (2, 1, 200)


async def test_a_run_that_asks_names_the_person_and_the_command() -> None:
    store = MemoryStore()
    run = await asking(store, "r1")
    found = await asked_why(store, "r1")
    [wait] = found.waits
    approval = approval_of(run)
    assert (wait.on, wait.call) == ("person", "c1.0")
    assert approval in wait.what
    assert wait.until_ms > wait.since_ms > 0
    assert found.next_commands[0] == f"boundloop approve {approval}"
    assert found.deviations == ()


async def test_an_unknown_effect_is_told_with_both_ways_out() -> None:
    store = MemoryStore()
    await unknown(store, "r1")
    found = await asked_why(store, "r1")
    assert (found.reason, found.resumable) == ("outcome_unknown", True)
    [effect] = found.unknown_effects
    assert (effect.call, effect.tool, effect.for_person) == ("c1.0", "refund", True)
    assert found.deviations[0].kind == "execution"
    assert found.deviations[0].code == "timeout"
    assert found.next_commands == (
        "boundloop call resolve r1 c1.0 --applied JSON",
        "boundloop call resolve r1 c1.0 --absent",
        "boundloop close r1",
    )


async def test_a_stop_at_a_limit_says_what_to_raise() -> None:
    store = MemoryStore()
    run = await WrittenRun.start(store, "r1", pins=pins_for(LimitValues(cost_micros=0, turns=1)))
    await run.replies(calls=[("get_order", {"order_id": "A1"})])
    await run.checks()
    await run.executes({"state": "shipped"})
    found = await asked_why(store, "r1")
    assert found.reason == "max_turns"
    assert found.deviations[0].kind == "termination"
    assert found.next_commands == (
        "boundloop limits raise r1 turns=N",
        "boundloop resume r1",
        "boundloop close r1",
    )


async def test_a_run_behind_a_key_leads_to_its_holder() -> None:
    store = MemoryStore()
    await asking(store, "r1", operation_id="one")
    later = await WrittenRun.start(store, "r2", operation_id="one")
    await later.replies(calls=[("refund", {"order_id": "A1042", "cents": 500})])
    held = later.state.calls["c1.0"]
    row = await store.ledger_row("default", _key_of(later))
    assert row is not None
    await later.checks(row=row)
    assert held.phase == "waiting_key"
    found = await asked_why(store, "r2")
    assert [(wait.on, wait.call) for wait in found.waits] == [("key", "c1.0")]
    assert found.next_commands == ("boundloop why r1",)


def _key_of(run: WrittenRun) -> bytes:
    definition = run.state.tools["refund"]
    key = definition.key_of("default", "one", "r2/c1.0", {"order_id": "A1042", "cents": 500})
    assert key is not None
    return key


async def deviating(kind: str) -> WrittenRun:
    """A run whose first deviation is of this kind."""
    store = MemoryStore()
    if kind == "approval":
        run = await asking(store, "r1")
        run.put(Reject(command_id="k", by="x", approval_id=approval_of(run), reason="no"))
        run.advance()
        await run.append()
        return run
    goal = Goal.of("refund") if kind == "termination" else None
    run = await WrittenRun.start(store, "r1", pins=pins_for(goal=goal))
    calls: dict[str, tuple[str, object]] = {
        "choice": ("drop_tables", {}),
        "schema": ("get_order", {"order": 1}),
    }
    if kind == "model":
        await run.replies(finish="refused")
    elif kind == "context":
        await run.replies(finish="context_exceeded")
    elif kind == "termination":
        await run.replies(text="Done.")
    else:
        await run.replies(calls=[calls.get(kind, ("get_order", {"order_id": "A1"}))])
        rungs: dict[str, Rung] = {"semantic": "check", "authorisation": "policy"}
        rung = rungs.get(kind)
        await run.checks(deny=None if rung is None else RungVerdict(rung, "deny", "no"))
        if kind == "execution":
            await run.executes(outcome="failed", code="far_side", message="no")
        elif kind == "result":
            await run.executes(outcome="failed", code="output_invalid", message="no")
    return run


@pytest.mark.parametrize("kind", CLASSES)
async def test_each_class_of_deviation_is_found_first(kind: str) -> None:
    run = await deviating(kind)
    state, records = await load_run(run.store, "r1")
    assert why(state, records).deviations[0].kind == kind


async def test_every_rung_has_a_class() -> None:
    assert set(BY_RUNG.values()) <= set(CLASSES)
    assert set(BY_RUNG) == set(get_args(Rung))


async def test_a_cancelled_run_names_the_end_as_its_deviation() -> None:
    store = MemoryStore()
    run = await asking(store, "r1")
    run.put(Cancel(command_id="k", by="x"))
    run.advance()
    await run.append()
    found = await asked_why(store, "r1")
    assert (found.outcome, found.reason) == ("cancelled", "by_user")
    assert found.deviations[0].kind == "termination"


# --- the inbox ---------------------------------------------------------------------------------------------------


async def test_the_inbox_shows_real_arguments_and_the_preview() -> None:
    store = MemoryStore()
    await asking(store, "r1", tenant="t1")
    await asking(store, "r2", tenant="t2")
    await unknown(store, "r3", tenant="t1")
    everything = await gather_inbox(store)
    assert [(row.run_id, row.kind) for row in everything.rows] == [
        ("r1", "approval"),
        ("r2", "approval"),
        ("r3", "unknown"),
    ]
    assert json.loads(everything.rows[0].preview) == {"pays": "5.00", "reason": "late"}
    assert json.loads(everything.rows[0].arguments)["cents"] == 500
    assert [row.run_id for row in (await gather_inbox(store, tenant="t1")).rows] == ["r1", "r3"]
    assert [row.run_id for row in (await gather_inbox(store, root_id="r2")).rows] == ["r2"]
    assert (await gather_inbox(store, limit=2)).truncated


async def test_the_inbox_shows_the_oldest_whatever_their_runs_are_called() -> None:
    now = [1_000]
    store = MemoryStore(clock=lambda: now[0])
    order: list[str] = []
    for number in range(9, 0, -1):
        now[0] += 1_000
        order.append(f"r{number}")
        await (unknown if number % 3 == 0 else asking)(store, order[-1])
    for limit in range(1, 10):
        found = await gather_inbox(store, limit=limit)
        assert [row.run_id for row in found.rows] == order[:limit]
        assert found.truncated == (limit < 9)


async def test_what_an_old_run_asked_late_stands_behind_what_a_younger_one_asked_before() -> None:
    now = [1_000]
    store = MemoryStore(clock=lambda: now[0])
    old = await WrittenRun.start(store, "old")
    now[0] += 1_000
    await asking(store, "young")
    now[0] += 1_000
    await old.replies(calls=[("refund", {"order_id": "A1", "cents": 1})])
    await old.checks(ask=True, preview={})
    now[0] += 1_000
    await asking(store, "last")
    assert [row.run_id for row in (await gather_inbox(store, limit=1)).rows] == ["young"]
    assert [row.run_id for row in (await gather_inbox(store, limit=2)).rows] == ["young", "old"]


async def test_a_page_of_the_inbox_goes_on_behind_the_place_where_the_last_one_ended() -> None:
    now = [1_000]
    store = MemoryStore(clock=lambda: now[0])
    runs: list[WrittenRun] = []
    for number in range(6):
        now[0] += 1_000 * (number % 2)  # two of a time
        runs.append(await asking(store, f"r{number}"))
    page = await gather_inbox(store, limit=3)
    assert [row.run_id for row in page.rows] == ["r0", "r1", "r2"]
    # What is decided meanwhile, the row that the page ended with among it, moves nothing.
    for decided in (runs[0], runs[2], runs[4]):
        now[0] += 1_000
        decided.put(Cancel(command_id="k", by="os:me@here"))
        await decided.append()
    rest = await gather_inbox(store, limit=3, after=page.after)
    assert ([row.run_id for row in rest.rows], rest.truncated, rest.after) == (["r3", "r5"], False, "")
    for wrong in ("1", "x/c/r", "1/c/", "-1/c/r", "\u0661/c/r"):
        with pytest.raises(CallerError, match="bad_cursor"):
            await gather_inbox(store, after=wrong)


async def test_runs_that_are_younger_than_all_that_is_shown_are_not_read() -> None:
    now = [1_000]
    store = MemoryStore(clock=lambda: now[0])
    for number in range(6):
        now[0] += 1_000
        await asking(store, f"r{number}")
    store._runs["r5"].log[0] = store._runs["r0"].log[1]  # pyright: ignore[reportPrivateUsage]  # a damaged row
    assert (await gather_inbox(store, limit=2)).unread == ()
    assert [run_id for run_id, _ in (await gather_inbox(store)).unread] == ["r5"]


async def test_an_unknown_effect_of_an_ended_run_stays_in_the_inbox() -> None:
    store = MemoryStore()
    run = await unknown(store, "r1")
    run.put(Close(command_id="k", by="x"))
    run.advance()
    await run.append()
    assert run.state.phase == "terminated"
    [row] = (await gather_inbox(store)).rows
    assert (row.run_id, row.call) == ("r1", "c1.0")


async def test_a_decided_approval_leaves_the_inbox() -> None:
    store = MemoryStore()
    run = await asking(store, "r1")
    approval = approval_of(run)
    assert await find_asking(store, approval) == "r1"
    run.put(Approve(command_id="k", by="x", approval_id=approval))
    await run.append()
    assert (await gather_inbox(store)).rows == ()
    assert await find_asking(store, approval) is None


async def test_two_approvals_of_one_run_are_both_found() -> None:
    store = MemoryStore()
    run = await WrittenRun.start(store, "r1")
    await run.replies(
        calls=[("refund", {"order_id": "A1", "cents": 1}), ("refund", {"order_id": "A2", "cents": 2})]
    )
    await run.checks(ask=True, preview={})
    rows = (await gather_inbox(store)).rows
    assert {row.call for row in rows} == {"c1.0", "c1.1"}
    for row in rows:
        assert await find_asking(store, row.approval_id) == "r1"
    assert await find_asking(store, "ap_") is None


async def test_a_run_that_can_not_be_read_does_not_hide_the_others() -> None:
    store = MemoryStore()
    await asking(store, "r1")
    await asking(store, "r2")
    store._runs["r1"].log[0] = store._runs["r2"].log[1]  # pyright: ignore[reportPrivateUsage]  # a damaged row
    found = await gather_inbox(store)
    assert [row.run_id for row in found.rows] == ["r2"]
    assert [run_id for run_id, _ in found.unread] == ["r1"]
