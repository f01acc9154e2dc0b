"""Policy, permissions, checks and kill switches in a live Runtime: three answers, asked again before each dispatch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.stepped_runtime import Site

from boundloop.adapters.script import call, calls, say
from boundloop.adapters.scripted import Gate
from boundloop.runtime import events as e
from boundloop.runtime.errors import ToolError
from boundloop.runtime.policy import Policy, PolicyDecision
from boundloop.runtime.tool_spec import tool

PAY = [call("pay", {"order": "1"}), say("done")]


class Bank:
    def __init__(self) -> None:
        self.paid: Counter[str] = Counter()

    def tool(self, **options: Any) -> Any:
        async def pay(order: str) -> dict[str, Any]:
            """Pay an order out."""
            self.paid[order] += 1
            return {"paid": order}

        declared: dict[str, Any] = {"risk": "write", "key": ("order",), "far_side": "keyed", **options}
        return tool(**declared)(pay)


def raises(error: BaseException) -> Callable[..., Any]:
    def answer(*_: Any) -> Any:
        raise error

    return answer


class Hostile(Exception):
    """Runs code when it is shown or carried elsewhere."""

    def __str__(self) -> str:
        raise AssertionError("shown")

    __repr__ = __str__

    def __reduce__(self) -> Any:
        raise AssertionError("pickled")


def gives(value: object) -> Callable[..., Any]:
    def answer(*_: Any) -> Any:
        return value

    return answer


ODD_ANSWERS: dict[str, Callable[..., Any]] = {
    "none": gives(None),
    "unknown": gives("unknown"),
    "nonsense": gives(object()),
    "truthy": gives(1),
    "raises": raises(RuntimeError("secret")),
    "hostile": raises(Hostile()),
    "exits": raises(SystemExit(1)),
    "interrupts": raises(KeyboardInterrupt()),
}


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("answer", ODD_ANSWERS.values(), ids=ODD_ANSWERS.keys())
def test_a_policy_that_gives_no_answer_denies_after_bounded_tries(
    site: Site, answer: Callable[..., Any], inline: bool
) -> None:
    bank = Bank()
    asked: list[str] = []

    def decide(question: Any) -> Any:
        asked.append(question.tool)
        return answer(question)

    host = site.open(PAY, [bank.tool()], policy=Policy(decide, inline=inline))
    result = host.run()
    assert result.completed
    assert bank.paid == {}
    assert 1 <= len(asked) <= 3
    (rejected,) = site.of(result.run_id, e.CallRejected)
    assert (rejected.rung, rejected.retryable) == ("policy", True)
    assert "secret" not in repr(site.events(result.run_id))


@pytest.mark.parametrize("answer", ODD_ANSWERS.values(), ids=ODD_ANSWERS.keys())
def test_a_semantic_check_that_gives_no_answer_denies(site: Site, answer: Callable[..., Any]) -> None:
    bank = Bank()
    host = site.open(PAY, [bank.tool(check=answer)])
    result = host.run()
    if answer is ODD_ANSWERS["unknown"]:
        return  # text is a check's way to deny with that code
    assert result.completed
    assert bank.paid == {}
    assert site.of(result.run_id, e.CallRejected)[0].rung == "check"


@pytest.mark.parametrize("answer", [False, "amount_too_high"])
def test_a_semantic_check_that_says_no_is_the_calls_result(site: Site, answer: Any) -> None:
    bank = Bank()
    host = site.open(PAY, [bank.tool(check=gives(answer))])
    result = host.run()
    assert bank.paid == {}
    (rejected,) = site.of(result.run_id, e.CallRejected)
    assert rejected.rung == "check"
    assert rejected.code in ("check_denied", "amount_too_high")


@pytest.mark.parametrize("error", [ODD_ANSWERS["raises"], ODD_ANSWERS["hostile"], ODD_ANSWERS["exits"]])
@pytest.mark.parametrize("handler", ["preview", "version_of"])
def test_a_preview_that_fails_asks_nobody_and_runs_nothing(
    site: Site, handler: str, error: Callable[..., Any]
) -> None:
    bank = Bank()
    host = site.open(PAY, [bank.tool(approval="always", **{handler: error})])
    result = host.run()
    assert (result.completed, bank.paid) == (True, {})
    assert site.of(result.run_id, e.ApprovalRequested) == []


def test_a_terminal_denial_ends_the_run(site: Site) -> None:
    bank = Bank()
    never = PolicyDecision(answer="deny", code="never", terminal=True)
    host = site.open(PAY, [bank.tool()], policy=Policy(lambda question: never))
    result = host.run()
    assert (result.outcome, result.reason, result.status) == ("failed", "policy_denied", "ended")
    assert bank.paid == {}


@pytest.mark.parametrize("inline", [True, False])
def test_a_check_of_a_tool_can_deny_for_good(site: Site, inline: bool) -> None:
    bank = Bank()
    never = PolicyDecision(answer="deny", code="fraud", terminal=True)
    host = site.open(PAY, [bank.tool(check=gives(never), check_inline=inline)])
    result = host.run()
    assert (result.outcome, result.reason, result.detail) == ("failed", "policy_denied", "fraud")
    assert bank.paid == {}


@pytest.mark.parametrize(
    "answer",
    [
        PolicyDecision(answer="ask"),
        PolicyDecision(answer="sure"),  # type: ignore[arg-type]  # what an application may write
        PolicyDecision(answer="deny", terminal=1),  # type: ignore[arg-type]  # what an application may write
    ],
)
def test_a_check_that_decides_what_is_no_check_gave_no_answer(site: Site, answer: PolicyDecision) -> None:
    bank = Bank()
    host = site.open(PAY, [bank.tool(check=gives(answer))])
    result = host.run()
    assert result.completed
    assert bank.paid == {}
    (refused,) = site.of(result.run_id, e.CallRejected)
    assert (refused.rung, refused.code, refused.retryable) == ("check", "check_no_answer", True)


def test_a_kill_switch_between_question_and_approval_stops_what_was_approved(site: Site) -> None:
    bank = Bank()
    host = site.open(PAY, [bank.tool(approval="always")])
    run_id = host.start()
    (waiting,) = host.rest(run_id).approvals
    host.rt.switch("tool", "pay", on=True, by="ops")
    host.rt.approve(run_id, waiting.approval_id, by="bob")
    assert host.rest(run_id).completed
    assert bank.paid == {}
    (refused,) = site.of(run_id, e.CallRejected)
    assert (refused.rung, refused.code) == ("switch", "kill_switch_tool")


def test_refusals_of_a_missing_and_of_a_forbidden_tool_are_the_same_to_the_model(site: Site) -> None:
    bank = Bank()
    host = site.open(
        [calls(call("pay", {"order": "1"}), call("no_such_tool", {"order": "1"})), say("done")],
        [bank.tool(permissions=("pay",))],
    )
    host.run()
    first, second = (item.content for item in host.model.recorded[-1].items if hasattr(item, "is_error"))
    assert first == second


@pytest.mark.parametrize("until", ["approved", "retry"])
def test_permissions_are_asked_again_before_every_dispatch(site: Site, until: str) -> None:
    granted: dict[str, frozenset[str]] = {"now": frozenset({"pay"})}
    tries: list[str] = []

    def now_granted(tenant: str, principal: str) -> frozenset[str]:
        return granted["now"]

    @tool(
        risk="write",
        key=("order",),
        permissions=("pay",),
        approval="always" if until == "approved" else "policy",
    )
    async def pay(order: str) -> dict[str, Any]:
        """Pay an order out."""
        tries.append(order)
        raise ToolError("busy", retryable=True, no_effect=True, safe_message="busy")

    host = site.open(PAY, [pay], permissions=now_granted)
    run_id = host.start()
    if until == "approved":
        (waiting,) = host.rest(run_id).approvals
        granted["now"] = frozenset()
        host.rt.approve(run_id, waiting.approval_id, by="bob")
    else:
        host.settle()
        granted["now"] = frozenset()
        host.advance(60_000)
    assert host.rest(run_id).completed
    assert len(tries) == (0 if until == "approved" else 1)


@pytest.mark.parametrize(("scope", "target"), [("global", ""), ("tenant", "default"), ("tool", "pay")])
def test_a_kill_switch_stops_new_effects_at_once_and_leaves_reads_alone(
    site: Site, scope: str, target: str
) -> None:
    bank = Bank()
    gate = Gate("far side")

    @tool(risk="read")
    async def look() -> dict[str, Any]:
        """Look, slowly."""
        await gate.passed()
        return {}

    host = site.open([calls(call("look"), call("pay", {"order": "1"})), say("done")], [look, bank.tool()])
    run_id = host.start()
    assert gate.wait_reached(10)
    host.rt.switch(scope, target, on=True, by="ops")
    host.advance(1)
    gate.open()
    result = host.rest(run_id)
    assert bank.paid == {}
    if scope == "tool":
        assert result.completed
    else:
        assert (result.outcome, result.reason) == ("cancelled", "kill_switch")
    host.rt.switch(scope, target, on=False, by="ops")
    again = host.start(operation_id="another")
    assert host.rest(again).completed
    assert bank.paid == {"1": 1}


def test_a_switch_of_another_tenant_or_tool_stops_nothing(site: Site) -> None:
    bank = Bank()
    host = site.open(PAY, [bank.tool()])
    host.rt.switch("tenant", "somebody else", on=True, by="ops")
    host.rt.switch("tool", "another_tool", on=True, by="ops")
    assert host.run().completed
    assert bank.paid == {"1": 1}


def test_the_requester_may_not_approve_where_the_policy_says_so(site: Site) -> None:
    from boundloop.actors.client import CommandRefused

    bank = Bank()
    host = site.open(
        PAY, [bank.tool(approval="always")], policy=Policy(separate_approver=True), principal="ann"
    )
    run_id = host.start()
    (waiting,) = host.rest(run_id).approvals
    with pytest.raises(CommandRefused):
        host.rt.approve(run_id, waiting.approval_id, by="ann")
    host.rt.approve(run_id, waiting.approval_id, by="bob")
    assert host.rest(run_id).completed
