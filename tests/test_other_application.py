"""Runs that another application, or another revision of this one, began: taken up and stopped where this one can answer
for them, else left alone, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.stepped_runtime import HOST_LAPSES_MS, Site, has

from boundloop.actors.application import misfit
from boundloop.adapters.script import call, held, say
from boundloop.adapters.scripted import ScriptedModel
from boundloop.runtime import events as e
from boundloop.runtime.errors import ConflictError
from boundloop.runtime.limits import Limits
from boundloop.runtime.tool_spec import tool

ASKS = [call("pay", {"n": 1}), say("done")]


def pay_tool(ran: list[int]) -> Any:
    @tool(risk="write", key="call", approval="always")
    async def pay(n: int) -> dict[str, int]:
        """Pay."""
        ran.append(n)
        return {"n": n}

    return pay


def pay_with_more(ran: list[int]) -> Any:
    @tool(risk="write", key="call", approval="always")
    async def pay(n: int, more: int = 0) -> dict[str, int]:
        """Pay."""
        ran.append(n)
        return {"n": n + more}

    return pay


def look_tool() -> Any:
    @tool(risk="read")
    async def look(n: int) -> dict[str, int]:
        """Look."""
        return {"n": n}

    return look


def waiting_run(site: Site, **options: Any) -> tuple[str, str, ScriptedModel]:
    """A run that waits for an approval, whose Runtime is gone: (its id, the approval's id, its model)."""
    host = site.open(ASKS, [pay_tool([])], **options)
    run_id = host.start(limits=Limits(cost="1", deadline_s=600))
    (approval,) = host.rest(run_id).approvals
    host.close()
    return run_id, approval.approval_id, host.model


@pytest.mark.parametrize("application", ["", "shop:app"])
def test_a_contract_that_changed_while_a_person_was_asked_stops_the_run(site: Site, application: str) -> None:
    ran: list[int] = []
    run_id, approval, model = waiting_run(site, application=application)
    host = site.open(model, [pay_with_more(ran)], application=application)
    host.rt.approve(run_id, approval, by="ann")
    result = host.rest(run_id)
    assert (result.outcome, result.reason, result.resumable) == ("failed", "definition_changed", True)
    assert ran == []


def test_a_run_goes_on_without_a_tool_that_this_application_dropped(site: Site) -> None:
    run_id, approval, model = waiting_run(site, application="shop:app")
    host = site.open(model, [look_tool()], application="shop:app")
    host.rt.approve(run_id, approval, by="ann")
    assert host.rest(run_id).completed
    assert [(it.status, it.code) for it in site.of(run_id, e.ResultBound)] == [("error", "unknown_tool")]
    [adopted] = site.of(run_id, e.DefinitionAdopted)
    assert (adopted.tool, adopted.definition) == ("pay", b"")


def test_a_run_whose_goal_needs_a_tool_that_this_application_dropped_is_blocked_until_it_is_back(
    site: Site,
) -> None:
    ran: list[int] = []
    host = site.open([*ASKS[:1], *ASKS], [pay_tool([])], application="shop:app")
    run_id = host.start(limits=Limits(cost="1", deadline_s=600), goal="pay")
    (approval,) = host.rest(run_id).approvals
    host.close()
    without = site.open(host.model, [look_tool()], application="shop:app")
    without.rt.approve(run_id, approval.approval_id, by="ann")
    result = without.rest(run_id)
    assert (result.outcome, result.reason, result.resumable) == ("incomplete", "blocked", True)
    without.close()
    again = site.open(host.model, [pay_tool(ran)], application="shop:app")
    again.rt.resume(run_id)
    (approval,) = again.rest(run_id).approvals
    again.rt.approve(run_id, approval.approval_id, by="ann")
    assert again.rest(run_id).completed
    assert ran == [1]


def test_a_description_that_changed_while_a_person_was_asked_is_adopted_and_shown_to_the_model(
    site: Site,
) -> None:
    run_id, approval, model = waiting_run(site, application="shop:app")
    ran: list[int] = []

    @tool(risk="write", key="call", approval="always", description="Pay, by noon.")
    async def pay(n: int) -> dict[str, int]:
        ran.append(n)
        return {"n": n}

    host = site.open(model, [pay], application="shop:app")
    host.rt.approve(run_id, approval, by="ann")
    (again,) = host.rest(run_id).approvals
    assert ran == []
    host.rt.approve(run_id, again.approval_id, by="ann")
    assert host.rest(run_id).completed
    assert ran == [1]
    assert [it.tool for it in site.of(run_id, e.DefinitionAdopted)] == ["pay"]
    assert host.state(run_id).tools["pay"].description == "Pay, by noon."
    first, last = site.of(run_id, e.ModelRequested)
    assert last.request_sha256 != first.request_sha256


@pytest.mark.parametrize("before", [True, False])
def test_a_host_that_dies_as_it_adopts_leaves_it_to_the_next(site: Site, before: bool) -> None:
    run_id, approval, model = waiting_run(site, application="shop:app")
    described = tool(risk="write", key="call", approval="always", name="pay", description="Pay, by noon.")

    async def pay(n: int) -> dict[str, int]:
        return {"n": n}

    dying = site.open(model, [described(pay)], application="shop:app")
    dying.line.cut_at(has(e.DefinitionAdopted), before=before)
    dying.rt.approve(run_id, approval, by="ann")
    dying.settle()
    dying.crash()
    host = site.after_crash(dying, [pay], application="shop:app")
    host.advance(HOST_LAPSES_MS)
    (again,) = host.rest(run_id).approvals
    host.rt.approve(run_id, again.approval_id, by="ann")
    assert host.rest(run_id).completed
    assert len(site.of(run_id, e.DefinitionAdopted)) == 1


def test_a_run_with_a_changed_contract_can_be_cancelled(site: Site) -> None:
    run_id, _, model = waiting_run(site)
    host = site.open(model, [pay_with_more([])])
    host.rt.cancel(run_id)
    assert host.rest(run_id).reason == "by_user"


def test_the_deadline_of_a_run_with_a_changed_contract_passes(site: Site) -> None:
    run_id, _, model = waiting_run(site)
    host = site.open(model, [pay_with_more([])])
    host.advance(700_000)
    result = host.rest(run_id)
    assert (result.outcome, result.reason) == ("incomplete", "deadline")


OTHERS: dict[str, tuple[Any, list[Any], str, str]] = {
    "tool missing": (None, [look_tool()], "", "the tool pay"),
    "tool missing, other application": (None, [look_tool()], "desk:app", "the tool pay"),
    "same names, other application": (None, [pay_with_more([])], "desk:app", "another contract"),
    "other model": (ScriptedModel(ASKS, model="other"), [pay_tool([])], "shop:app", "the model scripted:"),
}


@pytest.mark.parametrize(("model", "tools", "application", "needs"), OTHERS.values(), ids=OTHERS.keys())
@pytest.mark.parametrize("until", ["result", "wait"])
def test_nobody_waits_for_a_ready_run_of_another_application(
    site: Site, model: Any, tools: list[Any], application: str, needs: str, until: str
) -> None:
    run_id, approval, own = waiting_run(site, application="shop:app")
    host = site.open(model or own, tools, application=application)
    host.rt.approve(run_id, approval, by="ann")
    host.settle()
    with pytest.raises(ConflictError, match=needs) as caught:
        getattr(host.rt, until)(run_id)
    assert (caught.value.code, caught.value.path) == ("other_application", run_id)
    assert misfit(host.rt, host.state(run_id)) == caught.value.message


def test_a_foreign_run_that_rests_is_shown_and_not_waited_through(site: Site) -> None:
    run_id, _, model = waiting_run(site)
    host = site.open(model, [look_tool()])
    assert host.rest(run_id).status == "waiting"
    with pytest.raises(ConflictError, match="other_application"):
        host.rt.wait(run_id)


def test_a_run_goes_on_with_the_application_that_has_it(site: Site) -> None:
    ran: list[int] = []
    run_id, approval, model = waiting_run(site)
    stranger = site.open(model, [look_tool()])
    stranger.rt.approve(run_id, approval, by="ann")
    stranger.settle()
    stranger.close()
    owner = site.open(model, [pay_tool(ran)])
    assert owner.rest(run_id).completed
    assert ran == [1]


def test_a_run_that_another_host_of_the_store_carries_to_its_end_is_waited_for(site: Site) -> None:
    model = ScriptedModel([held(say("done"), "slow")])
    first = site.open(model)
    run_id = first.start()
    second = site.open(model)
    waiting = asyncio.run_coroutine_threadsafe(second.rt.aio.result(run_id), second.loop)
    second.settle()
    model.gate("slow").open()
    assert first.rest(run_id).completed
    second.advance(5_000)
    assert waiting.result(30).completed
