"""One effect a key, whoever asks for it: two runs of one operation, rewordings, conflicts, races for the key."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from tests.stepped_runtime import HOST_LAPSES_MS, Site, results_in

from boundloop.actors.context import ToolContext
from boundloop.adapters.script import call, calls, say
from boundloop.adapters.scripted import Gate, ScriptedModel
from boundloop.runtime import events as e
from boundloop.runtime.errors import ToolError
from boundloop.runtime.tool_spec import tool


class Bank:
    """Refunds, and counts them by order and amount."""

    def __init__(self) -> None:
        self.refunded: Counter[tuple[str, int]] = Counter()
        self.keys: set[str] = set()
        self.gate: Gate | None = None
        self.refuse = 0

    def tool(self, *, description: str = "Refund an order.", **options: Any) -> Any:
        async def refund(order: str, amount: int, ctx: ToolContext, reason: str = "") -> dict[str, Any]:
            if self.gate is not None:
                await self.gate.passed()
            if self.refuse:
                self.refuse -= 1
                raise ToolError("refused", safe_message="refused", no_effect=True)
            self.keys.add(ctx.key)
            self.refunded[order, amount] += 1
            return {"refunded": amount}

        options = {"risk": "irreversible", "approval": "never", "far_side": "keyed", **options}
        return tool(key=("order",), incidental=("reason",), description=description, **options)(refund)


def asks(amount: int = 10, reason: str = "") -> Any:
    return call("refund", {"order": "1", "amount": amount, "reason": reason})


# H key reused
def test_two_runs_of_one_operation_have_one_effect_and_the_second_is_told_of_the_first(site: Site) -> None:
    bank = Bank()
    host = site.open([asks(), say("done")], [bank.tool()])
    first = host.run(operation_id="order 1")
    second = host.run(operation_id="order 1")
    assert first.completed
    assert second.completed
    assert bank.refunded == {("1", 10): 1}
    (bound,) = results_in(host.model.recorded[-1])
    shown = json.loads(bound.content)
    assert (shown["status"], shown["replayed"], shown["data"]) == ("ok", True, {"refunded": 10})
    assert site.of(second.run_id, e.CallStarted) == []


def test_another_operation_is_another_effect(site: Site) -> None:
    bank = Bank()
    host = site.open([asks(), say("done")], [bank.tool()])
    host.run(operation_id="a")
    host.run(operation_id="b")
    assert bank.refunded == {("1", 10): 2}
    assert len(bank.keys) == 2


def test_a_reworded_incidental_reason_is_the_same_refund(site: Site) -> None:
    bank = Bank()
    host = site.open([asks(reason="it broke"), asks(reason="it is broken"), say("done")], [bank.tool()])
    result = host.run()
    assert bank.refunded == {("1", 10): 1}
    assert [bound.code for bound in site.of(result.run_id, e.ResultBound)] == ["", "replayed"]
    assert site.of(result.run_id, e.ResultBound)[1].replayed.arguments_differ  # type: ignore[union-attr]  # replayed, as the line before says


def test_a_changed_description_makes_no_second_refund(site: Site) -> None:
    bank = Bank()
    first = site.open([asks(), say("done")], [bank.tool()])
    first.run(operation_id="order 1")
    first.close()
    second = site.open([asks(), say("done")], [bank.tool(description="Refund an order, politely.")])
    assert second.run(operation_id="order 1").completed
    assert bank.refunded == {("1", 10): 1}


def test_another_amount_under_the_same_key_is_a_conflict_and_nothing_runs(site: Site) -> None:
    bank = Bank()
    host = site.open([asks(10), asks(999_999), say("done")], [bank.tool()])
    result = host.run()
    assert bank.refunded == {("1", 10): 1}
    assert [bound.code for bound in site.of(result.run_id, e.ResultBound)] == ["", "idempotency_conflict"]


def test_two_equal_calls_of_a_tool_keyed_by_call_both_happen(site: Site) -> None:
    sent: list[str] = []

    @tool(risk="write", key="call")
    async def send(text: str, ctx: ToolContext) -> dict[str, Any]:
        """Send a message; each proposal is one."""
        sent.append(ctx.key)
        return {"sent": len(sent)}

    host = site.open([calls(call("send", {"text": "hi"}), call("send", {"text": "hi"})), say("done")], [send])
    assert host.run().completed
    assert len(set(sent)) == 2


def test_of_two_runs_that_want_one_effect_one_waits_and_gets_the_others_result(site: Site) -> None:
    bank = Bank()
    bank.gate = Gate("bank")
    host = site.open([asks(), say("done")], [bank.tool()])
    first = host.start(operation_id="order 1")
    assert bank.gate.wait_reached(10)
    second = host.start(operation_id="order 1")
    waiting = host.rest(second)
    assert (waiting.status, waiting.waiting_for[:4]) == ("waiting", "key:")
    bank.gate.open()
    assert host.rest(first).completed
    assert host.rest(second).completed
    assert bank.refunded == {("1", 10): 1}
    assert site.of(second, e.ResultBound)[0].code == "replayed"


def test_who_waits_for_a_key_takes_it_when_the_holder_failed_with_proof(site: Site) -> None:
    bank = Bank()
    bank.gate, bank.refuse = Gate("bank"), 1
    host = site.open([asks(), say("done")], [bank.tool()])
    first = host.start(operation_id="order 1")
    assert bank.gate.wait_reached(10)
    second = host.start(operation_id="order 1")
    host.settle()
    bank.gate.open()
    assert host.rest(first).completed
    assert host.rest(second).completed
    assert bank.refunded == {("1", 10): 1}
    assert site.of(first, e.ResultBound)[0].status == "error"
    assert site.of(second, e.ResultBound)[0].code == ""


@pytest.mark.parametrize("end", ["approve", "reject", "lapse", "cancel"])
def test_who_waits_for_anothers_approval_follows_its_decision(site: Site, end: str) -> None:
    bank = Bank()
    host = site.open([asks(), say("done")], [bank.tool(approval="always")])
    first = host.start(operation_id="order 1", limits=short_approval())
    (asked,) = host.rest(first).approvals
    host.advance(1_000)
    second = host.start(operation_id="order 1", limits=short_approval())
    assert host.rest(second).waiting_for[:4] == "key:"
    if end == "approve":
        host.rt.approve(first, asked.approval_id, by="bob")
    elif end == "reject":
        host.rt.reject(first, asked.approval_id, by="bob")
    elif end == "cancel":
        host.rt.cancel(first)
    else:
        host.advance(59_000)
    host.settle()
    result = host.rest(second)
    if end in ("approve", "reject"):
        assert result.completed
        code = "replayed" if end == "approve" else "approval_rejected"
        assert site.of(second, e.ResultBound)[0].code == code
        assert bank.refunded == ({("1", 10): 1} if end == "approve" else {})
    else:
        assert result.waiting_for.startswith("approval:")
        host.rt.approve(second, result.approvals[0].approval_id, by="bob")
        assert host.rest(second).completed
        assert bank.refunded == {("1", 10): 1}


def short_approval() -> Any:
    from boundloop.runtime.limits import Limits

    return Limits(cost="1", approval_ms=60_000)


def test_two_equal_effects_in_one_turn_are_one(site: Site) -> None:
    bank = Bank()
    host = site.open([calls(asks(reason="a"), asks(reason="b")), say("done")], [bank.tool()])
    result = host.run()
    assert result.completed
    assert bank.refunded == {("1", 10): 1}
    assert [bound.code for bound in site.of(result.run_id, e.ResultBound)] == ["", "replayed"]


def test_who_waits_for_the_key_of_a_dead_host_gets_its_effect_once_that_was_settled(site: Site) -> None:
    bank = Bank()
    bank.gate = Gate("bank")
    host = site.open([asks(), say("done")], [bank.tool()])
    first = host.start(operation_id="order 1")
    assert bank.gate.wait_reached(10)
    second = host.start(operation_id="order 1")
    host.settle()
    host.crash()
    bank.gate.open()
    heir = site.after_crash(host, [bank.tool()])
    heir.advance(HOST_LAPSES_MS)
    assert heir.rest(first).completed
    assert heir.rest(second).completed
    assert (bank.refunded, len(bank.keys)) == ({("1", 10): 1}, 1)


def test_an_effect_whose_result_is_not_what_it_declares_is_never_run_again(site: Site) -> None:
    ran: list[str] = []

    @tool(risk="irreversible", key=("order",), approval="never", far_side="keyed")
    async def refund(order: str) -> dict[str, int]:
        """Refund an order."""
        ran.append(order)
        return {"refunded": "ten"}  # type: ignore[dict-item]  # that is the point

    host = site.open([call("refund", {"order": "1"}), call("refund", {"order": "1"}), say("done")], [refund])
    result = host.run()
    host.advance(600_000)
    assert ran == ["1"]
    assert [bound.code for bound in site.of(result.run_id, e.ResultBound)] == ["output_invalid"] * 2
    key = site.of(result.run_id, e.CallValidated)[0].key
    assert key is not None
    row = asyncio.run(site.store.ledger_row("default", key))
    assert row is not None
    assert row.status == "succeeded"


# --- an effect that an ended run left unknown ----------------------------------------------------------------------


def broken_bank(**options: Any) -> tuple[Any, list[str]]:
    """A payment whose first sending breaks off with nothing known."""
    keys: list[str] = []

    @tool(risk="write", key=("order",), max_attempts=1, **options)
    async def pay(order: str, ctx: ToolContext) -> dict[str, Any]:
        "Pay."
        keys.append(ctx.key)
        if len(keys) == 1:
            raise ConnectionError
        return {"paid": order}

    return pay, keys


@pytest.mark.parametrize("waits_before", [False, True], ids=["comes later", "waited already"])
@pytest.mark.parametrize("far_side", ["keyed", "natural", "none"])
def test_what_an_ended_run_left_unknown_holds_no_other_run_up(
    site: Site, far_side: str, waits_before: bool
) -> None:
    pay, keys = broken_bank(far_side=far_side)

    def script(request: Any) -> Any:
        return call("pay", {"order": "1"}) if request.turn == 1 else say("done")

    host = site.open(ScriptedModel(script), [pay])
    first = host.start(operation_id="order 1")
    assert host.rest(first).reason == "outcome_unknown"
    second = host.start(operation_id="order 1") if waits_before else ""
    if second:
        assert host.rest(second).waiting_for.startswith("key:")
    host.rt.cancel(first)
    host.settle()
    assert host.state(first).phase == "terminated"
    second = second or host.start(operation_id="order 1")
    assert host.rest(second).completed
    (bound,) = site.of(second, e.ResultBound)
    if far_side == "none":
        assert (bound.status, bound.code, len(keys)) == ("error", "outcome_unknown", 1)
        return
    assert bound.status == "ok"
    assert keys == [keys[0]] * 2
