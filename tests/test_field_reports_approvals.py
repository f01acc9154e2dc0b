"""What people report about approvals: used twice, used for something else, used too late, lost on a restart."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.stepped_runtime import STUCK_S, Site, has, results_in

from boundloop.actors.client import CommandRefused, Runtime
from boundloop.adapters.script import call, calls, say
from boundloop.adapters.scripted import Gate, ScriptedModel
from boundloop.runtime import events as e
from boundloop.runtime.commands import Approve, CommandAnswer, Reject
from boundloop.runtime.errors import BoundloopError
from boundloop.runtime.limits import Limits
from boundloop.runtime.policy import Policy
from boundloop.runtime.tool_spec import tool

HOUR_MS = 3_600_000


class Bank:
    """Pays, and counts what it paid."""

    def __init__(self) -> None:
        self.paid: Counter[tuple[str, int]] = Counter()
        self.version = "1"

    def version_of(self, arguments: dict[str, Any]) -> str:
        return self.version

    def tools(self, *, description: str = "Pay an order out.", **options: Any) -> list[Any]:
        async def pay(order: str, amount: int) -> dict[str, Any]:
            self.paid[order, amount] += 1
            return {"paid": amount}

        declare = tool(
            risk="irreversible",
            key=("order",),
            far_side="keyed",
            description=description,
            version_of=self.version_of,
            **options,
        )
        return [declare(pay)]


def asks(amount: int = 10) -> list[Any]:
    return [call("pay", {"order": "1", "amount": amount}), say("paid")]


# F26
def test_fifty_approvals_at_once_are_one_decision_and_one_execution(site: Site) -> None:
    bank = Bank()
    host = site.open(asks(), bank.tools())
    run_id = host.start()
    (waiting,) = host.rest(run_id).approvals

    async def approve_all() -> list[CommandAnswer]:
        commands = [
            Approve(command_id=f"tab-{number}", by=f"person-{number}", approval_id=waiting.approval_id)
            for number in range(50)
        ]
        return await asyncio.gather(*(host.rt.aio.submit(run_id, command) for command in commands))

    answers = asyncio.run(asyncio.wait_for(approve_all(), STUCK_S))
    assert sum(answer.accepted for answer in answers) == 1
    assert {answer.code for answer in answers if not answer.accepted} <= {
        "approval_used",
        "approval_not_found",
    }
    assert host.rest(run_id).completed
    assert bank.paid == {("1", 10): 1}


# F26
def test_one_command_that_is_sent_fifty_times_is_accepted_each_time_and_executed_once(site: Site) -> None:
    bank = Bank()
    host = site.open(asks(), bank.tools())
    run_id = host.start()
    (waiting,) = host.rest(run_id).approvals
    command = Approve(command_id="one click", by="bob", approval_id=waiting.approval_id)

    async def approve_all() -> list[CommandAnswer]:
        return await asyncio.gather(*(host.rt.aio.submit(run_id, command) for _ in range(50)))

    answers = asyncio.run(asyncio.wait_for(approve_all(), STUCK_S))
    assert all(answer.accepted for answer in answers)
    assert len({answer.seq for answer in answers}) == 1
    assert host.rest(run_id).completed
    assert bank.paid == {("1", 10): 1}


# F28
def test_what_was_approved_for_one_amount_is_not_paid_for_another(site: Site) -> None:
    bank = Bank()
    host = site.open(
        [
            call("pay", {"order": "1", "amount": 10}),
            call("pay", {"order": "1", "amount": 999_999}),
            say("paid"),
        ],
        bank.tools(),
    )
    run_id = host.start()
    (waiting,) = host.rest(run_id).approvals
    assert json.loads(waiting.preview)["arguments"] == {"order": "1", "amount": 10}
    host.rt.approve(run_id, waiting.approval_id, by="bob")
    assert host.rest(run_id).completed
    assert bank.paid == {("1", 10): 1}
    assert [bound.code for bound in site.of(run_id, e.ResultBound)] == ["", "idempotency_conflict"]


# H56
def test_an_approval_is_of_no_use_for_a_second_call(site: Site) -> None:
    bank = Bank()
    host = site.open(
        [call("pay", {"order": "1", "amount": 10}), call("pay", {"order": "2", "amount": 10}), say("paid")],
        bank.tools(),
    )
    run_id = host.start()
    (first,) = host.rest(run_id).approvals
    host.rt.approve(run_id, first.approval_id, by="bob")
    (second,) = host.rest(run_id).approvals
    assert second.approval_id != first.approval_id
    with pytest.raises(CommandRefused) as refused:
        host.rt.approve(run_id, first.approval_id, by="bob")
    assert refused.value.code in ("approval_used", "approval_not_found")
    assert host.rest(run_id).waiting_for == f"approval:{second.approval_id}"
    assert bank.paid == {("1", 10): 1}


# F30
def test_an_approval_under_an_older_policy_is_stale_and_asked_for_anew(site: Site) -> None:
    bank = Bank()
    policy = Policy(revision="rules-1")
    host = site.open(asks(), bank.tools(), policy=policy)
    run_id = host.start()
    (first,) = host.rest(run_id).approvals
    policy.revision = "rules-2"
    host.rt.approve(run_id, first.approval_id, by="bob")
    (second,) = host.rest(run_id).approvals
    assert second.approval_id != first.approval_id
    assert bank.paid == {}
    assert [(lapsed.why, lapsed.what) for lapsed in site.of(run_id, e.ApprovalLapsed)] == [
        ("stale", "policy")
    ]
    host.rt.approve(run_id, second.approval_id, by="bob")
    assert host.rest(run_id).completed
    assert bank.paid == {("1", 10): 1}


# F30
def test_a_resource_that_changed_since_the_preview_makes_the_approval_stale(site: Site) -> None:
    bank = Bank()
    host = site.open(asks(), bank.tools())
    run_id = host.start()
    for number in ("2", "3", "4"):
        (waiting,) = host.rest(run_id).approvals
        bank.version = number
        host.rt.approve(run_id, waiting.approval_id, by="bob")
    result = host.rest(run_id)
    assert bank.paid == {}
    assert result.completed
    (bound,) = results_in(host.model.recorded[-1])
    assert b"approval_stale" in bound.content
    assert [lapsed.what for lapsed in site.of(run_id, e.ApprovalLapsed)] == ["resource_version"] * 3


# F30
def test_a_tool_whose_description_changed_meanwhile_is_asked_for_anew(site: Site) -> None:
    bank = Bank()
    first = site.open(asks(), bank.tools())
    run_id = first.start()
    (before,) = first.rest(run_id).approvals
    first.close()
    second = site.open(first.model, bank.tools(description="Pay an order out, and tell the customer."))
    second.rt.approve(run_id, before.approval_id, by="bob")
    (after,) = second.rest(run_id).approvals
    assert (after.approval_id != before.approval_id, bank.paid) == (True, {})
    assert site.of(run_id, e.ApprovalLapsed)[0].what == "definition"


# F31, H59
def test_an_approval_after_its_time_is_refused(site: Site) -> None:
    bank = Bank()
    host = site.open(asks(), bank.tools())
    run_id = host.start(limits=Limits(cost="1", approval_ms=HOUR_MS, deadline_s=86_400))
    (waiting,) = host.rest(run_id).approvals
    host.advance(HOUR_MS)
    with pytest.raises(CommandRefused) as refused:
        host.rt.approve(run_id, waiting.approval_id, by="bob")
    assert refused.value.code in ("approval_expired", "approval_not_found", "approval_used")
    assert host.rest(run_id).completed
    assert bank.paid == {}
    assert [bound.code for bound in site.of(run_id, e.ResultBound)] == ["approval_expired"]


# F31, H59
def test_an_approval_in_time_whose_commit_is_late_is_not_executed(site: Site) -> None:
    bank = Bank()
    gate = Gate("other work")

    @tool(risk="read", timeout_ms=600_000)
    async def slow() -> dict[str, Any]:
        """Hold the turn up."""
        await gate.passed()
        return {}

    host = site.open(
        [calls(call("slow"), call("pay", {"order": "1", "amount": 10})), say("paid")], [slow, *bank.tools()]
    )
    run_id = host.start(limits=Limits(cost="1", approval_ms=60_000, deadline_s=86_400))
    assert gate.wait_reached(10)
    host.settle()
    (approval_id,) = [event.approval_id for event in site.of(run_id, e.ApprovalRequested)]
    host.rt.approve(run_id, approval_id, by="bob")
    host.advance(60_000)
    gate.open()
    assert host.rest(run_id).completed
    assert bank.paid == {}
    assert [lapsed.why for lapsed in site.of(run_id, e.ApprovalLapsed)] == ["expired"]


# H59
def test_a_clock_that_is_set_back_revives_no_approval(site: Site) -> None:
    bank = Bank()
    host = site.open(asks(), bank.tools())
    run_id = host.start(limits=Limits(cost="1", approval_ms=HOUR_MS, deadline_s=86_400))
    (waiting,) = host.rest(run_id).approvals
    # The store's wall clock shows the hour over for a moment, and then the old time again.
    later = host.loop.now_ms
    host.loop.now_ms += HOUR_MS
    assert site.store.now_ms() == site.now_ms()
    host.loop.now_ms = later
    with pytest.raises(CommandRefused):
        host.rt.approve(run_id, waiting.approval_id, by="bob")
    host.settle()
    assert bank.paid == {}


# H60
@pytest.mark.parametrize("first", ["approve", "cancel"])
def test_of_an_approval_and_a_cancel_the_first_in_the_log_wins(site: Site, first: str) -> None:
    bank = Bank()
    host = site.open(asks(), bank.tools())
    run_id = host.start()
    (waiting,) = host.rest(run_id).approvals

    def approve() -> None:
        host.rt.approve(run_id, waiting.approval_id, by="bob")

    if first == "approve":
        approve()
        host.settle()
        with pytest.raises(CommandRefused):
            host.rt.cancel(run_id)
        assert (host.rest(run_id).outcome, bank.paid) == ("completed", {("1", 10): 1})
    else:
        host.rt.cancel(run_id)
        with pytest.raises(CommandRefused):
            approve()
        assert (host.rest(run_id).outcome, bank.paid) == ("cancelled", {})


# H60
def test_of_an_approval_and_a_reject_at_once_exactly_one_is_accepted(site: Site) -> None:
    bank = Bank()
    host = site.open(asks(), bank.tools())
    run_id = host.start()
    (waiting,) = host.rest(run_id).approvals

    async def both() -> tuple[CommandAnswer, CommandAnswer]:
        return await asyncio.gather(
            host.rt.aio.submit(run_id, Approve(command_id="a", by="bob", approval_id=waiting.approval_id)),
            host.rt.aio.submit(run_id, Reject(command_id="r", by="eve", approval_id=waiting.approval_id)),
        )

    approved, rejected = asyncio.run(asyncio.wait_for(both(), STUCK_S))
    assert approved.accepted != rejected.accepted
    assert host.rest(run_id).completed
    assert sum(bank.paid.values()) == int(approved.accepted)


# F32, H57
@pytest.mark.parametrize("field", ["arguments", "args_sha256", "preview"])
def test_an_edited_call_in_the_store_runs_nothing(tmp_path: Path, field: str) -> None:
    bank = Bank()
    file = tmp_path / "runs.db"
    with _runtime(file, bank) as rt:
        result = rt.run_sync("go", limits=Limits(cost="1"))
        (waiting,) = result.approvals
    _edit(file, field)
    with _runtime(file, bank) as rt:
        with pytest.raises(BoundloopError):
            rt.approve(result.run_id, waiting.approval_id, by="bob")
        with pytest.raises(BoundloopError):
            rt.result(result.run_id, timeout_s=STUCK_S)
    assert bank.paid == {}


def _runtime(file: Path, bank: Bank) -> Runtime:
    return Runtime(store=f"sqlite:///{file}", model=ScriptedModel(asks()), tools=bank.tools())


def _edit(file: Path, field: str) -> None:
    """Change what is to be paid, as somebody with access to the file would."""
    with sqlite3.connect(file) as db:
        triggers = db.execute("select name, sql from sqlite_master where type = 'trigger'").fetchall()
        for trigger, _ in triggers:
            db.execute(f"drop trigger {trigger}")
        rows = db.execute("select rowid, body from appends").fetchall()
        changed = 0
        for rowid, body in rows:
            edited = {
                "arguments": body.replace(b'"amount":10', b'"amount":99'),
                "args_sha256": _flip_hash(body),
                "preview": body.replace(b'"cost_micros":0', b'"cost_micros":1'),
            }[field]
            if edited != body:
                db.execute("update appends set body = ? where rowid = ?", (edited, rowid))
                changed += 1
        assert changed
        for _, text in triggers:  # a file without them is refused as a whole
            db.execute(text)
    db.close()


def _flip_hash(body: bytes) -> bytes:
    for event in msgspec.msgpack.decode(body):
        if event[0].startswith("call_validated"):
            digest = event[3]
            return body.replace(digest, bytes([digest[0] ^ 1]) + digest[1:])
    return body


# F33
def test_a_run_that_waits_for_a_person_is_approved_after_a_restart_and_runs_once(tmp_path: Path) -> None:
    bank = Bank()
    file = tmp_path / "runs.db"
    with _runtime(file, bank) as rt:
        result = rt.run_sync("go", limits=Limits(cost="1"))
        assert result.status == "waiting"
    with _runtime(file, bank) as rt:
        (waiting,) = rt.result(result.run_id, timeout_s=STUCK_S).approvals
        assert waiting == result.approvals[0]
    assert bank.paid == {}
    with _runtime(file, bank) as rt:
        rt.approve(result.run_id, waiting.approval_id, by="bob")
        assert rt.wait(result.run_id, timeout_s=STUCK_S).completed
    assert bank.paid == {("1", 10): 1}


# F2
def test_an_approval_that_was_consumed_before_a_crash_is_not_used_for_a_second_execution(site: Site) -> None:
    bank = Bank()
    first = site.open(asks(), bank.tools())
    run_id = first.start()
    first.line.cut_at(has(e.CallStarted), before=True)
    (waiting,) = first.rest(run_id).approvals
    first.rt.approve(run_id, waiting.approval_id, by="bob")
    assert first.line.broken.wait(10)
    first.crash()
    assert bank.paid == {}
    second = site.after_crash(first, bank.tools())
    assert second.rest(run_id).completed
    with pytest.raises(CommandRefused):
        second.rt.approve(run_id, waiting.approval_id, by="bob")
    assert bank.paid == {("1", 10): 1}


# H61
def test_an_approval_of_another_run_and_a_guessed_run_get_the_same_answer(site: Site) -> None:
    bank = Bank()
    host = site.open([call("pay", {"order": "1", "amount": 10})], bank.tools())
    mine = host.start(tenant="a", operation_id="a")
    theirs = host.start(tenant="b", operation_id="b")
    (waiting,) = host.rest(mine).approvals
    host.rest(theirs)
    with pytest.raises(CommandRefused) as crossed:
        host.rt.approve(theirs, waiting.approval_id, by="bob")
    with pytest.raises(CommandRefused) as guessed:
        host.rt.approve(theirs, "ap_0000000000000000", by="bob")
    assert (crossed.value.code, crossed.value.message) == (guessed.value.code, guessed.value.message)
    assert bank.paid == {}
