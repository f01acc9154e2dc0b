"""The ladder: rungs in order, first refusal wins, three values, and what the model is told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from boundloop.runtime import events as e
from boundloop.runtime.commands import ChecksDone, Resume
from boundloop.runtime.events import RungVerdict
from boundloop.runtime.model import ProposedCall, ResultItem
from boundloop.runtime.tool_spec import tool, tool_spec

from .shop import TOOLS, limits, pins
from .spec import Run, call, given, tags


def rejection(run: Run, name: str) -> e.CallRejected:
    return next(event for event, _ in run.log if isinstance(event, e.CallRejected) and event.call == name)


@pytest.mark.parametrize(
    ("name", "raw", "rung", "code"),
    [
        ("no_such_tool", b"{}", "known", "unknown_tool"),
        ("no_such_tool", b"{", "known", "unknown_tool"),
        ("get_order", b"{", "json", None),
        ("get_order", b'{"order_id":"A","order_id":"B"}', "json", None),
        ("get_order", b'["A"]', "json", None),
        ("get_order", b'{"order_id":1}', "schema", None),
        ("get_order", b'{"order_id":"A","admin":true}', "schema", None),
        ("refund", b'{"order_id":"A","amount":1.0}', "schema", None),
    ],
)
def test_pure_rungs_refuse_in_order(name: str, raw: bytes, rung: str, code: str | None) -> None:
    run = Run()
    run.reply(ProposedCall(name, raw))
    run.check("c1.0")
    refused = rejection(run, "c1.0")
    assert refused.rung == rung
    assert code is None or refused.code == code
    assert run.bound("c1.0") == ("error", refused.code)
    assert run.started("c1.0") == 0
    # The turn isn't lost with the call: the next request goes out.
    assert run.state.phase == "model_requested"
    assert run.state.counters.invalid_streak == 1


@tool(risk="read")
def list_orders(state: str = "open") -> list[str]:
    "List orders; every argument may be left out."
    return [state]


def admitted(name: str, raw: bytes) -> Run:
    run = Run(pins(tools=(*TOOLS, tool_spec(list_orders).definition)))
    run.reply(ProposedCall(name, raw))
    run.check("c1.0")
    return run


def test_no_arguments_at_all_are_the_empty_object_where_the_schema_takes_it() -> None:
    run = admitted("list_orders", b"")
    assert run.started("c1.0") == 1
    proposed = next(event for event, _ in run.log if isinstance(event, e.CallProposed))
    validated = next(event for event, _ in run.log if isinstance(event, e.CallValidated))
    assert (proposed.arguments, validated.arguments) == (b"", b"{}")
    assert (run.call("c1.0").raw, run.call("c1.0").arguments) == (b"", b"{}")
    run.check_replay()


@pytest.mark.parametrize(
    ("name", "raw", "code"),
    [
        ("get_order", b"", "syntax"),
        ("list_orders", b" ", "syntax"),
        ("list_orders", b"{", "syntax"),
        ("list_orders", b"null", "not_object"),
        ("list_orders", b'""', "not_object"),
    ],
)
def test_anything_else_that_is_no_object_stays_refused(name: str, raw: bytes, code: str) -> None:
    run = admitted(name, raw)
    refused = rejection(run, "c1.0")
    assert (refused.rung, refused.code) == ("json", code)
    assert run.started("c1.0") == 0


def test_first_refusal_wins_and_all_verdicts_are_on_record() -> None:
    run = Run()
    run.reply(call("refund", order_id="A", amount=5))
    verdicts = (
        RungVerdict("check", "allow"),
        RungVerdict("authorisation", "deny", "not_yours"),
        RungVerdict("policy", "deny", "too_much"),
    )
    run.check("c1.0", verdicts=verdicts)
    refused = rejection(run, "c1.0")
    assert (refused.rung, refused.code) == ("authorisation", "not_yours")
    assert refused.verdicts == verdicts


def test_forbidden_and_switched_off_read_alike_to_the_model() -> None:
    texts: set[str] = set()
    for rung in ("authorisation", "policy", "switch"):
        run = Run()
        run.reply(call("refund", order_id="A", amount=5))
        run.check("c1.0", verdicts=(RungVerdict(rung, "deny", "x"),))
        texts.add(rejection(run, "c1.0").safe_message)
    assert len(texts) == 1


def test_unknown_denies_retryably_and_never_terminally() -> None:
    run = Run()
    run.reply(call("refund", order_id="A", amount=5))
    run.check("c1.0", verdicts=(RungVerdict("policy", "unknown"),), terminal=True)
    refused = rejection(run, "c1.0")
    assert (refused.code, refused.retryable, refused.terminal) == ("check_unknown", True, False)
    assert run.state.phase == "model_requested"


def test_unknown_at_the_recheck_denies_retryably_and_never_terminally() -> None:
    run = Run()
    run.reply(call("refund", order_id="A", amount=5))
    run.ask("c1.0")
    run.approve("c1.0")
    run.check(
        "c1.0",
        resource_version="v1",
        verdicts=(RungVerdict("policy", "unknown", "no_answer"),),
        terminal=True,
    )
    refused = rejection(run, "c1.0")
    assert (refused.code, refused.retryable, refused.terminal) == ("no_answer", True, False)
    assert not run.ledger.rows


def test_ask_is_no_refusal() -> None:
    run = Run()
    run.reply(call("refund", order_id="A", amount=5))
    run.ask("c1.0", verdicts=(RungVerdict("policy", "ask", "needs_approval"),))
    assert run.phase("c1.0") == "waiting_approval"


def test_terminal_denial_ends_the_run_after_the_turn() -> None:
    run = Run()
    run.reply(call("get_order", order_id="A"), call("refund", order_id="A", amount=5))
    run.check("c1.0")
    run.check("c1.1", verdicts=(RungVerdict("policy", "deny", "fraud"),), terminal=True)
    run.report("c1.0")
    assert run.stop() == ("terminated", "failed", "policy_denied")
    assert run.state.detail == "fraud"
    assert run.bound("c1.0") == ("ok", "")


@pytest.mark.parametrize(
    ("bounds", "tool", "code", "stops"),
    [
        ({"tool_calls": 1}, "get_order", "max_tool_calls", True),
        ({"call_attempts": 1}, "get_order", "max_tool_calls", True),
        ({"tool_calls_each": {"get_order": 1}}, "get_order", "tool_calls_each", False),
        ({"cost_micros": 50}, "credit_check", "budget_cost", True),
    ],
)
def test_limits_rung(bounds: dict[str, Any], tool: str, code: str, stops: bool) -> None:
    run = Run(pins(bounds=limits(**bounds)))
    run.reply(call(tool, order_id="A"), call(tool, order_id="B"))
    run.check("c1.0")
    run.check("c1.1")
    refused = rejection(run, "c1.1")
    assert (refused.rung, refused.code) == ("limits", code)
    run.report("c1.0")
    assert (run.state.phase == "suspended") is stops
    if stops:
        assert run.state.reason == code


def test_two_calls_that_are_affordable_one_by_one_do_not_overdraw() -> None:
    run = Run(pins(bounds=limits(cost_micros=100)))
    run.reply(call("send_letter", order_id="A"), call("send_letter", order_id="B"))
    run.check("c1.1")
    run.now += 1
    run.check("c1.0")
    run.report("c1.0")
    run.check("c1.1")
    assert (rejection(run, "c1.1").rung, rejection(run, "c1.1").code) == ("limits", "budget_cost")
    assert run.state.meters.cost_micros.spent == 60
    assert len(run.ledger.rows) == 1


def test_canonical_bytes_are_what_is_validated_and_started() -> None:
    run = Run()
    run.reply(ProposedCall("refund", b' { "order_id" : "A" , "amount" : 5 } '))
    run.check("c1.0")
    assert run.call("c1.0").arguments == b'{"amount":5,"order_id":"A"}'
    assert run.call("c1.0").raw == b' { "order_id" : "A" , "amount" : 5 } '


def test_verdicts_for_a_call_that_is_gone_change_nothing() -> None:
    run = Run()
    run.reply(call("get_order", order_id="A"))
    verdict = run.checks("c1.0")
    run.send(verdict)
    given(run).when(verdict, run.now).then_nothing()
    given(run).when(ChecksDone(call="c9.9", recheck=False), run.now).then_nothing()
    given(run).when(ChecksDone(call="c9.9", recheck=True), run.now).then_nothing()
    given(run).when(ChecksDone(call="c1.0", recheck=True), run.now).then_nothing()


def test_verdicts_without_an_admission_change_nothing() -> None:
    run = Run()
    run.reply(call("get_order", order_id="A"))
    given(run).when(ChecksDone(call="c1.0", recheck=False), run.now).then_nothing()


def test_changed_definition_in_the_first_pass_stops_after_the_turn() -> None:
    run = Run()
    run.reply(call("set_state", order_id="A", state="x"), call("ship", order_id="B"))
    run.check("c1.0")
    # The first effect is under way: the run must not stop in the middle of it.
    run.check("c1.1", contract_kept=False)
    assert run.phase("c1.0") == "started"
    run.report("c1.0")
    assert run.bound("c1.1") == ("error", "definition_changed")
    assert run.stop() == ("suspended", "failed", "definition_changed")


def test_changed_definition_at_the_recheck_keeps_the_call_and_its_approval() -> None:
    run = Run()
    run.reply(call("refund", order_id="A", amount=5))
    run.ask("c1.0")
    run.approve("c1.0")
    run.check("c1.0", contract_kept=False, resource_version="v1")
    assert run.stop() == ("suspended", "failed", "definition_changed")
    run.outside(Resume)
    run.check("c1.0", resource_version="v1")
    assert run.started("c1.0") == 1


def test_history_holds_every_result_in_call_order_and_never_a_half_call() -> None:
    run = Run()
    run.reply(*(call("get_order", f"p{n}", order_id=f"A{n}") for n in range(3)))
    for n in range(3):
        run.check(f"c1.{n}")
    for n in (2, 0, 1):
        run.report(f"c1.{n}", result={"n": n})
    items = [item for item in run.state.items if isinstance(item, ResultItem)]
    assert [item.provider_call_id for item in items] == ["p0", "p1", "p2"]
    assert [msgspec.json.decode(item.content)["data"]["n"] for item in items] == [0, 1, 2]
    assert tags(event for event, _ in run.log).count("result_bound") == 3
