"""What a check, a policy, a preview or the permissions may answer, and that none of them changes what is shown or runs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.stepped_runtime import Site

from boundloop.adapters.script import call, held, say
from boundloop.runtime import events as e
from boundloop.runtime.errors import ToolError
from boundloop.runtime.policy import Policy, PolicyDecision, PolicyQuestion
from boundloop.runtime.tool_spec import tool

LONE = "no\udcff"


class Shop:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def refund(self, **options: Any) -> Any:
        async def refund(order: str, items: list[str]) -> dict[str, Any]:
            """Refund items of an order."""
            self.sent.append(items)
            return {"order": order}

        declared: dict[str, Any] = {"risk": "write", "key": ("order",), "check_inline": True, **options}
        return tool(**declared)(refund)


SCRIPT = [call("refund", {"order": "1", "items": ["tv", "car"]}), say("done")]


def empties(value: Any) -> Any:
    """A handler that answers with ``value`` after it has changed what it was given."""

    def handler(arguments: Any) -> Any:
        if isinstance(arguments, PolicyQuestion):
            arguments = arguments.arguments
        arguments["items"].clear()
        arguments["order"] = "2"
        return value

    return handler


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("handler", ["check", "policy", "preview", "version_of"])
def test_no_handler_can_change_what_is_shown_or_what_runs(site: Site, handler: str, inline: bool) -> None:
    shop = Shop()
    answers = {"check": True, "policy": "allow", "preview": {"total": 1}, "version_of": "v1"}
    spoils = empties(answers[handler])
    policy = Policy(spoils if handler == "policy" else lambda _: "allow")
    handlers = {} if handler == "policy" else {handler: spoils}
    host = site.open(SCRIPT, [shop.refund(approval="always", check_inline=inline, **handlers)], policy=policy)
    run_id = host.start()
    waiting = host.rest(run_id)
    (approval,) = waiting.approvals
    assert '"items":["tv","car"],"order":"1"' in approval.preview
    host.rt.approve(run_id, approval.approval_id, by="someone")
    assert host.rest(run_id).completed
    assert shop.sent == [["tv", "car"]]


def test_a_policy_judges_the_canonical_arguments(site: Site) -> None:
    """What a model wrote as 2.0 is the number 2 once admitted; a policy that saw 2.0 would judge another thing."""
    seen: list[Any] = []

    @tool(risk="write", key="call")
    async def pay(amount: float) -> dict[str, Any]:
        """Pay."""
        return {"paid": amount}

    def decide(question: PolicyQuestion) -> Any:
        seen.append(question.arguments["amount"])
        return "allow"

    host = site.open([call("pay", raw=b'{"amount": 2.0}'), say("done")], [pay], policy=Policy(decide))
    assert host.run().completed
    assert {type(amount) for amount in seen} == {int}


def odd(value: Any) -> Any:
    """A value where another type is declared."""
    return value


def gives(value: Any) -> Any:
    def handler(*_: Any) -> Any:
        return value

    return handler


def raises(error: BaseException) -> Any:
    def handler(*_: Any) -> Any:
        raise error

    return handler


async def late(*_: Any) -> bool:
    return True


class Liar(str):
    def __getitem__(self, place: Any) -> Any:
        raise RuntimeError("not this text")

    def encode(self, encoding: str = "", errors: str = "") -> bytes:
        raise RuntimeError("nor these bytes")


def says(decision: PolicyDecision) -> Any:
    def handler(*_: Any) -> PolicyDecision:
        return decision

    return handler


BROKEN_POLICIES: dict[str, Any] = {
    "other case": says(PolicyDecision(answer=odd("Allow"))),
    "no text": says(PolicyDecision(answer=odd(["allow"]))),
    "code no text": says(PolicyDecision(answer="deny", code=odd(7))),
    "terminal no bool": says(PolicyDecision(answer="deny", terminal=odd("yes"))),
    "coroutine": late,
}


@pytest.mark.parametrize("policy", BROKEN_POLICIES.values(), ids=BROKEN_POLICIES.keys())
def test_a_policys_answer_outside_its_types_is_no_answer(site: Site, policy: Any) -> None:
    shop = Shop()
    host = site.open(SCRIPT, [shop.refund()], policy=Policy(policy))
    result = host.run()
    assert result.completed
    assert shop.sent == []
    (rejected,) = site.of(result.run_id, e.CallRejected)
    assert (rejected.rung, rejected.code, rejected.retryable) == ("policy", rejected.code, True)
    assert rejected.code in ("policy_no_answer", "policy_failed")


LONE_CODES: dict[str, dict[str, Any]] = {
    "check": {"check": gives(LONE)},
    "check raises": {"check": raises(ToolError(LONE))},
    "check lies": {"check": gives(Liar(LONE))},
}


@pytest.mark.parametrize("options", LONE_CODES.values(), ids=LONE_CODES.keys())
def test_a_code_that_is_no_valid_text_is_written_out(site: Site, options: dict[str, Any]) -> None:
    shop = Shop()
    result = site.open(SCRIPT, [shop.refund(**options)]).run()
    assert result.completed
    assert site.of(result.run_id, e.CallRejected)[0].code == "no\\udcff"


def test_a_policys_code_that_is_no_valid_text_is_written_out(site: Site) -> None:
    policy = Policy(gives(PolicyDecision(answer="deny", code=LONE * 100)))
    result = site.open(SCRIPT, [Shop().refund()], policy=policy).run()
    (rejected,) = site.of(result.run_id, e.CallRejected)
    assert rejected.code.startswith("no\\udcffno\\udcff")
    assert len(rejected.code) <= 64


@pytest.mark.parametrize("answer", [None, ["pay"], "pay", {"pay": 1}, {b"pay"}, 7], ids=repr)
def test_permissions_that_are_no_set_of_texts_permit_nothing(site: Site, answer: Any) -> None:
    shop = Shop()
    asked: list[Any] = []

    def permissions_of(*_: str) -> Any:
        asked.append(1)
        return frozenset({"pay"}) if len(asked) == 1 else answer

    host = site.open(SCRIPT, [shop.refund(permissions=("pay",))], permissions=permissions_of)
    result = host.run()
    assert result.completed
    assert shop.sent == []
    (rejected,) = site.of(result.run_id, e.CallRejected)
    assert (rejected.rung, rejected.code, rejected.retryable) == ("authorisation", "permissions_failed", True)


@pytest.mark.parametrize("handler", ["preview", "version_of"])
@pytest.mark.parametrize("answer", ["none", "coroutine"])
def test_a_preview_or_version_without_an_answer_asks_nobody(site: Site, handler: str, answer: str) -> None:
    shop = Shop()
    answers: dict[str, Any] = {"none": gives(None), "coroutine": late}
    host = site.open(SCRIPT, [shop.refund(approval="always", **{handler: answers[answer]})])
    result = host.run()
    assert result.completed
    assert shop.sent == []
    assert site.of(result.run_id, e.ApprovalRequested) == []


def test_a_version_that_is_no_valid_text_is_written_out(site: Site) -> None:
    host = site.open(SCRIPT, [Shop().refund(approval="always", version_of=gives(LONE))])
    run_id = host.start()
    (approval,) = host.rest(run_id).approvals
    (requested,) = site.of(run_id, e.ApprovalRequested)
    assert requested.resource_version == "no\\udcff"
    host.rt.approve(run_id, approval.approval_id, by="someone")
    assert host.rest(run_id).completed


def test_a_permission_that_a_deploy_added_is_needed_by_runs_in_flight(site: Site) -> None:
    shop = Shop()
    first = site.open(SCRIPT, [shop.refund(approval="always")])
    run_id = first.start()
    first.rest(run_id)
    first.close()
    second = site.open(SCRIPT, [shop.refund(approval="always", permissions=("admin",))])
    (approval,) = second.rest(run_id).approvals
    second.rt.approve(run_id, approval.approval_id, by="someone")
    assert second.rest(run_id).completed
    assert shop.sent == []
    assert site.of(run_id, e.CallRejected)[0].rung == "authorisation"


def test_a_permission_that_a_deploy_took_away_is_still_needed_by_runs_in_flight(site: Site) -> None:
    shop = Shop()
    granted = frozenset({"admin"})
    first = site.open(
        SCRIPT, [shop.refund(approval="always", permissions=("admin",))], permissions=gives(granted)
    )
    run_id = first.start()
    first.rest(run_id)
    first.close()
    second = site.open(SCRIPT, [shop.refund(approval="always")], permissions=gives(frozenset()))
    (approval,) = second.rest(run_id).approvals
    second.rt.approve(run_id, approval.approval_id, by="someone")
    assert second.rest(run_id).completed
    assert shop.sent == []


@pytest.mark.parametrize(("pinned", "present"), [("policy", "always"), ("always", "never")])
def test_the_stricter_approval_rule_holds_for_runs_in_flight(site: Site, pinned: str, present: str) -> None:
    shop = Shop()
    model_waits = site.open([held(SCRIPT[0], "model")], [shop.refund(approval=pinned)])
    run_id = model_waits.start()
    model_waits.close()
    host = site.open(SCRIPT, [shop.refund(approval=present)])
    result = host.rest(run_id)
    assert shop.sent == []
    assert len(result.approvals) == 1


def test_a_policy_is_shown_todays_permissions(site: Site) -> None:
    granted = [frozenset({"a"})]
    seen: list[frozenset[str]] = []

    def decide(question: PolicyQuestion) -> Any:
        seen.append(question.permissions)
        granted[0] = frozenset({"b"})
        return "allow"

    def permissions_of(*_: str) -> frozenset[str]:
        return granted[0]

    host = site.open(
        [*SCRIPT[:1], call("refund", {"order": "2", "items": []}), say("done")],
        [Shop().refund()],
        policy=Policy(decide),
        permissions=permissions_of,
    )
    assert host.run().completed
    assert seen[0] == {"a"}
    assert seen[-1] == {"b"}


@pytest.mark.parametrize(
    "error",
    [
        ToolError("refused", safe_message="file \udcff", no_effect=True),
        ToolError(LONE, no_effect=True),
        ToolError(odd(7), no_effect=True),
        ToolError("refused", safe_message=odd(7), no_effect=True),
        ToolError("refused", retryable=odd("yes"), no_effect=True),
    ],
    ids=repr,
)
def test_what_a_tools_error_says_of_itself_is_made_fit_for_the_log(site: Site, error: ToolError) -> None:
    @tool(risk="write", key="call", max_attempts=1)
    async def pay() -> dict[str, Any]:
        """Pay."""
        raise error

    result = site.open([call("pay", {}), say("done")], [pay]).run()
    assert result.completed
    (executed,) = site.of(result.run_id, e.CallExecuted)
    assert (executed.outcome, executed.retryable) == ("failed", False)
